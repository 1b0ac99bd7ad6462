"""The workbook as readers get it: blanks, solutions put back, and notebooks that run to their ends."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import workbook
from other_hands import NAMED

from transformer.study.workbook import MISSING, RIGHT, WRONG, Verdict, judge_code, pieces

ROOT = Path(__file__).resolve().parents[2]
books = cache(workbook.books)
NAMES = list(dict.fromkeys(f"{piece.chapter}.ipynb" for piece in pieces().values()))
# `make test-workbook` runs all of them; other commands run one that takes few seconds.
QUICK = ["06-loss.ipynb"]
RUN = NAMES if os.environ.get("WORKBOOK") == "all" else QUICK

# Runs the code cells of a notebook in one process, as a kernel would, and prints what went wrong.
PLAY = """
import json, linecache, os, sys, types, warnings
import matplotlib
matplotlib.use("Agg")
warnings.filterwarnings("ignore", message="FigureCanvasAgg")
path = sys.argv[1]
os.chdir(os.path.dirname(path))
main = sys.modules["__main__"] = types.ModuleType("__main__")
for cell in json.load(open(path, encoding="utf8"))["cells"]:
    if cell["cell_type"] == "code" and "nbval-skip" not in cell["metadata"].get("tags", []):
        lines = [line for line in cell["source"] if not line.startswith("%")]  # without a kernel, no magics
        source, name = "".join(lines), f"<cell {cell['id']}>"
        linecache.cache[name] = len(source), None, source.splitlines(True), name
        exec(compile(source, name, "exec"), vars(main))
