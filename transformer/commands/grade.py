"""`grade`: the workbook's pieces of a class, as a table."""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from transformer.commands.options import Add, place, within
from transformer.study.workbook import MISSING, RIGHT, WRONG, Verdict, pieces, read_verdicts, written

__all__ = ["grade", "graded", "students", "table", "grade_options", "GRADE_HELP"]


_JUDGE = "import sys; from transformer.study.workbook import judge_notebook; judge_notebook(*sys.argv[1:])"


def grade(options: argparse.Namespace) -> int:
    """Judge notebooks of the workbook, and print a table; the status is 1 if one cannot be read."""
    found: dict[str, dict[str, Verdict]] = {}
    read: list[Path] = []
    for path in options.notebooks:
        with suppress(OSError, ValueError):
            if written(path):
                read.append(path)
    for path, student in zip(read, students(read)):
        found.setdefault(student, {}).update(graded(path, options.seconds))
    if found:
        print(*table(found), sep="\n")
    unread = [path for path in options.notebooks if path not in read]
    for path in unread:
        print(f"{WRONG} {path} is no notebook of the workbook")
    return int(bool(unread))


def graded(path: Path, limit: int) -> dict[str, Verdict]:
    """The verdict on each piece of a notebook, by a process that may hang or end; another then goes on."""
    left, found = list(written(path)), dict[str, Verdict]()
    while left:
        with tempfile.TemporaryDirectory() as folder:
            results = Path(folder, "results")
            command = [sys.executable, "-c", _JUDGE, str(path), str(results), *left]
            try:
                ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit)
                reason = f"its process ended with status {ended.returncode}"
            except subprocess.TimeoutExpired:
                reason = f"did not end within {limit} s"
            found |= read_verdicts(results)
        left = [key for key in left if key not in found]
        if left:
            found[left.pop(0)] = Verdict(WRONG, reason)
    return found


def students(paths: Sequence[Path]) -> list[str]:
    """Whose each notebook is: the name of its folder, or its own where a folder has two of one chapter."""
    places = [(path.resolve().parent, next(iter(written(path))).partition("/")[0]) for path in paths]
    by_file = len(set(places)) < len(places)
    return [path.stem if by_file else path.resolve().parent.name for path in paths]


def table(found: dict[str, dict[str, Verdict]]) -> list[str]:
    """A row for each piece, a column for each student, what is wrong with each, and how many are right."""
    keys = [key for key in pieces() if any(key in own for own in found.values())]
    cells = {key: [own[key].mark if key in own else "" for own in found.values()] for key in keys}
    marks = [[verdict.mark for verdict in own.values()] for own in found.values()]
    cells["right"] = [f"{own.count(RIGHT)} of {len(own)}" for own in marks]
    width, first = max(8, *map(len, found)) + 2, max(map(len, keys))
    lines = [f"{head:{first}}" + "".join(f"{cell:>{width}}" for cell in row) for head, row in cells.items()]
    faults = [(f"{student}, {key}", own[key]) for student, own in found.items() for key in own]
    return [
        " " * first + "".join(f"{student:>{width}}" for student in found),
        *lines,
        f"{RIGHT} right, {WRONG} wrong, {MISSING} not written yet",
        *(f"{WRONG} {where}: {verdict.says}" for where, verdict in faults if verdict.mark == WRONG),
    ]


def grade_options(add: Add) -> None:
    """The options of `grade`."""
    add("notebooks", nargs="+", type=place, metavar="NOTEBOOK", help="notebooks of the workbook")
    limit = "how long the pieces of a notebook may take together (default: 120)"
    add("--seconds", type=within(int, 1, 3600), default=120, metavar="N", help=limit)


GRADE_HELP = """\
  python -m transformer grade workbook/*.ipynb
  python -m transformer grade */03-attention.ipynb

judges what was written in notebooks of the workbook, each in a process of its own, and prints a table of
pieces and students. A student is the folder of a notebook, or the notebook itself where several in one
folder are of the same chapter. Whoever grades runs the students' code: do it where that may run."""
