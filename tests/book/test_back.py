"""`tangle.py --back`: what was edited in the package goes home, or nothing is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import back
import nbformat
import pytest
import tangle
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

ONE = "def one() -> int:\n    return 1"
TWO = "def two() -> int:\n    return one() + 1"


@pytest.fixture
def book(tmp_path) -> Path:
    """A book of two chapters, tangled and committed."""
    (tmp_path / "book").mkdir()
    for name, module, sources in (
        ("01-first", "alpha", (ONE, TWO)),
        ("02-second", "more/beta", ("b = 1\n",)),
    ):
        cells = [new_markdown_cell("# First", id="title"), new_code_cell("assert True", id="free")]
        cells += [
            new_code_cell(source, id=f"{Path(module).name}-{number}", metadata={"tags": [f"export:{module}"]})
            for number, source in enumerate(sources)
        ]
        notebook = new_notebook(cells=cells)
        (tmp_path / "book" / f"{name}.ipynb").write_text(back.execute.dumps(notebook), encoding="utf8")
    (tmp_path / "_toc.yml").write_text("root: book/01-first\nchapters:\n- file: book/02-second\n")
    by_hand = tmp_path / "transformer" / "by_hand.py"
    by_hand.parent.mkdir()
    by_hand.write_text("from transformer.alpha import one\n\nH = one\n")
    tangle.tangle(tmp_path)
    commit(tmp_path)
    return tmp_path


def commit(book: Path) -> None:
    for words in (
        ("init", "-q"), ("add", "-A"), ("-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x")
    ):  # fmt: skip
        subprocess.run(["git", "-C", str(book), *words], check=True)


def edit(book: Path, module: str, old: str, new: str) -> None:
    path = book / "transformer" / f"{module}.py"
    text = path.read_text(encoding="utf8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf8")


def contents(book: Path) -> dict[Path, bytes]:
    files = (path for path in book.rglob("*") if path.is_file() and ".git" not in path.parts)
    return {path: path.read_bytes() for path in files}


def source(book: Path, name: str, cell: str) -> str:
    cells = nbformat.read(book / "book" / f"{name}.ipynb", as_version=4).cells
    return next(found.source for found in cells if found.id == cell)


def test_an_edit_goes_home(book):
    edit(book, "alpha", "return 1", "return 1  # the first")
    edit(book, "more/beta", "b = 1", "b = 2")
    carried = ["book/01-first.ipynb: alpha-0", "book/02-second.ipynb: beta-0"]
    assert back.back(book) == [*carried, "wrote transformer/more/beta.py"]
    assert source(book, "01-first", "alpha-0") == f"{ONE}  # the first"
    tangle.check(book)
    assert back.back(book) == []


def test_a_rename_across_pieces_goes_home_and_into_the_list_of_names(book):
    edit(book, "alpha", "one", "unity")
    edit(book, "alpha", '"unity"', '"one"')  # a rename that leaves strings alone
    back.back(book)
    assert source(book, "01-first", "alpha-1") == TWO.replace("one", "unity")
    assert '__all__ = ["unity", "two"]' in (book / "transformer" / "alpha.py").read_text(encoding="utf8")
    tangle.check(book)


def test_nothing_changes_where_nothing_was_edited(book):
    before = contents(book)
    edit(book, "alpha", "return 1\n", "return 1\n\n\n")  # blank lines between pieces
    assert back.back(book) == ["wrote transformer/alpha.py"]
    assert contents(book) == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('from book/01-first.ipynb, "First".', "mine", "its header was edited"),
        ("[alpha-1]", "[alpha-9]", r"alpha-1\] should come where .*alpha-9\] stands"),
        (ONE, "", "piece alpha-0 is empty"),
        (TWO, f"{TWO}\n\n\n# %% new\nx = 1", "nothing should come where # %% new stands"),
        ("return 1", "return (", "line 2: '\\(' was never closed"),
        ("return 1", "return zero", "zero is neither defined nor imported"),
    ],
    ids=["header", "marker", "emptied", "new-piece", "syntax", "rule"],
)
def test_what_has_no_home_is_refused_and_nothing_is_written(book, old, new, said):
    edit(book, "more/beta", "b = 1", "b = 2")  # would go home by itself
    edit(book, "alpha", old, new)
    before = contents(book)
    with pytest.raises(tangle.TangleError, match=said):
        back.back(book)
    assert contents(book) == before


def change_cell(book: Path, old: str, new: str) -> None:
    path = book / "book" / "01-first.ipynb"
    path.write_text(path.read_text(encoding="utf8").replace(old, new), encoding="utf8")


def test_a_cell_that_is_newer_than_the_module_is_not_overwritten(book):
    change_cell(book, "return 1", "return 11")
    before = contents(book)
    with pytest.raises(tangle.TangleError, match="cell alpha-0 is newer than the module; tangle first"):
        back.back(book)
    assert contents(book) == before


def test_two_edits_of_one_cell_are_refused(book):
    change_cell(book, "return 1", "return 11")
    edit(book, "alpha", "return 1", "return 12")
    before = contents(book)
    with pytest.raises(tangle.TangleError, match="the module and its cell alpha-0 were both edited"):
        back.back(book)
    assert contents(book) == before


def test_without_git_the_module_wins(book, monkeypatch):
    monkeypatch.setenv("PATH", "")
    edit(book, "alpha", "return 1", "return 2")
    assert back.back(book) == ["book/01-first.ipynb: alpha-0"]
    tangle.check(book)
