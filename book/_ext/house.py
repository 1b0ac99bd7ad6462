"""What this book asks of its pages beyond what Jupyter Book can be told.

No request to another host: sphinx-thebe, which the book does not use and whose script names a CDN twice on
every page, is taken out. No dead end in the API: a name has one entry, `transformer.Name`, by whichever
module a signature calls it, a default that is a function stands there by its name, and a name of PyTorch
leads to its own page. No role that a screen reader stumbles over. And a chapter has the number of its file,
wherever it stands in the table of contents.
"""

from __future__ import annotations

import re
from html import unescape
from textwrap import shorten

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.intersphinx import InventoryAdapter
from sphinx_external_toc.collectors import TocTreeCollectorWithStyles

PACKAGE = "transformer"
MATH_AND_MARKS = re.compile(
    r'[(\[“]?<span class="math [^>]*><mjx-container.*?</mjx-container></span>[.,;:!?)\]”]*'
)
FIGURE = re.compile(r"(<figure[^>]*>\s*)(<img [^>]*>|<a [^>]*>\s*<img [^>]*>\s*</a>)")
COUNTED = re.compile(r'<span class="caption-number">Fig. \d+ </span>')  # through pages that have no number
LONG_NAME = re.compile(r'(?<=<span class="pre">)[\w.]{20,}(?=</span>)')
BREAK = r"\g<0><wbr>"
JOINT = re.compile(r"(?<=\w)[._](?=\w)")  # after which a long name may go on in the next line
WHOLE_FIGURE = re.compile(r"<figure\b.*?</figure>", re.DOTALL)
# Where a panel stands, in a caption, and where a narrow screen has it.
SIDE = re.compile(r"(?<!the )\b(left|right)(?=(?: and middle)?[:,)])", re.IGNORECASE)
PLACES = {"left": "top", "Left": "Top", "right": "bottom", "Right": "Bottom"}
CODE = re.compile(r'(<div class="cell_input [^>]*>\s*<div [^>]*><div [^>]*><pre>)(.*?)(</pre>)', re.DOTALL)
LONG_LINE = 40  # characters, about what a phone shows
SYNTAX = re.compile(r'<span class="[po]">[^<]*[(\[{,=]</span>')  # behind which a phone may break a line
TABLE = re.compile(r'<table class="(?:docutils |table|align)[^"]*">.*?</table>', re.DOTALL)
ROW, CELL = re.compile(r"<tr\b.*?</tr>", re.DOTALL), re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
TAG = re.compile(r"<[^>]*>")
ROLES = {"tr": "row", "thead": "rowgroup", "tbody": "rowgroup", "th": "columnheader"}
MANY_LETTERS, MANY_COLUMNS = 60, 6  # in the longest cells of a table's columns together; of figures
NEEDED_BY = {"formulas.css": 'class="math', "sphinx-design": 'class="sd-', "design-tabs": 'class="sd-'}
DESCRIPTION_LENGTH = 200  # characters, about what a search engine shows


def remove_thebe(app: Sphinx, config: object) -> None:
    """Disconnect what sphinx-thebe, which Jupyter Book loads unasked, would add to each page."""
    for listeners in app.events.listeners.values():
        for listener in list(listeners):
            if listener.handler.__module__.startswith("sphinx_thebe"):
                app.disconnect(listener.id)
    app.registry.css_files[:] = [style for style in app.registry.css_files if "thebe" not in style[0]]


def resolve_by_short_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """Lead `transformer.model.Encoder` and `Encoder` to the entry `transformer.Encoder`."""
    if node.get("refdomain") != "py":
        return None
    path = node["reftarget"].removeprefix(f"{PACKAGE}.").split(".")
    domain = env.get_domain("py")
    for start in range(len(path)):
        target = ".".join([PACKAGE, *path[start:]])
        if target in domain.objects:
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, node["reftype"], target, node, contnode
            )
    return None


