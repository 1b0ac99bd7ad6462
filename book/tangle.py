"""Write the package `transformer` out of the chapters, cell by cell and byte for byte.

    python book/tangle.py            write what has changed
    python book/tangle.py --check    write nothing; fail where book and package differ

A code cell tagged `export:attention` becomes a piece of `transformer/attention.py`. Pieces are copied as they
stand, in the order of `_toc.yml`. Around them tangle writes a header, a marker line above each piece,
`__all__` and `transformer/__init__.py`; nothing else. What a cell with the tag `api` defines can be imported
from `transformer` itself, everything else from its module. `__init__.py` also says which version of which
book this is: `__version__` and `__book__`, the address, both from pyproject.toml. A book that breaks a rule
is refused whole: every fault is named by notebook, cell and line, and no file is touched.
"""

import argparse
import ast
import builtins
import dis
import inspect
import keyword
import os
import re
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import nbformat
from nbformat.warnings import DuplicateCellId, MissingIDFieldWarning

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "transformer"
MAIN = "__main__"
API = "api"  # the tag of cells whose public names the package itself re-exports
WIDTH = 110  # of the lines that tangle writes itself

# What `__init__.py` says of the book. A notebook's first cell knows the package by its `__book__`.
VERSION, BOOK = "__version__", "__book__"

# The third line of every file that tangle writes. By it tangle tells its own files from a stranger's.
SIGN = "Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost."

# What `__init__.py` does before it imports anything else: no line of `__main__` runs until it is done.
QUIET = """\
# A program that is interrupted while it is imported ends at once and silently; `main` takes over.
import signal
import sys

_module = sys.argv[:1] == ["-m"] and ("-m", __name__) in zip(sys.orig_argv, sys.orig_argv[1:])
_script = "".join(sys.argv[:1]).endswith(("transformer-book", "transformer-book.exe"))
if (_module or _script) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

"""


class TangleError(Exception):
    """The book, or the package beside it, breaks a rule; one line for each fault."""

    def __init__(self, faults: list[str]):
        super().__init__("\n".join(faults))
        self.faults = faults


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


def reading_order(root: Path, faults: list[str]) -> list[str]:
    """The notebooks that `_toc.yml` lists, in its order, as paths from the root."""
    toc = root / "_toc.yml"
    if not toc.is_file():
        raise TangleError(["_toc.yml: is missing, and with it the order of the chapters"])
    order: list[str] = []
    for number, line in enumerate(toc.read_text(encoding="utf-8").splitlines(), start=1):
        entry = re.match(r"""[\s-]*(?:root|file)\s*:\s*["']?([^\s"'#]+)""", line)
        if not entry:
            continue
        page = re.sub(r"\.(ipynb|md)$", "", entry[1])
        notebook = f"{page}.ipynb"
        if notebook in order:
            faults.append(f"_toc.yml, line {number}: {page} is listed twice")
        elif (root / notebook).is_file():
            order.append(notebook)
        elif not (root / f"{page}.md").is_file():
            faults.append(f"_toc.yml, line {number}: there is neither {notebook} nor {page}.md")
    for path in sorted((root / "book").glob("*.ipynb")):
        if f"book/{path.name}" not in order:
            faults.append(f"book/{path.name}: is not in _toc.yml")
    return order


