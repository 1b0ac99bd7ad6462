"""Run chapters in place, for the record: the outputs that readers see are the outputs of this program.

    python book/execute.py                     # every notebook, in reading order
    python book/execute.py 03 07               # chapters by number
    python book/execute.py book/03-attention.ipynb
    python book/execute.py --tidy 03           # run nothing, only write the file in its one form

A notebook is written back only when the whole of it has run, and so that a second run changes as few lines as
possible: no timings, no kernel version, sorted keys, stable ids. A cell tagged `nbval-skip` is not run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path

import narrow
import nbformat
import predictions
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
SKIP_TAG = "nbval-skip"
# Figures as drawings: sharp at any size, and the same from one run to the next.
FIGURES = (
    "--InlineBackend.figure_formats=svg",
    "--InlineBackend.print_figure_kwargs={'bbox_inches': 'tight', 'metadata': {'Date': None}}",
    "--InlineBackend.rc={'svg.hashsalt': 'book', 'image.interpolation': 'none'}",
    "--IPKernelApp.extra_extensions=['narrow']",  # narrow.py, which draws each once more for a phone
)


def find_notebooks(wanted: list[str], book: Path = BOOK) -> list[Path]:
    """Return the notebooks meant by `wanted` (paths, numbers such as 03), or all."""
    every = sorted(book.glob("*.ipynb"))  # chapters first
    if not wanted:
        return every
    found = []
    for name in wanted:
        if name.isdigit():
            matches = [path for path in every if path.name.startswith(f"{int(name):02d}-")]
        else:
            matches = [Path(name).resolve()] if Path(name).is_file() else []
        if not matches:
            raise FileNotFoundError(
                f"no notebook for {name!r}; there are: {', '.join(path.name for path in every)}"
            )
        found += matches
    return found


def join_streams(outputs: list) -> list:
    """Merge what a cell printed piece by piece, and leave out a progress bar: a page cannot show motion."""
    is_bar = any(
        output.output_type == "stream" and output.name == "stderr" and "\r" in output.text
        for output in outputs
    )
    joined: list = []
    for output in outputs:
        if is_bar and output.output_type == "stream" and output.name == "stderr":
            continue
        last = joined[-1] if joined else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def tidy(notebook: NotebookNode) -> None:
    """Remove from an executed notebook what would differ on the next run or on another machine."""
    normalize(notebook)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = join_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "error":
                output.traceback = [line.replace(f"{ROOT}{os.sep}", "") for line in output.traceback]


READABLE_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
RANDOM_ID = re.compile(r"[0-9a-f]{8,}|[0-9a-f]{8}-[0-9a-f]{4}-.*")  # what Jupyter and VS Code give a new cell
KEPT = {"tags", "mystnb", "predict", "jupyter", "cellView"}  # of a cell's metadata; the rest is an editor's


def name_cells(notebook: NotebookNode) -> None:
    """Give cells that have no id, or a random one, a readable one made of how they begin."""
    taken = {cell.id for cell in notebook.cells if not is_fresh(cell.get("id", ""))}
    for cell in notebook.cells:
        if is_fresh(cell.get("id", "")):
            words = re.findall(r"\b(?!def|class|import|from)[a-z][a-z0-9]*", cell.source.lower())
            name = "-".join(words[:3]) or "empty"
            numbers = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
            cell["id"] = next(free for free in numbers if free not in taken)
            taken.add(cell["id"])


def is_fresh(name: str) -> bool:
    """Whether an id was made up by an editor, or is none at all."""
    return not READABLE_ID.fullmatch(name) or bool(RANDOM_ID.fullmatch(name))


def normalize(notebook: NotebookNode) -> None:
    """Bring what an editor has saved into the form of the book: names, counts and what else is not text."""
    name_cells(notebook)
    predictions.ask(notebook, nbformat.v4.new_code_cell)
    notebook.metadata["language_info"] = {"name": "python"}
    ask_for_gpu(notebook.metadata)
    counts = itertools.count(1)  # of cells that were run; one that was not keeps its None, and a test sees it
    for cell in notebook.cells:
        for key in cell.metadata.keys() - KEPT:
            del cell.metadata[key]
        if cell.cell_type == "code":
            run = cell.execution_count is not None and SKIP_TAG not in cell.metadata.get("tags", [])
            cell.execution_count = next(counts) if run else None
            for output in cell.outputs:
                if "execution_count" in output:
                    output.execution_count = cell.execution_count


def ask_for_gpu(metadata: dict) -> None:
    """A notebook that asks Colab for a GPU asks for the free one; what else Colab has noted goes."""
    asks = metadata.pop("accelerator", None) == "GPU"
    metadata.pop("colab", None)
    if asks:
        metadata.update({"accelerator": "GPU", "colab": {"gpuType": "T4"}})


def fold(metadata: dict) -> None:
    """Fold in Jupyter and in Colab what the page folds; a question is a form in Colab."""
    tags = set(metadata.get("tags", []))
    folded = bool({"hide-cell", "hide-input"} & tags)
    form = folded or predictions.TAG in tags
    for name, value, holds in (("jupyter", {"source_hidden": True}, folded), ("cellView", "form", form)):
        metadata.pop(name, None)
        if holds:
            metadata[name] = value


def dumps(notebook: NotebookNode) -> str:
    """Return the one text that stands for `notebook` on disk."""
    nbformat.validate(notebook)
    # nbformat splits long strings into lists of lines, which is what makes a diff readable.
    lines = json.loads(nbformat.writes(notebook, version=4))
    for cell in lines["cells"]:
        fold(cell["metadata"])
        for output in cell.get("outputs", []):
            for kind, lines_of in output.get("data", {}).items():
                if kind.startswith("image/"):  # a drawing is one line, so that a change of it reads as one
                    output["data"][kind] = "".join(lines_of)
    return json.dumps(lines, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write(path: Path, notebook: NotebookNode) -> None:
    """Put `notebook` in the place of the file at `path`, in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of a run that was cut off, or a link
    temporary.write_text(dumps(notebook), encoding="utf8", newline="\n")
    os.replace(temporary, path)


