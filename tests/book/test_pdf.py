"""The book as a PDF: what it is printed from, and two of its pages."""
# ruff: noqa: F811 (a fixture has the name under which it is imported)

from __future__ import annotations

import re
from collections import Counter
from io import BytesIO
from pathlib import Path

import pdf
import yaml
from playwright.sync_api import Browser
from pypdf import PdfReader
from test_book import PAGES, ROOT, chromium, reads_pages  # noqa: F401

SHOWN = ("book/06-loss", "book/glossary")  # plots, formulas and a live figure, and a page that it links to
SECTIONS = [("first", "1.1. First & foremost"), ("second", "1.2. Second")]
TEXT = """<article class="bd-article"><section id="one"><img src="../_images/a.png">
<a href="#first">a</a> <a href="intro.html">b</a> <a href="intro.html#x">c</a> <a href="api.html">d</a>
<a href="https://example.org/#e">e</a>
<svg><path id="p"/><g clip-path="url(#p)"/></svg></section></article>"""
TWO = [
    pdf.Page("intro", Path("/book/intro.html"), None, TEXT, "The book", []),
    pdf.Page("01-one", Path("/book/01-one.html"), "The model", TEXT, "1. One", SECTIONS),
]


def test_the_order_is_that_of_the_contents():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    assert [place for place, _ in pdf.order()] == PAGES
    assert [part for _, part in pdf.order() if part] == [part["caption"] for part in contents["parts"]]


def test_the_table_of_contents_on_paper_has_the_numbers_of_pages():
    html = pdf.contents(TWO, {"intro": 1, "01-one": 5, "01-one--first": 6, "01-one--second": 11})
    assert re.findall(r'href="#([^"]+)"><span>([^<]*)</span><i>(\d+)</i>', html) == [
        ("intro", "The book", "1"),
        ("01-one", "1. One", "5"),
        ("01-one--first", "1.1. First &amp; foremost", "6"),
        ("01-one--second", "1.2. Second", "11"),
    ]
    assert "<h2>The model</h2>" in html and pdf.VERSION in html


def test_places_of_two_pages_do_not_meet_and_links_lead_to_them():
    html = pdf.html_of(TWO, {})
    ids = Counter(re.findall(r' id="([^"]*)"', html))
    assert {"intro", "intro--one", "intro--p", "01-one", "01-one--one", "01-one--p"} <= set(ids)
    assert max(ids.values()) == 1
    assert 'href="#01-one--first">a' in html and 'href="#intro">b' in html and 'href="#intro--x">c' in html
    assert "<a >d" in html and 'href="https://example.org/#e"' in html
    assert "url(#01-one--p)" in html and 'src="file:///_images/a.png"' in html


def titles(outline: list) -> list[str]:
    """List all bookmarks."""
    return [title for part in outline for title in (titles(part) if isinstance(part, list) else [part.title])]


def kinds(part, seen: Counter[str]) -> Counter[str]:
    """Count the parts of a PDF's structure, by their kind; a figure without a text is none."""
    part = part.get_object()
    if isinstance(part, list):
        for one in part:
            kinds(one, seen)
    elif hasattr(part, "get"):
        seen[part.get("/S")] += part.get("/S") != "/Figure" or len(part.get("/Alt", "")) > 20
        kinds(part.get("/K", []), seen) if "/K" in part else None
    return seen


@reads_pages
def test_the_pdf_has_a_cover_contents_bookmarks_links_and_tags(chromium: Browser):
    pages = [pdf.read_page(place, part) for place, part in pdf.order() if place in SHOWN]
    content = pdf.print_book(chromium, pages)
    book = PdfReader(BytesIO(content))
    texts = [page.extract_text() for page in book.pages]
    first = next(number for number, text in enumerate(texts) if "6.1. From likelihood" in text and number > 2)
    assert "Executed" in texts[0] and "Contents" in texts[2] and len(texts) - first > 10
    assert all(f"{number}" in text for number, text in enumerate(texts[1:], 2))
    (number,) = re.search(r"6\.9\. Further reading\s*(\d+)", texts[2]).groups()
    assert "6.9. Further reading" in texts[int(number) - 1]
    assert {"Contents", pages[0].title, pages[1].title} <= set(titles(book.outline))
    links = [link.get_object() for page in book.pages for link in page.get("/Annots", [])]
    addresses = [link["/A"]["/URI"] for link in links if "/A" in link]
    assert sum("/Dest" in link for link in links) > 20
    assert all(address.startswith("http") for address in addresses)
    assert not any("Code of the figure" in text for text in texts)
    assert any("Solution" in text for text in texts)
    structure = book.root_object["/StructTreeRoot"]
    assert book.root_object["/MarkInfo"]["/Marked"] and book.root_object["/Lang"] == "en"
    seen = kinds(structure["/K"], Counter())
    assert all(seen[kind] for kind in ("/Document", "/H1", "/H2", "/P", "/L", "/Figure"))
    assert len(content) < 5_000_000 and b"file:" not in content and bytes(ROOT) not in content
