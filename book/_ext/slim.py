"""A page weighs what it shows: rules for what no page has, and marks without effect, are taken out.

The theme brings all of Bootstrap and the names of all of its icons, 400 KB of style sheet, of which the book
uses a quarter. What stays is read from the finished pages: a rule stays if all its classes and ids occur in
some page or in a script. In code and in signatures, a piece that looks like plain text needs no mark.

Nor does the theme's script ask every block of code for its width when a page opens, which would lay out all
of the page at once: `book.js` looks at a block when it comes near the screen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

# What may hold a brace that opens no block.
QUOTED = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|url\([^)\"']*\)|/\*.*?\*/"
PIECE = re.compile(rf"{QUOTED}|[{{}}]", re.DOTALL)
COMMENT = re.compile(r"/\*(?!!).*?\*/", re.DOTALL)  # but not a license
BEFORE = re.compile(r"(?:\s+|/\*.*?\*/|@(?:charset|import)[^;]*;)*", re.DOTALL)  # a rule
NESTING = ("@media", "@supports", "@layer", "@container")
# Of these selectors it is enough that one holds, or that one does not.
CHOICE = re.compile(r":(?:not|is|where|has)\((?:[^()]|\([^()]*\))*\)|\[[^\]]*\]")
NAME = re.compile(r"[.#](-?[A-Za-z_][\w-]*)")
MARKED = re.compile(r'\b(?:class|id)=["\']([^"\']*)')
OWN = {"book.css", "live.css"}  # written by hand, rule by rule
TEXT = {"sections.js"}  # a script that names nothing
THEME_SCRIPT = Path("_static/scripts/pydata-sphinx-theme.js")
ASKS_WIDTHS = "e.tabIndex=e.scrollWidth>e.clientWidth||e.scrollHeight>e.clientHeight?0:-1"
CODE = re.compile(r'<pre>.*?</pre>|<dt class="sig .*?</dt>', re.DOTALL)


# Style sheets ----------------------------------------------------------------------------------------


def blocks(css: str) -> Iterator[tuple[str, str | None]]:
    """Yield what stands before each block of a style sheet, and the block; at the end, what has no block."""
    depth = start = opened = 0
    for piece in PIECE.finditer(css):
        if piece[0] == "{":
            opened = opened if depth else piece.start()
            depth += 1
        elif piece[0] == "}":
            depth -= 1
            if not depth:
                yield css[start:opened], css[opened + 1 : piece.start()]
                start = piece.end()
    yield css[start:], None


def fits(selector: str, known: set[str]) -> bool:
    """Tell whether a selector may select something where only the names `known` occur."""
    return all(name in known for name in NAME.findall(CHOICE.sub("", selector)))


def pruned(css: str, known: set[str]) -> str:
    """Return a style sheet without the rules that can select nothing."""
    kept = []
    for head, body in blocks(css):
        before = BEFORE.match(head)[0]
        selectors = head.removeprefix(before)
        if body is None:
            kept.append(head)
            continue
        if selectors.startswith(NESTING):
            body = pruned(body, known)
            selectors = selectors if body.strip() else ""
        elif not selectors.startswith("@"):
            each = re.split(r",(?![^()]*\))", selectors)
            selectors = ",".join(selector for selector in each if fits(selector, known))
        kept.append(before + (f"{selectors}{{{body}}}" if selectors else ""))
    return "".join(kept)


def prune_styles(app: Sphinx, error: Exception | None) -> None:
    """Prune the style sheets of the finished book."""
    if error is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir)
    texts = {page: page.read_text(encoding="utf8") for page in folder.rglob("*.html")}
    known = {name for text in texts.values() for names in MARKED.findall(text) for name in names.split()}
    for script in {script for page, text in texts.items() for script in scripts_of(page, text)}:
        known.update(re.findall(r"[\w-]+", script.read_text(encoding="utf8")))
    for path in folder.glob("_static/**/*.css"):
        if path.name not in OWN:
            css = COMMENT.sub("", path.read_text(encoding="utf8"))
            path.write_text(pruned(css, known), encoding="utf8")


def scripts_of(page: Path, text: str) -> Iterator[Path]:
    """Yield the scripts that a page loads."""
    for address in re.findall(r'<script[^>]* src="([^"?:]+)', text):
        path = (page.parent / address).resolve()
        if path.is_file() and path.name not in TEXT:
            yield path


# Scripts ---------------------------------------------------------------------------------------------


def spare_layout(app: Sphinx, error: Exception | None) -> None:
    """Take out of the theme's script what asks every block for its width."""
    if error is not None or app.builder.format != "html":
        return
    path = Path(app.outdir) / THEME_SCRIPT
    before, asks, after = path.read_text(encoding="utf8").partition(ASKS_WIDTHS)
    if not asks:
        raise ExtensionError(f"{THEME_SCRIPT} is not the script that slim.py knows: it makes no tab stops")
    path.write_text(f"{before}void 0{after}", encoding="utf8")


# Code ------------------------------------------------------------------------------------------------


def plain_classes(app: Sphinx) -> list[str]:
    """The classes of Pygments that look like plain text in both themes."""
    options = app.builder.theme.get_options()
    styles = [get_style_by_name(options[f"pygments_{mode}_style"]) for mode in ("light", "dark")]
    return [
        name
        for token, name in STANDARD_TYPES.items()
        if name and all(style.style_for_token(token) == style.style_for_token(Token.Text) for style in styles)
    ]


def merged(code: str, plain: re.Pattern[str]) -> str:
    """Unmark pieces of code that look like plain text, and mark neighbors of one class once."""
    count = 1
    while count:
        code, count = plain.subn(r"\1", code)
    count = 1
    while count:
        code, count = re.subn(r'(<span class="(\w+)">[^<]*)</span><span class="\2">', r"\1", code)
    return code


def thin_code(app: Sphinx, page: str, template: str, context: dict, doctree: object) -> None:
    """Thin out the marks in the code of a page."""
    if body := context.get("body"):
        plain = re.compile(rf'<span class="(?:pre|{"|".join(plain_classes(app))})">([^<]*)</span>')
        context["body"] = CODE.sub(lambda code: merged(code[0], plain), body)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", thin_code)
    app.connect("build-finished", prune_styles, priority=900)
    app.connect("build-finished", spare_layout)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
