"""What the build makes of plots and of style sheets: nothing that a reader sees is lost."""

from __future__ import annotations

import re
from collections import Counter
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import cells
import lookup
import nbformat
import plots
import pytest
from docutils import nodes
from docutils.utils import new_document

ROOT = Path(__file__).resolve().parents[2]

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def drawings() -> list[tuple[str, str]]:
    """Every plot that the notebooks hold, by notebook and place."""
    found = []
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
        pictures = [data["image/svg+xml"] for data in outputs if "image/svg+xml" in data]
        found += [(f"{path.stem}-{place}", picture) for place, picture in enumerate(pictures)]
    return found


DRAWINGS = drawings()
every_plot = pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in DRAWINGS])


def numbers(path: str) -> list[float]:
    return [float(found) for found in NUMBER.findall(path)]


def paths(svg: str) -> list[list[float]]:
    """The points of all curves: paths that a frame clips."""
    tags = re.findall(r"<path [^>]*>", svg)
    return [
        numbers(re.search(r' d="([^"]*)"', tag)[1]) for tag in tags if "clip-path" in tag and ' d="' in tag
    ]


@pytest.mark.slow
@every_plot
def test_a_plot_keeps_its_curves_its_labels_become_text_and_its_colors_the_page_s(source):
    woven = plots.Plot(source, "plot7").html("A plot.")
    drawn, wanted = paths(woven), paths(source)
    assert len(drawn) == len(wanted)
    for given, asked in zip(drawn, wanted):
        assert given == pytest.approx(asked, abs=0.0051)
    assert woven.count("data:image/png;base64,") == source.count("data:image/png;base64,")

    texts = ElementTree.fromstring(woven).iter("text")
    shown = Counter("".join(text.itertext()) for text in texts)
    labels = re.findall(r"<!-- (.*?) -->", source)
    plain = Counter(unescape(label).strip() for label in labels if "$" not in label)
    assert plain == {label: shown[label] for label in plain}
    assert sum(shown.values()) == len(labels)
    assert not [text for text in shown if re.search(r"[\\${}]", text)]

    ids, used = re.findall(r' id="([^"]*)"', woven), set(re.findall(r'(?:url\(|href=")#([\w-]+)', woven))
    assert len(ids) == len(set(ids)) and set(ids) == used
    assert all(name.startswith("plot7-") for name in ids)
    assert not re.search(r"#(?:000000|ffffff|1f77b4|ff7f0e|2ca02c|d62728)\b", woven)
    assert len(woven) < 0.62 * len(source)


def test_formulas_in_labels_are_read():
    assert plots.words("loss") == "loss"
    assert (
        "".join(ElementTree.fromstring(f"<t>{plots.words(r'width $d_k$')}</t>").itertext())
        == "width dk\u200b"
    )
    assert 'dy="-0.38em" class="shifted">−3</tspan>' in plots.words(r"$\mathdefault{10^{−3}}$")
    assert plots.words("a &lt; b &amp; c") == "a &lt; b &amp; c"
    with pytest.raises(ValueError, match="cannot read"):
        plots.words(r"$\frac{1}{2}$")


def code_cell(source: str, mode: str | None = None, output: nodes.Node | None = None) -> nodes.container:
    """A cell as myst-nb leaves it to Sphinx."""
    written = nodes.container("", nodes.literal_block(source, source), nb_element="cell_code_source")
    shown = [nodes.container("", output, nb_element="cell_code_output")] if output else []
    cell = nodes.container("", written, *shown, nb_element="cell_code", cell_metadata={}, exec_count=1)
    if mode:
        cell["hide_mode"] = mode
    return cell


def outline(section: nodes.section) -> list[object]:
    """What a reader sees of cells: lines, with what is folded behind them, and what stands open."""
    shown: list[object] = []
    for node in section.children[1:]:
        if node.get("nb_element") == "cells":
            sources = [block.astext() for block in node.findall(nodes.literal_block)]
            shown.append((node[0]["prompt_show"], *sources))
        elif mode := node.get("hide_mode"):
            shown.append((node["prompt_show"], mode, node[0][0].astext()))
        else:
            shown += [type(part[0] if part.get("nb_element") else part).__name__ for part in node.children]
    return shown


def woven(*parts: nodes.Node) -> tuple[list[object], list[object]]:
    """The outlines of a chapter's top and of its first section, which both hold these parts."""
    document = new_document("page")
    inner = nodes.section("", nodes.title("", "One"), *(part.deepcopy() for part in parts))
    document += nodes.section("", nodes.title("", "Chapter"), *parts, inner)
    cells.mark(None, document)
    outer = document[0]
    assert outer.pop() is inner
    return outline(outer), outline(inner)


def picture() -> nodes.container:
    return nodes.container("", mime_type="image/svg+xml")


def test_folded_cells_that_follow_one_another_stand_behind_one_line():
    imports, define = "%matplotlib inline\nimport math", "def f():\n    pass"
    top, below = woven(
        code_cell(imports, "all"), code_cell(define, "input"), code_cell("plot()", "input", picture())
    )
    folded = (imports, define, "plot()")
    assert top == [("Setup", *folded), "container"]
    assert below == [("Code of the figure", *folded), "container"]


def test_what_is_to_be_seen_between_folded_cells_parts_them():
    said = nodes.paragraph("", "", nodes.strong("", "why"))
    top, below = woven(code_cell("import math", "input"), said, code_cell("class A: pass", "input"))
    imports = ("Setup", "input", "import math")
    assert top == [imports, "strong", ("Setup", "input", "class A: pass")]
    assert below == [imports, "strong", ("Code", "input", "class A: pass")]
    printed = nodes.paragraph("", "2")
    _, below = woven(code_cell("print(2)", "input", printed), code_cell("x = 1", "all"))
    assert below == [("Code", "input", "print(2)"), ("Code", "all", "x = 1")]
    _, below = woven(code_cell("print(2)", "all", printed), code_cell("x = 1", "all"))
    assert below == [("Code and result", "print(2)", "x = 1")]


@pytest.mark.parametrize(
    "tex, shown",
    [
        (r"\varepsilon_{\text{ls}}", "ε_ls"),
        (r"\tfrac12 \sqrt{d_k}", "1/2 √d_k"),
        (r"\lVert W^\top x \rVert \approx \frac{1}{\sigma}", "‖ W^⊤ x ‖ ≈ 1/σ"),
        (r"\log p(y \mid x) \le -\infty", "log p(y ∣ x) ≤ -∞"),
        (r"\hat m_t\, \mathbf 1", "m_t 1"),
    ],
)
def test_search_quotes_formulas_without_tex(tex, shown):
    assert lookup.one_line(lookup.plain(tex)) == shown


def silent(notebook: nbformat.NotebookNode) -> list[str]:
    """The cells that compare values and show nothing of it, whether folded or not."""
    found, checkers = [], set(cells.COMPARISONS)
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type != "code" or "nbval-skip" in tags:
            continue
        tree = cells.syntax(cell.source)
        cells.learn(tree, checkers)
        checks = any(cells.compares(node, checkers) for node in cells.executed(tree))
        if checks and not cell.outputs and not any(tag.startswith(cells.EXPORT) for tag in tags):
            found.append(cell.id)
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "book").glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_check_shows_what_it_found(path):
    assert silent(nbformat.read(path, as_version=4)) == []