def resolve_by_public_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> None:
    """Have `torch.nn.modules.linear.Linear` looked up as `torch.nn.Linear`, under which it is documented."""
    package, _, rest = node["reftarget"].partition(".")
    if node.get("refdomain") == "py" and package == "torch":
        known = InventoryAdapter(env).main_inventory.get("py:class", {})
        own = rest.rpartition(".")[2]
        public = (name for name in known if name.startswith("torch.") and name.rpartition(".")[2] == own)
        node["reftarget"] = next(public, node["reftarget"])


def name_functions(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None] | None:  # fmt: skip
    """Write a default that is a function by its name: `<function f>` would make the signature unreadable."""
    if signature is None or "<function" not in signature:
        return None
    return re.sub(r"<function (\w+)[^>]*>", r"\1", signature.replace("<function <lambda>>", "...")), returns


def number_by_file() -> None:
    """Let `15-since-2017` be chapter 15: Sphinx counts, and a chapter yet to come would shift the rest."""
    count_chapters = TocTreeCollectorWithStyles.assign_section_numbers

    def assign_section_numbers(self: TocTreeCollectorWithStyles, env: BuildEnvironment) -> list[str]:
        rewritten = count_chapters(self, env)
        for document, numbers in env.toc_secnumbers.items():
            chapter = re.match(r"book/(\d+)-", document)
            if not chapter:
                continue
            first = int(chapter[1])
            numbers.update({anchor: (first, *number[1:]) for anchor, number in numbers.items() if number})
            for node in (env.titles[document], *env.tocs[document].findall(nodes.reference)):
                if number := node.get("secnumber"):
                    node["secnumber"] = [first, *number[1:]]
        return rewritten

    TocTreeCollectorWithStyles.assign_section_numbers = assign_section_numbers


def mend_body(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object) -> None:
    """Mend the HTML that docutils and myst-nb write.

    docutils calls the bibliography a list and gives it no list items, and makes an empty corner of a table a
    heading; myst-nb labels what unfolds a cell with other words than stand there. A figure gets a box in
    which it can scroll, no line ends or begins with a mark that belongs to a formula, and a long name is
    broken at its joints.
    """
    if body := context.get("body"):
        body = body.replace(' role="list" class="citation-list"', ' class="citation-list"')
        body = body.replace(' role="doc-biblioentry"', "").replace(' aria-label="Toggle hidden content"', "")
        body = re.sub(r'<th class="head([^"]*)">\s*(?:<p></p>)?\s*</th>', r'<td class="head\1"></td>', body)
        body = COUNTED.sub("", body)
        body = FIGURE.sub(r'\1<div class="picture">\2</div>', body)
        body = LONG_NAME.sub(lambda name: JOINT.sub(BREAK, name[0]), body)
        body = WHOLE_FIGURE.sub(lambda figure: with_places(figure[0]), body)
        body = MATH_AND_MARKS.sub(r'<span class="whole">\g<0></span>', body)
        context["body"] = CODE.sub(lambda code: code[1] + with_indents(code[2]) + code[3], body)


def with_indents(code: str) -> str:
    """Put each long line into a box that says how far it is indented: a phone hangs what it breaks.

    It may break behind brackets, commas and equals signs, so that names stay whole. What is split inside
    a string, and the last line of a docstring that the page folds, stay as they are.
    """
    lines = []
    for line in code.split("\n"):
        text = unescape(TAG.sub("", line))
        box = f'style="--indent:{len(text) - len(text.lstrip())}ch">'
        is_end = text.endswith('"""') and text.count('"""') == 1
        if len(text) > LONG_LINE and not is_end and line.count("<span") == line.count("</span"):
            if line.startswith('<span class="sd">'):  # in the middle of a docstring
                line = f'<span class="sd line" {box}{line[17:-7]}\n</span>'
            else:
                line = f'<span class="line" {box}{SYNTAX.sub(BREAK, line)}\n</span>'
            lines.append(line)
        else:
            lines.append(f"{line}\n")
    return "".join(lines).removesuffix("\n")


