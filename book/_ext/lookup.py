"""Search by section: what `search.js` looks through, written once for the whole book.

Sphinx's index knows pages, not sections, and cannot quote from a page that is opened from the disk. Here each
section gives its title, the title of its page, its words and the names in its code, each term of the glossary
its meaning, and each public name its place on the API page. `concepts.toml` has what readers may type instead
of the book's own words, and where the book answers.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.utils.math import tex2unichar
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)
CONCEPTS = "book/concepts.toml"
Entry = tuple[
    str, str, str, str, str, str
]  # kind, address, title, title of its page, words, names in its code
KINDS = {"book/glossary": "term"}  # of what stands on a page; the API's are names, and the rest are sections
SILENT = (
    nodes.section, nodes.title, nodes.math_block, nodes.raw, nodes.Invisible, addnodes.desc,
    addnodes.glossary,
)  # fmt: skip
CITED = re.compile(r"([a-z]+)(\d{4})\w*")  # a key of the bibliography
NAME = re.compile(r"[^\W\d]\w+")
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
    """Return a text in one line, without the gap that a citation leaves before a mark."""
    return re.sub(r"(?<=\w) (?=[.,;:!?)](?:\s|$))", "", " ".join(text.split()))


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
    if node.get("refdomain") == "cite":
        return ", ".join(CITED.sub(lambda key: f"{key[1].title()} {key[2]}", node["reftarget"]).split(","))
    if isinstance(node, SILENT) or node.get("nb_element"):
        return ""
    return ("" if isinstance(node, nodes.TextElement) else " ").join(map(words, node.children))


def code(node: nodes.Node) -> str:
    """Return what is written and printed in a code cell; of anything else, nothing."""
    if not isinstance(node, nodes.Element) or not node.get("nb_element"):
        return ""
    return " ".join(block.astext() for block in node.findall(nodes.literal_block))


def names(text: str, known: str) -> str:
    """Return the names in a piece of code, each once, but for those that are known already."""
    seen = set(NAME.findall(known.lower()))
    return " ".join(name for name in dict.fromkeys(NAME.findall(text.lower())) if name not in seen)


def sections(env: BuildEnvironment, page: str) -> Iterator[Entry]:
    """Yield an entry for each section of a page, in order, and for each term that it explains."""
    title = one_line(env.titles[page].astext())
    kind = "api" if page.startswith("book/api") else KINDS.get(page, "section")
    doctree = env.get_doctree(page)
    equations = env.domaindata["math"]["objects"]
    for link in doctree.findall(addnodes.pending_xref):
        if link["reftype"] == "eq" and link["reftarget"] in equations:
            home, label = equations[link["reftarget"]][0], f"equation-{link['reftarget']}"
            number = env.toc_fignumbers[home]["displaymath"][label]
            link[:] = [nodes.Text(f"({'.'.join(map(str, number))})")]
    for section in doctree.findall(nodes.section):
        is_page = isinstance(section.parent, nodes.document)
        address = f"{page}.html" if is_page else f"{page}.html#{section['ids'][0]}"
        heading = one_line("".join(map(words, section[0].children)))
        text = one_line(" ".join(map(words, section.children)))
        yield kind, address, heading, title, text, names(" ".join(map(code, section.children)), text)
    for item in doctree.findall(nodes.definition_list_item):
        for term in item.findall(nodes.term) if isinstance(item.parent.parent, addnodes.glossary) else ():
            meaning = one_line(" ".join(map(words, item[-1].children)))
            yield kind, f"{page}.html#{term['ids'][0]}", one_line(words(term)), title, meaning, ""


def public_names(env: BuildEnvironment) -> Iterator[Entry]:
    """Yield an entry for each name of the package, with the first sentence of its docstring."""
    objects = {name: entry for name, entry in env.get_domain("py").objects.items() if not entry.aliased}
    said: dict[str, str] = {}
    for page in {entry.docname for entry in objects.values()}:
        for described in env.get_doctree(page).findall(addnodes.desc):
            first = next((part for part in described[-1].children if isinstance(part, nodes.paragraph)), None)
            for signature in described.findall(addnodes.desc_signature):
                for anchor in signature["ids"] if first and signature.parent is described else ():
                    said[anchor] = one_line(words(first))
    for name, entry in objects.items():
        address, page = f"{entry.docname}.html#{entry.node_id}", env.titles[entry.docname].astext()
        yield "api", address, name, page, said.get(entry.node_id, ""), ""


def concepts(app: Sphinx, addresses: set[str]) -> list[tuple[list[str], list[str]]]:
    """Return the names and the places of each concept; of a place that is not there, the build warns."""
    listed = tomllib.loads(Path(app.srcdir, CONCEPTS).read_text(encoding="utf8"))["concepts"]
    found = []
    for concept in listed:
        places = []
        for place in concept["places"]:
            page, _, anchor = place.partition("#")
            address = f"book/{page}.html#{anchor}"
            if address in addresses:
                places.append(address)
            elif f"book/{page}" in app.env.found_docs:
                logger.warning("there is no section %s", place, location=CONCEPTS)
        found.append((concept["names"], places))
    return found


def write_sections(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    entries = [entry for page in sorted(app.env.found_docs) for entry in sections(app.env, page)]
    entries += public_names(app.env)
    known = concepts(app, {entry[1] for entry in entries})
    contents = {"SECTIONS": entries, "CONCEPTS": known}
    script = "".join(
        f"globalThis.{name} = {json.dumps(content, ensure_ascii=False, separators=(',', ':'))};\n"
        for name, content in contents.items()
    )
    Path(app.outdir, "_static", "sections.js").write_text(script, encoding="utf8")


def setup(app: Sphinx) -> dict:
    app.connect("build-finished", write_sections)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
