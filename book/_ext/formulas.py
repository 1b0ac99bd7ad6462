"""Formulas are set when the book is built, so that a page shows them at once and loads no program for them.

MathJax, from the installed package, runs in the Node that Playwright brings, once for all formulas of the
book. What it returns stands in the pages: boxes for the eye, and MathML for a screen reader. The pages share
a style sheet with the signs that occur, and a browser fetches the few fonts of these signs, cut to them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path

from docutils import nodes
from fontTools import subset
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
# What MathJax writes on every formula, and a page has no use for: book.css sets the position.
IDLE = re.compile(
    r' (?:(?:xmlns|texclass|unselectable|data-mjx-\w+)="[^"]*"|display="inline"|style="position: relative;")'
)

Formula = tuple[str, bool]  # its TeX, and whether it stands in a line of its own
typeset: dict[Formula, str] = {}


def formulas_of(node: nodes.math | nodes.math_block) -> list[Formula]:
    """What MathJax is given for a node; several lines are aligned as Sphinx's own writer aligns them.

    A line of equations with wide spaces between them is divided there, so that a narrow page can wrap it.
    """
    tex = node.astext().strip()
    if not isinstance(node, nodes.math_block):
        return [(tex, False)]
    parts, depth = [""], 0
    for token in re.split(r"(\\qquad\b|\\left\b|\\right\b|\\begin\b|\\end\b|\\.|[{}])", tex):
        depth += token in ("{", r"\left", r"\begin")
        depth -= token in ("}", r"\right", r"\end")
        if token == r"\\" and not depth:
            return [(rf"\begin{{split}}{tex}\end{{split}}", True)]
        if token == r"\qquad" and not depth:
            parts.append("")
        else:
            parts[-1] += token
    return [(part.strip(), True) for part in parts if part.strip()]


def typeset_all(app: Sphinx, env: BuildEnvironment) -> None:
    """Set every formula of the book, and write the style sheet and the fonts that they need."""
    if app.builder.format != "html":
        return
    pages = (env.get_doctree(name) for name in sorted(env.found_docs))
    found = (each for page in pages for node in page.findall(is_formula) for each in formulas_of(node))
    formulas = list(dict.fromkeys(found))
    words = [str(NODE), str(PROGRAM), str(MATHJAX)]
    ran = subprocess.run(words, input=json.dumps(formulas), capture_output=True, text=True, encoding="utf8")
    if ran.returncode:
        raise RuntimeError(f"MathJax failed: {ran.stderr}")
    answer = json.loads(ran.stdout)
    style = answer["style"]
    typeset.update(zip(formulas, thinned(answer["html"], style), strict=True))
    folder = Path(app.outdir, "_static", "mathjax")
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / STYLE).write_text(style, encoding="utf8")
    for font in (MATHJAX / "output/chtml/fonts/woff-v2").glob("*.woff"):
        cut(font, folder / font.name, signs(style))


def thinned(formulas: list[str], style: str) -> Iterator[str]:
    """Leave out of the formulas' HTML what has no effect, such as classes that no rule names."""
    named = set(re.findall(r"\.([A-Za-z][\w-]*)", style))

    def known(classes: re.Match[str]) -> str:
        kept = " ".join(name for name in classes[1].split() if name in named)
        return f' class="{kept}"' if kept else ""

    for html in formulas:
        yield re.sub(r' class="([^"]*)"', known, IDLE.sub("", html))


def signs(style: str) -> set[int]:
    """Return the code points that a style sheet writes."""
    texts = re.findall(r'content: "((?:\\.|[^"\\])*)"', style)
    code = re.compile(r"\\([0-9A-Fa-f]{1,6}) ?")
    return {ord(sign) for text in texts for sign in code.sub(lambda found: chr(int(found[1], 16)), text)}


def cut(font: Path, target: Path, wanted: set[int]) -> None:
    """Write a font with only the wanted signs."""
    options = subset.Options(flavor="woff", hinting=False)
    options.drop_tables += ["FFTM"]  # the time when it was made
    loaded = subset.load_font(font, options)
    cutter = subset.Subsetter(options)
    own = loaded.getBestCmap().keys()
    cutter.populate(unicodes=own & wanted or own)  # a browser cannot read a font without any sign
    cutter.subset(loaded)
    subset.save_font(loaded, target, options)


def is_formula(node: nodes.Node) -> bool:
    return isinstance(node, (nodes.math, nodes.math_block))


def written(node: nodes.math | nodes.math_block) -> str:
    return "".join(typeset[each] for each in formulas_of(node))


def write_inline(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(writer.starttag(node, "span", "", CLASS="math notranslate nohighlight"))
    writer.body.append(f"{written(node)}</span>")
    raise nodes.SkipNode


def write_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math notranslate nohighlight"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({get_node_equation_number(writer, node)})')
        writer.add_permalink_ref(node, "Link to this equation")
        writer.body.append("</span>")
    writer.body.append(f'<div class="formulas">{written(node)}</div></div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict:
    app.add_html_math_renderer("typeset", (write_inline, None), (write_block, None))
    app.connect("env-updated", typeset_all)
    app.add_css_file(STYLE)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
