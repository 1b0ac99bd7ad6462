"""A diagram stands in the page itself, so that it takes the page's colors and font.

The pictures are the files of `book/_static/diagrams`, which `python book/diagrams` draws. Where a notebook is
read elsewhere they are ordinary pictures.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

FOLDER = "_static/diagrams/"


class TakeIn(SphinxTransform):
    """Replace a picture by its drawing, before Sphinx collects the pictures of a page."""

    default_priority = 500

    def apply(self) -> None:
        for image in list(self.document.findall(nodes.image)):
            if FOLDER in image["uri"]:
                path = Path(self.env.doc2path(self.env.docname)).parent / image["uri"]
                self.env.note_dependency(str(path))
                drawing = path.read_text(encoding="utf-8")
                described = f'<svg role="img" aria-label="{escape(image["alt"])}"'
                html = f'<div class="picture">{drawing.replace("<svg", described, 1)}</div>'
                image.replace_self(nodes.raw("", html, format="html"))


def setup(app: Sphinx) -> dict:
    app.add_transform(TakeIn)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
