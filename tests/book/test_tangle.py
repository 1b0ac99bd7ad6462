"""The rules of `book/tangle.py`, on small books that keep or break them."""

import copy as copying
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "book" / "tangle.py"

spec = importlib.util.spec_from_file_location("tangle", SCRIPT)
tangle = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tangle)


# ---------- a small book, from a compact description


def cell(source: str, *tags: str, kind: str = "code", **extra) -> dict:
    """A cell as a notebook file holds it."""
    outputs = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)}, **outputs, **extra}


def md(source: str, *tags: str) -> dict:
    return cell(source, *tags, kind="markdown")


def to(module: str, source: str) -> dict:
    """A cell exported to a module."""
    return cell(source, f"export:{module}")


def write_book(root: Path, chapters: dict[str, list], toc: str | None = None) -> None:
    """Write notebooks and their `_toc.yml`. Cells have the ids c0, c1, … by place, or bring their own."""
    (root / "book").mkdir(exist_ok=True)
    (root / "book" / "intro.md").write_text("# Welcome\n")
    for name, cells in chapters.items():
        cells = [{"id": f"c{index}", **each} for index, each in enumerate(cells)]
        notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        (root / "book" / f"{name}.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    entries = "".join(f"      - file: book/{name}\n" for name in chapters)
    listed = f"format: jb-book\nroot: book/intro\nparts:\n  - caption: All\n    chapters:\n{entries}"
    (root / "_toc.yml").write_text(listed if toc is None else toc)


def run(*arguments: str | Path, **options) -> subprocess.CompletedProcess:
    """Run Python on these arguments."""
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, **options)


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of change of every file below a folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def faults_of(action, root: Path) -> list[str]:
    with pytest.raises(tangle.TangleError) as error:
        action(root)
    return error.value.faults


GOOD = {
    "01-shapes": [
        md("# Shapes\n\nOf the plane.\n\n```\n# not a heading\n```"),
        cell("import sys\nif sys is None:\n    %pip install transformer"),
        md("## The `circle` and $\\pi$"),
        to("shapes", "import math"),
        to("shapes", "def circle_area(radius: float) -> float:\n    return _square(radius) * math.pi"),
        md("Nothing new."),
        to("shapes", "def _square(x):\n    return x * x\n\n\nUNIT: float = 1.0"),
        to("drawing", "from transformer.shapes import UNIT\n\n\nclass Pen:\n    width = UNIT"),
    ],
    "02-solids": [
        md("# Solids"),
        cell("from transformer import circle_area, shapes\nimport transformer.drawing"),
        to(
            "solids",
            "from transformer.shapes import circle_area\n\n\n"
            "def cylinder_volume(radius, height):\n    return circle_area(radius) * height",
        ),
        to(
            "__main__",
            "from transformer.solids import cylinder_volume\n\n\n"
            "def main():\n    print(round(cylinder_volume(1, 2), 3))\n\n\n"
            'if __name__ == "__main__":\n    main()',
        ),
    ],
}

SHAPES = '''\
"""transformer.shapes, from book/01-shapes.ipynb, "Shapes".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["circle_area", "UNIT"]


# %% book/01-shapes.ipynb · The circle and pi · [c3]
import math


# %% book/01-shapes.ipynb · The circle and pi · [c4]
def circle_area(radius: float) -> float:
    return _square(radius) * math.pi


# %% book/01-shapes.ipynb · The circle and pi · [c6]
def _square(x):
    return x * x


UNIT: float = 1.0
'''

INIT = """\
from transformer.shapes import circle_area
from transformer.drawing import Pen
from transformer.solids import cylinder_volume

__all__ = ["circle_area", "Pen", "cylinder_volume"]
"""


