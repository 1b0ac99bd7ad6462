"""How a chapter reads on its built page, in numbers: when it first shows something, how much is code.

    python -m pytest tests/test_budgets.py -m pages -s    # prints the table

A screen is 900 pixels of a page that is 1280 wide. What is folded takes no height.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from test_book import CHAPTERS, HTML, chromium, reads_pages, tab, visit  # noqa: F401 (two are fixtures)

SCREEN = 900


@dataclass(frozen=True)
class Page:
    """What is measured of a page; as a value of its own, what a chapter may have."""

    first_output: int = 300  # words above what a cell first prints or draws
    first_picture: int = SCREEN  # pixels above it
    longest_run: float = 8.0  # screens without a picture
    open_code: float = 0.3  # share of the height
    code_cells: int = 60
    code_lines: int = 700


ALLOWED = Page()
# Where a chapter is still over its budget. What is no longer needed here is a failure, so this only shrinks.
OVER: dict[str, set[str]] = {}

MEASURE = """
screen => {
  const article = document.querySelector("article.bd-article");
  const box = element => element.getBoundingClientRect();
  const seen = element => element.checkVisibility() && box(element).height > 0;
  const {top, height} = box(article);
  const pictures = [...article.querySelectorAll("figure, svg, img, canvas")]
    .filter(element => seen(element) && box(element).height > 60 && box(element).width > 120)
    .map(element => [box(element).top - top, box(element).bottom - top]).sort((a, b) => a[0] - b[0]);
  let run = 0, end = 0;
  for (const [start, stop] of [...pictures, [height, height]]) {
    run = Math.max(run, start - end);
    end = Math.max(end, stop);
  }
  const range = document.createRange();
  range.selectNodeContents(article);
  const shown = [...article.querySelectorAll(".cell_output")].find(seen);
  if (shown) range.setEndBefore(shown);
  const above = range.cloneContents();
  above.querySelectorAll("script, style, .cell_input, mjx-container").forEach(element => element.remove());
  const code = [...article.querySelectorAll(".cell_input")];
  const text = code.map(element => element.querySelector("pre").textContent).join("\\n");
  return {
    first_output: above.textContent.split(/\\s+/).filter(word => /\\w/.test(word)).length,
    first_picture: Math.round(pictures.length ? pictures[0][0] + top + window.scrollY : height),
    longest_run: run / screen,
    open_code: code.filter(seen).reduce((sum, element) => sum + box(element).height, 0) / height,
    code_cells: code.length,
    code_lines: text.split("\\n").filter(line => line.trim()).length,
  };
}
"""


def row(name: str, page: Page) -> str:
    values = asdict(page).values()
    numbers = (f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in values)
    return f"{name:20}" + "".join(f"{number:>15}" for number in numbers)


@reads_pages
@pytest.mark.parametrize("name", CHAPTERS)
def test_chapter_keeps_its_budget(name, tab):  # noqa: F811
    visit(tab, HTML / f"{name}.html")
    page = Page(**tab.evaluate(MEASURE, SCREEN))
    print(f"\n{'':20}" + "".join(f"{key.replace('_', ' '):>15}" for key in asdict(page)))
    print(row(Path(name).name, page), row("allowed", ALLOWED), sep="\n")
    over = {key for key, value in asdict(page).items() if value > getattr(ALLOWED, key)}
    assert over == OVER.get(Path(name).name, set())
