"""The pages on the program: their examples run, what they show and name exists."""

from __future__ import annotations

import ast
import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "book" / "under-the-hood").glob("*.md"))
# A row's last column: the test that shows what the row says, in the words of its name.
ROW = re.compile(r"^\| .*\| \[([^\]]+)\]\(https://\S+?/blob/main/(tests/[\w/]+\.py)\) \|$", re.M)
SHOWN = re.compile(r"^```\{literalinclude\} (\S+)\n((?::[\w-]+: .*\n)*)", re.M)


@pytest.fixture(scope="module", params=PAGES, ids=lambda path: path.stem)
def page(request) -> Path:
    return request.param


def test_there_are_few_and_short_pages():
    assert 1 <= len(PAGES) <= 7
    assert max(len(path.read_text(encoding="utf8").splitlines()) for path in PAGES) <= 150


def test_a_page_opens_with_a_drawing(page):
    assert "](../_static/diagrams/" in page.read_text(encoding="utf8").split("\n## ")[0]


@pytest.mark.slow
def test_the_examples_run(page):
    found = doctest.testfile(str(page), module_relative=False, encoding="utf8")
    assert found.failed == 0 and found.attempted


def test_every_row_names_a_test_that_exists(page):
    rows = ROW.findall(page.read_text(encoding="utf8"))
    assert len(rows) >= 5
    missing = [
        (words, file)
        for words, file in rows
        if f"{words.replace(' ', '_')}"
        not in "\n".join(re.findall(r"^def test_(\w+)", (ROOT / file).read_text(), re.M))
    ]
    assert missing == []


def test_the_code_that_a_page_shows_exists(page):
    shown = SHOWN.findall(page.read_text(encoding="utf8"))
    assert shown
    for file, options in shown:
        text = (page.parent / file).read_text(encoding="utf8")
        for option, value in re.findall(r"^:([\w-]+): (.*)$", options, re.M):
            if option == "pyobject":
                place = ast.parse(text)
                for name in value.split("."):
                    place = next(node for node in place.body if getattr(node, "name", None) == name)
            elif option in ("start-at", "end-at"):
                assert value.strip('"') in text