def headings(markdown: str) -> list[str]:
    """The headings of a text, without their markup, and without what only looks like one inside a fence."""
    prose = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1[`~]*\s*$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#{1,6} +(.+?)[ #]*$", prose, flags=re.MULTILINE)
    return [re.sub(r'[`*$"\\]', "", heading) for heading in found]


def read_chapter(root: Path, notebook: str, chapter: int, faults: list[str]) -> list[Cell]:
    """The cells of one notebook."""
    try:
        with warnings.catch_warnings():
            # nbformat would make up an id at random, and the marker line would change with every run
            warnings.simplefilter("error", MissingIDFieldWarning)
            warnings.simplefilter("error", DuplicateCellId)
            found = nbformat.read(root / notebook, as_version=4).cells
    except Exception as error:  # nbformat has many ways to say that a file is no notebook
        reason = f"{type(error).__name__}: {error}".split(". ")[0]
        faults.append(f"{notebook}: cannot be read as a notebook ({reason})")
        return []
    cells: list[Cell] = []
    above: list[str] = []
    for index, cell in enumerate(found):
        if cell.cell_type == "markdown":
            above += headings(cell.source)
        title, heading = (above[0], above[-1]) if above else ("", "")
        place = (notebook, chapter, index, cell.get("id", ""))
        tags = cell.metadata.get("tags", [])
        cells.append(Cell(*place, cell.cell_type, cell.source, tags, title, heading))
    return cells


# ---------- form: what an exported cell must look like


def exported_to(cell: Cell, faults: list[str]) -> str | None:
    """The module that the tags of a cell name, if they name one."""
    exports = [tag for tag in cell.tags if tag.startswith("export")]
    names = [tag.removeprefix("export:") for tag in exports]
    if not exports:
        return None
    if len(exports) > 1:
        problem = f"a cell goes to one module, not to {' and '.join(names)}"
    elif not re.fullmatch(rf"export:([a-z][a-z0-9_]*|{MAIN})", exports[0]) or keyword.iskeyword(names[0]):
        problem = f"unknown tag {exports[0]!r}; it should read 'export:<module>'"
    elif cell.kind != "code":
        problem = f"only code can be exported, and this is a {cell.kind} cell"
    elif not cell.id:
        problem = "an exported cell needs an id: save the notebook in format 4.5"
    else:
        return names[0]
    faults.append(cell.fault(1, problem))
    return None


def parse_exported(cell: Cell, faults: list[str]) -> None:
    """Read an exported cell as Python, and refuse what has no place in a module."""
    lines = cell.source.split("\n")
    if "\r" in cell.source:
        line = next(number for number, text in enumerate(lines, start=1) if "\r" in text)
        faults.append(cell.fault(line, "holds a carriage return; lines end in a line feed alone"))
    try:
        cell.tree = ast.parse(cell.source)
        compile(cell.tree, cell.notebook, "exec")  # sees what the parser does not, such as a stray `return`
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        text = lines[min(line, len(lines)) - 1].strip()
        magic = re.match(r"[%!?]|[\w.]+\?+$|[\w, ]+= *[%!]", text)
        problem = "a magic has no place in a module" if magic else getattr(error, "msg", error)
        faults.append(cell.fault(line, f"{problem}: {text}"))
        return
    if not cell.tree.body:
        faults.append(cell.fault(1, "exports nothing"))
    for node in cell.tree.body:
        if problem := unfit(node, cell.module):
            faults.append(cell.fault(node.lineno, problem))


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
        except (SyntaxError, ValueError):
            pass
    return None


# ---------- names: what the cells define, import and need, and when


@dataclass
class Binding:
    """Where a module has one of its names from."""

    cell: Cell
    line: int
    imported: str  # as `bound` puts it; empty for what the module defines itself
    overload: bool = False  # one of several signatures; the implementation is still to come


@dataclass
class Module:
    """A module of the package: its pieces, and the names that they bind."""

    name: str
    pieces: list[Cell] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, int]:
        """A module imports only those of a smaller place, so that the package has no circle."""
        return self.pieces[0].chapter, self.pieces[0].index

    @property
    def defined(self) -> list[str]:
        return [name for name, binding in self.bindings.items() if not binding.imported]

    @property
    def public(self) -> list[str]:
        return [name for name in self.defined if not name.startswith("_") and self.name != MAIN]

    @property
    def api(self) -> list[str]:
        return [name for name in self.public if API in self.bindings[name].cell.tags]


Modules = dict[str, Module]  # by name: their own, or one that is public in them


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
    marks = ("overload", "typing.overload")
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(mark) in marks for mark in node.decorator_list
    )


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
    """A public name has one owner, and is not called like a module, which it would hide."""
    for module in modules.values():
        for name in module.public:
            binding, owner = module.bindings[name], owners[name]
            if owner is not module:
                first = owner.bindings[name].cell
                problem = f"{name} is already public in {owner.name} ({first.notebook}, cell {first.id})"
            elif name in modules:
                problem = f"{name} is the name of a module too, and would hide it"
            else:
                continue
            faults.append(binding.cell.fault(binding.line, problem))


