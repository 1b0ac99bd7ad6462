"""Edit a chapter as one text, in the editor of your choice: prose as comments, code as code.

    python book/edit.py 03           # open the text in $VISUAL or $EDITOR, and carry it back when that ends
    python book/edit.py --back 03    # carry back a text that was edited elsewhere
    python book/edit.py --show FILE  # print a notebook's text, for git to compare

The text is `_build/edit/03-attention.py`, in the form that jupytext calls py:percent and that most editors
know. Each cell begins with a line that holds its id and its tags. By the id its outputs find it again. A cell
without an id is new and gets a readable one. Once carried back, the chapter is tangled.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import execute
import jupytext
import nbformat
import tangle
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / "_build" / "edit"
FORM = {"extension": ".py", "format_name": "percent"}
OF = "# The text of "  # and the name of the notebook, and the fingerprint of what it then held


def written(notebook: NotebookNode) -> str:
    """A notebook as text; each cell's id is part of the line that begins it."""
    cells = []
    for cell in notebook.cells:
        metadata = {key: cell.metadata[key] for key in ("tags", "mystnb", "predict") if key in cell.metadata}
        new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
        cells.append(new(cell.source, id=cell.id, metadata={"id": cell.id, **metadata}))
    plain = nbformat.v4.new_notebook(cells=cells, metadata={"jupytext": {"cell_metadata_filter": "all"}})
    text: str = jupytext.writes(plain, fmt=FORM)
    return text[text.index("# %%") :]


def read(text: str, before: NotebookNode) -> NotebookNode:
    """The notebook that a text stands for; outputs, counts and the rest are those of `before`."""
    known = {cell.id: cell for cell in before.cells}
    cells = []
    for cell in jupytext.reads(text, fmt=FORM).cells:
        metadata = dict(cell.metadata)
        old = known.get(metadata.pop("id", None))
        new = NotebookNode(cell_type=cell.cell_type, source=cell.source, metadata=NotebookNode(metadata))
        if old is not None and old.cell_type == cell.cell_type:
            new = NotebookNode({**old, **new})
        elif cell.cell_type == "code":
            new |= {"outputs": [], "execution_count": None}
        cells.append(new if old is None else NotebookNode({**new, "id": old.id}))
    found = NotebookNode({**before, "cells": cells})
    execute.name_cells(found)
    return found


def fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def write_text(path: Path, folder: Path = TEXTS) -> Path:
    """Write the text of the notebook at `path`; one that was edited and not carried back stays as it is."""
    target = folder / f"{path.stem}.py"
    first = f"{OF}{path.name} {fingerprint(path)}\n"
    text = written(nbformat.read(path, as_version=4))
    if target.exists() and target.read_text(encoding="utf8") != first + text:
        raise ValueError(
            f"{target} was edited and not carried back: "
            f"python book/edit.py --back {path.name[:2].rstrip('-')}, or delete it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(first + text, encoding="utf8", newline="\n")
    return target


def carry_back(path: Path, folder: Path = TEXTS) -> None:
    """Make the notebook at `path` what its text says, and delete the text.

    Raises:
        ValueError: There is no text, or the notebook was changed since it was written.
    """
    source = folder / f"{path.stem}.py"
    if not source.exists():
        raise ValueError(f"there is no {source}: python book/edit.py writes it")
    first, _, text = source.read_text(encoding="utf8").partition("\n")
    if first != f"{OF}{path.name} {fingerprint(path)}":
        raise ValueError(f"{path.name} was changed after {source} was written: join the two by hand")
    execute.write(path, read(text, nbformat.read(path, as_version=4)))
    source.unlink()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("chapter", help="a number such as 03, or a letter such as B; with --show, a file")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--back", action="store_true", help="carry back a text that was edited elsewhere")
    what.add_argument("--show", action="store_true", help="print the text and change nothing")
    options = parser.parse_args(arguments)
    try:
        if options.show:
            print(written(nbformat.read(options.chapter, as_version=4)), end="")
            return 0
        (path,) = execute.find_notebooks([options.chapter])
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not options.back:
            text = write_text(path)
            if not editor:
                print(f"{text}\nEdit it, then: python book/edit.py --back {options.chapter}")
                return 0
            subprocess.run([*shlex.split(editor), str(text)], check=True)
        carry_back(path)
        print("\n".join(tangle.tangle(ROOT) or ["the package is what the book says"]))
        print(f"To renew the outputs: make run CHAPTER={options.chapter}")
    except (ValueError, OSError, subprocess.CalledProcessError, tangle.TangleError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
