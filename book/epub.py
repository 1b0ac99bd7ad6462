"""Write the built book as an EPUB 3, for reading systems on phones, tablets and paper-like screens.

    python book/epub.py         # _build/epub/transformer-book.epub

Each page becomes a file of XHTML, made in Chromium by `epub.js`: formulas as MathML, drawings and plots as
SVG with the colors of the light theme, live figures as their first pictures. No file has a script. What is
folded is open, but for the code that only draws a figure. Where `epubcheck` is
installed, it judges the result.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo

import paper
from paper import COVER, LIVE, ROOT, settings
from playwright.sync_api import Browser
from pygments.formatters import HtmlFormatter

EPUB = ROOT / "_build" / "epub" / "transformer-book.epub"
SCRIPT = Path(__file__).with_suffix(".js")
STYLE = Path(__file__).with_suffix(".css")
WIDTH = {"width": 1280, "height": 900}
COVER_WIDTH, COVER_HEIGHT = 1200, 1698
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of each file in the archive, so that equal books are equal files
TYPES = {".xhtml": "application/xhtml+xml", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}
CONTAINER = """<?xml version="1.0" encoding="UTF-8"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">
  <rootfiles><rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles>
</container>
"""
XHTML = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" xmlns:epub="http://www.idpf.org/2007/ops" lang="en" xml:lang="en">
<head><meta charset="utf-8"/><title>{title}</title><link rel="stylesheet" href="book.css"/></head>
<body>{body}</body>
</html>
"""


class Item(NamedTuple):
    """A file of the book, what the manifest says of it, and whether it is read in its turn."""

    path: str
    content: bytes
    properties: str = ""
    is_read: bool = False


# The pages, with Chromium ------------------------------------------------------------------------------


def extract(browser: Browser, page: paper.Page, ids: dict[str, list[str]]) -> Iterator[Item]:
    """Yield a page as XHTML, and its drawings.

    Args:
        browser: Chromium.
        page: of the built book.
        ids: the anchors of all pages, to which links may lead.
    """
    tab = browser.new_page(color_scheme="light", viewport=WIDTH)
    tab.set_default_timeout(0)  # a busy machine is not a fault of the book
    tab.route(LIVE, lambda route: route.abort())
    tab.goto(page.path.as_uri())
    tab.add_style_tag(content="* { content-visibility: visible !important; }")
    found = tab.evaluate(
        SCRIPT.read_text(encoding="utf8"), {"name": page.name, "names": list(ids), "ids": ids}
    )
    tab.close()
    text = XHTML.format(title=escape(page.title), body=found["body"])
    yield Item(f"{page.name}.xhtml", text.encode(), "mathml" if found["hasMath"] else "", True)
    for path, drawing in found["drawings"]:
        yield Item(path, drawing.encode())


def cover(browser: Browser) -> Iterator[Item]:
    """Yield the picture of the cover, and the page that shows it."""
    tab = browser.new_page(viewport={"width": COVER_WIDTH, "height": COVER_HEIGHT})
    svg = COVER.read_text(encoding="utf8").replace("<svg", '<svg style="width:100%;height:100%"', 1)
    tab.set_content(f"<style>body {{ margin: 0 }}</style>{svg}")
    tab.add_style_tag(content=paper.typeface())
    tab.evaluate("document.fonts.ready")
    yield Item("images/cover.png", tab.screenshot(), "cover-image")
    tab.close()
    title = escape(settings()["title"])
    body = f'<section epub:type="cover" class="cover"><img src="images/cover.png" alt="{title}"/></section>'
    yield Item("cover.xhtml", XHTML.format(title=title, body=body).encode(), "", True)


# Around them ---------------------------------------------------------------------------------------------


def anchors(page: paper.Page) -> list[str]:
    """Return the anchors of a built page."""
    article = page.path.read_text(encoding="utf8").partition('class="bd-article"')[2]
    return [unquote(found) for found in re.findall(r'\sid="([^"]+)"', article)]


def style() -> bytes:
    """Return the style sheet, with the colors of code in the light theme."""
    colors = HtmlFormatter(style="a11y-high-contrast-light").get_style_defs(".highlight")
    own = [rule for rule in colors.splitlines() if rule.startswith(".highlight .")]
    return (STYLE.read_text(encoding="utf8") + "\n".join(own) + "\n").encode()


