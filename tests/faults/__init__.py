"""Mistakes that people make in the core, for tests/mutants.py to put in one at a time.

There is a file for each module of the core. A fault names the function, method or constant that it is in
and a fragment of its source, so that an edit elsewhere leaves it alone. A file's `MODULE`, where it has one,
is the module that its faults are in; otherwise, the module has the file's name.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Fault:
    """A fault in a module of the package.

    Args:
        name: unique in the module.
        mistake: what somebody did wrong, in words.
        place: the function, `Class.method` or constant.
        before: a text that stands there exactly once.
        after: what stands there instead.
        equivalent: why nobody can notice, where that is so; else empty.
        module: of the package, without `.py`.
    """

    name: str
    mistake: str
    place: str
    before: str
    after: str
    equivalent: str = ""
    module: str = ""

    @property
    def id(self) -> str:
        """The fault's name in the whole list."""
        return f"{self.module}/{self.name}"

    def applied(self, source: str) -> str:
        """The source of the module with the fault in it.

        Raises:
            ValueError: the place is gone, or `before` does not stand in it exactly once.
        """
        lines = source.splitlines(keepends=True)
        first, last = lines_of(self.place, ast.parse(source))
        text = "".join(lines[first - 1 : last])
        if (count := text.count(self.before)) != 1:
            where = f"{self.place} in {self.module}"
            raise ValueError(f"{self.id}: {self.before!r} must stand once in {where}, not {count} times")
        return "".join((*lines[: first - 1], text.replace(self.before, self.after), *lines[last:]))


def lines_of(place: str, tree: ast.Module | ast.ClassDef) -> tuple[int, int]:
    """The first and last line of a definition; decorators belong to it."""
    outer, _, inner = place.partition(".")
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]
        if outer in names:
            if inner:
                return lines_of(inner, node)
            return min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))), node.end_lineno
    raise ValueError(f"there is no {place}")


def _faults_in(file: str) -> list[Fault]:
    part = import_module(f"faults.{file.replace('/', '.')}")
    return [replace(fault, module=getattr(part, "MODULE", file)) for fault in part.FAULTS]


HERE = Path(__file__).parent
FILES = sorted(path.relative_to(HERE).with_suffix("").as_posix() for path in HERE.rglob("*.py"))
FILES.remove("__init__")
FAULTS = [fault for file in FILES for fault in _faults_in(file)]
