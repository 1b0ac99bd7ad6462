"""How large the project is, against what it may be.

    python -m pytest tests/test_size.py -s    # prints the tables

A line is a line of a file. A function is counted without its docstring, a class with its methods. The words
of a chapter are those of its prose: no code, no markup, and a formula inside a sentence counts as one.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "package": ["transformer/**/*.py"],
    "tests": ["tests/**/*.py"],
    "tools of the book": ["book/*.py", "book/_ext/*.py", "book/diagrams/*.py"],
    "benchmarks and experiments": ["benchmarks/*.py", "experiments/*.py"],
}
GOALS = {
    "package": 12_000,
    "tests": 24_000,
    "tools of the book": 6_500,
    "benchmarks and experiments": 4_900,
    "modules": 50,
    "private functions used once": 100,
    "per cent of the code not tangled": 60,
    "stays of who reads about `train`": 25,
    "modules of those stays": 10,
}
GROUND_FLOOR = {"files", "weights", "validation"}
WORDS = {
    "01-gradients": 1_900,
    "02-embedding": 2_200,
    "03-attention": 3_200,
    "04-layers": 2_500,
    "05-model": 2_600,
    "06-loss": 2_200,
    "07-training": 2_800,
    "08-decoding": 2_800,
    "09-toy-task": 3_000,
    "10-speed": 2_800,
    "11-long-runs": 2_400,
    "12-text": 2_800,
    "13-translation": 3_500,
    "14-looking-inside": 3_300,
    "15-since-2017": 4_500,
    "16-clinic": 5_000,
    "17-many-machines": 3_800,
    "one-page": 700,
}
LONGEST = {"module": 450, "class": 120, "function": 40}


def files(patterns: list[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf8").splitlines())


def code(path: Path) -> int:
    """Lines that are neither empty nor a comment."""
    text = path.read_text(encoding="utf8")
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


PACKAGE = files(PARTS["package"])


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf8")) for path in PACKAGE}


def is_tangled(path: Path) -> bool:
    return "Written by book/tangle.py" in path.read_text(encoding="utf8")[:400]


def length(node: ast.stmt) -> int:
    """Lines of a class, or of a function without its docstring."""
    whole = node.end_lineno - node.lineno + 1
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
        whole -= node.body[0].end_lineno - node.body[0].lineno + 1
    return whole


def too_long() -> dict[str, int]:
    found = {str(path.relative_to(ROOT)): lines(path) for path in PACKAGE if lines(path) > LONGEST["module"]}
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            if length(node) > LONGEST["class" if isinstance(node, ast.ClassDef) else "function"]:
                found[f"{path.relative_to(ROOT)}:{node.name}"] = length(node)
    return found


def used_once() -> list[str]:
    """Private functions of modules that a single place of the package names."""
    nodes = [node for tree in trees().values() for node in ast.walk(tree)]
    names = Counter(getattr(node, "id", getattr(node, "attr", None)) for node in nodes)
    private = [
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and re.match("_[^_]", node.name)
    ]
    return [name for name in private if names[name] == 1]


def walk() -> list[str]:
    """Where somebody stays who reads about `train`: module after module, from `commands.train.run` into each
    function and class of the package where it is first named. Chapters and the ground floor are known."""
    rooms, read, way = {}, set(), [""]
    for path, tree in trees().items():
        if not (is_tangled(path) or path.stem in GROUND_FLOOR):
            rooms[".".join(path.relative_to(ROOT).with_suffix("").parts)] = tree.body

    def enter(room: str, name: str) -> None:
        for node in rooms.get(room, []):
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                enter(node.module, name)
            if getattr(node, "name", "") == name and node not in read:
                read.add(node)
                way.append(room)
                names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
                for each in sorted(names, key=lambda each: (each.lineno, each.col_offset)):
                    enter(room, each.id)

    enter("transformer.commands.train", "run")
    return [room for before, room in zip(way, way[1:]) if room != before]


def counts() -> dict[str, int]:
    modules = [path for path in PACKAGE if lines(path) > 1]
    tangled = sum(code(path) for path in modules if is_tangled(path)) / sum(map(code, modules))
    return {part: sum(map(lines, files(patterns))) for part, patterns in PARTS.items()} | {
        "modules": len(modules),
        "private functions used once": len(used_once()),
        "per cent of the code not tangled": round(100 * (1 - tangled)),
        "stays of who reads about `train`": len(walk()),
        "modules of those stays": len(set(walk())),
    }


def test_no_part_is_larger_than_its_goal():
    found = counts()
    assert {"transformer.commands.train", "transformer.runs.trainer"} <= set(walk())
    print()
    for part, goal in GOALS.items():
        print(f"{part:34} {found[part]:7,}   goal {goal:,}")
    assert {part: count for part, count in found.items() if count > GOALS[part]} == {}


def words(notebook: Path) -> int:
    """Words of a notebook's prose: its Markdown without code, displayed formulas and markup."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    blocks = (
        r"```\{code.*?```|```(?!\{).*?```|\$\$.*?\$\$|<!--.*?-->|^:(?:\w|-)+:.*?$|^(?:```|:::).*?$|^\(\S+\)=$"
    )
    text = re.sub(blocks, " ", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)\s]*\)|<[^>]+>|\{[\w:-]+\}", " ", text)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\$[^$\n]+\$|`[^`\n]+`", "x", text)))


def test_no_chapter_has_more_words_than_its_budget():
    found = {path.stem: words(path) for path in sorted((ROOT / "book").glob("*.ipynb"))}
    print()
    for chapter, count in found.items():
        print(f"{chapter:34} {count:7,}   goal {WORDS[chapter]:,}")
    print(f"{'all':34} {sum(found.values()):7,}   goal 52,000")
    assert {chapter: count for chapter, count in found.items() if count > WORDS[chapter]} == {}
    assert sum(found.values()) <= 52_000


def test_modules_classes_and_functions_are_short():
    assert list(too_long()) == []