def by_hand(root: Path, files: dict[str, str]) -> None:
    """Write modules of the package by hand."""
    for name, source in files.items():
        path = root / "transformer" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The root of a small sound book, tangled."""
    write_book(tmp_path, GOOD)
    by_hand(tmp_path, {"__init__.py": INIT})
    tangle.tangle(tmp_path)
    return tmp_path


# ---------- what is written


def test_a_module_is_header_public_names_and_marked_pieces(good):
    assert (good / "transformer" / "shapes.py").read_text(encoding="utf-8") == SHAPES


def test_the_package_imports_and_runs(good):
    code = "import transformer as t; print(*t.__all__, t.shapes.__doc__.splitlines()[0], t.Pen.width)"
    shown = run("-c", code, cwd=good)
    assert shown.stdout == (
        'circle_area Pen cylinder_volume transformer.shapes, from book/01-shapes.ipynb, "Shapes". 1.0\n'
    ), shown.stderr
    assert run("-m", "transformer", cwd=good).stdout == "6.283\n"


def test_modules_in_folders_build_on_each_other_in_any_order_without_a_circle(tmp_path):
    chapters = {
        "01-fast": [
            md("# Speed"),
            to("fast/one", "from transformer.fast.two import Y\n\nX = Y + 1"),
            to("fast/two", "Y = 1"),
        ],
        "02-use": [cell("from transformer.fast import two\nimport transformer.fast.one")],
    }
    write_book(tmp_path, chapters)
    by_hand(tmp_path, {"__init__.py": "", "fast/__init__.py": ""})
    assert "wrote transformer/fast/one.py" in tangle.tangle(tmp_path)
    code = "import transformer.fast.one as one; print(one.X, one.__doc__.splitlines()[0], one.__all__)"
    said = "2 transformer.fast.one, from book/01-fast.ipynb, \"Speed\". ['X']\n"
    assert run("-c", code, cwd=tmp_path).stdout == said
    assert tangle.tangle(tmp_path) == []


def test_only_what_has_the_header_is_removed(tmp_path):
    write_book(tmp_path, {"01-one": [to("fast/one", "X = 1"), to("slow/one", "Y = 1")]})
    tangle.tangle(tmp_path)
    by_hand(tmp_path, {"slow/mine.py": "Z = 1\n", "fast/__init__.py": ""})
    write_book(tmp_path, {"01-one": [to("flat", "X = 1")]})
    gone = [f"transformer/{folder}/one.py" for folder in ("fast", "slow")]
    orphaned = [f"{name}: orphaned, no chapter exports it" for name in gone]
    assert faults_of(tangle.check, tmp_path)[-2:] == orphaned
    tangle.tangle(tmp_path)
    package = tmp_path / "transformer"
    left = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.py"))
    assert left == ["fast/__init__.py", "flat.py", "slow/mine.py"]


# ---------- modules by hand, beside those of chapters


def test_chapters_and_modules_by_hand_build_on_each_other(tmp_path):
    by_hand(tmp_path, {
        "__init__.py": "from transformer.one import X\nfrom transformer.tool import T",
        "files.py": "import os\n\nF = 1\nif os.name:\n    G = 2\n",
        "tool.py": "from transformer.one import X\nfrom transformer import files\n\nT = X + files.F\n",
    })  # fmt: skip
    chapters = {
        "01-one": [
            to("one", "from transformer.files import F\nX = F"),
            cell("from transformer import files"),
        ],
        "02-two": [cell("from transformer import T, X, tool\nfrom transformer.tool import T")],
    }
    write_book(tmp_path, chapters)
    assert tangle.tangle(tmp_path) == ["wrote transformer/one.py"]
    tangle.check(tmp_path)
    assert run("-c", "import transformer; print(transformer.T)", cwd=tmp_path).stdout == "2\n"


HAND_FAULTS = {
    "of a later chapter": (
        {"tool.py": "from transformer.two import Y\n"},
        [[cell("from transformer import tool")], [to("two", "Y = 1")]],
        "book/01-one.ipynb, cell c0, line 1: tool comes only later, after what transformer/tool.py needs",
    ),
    "a circle with a chapter": (
        {"tool.py": "def f():\n    from transformer.one import X\n"},
        [[to("one", "from transformer.tool import f\n\nX = f")]],
        "transformer/tool.py, line 2: one imports tool already, directly or by others",
    ),
    "a circle among themselves": (
        {"a.py": "from transformer import b\n", "b.py": "import transformer.a\n"},
        [[cell("1")]],
        "transformer/b.py, line 1: a imports b already, directly or by others",
    ),
    "in the place of a chapter's": (
        {"one.py": "X = 2\n"},
        [[to("one", "X = 1")]],
        "transformer/one.py: not written by tangle; move it away",
    ),
    "a module where a chapter has a folder": (
        {"fast.py": "X = 2\n"},
        [[to("fast/one", "X = 1")]],
        "book/01-one.ipynb, cell c0, line 1: fast is a module too, and no folder",
    ),
    "no Python": (
        {"tool.py": "X = (\n"},
        [[to("one", "X = 1")]],
        "transformer/tool.py, line 1: '(' was never closed",
    ),
    "no Python in __init__": (
        {"__init__.py": "from transformer.one import (\n"},
        [[to("one", "X = 1")]],
        "transformer/__init__.py, line 1: '(' was never closed",
    ),
    "what it does not define": (
        {"tool.py": "import math\n"},
        [[cell("from transformer.tool import math")]],
        "book/01-one.ipynb, cell c0, line 1: transformer.tool defines no math",
    ),
    "what the package does not import": (
        {"tool.py": "T = 1\n", "__init__.py": ""},
        [[cell("from transformer import T")]],
        "book/01-one.ipynb, cell c0, line 1: transformer itself has no T: write 'from transformer.tool",
    ),
}


@pytest.mark.parametrize(("files", "chapters", "fault"), HAND_FAULTS.values(), ids=HAND_FAULTS)
def test_a_module_by_hand_is_refused(tmp_path, files, chapters, fault):
    by_hand(tmp_path, files)
    write_book(tmp_path, dict(zip(("01-one", "02-two"), chapters, strict=False)))
    before = snapshot(tmp_path)
    for action in (tangle.tangle, tangle.check):
        (found,) = faults_of(action, tmp_path)
        assert found.startswith(fault)
    assert snapshot(tmp_path) == before


def test_a_public_name_of_two_modules_is_that_of_init(tmp_path):
    by_hand(tmp_path, {"__init__.py": "from transformer.late import X", "late.py": "X = 1"})
    write_book(tmp_path, {"01-one": [cell("from transformer import X")], "02-two": [to("two", "X = 2")]})
    tangle.tangle(tmp_path)


def test_main_has_no_public_names(good):
    assert "__all__" not in (good / "transformer" / "__main__.py").read_text(encoding="utf-8")


def test_generated_lines_stay_short(tmp_path):
    names = [f"a_rather_long_name_number_{number}" for number in range(6)]
    heading = "# " + "A heading that goes on " * 8
    write_book(tmp_path, {"01-long": [md(heading), to("long", "\n".join(f"{name} = 1" for name in names))]})
    tangle.tangle(tmp_path)
    lines = (tmp_path / "transformer" / "long.py").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= tangle.WIDTH
    assert "__all__ = [\n" + "".join(f'    "{name}",\n' for name in names) + "]\n" in "\n".join(lines)


def test_a_book_that_exports_nothing_writes_nothing(tmp_path):
    write_book(tmp_path, {"01-words": [md("# Words"), cell("1 + 1")]})
    assert tangle.tangle(tmp_path) == [] and not list((tmp_path / "transformer").glob("*"))


SCOPES = """\
import math


class A:
    k = 2
    half = k / 2

    def method(self, n: int = k):
        def inner(x):
            nonlocal n
            n = x
            return __class__, __name__

        with open("f") as file:
            return [later(i, file) for i in range(n) if (j := i)], j, inner


def later(a, *args, b=math.pi, **options):
    try:
        return lambda x: (x, a, args, options, A)
    except ValueError as error:
        raise error


