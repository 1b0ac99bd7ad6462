"""Write what the chapters derive into the package `transformer`, cell by cell and byte for byte.

    python book/tangle.py            write what has changed
    python book/tangle.py --check    write nothing; fail where book and package differ
    python book/tangle.py --back     carry edits of the package home into the chapters (book/back.py)

A code cell tagged `export:attention` becomes a piece of `transformer/attention.py`, one tagged
`export:modern/parts` a piece of `transformer/modern/parts.py`. Pieces are copied as they stand, in the order
of `_toc.yml`. Around them tangle writes a header, a marker line above each piece and `__all__`; nothing else.

A module is tangled wholly or written by hand wholly. Tangle writes and removes only what carries its header.
Modules without it, and every `__init__.py`, are written by hand and edited where they stand; tangle reads
them, so that no chapter takes what doesn't exist yet and no imports run in a circle. A book that breaks a
rule is refused whole: every fault is named by file, cell and line, and no file is touched.
"""

import argparse
import ast
import builtins
import dis
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer"
TAG = re.compile(r"export:((?:[a-z]\w*/)?[a-z]\w*)", flags=re.ASCII)
WIDTH = 110  # of the lines that tangle writes itself

# The third line of every file that tangle writes. By it tangle tells its own files from a stranger's.
SIGN = "Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost."

NO_PYTHON = (SyntaxError, ValueError)  # what the parser and the compiler raise for a text that is no program


class TangleError(Exception):
    """The book, or the package beside it, breaks a rule; one line for each fault."""

    def __init__(self, faults: list[str]):
        self.faults = faults
        super().__init__("\n".join(faults))


# ---------- reading: from `_toc.yml` to chapters and their cells


@dataclass
class Cell:
    """A cell of a chapter and where it stands."""

    notebook: str  # path from the root, "book/03-attention.ipynb"
    chapter: int  # place of the notebook in the reading order
    id: str
    kind: str  # "code", "markdown" or "raw"
    source: str
    tags: list[str]
    title: str = ""  # of the chapter
    heading: str = ""  # the nearest above the cell
    module: str | None = None  # where the cell is exported to, if anywhere
    tree: ast.Module | None = None  # the cell as Python reads it, if it can

    def at(self, line: int) -> str:
        return f"{self.notebook}, cell {self.id}, line {line}"


@dataclass
class Module:
    """A module of the package, of the pieces of a notebook or by hand, and the names that it binds."""

    name: str  # with its folder, as tags have it, "modern/parts"
    pieces: list[Cell] = field(default_factory=list)  # none where it's written by hand
    names: dict[str, tuple[str, ast.stmt]] = field(default_factory=dict)  # by name, where it's bound, and how
    imported: list[tuple[str, str, str | None]] = field(default_factory=list)  # where, path, name
    needs: dict[str, str] = field(default_factory=dict)  # modules that it imports, and where

    @property
    def path(self) -> str:
        """As Python imports it, "transformer.modern.parts"."""
        return f"{PACKAGE}.{self.name.replace('/', '.')}"

    @property
    def home(self) -> str:
        """The file that it's written in: its notebook, or its own."""
        return self.pieces[0].notebook if self.pieces else f"{PACKAGE}/{self.name}.py"

    @property
    def defined(self) -> list[str]:
        return [name for name, (_, node) in self.names.items() if not isinstance(node, IMPORT)]

    @property
    def public(self) -> list[str]:
        return [name for name in self.defined if not name.startswith("_")]


Modules = dict[str, Module]
IMPORT = (ast.Import, ast.ImportFrom)


def reading_order(root: Path, faults: list[str]) -> list[str]:
    """The notebooks that `_toc.yml` lists, in its order, as paths from the root."""
    contents = (root / "_toc.yml").read_text(encoding="utf-8")
    entries = re.findall(r"""^[\s-]*(?:root|file)\s*:\s*["']?([^\s"'#]+)""", contents, flags=re.MULTILINE)
    order = [re.sub(r"\.(ipynb|md)$", "", entry) + ".ipynb" for entry in entries]
    there = [f"book/{path.name}" for path in sorted((root / "book").glob("*.ipynb"))]
    faults += [f"{name}: is not in _toc.yml" for name in there if name not in order]
    return [name for name in order if (root / name).is_file()]


