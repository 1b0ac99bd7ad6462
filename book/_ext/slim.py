"""A page opens quickly: marks without effect are taken out, and nothing asks for what is far from the screen.

In code and in signatures, a piece that looks like plain text needs no mark. And the theme's script does not
ask every block of code for its width when a page opens, which would lay out all of the page at once:
`book.js` looks at a block when it comes near the screen.
"""

from __future__ import annotations

import re
from pathlib import Path

from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

THEME_SCRIPT = Path("_static/scripts/pydata-sphinx-theme.js")
ASKS_WIDTHS = "e.tabIndex=e.scrollWidth>e.clientWidth||e.scrollHeight>e.clientHeight?0:-1"
CODE = re.compile(r'<pre>.*?</pre>|<dt class="sig .*?</dt>', re.DOTALL)


def spare_layout(app: Sphinx, error: Exception | None) -> None:
    """Take out of the theme's script what asks every block for its width."""
    if error is not None or app.builder.format != "html":
        return
    path = Path(app.outdir) / THEME_SCRIPT
    before, asks, after = path.read_text(encoding="utf8").partition(ASKS_WIDTHS)
    if not asks:
        raise ExtensionError(f"{THEME_SCRIPT} is not the script that slim.py knows: it makes no tab stops")
    path.write_text(f"{before}void 0{after}", encoding="utf8")


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
    app.connect("build-finished", spare_layout)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
