"""The form of the chapters: what nbval does not see and a reader would."""

from __future__ import annotations

import re
from pathlib import Path

import execute
import nbformat
import pytest
import repository
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "book").glob("*.ipynb"))
CHAPTERS = [path for path in NOTEBOOKS if path.name[0].isdigit()]
MIN_EXERCISES = 3

KNOWN_TAGS = {
    "hide-cell", "hide-input", "hide-output", "remove-cell", "remove-input", "remove-output",
    "nbval-skip", "nbval-ignore-output", "raises-exception", "predict",
}  # fmt: skip
# What differs on the next run or on another machine: addresses, times of day, places on a disk.
UNSTABLE = re.compile(
    r"0x[0-9a-f]{6,}|\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b\d\d:\d\d:\d\d\b"
    r"|(?<!\w)/(home|root|tmp|Users|usr|var)/|site-packages"
)


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def notebook(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


@pytest.fixture(scope="module", params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request: pytest.FixtureRequest) -> NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> set[str]:
    return set(cell.metadata.get("tags", []))


def texts(output: NotebookNode) -> str:
    """Return what an output shows as text; a picture shows none, and a traceback is not compared."""
    if output.output_type == "stream":
        return output.text
    return "\n".join(text for kind, text in output.get("data", {}).items() if kind.startswith("text/"))


def pictures(cell: NotebookNode) -> list[str]:
    return [kind for output in cell.outputs for kind in output.get("data", {}) if kind.startswith("image/")]


def headings(notebook: NotebookNode) -> list[str]:
    sources = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return re.findall(r"^#+ .*$", re.sub(r"^```.*?^```", "", sources, flags=re.M | re.S), flags=re.M)


def test_a_chapter_says_in_four_items_what_it_gives_and_what_it_asks_for(chapter):
    (strip,) = [cell.source for cell in chapter.cells if cell.id == "promises"]
    assert strip.count("> **You will have**") == strip.count("> **You need** ") == 1
    items = re.findall(r"^> - (.*)$", strip, re.M)
    shown = [re.sub(r"\]\([^)]*\)", "]", item) for item in items]
    assert 2 <= len(shown) <= 4 and max(map(len, shown)) <= 90


def test_file_is_what_execute_writes(path, notebook):
    """Format 4.5, sorted keys, one form of everything: so that a run changes only what has changed."""
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert path.read_text(encoding="utf8") == execute.dumps(notebook), f"make run CHAPTER={path.name[:2]}"


def test_metadata_names_the_kernel_and_no_machine(notebook):
    assert notebook.metadata.kernelspec == {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    assert notebook.metadata.language_info == {"name": "python"}
    assert set(notebook.metadata) - {"accelerator", "colab"} == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} <= execute.KEPT


def test_the_chapters_that_gain_minutes_ask_colab_for_a_gpu(path, notebook):
    asked = {key: notebook.metadata[key] for key in ("accelerator", "colab") if key in notebook.metadata}
    gains = path.stem in ("09-toy-task", "13-translation")
    assert asked == ({"accelerator": "GPU", "colab": {"gpuType": "T4"}} if gains else {})


def test_every_cell_was_run_once_from_top_to_bottom(notebook):
    run = [cell for cell in code_cells(notebook) if "nbval-skip" not in tags(cell)]
    assert [cell.execution_count for cell in run] == list(range(1, len(run) + 1))
    for cell in code_cells(notebook):
        assert cell.source.strip(), f"{cell.id} is empty"
        if "nbval-skip" in tags(cell):
            assert cell.execution_count is None and not cell.outputs, (
                f"{cell.id} is skipped but has an output"
            )


def test_visible_lines_of_code_are_at_most_88_characters(path, notebook):
    folded = {"hide-input", "hide-cell", "remove-input", "remove-cell", "predict"}
    shown = [cell for cell in code_cells(notebook) if not folded & tags(cell)]
    wide = [(cell.id, line) for cell in shown for line in cell.source.split("\n") if len(line) > 88]
    assert wide == []


def test_ids_are_unique_and_readable(notebook):
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert [name for name in ids if execute.is_fresh(name)] == []


def test_tags_are_known(notebook):
    unknown = {
        tag for cell in notebook.cells for tag in tags(cell) if not tag.startswith("export:")
    } - KNOWN_TAGS
    assert unknown == set()


def test_first_code_cell_fetches_the_package_in_colab(notebook):
    first = code_cells(notebook)[0]
    said = (first.id, first.source, tags(first))
    assert said == (repository.FIRST_ID, repository.first_cell(), set(repository.FIRST_TAGS)), (
        "python book/repository.py --cells"
    )


def test_errors_and_warnings_are_meant(notebook):
    for cell in code_cells(notebook):
        failed = any(output.output_type == "error" for output in cell.outputs)
        assert failed == ("raises-exception" in tags(cell)), cell.id
        if "nbval-ignore-output" not in tags(cell):
            assert not any(output.get("name") == "stderr" for output in cell.outputs), cell.id


def test_outputs_are_the_same_on_the_next_run(notebook):
    found = {
        cell.id: match[0]
        for cell in code_cells(notebook)
        for output in cell.outputs
        if (match := UNSTABLE.search(texts(output)))
    }
    assert found == {}


def test_pictures_say_what_they_show(notebook):
    silent = [
        cell.id
        for cell in code_cells(notebook)
        if pictures(cell) and len(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")) < 20
    ]
    assert silent == []


def test_plots_have_a_form_for_narrow_screens(notebook, path):
    """Of the width that a phone shows whole; what it weighs is little beside the plot."""
    assert execute.plots_without_narrow_form(notebook) == [], f"make run CHAPTER={path.name[:2]}"
    for cell in code_cells(notebook):
        for plot in execute.plots(cell):
            narrow = execute.narrow_form(plot)["narrow"]
            width = float(re.match(r'<svg [^>]*\bwidth="([\d.]+)pt"', narrow)[1])
            assert width == pytest.approx(340 * 3 / 4) and "\n" not in narrow, cell.id
            assert len(narrow) < max(60_000, len(plot.data["image/svg+xml"])), cell.id


def test_chapter_has_its_parts(chapter):
    assert re.match(r"# \S", chapter.cells[0].source)
    titles = headings(chapter)
    assert sum(title.startswith("# ") for title in titles) == 1
    assert any(title == "## What you can do now" for title in titles)
    assert titles[-1] == "## Further reading"


def test_every_exercise_has_a_folded_solution_that_runs(chapter):
    numbers, solved = [], set()
    for cell in chapter.cells:
        if cell.cell_type == "markdown":
            numbers += map(int, re.findall(r"^### Exercise (\d+) — \S", cell.source, flags=re.M))
        elif numbers and "hide-cell" in tags(cell):
            solved.add(numbers[-1])
    assert len(numbers) >= MIN_EXERCISES
    assert numbers == list(range(1, len(numbers) + 1))
    assert solved == set(numbers)
