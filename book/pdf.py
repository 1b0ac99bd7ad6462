"""Print the built book for reading on paper.

    python book/pdf.py          # _build/pdf/transformer-book.pdf

What a page looks like on paper stands in the print part of `book/_static/book.css`; a single page is printed
by any browser. Live figures are printed as their first pictures, so their scripts are not loaded. Chromium
prints a page at a time; the book joins them behind a cover and a table of contents, with page numbers,
bookmarks, and links that lead from one chapter to the other. The code that only draws a figure is left out.
All of it is tagged: a program that reads aloud finds headings, lists, tables and the texts of figures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import paper
from paper import COVER, LIVE, ROOT, settings
from playwright.sync_api import Browser
from pypdf import PageObject, PdfReader, PdfWriter
from pypdf.constants import PageLabelStyle
from pypdf.generic import (
    ArrayObject,
    BooleanObject,
    DecodedStreamObject,
    DictionaryObject,
    Fit,
    FloatObject,
    NameObject,
    NullObject,
    NumberObject,
    TextStringObject,
)

PDF = ROOT / "_build" / "pdf"
BOOK = "transformer-book.pdf"
MARGINS = {"top": "18mm", "bottom": "18mm", "left": "20mm", "right": "20mm"}
NO_MARGINS = dict.fromkeys(MARGINS, "0")
WIDTH = {"width": 643, "height": 900}  # pixels: 170 mm, between the margins, to which equations are fitted
POINTS = 72 / 25.4  # in a millimeter
PLACE = "https://page.invalid/"  # before the name and the anchor of a place, until all pages are joined
# Long code goes on over the page where it has a blank line, else after sixteen lines, as long output does.
DIVIDED = """() => document.querySelectorAll('.cell pre, .highlight pre').forEach(pre => {
    const lines = text => text.split('\\n').length - 1;
    const isBlank = run => run?.data === '\\n';
    const runs = [...pre.childNodes].flatMap(node => node.nodeType === Node.TEXT_NODE
        ? node.data.split(/(?<=\\n)/).map(line => document.createTextNode(line)) : [node]);
    const parts = [[]];
    let length = 0;
    runs.forEach((run, i) => {
        parts.at(-1).push(run);
        length += lines(run.textContent);
        const ends = run.data?.endsWith('\\n') && !isBlank(runs[i + 1]);
        if (ends && (length >= 16 || (length >= 4 && isBlank(run)))) {
            parts.push([]);
            length = 0;
        }
    });
    if (length < 4 && parts.length > 1) parts.at(-2).push(...parts.pop());
    if (parts.length < 2) return;
    pre.replaceChildren(...parts.map(runs => {
        const part = Object.assign(document.createElement('span'), {className: 'part'});
        part.append(...runs);
        return part;
    }));
})"""
# On paper nothing can be unfolded, and a link leads to a place on some page. Chromium notes where links of a
# page lead within it. The drawing in a figure has the text for those who cannot see it.
FOR_BOOK = """async ({names, wanted, place}) => {
    await document.fonts.ready;
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    document.querySelectorAll('figure').forEach(figure => { figure.role = 'group'; });
    document.querySelectorAll('details').forEach(details => {
        details.open = true;
        if (/^Code of the figure/.test(details.textContent.trim())) details.remove();
    });
    document.querySelectorAll('a[href]').forEach(link => {
        const url = new URL(link.href);
        if (/^https?:/.test(url.protocol)) return;
        const name = url.pathname.match(/\\/book\\/(?:[^/]+\\/)?([^/]+)\\.html$/)?.[1];
        if (names.includes(name)) link.href = `${place}${name}${url.hash}`;
        else link.removeAttribute('href');
    });
    const article = document.querySelector('article');
    wanted.filter(id => document.getElementById(id)).forEach(id => {
        article.append(Object.assign(document.createElement('a'), {href: `#${id}`}));
    });
}"""
FRONT = """<!DOCTYPE html><html lang="en"><meta charset="utf8"><style>
    body { color: #1f2a37; font: 9.5pt/1.4 'Source Sans 3', 'Liberation Sans', Arial, sans-serif; margin: 0; }
    .imprint { break-after: page; padding-top: 120mm; }
    h1 { font-size: 20pt; margin: 0 0 6mm; }
    h2 { break-after: avoid; color: #4a5968; font-size: 10pt; letter-spacing: 0.06em; margin: 6mm 0 1mm;
         text-transform: uppercase; }
    a { color: inherit; display: flex; gap: 1.5mm; text-decoration: none; }
    a::before { border-bottom: 1px dotted #8a98a8; content: ''; flex: 1; height: 0.9em; order: 1; }
    a b, a span { order: 0; } a i { font-style: normal; order: 2; }
    .chapter { break-after: avoid; font-weight: 700; margin-top: 2mm; }
    .sections { columns: 2; column-gap: 8mm; font-size: 8.5pt; padding-left: 5mm; }
    .sections a { break-inside: avoid; }
</style>"""


# With Chromium ----------------------------------------------------------------------------------------


def printed(browser: Browser, page: Path, arguments: dict[str, Any]) -> bytes:
    """Return a built page as a PDF of the book."""
    tab = browser.new_page(color_scheme="light")
    tab.set_default_timeout(0)  # a busy machine is not a fault of the book
    tab.route(LIVE, lambda route: route.abort())
    tab.emulate_media(media="print")
    tab.set_viewport_size(WIDTH)
    tab.goto(page.as_uri())
    tab.evaluate(FOR_BOOK, arguments)
    tab.evaluate(DIVIDED)
    content = tab.pdf(format="A4", margin=MARGINS, print_background=True, tagged=True)
    tab.close()
    return content


def print_html(browser: Browser, html: str, margin: dict[str, str]) -> bytes:
    tab = browser.new_page()
    tab.set_content(html)
    tab.add_style_tag(content=paper.typeface())
    tab.evaluate("document.fonts.ready")
    content = tab.pdf(format="A4", margin=margin, print_background=True, tagged=True)
    tab.close()
    return content


def anchors(pages: list[paper.Page]) -> dict[str, set[str]]:
    """Return the places on each page to which a section's bookmark or a link of any page leads."""
    wanted = {page.name: {section.anchor for section in page.sections} for page in pages}
    for page in pages:
        text = page.path.read_text("utf8")
        for target, anchor in re.findall(r'href="(?:[\w./-]*?([\w-]+)\.html)?#([^"]+)"', text):
            if (name := target or page.name) in wanted:
                wanted[name].add(unquote(anchor))
    return wanted


# The book ---------------------------------------------------------------------------------------------


def places_of(reader: PdfReader, first: int) -> dict[str, tuple[int, float]]:
    """Return the number of the page and the height at which each anchor of a printed page stands.

    Args:
        reader: what Chromium printed.
        first: the number of its first page in the book.
    """
    found = {}
    for name, place in reader.named_destinations.items():
        number = reader.get_destination_page_number(place)
        if number is not None:
            found[unquote(name.removeprefix("/"))] = (first + number, float(place.top or 0))
    return found


def front_matter(pages: list[paper.Page], numbers: dict[str, int]) -> str:
    """Return the imprint and the table of contents as HTML.

    Args:
        pages: of the book.
        numbers: the printed numbers of the places `name` and `name#anchor`.
    """

    def line(place: str, title: str) -> str:
        return f'<a href="{PLACE}{place}"><span>{escape(title)}</span><i>{numbers[place]}</i></a>'

    config = settings()
    title, author = escape(config["title"]), escape(config["author"])
    imprint = f"""<div class="imprint"><p><strong>{title}</strong><br>{author}
        <p>Version {paper.version()}<br>{escape(config["html"]["baseurl"])}
        <p>Text and figures: Creative Commons Attribution 4.0. Code: MIT license.
        <p>Live figures show their first picture here; in the pages on the web they answer.</div>"""
    lines = []
    for page in pages:
        lines += [f"<h2>{escape(page.part)}</h2>"] if page.part else []
        lines.append(f'<div class="chapter">{line(page.name, page.title)}</div>')
        if re.match(r"\d", page.title):
            known = [section for section in page.sections if f"{page.name}#{section.anchor}" in numbers]
            listed = [line(f"{page.name}#{section.anchor}", section.title) for section in known]
            lines.append(f'<div class="sections">{"".join(listed)}</div>')
    return f"{FRONT}{imprint}<h1>Contents</h1>{''.join(lines)}"


def foot(writer: PdfWriter, page: PageObject, title: str, number: int) -> None:
    """Write a title and a number at the foot of a page."""
    font = DictionaryObject(
        {
            NameObject("/Type"): NameObject("/Font"),
            NameObject("/Subtype"): NameObject("/Type1"),
            NameObject("/BaseFont"): NameObject("/Helvetica"),
            NameObject("/Encoding"): NameObject("/WinAnsiEncoding"),
        }
    )
    fonts = page[NameObject("/Resources")].get_object().setdefault(NameObject("/Font"), DictionaryObject())
    fonts.get_object()[NameObject("/Foot")] = font
    left, right, height = 20 * POINTS, float(page.mediabox.width) - 20 * POINTS, 9 * POINTS
    digits = f"{number}"
    text = b"/Artifact BMC\n"
    for x, words in ((left, title), (right - 8 * 0.556 * len(digits), digits)):
        shown = re.sub(rb"([\\()])", rb"\\\1", words.encode("cp1252", "replace"))
        text += b"BT /Foot 8 Tf 0.35 g %.1f %.1f Td (%s) Tj ET\n" % (x, height, shown)
    before, after = DecodedStreamObject(), DecodedStreamObject()
    before.set_data(b"q\n")
    after.set_data(b"\nQ\n" + text + b"EMC\n")
    old = page[NameObject("/Contents")]
    content = old if isinstance(old.get_object(), ArrayObject) else ArrayObject([page.raw_get("/Contents")])
    page[NameObject("/Contents")] = ArrayObject(
        [writer._add_object(before), *content, writer._add_object(after)]
    )


def lead(writer: PdfWriter, places: dict[str, tuple[int, float]]) -> None:
    """Turn the links to places into links to pages; one whose place is not printed leads nowhere."""
    for page in writer.pages:
        kept = ArrayObject()
        for link in page.get("/Annots", ArrayObject()):
            action = link.get_object().get("/A", {})
            uri = action.get("/URI", "") if hasattr(action, "get") else ""
            if uri.startswith(PLACE):
                name = unquote(uri.removeprefix(PLACE))
                place = places.get(name, places.get(name.partition("#")[0]))
                if place is None:
                    continue
                del link.get_object()["/A"]
                link.get_object()[NameObject("/Dest")] = destination(writer, *place)
            elif "/Dest" in link.get_object():
                continue  # of the marks that made Chromium note the places
            kept.append(link)
        page[NameObject("/Annots")] = kept


def numbered(tree: DictionaryObject) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of a number tree with what stands there."""
    pairs = tree.get("/Nums", ArrayObject())
    yield from ((int(pairs[i]), list.__getitem__(pairs, i + 1)) for i in range(0, len(pairs), 2))
    for kid in tree.get("/Kids", ArrayObject()):
        yield from numbered(kid.get_object())


class Tags:
    """The structure of a book, put together from that of its parts.

    What is marked on a page leads to its place in the structure by a number, which is counted on from the
    parts before.

    Args:
        writer: of the book.
    """

    def __init__(self, writer: PdfWriter) -> None:
        self.writer, self.next = writer, 0
        self.places, self.kids = ArrayObject(), ArrayObject()
        root = {"/Type": NameObject("/StructTreeRoot"), "/K": self.kids}
        self.root = DictionaryObject({NameObject(name): value for name, value in root.items()})
        self.reference = writer._add_object(self.root)

    def take(self, reader: PdfReader, first: int) -> None:
        """Take over the structure of a part, whose pages the book has from page `first` on."""
        own = reader.root_object["/StructTreeRoot"].get_object().clone(self.writer)
        kids = own["/K"] if isinstance(own["/K"], ArrayObject) else [own.raw_get("/K")]
        for kid in kids:
            kid.get_object()[NameObject("/P")] = self.reference
            self.kids.append(kid)
        last = -1
        for number, place in numbered(own["/ParentTree"].get_object()):
            self.places.extend([NumberObject(self.next + number), place])
            last = max(last, number)
        for before, page in zip(reader.pages, self.writer.pages[first:]):
            if "/StructParents" in before:  # pypdf leaves it out
                number = self.next + int(before["/StructParents"])
                page[NameObject("/StructParents")] = NumberObject(number)
            for link in page.get("/Annots", ArrayObject()):
                if "/StructParent" in (marked := link.get_object()):
                    number = self.next + int(marked["/StructParent"])
                    marked[NameObject("/StructParent")] = NumberObject(number)
        self.next += last + 1

    def finish(self, language: str) -> None:
        """Make this the structure of the book, which is written in a language."""
        tree = self.writer._add_object(DictionaryObject({NameObject("/Nums"): self.places}))
        self.root[NameObject("/ParentTree")] = tree
        self.root[NameObject("/ParentTreeNextKey")] = NumberObject(self.next)
        marked = DictionaryObject({NameObject("/Marked"): BooleanObject(True)})
        said = {"/StructTreeRoot": self.reference, "/MarkInfo": marked, "/Lang": TextStringObject(language)}
        self.writer.root_object.update({NameObject(name): value for name, value in said.items()})


def destination(writer: PdfWriter, number: int, top: float) -> ArrayObject:
    page = writer.pages[number].indirect_reference
    return ArrayObject([page, NameObject("/XYZ"), NullObject(), FloatObject(top), NullObject()])


def join(
    prints: dict[str, PdfReader], pages: list[paper.Page], cover: PdfReader, browser: Browser
) -> PdfWriter:
    """Join the printed pages to a book.

    Args:
        prints: the printed pages by name.
        pages: of the book, in order.
        cover: the printed cover.
        browser: to print the table of contents.
    """
    starts, total = {}, 0
    for page in pages:
        starts[page.name] = total
        total += len(prints[page.name].pages)
    inside = {name: (start, 842.0) for name, start in starts.items()}
    for name, reader in prints.items():
        inside |= {f"{name}#{anchor}": place for anchor, place in places_of(reader, starts[name]).items()}
    numbers = {place: number + 1 for place, (number, _) in inside.items()}
    contents = PdfReader(BytesIO(print_html(browser, front_matter(pages, numbers), MARGINS)))

    writer = PdfWriter()
    tags = Tags(writer)
    for reader in (cover, contents, *(prints[page.name] for page in pages)):
        first = len(writer.pages)
        for page in reader.pages:
            writer.add_page(page)
        tags.take(reader, first)
    tags.finish("en")
    before = len(cover.pages) + len(contents.pages)
    places = {name: (before + number, top) for name, (number, top) in inside.items()}
    lead(writer, places)
    for page in pages:
        first = before + starts[page.name]
        for offset in range(len(prints[page.name].pages)):
            foot(writer, writer.pages[first + offset], page.title, starts[page.name] + offset + 1)
    bookmark(writer, pages, places, len(cover.pages) + 1)
    writer.set_page_label(0, before - 1, style=PageLabelStyle.LOWERCASE_ROMAN)
    writer.set_page_label(before, len(writer.pages) - 1, style=PageLabelStyle.DECIMAL, start=1)
    config = settings()
    writer.add_metadata({"/Title": config["title"], "/Author": config["author"], "/Creator": "book/pdf.py"})
    return writer


def bookmark(
    writer: PdfWriter, pages: list[paper.Page], places: dict[str, tuple[int, float]], contents: int
) -> None:
    """Write the bookmarks: contents, parts, pages and sections."""
    writer.add_outline_item(title="Contents", page_number=contents)
    part = None
    for page in pages:
        number, _ = places[page.name]
        if page.part:
            part = writer.add_outline_item(title=page.part, page_number=number, is_open=True)
        entry = writer.add_outline_item(title=page.title, page_number=number, parent=part, is_open=False)
        for section in page.sections:
            if place := places.get(f"{page.name}#{section.anchor}"):
                fit = Fit.xyz(top=place[1])
                writer.add_outline_item(title=section.title, page_number=place[0], parent=entry, fit=fit)


def print_book(browser: Browser, pages: list[paper.Page]) -> PdfWriter:
    """Print some pages as one book."""
    wanted = anchors(pages)
    names = [page.name for page in pages]
    prints = {}
    for page in pages:
        arguments = {"names": names, "wanted": sorted(wanted[page.name]), "place": PLACE}
        prints[page.name] = PdfReader(BytesIO(printed(browser, page.path, arguments)))
        print(f"{page.title}: {len(prints[page.name].pages)} pages", flush=True)
    svg = COVER.read_text(encoding="utf8").replace(
        "<svg", '<svg style="display:block;width:100%;height:297mm"', 1
    )
    cover = print_html(browser, f"<style>body {{ margin: 0 }}</style>{svg}", NO_MARGINS)
    return join(prints, pages, PdfReader(BytesIO(cover)), browser)


def main() -> None:
    PDF.mkdir(parents=True, exist_ok=True)
    with paper.chromium() as browser:
        book = print_book(browser, paper.pages())
        book.compress_identical_objects()
        book.write(PDF / BOOK)
        print((PDF / BOOK).relative_to(ROOT))


if __name__ == "__main__":
    main()
