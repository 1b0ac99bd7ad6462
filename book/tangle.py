"""Write the package `transformer` out of the chapters, cell by cell and byte for byte.

    python book/tangle.py            write what has changed
    python book/tangle.py --check    write nothing; fail where book and package differ

A code cell tagged `export:attention` becomes a piece of `transformer/attention.py`. Pieces are copied as they stand,
in the order of `_toc.yml`. Around them tangle writes a header, one marker line above each piece, `__all__`, and
`transformer/__init__.py`, nothing else. A book that breaks a rule below is refused whole, and no file is touched.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType

import nbformat

PACKAGE = "transformer"
MAIN = "__main__"
WIDTH = 110  # of generated lines

# The third line of every file that tangle writes. It is how tangle tells its own files from a stranger's.
SIGN = "Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost."


class TangleError(Exception):
    """The book, or the package beside it, breaks a rule; one line for each fault."""

    def __init__(self, faults: list[str]):
        super().__init__("\n".join(faults))
        self.faults = faults


# ---------------------------------------------------------------------------------------------------------------------
# Reading: from `_toc.yml` to chapters, from chapters to cells
# ---------------------------------------------------------------------------------------------------------------------


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
    heading: str  # the nearest one above the cell
    tree: ast.Module | None = None  # what Python reads in it
    module: str | None = None  # where it is exported to

    def fault(self, line: int, what: str) -> str:
        return f"{self.notebook}, cell {self.id}, line {line}: {what}"


def reading_order(root: Path, faults: list[str]) -> list[str]:
    """The notebooks in the order of `_toc.yml`, as paths from the root."""
    toc = root / "_toc.yml"
    if not toc.is_file():
        faults.append("_toc.yml: is missing, and with it the order of the chapters")
        return []
    order: list[str] = []
    for number, line in enumerate(toc.read_text(encoding="utf-8").splitlines(), start=1):
        entry = re.match(r"""[\s-]*(?:root|file)\s*:\s*["']?([^\s"'#]+)""", line)
        if not entry:
            continue
        page = re.sub(r"\.(ipynb|md)$", "", entry[1])
        if not any((root / f"{page}{ending}").is_file() for ending in (".ipynb", ".md")):
            faults.append(f"_toc.yml, line {number}: there is no {page}.ipynb (nor {page}.md)")
        elif f"{page}.ipynb" in order:
            faults.append(f"_toc.yml, line {number}: {page} is listed twice")
        elif (root / f"{page}.ipynb").is_file():
            order.append(f"{page}.ipynb")
    for path in sorted((root / "book").glob("*.ipynb")):
        if (notebook := f"book/{path.name}") not in order:
            faults.append(f"{notebook}: is not in _toc.yml")
    return order


def headings(markdown: str) -> list[str]:
    """The headings of a text, without markup and without what only looks like one inside a fence."""
    prose = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1[`~]*\s*$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r'[`*$"\\]', "", text) for text in re.findall(r"^#{1,6} +(.+?)[ #]*$", prose, flags=re.MULTILINE)]


def read_chapter(root: Path, notebook: str, chapter: int, faults: list[str]) -> list[Cell]:
    """The cells of one notebook."""
    try:
        found = nbformat.read(root / notebook, as_version=4).cells
    except Exception as error:  # nbformat has many ways to say that a file is no notebook
        faults.append(f"{notebook}: cannot be read as a notebook ({type(error).__name__}: {error})")
        return []
    cells, title, heading = [], "", ""
    for index, cell in enumerate(found):
        if cell.cell_type == "markdown":
            for heading in headings(cell.source):
                title = title or heading
        tags = cell.metadata.get("tags", [])
        cells.append(
            Cell(notebook, chapter, index, cell.get("id", ""), cell.cell_type, cell.source, tags, title, heading)
        )
    return cells


# ---------------------------------------------------------------------------------------------------------------------
# Form: what each cell must look like by itself
# ---------------------------------------------------------------------------------------------------------------------


def exported_to(cell: Cell, faults: list[str]) -> str | None:
    """The module that the tags of a cell name, if any."""
    exports = [tag for tag in cell.tags if tag.startswith("export")]
    for tag in exports:
        name = tag.removeprefix("export:")
        if not re.fullmatch(rf"export:([a-z][a-z0-9_]*|{MAIN})", tag) or keyword.iskeyword(name):
            faults.append(cell.fault(1, f"tag {tag!r} is not of the form 'export:<module>'"))
        elif cell.kind != "code":
            faults.append(cell.fault(1, f"tag {tag!r} stands on a {cell.kind} cell; only code is exported"))
        elif len(exports) > 1:
            faults.append(cell.fault(1, f"tags {', '.join(exports)}: a cell goes to one module only"))
            return None
        else:
            return name
    return None


def parse_exported(cell: Cell, faults: list[str]) -> None:
    """Read an exported cell as Python, and refuse what is not fit for a module."""
    if not cell.id:
        faults.append(cell.fault(1, "an exported cell needs an id (save the notebook as format 4.5)"))
    if "\r" in cell.source:
        line = cell.source[: cell.source.index("\r")].count("\n") + 1
        faults.append(cell.fault(line, "ends in a carriage return; lines end in a line feed alone"))
        return
    try:
        compile(cell.source, cell.notebook, "exec", dont_inherit=True)
        cell.tree = ast.parse(cell.source)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        text = (cell.source.split("\n") + [""])[line - 1]
        if re.match(r"\s*[%!?]|[^#]*\?\s*$|[\w\s,]+=\s*[%!]", text):
            faults.append(cell.fault(line, f"a magic cannot be exported: {text.strip()}"))
        else:
            faults.append(cell.fault(line, f"syntax error: {getattr(error, 'msg', error)}"))
        return
    if not cell.tree.body:
        faults.append(cell.fault(1, "exports nothing"))
    for node in cell.tree.body:
        if problem := unfit(node, cell.module):
            faults.append(cell.fault(node.lineno, problem))


def unfit(node: ast.stmt, module: str | None) -> str | None:
    """Why a statement may not stand at the top of a module; None where it may."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Import():
            return None
        case ast.ImportFrom(module="__future__"):
            return "'from __future__' works only at the top of a file, and a piece never stands there"
        case ast.ImportFrom(names=[ast.alias(name="*")]):
            return "'import *' hides what it imports; name it"
        case ast.ImportFrom():
            return None
        case ast.Assign() | ast.AnnAssign(value=ast.expr()):
            if not (names := bound(node)):
                return f"assigns to {ast.unparse(target_list(node)[0])}, which is not a plain name"
            return f"{names[0]} is written by tangle" if names[0] in ("__all__", "__name__") else None
        case ast.Expr():
            return f"a bare expression cannot be exported: {ast.unparse(node)[:60]}"
        case ast.If() if module == MAIN and ast.unparse(node.test) == f"__name__ == '{MAIN}'":
            return None  # that it is the last statement is checked where all pieces are at hand
    return f"only imports, constants, functions and classes are exported, not {type(node).__name__.lower()!r}"


def target_list(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """What an assignment assigns to, tuples taken apart."""
    targets = list(node.targets) if isinstance(node, ast.Assign) else [node.target]
    return [part for target in targets for part in getattr(target, "elts", [target])]


def bound(node: ast.stmt) -> list[str]:
    """The names that a statement at the top of a module binds; none where one of its targets is not a name."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.Import() | ast.ImportFrom():
            return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        case ast.Assign() | ast.AnnAssign():
            targets = target_list(node)
            return [t.id for t in targets] if all(isinstance(t, ast.Name) for t in targets) else []
    return []


def parse_loosely(source: str) -> ast.Module | None:
    """Read a cell that stays in the book: magics count as `pass`, and what is not Python is left alone."""
    for text in (source, re.sub(r"^([ \t]*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)):
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError):
            continue
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Names: what the pieces of a module define, import and use
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Binding:
    """Where a module gets one of its names from."""

    cell: Cell
    line: int
    imported: str = ""  # the import, written out; empty for what the module defines itself

    @property
    def place(self) -> tuple[int, int]:
        return self.cell.index, self.line


@dataclass
class Module:
    """A module of the package: its pieces and what they bind."""

    name: str
    pieces: list[Cell] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)

    @property
    def place(self) -> tuple[int, int]:
        """A module may import those of smaller place, so the package has no circle."""
        return self.pieces[0].chapter, self.pieces[0].index

    @property
    def defined(self) -> list[str]:
        return [name for name, binding in self.bindings.items() if not binding.imported]

    @property
    def public(self) -> list[str]:
        return [] if self.name == MAIN else [name for name in self.defined if not name.startswith("_")]


# `import torch` and `import torch.utils.data` bind one name to one thing, and may stand together.
PLAIN = re.compile(r"import \S+")


def bind(module: Module, faults: list[str]) -> None:
    """Note every name that the pieces bind, and refuse to bind one twice."""
    statements = [(cell, node) for cell in module.pieces for node in cell.tree.body]
    for cell, node in statements:
        if isinstance(node, ast.If) and node is not statements[-1][1]:
            faults.append(cell.fault(node.lineno, f"'if __name__ == \"{MAIN}\":' must be the last of the module"))
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        for position, name in enumerate(bound(node)):
            imported = ""
            if is_import:
                alias = node.names[position]
                plain = isinstance(node, ast.Import) and not alias.asname
                imported = f"import {alias.name}" if plain else ast.unparse(node)
            old = module.bindings.get(name)
            if old is None:
                module.bindings[name] = Binding(cell, node.lineno, imported)
            elif imported == old.imported or not (PLAIN.fullmatch(imported) and PLAIN.fullmatch(old.imported)):
                where = f"cell {old.cell.id}, line {old.line}"
                faults.append(cell.fault(node.lineno, f"{name} is already bound in {where}"))


def needed(code: CodeType, at_once: bool = True) -> Iterator[tuple[str, int, bool]]:
    """The names that code takes from its module, each with its line and whether importing the module needs it.

    The compiler has already decided what is local, what belongs to an enclosing function and what is global, by
    Python's own rules; its instructions say so.
    """
    local = set()
    for step in dis.get_instructions(code):
        if step.opname == "STORE_NAME":
            local.add(step.argval)
        elif step.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS") and step.argval not in local:
            yield step.argval, step.positions.lineno, at_once
    for inner in code.co_consts:
        if isinstance(inner, CodeType):  # a function, which runs later, or the body of a class, which runs now
            yield from needed(inner, at_once and not inner.co_flags & inspect.CO_OPTIMIZED)


def check_uses(module: Module, faults: list[str]) -> None:
    """Every name that a piece uses is bound by a piece of the same module, and in time."""
    for cell in module.pieces:
        reported = set()
        for name, line, at_once in needed(compile(cell.tree, cell.notebook, "exec")):
            if name in reported or hasattr(builtins, name) or re.fullmatch(r"__\w+__", name):
                continue
            binding = module.bindings.get(name)
            if binding is None:
                problem = f"{name} is neither defined nor imported by a cell exported to {module.name}"
            elif at_once and (cell.index, line) < binding.place:
                problem = f"{name} is used before cell {binding.cell.id}, line {binding.line}, defines it"
            else:
                continue
            reported.add(name)
            faults.append(cell.fault(line, problem))


def check_public(modules: dict[str, Module], faults: list[str]) -> dict[str, Module]:
    """The owner of every public name; each has one, and none is called like a module, which it would hide."""
    owners: dict[str, Module] = {}
    for module in modules.values():
        for name in module.public:
            binding = module.bindings[name]
            if name in owners:
                other = owners[name].bindings[name].cell
                faults.append(
                    binding.cell.fault(
                        binding.line,
                        f"{name} is already a public name of {owners[name].name} ({other.notebook}, cell {other.id})",
                    )
                )
            elif name in modules:
                faults.append(binding.cell.fault(binding.line, f"{name} is also the name of a module"))
            owners.setdefault(name, module)
    return owners


def check_imports(cell: Cell, modules: dict[str, Module], owners: dict[str, Module], faults: list[str]) -> None:
    """A chapter imports only what earlier chapters export, and says from which module where it exports itself."""

    def refuse(what: str) -> None:
        faults.append(cell.fault(node.lineno, what))

    def early_enough(owner: Module, what: str) -> bool:
        home = owner.pieces[0]
        if home.chapter == cell.chapter:
            if cell.module and owner.place < modules[cell.module].place:
                return True
            refuse(f"{what} is defined by this very chapter; it cannot be imported here")
        elif home.chapter > cell.chapter:
            refuse(f"{what} comes only later, in {home.notebook}")
        return home.chapter < cell.chapter

    for node in ast.walk(cell.tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            refuse(f"relative import; write 'from {PACKAGE}.<module> import …'")
            continue
        if isinstance(node, ast.Import):
            imports = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for path, name in imports:
            package, _, module = path.partition(".")
            if package != PACKAGE:
                continue
            if cell.module and (name is None or not module):
                home = owners[name].name if name in owners else "<module>"
                refuse(f"an exported cell writes 'from {PACKAGE}.{home} import {name or '…'}'")
            elif name == "*":
                refuse("'import *' hides what it imports; name it")
            elif module and module not in modules:
                refuse(f"no chapter exports a module {PACKAGE}.{module}")
            elif module:
                what = path if name is None else f"{name} of {path}"
                if early_enough(modules[module], what) and name and name not in modules[module].defined:
                    refuse(f"{path} defines no {name}")
            elif name in owners or name in modules:
                early_enough(owners.get(name) or modules[name], name)
            elif name is not None:
                refuse(f"no chapter exports {name}")


# ---------------------------------------------------------------------------------------------------------------------
# Rendering and writing
# ---------------------------------------------------------------------------------------------------------------------


def read_book(root: Path) -> dict[str, Module]:
    """The modules that the chapters export, in reading order; TangleError with every fault of the book."""
    faults: list[str] = []
    cells = [
        cell
        for chapter, notebook in enumerate(reading_order(root, faults))
        for cell in read_chapter(root, notebook, chapter, faults)
    ]
    modules: dict[str, Module] = {}
    for cell in cells:
        cell.module = exported_to(cell, faults)
        if cell.module:
            parse_exported(cell, faults)
            module = modules.setdefault(cell.module, Module(cell.module))
            module.pieces.append(cell)
            if (home := module.pieces[0].notebook) != cell.notebook:
                faults.append(cell.fault(1, f"module {cell.module} already belongs to {home}"))
        elif cell.kind == "code" and "raises-exception" not in cell.tags:
            cell.tree = parse_loosely(cell.source)
    if faults:  # names mean nothing before the form is right
        raise TangleError(faults)

    for module in modules.values():
        bind(module, faults)
        check_uses(module, faults)
    owners = check_public(modules, faults)
    for cell in cells:
        if cell.tree:
            check_imports(cell, modules, owners, faults)
    if faults:
        raise TangleError(faults)
    return modules


def listing(start: str, names: list[str], brackets: str = "()", always: bool = False) -> str:
    """A list of names on one line or, where that is too long, one name to a line."""
    opening, closing = brackets
    short = f"{opening}{', '.join(names)}{closing}" if always else ", ".join(names)
    if len(start + short) <= WIDTH:
        return f"{start}{short}\n"
    return f"{start}{opening}\n" + "".join(f"    {name},\n" for name in names) + f"{closing}\n"


def all_of(names: list[str]) -> str:
    return listing("__all__ = ", [f'"{name}"' for name in names], "[]", always=True)


def header(summary: str) -> str:
    return f'"""{summary}\n\n{SIGN}\n"""\n'


def render_module(module: Module) -> str:
    first = module.pieces[0]
    text = header(f'{PACKAGE}.{module.name}, from {first.notebook}, "{first.title}".')
    if module.name != MAIN:
        text += "\n" + all_of(module.public)
    for cell in module.pieces:
        marker = " · ".join(part for part in (cell.notebook, cell.heading, f"[{cell.id}]") if part)
        text += f"\n\n# %% {marker}\n{cell.source}\n"
    return text


def render_init(modules: dict[str, Module]) -> str:
    exporting = [module for module in modules.values() if module.public]
    text = header("The Transformer as its book builds it: all public names, in the order of the chapters.")
    text += "\n# ruff: noqa: I001 (the order is that of the chapters)\n"
    for module in exporting:
        text += listing(f"from {PACKAGE}.{module.name} import ", module.public)
    return text + "\n" * bool(exporting) + all_of([name for module in exporting for name in module.public])


def differences(root: Path) -> dict[Path, bytes | None]:
    """What must be written so that the package is what the book says, and (None) what must be removed."""
    modules = read_book(root)
    texts = {f"{module.name}.py": render_module(module) for module in modules.values()}
    texts["__init__.py"] = render_init(modules)
    package = root / PACKAGE
    wanted = {package / name: text.encode() for name, text in texts.items()}
    found = {path: path.read_bytes() for path in package.glob("*.py") if path.is_file()}
    own = {path for path, content in found.items() if content.splitlines()[2:3] == [SIGN.encode()]}
    strangers = sorted(path.name for path in wanted.keys() & found.keys() - own)
    if strangers:
        raise TangleError([f"{PACKAGE}/{name}: was not written by tangle; move it out of the way" for name in strangers])
    changed = {path: content for path, content in wanted.items() if found.get(path) != content}
    return changed | dict.fromkeys(sorted(own - wanted.keys()))


def check(root: Path) -> None:
    """TangleError naming every file of the package that is not what the book says."""
    faults = []
    for path, content in differences(root).items():
        name = f"{PACKAGE}/{path.name}"
        if content is None:
            faults.append(f"{name}: no chapter exports it")
        elif not path.exists():
            faults.append(f"{name}: is missing")
        else:
            pairs = zip(path.read_bytes().split(b"\n") + [None], content.split(b"\n") + [None])
            line = next(number for number, (is_, ought) in enumerate(pairs, start=1) if is_ != ought)
            faults.append(f"{name}, line {line}: is not what the book says")
    if faults:
        raise TangleError(faults)


def tangle(root: Path) -> list[str]:
    """Bring the package up to date with the book; says what it did. Each file is replaced in one step or not at all."""
    changes = differences(root)
    (root / PACKAGE).mkdir(exist_ok=True)
    beside = {path: path.with_name(f".{path.name}.{os.getpid()}") for path, content in changes.items() if content}
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
    parser.add_argument("--check", action="store_true", help="write nothing; fail where book and package differ")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help="top of the tree")
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
