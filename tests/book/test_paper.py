"""The book as a PDF: how its parts are put together, and two of its pages."""
# ruff: noqa: F811 (a fixture has the name under which it is imported)

from __future__ import annotations

import re
import sys

import pytest
import yaml
from playwright.sync_api import Browser
from pypdf import PdfReader
from pypdf.generic import ArrayObject, DictionaryObject
from test_book import HTML, PAGES, ROOT, chromium, reads_pages  # noqa: F401

sys.path.insert(0, str(ROOT / "book"))
import paper
import pdf

SHOWN = (
    "06-loss",
    "glossary",
)  # a chapter with plots, formulas and a live figure, and a page that it links to
SECTIONS = [paper.Section("first", "1.1. First & foremost"), paper.Section("second", "1.2. Second")]
TWO = [paper.Page("intro", "The book", [], None), paper.Page("01-one", "1. One", SECTIONS, "The model")]


def test_the_order_is_that_of_the_contents():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    assert [f"book/{name}" for name, _ in paper.order()] == PAGES
    assert [part for _, part in paper.order() if part] == [part["caption"] for part in contents["parts"]]


def test_the_table_of_contents_on_paper_has_the_numbers_of_pages():
    numbers = {"intro": 1, "01-one": 5, "01-one#first": 6, "01-one#second": 11}
    html = pdf.front_matter(TWO, numbers)
    lines = re.findall(r'href="https://page.invalid/([^"]+)"><span>([^<]*)</span><i>(\d+)</i>', html)
    assert lines == [
        ("intro", "The book", "1"),
        ("01-one", "1. One", "5"),
        ("01-one#first", "1.1. First &amp; foremost", "6"),
        ("01-one#second", "1.2. Second", "11"),
    ]
    assert "<h2>The model</h2>" in html and paper.version() in html


@pytest.mark.pages
def test_long_code_goes_on_over_the_page_at_a_blank_line(chromium: Browser):
    functions = [f"def f{number}():\n" + "    pass\n" * 5 + "\n\n" for number in range(3)]
    blocks = ["".join(functions), "".join(f"line {n}\n" for n in range(40)), "short\n\ncode\n"]
    tab = chromium.new_page()
    tab.set_content("".join(f"<div class='highlight'><pre><b></b>{block}</pre></div>" for block in blocks))
    tab.evaluate(pdf.DIVIDED)
    pres = tab.locator("pre")
    assert [pres.nth(number).text_content() for number in range(3)] == blocks
    parts = [pres.nth(number).locator(".part").all_text_contents() for number in range(3)]
    tab.close()
    assert parts[0] == functions
    assert [part.count("\n") for part in parts[1]] == [16, 16, 8] and parts[2] == []


@pytest.fixture(scope="module")
def shown() -> list[paper.Page]:
    return [paper.read_page(name, part) for name, part in paper.order() if name in SHOWN]


def pages_of(part: DictionaryObject) -> list:
    """Return the pages on which a part of the structure is printed: its own, and those where it goes on."""
    kids = part["/K"] if isinstance(part["/K"], ArrayObject) else [part["/K"]]
    marked = [kid.get_object() for kid in kids]
    return [place["/Pg"] for place in (part, *marked) if hasattr(place, "get") and "/Pg" in place]


def check_tags(book: PdfReader) -> None:
    """What is marked on a page belongs to a part of the structure that knows it, and pictures have a text."""
    structure = book.root_object["/StructTreeRoot"]
    assert book.root_object["/MarkInfo"]["/Marked"] and book.root_object["/Lang"] == "en"
    places = dict(pdf.numbered(structure["/ParentTree"]))
    seen: dict[str, list] = {}
    for page in book.pages[1:]:  # the cover is a drawing
        parts = [part.get_object() for part in places[page["/StructParents"]].get_object()]
        parts = [part for part in parts if part]
        assert parts and all(page in pages_of(part) for part in parts if "/Pg" in part)
        for part in parts:
            while part.get_object() != structure.get_object():
                part = part.get_object()
                seen.setdefault(part["/S"], []).append(part)
                part = part["/P"]
    assert {"/Document", "/H1", "/H2", "/P", "/L", "/Figure"} <= set(seen)
    assert all(len(figure.get("/Alt", "")) > 20 for figure in seen["/Figure"])


@reads_pages
def test_the_pdf_has_a_cover_contents_bookmarks_and_links(chromium: Browser, shown, tmp_path):
    pdf.print_book(chromium, shown).write(tmp_path / "book.pdf")
    book = PdfReader(tmp_path / "book.pdf")
    texts = [page.extract_text() for page in book.pages]
    first = book.page_labels.index("1")
    assert "Executed" in texts[0] and "Contents" in texts[first - 1] and texts[first].startswith("6. Loss")
    assert book.page_labels[:2] == ["i", "ii"] and len(texts) - first > 10
    assert all(text.rstrip().endswith(f"{number}") for number, text in enumerate(texts[first:], 1))
    titles = [entry.title for entry in book.outline if not isinstance(entry, list)]
    assert titles[0] == "Contents" and shown[0].part in titles
    links = [link.get_object() for page in book.pages for link in page.get("/Annots", [])]
    addresses = [link["/A"]["/URI"] for link in links if "/A" in link]
    assert sum("/Dest" in link for link in links) > 20
    assert not [address for address in addresses if not address.startswith("http") or pdf.PLACE in address]
    assert not any("Code of the figure" in text for text in texts) and any(
        "Solution" in text for text in texts
    )
    check_tags(book)
    content = (tmp_path / "book.pdf").read_bytes()
    assert len(content) < 5_000_000 and b"file:" not in content and bytes(ROOT) not in content
