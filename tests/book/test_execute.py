"""book/execute.py: what it runs, what it writes, and what it refuses to write."""

from __future__ import annotations

import json
from pathlib import Path

import execute
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def save(path: Path, *sources: str, tags: dict[int, list[str]] | None = None) -> Path:
    """Write a chapter of code cells to `path`, as an editor would: keys in another order, other indents."""
    cells = [new_markdown_cell("# A chapter", id="title")]
    for number, source in enumerate(sources):
        metadata = {"tags": tags[number]} if tags and number in tags else {}
        cells.append(new_code_cell(source, id=f"cell-{number}", metadata=metadata))
    notebook = new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    path.write_text(json.dumps(notebook, indent=3), encoding="utf8")
    return path


def test_numbers_and_paths_name_notebooks(tmp_path):
    first, third = save(tmp_path / "01-first.ipynb"), save(tmp_path / "03-third.ipynb")
    assert execute.find_notebooks([], tmp_path) == [first, third]
    assert execute.find_notebooks(["3"], tmp_path) == execute.find_notebooks(["03"], tmp_path) == [third]
    assert execute.find_notebooks([str(first)], tmp_path) == [first]
    appendix = save(tmp_path / "A-last.ipynb")
    assert execute.find_notebooks([], tmp_path) == [first, third, appendix]
    assert execute.find_notebooks(["A"], tmp_path) == [appendix]
    with pytest.raises(
        FileNotFoundError,
        match="no notebook for '02'; there are: 01-first.ipynb, 03-third.ipynb, A-last.ipynb",
    ):
        execute.find_notebooks(["02"], tmp_path)


@pytest.mark.slow
def test_a_run_writes_what_the_next_run_writes_again(tmp_path):
    path = save(
        tmp_path / "01-first.ipynb",
        "raise SystemExit",
        "print('é')\nprint('two')",
        "import sys\nfor i in range(3):\n    print(f'\\r{i}', end='', file=sys.stderr)",
        "1 / 0",
        "40 + 2",
        tags={0: ["nbval-skip"], 3: ["raises-exception"]},
    )
    assert execute.main([str(path)]) == 0
    text = path.read_text(encoding="utf8")
    notebook = nbformat.read(path, as_version=4)
    skipped, printed, bar, error, value = notebook.cells[1:]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [None, 1, 2, 3, 4]
    assert skipped.outputs == bar.outputs == []
    assert [output.text for output in printed.outputs] == ["é\ntwo\n"]
    assert error.outputs[0].ename == "ZeroDivisionError"
    assert value.outputs[0].data == {"text/plain": "42"}
    assert "é" in text and "execution" not in {key for cell in notebook.cells for key in cell.metadata}
    assert execute.main([str(path)]) == 0
    assert path.read_text(encoding="utf8") == text == execute.dumps(notebook)


@pytest.mark.slow
def test_a_notebook_that_fails_is_left_as_it_was(tmp_path, capsys):
    path = save(tmp_path / "01-first.ipynb", "x = 1", "assert x == 2")
    before = path.read_bytes()
    assert execute.main([str(path)]) == 1
    assert path.read_bytes() == before
    assert "01-first.ipynb: not written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_an_edit_made_during_the_run_is_kept(tmp_path, capsys):
    path = tmp_path / "01-first.ipynb"
    save(path, f"with open({str(path)!r}, 'a') as file:\n    _ = file.write(' ')")
    assert execute.main([str(path)]) == 1
    assert path.read_text(encoding="utf8").endswith(" ")
    assert "was edited while it ran" in capsys.readouterr().err


def test_tidy_runs_nothing(tmp_path):
    path = save(tmp_path / "01-first.ipynb", "raise SystemExit")
    assert execute.main(["--tidy", str(path)]) == 0
    assert path.read_text(encoding="utf8") == execute.dumps(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("tag", ["hide-cell", "hide-input", "hide-output", "api"])
def test_cells_that_the_page_folds_are_folded_in_jupyter_and_colab(tag):
    cell = nbformat.v4.new_code_cell("1 + 1", metadata={"tags": [tag], "cellView": "form"})
    (found,) = json.loads(execute.dumps(nbformat.v4.new_notebook(cells=[cell])))["cells"]
    folds = {"cellView": "form", "jupyter": {"source_hidden": True}}
    assert found["metadata"] == {"tags": [tag]} | (folds if tag in ("hide-cell", "hide-input") else {})