def with_places(figure: str) -> str:
    """Let a caption say where a panel stands in the narrow form as well, whose panels are stacked."""
    if '<svg class="plot narrow' not in figure:
        return figure
    drawing, caption, words = figure.partition('class="caption-text"')
    both = '<span class="of-wide">{}</span><span class="of-narrow" data-word="{}"></span>'
    return drawing + caption + SIDE.sub(lambda side: both.format(side[0], PLACES[side[0]]), words)


def name_cells(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object) -> None:
    """Write the name of its column into each cell of a table that a narrow screen shows as cards."""
    if "body" in context and app.builder.name == "html":
        context["body"] = TABLE.sub(lambda table: with_names(table[0]), context["body"])


def with_names(table: str) -> str:
    """Mark a table that is too wide for a narrow screen: `cards` has many words, `many` has many columns.

    Cards are boxes of their own, so what they are in the table is said by roles.
    """
    head, separator, body = table.partition("</thead>")
    names = re.findall(r'<t[hd] class="head[^"]*">(?:<p>)?(.*?)(?:</p>)?</t[hd]>', head, re.DOTALL)
    rows = [CELL.findall(row) for row in ROW.findall(body)]
    widths = [max(len(TAG.sub("", text)) for text in column) for column in zip(names, *rows)]
    if len(names) >= MANY_COLUMNS and sum(widths) <= MANY_LETTERS:
        return table.replace('<table class="', '<table class="many ', 1)
    if len(names) < 3 or sum(widths) <= MANY_LETTERS:
        return table

    def named(row: re.Match[str]) -> str:
        place = iter(names)
        return CELL.sub(lambda cell: named_cell(next(place, ""), cell[1]), row[0])

    for tag, role in ROLES.items():
        head, body = (re.sub(rf"<{tag}\b", f'<{tag} role="{role}"', part) for part in (head, body))
    head = head.replace('<table class="', '<table role="table" class="cards ', 1)
    return head + separator + ROW.sub(named, body)


def named_cell(name: str, text: str) -> str:
    """Write a cell; one of formulas alone has no letters of its own."""
    if not TAG.sub("", text).strip() and "<mjx-" not in text:
        return '<td role="cell"></td>'
    label = f'<span class="column-name">{name}</span>' if name else ""
    return f'<td role="cell">{label}{text.strip()}</td>'


def drop_unused(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object) -> None:
    """Load what only some pages need, by the mark that these have in their HTML, on those pages alone."""
    body = context.get("body", "")
    unused = [name for name, mark in NEEDED_BY.items() if mark not in body]
    for kind in ("css_files", "script_files"):
        kept = [one for one in context[kind] if not any(name in f"{one.filename}" for name in unused)]
        context[kind] = kept


def describe(
    app: Sphinx, pagename: str, templatename: str, context: dict, doctree: nodes.document | None
) -> None:
    """Give search engines and cards the first paragraph of a page that has no formula."""
    paragraphs = doctree.findall(nodes.paragraph) if doctree else ()
    plain = (
        paragraph.astext()
        for paragraph in paragraphs
        if isinstance(paragraph.parent, nodes.section) and not paragraph.next_node(nodes.math)
    )
    text = next(plain, app.config.html_title)
    context["description"] = shorten(text, DESCRIPTION_LENGTH, placeholder=" …")


def setup(app: Sphinx) -> dict:
    app.connect("config-inited", remove_thebe)
    app.connect("autodoc-process-signature", name_functions)
    app.connect("missing-reference", resolve_by_short_name)
    app.connect("missing-reference", resolve_by_public_name, priority=400)  # before intersphinx
    app.connect("html-page-context", mend_body)
    app.connect("html-page-context", name_cells)
    app.connect("html-page-context", drop_unused, priority=900)
    app.connect("html-page-context", describe)
    app.add_css_file("book.css", priority=900)
    app.add_js_file("book.js")
    number_by_file()
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
