"""The diagrams: current, legible on a phone, used, and described to those who cannot see them."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pencil
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "book" / "_static" / "diagrams"
FILES = sorted(FOLDER.glob("*.svg"))
LINK = re.compile(r"!\[([^\]]*)\]\(\S*_static/diagrams/([\w-]+\.svg)\)")


def markdown() -> str:
    """What the book says, pages and chapters."""
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "book").rglob("*.md")]
    for path in (ROOT / "book").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        pages += [cell.source for cell in cells if cell.cell_type == "markdown"]
    return "\n".join(pages)


def test_files_are_what_the_code_draws():
    ran = subprocess.run(
        [sys.executable, ROOT / "book" / "diagrams", "--check"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_every_diagram_is_shown_and_described():
    links = LINK.findall(markdown())
    assert {name for _, name in links} == {path.name for path in FILES}
    assert all(len(described) > 40 for described, _ in links)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_diagram_can_be_read_on_a_phone_and_nothing_leaves_the_sheet(path):
    """Boxes lie inside the drawing, and so do the middles of its texts."""
    root = ElementTree.parse(path).getroot()
    width, height = float(root.get("width")), float(root.get("height"))
    sizes = [float(size) for size in re.findall(r"font: (\d+)px", path.read_text(encoding="utf-8"))]
    assert width <= pencil.LARGEST_WIDTH and min(sizes) >= pencil.SMALLEST_LETTERS
    for node in root.iter():
        x, y = float(node.get("x", 0)), float(node.get("y", 0))
        is_box = node.tag.endswith("rect")
        right, bottom = (x + float(node.get("width")), y + float(node.get("height"))) if is_box else (x, y)
        assert x >= 0 and y >= 0 and right <= width and bottom <= height, ElementTree.tostring(node)


def luminance(color: str) -> float:
    """The relative luminance of a color such as #1f5f99, as WCAG defines it."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("kind", pencil.KINDS)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_and_lines_stand_out(kind, dark):
    fill, line = pencil.KINDS[kind][2 * dark : 2 * dark + 2]
    assert contrast(pencil.INK[dark], fill) >= 7
    assert contrast(line, pencil.PAGE[dark]) >= 3
