"""The workbook: pieces for the reader to write, and their examiner."""

import ast
import functools
import inspect
import json
import linecache
import math
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.training import record_path

__all__ = [
    "Mistake",
    "Piece",
    "pieces",
    "defined",
    "filled",
    "outcomes",
    "RIGHT",
    "WRONG",
    "MISSING",
    "Verdict",
    "judge",
    "with_mistake",
    "judge_code",
    "CORE",
    "Workbook",
    "written",
    "judge_notebook",
    "read_verdicts",
]


class Mistake(NamedTuple):
    """A usual slip: some of the book's code, what stands in its place, and what its author is told."""

    right: str
    wrong: str
    says: str


class Piece(NamedTuple):
    """Something that a reader can write, and how it is judged."""

    chapter: str  # its file, without the ending
    name: str
    cell: str  # the id of its cell in the chapter
    module: str  # that the chapter exports it to, or none
    code: str  # the book's
    imports: str  # what the code needs where there is no module
    kept: tuple[str, ...]  # methods of a class that are not to be written
    task: str
    hints: tuple[str, ...]
    given: str  # statements that make the inputs of the probes
    probes: Mapping[str, str]  # what is asked, and an expression in which `piece` is what is judged
    mistakes: tuple[Mistake, ...]

    @property
    def key(self) -> str:
        """Its name in the metadata of a notebook, such as `03-attention/causal_mask`."""
        return f"{self.chapter}/{self.name}"


@functools.cache
def pieces() -> dict[str, Piece]:
    """All pieces of the workbook by their keys, in the order of the book."""
    found = {}
    chapters = tomllib.loads(record_path("workbook.toml").read_text(encoding="utf8"))
    for chapter, entries in chapters.items():
        imports = entries.pop("imports", "")
        for name, entry in entries.items():
            module = entry.get("module", "")
            piece = Piece(
                chapter,
                name,
                entry["cell"],
                module,
                entry.get("code") or _exported(module, entry["cell"]),
                imports,
                tuple(entry.get("kept", ())),
                entry.get("task", ""),
                tuple(entry["hints"]),
                entry.get("given", ""),
                entry["probes"],
                tuple(Mistake(**mistake) for mistake in entry["mistakes"]),
            )
            found[piece.key] = piece
    return found


def _exported(module: str, cell: str) -> str:
    # The text of a cell, which stands in its module below a line that names it.
    text = inspect.getsource(import_module(f"transformer.{module}"))
    parts = (part.partition("\n") for part in text.split("\n# %% ")[1:])
    (code,) = (code for line, _, code in parts if line.endswith(f"[{cell}]"))
    return code.strip() + "\n"


def _context(piece: Piece) -> dict[str, Any]:
    """The names that a piece may use: those of its module, or of what its chapter has defined before it."""
    if piece.module:
        return dict(vars(import_module(f"transformer.{piece.module}")))
    names: dict[str, Any] = {"math": math, "torch": torch, "F": F, "nn": nn, "Tensor": Tensor}
    exec(piece.imports, names)
    for other in pieces().values():
        if other == piece:
            break
        if other.chapter == piece.chapter and not other.module:
            exec(other.code, names)
    return names


def defined(piece: Piece, code: str) -> Any:
    """What `code` defines under the name of a piece."""
    names = _context(piece)
    names.pop(piece.name, None)  # code that does not define it is no right code
    exec(compile(code, f"<{piece.name}>", "exec"), names)
    if piece.name not in names:
        raise NameError(f"the cell defines no {piece.name}")
    return names[piece.name]


def filled(module: nn.Module) -> nn.Module:
    """A module whose parameters are drawn anew, in the order of their names."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters()):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return module


def outcomes(piece: Piece, candidate: Any) -> dict[str, Any]:
    """What the probes of a piece give for a candidate: a value each, or the exception that it raised.

    Raises:
        NotImplementedError: the candidate is not written yet.
    """
    names = _context(piece) | {"torch": torch, "F": F, "nn": nn, "math": math}
    names |= {"filled": filled, "randn": torch.randn, "piece": candidate}
    found: dict[str, Any] = {}
    with _in_float64():
        exec(piece.given, names)
        for question, expression in piece.probes.items():
            torch.manual_seed(0)
            try:
                found[question] = eval(expression, names)
            except Exception as error:  # one more thing that code can do
                if isinstance(error, NotImplementedError) and not error.args:  # torch's have a text
                    raise
                found[question] = error.with_traceback(None)
    return found


@contextmanager
def _in_float64() -> Iterator[None]:
    # A wrong formula cannot hide behind rounding; what is drawn at random afterward stays the same.
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield
    finally:
        torch.set_default_dtype(before)


def _same(one: Any, other: Any) -> bool:
    """Whether two outcomes agree: numbers but for rounding, exceptions in their type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.allclose(one, other, rtol=1e-7, atol=1e-9, equal_nan=True)
    if isinstance(other, Exception):
        return type(one) is type(other)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-9) or one != one and other != other
    if isinstance(other, tuple | list):
        alike = isinstance(one, tuple | list) and len(one) == len(other)
        return alike and all(_same(*pair) for pair in zip(one, other))
    if isinstance(other, dict):
        alike = isinstance(one, dict) and one.keys() == other.keys()
        return alike and all(_same(one[key], other[key]) for key in other)
    return type(one) is type(other) and bool(one == other)


