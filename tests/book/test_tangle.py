"""The rules of `book/tangle.py`, on small books that keep or break them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tangle

SCRIPT = Path(tangle.__file__)


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


def test_the_package_imports(good):
    code = "import transformer as t; print(*t.__all__, t.shapes.__doc__.splitlines()[0], t.Pen.width)"
    shown = run("-c", code, cwd=good)
    assert shown.stdout == (
        'circle_area Pen cylinder_volume transformer.shapes, from book/01-shapes.ipynb, "Shapes". 1.0\n'
    ), shown.stderr


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
    "a circle by a string": (
        {"a.py": "from transformer import b\n", "b.py": "import m\nA = m.import_module('transformer.a')"},
        [[cell("1")]],
        "transformer/b.py, line 2: a imports b already, directly or by others",
    ),
    "a package that hides a chapter's": (
        {"one/__init__.py": ""},
        [[to("one", "X = 1")]],
        "transformer/one/__init__.py: hides transformer/one.py; move it away",
    ),
    "in the place of a chapter's": (
        {"one.py": "X = 2\n"},
        [[to("one", "X = 1")]],
        "transformer/one.py: not written by tangle; move it away",
    ),
    "no Python": (
        {"tool.py": "X = (\n"},
        [[to("one", "X = 1")]],
        "transformer/tool.py, line 1: '(' was never closed",
    ),
    "what it does not define": (
        {"tool.py": "import math\n"},
        [[cell("from transformer.tool import math")]],
        "book/01-one.ipynb, cell c0, line 1: transformer.tool defines no math",
    ),
    "what the package does not import": (
        {"tool.py": "T = 1\n", "__init__.py": ""},
        [[cell("from transformer import T")]],
        "book/01-one.ipynb, cell c0, line 1: neither a chapter nor a file of the package has T",
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
}


@pytest.mark.parametrize("source", SURVIVORS.values(), ids=SURVIVORS)
def test_a_piece_survives_byte_for_byte(tmp_path, source):
    write_book(tmp_path, {"01-one": [md("# One"), to("one", source)]})
    tangle.tangle(tmp_path)
    content = (tmp_path / "transformer" / "one.py").read_bytes()
    assert content.endswith(f"\n\n\n# %% book/01-one.ipynb · One · [c1]\n{source}\n".encode())
    compile(content, "one.py", "exec")


# ---------- what is refused

ONLY = "only imports, constants, functions and classes are exported, not:"
OWN = "is made in this very chapter, and cannot be imported here"

# One exported cell, the line of its fault, and what is said of it.
CELL_FAULTS = [
    ("import math\n%matplotlib inline", 2, "a magic has no place in a module: %matplotlib inline"),
    ("X = !ls", 1, "a magic has no place in a module: X = !ls"),
    ("X = 1\ndef f(:\n    pass", 2, "invalid syntax: def f(:"),
    ("X = 1\nreturn X", 2, "'return' outside function: return X"),
    ("X = 1\nX", 2, "bare expression: X"),
    ('"""A text."""\nX = 1', 1, "bare expression: 'A text.'"),
    ("for i in range(3):\n    X = i", 1, f"{ONLY} for i in range(3):"),
    ("X: int", 1, f"{ONLY} X: int"),
    ("class A:\n    pass\n\n\nA.x = 1", 5, "A.x is assigned to, and is not a plain name"),
    ("X = 1\n__all__ = ['X']", 2, "__all__ is for tangle to write"),
    ("def f():\n    pass\n\n\nf = 1", 5, "f is bound already in book/01-one.ipynb, cell c0, line 1"),
    ("pi = 3\nfrom math import pi", 2, "pi is bound already in book/01-one.ipynb, cell c0, line 1"),
    ("def f(x):\n    y = x\n    return y + n", 3, "n is neither defined nor imported by a cell of one"),
    (
        "class A:\n    n = 1\n    def f(self): return n",
        3,
        "n is neither defined nor imported by a cell of one",
    ),
    ("@n\ndef f():\n    pass", 1, "n is neither defined nor imported by a cell of one"),
    ("from . import two", 1, "relative import; write 'from transformer.<module> import two'"),
    ("import transformer", 1, "an exported cell names the module: 'from transformer.<module> import …'"),
    ("X = __import__('transformer.no')", 1, "neither a chapter nor a file of the package has transformer.no"),
    ("from transformer.no import f", 1, "neither a chapter nor a file of the package has f"),
    ("def g():\n    from transformer.one import f\n    return f()\n\n\ndef f(): ...", 2, f"f {OWN}"),
]


@pytest.mark.parametrize(("source", "line", "problem"), CELL_FAULTS)
def test_a_cell_is_refused(tmp_path, source, line, problem):
    write_book(tmp_path, {"01-one": [to("one", source)]})
    assert faults_of(tangle.tangle, tmp_path) == [f"book/01-one.ipynb, cell c0, line {line}: {problem}"]
    assert not (tmp_path / "transformer").exists()


# The cells of chapters 01-one and 02-two, and all that is said of them, each as "chapter cell line: problem".
BOOK_FAULTS = {
    "tags": (
        [
            [
                cell("X = 1", "exported"),
                cell("X = 1", " EXPORT:one"),
                to("a.b", "X = 1"),
                to("a/b/c", "X = 1"),
            ],
            [cell("X = 1", "export:one", "export:two"), md("# One", "export:one")],
        ],
        *(
            f"01-one c{number} 1: unknown tag {tag!r}; it should read 'export:<module>', or <folder>/<module>"
            for number, tag in enumerate(("exported", " EXPORT:one", "export:a.b", "export:a/b/c"))
        ),
        "02-two c0 1: a cell goes to one module, not to export:one and export:two",
        "02-two c1 1: only code can be exported, and this is a markdown cell",
    ),
    "two notebooks for one module": (
        [[to("one", "X = 1")], [to("one", "Y = 1")]],
        "02-two c0 1: module one belongs to book/01-one.ipynb already",
    ),
    "redefinition in another cell": (
        [[to("one", "def f():\n    pass"), md("Better:"), to("one", "X = 1\n\n\ndef f():\n    pass")]],
        "01-one c2 4: f is bound already in book/01-one.ipynb, cell c0, line 1",
    ),
    "a name from an untagged cell": (
        [[cell("import math\nN = 3"), to("one", "X = N"), to("one", "def f():\n    return math.pi")]],
        "01-one c1 1: N is neither defined nor imported by a cell of one",
        "01-one c2 2: math is neither defined nor imported by a cell of one",
    ),
    "imports of a later chapter": (
        [
            [
                to("one", "def f():\n    import os\n    from transformer.two import Y"),
                cell("X = 1\nfrom transformer.two import Y"),
                cell("%time\nimport transformer.two"),
            ],
            [to("two", "Y = 1")],
        ],
        "01-one c0 3: Y comes only later, in book/02-two.ipynb",
        "01-one c1 2: Y comes only later, in book/02-two.ipynb",
        "01-one c2 2: transformer.two comes only later, in book/02-two.ipynb",
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
    "exported imports of whole modules": (
        [[to("fast/one", "X = 1")], [to("two", "from transformer.fast import one")]],
        "02-two c0 1: an exported cell names the module: 'from transformer.fast.one import …'",
    ),
    "imports of what is not there": (
        [
            [to("fast/one", "import math")],
            [to("two", "from transformer.fast.one import math"), cell("from transformer import fast, Z")],
        ],
        "02-two c0 1: transformer.fast.one defines no math",
        "02-two c1 1: neither a chapter nor a file of the package has fast",
        "02-two c1 1: neither a chapter nor a file of the package has Z",
    ),
    "untagged import of the chapter's own": (
        [[to("one", "X = 1"), cell("%time\nif 1:\n    from transformer import one")]],
        f"01-one c1 3: one {OWN}",
    ),
}


@pytest.mark.parametrize("rows", BOOK_FAULTS.values(), ids=BOOK_FAULTS)
def test_a_book_is_refused(tmp_path, rows):
    chapters, *faults = rows
    write_book(tmp_path, dict(zip(("01-one", "02-two"), chapters, strict=False)))
    expected = [
        re.sub(r"^(\S+) (\S+) (\d+): ", r"book/\1.ipynb, cell \2, line \3: ", fault) for fault in faults
    ]
    assert faults_of(tangle.tangle, tmp_path) == faults_of(tangle.check, tmp_path) == expected
    assert not (tmp_path / "transformer").exists()


def test_a_notebook_that_is_not_in_the_contents_is_refused(tmp_path):
    write_book(tmp_path, {"01-one": [to("one", "X = 1")]}, toc="root: book/intro\n")
    assert faults_of(tangle.tangle, tmp_path) == ["book/01-one.ipynb: is not in _toc.yml"]


@pytest.mark.parametrize("content", ["{", b"\xff\xfe\x00", "[]", '{"cells": [null]}', '{"nbformat": 3}'])
def test_what_is_no_notebook_is_refused(good, content):
    data = content if isinstance(content, bytes) else content.encode()
    (good / "book" / "02-solids.ipynb").write_bytes(data)
    before = snapshot(good)
    (fault,) = faults_of(tangle.tangle, good)
    assert fault.startswith("book/02-solids.ipynb: cannot be read as a notebook (")
    assert snapshot(good) == before


def test_a_module_that_does_not_compile_as_a_whole_is_refused(tmp_path):
    write_book(tmp_path, {"01-one": [to("one", "X = 1"), to("one", "from __future__ import annotations")]})
    (fault,) = faults_of(tangle.tangle, tmp_path)
    assert fault.startswith("book/01-one.ipynb: from __future__ imports must occur") and "one.py" in fault


@pytest.mark.parametrize(
    "source",
    ["from transformer import Y  # shows the error", "this is ! no Python\nfrom transformer import Y"],
)
def test_a_cell_that_is_meant_to_fail_may_import_anything(tmp_path, source):
    write_book(tmp_path, {"01-one": [cell(source, "raises-exception")], "02-two": [to("two", "Y = 1")]})
    tangle.tangle(tmp_path)


# ---------- what is touched, and what is not


def test_only_what_has_changed_is_written(good):
    before = snapshot(good)
    assert tangle.tangle(good) == [] and snapshot(good) == before
    write_book(good, GOOD | {"03-more": [to("more", "MORE = 1")]})
    assert tangle.tangle(good) == ["wrote transformer/more.py"]
    after = snapshot(good / "transformer")
    same = [name for name, state in after.items() if before.get(f"transformer/{name}") == state]
    assert same == ["__init__.py", "drawing.py", "shapes.py", "solids.py"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"math.pi", b"3", "transformer/shapes.py, line 15: not what the book says"),
        (
            b"UNIT: float = 1.0\n",
            b"UNIT: float = 1.0",
            "transformer/shapes.py, line 24: not what the book says",
        ),
        (b"\n", b"\r\n", "transformer/shapes.py, line 1: not what the book says"),
        (None, None, "transformer/shapes.py: missing"),
    ],
)
def test_a_package_that_is_not_the_book_is_found_and_mended(good, old, new, fault):
    sound = {name: content for name, (content, _) in snapshot(good).items()}
    tangle.check(good)
    path = good / "transformer" / "shapes.py"
    path.write_bytes(path.read_bytes().replace(old, new)) if old else path.unlink()
    changed = snapshot(good)
    assert faults_of(tangle.check, good) == [fault]
    assert snapshot(good) == changed
    assert len(tangle.tangle(good)) == 1
    assert {name: content for name, (content, _) in snapshot(good).items()} == sound


def test_a_stranger_keeps_its_files(good):
    own = (good / "transformer" / "shapes.py").read_text(encoding="utf-8")
    strange = {"py.typed": "", "quoting.py": f"X = '''\n{own}'''\n", "empty.py": "", "records/run.json": "{}"}
    by_hand(good, strange)
    before = snapshot(good)
    tangle.check(good)
    assert tangle.tangle(good) == []
    assert snapshot(good) == before


def test_a_fault_anywhere_leaves_every_file_as_it_was(good):
    write_book(good, {**GOOD, "01-shapes": [to("new", "NEW = 1")], "03-bad": [to("bad", "print()")]})
    before = snapshot(good)
    faults_of(tangle.tangle, good)
    assert snapshot(good) == before


def test_the_command_writes_checks_and_fails(tmp_path):
    write_book(tmp_path, {"01-one": [to("one", "X = 1")]})
    missing = run(SCRIPT, "--check", "--root", tmp_path)
    assert (missing.returncode, missing.stderr) == (1, "transformer/one.py: missing\n")
    wrote = run(SCRIPT, "--root", ".", cwd=tmp_path)
    assert (wrote.returncode, wrote.stdout) == (0, "wrote transformer/one.py\n")
    clean = run(SCRIPT, "--check", "--root", tmp_path)
    assert (clean.returncode, clean.stdout) == (0, "transformer/ is what the book says\n")
