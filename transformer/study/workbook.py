"""The workbook: pieces for the reader to write, and their examiner."""

import ast
import functools
import inspect
import json
import linecache
import math
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.study.likely import difference, draws, edits, half_precision, said, same, transformation
from transformer.training import record_path

__all__ = [
    "Mistake", "Piece", "pieces", "defined", "filled", "outcomes", "renamed", "RIGHT", "WRONG", "MISSING",
    "Verdict", "judge", "with_mistake", "judge_code", "CORE", "Workbook", "written",
]  # fmt: skip


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
    code: str  # the book's
    hints: Sequence[str]
    probes: Mapping[str, str]  # what is asked, and an expression in which `piece` is what is judged
    mistakes: Sequence[Mistake]
    module: str = ""  # that the chapter exports it to, or none
    imports: str = ""  # what the code needs where there is no module
    kept: Sequence[str] = ()  # methods of a class that are not to be written
    beyond: Sequence[str] = ()  # cells that ask more of it than its text does, and run on the book's
    task: str = ""
    plain: str = ""  # the same written out, where the book calls one function, so that slips can be found
    made: str = ""  # an expression that makes a module with all parameters that it can have
    given: str = ""  # statements that make the inputs of the probes

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
            entry["mistakes"] = [Mistake(**mistake) for mistake in entry["mistakes"]]
            if "code" not in entry:
                entry["code"] = _exported(entry["module"], entry["cell"])
            piece = Piece(chapter=chapter, name=name, imports=imports, **entry)
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
    names: dict[str, Any] = {"math": math, "torch": torch, "F": F, "nn": nn, "Tensor": Tensor}
    if piece.module:
        return names | vars(import_module(f"transformer.{piece.module}"))
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


def filled(module: nn.Module, names: Mapping[str, str] | None = None) -> nn.Module:
    """A module whose parameters are drawn anew, in the order of their names, or of others for them."""
    generator, by = torch.Generator().manual_seed(1), names or {}
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters(), key=lambda pair: by.get(pair[0], pair[0])):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return module