RIGHT, WRONG, MISSING = "✓", "✗", "○"


class Verdict(NamedTuple):
    """What has become of a piece, and why."""

    mark: str  # RIGHT, WRONG or MISSING
    says: str


def judge(piece: Piece, candidate: Any) -> Verdict:
    """Compare a piece by value with the book's, and name the mistake that gives the values of a wrong one."""
    try:
        found = outcomes(piece, candidate)
    except NotImplementedError:
        return Verdict(MISSING, "not written yet")
    right = _expected(piece.key)
    different = [question for question in right if not _same(found[question], right[question])]
    if not different:
        return Verdict(RIGHT, f"equal to the book's in {len(right)} probe{'s' * (len(right) > 1)}")
    for number, mistake in enumerate(piece.mistakes):
        if _same(found, _expected(piece.key, number)):
            return Verdict(WRONG, mistake.says)
    question = different[0]
    return Verdict(WRONG, f"{question}: {_difference(found[question], right[question])}")


@functools.cache
def _expected(key: str, number: int | None = None) -> dict[str, Any]:
    # The outcomes of the book's piece, or of the same with one of its mistakes.
    piece = pieces()[key]
    code = piece.code if number is None else with_mistake(piece, piece.mistakes[number])
    return outcomes(piece, defined(piece, code))


def with_mistake(piece: Piece, mistake: Mistake) -> str:
    """The book's code with a mistake in it."""
    return piece.code.replace(mistake.right, mistake.wrong)


def judge_code(piece: Piece, code: str) -> Verdict:
    """Judge the text of a reader's cell, whatever it does but not to end."""
    try:
        return judge(piece, defined(piece, code))
    except NotImplementedError:
        return Verdict(MISSING, "not written yet")
    except Exception as error:
        return Verdict(WRONG, f"its cell raises {_said(error)}")


def _difference(found: Any, right: Any) -> str:
    """How an outcome differs from the book's, in a few words."""
    if isinstance(found, Exception):
        return f"yours raises {_said(found)}"
    if isinstance(right, Exception):
        return f"the book's raises {_said(right)}, yours does not"
    if isinstance(found, Tensor) and isinstance(right, Tensor):
        for name, mine, books in (
            ("has the shape", list(found.shape), list(right.shape)),
            ("has the dtype", found.dtype, right.dtype),
            ("holds NaN", int(found.isnan().sum()), int(right.isnan().sum())),
        ):
            if mine != books:
                return f"yours {name} {mine}, the book's {books}"
        apart = (found.double() - right.double()).abs().nan_to_num()
        return f"the largest difference from the book's is {apart.max():.2g}, the shapes agree"
    if isinstance(right, tuple | list) and isinstance(found, tuple | list) and len(found) == len(right):
        (place, *_) = (i for i, pair in enumerate(zip(found, right)) if not _same(*pair))
        return f"part {place + 1} of {len(right)}: {_difference(found[place], right[place])}"
    return f"yours is {_brief(found)}, the book's {_brief(right)}"


def _said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {_brief(str(error), str)}".rstrip(": ")


