"""What the published site has beyond its pages: a map for search engines, a card, a page for what is missing.

All three name the site's own address, `baseurl` in `_config.yml`; without one there is no map and no card. A
host shows `404.html` at whatever address was asked for, so its links begin with the path of the site. Beside
the button that opens a chapter in Colab stands one that downloads its workbook, from the latest release.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from xml.sax.saxutils import escape

from sphinx.application import Sphinx

RECORD = Path(__file__).resolve().parents[2] / "transformer" / "records" / "workbook.toml"
CARD = "_static/card.png"  # drawn by book/_static/card.svg


def place(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object) -> None:
    """Tell the templates where the site lies and which picture stands for it."""
    base = app.config.html_baseurl
    context["site_path"] = urlsplit(base).path or "/"
    context["card"] = urljoin(base, CARD) if base else None


def write_map(app: Sphinx, failure: Exception | None) -> None:
    """List the addresses of all pages in `sitemap.xml`."""
    base = app.config.html_baseurl
    if failure or not base or app.builder.format != "html":
        return
    pages = (urljoin(base, app.builder.get_target_uri(name)) for name in sorted(app.env.found_docs))
    lines = "\n".join(f"  <url><loc>{escape(page)}</loc></url>" for page in pages)
    schema = "http://www.sitemaps.org/schemas/sitemap/0.9"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="{schema}">\n{lines}\n</urlset>\n'
    Path(app.outdir, "sitemap.xml").write_text(text, encoding="utf8")


def offer_workbook(app: Sphinx, pagename: str, templatename: str, context: dict, doctree: object) -> None:
    """Add the workbook of a chapter, where it has one, to the buttons that open the chapter elsewhere."""
    chapter = pagename.rpartition("/")[2]
    if chapter not in tomllib.loads(RECORD.read_text(encoding="utf8")):
        return
    repository = app.config.html_theme_options["repository_url"]
    button = {
        "type": "link",
        "text": "Workbook",
        "tooltip": "Download the notebook in which you write the pieces of this chapter yourself",
        "icon": "fas fa-download",
        "url": f"{repository}/releases/latest/download/{chapter}.ipynb",
    }
    for group in context.get("header_buttons", ()):
        if group.get("label") == "launch-buttons":
            group["buttons"].append(button)


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", place)
    app.connect("html-page-context", offer_workbook, priority=900)  # after the theme's own buttons
    app.connect("build-finished", write_map)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
