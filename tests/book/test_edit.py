"""book/edit.py and `execute.py --tidy`: a chapter as one text, and what an editor leaves behind."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import edit
import execute
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "book").glob("*.ipynb"))


@pytest.fixture
def chapter(tmp_path) -> Path:
    """A chapter of three cells, in the form of the book; the code cells have been run."""
    printed = [new_output("stream", name="stdout", text="2\n")]
    cells = [
        new_markdown_cell("# A chapter\n\nProse.", id="title"),
        new_code_cell("x = 1", id="x-code", metadata={"tags": ["export:alpha"]}, execution_count=1),
        new_code_cell("print(x + 1)", id="x-check", outputs=printed, execution_count=2),
    ]
    path = tmp_path / "01-first.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    execute.normalize(notebook)
    execute.write(path, notebook)
    return path


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_comes_back_from_its_text_as_it_was(path):
    notebook = nbformat.read(path, as_version=4)
    text = edit.written(notebook)
    assert execute.dumps(edit.read(text, notebook)) == path.read_text(encoding="utf8")


def test_one_changed_line_of_the_text_is_one_changed_line_of_the_notebook(chapter, tmp_path):
    text = edit.write_text(chapter, tmp_path)
    before = chapter.read_text(encoding="utf8").splitlines()
    text.write_text(text.read_text(encoding="utf8").replace("x = 1", "x = 10"), encoding="utf8")
    edit.carry_back(chapter, tmp_path)
    after = chapter.read_text(encoding="utf8").splitlines()
    assert [(old.strip(), new.strip()) for old, new in zip(before, after, strict=True) if old != new] == [
        ('"x = 1"', '"x = 10"')
    ]
    assert not text.exists()


def test_cells_may_be_moved_added_and_removed(chapter, tmp_path):
    text = edit.write_text(chapter, tmp_path)
    first, cells = text.read_text(encoding="utf8").split("\n", 1)
    title, code, check = re.split(r"\n(?=# %%)", cells)
    new = '# %% tags=["hide-input"]\ndef double(x):\n    return 2 * x\n'
    text.write_text("\n".join([first, title, check, new]), encoding="utf8")
    edit.carry_back(chapter, tmp_path)
    found = nbformat.read(chapter, as_version=4).cells
    assert [cell.id for cell in found] == ["title", "x-check", "double-x-return"]
    assert found[1].outputs[0].text == "2\n" and found[2].execution_count is None


def test_a_text_is_not_carried_over_a_newer_chapter(chapter, tmp_path):
    text = edit.write_text(chapter, tmp_path)
    assert edit.write_text(chapter, tmp_path) == text  # nothing was edited yet
    text.write_text(text.read_text(encoding="utf8") + "# more\n", encoding="utf8")
    with pytest.raises(ValueError, match="was edited and not carried back"):
        edit.write_text(chapter, tmp_path)
    chapter.write_text(chapter.read_text(encoding="utf8").replace("Prose.", "Other prose."), encoding="utf8")
    before = chapter.read_bytes()
    with pytest.raises(ValueError, match="was changed after"):
        edit.carry_back(chapter, tmp_path)
    assert chapter.read_bytes() == before and text.read_text(encoding="utf8").endswith("# more\n")
    with pytest.raises(ValueError, match="there is no .*02-second.py"):
        edit.carry_back(tmp_path / "02-second.ipynb", tmp_path)


@pytest.mark.parametrize("by_hand", [True, False])
def test_the_program_edits_and_tangles(chapter, tmp_path, monkeypatch, capsys, by_hand):
    editor = tmp_path / "editor.py"
    editor.write_text(
        "import pathlib, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "path.write_text(path.read_text(encoding='utf8').replace('x = 1', 'x = 3'), encoding='utf8')\n"
    )
    monkeypatch.setattr(edit, "TEXTS", tmp_path / "edit")
    monkeypatch.setattr(edit.write_text, "__defaults__", (tmp_path / "edit",))
    monkeypatch.setattr(edit.carry_back, "__defaults__", (tmp_path / "edit",))
    monkeypatch.setattr(execute.find_notebooks, "__defaults__", (tmp_path,))
    monkeypatch.setattr(edit.tangle, "tangle", lambda root: ["wrote it"])
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "" if by_hand else f"'{sys.executable}' '{editor}'")
    assert edit.main(["1"]) == 0
    if by_hand:
        assert "x = 1" in chapter.read_text(encoding="utf8")
        text = tmp_path / "edit" / "01-first.py"
        text.write_text(text.read_text(encoding="utf8").replace("x = 1", "x = 3"), encoding="utf8")
        assert edit.main(["--back", "1"]) == 0
    assert "x = 3" in chapter.read_text(encoding="utf8")
    assert "wrote it" in capsys.readouterr().out
    assert edit.main(["--back", "1"]) == 1 and "there is no" in capsys.readouterr().err


def test_what_an_editor_saves_is_brought_into_form(chapter):
    wanted = chapter.read_text(encoding="utf8")
    notebook = nbformat.read(chapter, as_version=4)
    notebook.metadata["language_info"] = {"name": "python", "version": "3.13.1"}
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 17, 19
    notebook.cells[1].metadata |= {"vscode": {"languageId": "python"}, "execution": {"iopub": 1}}
    chapter.write_text(json.dumps(notebook, indent=4), encoding="utf8")
    assert execute.main(["--tidy", str(chapter)]) == 0
    assert chapter.read_text(encoding="utf8") == wanted


@pytest.mark.parametrize("given", ["a1b2c3d4", "4f0c2c1e-77aa-4b1e-9d6a-0f8e1f6d2c3b", "Zx3kLm9Q_aBc"])
def test_a_random_id_becomes_a_readable_one(given):
    cells = [new_markdown_cell("Three words here, and more", id=name) for name in ("three-words-here", given)]
    notebook = new_notebook(cells=cells)
    execute.normalize(notebook)
    assert [cell.id for cell in notebook.cells] == ["three-words-here", "three-words-here-2"]


def test_a_cell_that_was_never_run_is_not_given_a_count(chapter):
    notebook = nbformat.read(chapter, as_version=4)
    notebook.cells[1].execution_count = None
    execute.normalize(notebook)
    assert [cell.get("execution_count") for cell in notebook.cells] == [None, None, 1]


def test_a_drawing_is_one_line(chapter):
    notebook = nbformat.read(chapter, as_version=4)
    data = {"image/svg+xml": "<svg>\n<path/>\n</svg>", "text/plain": "two\nlines"}
    notebook.cells[2].outputs = [new_output("display_data", data)]
    found = json.loads(execute.dumps(notebook))["cells"][2]["outputs"][0]["data"]
    assert found == {"image/svg+xml": "<svg>\n<path/>\n</svg>", "text/plain": ["two\n", "lines"]}


def test_git_may_ask_for_the_text_alone(chapter, capsys):
    before = chapter.read_bytes()
    assert edit.main(["--show", str(chapter)]) == 0
    assert capsys.readouterr().out == edit.written(nbformat.read(chapter, as_version=4))
    assert chapter.read_bytes() == before
