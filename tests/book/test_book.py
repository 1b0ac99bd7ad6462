"""The woven book as a reader meets it: its HTML, then the same pages in a browser that reaches no network."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from time import sleep
from urllib.parse import unquote, urldefrag, urlsplit

import axe_playwright_python
import live
import nbformat
import plain
import pytest
import yaml
from bs4 import BeautifulSoup
from playwright.sync_api import Browser, Page, Route, sync_playwright
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "_build" / "html"
MAX_PAGE_BYTES = 1_000_000
MAX_LOADED_BYTES = 2_300_000  # with all that a page loads, but for a model
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)

needs_book = pytest.mark.skipif(not (HTML / "index.html").exists(), reason="the book is not built: make book")


def reads_pages(test):
    """Mark a test of what the build wrote, a part of `make test-pages`, which builds the book before it."""
    return pytest.mark.pages(needs_book(test))


def pages_of_contents() -> list[str]:
    """Return the pages that `_toc.yml` names, in reading order, without suffix."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    chapters = [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]
    return [contents["root"], *chapters]


WORD = re.compile(r"[^\W\d_]{3,}")
# What is not text in a cell's Markdown: names of equations, formulas, labels, languages of code, addresses.
NOT_SHOWN = re.compile(
    r"\$\$.*?\$\$|\$(?:[^$\n]|\n(?!\n))+\$"
    r'|<a id="[\w-]+"></a>|^ *```\w*|\[Live figure: [\w-]+\]\(\S+\)\.|\]\([^()\s]+\)|https?://\S+',
    flags=re.MULTILINE | re.DOTALL,
)
CELL = "div.cell:not(:has(div.cell))"  # not what folds several of them
ASSERTS = re.compile(r"^assert ", flags=re.MULTILINE)
PAGES = pages_of_contents()
NOTEBOOKS = [name for name in PAGES if (ROOT / f"{name}.ipynb").exists()]
CHAPTERS = [name for name in NOTEBOOKS if Path(name).name[0].isdigit()]


class Soups(dict):
    """Parsed pages by path, each read once."""

    def __missing__(self, path: Path) -> BeautifulSoup:
        self[path] = BeautifulSoup(path.read_text(encoding="utf8"), "html.parser")
        return self[path]


class Anchors(dict):
    """What links can lead to in a page, by its path."""

    def __init__(self, soups: Soups) -> None:
        self.soups = soups

    def __missing__(self, path: Path) -> set[str]:
        self[path] = {element["id"] for element in self.soups[path].find_all(id=True)}
        return self[path]


@pytest.fixture(scope="module")
def soups() -> Soups:
    return Soups()


@pytest.fixture(scope="module")
def anchors(soups: Soups) -> Anchors:
    return Anchors(soups)


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest) -> Path:
    """The HTML file of one page of the table of contents."""
    return HTML / f"{request.param}.html"


def is_outside(address: str) -> bool:
    return bool(urlsplit(address).netloc) or urlsplit(address).scheme in ("http", "https")


def addresses(soup: BeautifulSoup, attribute: str) -> list[str]:
    return [tag[attribute] for tag in soup.find_all(attrs={attribute: True})]


@reads_pages
def test_the_first_page_leads_to_the_book(soups):
    refresh = soups[HTML / "index.html"].find("meta", attrs={"http-equiv": "Refresh"})
    assert refresh["content"].endswith(f"url={PAGES[0]}.html")


