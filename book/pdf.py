"""Print the built pages for reading on paper: `make pdf` writes `_build/pdf/NN.pdf`, the workshop by letter.

    python book/pdf.py          # every chapter
    python book/pdf.py 03 B     # some of them

What a page looks like on paper stands in the print part of `book/_static/book.css`. Live figures are printed
as their first pictures, so their scripts are not loaded.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from tasks import BROWSERS, HTML, ROOT

PDF = ROOT / "_build" / "pdf"
FOOTER = """<div style="font: 8pt sans-serif; width: 100%; text-align: center">
<span class="title"></span> · <span class="pageNumber"></span></div>"""
MARGINS = {"top": "18mm", "bottom": "18mm", "left": "20mm", "right": "20mm"}
WIDTH = {"width": 643, "height": 900}  # pixels: 170 mm, between the margins, to which equations are fitted
LIVE = re.compile(r"/_static/live/[^/]*\.js")
# On paper nothing can be unfolded, and a link to a file beside the page leads nowhere.
FOR_PAPER = """async () => {
    await document.fonts.ready;
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    document.querySelectorAll('details').forEach(details => { details.open = true; });
    document.querySelectorAll('a[href]').forEach(link => {
        const within = link.getAttribute('href').startsWith('#');
        if (!within && !/^https?:/.test(link.href)) link.removeAttribute('href');
    });
}"""


def chapters(wanted: list[str]) -> list[Path]:
    """Return the built pages of the chapters named by number or letter, or of all."""
    pages = sorted([*HTML.glob("book/[0-9][0-9]-*.html"), *HTML.glob("book/[A-Z]-*.html")])
    return [page for page in pages if not wanted or short_name(page) in wanted]


def short_name(page: Path) -> str:
    return page.name.partition("-")[0]


def print_page(browser: Browser, page: Path) -> Path:
    """Write one page as a PDF, and return where."""
    target = PDF / f"{short_name(page)}.pdf"
    tab = browser.new_page(color_scheme="light")
    tab.set_default_timeout(0)  # a busy machine is not a fault of the book
    tab.route(LIVE, lambda route: route.abort())
    tab.emulate_media(media="print")
    tab.set_viewport_size(WIDTH)
    tab.goto(page.as_uri())
    tab.evaluate(FOR_PAPER)
    tab.pdf(
        path=target, format="A4", margin=MARGINS, print_background=True,
        display_header_footer=True, header_template="<span></span>", footer_template=FOOTER,
    )  # fmt: skip
    tab.close()
    return target


def main(wanted: list[str]) -> int:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        print("There is no Chromium: make browser", file=sys.stderr)
        return 1
    PDF.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for page in chapters(wanted):
            print(print_page(browser, page).relative_to(ROOT))
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