P, Q = 1, 2
R = S = [P for _ in (Q,)]
"""

OVERLOADS = """\
import typing
from typing import overload


@overload
def f(x: int) -> int: ...
@overload
def f(x: str) -> str: ...
def f(x):
    return g(x)


@typing.overload
def g(x: int) -> int: ...
@typing.overload
def g(x: str) -> str: ...
def g(x):
    return x
"""

SURVIVORS = {
    "a decorator above a definition": "import functools\n\n\n@functools.cache\n# why\ndef f():\n    return 1",
    "a percent sign at the start of a continued line": "X = (7\n% 4)\nY = 7 \\\n% 4",
    "triple-quoted text at column 0": 'TEXT = """\n%magic\n!shell\n# %% marker\n"""\n',
    "a docstring at column 0": 'def f():\n    """One.\n\nTwo.\n"""',
    "backslashes, tabs, trailing blanks, odd letters": "A = '\\n\\t'  \nB = r'\\d'\t\nC = 'ação √ 𝔽 \\u2028'",
    "an empty line at each end": "\n\nX = 1\n\n",
    "comments alone at the end": "X = 1\n# the end",
    "two imports of one package": "import os\nimport os.path\nimport xml.dom as dom",
    "a string that looks like an import": "X = 'from transformer import nothing'",
    "names of every scope": SCOPES,
    "signatures of one function": OVERLOADS,
}


@pytest.mark.parametrize("source", SURVIVORS.values(), ids=SURVIVORS)
def test_a_piece_survives_byte_for_byte(tmp_path, source):
    write_book(tmp_path, {"01-one": [md("# One"), to("one", source)]})
    tangle.tangle(tmp_path)
    content = (tmp_path / "transformer" / "one.py").read_bytes()
    assert content.endswith(f"\n\n\n# %% book/01-one.ipynb · One · [c1]\n{source}\n".encode())
    compile(content, "one.py", "exec")


@pytest.mark.parametrize(
    "toc",
    [
        "root: book/intro\nchapters:\n- file: book/01-one\n",
        "root: 'book/intro'  # file: none\n# - file: none\nchapters:\n  - file: \"book/01-one.ipynb\"\n",
        "root: book/intro.md\nparts:\n- chapters:\n  - title: 'file: none'\n    file: book/01-one # 1\n",
        "root: book/01-one\r\n",
    ],
)
def test_contents_may_be_written_in_several_ways(tmp_path, toc):
    write_book(tmp_path, {"01-one": [to("one", "X = 1")]}, toc=toc)
    assert "wrote transformer/one.py" in tangle.tangle(tmp_path)


# ---------- what is refused

ONLY = "only imports, constants, functions and classes are exported, not:"
UNBOUND = "is neither defined nor imported by a cell of one"
SHOULD = "it should read 'export:<module>', or <folder>/<module>"
OWN = "is made in this very chapter, and cannot be imported here"

# One exported cell, the line of its fault, and what is said of it.
CELL_FAULTS = {
    "line magic": (
        "import math\n%matplotlib inline",
        2,
        "a magic has no place in a module: %matplotlib inline",
    ),
    "cell magic": ("%%time\nX = 1", 1, "a magic has no place in a module: %%time"),
    "shell": ("X = 1\n!ls", 2, "a magic has no place in a module: !ls"),
    "shell assigned": ("X = !ls", 1, "a magic has no place in a module: X = !ls"),
    "help": ("import math\nmath.pi?", 2, "a magic has no place in a module: math.pi?"),
    "syntax error": ("X = 1\ndef f(:\n    pass", 2, "invalid syntax: def f(:"),
    "stray return": ("X = 1\nreturn X", 2, "'return' outside function: return X"),
    "bare expression": ("X = 1\nX", 2, "bare expression: X"),
    "bare call": ("print('hello')", 1, "bare expression: print('hello')"),
    "docstring": ('"""A text."""\nX = 1', 1, "bare expression: 'A text.'"),
    "loop": (
        "for i in range(3):\n    X = i",
        1,
        f"{ONLY} for i in range(3):",
    ),
    "condition": (
        "X = 1\nif __name__ == '__main__':\n    X",
        2,
        f"{ONLY} if __name__ == '__main__':",
    ),
    "annotation alone": (
        "X: int",
        1,
        f"{ONLY} X: int",
    ),
    "augmented assignment": (
        "X = 1\nX += 1",
        2,
        f"{ONLY} X += 1",
    ),
    "method from outside": (
        "class A:\n    pass\n\n\nA.x = 1",
        5,
        "A.x is assigned to, and is not a plain name",
    ),
    "public names by hand": ("X = 1\n__all__ = ['X']", 2, "__all__ is for tangle to write"),
    "empty": ("# nothing yet", 1, "exports nothing"),
    "CRLF": ("X = 1\nY = 2\r\nZ = 3", 2, "holds a carriage return; lines end in a line feed alone"),
    "star import": ("from math import *", 1, "'import *' does not say what it imports"),
    "future import": (
        "from __future__ import annotations",
        1,
        "'from __future__' works at the top of a file alone, and no piece stands there",
    ),
    "redefinition": ("def f():\n    pass\n\n\nf = 1", 5, "f is bound already in cell c0, line 1"),
    "import again": ("import math\nimport math", 2, "math is bound already in cell c0, line 1"),
    "import over a name": ("pi = 3\nfrom math import pi", 2, "pi is bound already in cell c0, line 1"),
    "signatures without a function": (
        "from typing import overload\n\n\n@overload\ndef f(x: int) -> int: ...",
        5,
        "f has signatures and no implementation after them in its cell",
    ),
    "a signature after the function": (
        "from typing import overload\n\n\ndef f(x):\n    return x\n\n\n@overload\ndef f(x: int) -> int: ...",
        9,
        "f is bound already in cell c0, line 4",
    ),
    "a second implementation": (
        "from typing import overload\n\n\n@overload\ndef f(x: int) -> int: ...\ndef f(x):\n    return x\n"
        "def f(x):\n    return 1",
        8,
        "f is bound already in cell c0, line 6",
    ),
    "undefined in a function": (
        "def f(x):\n    y = x\n    return y + missing",
        3,
        f"missing {UNBOUND}",
    ),
    "undefined in a class": (
        "class A:\n    x = 1\n    def f(self):\n        return x",
        4,
        f"x {UNBOUND}",
    ),
    "undefined decorator": ("@cache\ndef f():\n    pass", 1, f"cache {UNBOUND}"),
    "undefined annotation": (
        "def f(x: Tensor):\n    pass",
        1,
        f"Tensor {UNBOUND}",
    ),
    "undefined default": ("def f(x=N):\n    pass", 1, f"N {UNBOUND}"),
    "undefined in a comprehension": (
        "X = [\n    i + n\n    for i in range(3)\n]",
        2,
        f"n {UNBOUND}",
    ),
    "used too early": ("X = Y + 1\nY = 1", 1, "Y is used before it is defined in cell c0, line 2"),
    "base class too early": (
        "class A(B):\n    pass\n\n\nclass B:\n    pass",
        1,
        "B is used before it is defined in cell c0, line 5",
    ),
    "relative import": (
        "from . import two",
        1,
        "relative import; write 'from transformer.<module> import two'",
    ),
    "package import": (
        "import transformer",
        1,
        "an exported cell names the module: 'from transformer.<module> import …'",
    ),
    "unknown module": (
        "from transformer.none import f",
        1,
        "neither a chapter nor a file of the package has transformer.none",
    ),
    "own module": ("from transformer.one import f", 1, f"f {OWN}"),
    "own module inside a function": (
        "def g():\n    from transformer.one import f\n    return f",
        2,
        f"f {OWN}",
    ),
}


