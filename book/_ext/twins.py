"""Each page as Markdown beside its HTML, and `llms.txt`, which lists them: for programs that read the book.

A chapter's Markdown is that of its notebook, with code and printed results in fences and the descriptions
of pictures. Pages that are made of directives, such as the API, are written as Sphinx writes text. The
addresses, `page.html.md` and `/llms.txt`, are those of https://llmstxt.org.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import urljoin

import nbformat
from docutils import nodes
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.writers.text import TextTranslator

TO_PAGE = re.compile(r"(?<=\]\()([\w-]+)\.(?:ipynb|md)(?=[)#])")
SILENT = re.compile(r"\x1b\[[\d;]*m")  # colors of a traceback
DIRECTIVE = re.compile(r"^```\{", re.MULTILINE)


def fenced(text: str, language: str) -> str:
    """Return a block of code, in a fence that does not occur in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def shown(output: NotebookNode, description: str) -> str:
    """Return what an output says, or what its picture shows."""
    if output.output_type == "stream":
        return fenced(output.text, "text")
    if output.output_type == "error":
        return fenced(SILENT.sub("", "\n".join(output.traceback)), "text")
    if any(kind.startswith("image/") for kind in output.data):
        return f"*Figure.* {description}"
    return fenced(output.data["text/plain"], "text")


def of_notebook(notebook: NotebookNode) -> str:
    """Return a notebook as Markdown: what it says, its code, and what that printed."""
    pieces = []
    asked = {
        f"predict-{cell.id}": cell.metadata.predict.ask
        for cell in notebook.cells
        if "predict" in cell.metadata
    }
    for cell in notebook.cells:
        if cell.id in asked:
            pieces.append(f"**Predict.** {asked[cell.id]}")
        elif cell.cell_type == "markdown":
            pieces.append(TO_PAGE.sub(r"\1.html.md", cell.source))
        elif "remove-cell" not in cell.metadata.get("tags", []):
            description = cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")
            pieces.append(fenced(cell.source, "python"))
            pieces += [shown(output, description) for output in cell.outputs]
    return "\n\n".join(pieces) + "\n"


class Writer(TextTranslator):
    """Sphinx's plain text, with the headings of Markdown."""

    def depart_title(self, node: nodes.title) -> None:
        self.stateindent.pop()
        text = "".join(line for indent, line in self.states.pop() if indent == -1)
        self.states[-1].append((0, ["", f"{'#' * max(1, self.sectionlevel)} {text}", ""]))

    def visit_inline(self, node: nodes.inline) -> None:
        if "viewcode-link" in node["classes"]:
            raise nodes.SkipNode
        super().visit_inline(node)

    def unknown_visit(self, node: nodes.Node) -> None:
        """Write what is in a node of another builder, and nothing for the node itself."""

    unknown_departure = unknown_visit


def twin(app: Sphinx, page: str, doctree: nodes.document) -> str:
    """Return a page as Markdown."""
    path = Path(app.env.doc2path(page))
    if path.suffix == ".ipynb":
        return of_notebook(nbformat.read(path, as_version=4))
    source = path.read_text(encoding="utf8")
    if not DIRECTIVE.search(source):
        return TO_PAGE.sub(r"\1.html.md", source)
    writer = Writer(doctree, app.builder)
    doctree.walkabout(writer)
    return writer.body.lstrip()


def write_twin(app: Sphinx, doctree: nodes.document, page: str) -> None:
    if app.builder.format == "html":
        path = Path(app.outdir, f"{page}.html.md")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(twin(app, page, doctree), encoding="utf8")


def write_list(app: Sphinx, failure: Exception | None) -> None:
    """List the twins of all pages in reading order."""
    if failure or app.builder.format != "html":
        return
    tree = app.env.external_site_map.root
    lines = [f"# {app.config.html_title}", f"> {description(app)}", f"- {entry(app, tree.docname)}"]
    for part in tree.subtrees:
        pages = "\n".join(f"- {entry(app, page)}" for page in part.files())
        lines.append(f"## {part.caption}\n\n{pages}")
    Path(app.outdir, "llms.txt").write_text("\n\n".join(lines) + "\n", encoding="utf8")


def description(app: Sphinx) -> str:
    project = Path(app.srcdir, "pyproject.toml").read_text(encoding="utf8")
    return tomllib.loads(project)["project"]["description"]


def entry(app: Sphinx, page: str) -> str:
    return f"[{app.env.titles[page].astext()}]({urljoin(app.config.html_baseurl, f'{page}.html.md')})"


def announce(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """Say in a page where its Markdown is."""
    if doctree:
        link = f'<link rel="alternate" type="text/markdown" href="{page.rpartition("/")[2]}.html.md">'
        context["metatags"] = f"{context.get('metatags', '')}\n{link}"


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", announce)
    app.connect("doctree-resolved", write_twin)
    app.connect("build-finished", write_list)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
