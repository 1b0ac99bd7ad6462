"""The pages of the API, from what the package lists: its own `__all__`, and those of its modules.

A page asks for them by a line of its own: `(names of transformer)` becomes what the package exports, and
`(names of transformer.speed)` what that module or its folder export besides; `transformer.core` are
the tangled modules beside the folders.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

import transformer

ASKED = re.compile(r"^\(names of (transformer[\w.]*)\)$", re.MULTILINE)
FIRST = ["Transformer", "Translator"]
CHAPTER = re.compile(r"from (book/[\w-]+\.ipynb)")
LONGEST = 60  # characters of a constant that are shown
CORE = "embedding", "attention", "layers", "model", "loss", "training", "decoding", "toy", "plots"
METHODS = property, cached_property, classmethod, staticmethod


def entry(place: str, value: Any) -> str:
    """The directive that describes a public name: of a class, with its methods and those of our bases."""
    if inspect.isclass(value):
        methods = [
            name
            for base in value.__mro__
            if base.__module__.startswith("transformer")
            for name, member in vars(base).items()
            if name[0] != "_" and (inspect.isroutine(member) or isinstance(member, METHODS))
        ]
        shown = f"   :members: {', '.join(dict.fromkeys(methods))}\n" if methods else ""
        return f".. autoclass:: {place}\n{shown}"
    if inspect.isroutine(value):
        return f".. autofunction:: {place}\n"
    return f".. py:data:: {place}\n" + (f"   :value: {value!r}\n" if len(repr(value)) <= LONGEST else "")


def section(title: str, text: str, entries: list[str]) -> str:
    """A section of a page, or nothing where there is nothing to describe."""
    described = "\n".join(entries)
    return f"## {title}\n\n{text}\n\n```{{eval-rst}}\n{described}\n```\n" if entries else ""


def heading(name: str) -> tuple[str, str]:
    """The title of a module's section, and what it says: its chapter, or the first line of its docstring."""
    said = (importlib.import_module(name).__doc__ or "").partition("\n")[0]
    chapter = CHAPTER.search(said)
    return f"`{name}`", f"Derived and explained in [](/{chapter[1]})." if chapter else said


def of_package() -> Iterator[str]:
    """What the package exports, the model and the translator first, the rest by module in its order."""
    homes = {
        each: name
        for name, module in sys.modules.items()
        if name.startswith("transformer.")
        for each in getattr(module, "__all__", [])
    }
    names = {name: entry(f"transformer.{name}", getattr(transformer, name)) for name in transformer.__all__}
    yield section("The model and the translator", "", [names.pop(name) for name in FIRST])
    for home, group in groupby(names, homes.__getitem__):
        yield section(*heading(home), [names[name] for name in group])


def of_folder(folder: str) -> Iterator[str]:
    """What the modules of a folder export beyond what the package itself has."""
    if folder == "transformer.core":
        names = [f"transformer.{name}" for name in CORE]
    else:
        path = getattr(importlib.import_module(folder), "__path__", None)
        names = [f"{folder}.{each.name}" for each in pkgutil.iter_modules(path)] if path else [folder]
    for name in names:
        module = importlib.import_module(name)
        own = [each for each in module.__all__ if each not in transformer.__all__]
        yield section(*heading(name), [entry(f"{name}.{each}", getattr(module, each)) for each in own])


def listed(match: re.Match[str]) -> str:
    """What stands in the place of a line that asks for names."""
    asked = match[1]
    return "\n".join(filter(None, of_package() if asked == "transformer" else of_folder(asked)))


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the names in the place of the lines that ask for them."""
    if page.startswith("book/api"):
        source[0] = ASKED.sub(listed, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", expand)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