@pytest.mark.parametrize(("source", "line", "problem"), CELL_FAULTS.values(), ids=CELL_FAULTS)
def test_a_cell_is_refused(tmp_path, source, line, problem):
    write_book(tmp_path, {"01-one": [to("one", source)]})
    assert faults_of(tangle.tangle, tmp_path) == [f"book/01-one.ipynb, cell c0, line {line}: {problem}"]
    assert not (tmp_path / "transformer").exists()


MAIN_END = 'if __name__ == "__main__":\n    print()'

# The cells of chapters 01-one and 02-two, and all that is said of them, each as "chapter cell line: problem".
BOOK_FAULTS = {
    "unknown tag": (
        [[cell("X = 1", "exported")], [cell("X = 1", "export")]],
        f"01-one c0 1: unknown tag 'exported'; {SHOULD}",
        f"02-two c0 1: unknown tag 'export'; {SHOULD}",
    ),
    "a tag that only looks like one": (
        [[cell("X = 1", "EXPORT:one"), cell("X = 1", " export:one")], [cell("X = 1", "Export:one ")]],
        f"01-one c0 1: unknown tag 'EXPORT:one'; {SHOULD}",
        f"01-one c1 1: unknown tag ' export:one'; {SHOULD}",
        f"02-two c0 1: unknown tag 'Export:one '; {SHOULD}",
    ),
    "bad module name": (
        [
            [
                to("__init__", "X = 1"),
                to("Upper", "X = 1"),
                to("class", "X = 1"),
                to("a.b", "X = 1"),
                to("", "X = 1"),
                to("a" * 65, "X = 1"),
            ]
        ],
        f"01-one c0 1: unknown tag 'export:__init__'; {SHOULD}",
        f"01-one c1 1: unknown tag 'export:Upper'; {SHOULD}",
        f"01-one c2 1: unknown tag 'export:class'; {SHOULD}",
        f"01-one c3 1: unknown tag 'export:a.b'; {SHOULD}",
        f"01-one c4 1: unknown tag 'export:'; {SHOULD}",
        f"01-one c5 1: unknown tag 'export:{'a' * 65}'; {SHOULD}",
    ),
    "signatures of what is not a function, or stands elsewhere": (
        [
            [
                to(
                    "one",
                    "from typing import overload\n\n\n@overload\ndef f() -> int: ...\nclass f:\n    pass",
                )
            ],
            [
                to("two", "from typing import overload\n@overload\ndef g(): ..."),
                to("two", "def g(x):\n    pass"),
            ],
        ],
        "01-one c0 6: f is bound already in cell c0, line 5",
        "01-one c0 5: f has signatures and no implementation after them in its cell",
        "02-two c1 1: g is bound already in cell c0, line 3",
        "02-two c0 3: g has signatures and no implementation after them in its cell",
    ),
    "two tags": (
        [[cell("X = 1", "export:one", "export:two")]],
        "01-one c0 1: a cell goes to one module, not to one and two",
    ),
    "exported prose": (
        [[md("# One", "export:one"), cell("X", "export:one", kind="raw")]],
        "01-one c0 1: only code can be exported, and this is a markdown cell",
        "01-one c1 1: only code can be exported, and this is a raw cell",
    ),
    "two notebooks for one module": (
        [[to("one", "X = 1")], [to("one", "Y = 1")]],
        "02-two c0 1: module one belongs to book/01-one.ipynb already",
    ),
    "one public name in two modules": (
        [[to("one", "X = 1\n_x = 1")], [to("two", "_x = 1\nX = 2")]],
        "02-two c0 2: X is already public in one (book/01-one.ipynb, cell c0)",
    ),
    "a public name that hides a module": (
        [[to("one", "def two():\n    pass")], [to("two", "X = 1")]],
        "01-one c0 1: two is the name of a module too, and would hide it",
    ),
    "redefinition in another cell": (
        [[to("one", "def f():\n    pass"), md("Better:"), to("one", "X = 1\n\n\ndef f():\n    pass")]],
        "01-one c2 4: f is bound already in cell c0, line 1",
    ),
    "a name from an untagged cell": (
        [[cell("import math\nN = 3"), to("one", "X = N"), to("one", "def f():\n    return math.pi")]],
        f"01-one c1 1: N {UNBOUND}",
        f"01-one c2 2: math {UNBOUND}",
    ),
    "a name from another module": (
        [[to("one", "N = 3")], [to("two", "X = N")]],
        "02-two c0 1: N is neither defined nor imported by a cell of two",
    ),
    "used in an earlier cell": (
        [[to("one", "X = N"), to("one", "N = 3")]],
        "01-one c0 1: N is used before it is defined in cell c1, line 1",
    ),
    "import of a later chapter": (
        [[to("one", "from transformer.two import Y")], [to("two", "Y = 1")]],
        "01-one c0 1: Y comes only later, in book/02-two.ipynb",
    ),
    "import of a later chapter inside a function": (
        [[to("one", "def f():\n    import os\n    from transformer.two import Y")], [to("two", "Y = 1")]],
        "01-one c0 3: Y comes only later, in book/02-two.ipynb",
    ),
    "import of a module by itself": (
        [[to("one", "X = 1"), to("one", "from transformer.one import X as Y")]],
        f"01-one c1 1: X {OWN}",
    ),
    "modules that import each other": (
        [
            [
                to("one", "from transformer.fast.two import Y\n\nX = Y"),
                to("fast/two", "from transformer.fast.three import Z\n\nY = Z"),
                to("fast/three", "Z = 1"),
                to("fast/three", "def f():\n    from transformer.one import X\n    return X"),
            ]
        ],
        "01-one c3 2: one imports fast/three already, directly or by others",
    ),
    "a folder that is a module": (
        [[to("fast", "X = 1")], [to("fast/one", "Y = 1")]],
        "02-two c0 1: fast is a module too, and no folder",
    ),
    "a public name that hides a folder": (
        [[to("one", "def fast():\n    pass")], [to("fast/two", "X = 1")]],
        "01-one c0 1: fast is the name of a folder too, and would hide it",
    ),
    "bad folder names": (
        [[to("class/one", "X = 1"), to("a/b/c", "X = 1"), to("/one", "X = 1"), to("Fast/one", "X = 1")]],
        *(
            f"01-one c{index} 1: unknown tag 'export:{name}'; "
            "it should read 'export:<module>', or <folder>/<module>"
            for index, name in enumerate(("class/one", "a/b/c", "/one", "Fast/one"))
        ),
    ),
    "exported import of a module in a folder": (
        [
            [to("fast/one", "X = 1")],
            [to("two", "from transformer.fast import one\nimport transformer.fast.one")],
        ],
        "02-two c0 1: an exported cell names the module: 'from transformer.fast.one import …'",
        "02-two c0 2: an exported cell names the module: 'from transformer.fast.one import …'",
    ),
    "import from a folder": (
        [[to("fast/one", "X = 1")], [cell("from transformer.fast import X\nfrom transformer import fast")]],
        "02-two c0 1: neither a chapter nor a file of the package has transformer.fast",
        "02-two c0 2: neither a chapter nor a file of the package has fast",
    ),
    "import of what a module does not define": (
        [[to("one", "import math")], [to("two", "from transformer.one import math, pi")]],
        "02-two c0 1: transformer.one defines no math",
        "02-two c0 1: transformer.one defines no pi",
    ),
    "exported import from the package": (
        [[to("one", "X = 1")], [to("two", "from transformer import X"), to("two", "import transformer.one")]],
        "02-two c0 1: an exported cell names the module: 'from transformer.one import X'",
        "02-two c1 1: an exported cell names the module: 'from transformer.one import …'",
    ),
    "untagged import of a later chapter": (
        [[cell("X = 1\nfrom transformer import Y"), cell("import transformer.two")], [to("two", "Y = 1")]],
        "01-one c0 2: Y comes only later, in book/02-two.ipynb",
        "01-one c1 1: transformer.two comes only later, in book/02-two.ipynb",
    ),
    "untagged import of the chapter's own": (
        [[to("one", "X = 1"), cell("%time\nif 1:\n    from transformer import X, one")]],
        f"01-one c1 3: X {OWN}",
        f"01-one c1 3: one {OWN}",
    ),
    "untagged import of nothing": (
        [
            [to("one", "X = 1")],
            [cell("from transformer import Z\nfrom transformer import *\nfrom .one import X")],
        ],
        "02-two c0 1: neither a chapter nor a file of the package has Z",
        "02-two c0 2: 'import *' does not say what it imports",
        "02-two c0 3: relative import; write 'from transformer.<module> import X'",
    ),
    "untagged import of what only the module has": (
        [[to("one", "X = 1")], [cell("from transformer import X, one")]],
        "02-two c0 1: transformer itself has no X: write 'from transformer.one import X'",
    ),
    "main that goes on": (
        [[to("__main__", MAIN_END), to("__main__", "X = 1")]],
        "01-one c0 1: 'if __name__ == '__main__'' must end the module",
    ),
    "other condition in main": (
        [[to("__main__", "X = 1\nif X:\n    print()")]],
        f"01-one c0 2: {ONLY} if X:",
    ),
    "faults of several chapters": (
        [[to("one", "1\n2"), to("one", "%x")], [to("two", "import os"), cell("", "export-x")]],
        "01-one c0 1: bare expression: 1",
        "01-one c0 2: bare expression: 2",
        "01-one c1 1: a magic has no place in a module: %x",
        f"02-two c1 1: unknown tag 'export-x'; {SHOULD}",
    ),
}


