"""Chapters are plain Markdown, in which the build finds citations, references, asides and figures."""

from __future__ import annotations

import re
from pathlib import Path

import equations
import execute
import nbformat
import plain
import public_names
import pytest
import yaml
from pybtex.database import parse_file

ROOT = Path(__file__).resolve().parents[2]

SITE = "https://e.github.io/b/"
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
    "an equation": (f"by [(1.3)]({SITE}book/01-gradients.html#equation-eq-gap), the", "by {eq}`eq-gap`, the"),
    "a labeled equation": (
        'So\n\n<a id="eq-gap"></a>\n$$\na\n\\\\ b\n\\tag{1.3}\n$$\n\n$$\nc\n$$',
        "So\n\n$$\na\n\\\\ b\n$$ (eq-gap)\n\n$$\nc\n$$",
    ),
    "a section": (f"[`squeeze()`]({SITE}book/16-clinic.html#clinic-one)", "[`squeeze()`](#clinic-one)"),
    "a label": ('<a id="sec-scaler"></a>\n### float16', "(sec-scaler)=\n### float16"),
    "a name of the API": (
        f"- [`transformer.softmax`]({SITE}book/api.html#transformer.softmax)",
        "- {py:obj}`transformer.softmax`",
    ),
    "the API": (f"[all of them]({SITE}book/api.html)", "[all of them](api.md)"),
    "an aside with a citation and a formula": (
        "Before\n\n"
        f"> **Paper and practice.** It [[Kingma and Ba, 2015]({ADAM})]\n> $$\n> a\n> $$\n>\n> ends.\n\nAfter",
        "Before\n\n:::{admonition} Paper and practice\n:class: note\n\n"
        "It {cite}`kingma2015adam`\n$$\na\n$$\n\nends.\n:::\n\nAfter",
    ),
    "an aside with a question over two lines": (
        "> **Why\n> not?** Since\n",
        ":::{admonition} Why not?\n:class: note\n\nSince\n:::\n",
    ),
    "a note beside the text": (
        f"> *Nat.* The unit [[2015]({ADAM})].\n\nAfter",
        ":::{container} side-note\n*Nat.* The unit {cite:yearpar}`kingma2015adam`.\n:::\n\nAfter",
    ),
    "what a chapter promises": (
        "> **You will have**\n>\n> - one\n> - two,\n>   in two lines\n>\n> **You need** an hour.",
        ":::{container} promises\nYou will have\n\n"
        "- one\n- two,\n  in two lines\n- **You need** an hour.\n:::\n",
    ),
    "a figure": (
        f"> ![Four heads.]({SITE}_static/diagrams/heads.svg)\n>\n> Four heads are blocks.",
        ":::{figure-md}\n![Four heads.](_static/diagrams/heads.svg)\n\nFour heads are blocks.\n:::\n",
    ),
    "a live figure": (
        f"> [Live figure: beam]({SITE}book/08-decoding.html#live-beam). In the built book.\n>\n> Below.",
        ":::{live} beam\nIn the built book.\n\nBelow.\n:::\n",
    ),
}
UNTOUCHED = (
    "[Chapter 3](03-attention.ipynb) and [PyTorch](https://pytorch.org)",
    "`x[[0, 1]]` is $x > 3$",
    "a list [[1, 2], [3, 4]]",
    "$$\na\n$$ (eq-a)",
    "[here](#somewhere)",
    "```python\n>>> x = 1\n```",
    f"- so:\n\n  ```\n  > **Note.** [[2015]({ADAM})]\n  ```",
)
MYST = re.compile(r"(?<!`)\{[\w:+-]+\}`|^:{3,}|^`{3,}\{|^\([\w-]+\)=", re.MULTILINE)
TO_LABEL = re.compile(r"/book/([\w-]+)\.html#(?:equation-)?((?:eq|sec|case|clinic)-[\w-]+)\)")


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
    assert plain.to_myst(source, KEYS, SITE) == expected


@pytest.mark.parametrize("source", UNTOUCHED)
def test_what_is_the_same_everywhere_stays(source):
    assert plain.to_myst(source, KEYS, SITE) == source


