"""Carry what was edited in the package home into the chapters: the other direction of tangle.

    python book/tangle.py --back

Above each piece of a module stands the marker line that names its notebook and cell. What follows it up to
the next marker is the cell's source, so an edit made in the module, by hand or by an IDE's rename, has one
place where it belongs. What has no home is refused by name, and then nothing at all is written: a header or
a marker that was changed, a piece that was added or emptied, a cell that was edited since the last commit
as well, and a change after which the book would break one of tangle's rules. Outputs stay as they are.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import execute
import nbformat
import tangle


def split(text: str, module: tangle.Module, name: str) -> dict[str, str]:
    """The sources in a module's file, by the ids of the cells that they belong to.

    Raises:
        TangleError: Its header or its markers are not those of the book.
    """
    rendered = tangle.render_module(module, [])
    parts, own = (re.split(r"\n\n(?=# %% )", whole) for whole in (text, rendered))
    faults = []
    # The list of public names follows from the pieces, and tangle writes it anew.
    if without_all(parts[0]) != without_all(own[0]):
        faults.append(f"{name}: its header was edited; it is tangle's, and has no home in a chapter")
    found, expected = ([part.split("\n", 1)[0] for part in side[1:]] for side in (parts, own))
    if found != expected:
        pairs = zip([*found, "nothing"], [*expected, "nothing"])
        one, other = next((one, other) for one, other in pairs if one != other)
        faults.append(f"{name}: {other} should come where {one} stands; a new piece begins in its chapter")
    if faults:
        raise tangle.TangleError(faults)
    sources = {cell.id: part.partition("\n")[2].strip("\n") for cell, part in zip(module.pieces, parts[1:])}
    if empty := [one for one in sources if not sources[one]]:
        raise tangle.TangleError([f"{name}: piece {one} is empty; delete its cell" for one in empty])
    # Blank lines at a cell's ends are between pieces here, and not what was edited.
    return {
        cell.id: cell.source if cell.source.strip("\n") == sources[cell.id] else sources[cell.id]
        for cell in module.pieces
    }


def without_all(header: str) -> str:
    """A module's header without its list of public names."""
    return re.sub(r"^__all__ = \[.*?\]$", "", header, flags=re.MULTILINE | re.DOTALL).strip()


def committed(root: Path, notebook: str) -> dict[str, str] | None:
    """The sources of a notebook's cells in the last commit; None where git knows nothing of it."""
    asked = ["git", "-C", str(root), "show", f"HEAD:./{notebook}"]
    try:
        found = subprocess.run(asked, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
        return {cell.id: cell.source for cell in nbformat.reads(found.decode(), as_version=4).cells}
    except (OSError, subprocess.CalledProcessError, ValueError):
        return None


def edits(root: Path) -> dict[str, dict[str, str]]:
    """What was edited in the package: of each notebook the new sources, by cell.

    Raises:
        TangleError: An edit has no home, or its home was edited as well.
    """
    faults: list[str] = []
    found: dict[str, dict[str, str]] = {}
    for module in tangle.read_book(root).values():
        path = root / tangle.PACKAGE / f"{module.name}.py"
        name = path.relative_to(root).as_posix()
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        if text in (None, tangle.render_module(module, [])):
            continue
        try:
            sources = split(text, module, name)
        except tangle.TangleError as error:
            faults += error.faults
            continue
        last = committed(root, module.pieces[0].notebook) or {}
        for cell in module.pieces:
            if sources[cell.id] == cell.source:
                continue
            if last.get(cell.id, cell.source) == sources[cell.id]:
                faults.append(f"{name}: cell {cell.id} is newer than the module; tangle first")
            elif last.get(cell.id, cell.source) != cell.source:
                both = f"the module and its cell {cell.id} were both edited since the last commit"
                faults.append(f"{name}: {both}")
            else:
                found.setdefault(cell.notebook, {})[cell.id] = sources[cell.id]
    if faults:
        raise tangle.TangleError(faults)
    return found


def changed(path: Path, sources: dict[str, str]) -> str:
    """The text of a notebook in which some cells have new sources."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = sources.get(cell.id, cell.source)
    return execute.dumps(notebook)


def back(root: Path) -> list[str]:
    """Carry the edits home, and tangle, so that book and package are equal again; returns what was done.

    Raises:
        TangleError: As in `edits`, or the book with these edits breaks a rule; then nothing is written.
    """
    found = edits(root)
    texts = {name: changed(root / name, sources) for name, sources in found.items()}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copy(root / "_toc.yml", copy)
        for name in ("book", tangle.PACKAGE):
            shutil.copytree(root / name, copy / name, ignore=others)
        for name, text in texts.items():
            (copy / name).write_text(text, encoding="utf-8", newline="\n")
        changes = tangle.differences(root, tangle.read_book(copy))
    wrote = tangle.write(root, {root / name: text.encode() for name, text in texts.items()} | changes)
    done = [f"{name}: {', '.join(sources)}" for name, sources in found.items()]
    return done + wrote[len(done) :]


def others(folder: str, names: list[str]) -> set[str]:
    """Of a folder's files those that tangle doesn't read."""
    kept = (".ipynb", ".md", ".py")
    return {name for name in names if not name.endswith(kept) and not (Path(folder) / name).is_dir()}