def check_api(cell: Cell, modules: Modules, faults: list[str]) -> None:
    """The tag `api` stands where it does something."""
    if API not in cell.tags:
        return
    if not cell.module:
        faults.append(cell.fault(1, f"the tag {API!r} needs a tag 'export:<module>' beside it"))
        return
    module = modules[cell.module]
    if not any(module.bindings[name].cell is cell for name in module.public):
        faults.append(cell.fault(1, f"the tag {API!r} is for a cell that defines a public name"))


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str | None]]:
    """All that a cell imports: line, path, and the name taken from there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            path = "." * node.level + (node.module or "")
            yield from ((node.lineno, path, alias.name) for alias in node.names)


def check_imports(cell: Cell, modules: Modules, owners: Modules, faults: list[str]) -> None:
    """A chapter imports what earlier chapters export; its own modules may build on each other."""
    for line, path, name in imports(cell.tree):
        package, _, module = path.partition(".")
        owner = modules.get(module) if module else owners.get(name) or modules.get(name)
        what = name or path
        allowed = modules[cell.module].place if cell.module else (cell.chapter, 0)  # earlier than this
        problem = None
        if path.startswith("."):
            problem = f"relative import; write 'from {PACKAGE}.<module> import {name}'"
        elif package != PACKAGE or path == PACKAGE and name is None and not cell.module:
            continue
        elif path == PACKAGE and name in (VERSION, BOOK):  # stand in __init__.py before any import
            continue
        elif cell.module and not (module and name):
            home = owner.name if owner else "<module>"
            problem = f"an exported cell names the module: 'from {PACKAGE}.{home} import {name or '…'}'"
        elif name == "*":
            problem = "'import *' does not say what it imports"
        elif owner is None:
            problem = f"no chapter exports {path if module else what}"
        elif owner.place[0] > cell.chapter:
            problem = f"{what} comes only later, in {owner.pieces[0].notebook}"
        elif owner.place >= allowed:
            problem = f"{what} is made in this very chapter, and cannot be imported here"
        elif module and name and name not in owner.defined:
            problem = f"{path} defines no {name}"
        elif not module and name not in modules and name not in owner.api:
            problem = f"{PACKAGE} itself has no {name}: write 'from {PACKAGE}.{owner.name} import {name}'"
        if problem:
            faults.append(cell.fault(line, problem))


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
            if (home := module.pieces[0].notebook) != cell.notebook:
                faults.append(cell.fault(1, f"module {cell.module} belongs to {home} already"))
            parse_exported(cell, faults)
        elif cell.kind == "code" and "raises-exception" not in cell.tags:
            cell.tree = parse_loosely(cell.source)
    if faults:  # names are worth a look only where the form is right
        raise TangleError(faults)

    owners: Modules = {}
    for module in modules.values():
        bind_names(module, faults)
        check_uses(module, faults)
        owners |= {name: module for name in module.public if name not in owners}
    check_public(modules, owners, faults)
    for cell in cells:
        check_api(cell, modules, faults)
        if cell.tree:
            check_imports(cell, modules, owners, faults)
    if faults:
        raise TangleError(faults)
    return modules


# ---------- writing: from pieces to the package


def fitted(before: str, text: str, after: str) -> str:
    """The three on one line, the middle one shortened where that is too long."""
    return before + textwrap.shorten(text, WIDTH - len(before + after), placeholder=" …") + after


def header(first_line: str) -> str:
    """The docstring of a generated file."""
    return f'{first_line}\n\n{SIGN}\n"""\n'