def _brief(value: Any, write: Any = repr) -> str:
    """A value in at most 80 characters of one line."""
    text = " ".join(write(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


# The modules in which a reader's pieces take the places of the book's.
CORE = ("embedding", "attention", "layers", "model", "loss", "training", "decoding", "toy")


class Workbook:
    """A reader's pieces: a notebook runs on those of the notebooks before it, and on its own.

    Args:
        chapter: of the notebook, such as `"03-attention"`.
        folder: where the reader's other notebooks lie.
    """

    verdicts: dict[str, Verdict]

    def __init__(self, chapter: str, folder: str = ".") -> None:
        import_module("transformer.speed.fast")  # before a piece is replaced: fast modules know the book's
        self.chapter: str = chapter
        self.verdicts = {}
        self._books = {key: _in_package(piece) for key, piece in pieces().items() if piece.module}
        self._now = dict(self._books)  # what the package has in their places
        self._lent: dict[str, Any] = {}  # what a notebook was given in place of its own pieces
        for other in dict.fromkeys(piece.chapter for piece in pieces().values()):
            path = Path(folder) / f"{other}.ipynb"
            if other < chapter and path.is_file():
                self._take_over(path)
        print(self)

    def use(self, own: Any) -> Any:
        """Judge a piece and say so; return it if it is right, and the book's if it is not."""
        piece = pieces()[f"{self.chapter}/{own.__name__}"]
        if own is not self._lent.get(piece.key):  # or only this cell has been run again
            code = _cell_with(own)
            verdict = self.verdicts[piece.key] = judge_code(piece, code) if code else judge(piece, own)
            if verdict.mark == RIGHT:
                self._put(piece, defined(piece, code) if code else own)
            else:
                self._put(piece, self._books.get(piece.key))
                own = self._lent[piece.key] = _defined_in(sys._getframe(1).f_globals, piece)
        mark, says = self.verdicts[piece.key]
        color = {RIGHT: 32, WRONG: 31, MISSING: 33}[mark]
        rest = "." if mark == RIGHT else ". Until it is right, the cells below run on the book's."
        print(f"\x1b[{color}m{mark} {piece.name}\x1b[0m: {says.rstrip('.')}{rest}\n{self}")
        return own

    def whose(self, model: nn.Module) -> str:
        """Which pieces a model is made of, the reader's and the book's."""
        kinds = {type(part) for part in model.modules()}
        yours: list[str] = []
        books: list[str] = []
        for key, piece in self._now.items():
            if isinstance(piece, type) and any(issubclass(kind, piece) for kind in kinds):
                (books if piece is self._books[key] else yours).append(pieces()[key].name)
        return f"yours: {', '.join(yours) or 'nothing yet'}\nthe book's: {', '.join(books) or 'nothing'}"

    def __str__(self) -> str:
        marks = [self.verdicts[key].mark if key in self.verdicts else MISSING for key in pieces()]
        strip = "".join("■" if mark == RIGHT else "□" for mark in marks)
        return f"{strip} {marks.count(RIGHT)} of {len(marks)} pieces are yours"

    def _take_over(self, path: Path) -> None:
        # What is right in an earlier notebook, and a line about it.
        lacking, cells = [], written(path)
        for key, code in cells.items():
            piece = pieces()[key]
            verdict = self.verdicts[key] = judge_code(piece, code)
            if verdict.mark == RIGHT:
                self._put(piece, defined(piece, code))
            else:
                lacking.append(f"{verdict.mark} {piece.name}")
        books = f"; the book's: {', '.join(lacking)}" if lacking else ""
        print(f"{path.stem}: {len(cells) - len(lacking)} of {len(cells)} are yours{books}")

    def _put(self, piece: Piece, own: Any) -> None:
        # Let the core of the package, which lies flat in it, use a piece wherever it has used another.
        if piece.module in CORE and self._now[piece.key] is not own:
            old, self._now[piece.key] = self._now[piece.key], own
            for names in map(vars, _core()):
                names.update({name: own for name, value in names.items() if value is old})
            children: list[type] = old.__subclasses__() if isinstance(old, type) else []
            for child in children:
                if child.__module__.removeprefix("transformer.") in CORE:
                    child.__bases__ = tuple(own if base is old else base for base in child.__bases__)


def _cell_with(own: Any) -> str:
    # The text of the notebook's cell that defines a function or class. It is judged as `grade` will judge it,
    # among the names of its module, of which the notebook may define some further down.
    for part in vars(own).values() if isinstance(own, type) else [own]:
        part = inspect.unwrap(part)
        if getattr(part, "__module__", "") == "__main__" and hasattr(part, "__code__"):
            if lines := linecache.getlines(part.__code__.co_filename):
                return "".join(lines)
    return ""


def _defined_in(names: dict[str, Any], piece: Piece) -> Any:
    # The book's piece as if the notebook had defined it, so that it fits what else the notebook defines.
    nodes = [node for node in ast.parse(piece.code).body if getattr(node, "name", None) == piece.name]
    exec(compile(ast.Module(nodes, []), f"<the book's {piece.name}>", "exec"), names)
    return names[piece.name]


def _in_package(piece: Piece) -> Any:
    """The book's piece, as the package has it."""
    return getattr(import_module(f"transformer.{piece.module}"), piece.name)


def _core() -> list[ModuleType]:
    # These modules, and the package, which re-exports them.
    names = ("transformer", *(f"transformer.{name}" for name in CORE))
    return [sys.modules[name] for name in names if name in sys.modules]


def written(path: str | Path) -> dict[str, str]:
    """The code that a notebook of the workbook has for each of its pieces, by their keys.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        cells = json.loads(Path(path).read_text(encoding="utf8"))["cells"]
        marked = [(cell["metadata"].get("workbook", []), "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no notebook") from error
    return {key: code for keys, code in marked for key in keys if key in pieces()}


def judge_notebook(path: str, results: str, *keys: str) -> None:
    """Judge some pieces of a notebook; a line goes to a file after each, since the next may never end."""
    cells = written(path)
    for key in keys:
        verdict = judge_code(pieces()[key], cells[key])
        with open(results, "a", encoding="utf8") as file:
            file.write(json.dumps([key, *verdict]) + "\n")


def read_verdicts(results: Path) -> dict[str, Verdict]:
    """What `judge_notebook` has written, as far as it came."""
    lines = results.read_text(encoding="utf8").splitlines() if results.exists() else []
    return {key: Verdict(mark, says) for key, mark, says in map(json.loads, lines)}
