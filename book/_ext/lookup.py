"""Search by section: what `search.js` looks through, written once for the whole book.

Sphinx's index knows pages, not sections, and cannot quote from a page that is opened from the disk. Here each
section gives its title, the title of its page, its words and its code, and each public name its place on the
API page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.utils.math import tex2unichar
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

Entry = tuple[str, str, str, str, str]  # address, title, title of its page, words, code
SILENT = (nodes.section, nodes.title, nodes.math_block, nodes.raw, nodes.Invisible)
# TeX as one line of text: its signs, the names of its functions, and fractions with a slash.
SIGNS = tex2unichar.mathop | tex2unichar.mathbin | tex2unichar.mathrel | tex2unichar.mathord
SIGNS |= tex2unichar.mathalpha
SIGNS |= {"sqrt": "√", "dots": "…", "lVert": "‖", "rVert": "‖", "lvert": "|", "rvert": "|"}
FRACTION = re.compile(r"\\[td]?frac *(?:\{([^{}]*)\}|(\w)) *(?:\{([^{}]*)\}|(\w))")
COMMAND = re.compile(r"\\([a-zA-Z]+)")
LAYOUT = re.compile(
    r"(?:text|math|operatorname|big|left|right|bm|over|under|hat|tilde|bar|[td]?frac|q?quad)\w*", re.I
)


def one_line(text: str) -> str:
    return " ".join(text.split())


def plain(tex: str) -> str:
    """Return a formula as one line of text, near enough to be recognized."""
    tex = FRACTION.sub(lambda part: "/".join(filter(None, part.groups())), tex)
    tex = COMMAND.sub(lambda name: SIGNS.get(name[1], "" if LAYOUT.fullmatch(name[1]) else name[1]), tex)
    return re.sub(r"\\[,;:!]|[\\{}&]", "", tex)


def words(node: nodes.Node) -> str:
    """Return the text of a node as a reader sees it, without equations, code and sections inside."""
    if isinstance(node, nodes.Text):
        return node.astext()
    if isinstance(node, nodes.math):
        return plain(node.astext())
    if isinstance(node, SILENT) or node.get("nb_element") or node.get("refdomain") == "cite":
        return ""
    return ("" if isinstance(node, nodes.TextElement) else " ").join(map(words, node.children))


def code(node: nodes.Element) -> str:
    """Return what is written and printed in a code cell; of anything else, nothing."""
    return (
        " ".join(block.astext() for block in node.findall(nodes.literal_block))
        if node.get("nb_element")
        else ""
    )


def sections(env: BuildEnvironment, page: str) -> Iterator[Entry]:
    """Yield an entry for each section of a page, in order."""
    title = one_line(env.titles[page].astext())
    for section in env.get_doctree(page).findall(nodes.section):
        is_page = isinstance(section.parent, nodes.document)
        address = f"{page}.html" if is_page else f"{page}.html#{section['ids'][0]}"
        heading = "".join(map(words, section[0].children))
        texts = (" ".join(map(text, section.children)) for text in (words, code))
        yield (address, *map(one_line, (heading, title, *texts)))


def public_names(env: BuildEnvironment) -> Iterator[Entry]:
    for name, entry in env.get_domain("py").objects.items():
        if not entry.aliased:
            yield f"{entry.docname}.html#{entry.node_id}", name, env.titles[entry.docname].astext(), "", ""


def write_sections(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    entries = [entry for page in sorted(app.env.found_docs) for entry in sections(app.env, page)]
    entries += public_names(app.env)
    script = f"const SECTIONS = {json.dumps(entries, ensure_ascii=False, separators=(',', ':'))};\n"
    Path(app.outdir, "_static", "sections.js").write_text(script, encoding="utf8")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_sections)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
