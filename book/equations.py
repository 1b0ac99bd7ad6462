"""Number the equations of the chapters, and the links to them, as the built book does.

    python book/equations.py        # writes the notebooks in which a number has changed, and names them

The third labeled equation of Chapter 2 is (2.3). In a notebook its label is the line above it, its number the
last line in it, and a link to it leads to the published page, because Colab and Jupyter know no labels:

    <a id="eq-dense"></a>
    $$
    Z = X W + b .
    \\tag{1.1}
    $$

    by [(1.1)](SITE/book/01-gradients.html#equation-eq-dense)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import execute
import nbformat

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
import plain  # noqa: E402

LINK = re.compile(r"\[\([\d.]*\)\](\([^()\s]+#equation-(eq-[\w-]+)\))")


def numbers(chapters: list[list[str]]) -> dict[str, str]:
    """Return the number of each label, from the chapters' Markdown in order."""
    known = {}
    for chapter, texts in enumerate(chapters, start=1):
        labels = [found[1] for text in texts for found in plain.EQUATION.finditer(text)]
        known |= {label: f"{chapter}.{place}" for place, label in enumerate(labels, start=1)}
    return known


def numbered(text: str, known: dict[str, str]) -> str:
    """Return Markdown in which every equation, and every link to one, has its number."""
    text = plain.EQUATION.sub(
        lambda found: f'<a id="{found[1]}"></a>\n{found[2]}\n\\tag{{{known[found[1]]}}}\n$$', text
    )
    return LINK.sub(lambda found: f"[({known[found[2]]})]{found[1]}", text)


def main() -> None:
    notebooks = {path: nbformat.read(path, as_version=4) for path in execute.find_notebooks([])}
    prose = [[c for c in notebook.cells if c.cell_type == "markdown"] for notebook in notebooks.values()]
    known = numbers([[cell.source for cell in cells] for cells in prose])
    for (path, notebook), cells in zip(notebooks.items(), prose, strict=True):
        before = [cell.source for cell in cells]
        for cell in cells:
            cell.source = numbered(cell.source, known)
        if [cell.source for cell in cells] != before:
            execute.write(path, notebook)
            print(path.name)


if __name__ == "__main__":
    main()