@pytest.mark.parametrize(
    "source, message",
    [
        (
            "[[A, 2020](https://x.org/y)]",
            "https://x.org/y is cited, and is not an address in the bibliography",
        ),
        (
            f"[[A, 2015]({ADAM}), Section 2]",
            f"{ADAM} is cited in another form than [[Author, year](address)]",
        ),
        (f"[[A, 2015]({ADAM}); [B, 2013]({CLIP})]", f"{ADAM} is cited in another form"),
        (f"[x]({SITE}book/intro.html#up)", f"{SITE}book/intro.html#up is linked in another form"),
        ("> Words", "a link to a live figure, not with 'Words'"),
        ("> ![A picture.](a.svg)\n> Its caption.", "a picture with a caption after an empty line"),
        ("> **You will have**\n>\n> - one", "**You will have** with its list and what is needed"),
        ("> **A.** Words\nthat go on", "each of its lines begins with >"),
        ("- a list\n\n  > **A.** Words", "a block quote stands apart"),
    ],
)
def test_what_stops_the_build(source, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        plain.to_myst(source, KEYS, SITE)


def test_chapters_can_be_read_without_the_book():
    found = [f"{page}, {cell}: {match[0]}" for page, cell, text in TEXTS for match in MYST.finditer(text)]
    assert not found


def test_a_notebook_shows_and_links_what_is_there_in_colab_too():
    """Other chapters and published pages; nothing that only the book has, and no name of a label."""
    prose = [(page, cell, plain.FENCED.sub("", text)) for page, cell, text in TEXTS if cell]
    dead = re.compile(r"(?<!`)\]\((?!https?://|[\w-]+\.ipynb\))[^)]*\)|\(eq-[\w-]+\)")
    assert [(page, cell, found[0]) for page, cell, text in prose for found in dead.finditer(text)] == []
    files = {found for _, _, text in prose for found in re.findall(r"\]\(([\w-]+\.ipynb)\)", text)}
    assert files and all((ROOT / "book" / name).exists() for name in files)


def test_links_to_the_published_pages_lead_to_something():
    base = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["html"]["baseurl"]
    listed = {}
    for page in (ROOT / "book" / "api.md", *(ROOT / "book" / "api").glob("*.md")):
        text = public_names.ASKED.sub(public_names.listed, page.read_text(encoding="utf8"))
        place = page.relative_to(ROOT).with_suffix(".html").as_posix()
        listed[place] = set(re.findall(r"^\.\. (?:auto\w+|py:data):: (\S+)$", text, re.MULTILINE))
    links = {found for _, _, text in TEXTS for found in re.findall(rf"\({re.escape(base)}([^)]+)\)", text)}
    for link in links:
        place, _, fragment = link.partition("#")
        if place.startswith("book/api"):
            assert not fragment or listed[place] & {fragment, fragment.rpartition(".")[0]}, link
        elif place.startswith("_static/"):
            assert (ROOT / "book" / place).exists(), link
        elif not fragment:
            assert (ROOT / place).with_suffix(".md").exists(), link
        else:
            assert fragment.startswith(("equation-eq-", "live-", "sec-", "case-", "clinic-")), link
    assert len(links) > 100


def test_links_to_labels_name_the_page_that_has_them():
    """In the book a label is found wherever it stands; elsewhere, only on the page that a link names."""
    labels = [
        (page, label)
        for page, _, text in TEXTS
        for label in [*plain.LABEL.findall(text), *(found[1] for found in plain.EQUATION.finditer(text))]
    ]
    names = [label for _, label in labels]
    assert len(labels) == len(set(names)) > 150
    links = {found for _, _, text in TEXTS for found in TO_LABEL.findall(text)}
    assert len(links) > 50 and links <= set(labels)


def test_equations_have_the_numbers_of_the_book():
    chapters = [path.stem for path in execute.find_notebooks([])]
    known = equations.numbers([[text for page, _, text in TEXTS if page == name] for name in chapters])
    wrong = {f"{page}, {cell}" for page, cell, text in TEXTS if equations.numbered(text, known) != text}
    assert wrong == set(), "python book/equations.py"
    assert known["eq-dense"] == "1.1" and len(known) > 100


def test_every_reference_has_an_address_of_its_own():
    entries = parse_file(str(ROOT / "book" / "references.bib")).entries
    addresses = [plain.address(entry) for entry in entries.values()]
    assert None not in addresses and len(set(addresses)) == len(addresses)