def headings(markdown: str) -> list[str]:
    """The headings of a text, without what only looks like one inside a fence."""
    fence = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1[`~]*\s*$", flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#{1,6} +(.*[^ #])", fence.sub("", markdown), flags=re.MULTILINE)
    return [re.sub(r'[`*$"\\]', "", heading) for heading in found]


def read_chapter(root: Path, notebook: str, chapter: int, faults: list[str]) -> list[Cell]:
    """The cells of one notebook."""
    cells: list[Cell] = []
    above: list[str] = []
    try:
        for raw in json.loads((root / notebook).read_bytes())["cells"]:
            source, tags = "".join(raw["source"]), raw["metadata"].get("tags", [])
            above += headings(source) if raw["cell_type"] == "markdown" else []
            titles = (above[0], above[-1]) if above else ()
            cells.append(Cell(notebook, chapter, raw["id"], raw["cell_type"], source, tags, *titles))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        faults.append(f"{notebook}: cannot be read as a notebook ({type(error).__name__}: {error})")
    ids = [cell.id for cell in cells]
    faults += [
        f"{notebook}: several cells have the id {id_}" for id_ in sorted(set(ids)) if ids.count(id_) > 1
    ]
    return cells


# ---------- form: what an exported cell must look like


def exported_to(cell: Cell, faults: list[str]) -> str | None:
    """The module that the tags of a cell name, if they name one."""
    exports = [tag for tag in cell.tags if tag.strip().lower().startswith("export")]
    if not exports:
        return None
    found = TAG.fullmatch(exports[0])
    if len(exports) > 1:
        problem = f"a cell goes to one module, not to {' and '.join(exports)}"
    elif not found:
        problem = f"unknown tag {exports[0]!r}; it should read 'export:<module>', or <folder>/<module>"
    elif cell.kind != "code":
        problem = f"only code can be exported, and this is a {cell.kind} cell"
    else:
        return found[1]
    faults.append(f"{cell.at(1)}: {problem}")
    return None


def parse_exported(cell: Cell, faults: list[str]) -> None:
    """Read an exported cell as Python, and refuse what has no place in a module."""
    try:
        compile(cell.source, cell.notebook, "exec")  # sees what the parser does not, such as a stray `return`
        cell.tree = ast.parse(cell.source)
    except NO_PYTHON as error:
        line, problem = what_is_wrong(error)
        text = cell.source.split("\n")[line - 1].strip()[:WIDTH]
        magic = re.match(r"[%!?]|[\w.]+\?+$|[\w, ]+= *[%!]", text)
        faults.append(f"{cell.at(line)}: {'a magic has no place in a module' if magic else problem}: {text}")
        return
    for node in cell.tree.body:
        if problem := unfit(node):
            faults.append(f"{cell.at(node.lineno)}: {problem}")


def what_is_wrong(error: Exception) -> tuple[int, str]:
    """The line and the words of what Python raises for a text that is no program."""
    return getattr(error, "lineno", None) or 1, getattr(error, "msg", None) or str(error)


def unfit(node: ast.stmt) -> str | None:
    """Why a statement may not stand at the top of a module; None where it may."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return None
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            for target in assigned(node):
                if not isinstance(target, ast.Name):
                    return f"{ast.unparse(target)} is assigned to, and is not a plain name"
                if target.id == "__all__":
                    return "__all__ is for tangle to write"
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
    try:
        return ast.parse(re.sub(r"^([ \t]*)[%!].*", r"\1pass", source, flags=re.MULTILINE))
    except NO_PYTHON:
        return None


# ---------- names: what the cells define, import and need


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module binds."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Assign() | ast.AnnAssign():
            return [target.id for target in assigned(node) if isinstance(target, ast.Name)]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


def bind_names(module: Module, faults: list[str]) -> None:
    """Note every name that the pieces bind; only `import a` and `import a.b` bind one twice."""
    for cell in module.pieces:
        for node in cell.tree.body:
            for name in bound(node):
                where, _ = module.names.setdefault(name, (cell.at(node.lineno), node))
                if where != cell.at(node.lineno) and not isinstance(node, ast.Import):
                    faults.append(f"{cell.at(node.lineno)}: {name} is bound already in {where}")


GLOBAL_LOADS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}


def needed(code: CodeType) -> Iterator[tuple[str, int]]:
    """The names that code takes from its module, each with its line.

    The compiler has decided what is local, what belongs to an enclosing function and what is global, by
    Python's own rules. Its instructions say so.
    """
    local = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            local.add(step.argval)
        elif step.opname in GLOBAL_LOADS and step.argval not in local:
            yield step.argval, step.positions.lineno
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from needed(inner)


def check_uses(module: Module, faults: list[str]) -> None:
    """Every name that a piece uses comes from Python or from a piece of the same module."""
    known = {*module.names, *dir(builtins), "__annotations__", "__class__", "__file__"}
    for cell in module.pieces:
        lines = dict(reversed(list(needed(compile(cell.source, cell.notebook, "exec")))))  # its first use
        for name in [name for name in reversed(lines) if name not in known]:
            problem = f"{name} is neither defined nor imported by a cell of {module.name}"
            faults.append(f"{cell.at(lines[name])}: {problem}")


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """All that a cell imports: line, path, and the name taken from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            path = "." * node.level + (node.module or "")
            yield from ((node.lineno, path, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and (path := imported_by_string(node)):
            yield node.lineno, path, None


def imported_by_string(call: ast.Call) -> str | None:
    """The path of a module of the package that a call such as `import_module("transformer.x")` names."""
    function = getattr(call.func, "attr", getattr(call.func, "id", None))
    match call.args:
        case [ast.Constant(value=str(path)), *_] if function in ("import_module", "__import__"):
            return path if path.partition(".")[0] == PACKAGE else None
    return None


def owner_of(
    path: str, name: str | None, modules: Modules, exports: dict[str, str]
) -> tuple[Module | None, bool]:
    """The module that an import takes, or takes a name from, and whether it takes the whole module."""
    inner = path.removeprefix(PACKAGE).strip(".").replace(".", "/")
    whole = modules.get("/".join(filter(None, (inner, name))))
    return whole or modules.get(inner or exports.get(name or "", "")), whole is not None


def check_imports(
    cell: Cell, modules: Modules, exports: dict[str, str], latest: dict[str, Cell | None]
) -> Iterator[str]:
    """What a cell imports from the package has a home, is there by now, and is imported as it should be."""
    for line, path, name in imports(cell.tree):
        if path.startswith("."):
            yield f"{cell.at(line)}: relative import; write 'from {PACKAGE}.<module> import {name}'"
        if path.partition(".")[0] != PACKAGE or re.fullmatch(r"__\w+__", name or ""):
            continue  # __version__ stands in __init__.py
        if path == PACKAGE and name is None and not cell.module:
            continue
        owner, whole = owner_of(path, name, modules, exports)
        what, last = name or path, latest[owner.name] if owner else None
        if cell.module and (whole or path == PACKAGE):
            home = owner.path if owner else f"{PACKAGE}.<module>"
            problem = (
                f"an exported cell names the module: 'from {home} import {'…' if whole else name or '…'}'"
            )
        elif owner is None:
            problem = f"neither a chapter nor a file of the package has {what}"
        elif not whole and name not in owner.defined:
            problem = f"{path} defines no {name}"
        elif owner.home == cell.notebook and cell.module in (None, owner.name):
            problem = f"{what} is made in this very chapter, and cannot be imported here"
        elif last and last.chapter > cell.chapter:
            way = "in" if last.notebook == owner.home else f"after what {owner.home} needs from"
            problem = f"{what} comes only later, {way} {last.notebook}"
        else:
            continue
        yield f"{cell.at(line)}: {problem}"


def latest_chapters(modules: Modules) -> dict[str, Cell | None]:
    """For each module a cell of the last chapter that it needs, itself included; None where it needs none.

    What's written by hand comes right after that chapter.
    """
    latest: dict[str, Cell | None] = {}

    def last(name: str) -> Cell | None:
        if name not in latest:
            cells = [*modules[name].pieces[:1], *filter(None, map(last, modules[name].needs))]
            latest[name] = max(cells, key=lambda cell: cell.chapter, default=None)
        return latest[name]

    for name in modules:
        last(name)
    return latest


def check_circles(modules: Modules) -> list[str]:
    """Modules build on each other without a circle; each circle is named once."""
    done: set[str] = set()
    faults: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        for other, where in modules[name].needs.items():
            if other in (*above, name):
                faults.append(f"{where}: {other} imports {name} already, directly or by others")
            elif other not in done:
                visit(other, (*above, name))
        done.add(name)

    for name in modules:
        if name not in done:
            visit(name, ())
    return faults


# ---------- the whole book, and what is written by hand beside it


def files_of(package: Path) -> dict[str, bytes]:
    """The Python files of the package and its folders, by their names below it."""
    paths = sorted([*package.glob("*.py"), *package.glob("*/*.py")])
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}


def read_by_hand(files: dict[str, bytes], taken: Modules, faults: list[str]) -> Modules:
    """The modules that are written by hand: what each defines and imports."""
    modules: Modules = {}
    for file, content in files.items():
        name, where = file.removesuffix(".py"), f"{PACKAGE}/{file}, line"
        if name in taken or name.endswith("__init__") or signed(content):
            continue
        try:
            tree = ast.parse(content)
        except NO_PYTHON as error:
            faults.append("{} {}: {}".format(where, *what_is_wrong(error)))
            continue
        names = {one: (f"{where} {node.lineno}", node) for node in tree.body for one in bound(node)}
        found = [(f"{where} {line}", path, one) for line, path, one in imports(tree)]
        modules[name] = Module(name, names=names, imported=found)
    return modules


def exports_of(files: dict[str, bytes]) -> dict[str, str]:
    """The names that `__init__.py` imports from modules of the package, each with its module."""
    try:
        tree = ast.parse(files.get("__init__.py", b""))
    except NO_PYTHON as error:
        raise TangleError([f"{PACKAGE}/__init__.py, line {what_is_wrong(error)[0]}: {error}"]) from None
    inner = f"{PACKAGE}."
    found = ((name, path) for _, path, name in imports(tree) if name and path.startswith(inner))
    return {name: path.removeprefix(inner).replace(".", "/") for name, path in found}


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
                faults.append(f"{cell.at(1)}: module {cell.module} belongs to {module.home} already")
            parse_exported(cell, faults)
        elif cell.kind == "code" and "raises-exception" not in cell.tags:
            cell.tree = parse_loosely(cell.source)
    files = files_of(root / PACKAGE)
    everything, exports = modules | read_by_hand(files, modules, faults), exports_of(files)
    if faults:  # names are worth a look only where the form is right
        raise TangleError(faults)

    for module in modules.values():
        bind_names(module, faults)
        check_uses(module, faults)
        module.imported = [
            (c.at(line), path, one) for c in module.pieces for line, path, one in imports(c.tree)
        ]
    for module in everything.values():
        for where, path, name in module.imported:
            owner, _ = (
                owner_of(path, name, everything, exports) if path.startswith(PACKAGE) else (None, False)
            )
            if owner and owner is not module:
                module.needs.setdefault(owner.name, where)
    if circles := check_circles(everything):  # in a circle nothing comes first
        raise TangleError(faults + circles)
    latest = latest_chapters(everything)
    for cell in cells:
        faults += check_imports(cell, everything, exports, latest) if cell.tree else []
    if faults:
        raise TangleError(faults)
    return modules


# ---------- writing: from pieces to the package


def fitted(before: str, text: str, after: str) -> str:
    """The three on one line, the middle one shortened where that is too long."""
    room = max(WIDTH - len(before + after), 1)
    return before + textwrap.shorten(text, room, placeholder=" …") + after


def all_of(names: list[str]) -> str:
    """The list of public names, on one line or, where that's too long, on several."""
    quoted = ", ".join(f'"{name}"' for name in names)
    short = f"__all__ = [{quoted}]"
    if len(short) > WIDTH:
        indent = " " * 4
        lines = textwrap.fill(f"{quoted},", WIDTH, initial_indent=indent, subsequent_indent=indent)
        short = f"__all__ = [\n{lines}\n]"
    return f"\n{short}\n"


def render_module(module: Module, faults: list[str]) -> str:
    """The text of a module, which Python must be able to read as a whole too."""
    first = module.pieces[0]
    head = fitted(f'"""{module.path}, from {first.notebook}, "', first.title, '".')
    text = f'{head}\n\n{SIGN}\n"""\n' + all_of(module.public)
    for cell in module.pieces:
        text += "\n\n" + fitted(f"# %% {cell.notebook} · ", cell.heading, f" · [{cell.id}]")
        text += f"\n{cell.source}\n"
    try:
        compile(text, f"{module.name}.py", "exec")
    except NO_PYTHON as error:
        line, problem = what_is_wrong(error)
        faults.append(f"{first.notebook}: {problem} (line {line} of {module.name}.py)")
    return text


def signed(content: bytes) -> bool:
    return content.splitlines()[2:3] == [SIGN.encode()]


def differences(root: Path, modules: Modules | None = None) -> dict[Path, bytes | None]:
    """What must be written to make the package what the book says, and (as None) what must be removed.

    A file is tangle's own to change or to remove if it has tangle's header.
    `modules` are those of a book that is about to be written; None takes them from the book that is there.
    """
    package, faults = root / PACKAGE, []
    modules = read_book(root) if modules is None else modules
    wanted = {f"{module.name}.py": render_module(module, faults).encode() for module in modules.values()}
    found = files_of(package)
    strangers = [name for name in wanted if name in found and not signed(found[name])]
    faults += [f"{PACKAGE}/{name}: not written by tangle; move it away" for name in strangers]
    packages = {name: f"{name.removesuffix('.py')}/__init__.py" for name in wanted}  # Python prefers them
    faults += [
        f"{PACKAGE}/{other}: hides {PACKAGE}/{name}; move it away"
        for name, other in packages.items()
        if (package / other).exists()
    ]
    if faults:
        raise TangleError(faults)
    changed = {package / name: content for name, content in wanted.items() if found.get(name) != content}
    gone = [name for name in found if name not in wanted and signed(found[name])]
    return changed | {package / name: None for name in gone}


def check(root: Path) -> None:
    """Raise TangleError where the package is not what the book says, naming every such file."""
    faults = []
    for path, content in differences(root).items():
        name = path.relative_to(root).as_posix()
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


def tangle(root: Path) -> list[str]:
    """Make the package what the book says; returns what was done."""
    return write(root, differences(root))


def write(root: Path, changes: dict[Path, bytes | None]) -> list[str]:
    """Put each file in place in one step, or remove it; returns what was done."""
    for path, content in changes.items():
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(content)
        os.replace(temporary, path)
    names = {path.relative_to(root).as_posix(): content for path, content in changes.items()}
    return [f"{'removed' if content is None else 'wrote'} {name}" for name, content in names.items()]


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
    except (TangleError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done or [f"{PACKAGE}/ is what the book says"]))
    return 0


if __name__ == "__main__":
    import tangle as program  # under its own name, so that what imports it meets the same classes

    sys.exit(program.main())