"""


def solved(notebook, hands=None):
    """A notebook with the folded solutions in the place of the blanks, or with those of other hands."""
    for cell in notebook.cells:
        own = [pieces()[key] for key in cell.metadata.get("workbook", [])]
        lines = cell.source.splitlines()
        nodes = {getattr(node, "name", None): node for node in ast.parse(cell.source).body} if own else {}
        for piece in sorted(own, key=lambda piece: -nodes[piece.name].lineno):
            start, end = workbook.span(nodes[piece.name])
            code = (hands or {}).get(piece.key) or workbook.solution(piece.code, piece.name)
            lines[start:end] = code.splitlines()
        cell.source = "\n".join(lines)
    return notebook


def play(name: str, folder: Path, notebook) -> str:
    nbformat.write(notebook, folder / name)
    command = [sys.executable, "-c", PLAY, str(folder / name)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def cell_of(piece) -> str:
    notebook = json.loads((ROOT / "book" / f"{piece.chapter}.ipynb").read_text(encoding="utf8"))
    (source,) = ("".join(cell["source"]) for cell in notebook["cells"] if cell["id"] == piece.cell)
    return source


@pytest.mark.parametrize("key", pieces())
def test_a_piece_is_the_code_of_its_chapter(key):
    piece = pieces()[key]
    source = cell_of(piece)
    if piece.module:
        assert piece.code.strip() == source.strip()
    else:
        assert piece.code.strip() in source, f"copy {piece.name} of the chapter to the record"
    names = [getattr(node, "name", None) for node in ast.parse(piece.code).body]
    assert piece.name in names
    assert len(piece.hints) == 3 and all(piece.hints)
    assert piece.task or ast.get_docstring(ast.parse(piece.code).body[names.index(piece.name)])
    assert all(mistake.right in piece.code for mistake in piece.mistakes)
    assert len({mistake.says for mistake in piece.mistakes}) == len(piece.mistakes) >= 2


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def notebook(name):
    return nbformat.reads(books()[name], as_version=4)


@pytest.mark.slow
def test_every_piece_has_hints_a_blank_an_examiner_and_a_solution(name, notebook):
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        for key in cell.metadata.get("workbook", []):
            piece, place = pieces()[key], ids.index(cell.id)
            around = "\n".join(each.source for each in notebook.cells[place - 6 : place])
            assert f"**Yours to write: `{piece.name}`.**" in around and all(h in around for h in piece.hints)
            assert f"{piece.name} = use({piece.name})" in notebook.cells[place + 1].source
            assert judge_code(piece, cell.source).mark == MISSING
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_nothing_of_the_chapter_is_lost(name, notebook):
    """With the solutions back and the workbook's own cells away, the code is that of the chapter, whose
    pieces `tests/study` finds right."""
    chapter = nbformat.read(ROOT / "book" / name, as_version=4)
    own = re.compile("^workbook-|-use$")
    lines = lambda cells: [
        line
        for cell in cells
        if cell.cell_type == "code" and not own.search(cell.id)
        for line in cell.source.splitlines()
        if line.strip()
    ]
    assert lines(solved(notebook).cells) == lines(chapter.cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_with_nothing_filled_in_a_notebook_runs_to_its_end_and_says_what_is_missing(name, tmp_path):
    notebook = nbformat.reads(books()[name], as_version=4)
    said = play(name, tmp_path, notebook)
    own = [piece for piece in pieces().values() if f"{piece.chapter}.ipynb" == name]
    for piece in own:
        assert f"{MISSING} {piece.name}\x1b[0m: not written yet. Until it is right" in said
    assert f"0 of {len(pieces())} pieces are yours" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN if len(RUN) > len(QUICK) else [])
def test_with_its_solutions_put_back_a_notebook_is_green(name, tmp_path):
    said = play(name, tmp_path, solved(nbformat.reads(books()[name], as_version=4)))
    own = [piece for piece in pieces().values() if f"{piece.chapter}.ipynb" == name]
    for piece in own:
        assert f"{RIGHT} {piece.name}\x1b[0m: " in said
    assert f"m{WRONG} " not in said  # by its color; chapter 9 prints such a mark of its own
    assert f"{len(own)} of {len(pieces())} pieces are yours" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN if len(RUN) > len(QUICK) else [])
def test_with_right_pieces_in_other_hands_a_notebook_runs_to_its_end(name, tmp_path):
    """Its own, and those of the notebooks before it, which lie beside it."""
    for other in NAMES:
        if other <= name:
            notebook = solved(nbformat.reads(books()[other], as_version=4), NAMED)
            nbformat.write(notebook, tmp_path / other)
    said = play(name, tmp_path, notebook)
    before = [piece for piece in pieces().values() if f"{piece.chapter}.ipynb" <= name]
    assert f"m{WRONG} " not in said and "the book's: ✗" not in said
    assert f"{len(before)} of {len(pieces())} pieces are yours" in said


@pytest.mark.slow
def test_nobodys_work_is_replaced(tmp_path, capsys):
    workbook.write(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == NAMES
    filled = json.loads((tmp_path / names[0]).read_text(encoding="utf8"))
    filled["cells"][0]["source"] = ["mine"]
    (tmp_path / names[0]).write_text(json.dumps(filled), encoding="utf8")
    workbook.write(tmp_path)
    assert json.loads((tmp_path / names[0]).read_text(encoding="utf8")) == filled
    assert f"{names[0]} is left as it is" in capsys.readouterr().out


def test_private_methods_go_and_kept_ones_stay():
    code = (
        'class A:\n    """Doc."""\n\n    x: int\n\n    def f(self) -> int:\n        """One."""\n'
        "        # why\n        return self._g()\n\n    @property\n    def h(self):\n        return 1\n\n"
        "    def _g(self):\n        return 2\n\n    def k(self):\n        return 3\n"
    )
    blank = workbook.blanked(code, ["A"], ["k"])
    assert blank == (
        'class A:\n    """Doc."""\n\n    x: int\n\n    def f(self) -> int:\n        """One."""\n'
        "        raise NotImplementedError\n\n    @property\n    def h(self):\n"
        "        raise NotImplementedError\n\n    def k(self):\n        return 3"
    )


def test_the_lines_for_teachers_make_a_test_of_each_piece(tmp_path, monkeypatch):
    lines = (ROOT / "book" / "teaching.md").read_text(encoding="utf8").partition("```python\n")[2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workbook").mkdir()
    (tmp_path / "workbook" / "03-attention.ipynb").write_text(books()["03-attention.ipynb"], encoding="utf8")
    exec(lines.partition("```")[0], {})
    made = nbformat.read("source/attention/03-attention.ipynb", as_version=4)
    tests = [cell for cell in made.cells if "nbgrader" in cell.metadata]
    keys = [key for key in pieces() if key.startswith("03-attention/")]
    assert len(tests) == len(keys) == 6
    for key, cell in zip(keys, tests):
        exec(cell.source, {"workbook": SimpleNamespace(verdicts={key: Verdict(RIGHT, "")})})
        with pytest.raises(AssertionError):
            exec(cell.source, {"workbook": SimpleNamespace(verdicts={key: Verdict(WRONG, "")})})
