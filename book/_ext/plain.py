"""Plain Markdown in the chapters, MyST for Sphinx.

A chapter is read in the built book, on GitHub and in Colab, and only the first of them understands MyST. So
the chapters say in plain Markdown what all three can show, and `to_myst` rewrites it before Sphinx reads it:

    [[Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980)]   a citation, by its address in the bibliography
    Henry et al. [[2020](https://arxiv.org/abs/2010.04245)]    a citation in the sentence
    [(eq-layer-norm)](#eq-layer-norm)                          an equation
    [below](#sec-stop), [there](11-long-runs.ipynb#sec-stop)   a section, here or in another chapter
    <a id="sec-stop"></a>                                      its label, on the line above the heading
    [`transformer.Encoder`](api.md)                            an entry of the API
    > **Paper and practice.** ...                              an aside
    > ![What there is to see.](_static/diagrams/heads.svg)     a figure; its caption follows
    > [Live figure: beam](https://.../08-decoding.html). ...   a live figure: what stands for it, its caption

A link without a label, such as `[Chapter 3](03-attention.ipynb)`, is the same for all. Equations alone keep
their MyST label, `$$ (eq-layer-norm)`: elsewhere it stands beside the formula as its name.
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

LINK = r"\[([^\[\]]+)\]\(([^()\s]+)\)"
CITATION = re.compile(rf"\[({LINK}(?:,\s+{LINK})*)\]")
EQUATION = re.compile(r"\[\((eq-[\w-]+)\)\]\(#\1\)")
SECTION = re.compile(r"\[([^\[\]]+)\]\((?:[\w-]+\.(?:ipynb|md))?#((?:sec|case|clinic)-[\w-]+)\)")
LABEL = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
ENTRY = re.compile(r"\[`([\w.]+)`\]\(api\.md\)")
QUOTE = re.compile(r"(?:^>.*\n?)+", re.MULTILINE)
ASIDE = re.compile(r"\*\*([^*]+)\.\*\* ")
PICTURE = re.compile(r"!\[[^\]]*\]\(\S+\)\n")
LIVE = re.compile(r"\[Live figure: ([\w-]+)\]\(\S+\)\. ")


def address(entry: Entry) -> str | None:
    """Return the address to which the bibliography links an entry."""
    fields = entry.fields
    if "url" in fields:
        return fields["url"]
    if "doi" in fields:
        return f"https://doi.org/{fields['doi']}"
    return f"https://arxiv.org/abs/{fields['eprint']}" if "eprint" in fields else None


def to_myst(text: str, keys: Mapping[str, str]) -> str:
    """Rewrite Markdown with MyST's roles and directives; `keys` are the bibliography's keys by address.

    Raises:
        ValueError: If a citation's address is not in the bibliography, or a block quote is none of the three.
    """

    def citation(match: re.Match[str]) -> str:
        links = re.findall(LINK, match[1])
        if unknown := [url for _, url in links if url not in keys]:
            raise ValueError(f"{unknown[0]} is cited, and is not an address in the bibliography")
        role = "cite:yearpar" if re.fullmatch(r"\d{4}\w?", links[0][0]) else "cite"
        return f"{{{role}}}`{','.join(keys[url] for _, url in links)}`"

    text = QUOTE.sub(block, text)
    text = CITATION.sub(citation, text)
    text = EQUATION.sub(r"{eq}`\1`", text)
    text = SECTION.sub(r"{ref}`\1 <\2>`", text)
    text = ENTRY.sub(entry_role, text)
    return LABEL.sub(r"(\1)=", text)


def block(match: re.Match[str]) -> str:
    """Return the directive for a block quote."""
    content = re.sub(r"^> ?", "", match[0], flags=re.MULTILINE).rstrip("\n")
    if aside := ASIDE.match(content):
        opening, content = f"{{admonition}} {aside[1]}\n:class: note", content[aside.end() :]
    elif PICTURE.match(content):
        opening = "{figure-md}"
    elif live := LIVE.match(content):
        opening, content = f"{{live}} {live[1]}", content[live.end() :]
    else:
        raise ValueError(
            f"a block quote begins with a title, a picture or a live figure, not with {content[:60]!r}"
        )
    return f":::{opening}\n{content}\n:::\n"


def entry_role(match: re.Match[str]) -> str:
    """Return the role for an entry of the API, whose kind can be seen in its name."""
    name = match[1].rpartition(".")[2]
    kind = "data" if name.isupper() else "class" if name[0].isupper() else "func"
    return f"{{py:{kind}}}`{match[1]}`"


def rewrite(app: Sphinx, page: str, source: list[str], keys: Mapping[str, str]) -> None:
    """Give Sphinx the MyST of a page, or of a notebook's Markdown."""
    try:
        if Path(app.env.doc2path(page)).suffix == ".ipynb":
            notebook = json.loads(source[0])
            for cell in notebook["cells"]:
                if cell["cell_type"] == "markdown":
                    cell["source"] = to_myst("".join(cell["source"]), keys)
            source[0] = json.dumps(notebook)
        else:
            source[0] = to_myst(source[0], keys)
    except ValueError as error:
        raise ExtensionError(f"{page}: {error}") from error


def read_bibliography(app: Sphinx) -> None:
    keys = {
        address(entry): key
        for path in app.config.bibtex_bibfiles
        for key, entry in parse_file(Path(app.srcdir) / path).entries.items()
    }
    app.connect("source-read", partial(rewrite, keys=keys))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", read_bibliography)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
