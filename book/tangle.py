"""Write what the chapters derive into the package `transformer`, cell by cell and byte for byte.

    python book/tangle.py            write what has changed
    python book/tangle.py --check    write nothing; fail where book and package differ
    python book/tangle.py --back     carry edits of the package home into the chapters (book/back.py)

A code cell tagged `export:attention` becomes a piece of `transformer/attention.py`, one tagged
`export:speed/fast` a piece of `transformer/speed/fast.py`. Pieces are copied as they stand, in the order of
`_toc.yml`. Around them tangle writes a header, a marker line above each piece and `__all__`; nothing else.

A module is tangled wholly or written by hand wholly. Tangle writes and removes only what carries its header.
Modules without it, and every `__init__.py`, are written by hand and edited where they stand; tangle reads
them, so that no chapter takes what doesn't exist yet and no imports run in a circle. A book that breaks a
rule is refused whole: every fault is named by file, cell and line, and no file is touched.
"""

import argparse
import ast
import builtins
import dis
import inspect
import json
import keyword
import os
import re
import reprlib
import sys
import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer"
MAIN = "__main__"
NAME = "[a-z][a-z0-9_]{0,63}"  # the form of a module's or a folder's name
MODULE = f"(?:(?:{NAME}/)?{NAME}|{MAIN})"  # of a module with its folder, as tags have it
WIDTH = 110  # of the lines that tangle writes itself

# The third line of every file that tangle writes. By it tangle tells its own files from a stranger's.
SIGN = "Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost."

# What Python's parser and compiler raise for a text that is no program.
NO_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)


class TangleError(Exception):
    """The book, or the package beside it, breaks a rule; one line for each fault."""

    def __init__(self, faults: list[str]):
        self.faults = [printable(fault) for fault in faults]
        super().__init__("\n".join(self.faults))


