"""Formulas are set when the book is built, so that a page shows them at once and loads no program for them.

MathJax, from the installed package, runs in the Node that Playwright brings, once for all formulas of the
book. What it returns stands in the pages: boxes for the eye, and MathML for a screen reader. The pages share
a style sheet with the signs that occur, and a browser fetches the few fonts of these signs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

MATHJAX = Path(
    str(distribution("sphinx-mathjax-offline").locate_file("sphinx-mathjax-offline/static/mathjax"))
)
NODE = files("playwright") / "driver" / ("node.exe" if os.name == "nt" else "node")
PROGRAM = Path(__file__).with_name("formulas.js")
STYLE = "formulas.css"

Formula = tuple[str, bool]  # its TeX, and whether it stands in a line of its own
typeset: dict[Formula, str] = {}


def formula(node: nodes.math | nodes.math_block) -> Formula:
    """What MathJax is given for a node; several lines are aligned as Sphinx's own writer aligns them."""
    display = isinstance(node, nodes.math_block)
    tex = node.astext().strip()
    return (rf"\begin{{split}}{tex}\end{{split}}" if display and r"\\" in tex else tex), display


def typeset_all(app: Sphinx, env: BuildEnvironment) -> None:
    """Set every formula of the book, and write the style sheet and the fonts that they need."""
    if app.builder.format != "html":
        return
    pages = (env.get_doctree(name) for name in sorted(env.found_docs))
    found = (formula(node) for page in pages for node in page.findall(is_formula))
    formulas = list(dict.fromkeys(found))
    words = [str(NODE), str(PROGRAM), str(MATHJAX)]
    ran = subprocess.run(words, input=json.dumps(formulas), capture_output=True, text=True, encoding="utf8")
    if ran.returncode:
        raise RuntimeError(f"MathJax failed: {ran.stderr}")
    answer = json.loads(ran.stdout)
    typeset.update(zip(formulas, answer["html"], strict=True))
    folder = Path(app.outdir, "_static")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STYLE).write_text(answer["style"], encoding="utf8")
    shutil.copytree(MATHJAX / "output/chtml/fonts/woff-v2", folder / "mathjax", dirs_exist_ok=True)


def is_formula(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.math, nodes.math_block))


def write_inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(writer.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    writer.body.append(f"{typeset[formula(node)]}</span>")
    raise nodes.SkipNode


def write_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(f"{typeset[formula(node)]}</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("typeset", (write_inline, None), (write_block, None))
    app.connect("env-updated", typeset_all)
    app.add_css_file(STYLE)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
