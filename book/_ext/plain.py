"""Plain Markdown in the chapters, MyST for Sphinx.

A chapter is read in the built book, on GitHub and in Colab, and only the first of them understands MyST. So
the chapters say in plain Markdown what all three can show, and `to_myst` rewrites it before Sphinx reads it:

    [[Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980)]   a citation, by its address in the bibliography
    Henry et al. [[2020](https://arxiv.org/abs/2010.04245)]    a citation in the sentence
    [(7.3)](SITE/book/07-training.html#equation-eq-adam)       an equation
    [below](SITE/book/11-long-runs.html#sec-stop)              a section
    <a id="eq-adam"></a>, <a id="sec-stop"></a>                their labels, on a line above them
    [`transformer.fit`](SITE/book/api.html#transformer.fit)    a name of the API
    > **Paper and practice.** ...                              an aside
    > *Nat.* ...                                               a note beside the text, before its paragraph
    > **You will have**, a list, **You need** ...              what a chapter gives and asks for, as a strip
    > ![What there is to see.](SITE/_static/heads.svg)         a figure; after an empty line, its caption
    > [Live figure: beam](SITE/book/08-decoding.html#live-beam). ...   what stands for it, then its caption

SITE is the address of the published pages, `baseurl` in `_config.yml`. A notebook that is read elsewhere has
no labels that a link could lead to, no API, and in Colab no file beside it. So what only the book has is
linked where it is published, and the build leads each of these links to its own pages. A link without label,
such as `[Chapter 3](03-attention.ipynb)`, is the same for all. `book/equations.py` numbers the equations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pybtex.database import Entry, parse_file
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

FENCED = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
CITATION = re.compile(rf"\[({LINK.pattern}(?:,\s+{LINK.pattern})*)\]")
# Links into the published pages: what stands behind their address.
TO_EQUATION = re.compile(r"\[\([\d.]*\)\]\(book/[\w-]+\.html#equation-(eq-[\w-]+)\)")
TO_SECTION = re.compile(r"\]\(book/[\w-]+\.html(#(?:sec|case|clinic)-[\w-]+)\)")
TO_API_NAME = re.compile(r"\[`(transformer\.[\w.]+)`\]\(book/api(?:/\w+)?\.html#\1\)")
TO_PAGE = re.compile(r"\]\(book/(api|playground|teaching|under-the-hood/[\w-]+)\.html\)")  # of the book alone
OTHER_LINK = re.compile(r"\]\((book/[^)]*)\)")
# A label, a formula without its end, a number.
EQUATION = re.compile(
    r'^<a id="(eq-[\w-]+)"></a>\n(\$\$\n(?:(?!\$\$).)*?)\n\\tag\{([\d.]*)\}\n\$\$$', re.MULTILINE | re.DOTALL
)
LABEL = re.compile(r'^<a id="((?:sec|case|clinic)-[\w-]+)"></a>$', re.MULTILINE)
QUOTE = re.compile(r"(?:^>.*\n?)+", re.MULTILINE)
NOT_A_QUOTE = re.compile(r"^(>.*\n(?=[^>\s])| +>)", re.MULTILINE)  # a line that only belongs to it, or a list
ASIDE = re.compile(r"\*\*([^*]+?)(?:\.|(?<=[?!]))\*\*\s+")
NOTE = re.compile(r"\*[^*]+\.\*\s")
PROMISES = re.compile(r"\*\*You will have\*\*\n\n((?:[-] .+\n(?: .+\n)*)+)\n(\*\*You need\*\* [\s\S]+)")
PICTURE = re.compile(r"!\[[^\n]*\]\(\S+\) *\n *\n")
LIVE = re.compile(r"\[Live figure: ([\w-]+)\]\(book/[\w-]+\.html#live-\1\)\.\s+")


def address(entry: Entry) -> str | None:
    """Return the address to which the bibliography links an entry."""
    fields = entry.fields
    if "url" in fields:
        return fields["url"]
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else None


def to_myst(text: str, keys: Mapping[str, str], site: str) -> str:
    """Rewrite Markdown with MyST's roles and directives; fenced code stays as it is.

    Args:
        text: the Markdown.
        keys: the bibliography's keys by address.
        site: the address of the published pages.

    Raises:
        ValueError: a citation, or a link to the published pages, does not have a form above; a citation cites
            what the bibliography lacks; or a block quote is none of the above, or does not stand apart.
    """
    pieces, start = [], 0
    for code in FENCED.finditer(text):
        pieces += [prose_to_myst(text[start : code.start()], keys, site), code[0]]
        start = code.end()
    return "".join([*pieces, prose_to_myst(text[start:], keys, site)])


def prose_to_myst(text: str, keys: Mapping[str, str], site: str) -> str:
    """Do what `to_myst` does, without fenced code."""

    def citation(match: re.Match[str]) -> str:
        links = LINK.findall(match[1])
        if unknown := [url for _, url in links if url not in keys]:
            raise ValueError(f"{unknown[0]} is cited, and is not an address in the bibliography")
        role = "cite:yearpar" if all(re.fullmatch(r"\d{4}\w?", label) for label, _ in links) else "cite"
        return f"{{{role}}}`{','.join(keys[url] for _, url in links)}`"

    if wrong := NOT_A_QUOTE.search(text):
        raise ValueError(f"a block quote stands apart, and each of its lines begins with >: {wrong[0]!r}")
    text = text.replace(f"]({site}", "](")
    text = QUOTE.sub(directive, text)
    text = CITATION.sub(citation, text)
    if left := [url for _, url in LINK.findall(text) if url in keys]:
        raise ValueError(f"{left[0]} is cited in another form than [[Author, year](address)]")
    text = TO_EQUATION.sub(r"{eq}`\1`", text)
    text = TO_SECTION.sub(r"](\1)", text)
    text = TO_API_NAME.sub(r"{py:obj}`\1`", text)
    text = TO_PAGE.sub(r"](\1.md)", text)
    if left := OTHER_LINK.search(text):
        raise ValueError(f"{site}{left[1]} is linked in another form than the build knows")
    return LABEL.sub(r"(\1)=", EQUATION.sub(r"\2\n$$ (\1)", text))


def directive(quote: re.Match[str]) -> str:
    """Return the directive that a block quote stands for.

    Raises:
        ValueError: it stands for none.
    """
    content = re.sub(r"^> ?", "", quote[0], flags=re.MULTILINE).rstrip("\n")
    if aside := ASIDE.match(content):
        opening = f"{{admonition}} {' '.join(aside[1].split())}\n:class: note\n"
        content = content[aside.end() :]
    elif promises := PROMISES.fullmatch(content):
        opening, content = "{container} promises", f"You will have\n\n{promises[1]}- {promises[2]}"
    elif NOTE.match(content):
        opening = "{container} side-note"
    elif PICTURE.match(content):
        opening = "{figure-md}"
    elif live := LIVE.match(content):
        opening, content = f"{{live}} {live[1]}", content[live.end() :]
    else:
        forms = (
            "**Title.** and text, *Term.* and text, **You will have** with its list and what is needed, "
            "a picture with a caption after an empty line, or a link to a live figure"
        )
        raise ValueError(f"a block quote begins with {forms}, not with {content[:60]!r}")
    return f":::{opening}\n{content}\n:::\n"


def rewrite(app: Sphinx, page: str, source: list[str], keys: Mapping[str, str]) -> None:
    """Give Sphinx the MyST of a page, or of a notebook's Markdown."""
    for path in (__file__, *(str(Path(app.srcdir) / path) for path in app.config.bibtex_bibfiles)):
        app.env.note_dependency(path)
    site = app.config.html_baseurl
    try:
        if Path(app.env.doc2path(page)).suffix == ".ipynb":
            notebook = json.loads(source[0])
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = to_myst("".join(cell["source"]), keys, site)
            source[0] = json.dumps(notebook)
        else:
            source[0] = to_myst(source[0], keys, site)
    except ValueError as error:
        raise ExtensionError(f"{page}: {error}") from error


def read_bibliography(app: Sphinx) -> None:
    """Learn the addresses of the bibliography before the first page is read."""
    keys = {
        found: key
        for path in app.config.bibtex_bibfiles
        for key, entry in parse_file(Path(app.srcdir) / path).entries.items()
        if (found := address(entry))
    }
    app.connect("source-read", partial(rewrite, keys=keys))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", read_bibliography)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