@pytest.mark.parametrize("rows", BOOK_FAULTS.values(), ids=BOOK_FAULTS)
def test_a_book_is_refused(tmp_path, rows):
    chapters, *faults = rows
    write_book(tmp_path, dict(zip(("01-one", "02-two"), chapters, strict=False)))
    expected = [
        re.sub(r"^(\S+) (\S+) (\d+): ", r"book/\1.ipynb, cell \2, line \3: ", fault) for fault in faults
    ]
    assert faults_of(tangle.tangle, tmp_path) == expected
    assert faults_of(tangle.check, tmp_path) == expected
    assert not (tmp_path / "transformer").exists()


@pytest.mark.parametrize(
    "rows",
    [
        ("root: book/intro\n", "book/01-one.ipynb: is not in _toc.yml"),
        (
            "root: book/intro\nchapters:\n- file: book/01-one\n- file: book/02-two\n",
            "_toc.yml, line 4: there is neither book/02-two.ipynb nor book/02-two.md",
        ),
        (
            "root: book/01-one\nchapters:\n- file: book/01-one\n",
            "_toc.yml, line 3: book/01-one is listed twice",
        ),
        (
            "root: book/01-one\nchapters:\n- file: book/../../other\n- file: /etc/other\n",
            "_toc.yml, line 3: book/../../other is not below the folder of _toc.yml",
            "_toc.yml, line 4: /etc/other is not below the folder of _toc.yml",
        ),
    ],
)
def test_contents_that_do_not_fit_are_refused(tmp_path, rows):
    toc, *faults = rows
    write_book(tmp_path, {"01-one": [to("one", "X = 1")]}, toc=toc)
    assert faults_of(tangle.tangle, tmp_path) == faults


