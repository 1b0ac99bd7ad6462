"""Write the workbook: each chapter once more, with pieces of its code for the reader to write.

    python book/workbook.py             # workbook/NN-name.ipynb
    python book/workbook.py --zip       # the same, and _build/workbook.zip for a release

Which pieces, with hints and probes, says `transformer/records/workbook.toml`; their code is the chapter's
own. In its cell, the body of a piece gives way to `raise NotImplementedError`. Above stand its hints, below
the examiner (`transformer.study.workbook`) and the solution; hints and solution are folded. A notebook in
which somebody has written is never replaced.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Collection, Iterator
from copy import deepcopy
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import nbformat
import repository
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the package of this book, not another that is installed
from transformer.study.workbook import Piece, pieces  # noqa: E402

FOLDER, ARCHIVE = ROOT / "workbook", ROOT / "_build" / "workbook.zip"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # so that equal workbooks are equal archives
SITE = repository.project()["urls"]["Homepage"]
HOW_TO = """\
> **Workbook.** This is [the chapter]({page}), with {count} of its pieces for you to write: {names}.
>
> In the cell of a piece, replace `raise NotImplementedError` with your own code; helpers belong in the \
same cell. The cell below it examines what you wrote by value, and says what is likely to be wrong. The \
chapter goes on with your piece if it is right, and with the book's if it is not. Hints and the book's \
solution are folded. Keep all notebooks of the workbook in one folder: the models of 3 to 6, and the one \
that 9 trains, are made of your pieces."""
BEGIN = """\
import math  # this, and what of torch stands here, every piece may use

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.study.workbook import Workbook

workbook = Workbook("{chapter}", folder=".")  # the folder of your other notebooks
use = workbook.use"""
LENT = "the next cell asks more than their texts do, so it runs on the book's"
FOLD = "<details><summary>{title}</summary>\n\n{text}\n\n</details>"


def functions(node: ast.stmt) -> list[ast.FunctionDef]:
    """The function that a statement defines, or the methods of the class."""
    body = node.body if isinstance(node, ast.ClassDef) else [node]
    return [part for part in body if isinstance(part, ast.FunctionDef)]


def span(node: ast.stmt) -> tuple[int, int]:
    """The lines of a definition, decorators included, as a slice has them."""
    first = min([node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))])
    return first - 1, node.end_lineno


def blanked(code: str, names: Collection[str], kept: Collection[str] = ()) -> str:
    """Code without the bodies of what bears one of the names; signatures and docstrings stay.

    Methods whose names begin with one underscore are the book's own way to its goal, and go as a whole.
    Methods that are `kept` stay.
    """
    lines = code.splitlines()
    chosen = [node for node in ast.parse(code).body if getattr(node, "name", None) in names]
    for function in reversed([function for node in chosen for function in functions(node)]):
        start, end = span(function)
        if function.name in kept:
            continue
        if re.match("_[^_]", function.name) and function.name not in names:
            while not lines[start - 1].strip():
                start -= 1
            lines[start:end] = []
            continue
        says = ast.get_docstring(function) is not None
        start = function.body[0].end_lineno if says else function.body[0].lineno - 1
        indent = " " * (function.col_offset + 4)
        lines[start:end] = [f"{indent}raise NotImplementedError"]
    return "\n".join(lines)


def parted(code: str, names: Collection[str]) -> tuple[str, str]:
    """The code of a cell up to the last of some definitions, and what comes after them."""
    ends = [node.end_lineno or 0 for node in ast.parse(code).body if getattr(node, "name", None) in names]
    lines = code.splitlines()
    return "\n".join(lines[: max(ends)]), "\n".join(lines[max(ends) :]).strip()


def solution(code: str, name: str) -> str:
    """The definition of a name, as the book has it."""
    (node,) = (node for node in ast.parse(code).body if getattr(node, "name", None) == name)
    start, end = span(node)
    return "\n".join(code.splitlines()[start:end])


def exercise(cell: NotebookNode, own: list[Piece]) -> Iterator[NotebookNode]:
    """A cell as an exercise: what is to be written, hints, the blank, the examiner, the solution."""
    names = [piece.name for piece in own]
    code, rest = parted(cell.source, names)
    for piece in own:
        hints = [FOLD.format(title=f"Hint {n}", text=hint) for n, hint in enumerate(piece.hints, start=1)]
        task = f"**Yours to write: `{piece.name}`.** {piece.task}".strip()
        yield new_markdown_cell("\n\n".join([task, *hints]), id=f"{cell.id}-{names.index(piece.name)}")
    kept = [method for piece in own for method in piece.provided_methods]
    blank = new_code_cell(blanked(code, names, kept), id=cell.id)
    blank.metadata["workbook"] = [piece.key for piece in own]
    yield blank
    yield new_code_cell("\n".join(f"{name} = use({name})" for name in names), id=f"{cell.id}-use")
    for piece in own:
        text = f"```python\n{solution(cell.source, piece.name)}\n```"
        fold = FOLD.format(title=f"The book's <code>{piece.name}</code>", text=text)
        yield new_markdown_cell(fold, id=f"{cell.id}-solution-{names.index(piece.name)}")
    if rest:
        cell = deepcopy(cell)
        cell.id, cell.source = f"{cell.id}-rest", rest
        yield cell


def between(cell: NotebookNode, lent: list[str]) -> list[NotebookNode]:
    """A cell that asks more of some pieces than they promise, between those that let it run on the book's."""
    names = ", ".join(f'"{name}"' for name in lent)
    return [
        new_code_cell(f"workbook.lend({names})  # {LENT}", id=f"workbook-lend-{cell.id}"),
        cell,
        new_code_cell("workbook.give_back()", id=f"workbook-back-{cell.id}"),
    ]