def navigation(pages: list[paper.Page]) -> str:
    """Return the table of contents: parts, pages and sections."""

    def entry(page: paper.Page) -> str:
        sections = "".join(
            f'<li><a href="{page.name}.xhtml#{escape(section.anchor)}">{escape(section.title)}</a></li>'
            for section in page.sections
        )
        inner = f"<ol>{sections}</ol>" if sections else ""
        return f'<li><a href="{page.name}.xhtml">{escape(page.title)}</a>{inner}</li>'

    parts: list[tuple[str | None, list[paper.Page]]] = []
    for page in pages:
        if page.part or not parts:
            parts.append((page.part, []))
        parts[-1][1].append(page)
    lines = []
    for caption, inside in parts:
        entries = "\n".join(map(entry, inside))
        lines.append(f"<li><span>{escape(caption)}</span><ol>\n{entries}\n</ol></li>" if caption else entries)
    contents = "\n".join(lines)
    body = (
        f'<nav epub:type="toc" id="toc"><h1>Contents</h1><ol>\n{contents}\n</ol></nav>'
        '<nav epub:type="landmarks" hidden="hidden"><h2>Landmarks</h2><ol>'
        '<li><a epub:type="cover" href="cover.xhtml">Cover</a></li>'
        '<li><a epub:type="toc" href="nav.xhtml">Contents</a></li>'
        f'<li><a epub:type="bodymatter" href="{pages[0].name}.xhtml">The book</a></li></ol></nav>'
    )
    return XHTML.format(title="Contents", body=body)


def package(items: list[Item], modified: str) -> str:
    """Return the package document: what the book is, its files, and the order of reading.

    Args:
        items: the files; those that are read stand in order.
        modified: the time of the last change, as 2026-01-31T12:00:00Z.
    """
    config = settings()
    base = config["html"]["baseurl"]
    manifest, spine = [], []
    for number, item in enumerate(items):
        kind, properties = TYPES[Path(item.path).suffix], item.properties
        said = f' properties="{properties}"' if properties else ""
        manifest.append(f'    <item id="i{number}" href="{item.path}" media-type="{kind}"{said}/>')
        spine += [f'    <itemref idref="i{number}"/>'] if item.is_read else []
    access = {
        "accessMode": ("textual", "visual"),
        "accessModeSufficient": ("textual",),
        "accessibilityFeature": ("alternativeText", "MathML", "structuralNavigation", "tableOfContents"),
        "accessibilityHazard": ("none",),
    }
    metas = [
        f'    <meta property="schema:{name}">{one}</meta>' for name, all in access.items() for one in all
    ]
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
  <metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
    <dc:identifier id="id">urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, base)}</dc:identifier>
    <dc:title>{escape(config["title"])}</dc:title>
    <dc:creator>{escape(config["author"])}</dc:creator>
    <dc:language>en</dc:language>
    <dc:source>{escape(base)}</dc:source>
    <dc:rights>Text and figures: CC BY 4.0. Code: MIT license.</dc:rights>
    <meta property="dcterms:modified">{modified}</meta>
{chr(10).join(metas)}
  </metadata>
  <manifest>
{chr(10).join(manifest)}
  </manifest>
  <spine>
{chr(10).join(spine)}
  </spine>
</package>
"""


def last_change() -> str:
    """Return when the book was last changed: SOURCE_DATE_EPOCH, or the time of the last commit, or now."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    if not seconds and shutil.which("git"):
        line = ["git", "log", "-1", "--format=%ct"]
        seconds = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    time = datetime.fromtimestamp(int(seconds), UTC) if seconds else datetime.now(UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def archive(items: list[Item], target: Path) -> None:
    """Write the files as an EPUB: the first is not compressed and says what the archive is."""
    target.parent.mkdir(parents=True, exist_ok=True)
    files = {"META-INF/container.xml": CONTAINER.encode()}
    files |= {"EPUB/package.opf": package(items, last_change()).encode()}
    files |= {f"EPUB/{item.path}": item.content for item in items}
    with ZipFile(target, "w") as book:
        book.writestr(ZipInfo("mimetype", LONG_AGO), "application/epub+zip", ZIP_STORED)
        for path, content in files.items():
            book.writestr(ZipInfo(path, LONG_AGO), content, ZIP_DEFLATED, 9)


def write_book(browser: Browser, pages: list[paper.Page], target: Path) -> None:
    """Write some pages as one book."""
    ids = {page.name: anchors(page) for page in pages}
    items = [*cover(browser), Item("nav.xhtml", navigation(pages).encode(), "nav", True)]
    for page in pages:
        items += extract(browser, page, ids)
    archive([*items, Item("book.css", style())], target)


def check(target: Path) -> int:
    """Have epubcheck judge the book, where it is installed, and return its status."""
    if not (program := shutil.which("epubcheck")):
        print("epubcheck is not installed, so nobody has judged the file.")
        return 0
    # Debian's is a Java archive, which not every system runs as a program.
    is_archive = Path(program).read_bytes()[:2] == b"PK"
    line = ["java", "-jar", os.path.realpath(program)] if is_archive else [program]
    return subprocess.run([*line, str(target)], check=False).returncode


def main() -> int:
    with paper.chromium() as browser:
        write_book(browser, paper.pages(), EPUB)
    print(EPUB.relative_to(ROOT))
    return check(EPUB)


if __name__ == "__main__":
    sys.exit(main())
