"""The few icons that the pages show, as a style sheet of 12 KB instead of the theme's script of 1.5 MB.

The theme marks an icon by a class of Font Awesome's, and loads the whole collection to draw it. Here each
shape is read from that same file and becomes a mask, so that an icon has the color of the text around it.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from sphinx.application import Sphinx

COLLECTION = files("pydata_sphinx_theme") / "theme/pydata_sphinx_theme/static/scripts/fontawesome.js"
ICONS = (
    *("angle-left", "angle-right", "arrow-up", "bars", "circle-half-stroke", "download", "expand", "file"),
    *("file-pdf", "github", "list", "magnifying-glass", "moon", "rocket", "sun", "xmark"),
)
BOX = "circle-info"  # of every box, where the theme would fetch 156 KB of font for it
NOTICE = "/* Icons by Font Awesome Free, https://fontawesome.com, CC BY 4.0. */"


def shape(selector: str, name: str, collection: str) -> str:
    """Return the rule that gives what is selected the shape of an icon."""
    entry = re.search(rf'[{{,]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"\w+","([^"]+)"\]', collection)
    if entry is None:
        raise LookupError(f"the theme's collection has no icon {name!r}")
    width, height, path = entry.groups()
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><path d="{path}"/></svg>'
    return f"{selector} {{ --icon: url('data:image/svg+xml,{quote(svg)}'); }}"


def write_icons(app: Sphinx) -> None:
    if app.builder.format != "html":
        return
    collection = COLLECTION.read_text(encoding="utf8")
    target = Path(app.outdir, "_static", "icons.css")
    target.parent.mkdir(parents=True, exist_ok=True)
    rules = [shape(f".fa-{name}", name, collection) for name in ICONS]
    rules.append(shape(".admonition-title", BOX, collection))
    target.write_text("\n".join([NOTICE, *rules, ""]), encoding="utf8")


def setup(app: Sphinx) -> dict:
    app.connect("builder-inited", write_icons)
    app.add_css_file("icons.css")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