def plain(cell: NotebookNode, chapters: Collection[str]) -> NotebookNode:
    """A cell without what only the book needs: outputs, tags for tangling, links to what stays behind."""
    cell = deepcopy(cell)
    if cell.cell_type == "code":
        cell.outputs, cell.execution_count = [], None
        kept = [tag for tag in cell.metadata.get("tags", []) if not re.match("export|api", tag)]
        cell.metadata.pop("tags", None)
        cell.metadata |= {"tags": kept} if kept else {}
        return cell
    away = lambda found: found[0] if found[1] in chapters else f"]({SITE}book/{found[1]}.html"
    cell.source = re.sub(r"\]\(([\w-]+)\.(?:ipynb|md)\b", away, cell.source)
    return cell


def workbook(notebook: NotebookNode, chapter: str) -> NotebookNode:
    """The notebook of the workbook that a chapter becomes."""
    own = [piece for piece in pieces().values() if piece.chapter == chapter]
    chapters = {piece.chapter for piece in pieces().values()}
    made = nbformat.v4.new_notebook(metadata=notebook.metadata)
    for cell in (plain(cell, chapters) for cell in notebook.cells):
        here = [piece for piece in own if piece.cell == cell.id]
        lent = [piece.name for piece in own if cell.id in piece.beyond]
        made.cells += exercise(cell, here) if here else between(cell, lent) if lent else [cell]
        if cell.id == "title":
            names = ", ".join(f"`{piece.name}`" for piece in own)
            text = HOW_TO.format(page=f"{SITE}book/{chapter}.html", count=len(own), names=names)
            made.cells.append(new_markdown_cell(text, id="workbook"))
        if cell.id == "colab":
            made.cells.append(new_code_cell(BEGIN.format(chapter=chapter), id="workbook-begin"))
    return made


def books() -> dict[str, str]:
    """The text of each notebook of the workbook, by its file's name."""
    chapters = dict.fromkeys(piece.chapter for piece in pieces().values())
    sources = {chapter: ROOT / "book" / f"{chapter}.ipynb" for chapter in chapters}
    notebooks = {chapter: nbformat.read(path, as_version=4) for chapter, path in sources.items()}
    return {
        f"{chapter}.ipynb": nbformat.writes(workbook(notebook, chapter)) + "\n"
        for chapter, notebook in notebooks.items()
    }


def write(folder: Path) -> None:
    """Write the workbook, but no notebook that is there and holds something else."""
    folder.mkdir(exist_ok=True)
    for name, text in books().items():
        path = folder / name
        if path.exists() and path.read_text(encoding="utf8") != text:
            print(f"{path} is left as it is, since somebody has written in it: to begin anew, take it away")
        else:
            path.write_text(text, encoding="utf8")


def pack(archive: Path) -> None:
    """Put the workbook, as yet unwritten, into an archive."""
    archive.parent.mkdir(exist_ok=True)
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for name, text in books().items():
            file.writestr(ZipInfo(f"workbook/{name}", LONG_AGO), text, ZIP_DEFLATED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--zip", action="store_true", help=f"write {ARCHIVE.relative_to(ROOT)} as well")
    options = parser.parse_args()
    write(FOLDER)
    if options.zip:
        pack(ARCHIVE)