def test_a_book_without_contents_is_refused(good):
    (good / "_toc.yml").write_bytes(b"# caf\xe9")
    assert faults_of(tangle.tangle, good) == ["_toc.yml: is not UTF-8, at byte 5"]
    (good / "_toc.yml").unlink()
    assert faults_of(tangle.tangle, good) == ["_toc.yml: is missing, and with it the order of the chapters"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        (b"\xff\xfe\x00", "'utf-16-le' codec can't decode byte 0x00 in position 2: truncated data"),
        ("[" * 100_000, "maximum recursion depth exceeded"),
        ("[]", "no cells in format 4"),
        ('{"cells": {}, "nbformat": 4}', "no cells in format 4"),
        ('{"worksheets": [], "nbformat": 3}', "no cells in format 4"),
    ],
    ids=["cut", "other bytes", "deep", "list", "cells", "old"],
)
def test_what_is_no_notebook_is_refused(tmp_path, content, reason):
    write_book(tmp_path, {"01-one": []})
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "book" / "01-one.ipynb").write_bytes(data)
    (fault,) = faults_of(tangle.tangle, tmp_path)
    assert fault.startswith(f"book/01-one.ipynb: cannot be read as a notebook ({reason}")


@pytest.mark.parametrize(
    ("ids", "minor", "fault"),
    [
        ([None], 4, "cell 0, line 1: an exported cell needs an id: save the notebook in format 4.5"),
        ([None], 5, "cell 0, line 1: its id must be 1 to 64 letters, digits, - or _, not None"),
        (["a", "a"], 5, "cell a, line 1: another cell has its id, a"),
    ],
    ids=["missing, as old notebooks may", "missing", "twice"],
)
def test_ids_that_a_reader_of_notebooks_would_make_up_are_refused(tmp_path, ids, minor, fault):
    cells = [to("one", f"X{number} = 1") | ({"id": id_} if id_ else {}) for number, id_ in enumerate(ids)]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": minor}
    write_book(tmp_path, {"01-one": []})
    (tmp_path / "book" / "01-one.ipynb").write_text(json.dumps(notebook))
    assert faults_of(tangle.tangle, tmp_path) == [f"book/01-one.ipynb, {fault}"]


GOOD_ID = "its id must be 1 to 64 letters, digits, - or _, not"

# What a cell has instead of the right thing, the cell as the fault names it, and what is said of it.
MALFORMED = {
    "no tags": ({"metadata": {"tags": None}}, "c0", "its tags must be a list of texts, not None"),
    "one tag": (
        {"metadata": {"tags": "export:one"}},
        "c0",
        "its tags must be a list of texts, not 'export:one'",
    ),
    "tags of numbers": ({"metadata": {"tags": [1]}}, "c0", "its tags must be a list of texts, not [1]"),
    "metadata": ({"metadata": None}, "c0", "its metadata must be an object, not None"),
    "source": ({"source": {"X": 1}}, "c0", "its source must be a text or a list of texts"),
    "lines of the source": ({"source": ["X = 1", 2]}, "c0", "its source must be a text or a list of texts"),
    "type": ({"cell_type": "heading"}, "c0", "its type must be code, markdown or raw, not 'heading'"),
    "long id": ({"id": "a" * 100}, "a" * 64, f"{GOOD_ID} {'a' * 12 + '...' + 'a' * 13!r}"),
    "line in the id": ({"id": "a\nimport os"}, "a\\nimport os", rf"{GOOD_ID} 'a\nimport os'"),
    "NUL in the id": ({"id": "a\0"}, "a\\x00", rf"{GOOD_ID} 'a\x00'"),
    "number as id": ({"id": 7}, "0", f"{GOOD_ID} 7"),
    "byte-order mark": (
        {"source": "\ufeffX = 1"},
        "c0",
        r"invalid non-printable character U+FEFF: \ufeffX = 1",
    ),
    "half a character": (
        {"source": "X = '\ud800'"},
        "c0",
        "'utf-8' codec can't encode character '\\ud800' in position 5: surrogates not allowed: X = '\\ud800'",
    ),
    "a deep nest": ({"source": "X = " + "(" * 5000}, "c0", "too many nested parentheses: X = " + "(" * 106),
    "NUL in a heading": (
        {"cell_type": "markdown", "source": "\n```\n# a\n```\n## a\0b", "metadata": {}},
        "c0",
        r"'\x00' has no place in a heading",
    ),
}