@reads_pages
def test_page_is_sound(page, soups, anchors):
    """One title, a description and a card, nothing from another host, no dead link, no silent picture."""
    soup = soups[page]
    assert page.stat().st_size <= MAX_PAGE_BYTES
    assert len(soup.select("article.bd-article h1")) == len(soup.select("meta[name=viewport]")) == 1
    assert "/under-the-hood/" not in page.as_posix() or not soup.select(".caption-number")
    own, _, rest = soup.title.text.strip().partition(" — ")
    assert own and own != rest
    assert 20 <= len(soup.find("meta", attrs={"name": "description"})["content"]) <= 200
    said = {meta["property"]: meta["content"] for meta in soup.find_all("meta", property=True)}
    assert file_of(said["og:url"]) == page
    assert file_of(said["og:image"]).read_bytes().startswith(b"\x89PNG")
    loaded = addresses(soup, "src") + addresses(soup, "srcset")
    links = soup.find_all("link", href=True)
    loaded += [link["href"] for link in links if link["rel"] != ["canonical"]]  # says where the page lives
    assert [address for address in loaded if is_outside(address)] == []
    assert broken_links(page, soup, anchors) == []
    assert all(image.get("alt", "").strip() for image in soup.find("main").find_all("img"))
    assert all(
        plot["role"] == "img" and len(plot["aria-label"]) > 20 for plot in soup.select("main svg.plot")
    )
    figures = {figure["data-live"] for figure in soup.select("figure[data-live]")}
    models = {figure["data-model"].partition("-")[0] for figure in soup.select("figure[data-model]")}
    assert models == {live.FIGURES[figure] for figure in figures} - {None}
    assert any("/_static/live/" in address for address in loaded) == bool(figures)


def broken_links(page: Path, soup: BeautifulSoup, anchors: Anchors) -> list[str]:
    broken = []
    for address in addresses(soup, "href") + addresses(soup, "src"):
        if is_outside(address) or address.startswith(("mailto:", "data:", "javascript:")) or address == "#":
            continue
        path, fragment = urldefrag(address)
        target = (page.parent / unquote(urlsplit(path).path)).resolve() if path else page
        lost = fragment and target.suffix == ".html" and unquote(fragment) not in anchors[target]
        if not target.exists() or lost:
            broken.append(address)
    return broken


