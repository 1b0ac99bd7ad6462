"""Chapters are plain Markdown, in which the build finds citations, references, asides and figures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "_ext"))
import plain  # noqa: E402

ADAM = "https://arxiv.org/abs/1412.6980"
CLIP = "https://doi.org/10.1000/clip"
KEYS = {ADAM: "kingma2015adam", CLIP: "pascanu2013difficulty"}
REWRITTEN = {
    "a citation": (f"Adam [[Kingma and Ba, 2015]({ADAM})].", "Adam {cite}`kingma2015adam`."),
    "two citations, over a line's end": (
        f"[[Kingma and Ba, 2015]({ADAM}),\n[Pascanu et al., 2013]({CLIP})]",
        "{cite}`kingma2015adam,pascanu2013difficulty`",
    ),
    "a citation in the sentence": (
        f"Kingma and Ba [[2015]({ADAM})] take",
        "Kingma and Ba {cite:yearpar}`kingma2015adam` take",
    ),
    "an equation": ("by [(eq-gap)](#eq-gap), the", "by {eq}`eq-gap`, the"),
    "a section of the page": ("see [below](#sec-scaler)", "see {ref}`below <sec-scaler>`"),
    "a section of another page": (
        "[squeeze()](17-clinic.ipynb#clinic-patients)",
        "{ref}`squeeze() <clinic-patients>`",
    ),
    "a label": ('<a id="sec-scaler"></a>\n### float16', "(sec-scaler)=\n### float16"),
    "a function": ("- [`transformer.softmax`](api.md)", "- {py:func}`transformer.softmax`"),
    "a class": (
        "[`transformer.fast.FastTransformer`](api.md)",
        "{py:class}`transformer.fast.FastTransformer`",
    ),
    "a constant": ("[`transformer.kernels.CHOICES`](api.md)", "{py:data}`transformer.kernels.CHOICES`"),
    "an aside with a citation and a formula": (
        "Before\n\n"
        f"> **Paper and practice.** It [[Kingma and Ba, 2015]({ADAM})]\n> $$\n> a\n> $$\n>\n> ends.\n\nAfter",
        "Before\n\n:::{admonition} Paper and practice\n:class: note\n"
        "It {cite}`kingma2015adam`\n$$\na\n$$\n\nends.\n:::\n\nAfter",
    ),
    "a figure": (
        "> ![Four heads.](_static/diagrams/heads.svg)\n>\n> Four heads are blocks.",
        ":::{figure-md}\n![Four heads.](_static/diagrams/heads.svg)\n\nFour heads are blocks.\n:::\n",
    ),
    "a live figure": (
        "> [Live figure: beam](https://e.github.io/b/book/08-decoding.html). In the built book.\n>\n> Below.",
        ":::{live} beam\nIn the built book.\n\nBelow.\n:::\n",
    ),
}
UNTOUCHED = (
    "[Chapter 3](03-attention.ipynb) and [PyTorch](https://pytorch.org)",
    "`x[[0, 1]]` is $x > 3$",
    "a list [[1, 2], [3, 4]]",
    "$$\na\n$$ (eq-a)",
    "[here](#somewhere)",
)
MYST = re.compile(r"(?<!`)\{[\w:+-]+\}`|^:{3,}|^`{3,}\{|^\([\w-]+\)=", re.MULTILINE)


LIVE = re.compile(r"\[Live figure: ([\w-]+)\]\((\S+)\)")


def markdown() -> list[tuple[str, str, str]]:
    """What is read outside the book as well: page, cell and text."""
    cells = [
        (path.stem, cell.id, cell.source)
        for path in sorted((ROOT / "book").glob("*.ipynb"))
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    ]
    pages = [
        (name, "", (ROOT / "book" / f"{name}.md").read_text(encoding="utf8"))
        for name in ("intro", "notation")
    ]
    return [*cells, *pages]


TEXTS = markdown()


@pytest.mark.parametrize("name", REWRITTEN)
def test_what_is_written_for_sphinx(name):
    source, expected = REWRITTEN[name]
    assert plain.to_myst(source, KEYS) == expected


@pytest.mark.parametrize("source", UNTOUCHED)
def test_what_is_the_same_everywhere_stays(source):
    assert plain.to_myst(source, KEYS) == source


def test_a_citation_that_the_bibliography_lacks_stops_the_build():
    with pytest.raises(
        ValueError, match=r"https://x\.org/y is cited, and is not an address in the bibliography"
    ):
        plain.to_myst("[[A, 2020](https://x.org/y)]", KEYS)


def test_a_block_quote_of_no_known_kind_stops_the_build():
    with pytest.raises(ValueError, match="begins with a title, a picture or a live figure, not with 'Words'"):
        plain.to_myst("> Words", KEYS)


def test_chapters_can_be_read_without_the_book():
    found = [f"{page}, {cell}: {match[0]}" for page, cell, text in TEXTS for match in MYST.finditer(text)]
    assert not found


def test_a_live_figure_leads_to_its_page():
    base = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["html"]["baseurl"]
    links = [(page, *found) for page, _, text in TEXTS for found in LIVE.findall(text)]
    assert len(links) == len({name for _, name, _ in links}) > 8
    assert [address for _, _, address in links] == [f"{base}book/{page}.html" for page, _, _ in links]


def test_every_reference_has_an_address_of_its_own():
    entries = parse_file(str(ROOT / "book" / "references.bib")).entries
    addresses = [plain.address(entry) for entry in entries.values()]
    assert None not in addresses and len(set(addresses)) == len(addresses)