def run(notebook: NotebookNode, path: Path, timeout: int) -> None:
    """Run the cells of `notebook` in a fresh kernel, in the folder of the file at `path`."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        record_timing=False,
        skip_cells_with_tag=SKIP_TAG,
        extra_arguments=["--log-level=ERROR", *FIGURES],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()


def execute(path: Path, timeout: int) -> None:
    """Run the notebook at `path` in its own folder and write it back whole, or not at all."""
    before = path.read_bytes()
    notebook = nbformat.reads(before.decode("utf8"), as_version=4)
    run(notebook, path, timeout)
    tidy(notebook)
    if faults := plots_without_narrow_form(notebook):
        raise RuntimeError("\n".join(faults))
    if path.read_bytes() != before:
        raise RuntimeError(
            f"{path.name} was edited while it ran; its new text is kept and the outputs are not written"
        )
    write(path, notebook)


# Plots for narrow screens ----------------------------------------------------------------------------


def plots(cell: NotebookNode) -> list[NotebookNode]:
    """The outputs of a cell that are plots."""
    return [output for output in cell.get("outputs", []) if narrow.KIND in output.get("data", {})]


def narrow_form(plot: NotebookNode) -> dict:
    """What the kernel noted of a plot beside it: its narrow form, or why there is none."""
    return plot.metadata.get(narrow.KIND, {})


def plots_without_narrow_form(notebook: NotebookNode) -> list[str]:
    """Name the cells whose plots a phone could not show."""
    return [
        f"{cell.id}: a plot has no narrow form{': ' * ('error' in form)}{form.get('error', '')}"
        for cell in notebook.cells
        for form in map(narrow_form, plots(cell))
        if not form.get("narrow")
    ]


def kernel_environment() -> None:
    """Give kernels what the tests give them: this package, one thread, no start-up noise; and narrow.py."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH"), str(BOOK)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("PYTHONHASHSEED", "0")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", help="paths or chapter numbers; all if none is given")
    parser.add_argument("--tidy", action="store_true", help="run nothing, write the file in its one form")
    parser.add_argument("--timeout", type=int, default=1800, help="seconds that one cell may take (1800)")
    options = parser.parse_args(arguments)
    try:
        notebooks = find_notebooks(options.notebooks)
    except FileNotFoundError as error:
        parser.error(str(error))
    if options.tidy:
        for path in notebooks:
            notebook = nbformat.read(path, as_version=4)
            normalize(notebook)
            write(path, notebook)
        return 0
    kernel_environment()
    failed = 0
    for path in notebooks:
        started = time.perf_counter()
        try:
            execute(path, options.timeout)
        except (CellExecutionError, CellTimeoutError, DeadKernelError, RuntimeError, ValueError) as error:
            failed += 1
            print(f"{path.name}: not written\n{error}", file=sys.stderr)
        else:
            print(f"{path.name}: {time.perf_counter() - started:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
