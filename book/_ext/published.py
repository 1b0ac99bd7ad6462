"""What the published site has beyond its pages: a map for search engines, a card, a page for what is missing.

All three name the site's own address, `baseurl` in `_config.yml`; without one there is no map and no card. A
host shows `404.html` at whatever address was asked for, so its links begin with the path of the site.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urljoin, urlsplit
from xml.sax.saxutils import escape

from sphinx.application import Sphinx

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


def setup(app: Sphinx) -> dict:
    app.connect("html-page-context", place)
    app.connect("build-finished", write_map)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