def printable(text: str) -> str:
    """The text with escapes for what a terminal cannot show, so that a fault stays on its line."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


# ---------- reading: from `_toc.yml` to chapters and their cells


@dataclass
class Cell:
    """A cell of a chapter and where it stands."""

    notebook: str  # path from the root, "book/03-attention.ipynb"
    chapter: int  # place of the notebook in the reading order
    index: int  # place of the cell in the notebook
    id: str
    kind: str  # "code", "markdown" or "raw"
    source: str
    tags: list[str]
    title: str  # of the chapter
    heading: str  # the nearest above the cell
    module: str | None = None  # where the cell is exported to, if anywhere
    tree: ast.Module | None = None  # the cell as Python reads it, if it can

    def fault(self, line: int, problem: str) -> str:
        return f"{self.notebook}, cell {self.id or self.index}, line {line}: {problem}"


@dataclass
class File:
    """A module that is written by hand; its faults are named as those of a cell are."""

    name: str  # path from the root, "transformer/files.py"
    tree: ast.Module

    def fault(self, line: int, problem: str) -> str:
        return f"{self.name}, line {line}: {problem}"


def read_text(root: Path, name: str, purpose: str) -> str:
    """A file beside the book that must be there."""
    try:
        return (root / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TangleError([f"{name}: is missing, and with it {purpose}"]) from None
    except UnicodeDecodeError as error:
        raise TangleError([f"{name}: is not UTF-8, at byte {error.start}"]) from None


def reading_order(root: Path, faults: list[str]) -> list[str]:
    """The notebooks that `_toc.yml` lists, in its order, as paths from the root."""
    order: list[str] = []
    toc = read_text(root, "_toc.yml", "the order of the chapters")
    for number, line in enumerate(toc.splitlines(), start=1):
        entry = re.match(r"""[\s-]*(?:root|file)\s*:\s*["']?([^\s"'#]+)""", line)
        if not entry:
            continue
        page = re.sub(r"\.(ipynb|md)$", "", entry[1])
        notebook = f"{page}.ipynb"
        if page.startswith("/") or ".." in page.split("/"):
            faults.append(f"_toc.yml, line {number}: {page} is not below the folder of _toc.yml")
        elif notebook in order:
            faults.append(f"_toc.yml, line {number}: {page} is listed twice")
        elif (root / notebook).is_file():
            order.append(notebook)
        elif not (root / f"{page}.md").is_file():
            faults.append(f"_toc.yml, line {number}: there is neither {notebook} nor {page}.md")
    for path in sorted((root / "book").glob("*.ipynb")):
        if f"book/{path.name}" not in order:
            faults.append(f"book/{path.name}: is not in _toc.yml")
    return order


def headings(markdown: str) -> Iterator[tuple[int, str]]:
    """The headings of a text and their lines, without what only looks like one inside a fence."""
    fence = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1[`~]*\s*$", flags=re.MULTILINE | re.DOTALL)
    prose = fence.sub(lambda block: "\n" * block[0].count("\n"), markdown)
    for line, text in enumerate(prose.split("\n"), start=1):
        if found := re.match(r"#{1,6} +(.*[^ #])", text):
            yield line, found[1]


def read_chapter(root: Path, notebook: str, chapter: int, faults: list[str]) -> list[Cell]:
    """The cells of one notebook."""
    try:
        found = json.loads((root / notebook).read_bytes())
    except (ValueError, RecursionError) as error:
        faults.append(f"{notebook}: cannot be read as a notebook ({error})")
        return []
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        faults.append(f"{notebook}: cannot be read as a notebook (no cells in format 4)")
        return []
    cells: list[Cell] = []
    seen: set[str] = set()
    above: list[str] = []
    may_lack_ids = found.get("nbformat_minor") in range(5)
    for index, raw in enumerate(found["cells"]):
        if problem := malformed(raw, may_lack_ids, seen):
            known = isinstance(raw, dict) and isinstance(raw.get("id"), str) and raw["id"][:64]
            faults.append(f"{notebook}, cell {known or index}, line 1: {problem}")
            continue
        id_, kind, source = raw.get("id", ""), raw["cell_type"], "".join(raw["source"])
        seen.add(id_)
        cell = Cell(notebook, chapter, index, id_, kind, source, raw["metadata"].get("tags", []), "", "")
        for line, heading in headings(source) if kind == "markdown" else ():
            if control := next((sign for sign in heading if unicodedata.category(sign) in CONTROLS), None):
                faults.append(cell.fault(line, f"{control!a} has no place in a heading"))
            above.append(re.sub(r'[`*$"\\]', "", heading))
        if above:
            cell.title, cell.heading = above[0], above[-1]
        cells.append(cell)
    return cells


CONTROLS = {"Cc", "Cs"}  # the categories of control characters and lone surrogates


def malformed(cell: Any, may_lack_id: bool, seen: set[str]) -> str | None:
    """What is wrong with a cell as the notebook's file has it; None where nothing is.

    A notebook's reader would mend some of it, and the marker line would change with every run.
    """
    if not isinstance(cell, dict):
        return "is no cell"
    if "id" in cell or not may_lack_id:
        id_ = cell.get("id")
        if not isinstance(id_, str) or not re.fullmatch(r"[\w-]{1,64}", id_, flags=re.ASCII):
            return f"its id must be 1 to 64 letters, digits, - or _, not {reprlib.repr(id_)}"
        if id_ in seen:
            return f"another cell has its id, {id_}"
    kind, source, metadata = (cell.get(name) for name in ("cell_type", "source", "metadata"))
    if kind not in ("code", "markdown", "raw"):
        return f"its type must be code, markdown or raw, not {reprlib.repr(kind)}"
    if not isinstance(source, str) and not is_texts(source):
        return "its source must be a text or a list of texts"
    if not isinstance(metadata, dict):
        return f"its metadata must be an object, not {reprlib.repr(metadata)}"
    if not is_texts(tags := metadata.get("tags", [])):
        return f"its tags must be a list of texts, not {reprlib.repr(tags)}"
    return None


def is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# ---------- form: what an exported cell must look like


def exported_to(cell: Cell, faults: list[str]) -> str | None:
    """The module that the tags of a cell name, if they name one."""
    exports = [tag for tag in cell.tags if tag.strip().lower().startswith("export")]
    names = [tag.removeprefix("export:") for tag in exports]
    if not exports:
        return None
    if len(exports) > 1:
        problem = f"a cell goes to one module, not to {' and '.join(names)}"
    elif not re.fullmatch(f"export:{MODULE}", exports[0]) or is_reserved(names[0]):
        problem = f"unknown tag {exports[0]!r}; it should read 'export:<module>', or <folder>/<module>"
    elif cell.kind != "code":
        problem = f"only code can be exported, and this is a {cell.kind} cell"
    elif not cell.id:
        problem = "an exported cell needs an id: save the notebook in format 4.5"
    else:
        return names[0]
    faults.append(cell.fault(1, problem))
    return None


def is_reserved(module: str) -> bool:
    """Whether Python reserves the name of the module or of its folder."""
    return any(keyword.iskeyword(name) for name in module.split("/"))


def parse_exported(cell: Cell, faults: list[str]) -> None:
    """Read an exported cell as Python, and refuse what has no place in a module."""
    lines = cell.source.split("\n")
    if "\r" in cell.source:
        line = next(number for number, text in enumerate(lines, start=1) if "\r" in text)
        faults.append(cell.fault(line, "holds a carriage return; lines end in a line feed alone"))
    try:
        cell.tree = ast.parse(cell.source)
        compile(cell.tree, cell.notebook, "exec")  # sees what the parser does not, such as a stray `return`
        nodes = cell.tree.body
        unfitting = [(node.lineno, problem) for node in nodes if (problem := unfit(node, cell.module))]
    except NO_PYTHON as error:
        line, problem = what_is_wrong(error)
        text = lines[min(line, len(lines)) - 1].strip()[:WIDTH]
        magic = re.match(r"[%!?]|[\w.]+\?+$|[\w, ]+= *[%!]", text)
        faults.append(cell.fault(line, f"{'a magic has no place in a module' if magic else problem}: {text}"))
        return
    if not cell.tree.body:
        faults.append(cell.fault(1, "exports nothing"))
    faults += [cell.fault(line, problem) for line, problem in unfitting]


def what_is_wrong(error: Exception) -> tuple[int, str]:
    """The line and the words of what Python raises for a text that is no program."""
    problem = getattr(error, "msg", None) or str(error) or type(error).__name__
    return getattr(error, "lineno", None) or 1, problem


def unfit(node: ast.stmt, module: str) -> str | None:
    """Why a statement may not stand at the top of a module; None where it may."""
    match node:
        case ast.ImportFrom(module="__future__"):
            return "'from __future__' works at the top of a file alone, and no piece stands there"
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            return "'import *' does not say what it imports"
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return None
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            for target in assigned(node):
                if not isinstance(target, ast.Name):
                    return f"{ast.unparse(target)} is assigned to, and is not a plain name"
                if target.id == "__all__":
                    return "__all__ is for tangle to write"
            return None
        case ast.If() if module == MAIN and ast.unparse(node.test) == f"__name__ == {MAIN!r}":
            return None
        case ast.Expr():
            return f"bare expression: {ast.unparse(node)[:60]}"
    statement = ast.unparse(node).splitlines()[0]
    return f"only imports, constants, functions and classes are exported, not: {statement}"


def assigned(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """The targets of an assignment, with tuples taken apart."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [part for target in targets for part in getattr(target, "elts", [target])]


def parse_loosely(source: str) -> ast.Module | None:
    """Read a cell that stays in the book: a magic counts as `pass`, and what is no Python is left alone."""
    for text in (source, re.sub(r"^([ \t]*)[%!].*", r"\1pass", source, flags=re.MULTILINE)):
        try:
            return ast.parse(text)
        except NO_PYTHON:
            pass
    return None


# ---------- names: what the cells define, import and need, and when


@dataclass
class Binding:
    """Where a module has one of its names from."""

    cell: Cell | File
    line: int
    imported: str  # as `bound` puts it; empty for what the module defines itself
    overload: bool = False  # one of several signatures; the implementation is still to come


@dataclass
class Module:
    """A module of the package, of the pieces of a notebook or by hand, and the names that it binds."""

    name: str  # with its folder, as tags have it, "speed/fast"
    pieces: list[Cell] = field(default_factory=list)
    file: File | None = None  # where it's written by hand
    bindings: dict[str, Binding] = field(default_factory=dict)
    needs: dict[str, tuple[Cell | File, int]] = field(default_factory=dict)  # modules it imports, and where

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0]

    @property
    def path(self) -> str:
        """As Python imports it, "transformer.speed.fast"."""
        return f"{PACKAGE}.{self.name.replace('/', '.')}"

    @property
    def home(self) -> str:
        """The file that it's written in: its notebook, or its own."""
        return self.file.name if self.file else self.pieces[0].notebook

    @property
    def defined(self) -> list[str]:
        return [name for name, binding in self.bindings.items() if not binding.imported]

    @property
    def public(self) -> list[str]:
        return [name for name in self.defined if not name.startswith("_") and self.name != MAIN]


Modules = dict[str, Module]  # by name: their own, or one that is public in them


class Use(NamedTuple):
    """A name of the package that a cell imports."""

    cell: Cell
    line: int
    path: str
    name: str | None
    owner: Module
    whole: bool  # the module itself, not a name in it


def bound(node: ast.stmt) -> list[tuple[str, str]]:
    """The names that a statement at the top of a module binds, and what each is imported by, if it is.

    That is the dotted path of a plain `import`, else "as" or "from".
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [(node.name, "")]
        case ast.Assign() | ast.AnnAssign():
            return [(target.id, "") for target in assigned(node)]
        case ast.Import():
            return [(a.asname, "as") if a.asname else (a.name.partition(".")[0], a.name) for a in node.names]
        case ast.ImportFrom():
            return [(a.asname or a.name, "from") for a in node.names]
    return []


def is_overload(node: ast.stmt) -> bool:
    """Whether a statement only adds a signature to a function that a later statement defines."""
    for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
        match mark:
            case ast.Name("overload") | ast.Attribute(ast.Name("typing"), "overload"):
                return True
    return False


def bind_names(module: Module, faults: list[str]) -> None:
    """Note every name that the pieces bind; none is bound twice, but for the signatures of a function."""
    statements = [(cell, node) for cell in module.pieces for node in cell.tree.body]
    for cell, node in statements:
        if isinstance(node, ast.If) and node is not statements[-1][1]:
            faults.append(cell.fault(node.lineno, f"'if __name__ == {MAIN!r}' must end the module"))
        for name, imported in bound(node):
            new = Binding(cell, node.lineno, imported, is_overload(node))
            old = module.bindings.setdefault(name, new)
            if old.overload and old.cell is cell and isinstance(node, ast.FunctionDef):
                module.bindings[name] = new
            elif old is not new and not same_package(old.imported, imported):
                where = f"cell {old.cell.id}, line {old.line}"
                faults.append(cell.fault(node.lineno, f"{name} is bound already in {where}"))
    for name, binding in module.bindings.items():
        if binding.overload:
            problem = f"{name} has signatures and no implementation after them in its cell"
            faults.append(binding.cell.fault(binding.line, problem))


def same_package(first: str, second: str) -> bool:
    """Whether two bindings agree: `import torch` and `import torch.utils.data` bind the same thing."""
    plain = {first, second}.isdisjoint({"", "as", "from"})
    return plain and first != second


GLOBAL_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}


def needed(code: CodeType, at_once: bool = True) -> Iterator[tuple[str, int, bool]]:
    """The names that code takes from its module, each with its line, and whether the import itself needs it.

    The compiler has decided what is local, what belongs to an enclosing function and what is global, by
    Python's own rules. Its instructions say so.
    """
    local = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            local.add(step.argval)
        elif step.opname in GLOBAL_LOADS and step.argval not in local:
            yield step.argval, step.positions.lineno, at_once
    for inner in code.co_consts:
        if isinstance(inner, CodeType):  # a class, whose body runs now, or a function, which runs later
            yield from needed(inner, at_once and not inner.co_flags & inspect.CO_OPTIMIZED)


def check_uses(module: Module, faults: list[str]) -> None:
    """Every name that a piece uses comes from Python or a piece of the same module, and comes in time."""
    for cell in module.pieces:
        seen = set()
        for name, line, at_once in needed(compile(cell.tree, cell.notebook, "exec")):
            if name in seen or hasattr(builtins, name) or re.fullmatch(r"__\w+__", name):
                continue
            origin = module.bindings.get(name)
            if origin is None:
                problem = f"{name} is neither defined nor imported by a cell of {module.name}"
            elif at_once and (cell.index, line) < (origin.cell.index, origin.line):
                problem = f"{name} is used before it is defined in cell {origin.cell.id}, line {origin.line}"
            else:
                continue
            seen.add(name)
            faults.append(cell.fault(line, problem))


def check_public(modules: Modules, owners: Modules, faults: list[str]) -> None:
    """What a chapter makes public has one owner, and isn't called like a module, which it would hide."""
    tops = {module.folder or module.name for module in modules.values()}
    for module in modules.values():
        for name in module.public if module.pieces else ():
            binding, owner = module.bindings[name], owners[name]
            if owner is not module:
                first = owner.bindings[name].cell
                problem = f"{name} is already public in {owner.name} ({first.notebook}, cell {first.id})"
            elif name in tops:
                kind = "module" if name in modules else "folder"
                problem = f"{name} is the name of a {kind} too, and would hide it"
            else:
                continue
            faults.append(binding.cell.fault(binding.line, problem))


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """All that a cell imports: line, path, and the name taken from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            path = "." * node.level + (node.module or "")
            yield from ((node.lineno, path, alias.name) for alias in node.names)


def check_imports(cell: Cell, modules: Modules, owners: Modules, faults: list[str]) -> list[Use]:
    """What a cell imports from the package has a home, and is imported as it should be; each such use."""
    uses: list[Use] = []
    for line, path, name in imports(cell.tree):
        package, _, inner = path.partition(".")
        module = inner.replace(".", "/")
        owner = modules.get(module) if module else owners.get(name) or modules.get(name)
        if owner is None and module and name:  # from transformer.speed import kernels
            owner = modules.get(f"{module}/{name}")
        what = name or path
        whole = owner is not None and owner.name == "/".join(filter(None, (module, name)))
        problem = None
        if path.startswith("."):
            problem = f"relative import; write 'from {PACKAGE}.<module> import {name}'"
        elif package != PACKAGE or path == PACKAGE and name is None and not cell.module:
            continue
        elif path == PACKAGE and re.fullmatch(r"__\w+__", name or ""):  # __version__ stands in __init__.py
            continue
        elif cell.module and (not (module and name) or whole):
            home, taken = owner.path if owner else f"{PACKAGE}.<module>", "…" if whole else name or "…"
            problem = f"an exported cell names the module: 'from {home} import {taken}'"
        elif name == "*":
            problem = "'import *' does not say what it imports"
        elif owner is None:
            problem = f"neither a chapter nor a file of the package has {path if module else what}"
        elif owner.home == cell.notebook and cell.module in (None, owner.name):
            problem = f"{what} is made in this very chapter, and cannot be imported here"
        else:
            uses.append(Use(cell, line, path, name, owner, whole))
            if cell.module:
                modules[cell.module].needs.setdefault(owner.name, (cell, line))
        if problem:
            faults.append(cell.fault(line, problem))
    return uses


def check_use(use: Use, latest: dict[str, Cell | None], exports: set[str], faults: list[str]) -> None:
    """What a cell takes is there when it comes to it: from no later chapter, and under its name."""
    cell, line, path, name, owner, whole = use
    what, last = name or path, latest.get(owner.name)
    if last and last.chapter > cell.chapter:
        way = "in" if last.notebook == owner.home else f"after what {owner.home} needs from"
        problem = f"{what} comes only later, {way} {last.notebook}"
    elif path != PACKAGE and name and not whole and name not in owner.defined:
        problem = f"{path} defines no {name}"
    elif path == PACKAGE and not whole and name not in exports:
        problem = f"{PACKAGE} itself has no {name}: write 'from {owner.path} import {name}'"
    else:
        return
    faults.append(cell.fault(line, problem))


def latest_chapters(modules: Modules) -> dict[str, Cell | None]:
    """For each module a cell of the last chapter that it needs, itself included; None where it needs none.

    What's written by hand comes right after that chapter.
    """
    latest: dict[str, Cell | None] = {}

    def last(name: str) -> Cell | None:
        if name not in latest:
            own = modules[name].pieces[:1]
            cells = [cell for cell in (*own, *map(last, modules[name].needs)) if cell]
            latest[name] = max(cells, key=lambda cell: cell.chapter, default=None)
        return latest[name]

    for name in modules:
        last(name)
    return latest


def check_circles(modules: Modules, faults: list[str]) -> None:
    """Modules build on each other without a circle; each circle is named once."""
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        for other, (cell, line) in modules[name].needs.items():
            if other in (*above, name):
                faults.append(cell.fault(line, f"{other} imports {name} already, directly or by others"))
            elif other not in done:
                visit(other, (*above, name))
        done.add(name)

    for name in modules:
        if name not in done:
            visit(name, ())


# ---------- what is written by hand


def files_of(package: Path) -> Iterator[tuple[str, Path]]:
    """The Python files of the package and its folders, by their names below it; a link is none."""
    for path in sorted([*package.glob("*.py"), *package.glob("*/*.py")]):
        if path.is_file() and not path.is_symlink() and not path.parent.is_symlink():
            yield path.relative_to(package).as_posix(), path


def read_by_hand(root: Path, taken: Modules, faults: list[str]) -> Modules:
    """The modules that are written by hand: what each defines, and which others it imports.

    What stands in the place of a chapter's module is left to `differences`, which refuses it.
    """
    modules: Modules = {}
    for name, path in files_of(root / PACKAGE):
        module = name.removesuffix(".py")
        if module in taken or path.name == "__init__.py" or signed(content := path.read_bytes()):
            continue
        file = File(f"{PACKAGE}/{name}", ast.Module([], []))
        try:
            file.tree = ast.parse(content)
        except NO_PYTHON as error:
            faults.append(file.fault(*what_is_wrong(error)))
        bindings = {
            one: Binding(file, node.lineno, imported)
            for node in file.tree.body
            for one, imported in bound(node)
        }
        modules[module] = Module(module, file=file, bindings=bindings)
    for module in modules.values():
        for line, path, name in imports(module.file.tree):
            inner = path.removeprefix(f"{PACKAGE}.").replace(".", "/")
            for other in (inner, f"{inner}/{name}", name if path == PACKAGE else ""):
                if other in modules or other in taken:
                    module.needs.setdefault(other, (module.file, line))
    return modules


def exports_of(package: Path) -> dict[str, str]:
    """The names that `__init__.py` imports, and from where: what the package itself has."""
    init = package / "__init__.py"
    try:
        tree = ast.parse(init.read_bytes() if init.is_file() else b"")
    except NO_PYTHON as error:
        line, problem = what_is_wrong(error)
        raise TangleError([f"{PACKAGE}/__init__.py, line {line}: {problem}"]) from None
    return {name: path for _, path, name in imports(tree) if name and path.startswith(f"{PACKAGE}.")}


def read_book(root: Path) -> Modules:
    """The modules that the chapters export, in reading order."""
    faults: list[str] = []
    chapters = enumerate(reading_order(root, faults))
    cells = [cell for number, notebook in chapters for cell in read_chapter(root, notebook, number, faults)]
    modules: Modules = {}
    for cell in cells:
        cell.module = exported_to(cell, faults)
        if cell.module:
            module = modules.setdefault(cell.module, Module(cell.module))
            module.pieces.append(cell)
            if module.home != cell.notebook:
                faults.append(cell.fault(1, f"module {cell.module} belongs to {module.home} already"))
            parse_exported(cell, faults)
        elif cell.kind == "code" and "raises-exception" not in cell.tags:
            cell.tree = parse_loosely(cell.source)
    everything = modules | read_by_hand(root, modules, faults)
    for module in everything.values():
        if module.folder in everything:
            faults.append(first_fault(module, f"{module.folder} is a module too, and no folder"))
    if faults:  # names are worth a look only where the form is right
        raise TangleError(faults)

    for module in modules.values():
        bind_names(module, faults)
        check_uses(module, faults)
    owners: Modules = {}
    for module in everything.values():
        owners |= {name: module for name in module.public if name not in owners}
    check_public(everything, owners, faults)
    exports = exports_of(root / PACKAGE)
    for name, path in exports.items():  # a name that several have is the one that `__init__.py` imports
        home = path.removeprefix(f"{PACKAGE}.").replace(".", "/")
        owners |= {name: everything[home]} if home in everything else {}
    uses: list[Use] = []
    for cell in cells:
        if cell.tree:
            uses += check_imports(cell, everything, owners, faults)
    known = len(faults)
    check_circles(everything, faults)
    latest = latest_chapters(everything) if len(faults) == known else {}  # in a circle nothing comes first
    for use in uses:
        check_use(use, latest, set(exports), faults)
    if faults:
        raise TangleError(faults)
    return modules


def first_fault(module: Module, problem: str) -> str:
    """A fault of a module as a whole, at its first piece or line."""
    return (module.file or module.pieces[0]).fault(1, problem)


# ---------- writing: from pieces to the package


def fitted(before: str, text: str, after: str) -> str:
    """The three on one line, the middle one shortened where that is too long."""
    room = max(WIDTH - len(before + after), 1)
    return before + textwrap.shorten(text, room, placeholder=" …") + after


def header(first_line: str) -> str:
    """The docstring of a generated file."""
    return f'{first_line}\n\n{SIGN}\n"""\n'


def all_of(names: list[str]) -> str:
    """The list of public names on one line or, where that's too long, one name to a line."""
    quoted = [f'"{name}"' for name in names]
    short = f"__all__ = [{', '.join(quoted)}]"
    if len(short) > WIDTH:
        short = "__all__ = [\n" + "".join(f"    {name},\n" for name in quoted) + "]"
    return f"\n{short}\n"


def render_module(module: Module, faults: list[str]) -> str:
    """The text of a module, which Python must be able to read as a whole too."""
    first = module.pieces[0]
    text = header(fitted(f'"""{module.path}, from {first.notebook}, "', first.title, '".'))
    if module.name != MAIN:
        text += all_of(module.public)
    begins: list[tuple[int, Cell]] = []  # the line of the module above each piece
    for cell in module.pieces:
        marker = fitted(f"# %% {cell.notebook} · ", cell.heading, f" · [{cell.id}]")
        begins.append((text.count("\n") + 3, cell))
        text += f"\n\n{marker}\n{cell.source}\n"
    try:
        compile(text, f"{module.name}.py", "exec")
    except NO_PYTHON as error:
        line, problem = what_is_wrong(error)
        above, cell = next((piece for piece in reversed(begins) if piece[0] < line), begins[0])
        faults.append(cell.fault(max(line - above, 1), f"{problem} (within {module.name}.py)"))
    return text


def signed(content: bytes) -> bool:
    return content.splitlines()[2:3] == [SIGN.encode()]


def differences(root: Path, modules: Modules | None = None) -> dict[Path, bytes | None]:
    """What must be written to make the package what the book says, and (as None) what must be removed.

    A file is tangle's own to change or to remove if it has tangle's header.
    `modules` are those of a book that is about to be written; None takes them from the book that is there.
    """
    package, faults = root / PACKAGE, []
    if package.is_symlink() or package.exists() and not package.is_dir():
        raise TangleError([f"{PACKAGE}: is no folder of its own; move it away"])
    modules = read_book(root) if modules is None else modules
    texts = {f"{module.name}.py": render_module(module, faults) for module in modules.values()}
    for folder in {module.folder for module in modules.values()} - {""}:
        place = package / folder
        if place.is_symlink() or place.exists() and not place.is_dir():
            faults.append(f"{PACKAGE}/{folder}: is a file or a link, and no folder; move it away")
    for name in modules:
        if (package / name).is_dir():
            faults.append(f"{PACKAGE}/{name}: is a folder, and would hide the module; move it away")
    found = {name: path.read_bytes() for name, path in files_of(package)}
    for name in texts:
        if name in found and not signed(found[name]):
            faults.append(f"{PACKAGE}/{name}: not written by tangle; move it away")
        elif name not in found and os.path.lexists(package / name):
            faults.append(f"{PACKAGE}/{name}: is a folder or a link, and no file; move it away")
    if faults:
        raise TangleError(faults)
    wanted = {name: text.encode() for name, text in texts.items()}
    changed = {package / name: content for name, content in wanted.items() if found.get(name) != content}
    gone = [name for name in found.keys() - wanted.keys() if signed(found[name])]
    return changed | {package / name: None for name in sorted(gone)}


def shown(path: Path, root: Path) -> str:
    """A file as messages name it."""
    return path.relative_to(root).as_posix()


def check(root: Path) -> None:
    """Raise TangleError where the package is not what the book says, naming every such file."""
    faults = []
    for path, content in differences(root).items():
        name = shown(path, root)
        if content is None:
            faults.append(f"{name}: orphaned, no chapter exports it")
        elif not path.exists():
            faults.append(f"{name}: missing")
        else:
            pairs = zip(path.read_bytes().split(b"\n") + [None], content.split(b"\n") + [None])
            line = next(number for number, (stands, ought) in enumerate(pairs, start=1) if stands != ought)
            faults.append(f"{name}, line {line}: not what the book says")
    if faults:
        raise TangleError(faults)


def write_new(root: Path, path: Path, content: bytes) -> None:
    """Write a file that is not there yet; a link of its name is not followed."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise TangleError([f"{shown(path, root)}: is in the way; remove it"]) from None
    try:
        with file:
            file.write(content)
    except BaseException:
        path.unlink()
        raise


def tangle(root: Path) -> list[str]:
    """Make the package what the book says, each file in one step or not at all; returns what was done."""
    return write(root, differences(root))


def write(root: Path, changes: dict[Path, bytes | None]) -> list[str]:
    """Put the files in place once the content of each lies beside it, or none; returns what was done."""
    for folder in {root / PACKAGE, *(path.parent for path, content in changes.items() if content)}:
        folder.mkdir(parents=True, exist_ok=True)
    beside: dict[Path, Path] = {}  # by path, the new content under a name of its own
    try:
        for path, content in changes.items():
            if content is not None:
                temporary = path.with_name(f".{path.name}.{os.getpid()}")
                write_new(root, temporary, content)
                beside[path] = temporary
        for path in changes.keys() - beside.keys():
            path.unlink()
        for path, temporary in beside.items():
            os.replace(temporary, path)
    finally:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)
    return [f"{'wrote' if content else 'removed'} {shown(path, root)}" for path, content in changes.items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the package out of the chapters.")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="only say where book and package differ")
    what.add_argument("--back", action="store_true", help="carry edits of the package home into the chapters")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of _toc.yml")
    options = parser.parse_args(arguments)
    try:
        if options.back:
            from back import back  # which is built on this module

            done = back(options.root)
        else:
            done = check(options.root) if options.check else tangle(options.root)
    except TangleError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(printable(f"{error.filename or PACKAGE}: {error.strerror or error}"), file=sys.stderr)
        return 1
    print("\n".join(done or [f"{PACKAGE}/ is what the book says"]))
    return 0


if __name__ == "__main__":
    import tangle  # under its own name, so that what imports it meets the same classes

    sys.exit(tangle.main())