def listing(start: str, names: list[str], brackets: str) -> str:
    """A list of names on one line or, where that is too long, one name to a line."""
    opening, closing = brackets
    short = start + ", ".join(names) if opening == "(" else f"{start}{opening}{', '.join(names)}{closing}"
    if len(short) <= WIDTH:
        return f"{short}\n"
    return f"{start}{opening}\n" + "".join(f"    {name},\n" for name in names) + f"{closing}\n"


def all_of(names: list[str]) -> str:
    return "\n" + listing("__all__ = ", [f'"{name}"' for name in names], "[]")


def render_module(module: Module) -> str:
    first = module.pieces[0]
    text = header(fitted(f'"""{PACKAGE}.{module.name}, from {first.notebook}, "', first.title, '".'))
    if module.name != MAIN:
        text += all_of(module.public)
    for cell in module.pieces:
        marker = fitted(f"# %% {cell.notebook} · ", cell.heading, f" · [{cell.id}]")
        text += f"\n\n{marker}\n{cell.source}\n"
    return text


def book_facts(root: Path) -> dict[str, str]:
    """What pyproject.toml says of the book, under the names that the package has for it."""
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return {VERSION: project["version"], BOOK: project["urls"]["Repository"]}
    except FileNotFoundError:
        raise TangleError(["pyproject.toml: is missing, and with it the version"]) from None
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise TangleError(
            [f"pyproject.toml: no version, or no address of the repository ({error})"]
        ) from None


def render_init(modules: Modules, facts: dict[str, str]) -> str:
    exporting = [module for module in modules.values() if module.api]
    text = header(
        '"""The Transformer as its book builds it: what users import, in reading order.'
    )
    text += "\n# ruff: noqa: I001 (the order is that of the chapters)\n"
    text += "".join(f'{name} = "{fact}"\n' for name, fact in facts.items()) + "\n"
    text += QUIET
    for module in exporting:
        text += listing(f"from {PACKAGE}.{module.name} import ", module.api, "()")
    return text + all_of([name for module in exporting for name in module.api])


def differences(root: Path) -> dict[Path, bytes | None]:
    """What must be written to make the package what the book says, and (as None) what must be removed."""
    modules = read_book(root)
    texts = {f"{module.name}.py": render_module(module) for module in modules.values()}
    texts["__init__.py"] = render_init(modules, book_facts(root))
    wanted = {root / PACKAGE / name: text.encode() for name, text in texts.items()}
    found = {path: path.read_bytes() for path in sorted((root / PACKAGE).glob("*.py")) if path.is_file()}
    own = [path for path, content in found.items() if content.splitlines()[2:3] == [SIGN.encode()]]
    strangers = [path.name for path in found if path in wanted and path not in own]
    if strangers:
        raise TangleError([f"{PACKAGE}/{name}: not written by tangle; move it away" for name in strangers])
    changed = {path: content for path, content in wanted.items() if found.get(path) != content}
    return changed | {path: None for path in own if path not in wanted}


def check(root: Path) -> None:
    """Raise TangleError where the package is not what the book says, naming every such file."""
    faults = []
    for path, content in differences(root).items():
        name = f"{PACKAGE}/{path.name}"
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
    """Make the package what the book says, each file in one step or not at all; returns what was done."""
    changes = differences(root)
    (root / PACKAGE).mkdir(exist_ok=True)
    written = [path for path, content in changes.items() if content]
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in written}
    try:
        for path, temporary in beside.items():
            temporary.write_bytes(changes[path])
        for path, temporary in beside.items():
            os.replace(temporary, path)
    finally:
        for temporary in beside.values():
            temporary.unlink(missing_ok=True)
    for path in changes.keys() - beside.keys():
        path.unlink()
    return [f"{'wrote' if content else 'removed'} {PACKAGE}/{path.name}" for path, content in changes.items()]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the package out of the chapters.")
    parser.add_argument("--check", action="store_true", help="only say where book and package differ")
    parser.add_argument("--root", type=Path, default=ROOT, help="the folder of _toc.yml")
    options = parser.parse_args(arguments)
    try:
        done = check(options.root) if options.check else tangle(options.root)
    except TangleError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(done or [f"{PACKAGE}/ is what the book says"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
