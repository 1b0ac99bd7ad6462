"""book/execute.py: what it runs, what it writes, and what it refuses to write."""

from __future__ import annotations

import json
import re
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
    with pytest.raises(
        FileNotFoundError, match="no notebook for '02'; there are: 01-first.ipynb, 03-third.ipynb"
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


@pytest.mark.parametrize("asks", [{}, {"accelerator": "GPU"}])
def test_of_what_colab_notes_only_the_wish_for_a_gpu_stays(tmp_path, asks):
    path = save(tmp_path / "01-first.ipynb", "x = 1")
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata |= asks | {"colab": {"provenance": [], "gpuType": "A100", "toc_visible": True}}
    execute.write(path, notebook)
    assert execute.main(["--tidy", str(path)]) == 0
    kept = nbformat.read(path, as_version=4).metadata
    assert set(kept) == {"kernelspec", "language_info", *(("accelerator", "colab") if asks else ())}
    assert kept.get("colab", {}) == ({"gpuType": "T4"} if asks else {})


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


DRAWS = "import matplotlib.pyplot as plt\nfigure, axes = plt.subplots(1, 2, figsize=(7, 3))\n"
DRAWS += "for ax in axes:\n    ax.plot([0, 1], label='rising')\n    ax.legend()\nplt.show()"


@pytest.mark.slow
def test_a_plot_is_drawn_a_second_time_for_phones(tmp_path):
    """Below each other and 340 pixels wide, in what other programs that read notebooks pass over."""
    path = save(tmp_path / "01-first.ipynb", DRAWS)
    assert execute.main([str(path)]) == 0
    (plot,) = nbformat.read(path, as_version=4).cells[1].outputs
    assert plot.data["text/plain"] == "<Figure size 700x300 with 2 Axes>"
    narrow = execute.narrow_form(plot)["narrow"]
    _, _, width, height = map(float, re.search(r'viewBox="([^"]+)"', narrow)[1].split())
    assert width == 255 and height > width
    assert narrow.count("<!-- rising -->") == 2


@pytest.mark.slow
def test_a_plot_without_a_narrow_form_is_an_error_that_names_the_cell(tmp_path, capsys):
    breaks = "import narrow\n\ndef draw(figure):\n    raise ValueError('no room')\n\nnarrow.draw = draw\n"
    path = save(tmp_path / "01-first.ipynb", breaks + DRAWS)
    assert execute.main([str(path)]) == 1
    assert "cell-0: a plot has no narrow form: ValueError: no room" in capsys.readouterr().err


@pytest.mark.parametrize("tag", ["hide-cell", "hide-input", "hide-output", "api"])
def test_cells_that_the_page_folds_are_folded_in_jupyter_and_colab(tag):
    cell = nbformat.v4.new_code_cell("1 + 1", metadata={"tags": [tag], "cellView": "form"})
    (found,) = json.loads(execute.dumps(nbformat.v4.new_notebook(cells=[cell])))["cells"]
    folds = {"cellView": "form", "jupyter": {"source_hidden": True}}
    assert found["metadata"] == {"tags": [tag]} | (folds if tag in ("hide-cell", "hide-input") else {})
