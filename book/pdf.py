"""Print the built book for reading on paper.

    python book/pdf.py          # _build/pdf/transformer-book.pdf

All pages but those of the API become one, with a cover and a table of contents. Chromium prints it, with
bookmarks, links, and the tags of a text that can be read aloud, and again when the contents know the numbers
of pages. What a page looks like on paper stands in the print part of `book/_static/book.css`. Live figures
are their first pictures. The code that only draws a figure is left out.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urljoin

import yaml
from playwright.sync_api import Browser, sync_playwright
from pypdf import PdfReader
from tasks import BROWSERS, HTML, ROOT

PDF = ROOT / "_build" / "pdf"
BOOK = "transformer-book.pdf"
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["version"]
COVER = ROOT / "book" / "_static" / "cover.svg"
WIDTH = {"width": 643, "height": 900}  # pixels: 170 mm, between the margins, to which equations are fitted
ARTICLE = re.compile(r'<article class="bd-article">(.*)</article>', re.DOTALL)
HEADING = re.compile(r'id="([^"]+)">\s*<h([12])>(.*?)<a class="headerlink"')
STYLE = re.compile(r'<link (?=[^>]*rel="stylesheet")[^>]*?href="([^"]*)"')
ADDRESS = re.compile(r'\b(href|src)="([^"]*)"')
IDS = re.compile(r'\b(id|for|aria-labelledby|aria-describedby)="([^"]*)"')
# On paper nothing can be unfolded. The drawing in a figure has the text for those who cannot see it.
FOR_BOOK = """async () => {
    await document.fonts.ready;
    document.querySelectorAll('figure').forEach(figure => { figure.role = 'group'; });
    document.querySelectorAll('details').forEach(details => {
        details.open = true;
        if (/^Code of the figure/.test(details.textContent.trim())) details.remove();
    });
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
STYLES = """
    @page { font: 8pt 'Source Sans 3'; margin: 18mm 20mm; size: A4; }
    @page { @bottom-right { content: counter(page); } }
    @page cover { margin: 0; @bottom-right { content: none; } }
    body, .bd-main { display: block; }
    .cover { page: cover; } .cover svg { display: block; height: 296mm; width: 100%; }
    .contents { page: contents; } .imprint { break-after: page; padding-top: 120mm; }
    .contents h2 { color: #4a5968; font-size: 10pt; letter-spacing: 0.06em; margin: 6mm 0 1mm;
         text-transform: uppercase; }
    .contents a { display: flex; gap: 1.5mm; }
    .contents a::before { border-bottom: 1px dotted #8a98a8; content: ''; flex: 1; height: 0.9em; order: 1; }
    .contents a i { font-style: normal; order: 2; }
    .contents .chapter { break-after: avoid; font-weight: 700; margin-top: 2mm; }
    .contents .sections { columns: 2; column-gap: 8mm; font-size: 8.5pt; padding-left: 5mm; }
"""
FOOT = "@page p-{name} {{ @bottom-left {{ content: {title}; }} }}\n"


class Page(NamedTuple):
    """A page of the book, the part that begins with it, its HTML, its title, and its sections' places."""

    name: str
    path: Path
    part: str | None
    text: str
    title: str
    sections: list[tuple[str, str]]


def order() -> Iterator[tuple[str, str | None]]:
    """Yield the pages' places in reading order, each with the caption of the part it begins."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    yield contents["root"], None
    for part in contents["parts"]:
        for number, chapter in enumerate(part["chapters"]):
            yield chapter["file"], None if number else part["caption"]


def read_page(place: str, part: str | None) -> Page:
    """Read a built page."""
    path = HTML / f"{place}.html"
    text = path.read_text(encoding="utf8")
    titles = [
        (level, anchor, " ".join(unescape(re.sub(r"<[^>]*>", "", title)).split()))
        for anchor, level, title in HEADING.findall(text)
    ]
    sections = [(anchor, title) for level, anchor, title in titles if level == "2"]
    return Page(path.stem, path, part, text, titles[0][2], sections)


def place(name: str, anchor: str) -> str:
    """Return the id that a place of a page has in the book."""
    return f"{name}--{anchor}" if anchor else name


def body(page: Page, names: Mapping[str, str]) -> str:
    """Return what a page holds, with the ids that it has in the book.

    Args:
        page: of the book.
        names: of the book's pages, by their addresses; a link to another file leads nowhere.
    """

    def lead(found: re.Match[str]) -> str:
        attribute, address = found.groups()
        if re.match(r"(https?|data|mailto):", address):
            return found[0]
        if attribute == "src":
            return f'src="{urljoin(page.path.as_uri(), address)}"'
        file, _, anchor = urljoin(page.path.as_uri(), address).partition("#")
        return f'href="#{place(names[file], anchor)}"' if file in names else ""

    def rename(found: re.Match[str]) -> str:
        return f'{found[1]}="{" ".join(place(page.name, one) for one in found[2].split())}"'

    text = ARTICLE.search(page.text)[1]
    text = IDS.sub(rename, ADDRESS.sub(lead, text)).replace("url(#", f"url(#{place(page.name, ' ')[:-1]}")
    return f'<article class="bd-article" id="{page.name}" style="page: p-{page.name}">{text}</article>'


def contents(pages: Sequence[Page], numbers: Mapping[str, int]) -> str:
    """Return the imprint and the table of contents as HTML.

    Args:
        pages: of the book.
        numbers: of the pages on which the places of the book are printed, where they are known.
    """

    def line(target: str, title: str) -> str:
        return f'<a href="#{target}"><span>{escape(title)}</span><i>{numbers.get(target, "")}</i></a>'

    title, author = escape(CONFIG["title"]), escape(CONFIG["author"])
    imprint = f"""<div class="imprint"><p><strong>{title}</strong><br>{author}
        <p>Version {VERSION}<br>{escape(CONFIG["html"]["baseurl"])}
        <p>Text and figures: Creative Commons Attribution 4.0. Code: MIT license.
        <p>Live figures show their first picture here; in the pages on the web they answer.</div>"""
    lines = []
    for page in pages:
        lines += [f"<h2>{escape(page.part)}</h2>"] if page.part else []
        lines.append(f'<div class="chapter">{line(page.name, page.title)}</div>')
        if re.match(r"\d", page.title):
            listed = [line(place(page.name, anchor), title) for anchor, title in page.sections]
            lines.append(f'<div class="sections">{"".join(listed)}</div>')
    return f'<div class="contents">{imprint}<h1>Contents</h1>{"".join(lines)}</div>'


def html_of(pages: Sequence[Page], numbers: Mapping[str, int]) -> str:
    """Return some pages as one, which is the book."""
    found = (urljoin(page.path.as_uri(), address) for page in pages for address in STYLE.findall(page.text))
    styles = "".join(f'<link rel="stylesheet" href="{address}">' for address in dict.fromkeys(found))
    feet = "".join(FOOT.format(name=page.name, title=json.dumps(page.title)) for page in pages)
    names = {page.path.as_uri(): page.name for page in pages}
    return f"""<!DOCTYPE html><html lang="en" data-theme="light"><meta charset="utf8">
        <title>{escape(CONFIG["title"])}</title>{styles}<style>{STYLES}{feet}</style>
        <script src="{(HTML / "_static" / "book.js").as_uri()}"></script>
        <body><main class="bd-main"><div class="bd-content"><div class="bd-article-container">
        <div class="cover">{COVER.read_text("utf8")}</div>{contents(pages, numbers)}
        {"".join(body(page, names) for page in pages)}</div></div></main>"""


def printed(browser: Browser, html: str) -> bytes:
    """Return the book as a PDF."""
    path = PDF / "book.html"
    path.write_text(html, encoding="utf8")
    tab = browser.new_page(color_scheme="light", viewport=WIDTH)
    tab.set_default_timeout(0)  # a busy machine is not a fault of the book
    tab.emulate_media(media="print")
    tab.goto(path.as_uri())
    tab.evaluate(FOR_BOOK)
    content = tab.pdf(prefer_css_page_size=True, print_background=True, tagged=True, outline=True)
    tab.close()
    path.unlink()
    return content


def print_book(browser: Browser, pages: Sequence[Page]) -> bytes:
    """Print some pages as one book, once to see where everything stands."""
    PDF.mkdir(parents=True, exist_ok=True)
    reader = PdfReader(BytesIO(printed(browser, html_of(pages, {}))))
    numbers = {
        unquote(name.removeprefix("/")): reader.get_destination_page_number(target) + 1
        for name, target in reader.named_destinations.items()
    }
    print(f"{len(reader.pages)} pages")
    return printed(browser, html_of(pages, numbers))


def main() -> None:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        sys.exit("There is no Chromium: make browser")
    pages = [read_page(place, part) for place, part in order() if not place.startswith("book/api")]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        (PDF / BOOK).write_bytes(print_book(browser, pages))
    print((PDF / BOOK).relative_to(ROOT))


if __name__ == "__main__":
    main()