@pytest.mark.parametrize(("changes", "name", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_a_cell_that_cannot_be_read_is_named(good, changes, name, problem):
    write_book(good, GOOD | {"03-one": [to("one", "X = 1") | changes]})
    line = 5 if problem.endswith("heading") else 1
    before = snapshot(good)
    for action in (tangle.tangle, tangle.check):
        assert faults_of(action, good) == [f"book/03-one.ipynb, cell {name}, line {line}: {problem}"]
    assert snapshot(good) == before


def test_what_is_no_cell_is_named(good):
    write_book(good, GOOD | {"03-one": []})
    path = good / "book" / "03-one.ipynb"
    path.write_text(json.dumps({"cells": [None, "X = 1"], "nbformat": 4, "nbformat_minor": 5}))
    assert faults_of(tangle.tangle, good) == [
        f"book/03-one.ipynb, cell {index}, line 1: is no cell" for index in range(2)
    ]


def test_a_long_name_of_a_notebook_leaves_its_marker_whole(tmp_path):
    name, id_ = "01-" + "n" * 150, "i" * 64
    write_book(tmp_path, {name: [md("# One"), to("one", "X = 1") | {"id": id_}]})
    tangle.tangle(tmp_path)
    text = (tmp_path / "transformer" / "one.py").read_text(encoding="utf-8")
    assert f"\n# %% book/{name}.ipynb · … · [{id_}]\nX = 1\n" in text


def test_a_module_that_does_not_compile_as_a_whole_is_refused(good):
    write_book(good, GOOD | {r"03-\N": [md("# One"), to("one", "X = 1"), to("one", "Y = 1")]})
    before = snapshot(good)
    (fault,) = faults_of(tangle.tangle, good)
    assert fault.startswith(r"book/03-\N.ipynb, cell c1, line 1: (unicode error)")
    assert fault.endswith("(within one.py)")
    assert snapshot(good) == before


# What may stand anywhere in a notebook's file, and what may stand in a cell.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
PIECES = [
    *"X=1()*:%.'\\\0\ufeff\r#`\n",
    "    ",
    '"""',
    "def f():",
    "class A:",
    "@overload\n",
    "import transformer",
]
PIECES += ["from ", "-" * 3000, "lambda: " * 300, "(" * 150]
SOURCES = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def places(value, path=()):
    """The paths to everything inside a value of JSON."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


BOOK = {
    name: [{"id": f"c{index}", **each} for index, each in enumerate(cells)] for name, cells in GOOD.items()
}


@settings(max_examples=300)
@given(st.data())
def test_any_change_of_a_notebook_is_tangled_or_refused_by_name(data):
    """Whatever stands in a file, a package that compiles comes out, or every file stays as it was."""
    book = copying.deepcopy(BOOK)
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from(list(places(book))[1:]))
        where = book
        for key in path:
            where = where[key]
        where[last] = data.draw(SOURCES if last == "source" and data.draw(st.booleans()) else ANYTHING)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_book(root, GOOD)
        by_hand(root, {"__init__.py": INIT})
        tangle.tangle(root)
        before = snapshot(root / "transformer")
        for name, cells in book.items():
            notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
            (root / "book" / f"{name}.ipynb").write_text(json.dumps(notebook))
        try:
            tangle.tangle(root)
        except tangle.TangleError as error:
            assert error.faults and all(re.match(r"book/\S+\.ipynb", fault) for fault in error.faults)
            assert all(fault.isprintable() for fault in error.faults)
            assert snapshot(root / "transformer") == before
        else:
            for path in (root / "transformer").glob("*.py"):
                compile(path.read_bytes(), path, "exec")
            tangle.check(root)


@settings(max_examples=200)
@given(st.sampled_from(["book/01-shapes.ipynb", "_toc.yml"]), st.data())
def test_damaged_bytes_are_tangled_or_refused_by_name(name, data):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_book(root, GOOD)
        by_hand(root, {"__init__.py": INIT})
        content = bytearray((root / name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        (root / name).write_bytes(content)
        try:
            tangle.tangle(root)
        except tangle.TangleError as error:
            assert error.faults and [*snapshot(root / "transformer")] == ["__init__.py"]


@pytest.mark.parametrize(
    "source",
    ["from transformer import Y  # shows the error", "this is ! no Python\nfrom transformer import Y"],
)
def test_a_cell_that_is_meant_to_fail_may_import_anything(tmp_path, source):
    write_book(tmp_path, {"01-one": [cell(source, "raises-exception")], "02-two": [to("two", "Y = 1")]})
    tangle.tangle(tmp_path)


# ---------- what is touched, and what is not


def test_a_second_run_changes_nothing(good):
    before = snapshot(good)
    assert tangle.tangle(good) == []
    assert snapshot(good) == before


def test_only_what_has_changed_is_written(good):
    before = snapshot(good)
    write_book(good, GOOD | {"03-more": [to("more", "MORE = 1")]})
    assert tangle.tangle(good) == ["wrote transformer/more.py"]
    same = [
        name
        for name, state in snapshot(good / "transformer").items()
        if before.get(f"transformer/{name}") == state
    ]
    assert same == ["__init__.py", "__main__.py", "drawing.py", "shapes.py", "solids.py"]


def edit(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("math.pi", "3"), encoding="utf-8")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def crlf(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (edit, "transformer/shapes.py, line 15: not what the book says"),
        (truncate, "transformer/shapes.py, line 24: not what the book says"),
        (crlf, "transformer/shapes.py, line 1: not what the book says"),
        (Path.unlink, "transformer/shapes.py: missing"),
    ],
)
def test_a_package_that_is_not_the_book_is_found_and_mended(good, change, fault):
    sound = {name: content for name, (content, _) in snapshot(good).items()}
    tangle.check(good)
    change(good / "transformer" / "shapes.py")
    changed = snapshot(good)
    assert faults_of(tangle.check, good) == [fault]
    assert snapshot(good) == changed
    assert len(tangle.tangle(good)) == 1
    assert {name: content for name, (content, _) in snapshot(good).items()} == sound


def test_a_stranger_keeps_its_files(good):
    package = good / "transformer"
    (package / "records" / "toy").mkdir(parents=True)
    own = (package / "shapes.py").read_bytes()
    strange = {
        "py.typed": b"",
        "by_hand.py": b'"""By hand."""\n',
        "quoting.py": b"X = '''\n" + own + b"'''\n",
        "empty.py": b"",
        "notes.txt": own,
        "records/run.json": b"{}",
        "records/toy/model.safetensors": b"\x00",
    }
    for name, content in strange.items():
        (package / name).write_bytes(content)
    before = snapshot(good)
    tangle.check(good)
    assert tangle.tangle(good) == []
    assert snapshot(good) == before


def without(module: str) -> dict[str, list]:
    """The small book, and one module less."""
    return {
        name: [each for each in cells if f"export:{module}" not in each["metadata"]["tags"]]
        for name, cells in GOOD.items()
    }


def test_a_module_that_no_chapter_exports_any_more_is_removed(good):
    write_book(good, without("__main__"))
    assert faults_of(tangle.check, good) == ["transformer/__main__.py: orphaned, no chapter exports it"]
    assert tangle.tangle(good) == ["removed transformer/__main__.py"]
    left = [path.name for path in sorted((good / "transformer").glob("*.py"))]
    assert left == ["__init__.py", "drawing.py", "shapes.py", "solids.py"]


@pytest.mark.parametrize("content", [b"", b"MINE = 1\n", b"# " + tangle.SIGN.encode()])
def test_a_module_that_has_been_taken_over_is_not_removed(good, content):
    (good / "transformer" / "__main__.py").write_bytes(content)
    write_book(good, without("__main__"))
    assert tangle.tangle(good) == []
    assert (good / "transformer" / "__main__.py").read_bytes() == content


def test_a_stranger_in_the_way_stops_everything(good):
    (good / "transformer" / "more.py").write_text("MINE = 1\n")
    write_book(good, GOOD | {"03-more": [to("more", "MORE = 1")]})
    before = snapshot(good)
    for action in (tangle.tangle, tangle.check):
        assert faults_of(action, good) == ["transformer/more.py: not written by tangle; move it away"]
    assert snapshot(good) == before


def test_a_fault_anywhere_leaves_every_file_as_it_was(good):
    write_book(good, {**GOOD, "01-shapes": [to("new", "NEW = 1")], "03-bad": [to("bad", "print()")]})
    before = snapshot(good)
    faults_of(tangle.tangle, good)
    assert snapshot(good) == before


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_text("MINE = 1\n")
    path.symlink_to(path.parent.parent / "elsewhere")


def link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


IN_THE_WAY = "is a folder or a link, and no file; move it away"


@pytest.mark.parametrize("make", [folder, link, link_to_nothing])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("more.py", IN_THE_WAY),
        (f".more.py.{os.getpid()}", "is in the way; remove it"),
        ("more", "is a folder, and would hide the module; move it away"),
    ],
    ids=["the module", "beside it", "without its ending"],
)
def test_what_is_no_file_is_neither_followed_nor_replaced(good, name, make, problem):
    write_book(good, GOOD | {"03-more": [to("more", "MORE = 1")]})
    make(good / "transformer" / name)
    before = snapshot(good)
    if name == "more" and make is not folder:
        tangle.tangle(good)
    else:
        assert faults_of(tangle.tangle, good) == [f"transformer/{name}: {problem}"]
        assert snapshot(good) == before
    assert not (good / "elsewhere").exists() or (good / "elsewhere").read_text() == "MINE = 1\n"
    assert os.path.lexists(good / "transformer" / name)


@pytest.mark.parametrize("make", [Path.touch, link_to_nothing, lambda path: path.symlink_to("elsewhere")])
def test_a_package_that_is_no_folder_is_refused(tmp_path, make):
    write_book(tmp_path, GOOD)
    (tmp_path / "elsewhere").mkdir()
    make(tmp_path / "transformer")
    assert faults_of(tangle.tangle, tmp_path) == ["transformer: is no folder of its own; move it away"]
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("step", [(os, "replace"), (tangle, "write_new")], ids=["replacing", "writing"])
def test_a_broken_disk_leaves_old_content_and_no_rubbish(good, monkeypatch, step):
    before = snapshot(good / "transformer")
    changed = [to("shapes", "circle_area = UNIT = 1"), *GOOD["01-shapes"][-1:]]
    write_book(good, {**GOOD, "01-shapes": changed})

    def fail(*_):
        raise OSError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr(*step, fail)
        with pytest.raises(OSError, match="the disk is full"):
            tangle.tangle(good)
    assert snapshot(good / "transformer") == before
    tangle.tangle(good)
    tangle.check(good)


# ---------- the command


def test_the_command_writes_checks_and_fails(tmp_path):
    write_book(tmp_path, {"01-one": [to("one", "X = 1")]})
    missing = run(SCRIPT, "--check", "--root", tmp_path)
    assert missing.returncode == 1
    assert missing.stderr == "transformer/one.py: missing\n"
    wrote = run(SCRIPT, "--root", ".", cwd=tmp_path)
    assert (wrote.returncode, wrote.stdout) == (0, "wrote transformer/one.py\n")
    for arguments in ([], ["--check"]):
        clean = run(SCRIPT, *arguments, "--root", tmp_path)
        assert (clean.returncode, clean.stdout, clean.stderr) == (
            0,
            "transformer/ is what the book says\n",
            "",
        )


READ_ALL = "import nbformat, sys; [nbformat.read(path, as_version=4) for path in sys.argv[1:]]"


@pytest.mark.slow
def test_this_package_is_what_this_book_says_and_it_is_soon_known(tmp_path):
    def cpu_seconds(*command) -> float:
        before = os.times()
        ran = run(*command, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    checking = cpu_seconds(SCRIPT, "--check")
    assert checking < 10 * cpu_seconds("-c", READ_ALL, *sorted((ROOT / "book").glob("*.ipynb")))