def markdown_of(name: str) -> list[str]:
    """The texts of a notebook's Markdown cells."""
    cells = nbformat.read(ROOT / f"{name}.ipynb", as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


@reads_pages
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_chapter_reads_the_same_in_the_notebook_and_in_the_book(name, soups):
    """Citations as their links say them, equations with their numbers, and every word.

    MyST takes a line that begins with a percent sign for a comment, and says nothing.
    """
    soup, texts = soups[HTML / f"{name}.html"], markdown_of(name)
    entries = parse_file(str(ROOT / "book" / "references.bib")).entries.values()
    works = {plain.address(entry) for entry in entries}
    links = [link for text in texts for link in plain.LINK.findall(text)]
    written = [" ".join(label.split()) for label, address in links if address in works]
    shown = soup.select('article.bd-article a[href^="bibliography.html#"]')
    # Several in one pair of brackets are put into the order of the bibliography.
    assert sorted(written) == sorted(" ".join(link.text.split()) for link in shown)

    equations = [found for text in texts for found in plain.EQUATION.finditer(text)]
    labels = soup.select('div.math[id^="equation-"]')
    numbers = [(label["id"], label.select_one(".eqno").find(string=True)) for label in labels]
    assert numbers == [(f"equation-{found[1]}", f"({found[3]})") for found in equations]

    article = copy(soup.select_one("article.bd-article"))
    for element in article.select("mjx-container, .cell_input, .cell_output"):
        element.decompose()
    seen = [article.get_text(" "), *(image["alt"] for image in article.select("img"))]
    seen += [picture["aria-label"] for picture in article.select("svg[aria-label]")]
    words = Counter(word for text in texts for word in WORD.findall(NOT_SHOWN.sub(" ", text)))
    assert words - Counter(WORD.findall(" ".join(seen))) == Counter()


@reads_pages
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_cells_are_marked_as_what_they_are(name, soups):
    """Exported ones in the order of the notebook; a check where it ran, unless it reads a record."""
    cells = nbformat.read(ROOT / f"{name}.ipynb", as_version=4).cells
    tags = [tag for cell in cells for tag in cell.metadata.get("tags", []) if tag.startswith("export:")]
    shown = [label.text for label in soups[HTML / f"{name}.html"].select(".cell-exported .cell-label")]
    labels = [label for label in shown if label.startswith("→")]  # of a check folded beside it, another
    assert labels == [f"→ transformer/{tag.removeprefix('export:')}.py" for tag in tags]
    marked = soups[HTML / f"{name}.html"].select(".cell-checked")
    assert marked
    assert not any(cell.select(".traceback") or "cell-exported" in cell["class"] for cell in marked)
    asserting = [cell for cell in soups[HTML / f"{name}.html"].select(CELL) if ASSERTS.search(cell.text)]
    assert all({"cell-checked", "cell-exported", "cell-recorded"} & set(cell["class"]) for cell in asserting)


# In the browser ------------------------------------------------------------------------------------

UNRENDERED = """() => [...document.querySelectorAll('.math')]
    .filter(element => !element.querySelector('mjx-container') || element.querySelector('mjx-merror'))
    .map(element => element.textContent.slice(0, 80))"""
TOO_WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"
WIDTHS = (1280, 820, 390)
NARROWEST = 320  # 1280, four times enlarged
STOPS_INSIDE_FORMULAS = "() => document.querySelectorAll('mjx-container [tabindex=\"0\"]').length"
# MathJax draws up to the edge of its box, and a box that scrolls sideways cuts there.
CUT_OFF = """() => [...document.querySelectorAll('mjx-container[display="true"]')].filter(box => {
    const parts = [...box.querySelectorAll('mjx-math *')];
    const roof = Math.min(...parts.map(part => part.getBoundingClientRect().top));
    return roof < box.getBoundingClientRect().top;
}).map(box => box.parentElement.id)"""
# What a phone shows of plots and diagrams: those that scroll sideways, have signs below 11 pixels, or words
# that come closer to the frame around them than 1.4.
UNREADABLE = """() => [...document.querySelectorAll('svg.plot, svg.diagram')]
    .filter(drawing => drawing.checkVisibility() && drawing.getClientRects().length)
    .flatMap(drawing => {
        const box = drawing.closest('.picture'), scale = drawing.getScreenCTM().a, faults = [];
        const letters = [...drawing.querySelectorAll('text')];
        const size = sign => parseFloat(getComputedStyle(sign).fontSize) * scale;
        const smallest = Math.min(...[...drawing.querySelectorAll('text, tspan')].map(size));
        if (drawing.matches('.plot') && box.scrollWidth > box.clientWidth + 1) faults.push('scrolls');
        if (smallest < 10.95) faults.push(`${smallest.toFixed(1)} px`);
        const frames = [...drawing.querySelectorAll('rect.shape')].map(frame => frame.getBBox());
        for (const word of letters.filter(text => text.textContent.length > 2)) {
            const { x, y, width, height } = word.getBBox(), [left, top] = [x + width / 2, y + height / 2];
            const around = frames.filter(frame => frame.x < left && left < frame.x + frame.width
                && frame.y < top && top < frame.y + frame.height).sort((a, b) => a.width - b.width)[0];
            const room = around && Math.min(x - around.x, around.x + around.width - x - width) * scale;
            if (room < 1.4) faults.push(`${word.textContent} touches its frame`);
        }
        return faults.map(fault => `${fault}: ${drawing.getAttribute('aria-label').slice(0, 60)}`);
    })"""
# Of a plot's two forms one is seen, and so one is heard.
SEEN_TWICE = """() => [...document.querySelectorAll('.picture:has(svg.narrow)')]
    .filter(box => !box.closest('.veiled'))
    .filter(box => [...box.children].filter(form => form.getClientRects().length).length !== 1).length"""
# Tables that a phone cannot show whole.
WIDE_TABLES = """() => [...document.querySelectorAll('.pst-scrollable-table-container')]
    .filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.textContent.slice(0, 60))"""
# Code and equations that scroll sideways on a phone, and signs of formulas below 11 pixels.
WIDE_CODE = """() => [...document.querySelectorAll('.cell_input pre, div.math mjx-container')]
    .filter(box => box.scrollWidth > box.clientWidth + 1).length
    + [...document.querySelectorAll('article mjx-c')]
    .filter(sign => sign.checkVisibility() && parseFloat(getComputedStyle(sign).fontSize) < 10.95).length"""
PATIENCE = 180_000  # milliseconds: a busy machine is not a fault of the book
# A color that is fading into another cannot be judged.
STILL = "* { transition: none !important; animation: none !important; }"
# What a page can do without: the search's index, the theme's icons, MathJax.
NEEDLESS = {"searchindex.js", "sections.js", "fontawesome.js", "fa-solid-900.woff2", "tex-chtml.js"}
# What the copy buttons put on the clipboard: book/_ext leaves out what unfolds a docstring.
COPIED = """() => [...document.querySelectorAll('.cell-exported pre')]
    .filter(pre => pre.closest('.cell').matches('.cell-exported')).map(pre => {
    const copy = pre.cloneNode(true);
    copy.querySelectorAll('.nocopy, button').forEach(part => part.remove());
    return copy.textContent;
})"""
# A chapter has thousands of words of code in a dozen colors and as many pieces of equations, and the page of
# the API hundreds of entries of one form. Plain text for the first, and three sections of the last, are
# judged in a hundredth of the time; the colors of code are judged on one page.
PLAIN = """() => {
    document.querySelectorAll('.highlight pre, mjx-container').forEach(element => {
        element.textContent = element.tagName === 'PRE' ? element.textContent : 'x';
    });
    const api = 'section:has(> dl.py)';
    document.querySelectorAll(`${api} ~ ${api} ~ ${api} ~ ${api}`).forEach(section => section.remove());
}"""
# What has the same tags and classes up to the page has the same colors, and its first text is judged for all.
ALIKE = """() => {
    const path = one => one && `${path(one.parentElement)} ${one.tagName}.${one.className}`;
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const seen = new Set();
    while (texts.nextNode()) {
        const text = texts.currentNode;
        if (!text.data.trim()) continue;
        const key = path(text.parentElement);
        if (seen.has(key)) text.data = ' ';
        seen.add(key);
    }
}"""
COLORS = ["color-contrast", "link-in-text-block"]
AXE = """async only => {
    const rules = {'color-contrast': {enabled: false}, 'link-in-text-block': {enabled: false},
        'label-content-name-mismatch': {enabled: true}, 'target-size': {enabled: true}};
    const asked = only ? {runOnly: only} : {rules};
    const result = await axe.run({preload: false, resultTypes: ['violations'], ...asked});
    const examples = fault => fault.nodes.slice(0, 3).map(node => node.html.slice(0, 120)).join(' | ');
    return result.violations.map(fault => `${fault.id}: ${examples(fault)}`);
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    if executable is None:
        pytest.skip("there is no Chromium: make browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(BROWSER_ARGUMENTS))
        yield browser
        browser.close()


def is_fault(kind: str, text: str) -> bool:
    """Tell whether a message of the browser is one of an error, or of a font that it cannot read."""
    return kind == "error" or "decode" in text or "OTS" in text


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Page]:
    """A fresh page that ends with the claim that it asked no other host for anything and met no error."""
    outside, faults = [], []
    tab = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    tab.set_default_timeout(PATIENCE)
    tab.on("request", lambda request: is_outside(request.url) and outside.append(request.url))
    tab.on("console", lambda message: is_fault(message.type, message.text) and faults.append(message.text))
    tab.on("pageerror", lambda error: faults.append(str(error)))
    yield tab
    tab.close()
    assert outside == []
    assert faults == []


@pytest.fixture(scope="module")
def axe() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf8")


def visit(tab: Page, page: Path) -> None:
    """Open `page` from the disk, all of it laid out, and wait for its fonts, and until formulas fit."""
    tab.goto(page.as_uri())
    tab.add_style_tag(content=STILL)
    tab.evaluate("() => document.fonts.ready.then(() => null)")
    tab.wait_for_function("() => document.documentElement.dataset.settled !== undefined")


def show(tab: Page, width: int, scheme: str) -> None:
    """Turn the page to `scheme` and make it `width` pixels wide."""
    if tab.viewport_size["width"] != width:
        tab.set_viewport_size({"width": width, "height": 900})
        tab.wait_for_timeout(500)  # the theme looks again a moment later which boxes scroll
    tab.emulate_media(color_scheme=scheme)
    tab.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)


@reads_pages
def test_page_in_the_browser(page, tab, axe):
    """One visit a page: from the disk, at three widths, light and dark.

    Of axe's rules two depend on the colors, and they do not depend on the width.
    """
    visit(tab, page)
    assert tab.evaluate(UNRENDERED) == []
    assert tab.evaluate(STOPS_INSIDE_FORMULAS) == 0
    for width in WIDTHS:
        show(tab, width, "light")
        assert tab.evaluate(TOO_WIDE) <= 0, f"at {width} pixels the page scrolls sideways"
        assert tab.evaluate(CUT_OFF) == [], f"at {width} pixels an equation loses its upper edge"
        assert tab.evaluate(SEEN_TWICE) == 0
        assert tab.evaluate(UNREADABLE) == []
    assert tab.evaluate(WIDE_TABLES) == []
    assert tab.evaluate(WIDE_CODE) == 0
    show(tab, NARROWEST, "light")
    assert tab.evaluate(TOO_WIDE) <= 0, f"at {NARROWEST} pixels the page scrolls sideways"
    tab.evaluate(PLAIN)
    tab.evaluate(axe)
    for width in (*WIDTHS[1:], WIDTHS[0]):  # never the same twice: the theme looks again which boxes scroll
        show(tab, width, "light")
        assert tab.evaluate(AXE) == [], f"{width} pixels"
    tab.evaluate(ALIKE)
    for scheme in ("light", "dark"):
        show(tab, WIDTHS[0], scheme)
        assert tab.evaluate(AXE, COLORS) == [], scheme


# How far what a page shows at first moves while it loads, as browsers add it up, and what moved.
SHIFTS = """window.shifts = []; new PerformanceObserver(list => {
    for (const entry of list.getEntries().filter(entry => !entry.hadRecentInput)) {
        const moved = entry.sources.map(({ node }) => `${node?.nodeName}.${node?.className ?? ''}`);
        window.shifts.push([entry.value, moved.join(', ')]);
    }
}).observe({ type: 'layout-shift', buffered: true })"""
MAX_SHIFT = 0.05


def later(wait: float, route: Route) -> None:
    sleep(wait)
    route.continue_()


@reads_pages
def test_a_page_is_light_to_load_and_nothing_moves_meanwhile(page, tab):
    """How much moves depends on what comes late: here fonts, one after the other, and a figure's model.

    Formulas need no program, the index comes only to the search page, and a model with its figure.
    """
    loaded: set[Path] = set()
    tab.on("requestfinished", lambda request: loaded.add(Path(unquote(urlsplit(request.url).path))))
    tab.add_init_script(SHIFTS)
    tab.route(re.compile(r"\.woff2|-model\.js"), partial(later, 0.15))
    for width in (390, 1280):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.goto(page.as_uri())
        tab.wait_for_function("() => document.documentElement.dataset.settled !== undefined")
        tab.wait_for_timeout(500)
        shifts = tab.evaluate("() => window.shifts")
        assert sum(value for value, _ in shifts) < MAX_SHIFT, shifts
    assert not NEEDLESS & {path.name for path in loaded}
    models = {path for path in loaded if path.name.endswith("-model.js")}
    figures = tab.locator("figure[data-model]")
    if figures.count() and figures.first.bounding_box()["y"] > 2000:  # not where it is the first thing
        assert not models
    assert sum(path.stat().st_size for path in loaded - models if path.is_file()) < MAX_LOADED_BYTES


# The first line in the window, by its number among all, and where it stands.
FIRST_LINE = """() => {
    const lines = [...document.querySelectorAll('article :is(p, pre, h3)')];
    const number = lines.findIndex(line => line.checkVisibility() && line.getBoundingClientRect().top > 200);
    return [number, lines[number].getBoundingClientRect().top];
}"""


@reads_pages
def test_reload_and_back_lead_to_the_very_line(tab):
    """On a phone, where equations are fitted to the width after they are drawn."""
    tab.set_viewport_size({"width": 390, "height": 844})
    visit(tab, HTML / "book" / "01-gradients.html")
    tab.evaluate("() => scrollTo(0, document.documentElement.scrollHeight / 2)")
    number, top = tab.evaluate(FIRST_LINE)
    for leave in (tab.reload, lambda: (tab.goto((HTML / "book/glossary.html").as_uri()), tab.go_back())):
        leave()
        tab.wait_for_function("() => document.documentElement.dataset.settled !== undefined")
        tab.wait_for_timeout(1000)
        assert tab.evaluate(FIRST_LINE) == [number, pytest.approx(top, abs=1)]


@reads_pages
def test_a_long_table_of_results_can_be_sorted(tab):
    visit(tab, HTML / "book" / "13-translation.html")
    tab.locator(".predict .show").evaluate_all("buttons => buttons.forEach(button => button.click())")
    table = tab.locator("table.sortable").first
    for sign, order in (("ascending", sorted), ("descending", lambda found: sorted(found, reverse=True))):
        table.locator("th button").nth(2).click()
        column = [float(text) for text in table.locator("td:nth-child(3)").all_text_contents()]
        assert len(column) > 8 and column == order(column)
        assert table.locator("th").nth(2).get_attribute("aria-sort") == sign


@reads_pages
def test_paper_is_white_whatever_the_theme(tab):
    """The theme is the light one while a page is printed, and again the reader's after that."""
    visit(tab, HTML / f"{CHAPTERS[6]}.html")
    show(tab, 1280, "dark")
    looks = """() => [...document.querySelectorAll('.bd-article p, .highlight pre')]
        .map(text => getComputedStyle(text).color).join()"""
    dark = tab.evaluate(looks)
    tab.evaluate("() => dispatchEvent(new Event('beforeprint'))")
    printed = tab.evaluate(looks)
    tab.evaluate("() => dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate(looks) == dark
    show(tab, 1280, "light")
    assert tab.evaluate(looks) == printed != dark


# The live figures -------------------------------------------------------------------------------------

PAGE_OF = {
    "toy": "09-toy-task",
    "phrases": "intro",
    "attention": "03-attention",
    "beam": "08-decoding",
    "positions": "02-embedding",
    "schedule": "07-training",
    "smoothing": "06-loss",
    "anatomy": "05-model",
    "roofline": "10-speed",
    "stream": "14-looking-inside",
    "merges": "12-text",
    "learner": "playground",
    "rotary": "15-since-2017",
    "examination": "16-clinic",
    "switch": "16-clinic",
    "kills": "11-long-runs",
    "descent": "01-gradients",
    "bleu": "13-translation",
    "warmup": "07-training",
    "reversing": "09-toy-task",
    "speaker": "15-since-2017",
    "masks": "03-attention",
    "bootstrap": "13-translation",
    "gradient": "06-loss",
    "order": "02-embedding",
    "shards": "17-many-machines",
    "plus": "04-layers",
    "shift": "05-model",
    "hundred": "13-translation",
}
PLACES = {name: HTML / "book" / f"{page}.html" for name, page in PAGE_OF.items()}


# The published site ----------------------------------------------------------------------------------

BASE = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["html"]["baseurl"]


def file_of(address: str) -> Path:
    """The built file that stands at an address of the published site."""
    assert address.startswith(BASE), address
    return HTML / unquote(address.removeprefix(BASE))


@reads_pages
def test_the_page_for_what_is_missing_works_at_any_address(soups):
    """A host shows it at the address that was asked for, so no link of it may be relative."""
    missing = soups[HTML / "404.html"]
    path = urlsplit(BASE).path
    places = addresses(missing, "href") + addresses(missing, "src") + addresses(missing, "action")
    assert len(places) >= 3
    for place in places:
        assert place.startswith(path) and (HTML / place.removeprefix(path)).is_file(), place


@reads_pages
def test_what_is_folded_can_be_unfolded_and_is_copied_and_printed(tab):
    visit(tab, HTML / "book/03-attention.html")
    cells = nbformat.read(ROOT / "book/03-attention.ipynb", as_version=4).cells
    sources = [
        cell.source for cell in cells if any("export:" in tag for tag in cell.metadata.get("tags", []))
    ]
    copied = tab.evaluate(COPIED)
    assert [text.strip() for text in copied] == [source.strip() for source in sources]
    rest = tab.locator(".docstring-rest").first
    assert not rest.is_visible()
    tab.locator(".nocopy button").first.click()
    assert rest.is_visible()
    tab.emulate_media(media="print")
    shown = "xpath=//*[contains(@class, 'docstring-rest')][not(ancestor::details[not(@open)])]"
    parts = tab.locator(shown).all()
    assert parts and all(part.is_visible() for part in parts)
    assert tab.evaluate(
        "() => [...document.querySelectorAll('.tall pre')].every(e => e.clientHeight >= e.scrollHeight)"
    )