@contextmanager
def _asked(piece: Piece, candidate: Any, names: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    # The names in which probes of a candidate are evaluated.
    known: dict[str, Any] = {"draws": draws, "half_precision": half_precision, "randn": torch.randn}
    known |= {"filled": functools.partial(filled, names=names), "piece": candidate}
    with _in_float64():
        exec(piece.given, scope := _context(piece) | known)
        yield scope


def outcomes(piece: Piece, candidate: Any, probes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What the probes of a piece give for a candidate: a value each, or the exception that it raised.

    Raises:
        NotImplementedError: the candidate is not written yet.
    """
    found: dict[str, Any] = {}
    with _asked(piece, candidate, {} if probes else renamed(piece, candidate)) as scope:
        for question, expression in (probes or piece.probes).items():
            torch.manual_seed(0)
            try:
                found[question] = eval(expression, scope)
            except Exception as error:  # one more thing that code can do
                if isinstance(error, NotImplementedError) and not error.args:  # torch's have a text
                    raise
                found[question] = error.with_traceback(None)
    return found


def renamed(piece: Piece, candidate: Any) -> dict[str, str]:
    """The book's names of what a module holds if it bears others, matched by kind and shape, in order."""
    books, own = _parameters(piece, _books_of(piece.key)), _parameters(piece, candidate)
    found: dict[str, str] = {}
    for kind in set(own.values()) if own.keys() != books.keys() else ():
        theirs, its = ([name for name in each if each[name] == kind] for each in (own, books))
        found |= dict(zip(theirs, its))
    return found


def _parameters(piece: Piece, candidate: Any) -> dict[str, tuple[bool, torch.Size]]:
    # In the order in which they are made: whether each belongs to a linear layer, and its shape.
    try:
        with _asked(piece, candidate) as scope:
            module: nn.Module = eval(piece.made or "nn.Module()", scope)
            layer = lambda name: isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear)
            named = (*module.named_parameters(), *module.named_buffers())
            return {name: (layer(name), x.shape) for name, x in named}
    except Exception:  # the probes will say so
        return {}


@functools.cache
def _books_of(key: str) -> Any:
    return defined(pieces()[key], pieces()[key].code)


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


RIGHT, WRONG, MISSING = "✓", "✗", "○"


class Verdict(NamedTuple):
    """What has become of a piece, and why."""

    mark: str  # RIGHT, WRONG or MISSING
    says: str


def judge(piece: Piece, candidate: Any) -> Verdict:
    """Compare a piece by value with the book's, and say what is likely to be wrong with another one."""
    try:
        found = outcomes(piece, candidate)
    except NotImplementedError:
        return Verdict(MISSING, "not written yet")
    right = _expected(piece.key)
    different = [question for question in right if not same(found[question], right[question])]
    if not different:
        return Verdict(RIGHT, f"equal to the book's in {len(right)} probe{'s' * (len(right) > 1)}")
    question = different[0]
    where = f"{question}: {difference(found[question], right[question])}"
    return Verdict(WRONG, "; ".join(filter(None, (_cause(piece, found, different), where))))


def _cause(piece: Piece, found: dict[str, Any], different: list[str]) -> str:
    # What gives these values: a usual mistake, another form of the right value, or a slip in the code.
    right, question = _expected(piece.key), different[0]
    usual = [(mistake.says, _expected(piece.key, number)) for number, mistake in enumerate(piece.mistakes)]
    for says, wrong in usual:
        if same(found, wrong):
            return says
    for says, wrong in usual:
        if same(found[question], wrong[question]) and not same(wrong[question], right[question]):
            return f"{says}; something else is wrong as well"
    if isinstance(found[question], Exception) or isinstance(right[question], Exception):
        return "imports and helpers belong in the same cell" * isinstance(found[question], NameError)
    with _asked(piece, _books_of(piece.key)) as scope:
        inputs = {name: value for name, value in scope.items() if isinstance(value, Tensor)}
    if words := transformation(found[question], right[question], inputs):
        return words
    if words := _slip(piece, found, different):
        return f"probably {words}"
    for other, value in right.items():
        if other not in different and same(found[question], value):
            return f"yours is what is right in “{other}”: what tells the two apart is not used"
    return f"only this is wrong: {', '.join(different)}" * (len(different) < len(right) / 2)


def _slip(piece: Piece, found: dict[str, Any], different: list[str], seconds: float = 4) -> str:
    # A slip in how the book's piece is called, or in its code, that gives the values of the first probe.
    until, question, partly = time.process_time() + seconds, different[0], ""
    probe = piece.probes[question]
    called = ((words, piece.code, other) for words, other in edits(probe))
    codes = (code for code in (piece.plain, piece.code) if code)
    written = ((words, wrong, probe) for code in codes for words, wrong in edits(code, piece.name))
    for words, code, asked in chain(called, written):
        if time.process_time() > until:
            break
        with suppress(Exception):  # such a slip ends the code
            candidate = defined(piece, code)
            if not same(found[question], outcomes(piece, candidate, {question: asked})[question]):
                continue
            rest = {each: piece.probes[each] for each in different[1:] if asked == probe}
            if same({each: found[each] for each in rest}, outcomes(piece, candidate, rest) if rest else {}):
                return words
            partly = partly or words
    return partly


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
        return Verdict(WRONG, f"its cell raises {said(error)}")


# The modules in which a reader's pieces take the places of the book's.
CORE = ("embedding", "attention", "layers", "model", "loss", "training", "decoding", "toy")
_ON_EARLIER = "02", "03", "04", "05", "06", "09"  # chapters that build their models of the reader's pieces


class Workbook:
    """A reader's pieces: a notebook runs on its own, and where models are built on those of the ones before.

    Args:
        chapter: of the notebook, such as `"03-attention"`.
        folder: where the reader's other notebooks lie.
    """

    verdicts: dict[str, Verdict]

    def __init__(self, chapter: str, folder: str = ".") -> None:
        import_module("transformer.speed.fast")  # before a piece is replaced: fast modules know the book's
        self.chapter: str = chapter
        self.verdicts = {}
        self._books = {
            key: getattr(import_module(f"transformer.{piece.module}"), piece.name)
            for key, piece in pieces().items()
            if piece.module
        }
        self._now = dict(self._books)  # what the package has in their places
        self._lent: dict[str, Any] = {}  # what a notebook was given in place of its own pieces
        self._away: dict[str, Any] = {}  # its own pieces during a cell that runs on the book's
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
            if not self._takes(piece, code, own):
                own = self._lent[piece.key] = _defined_in(sys._getframe(1).f_globals, piece)
        mark, says = self.verdicts[piece.key]
        color = {RIGHT: 32, WRONG: 31, MISSING: 33}[mark]
        why = "What it holds bears names of your own, so" if mark == RIGHT else "Until it is right,"
        rest = f" {why} the cells below run on the book's." * (own is self._lent.get(piece.key))
        print(f"\x1b[{color}m{mark} {piece.name}\x1b[0m: {says.rstrip('.')}.{rest}\n{self}")
        return own

    def lend(self, *names: str) -> None:
        """Let the next cell, which asks more of these pieces than their texts do, run on the book's."""
        scope = sys._getframe(1).f_globals
        for name in names:
            self._away.setdefault(name, scope[name])
            _defined_in(scope, pieces()[f"{self.chapter}/{name}"])

    def give_back(self) -> None:
        """Let the notebook go on with the pieces that it had before `lend`."""
        sys._getframe(1).f_globals.update(self._away)
        self._away.clear()

    def whose(self, model: nn.Module) -> str:
        """Which pieces a model is made of, the reader's and the book's."""
        bases = {base for part in model.modules() for base in type(part).__mro__}
        held = {key: piece is self._books[key] for key, piece in self._now.items() if piece in bases}
        yours, books = ([pieces()[key].name for key in held if held[key] == kind] for kind in (False, True))
        return f"yours: {', '.join(yours) or 'nothing yet'}\nthe book's: {', '.join(books) or 'nothing'}"

    def __str__(self) -> str:
        marks = [self.verdicts[key].mark if key in self.verdicts else MISSING for key in pieces()]
        strip = "".join("■" if mark == RIGHT else "□" for mark in marks)
        return f"{strip} {marks.count(RIGHT)} of {len(marks)} pieces are yours"

    def _takes(self, piece: Piece, code: str, own: Any = None) -> bool:
        # Judge a piece, by its cell if there is a text, and let the package use it if it is right and fits.
        verdict = self.verdicts[piece.key] = judge_code(piece, code) if code else judge(piece, own)
        if verdict.mark == RIGHT:
            own = defined(piece, code) if code else own
        fits = verdict.mark == RIGHT and not renamed(piece, own)
        self._put(piece, own if fits else self._books.get(piece.key))
        return fits

    def _take_over(self, path: Path) -> None:
        # What is right in an earlier notebook, and a line about it.
        cells = written(path)
        lacking = [pieces()[key] for key, code in cells.items() if not self._takes(pieces()[key], code)]
        marks = [f"{self.verdicts[piece.key].mark} {piece.name}" for piece in lacking]
        n_right = sum(self.verdicts[key].mark == RIGHT for key in cells)
        books = f"; the book's: {', '.join(marks)}" if marks else ""
        print(f"{path.stem}: {n_right} of {len(cells)} are yours{books}")

    def _put(self, piece: Piece, own: Any) -> None:
        # Let the core of the package, which lies flat in it, use a piece wherever it has used another. A
        # chapter that measures the book's classes, or knows them by name, keeps them.
        takes = self.chapter[:2] in _ON_EARLIER or (self.chapter == piece.chapter and self.chapter < "10")
        if takes and piece.module in CORE and self._now[piece.key] is not own:
            old, self._now[piece.key] = self._now[piece.key], own
            for names in map(vars, _core()):
                names.update({name: own for name, value in names.items() if value is old})


def _cell_with(own: Any) -> str:
    # The text of the notebook's cell that defines a function or class. It is judged
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
