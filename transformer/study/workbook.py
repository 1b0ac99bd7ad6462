"""The workbook: pieces for the reader to write, and their examiner."""

import ast
import functools
import inspect
import json
import linecache
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from importlib import import_module
from itertools import combinations
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.training import record_path

__all__ = [
    "Mistake", "Piece", "pieces", "defined", "Draws", "draws", "filled", "outcomes", "same", "difference",
    "transformation", "RIGHT", "WRONG", "MISSING", "Verdict", "judge", "with_mistake", "judge_code", "CORE",
    "Workbook", "written",
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
    provided_methods: Sequence[str] = ()  # methods of a class that are not to be written
    beyond: Sequence[str] = ()  # cells that ask more of it than its text does, and run on the book's
    task: str = ""
    given: str = ""  # statements that make the inputs of the probes

    @property
    def key(self) -> str:
        """Its name in the metadata of a notebook, such as `03-attention/causal_mask`."""
        return f"{self.chapter}/{self.name}"


@functools.cache
def pieces() -> dict[str, Piece]:
    """All pieces of the workbook by their keys, in the order of the book."""
    by_key = {}
    chapters = tomllib.loads(record_path("workbook.toml").read_text(encoding="utf8"))
    for chapter, entries in chapters.items():
        imports = entries.pop("imports", "")
        for name, entry in entries.items():
            entry["mistakes"] = [Mistake(**mistake) for mistake in entry["mistakes"]]
            if "code" not in entry:
                entry["code"] = _exported(entry["module"], entry["cell"])
            piece = Piece(chapter=chapter, name=name, imports=imports, **entry)
            by_key[piece.key] = piece
    return by_key


def _exported(module: str, cell: str) -> str:
    # The text of a cell, which stands in its module below a line that names it.
    text = inspect.getsource(import_module(f"transformer.{module}"))
    parts = (part.partition("\n") for part in text.split("\n# %% ")[1:])
    (code,) = (code for line, _, code in parts if line.endswith(f"[{cell}]"))
    return code.strip() + "\n"


def _context(piece: Piece) -> dict[str, Any]:
    # The names that a piece may use: those of its module, or of what its chapter has defined before it.
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


@dataclass(frozen=True)
class Draws:
    """What many runs of something random give; equal in distribution is equal."""

    mean: Tensor
    spread: Tensor
    together: Tensor  # the spread of the sum over all entries, which are to be drawn one by one


def draws(run: Callable[..., Tensor], *inputs: Tensor) -> Draws:
    """The distribution of `run` over 4,000 copies of the first row of its inputs."""
    drawn = run(*(x[:1].repeat_interleave(4000, dim=0) for x in inputs)).detach().double()
    return Draws(drawn.mean(0), drawn.std(0), drawn.flatten(1).sum(1).std())


def filled(module: nn.Module, by_name: bool = True) -> nn.Module:
    """A module whose parameters are drawn anew in the order of their names, or else of kind and shape."""
    linear = lambda name: isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear)
    key = lambda named: named[0] if by_name else (linear(named[0]), *named[1].shape)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in sorted(module.named_parameters(), key=key):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return module


_NAMES = "the names of what it holds"


def outcomes(piece: Piece, candidate: Any, by_name: bool = True) -> dict[str, Any]:
    """What the probes give for a candidate: a value each, or the exception that it raised; and its names."""
    names: set[str] = set()

    def fill(module: nn.Module) -> nn.Module:
        names.update(name for name, _ in (*module.named_parameters(), *module.named_buffers()))
        return filled(module, by_name)

    results: dict[str, Any] = {_NAMES: names}
    names_in_scope = {"piece": candidate, "filled": fill, "draws": draws, "randn": torch.randn}
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # a wrong formula cannot hide behind rounding
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # not those of GPUs, which nobody restores
            exec(piece.given, scope := _context(piece) | names_in_scope)
            for question, expression in piece.probes.items():
                torch.default_generator.manual_seed(0)
                try:
                    results[question] = eval(expression, scope)
                except Exception as error:  # one more thing that code can do
                    if isinstance(error, NotImplementedError) and not error.args:  # not written yet
                        raise
                    results[question] = error.with_traceback(None)
    finally:
        torch.set_default_dtype(before)
    return results


# How an outcome differs from the right one


def _parts(value: Any, name: str = "") -> dict[str, Any]:
    # What an outcome holds, by its place.
    if isinstance(value, tuple | list):
        value = {f"part {number}": part for number, part in enumerate(value, 1)} or value
    inner = value.items() if isinstance(value, dict) else ()
    nested = [_parts(part, f"{name}{key}: ") for key, part in inner]
    return {key: part for each in nested for key, part in each.items()} if nested else {name: value}


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes agree: numbers but for rounding, draws in distribution, exceptions in type."""
    mine, books = _parts(one), _parts(other)
    return mine.keys() == books.keys() and all(_alike(mine[name], books[name]) for name in books)


def _alike(one: Any, other: Any) -> bool:
    kind: Any = next((kind for kind in (Tensor, Draws, float) if isinstance(other, kind)), type(other))
    if not isinstance(one, kind):
        return False
    if kind is Draws:
        scales = other.spread.max(), other.spread.max(), other.together
        pairs = zip(astuple(one), astuple(other), scales)
        close = ((a - b).abs().max() <= s / 8 for a, b, s in pairs)
        return one.mean.shape == other.mean.shape and all(close)
    if kind in (Tensor, float):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.allclose(one, other, rtol=1e-7, atol=1e-9, equal_nan=True)
    return issubclass(kind, Exception) or bool(one == other)


def difference(actual: Any, right: Any) -> str:
    """How an outcome differs from the right one, with the first place that does."""
    mine, books = _parts(actual), _parts(right)
    name = next((name for name in mine if name in books and not _alike(mine[name], books[name])), "")
    one, other = (mine[name], books[name]) if name else (actual, right)
    if isinstance(one, Exception):
        return f"{name}yours raises {_kind(one)}"
    if isinstance(one, Draws) and isinstance(other, Draws):
        return f"{name}yours has another mean or spread over 4,000 draws"
    if _kind(one) != _kind(other) or not isinstance(one, Tensor):
        return f"{name}yours is {_kind(one)}, and {_kind(other)} is wanted"
    wrong = ~torch.isclose(one.double(), other.double(), rtol=1e-7, atol=1e-9, equal_nan=True)
    place = tuple(wrong.nonzero()[0].tolist())
    where = f", first at {list(place)} of {wrong.sum()} places" * bool(place)
    return f"{name}yours is {one[place].item():.6g}, the book's {other[place].item():.6g}{where}"


def _kind(value: Any) -> str:
    # What sort of thing it is, where that says more than its text.
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
        return f"a {type(value).__name__} of {', '.join(map(_kind, value))}"
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {shorten(str(value), 80, placeholder='…')}".rstrip(": ")
    return "a dictionary" if isinstance(value, dict) else shorten(repr(value), 80)


# What has probably been done

_DONE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "the sign is wrong": lambda x, axis: -x,
    "you return the exponential of what is wanted": lambda x, axis: x.exp(),
    "you return the logarithm of what is wanted": lambda x, axis: x.log(),
    "there is a log-softmax too many": lambda x, axis: x.log_softmax(axis),
    "there is a softmax too many": lambda x, axis: x.softmax(axis),
    "you sum over axis {}, which should stay": lambda x, axis: x.sum(axis),
    "you take the mean over axis {}, which should stay": lambda x, axis: x.mean(axis),
    "axes {} and -1 are exchanged": lambda x, axis: x.transpose(axis, -1),
    "off by one: all is moved by +1 along axis {}": lambda x, axis: x.roll(1, axis),
    "off by one: all is moved by -1 along axis {}": lambda x, axis: x.roll(-1, axis),
}


def transformation(actual: Any, right: Any) -> str:
    """What has been done to the right value to make this one, in words; an empty text for nothing simple."""
    mine, books = _parts(actual), _parts(right)
    if mine.keys() != books.keys():
        return f"you return {_kind(actual)}, and {_kind(right)} is wanted"
    wrong = [name for name in books if not _alike(mine[name], books[name])]
    for one, other in combinations(wrong, 2):
        if _alike(mine[one], books[other]) and _alike(mine[other], books[one]):
            return f"{one}and {other}are exchanged".replace(": ", " ")
    made = (_made(mine[name], books[name]) for name in wrong)
    return next((words for each in made for words, so in each if so), "")


def _made(one: Any, right: Any) -> Iterator[tuple[str, bool]]:
    # What may have been done to the right number or numbers, and whether it gives these.
    if not all(isinstance(value, Tensor | float | int) for value in (one, right)):
        return
    one, right = (torch.as_tensor(x).detach().double() for x in (one, right))
    for axis, n in enumerate(right.shape):
        for words, done in _DONE.items() if n > 1 else ():
            yield words.format(axis), same(one, done(right, axis))
    if one.shape != right.shape:
        yield "the values are right, and their shape is not", same(one.flatten(), right.flatten())
        yield "you return a value for each entry, and their mean is wanted", same(one.mean(), right)
        yield "you return a value for each entry, and their sum is wanted", same(one.sum(), right)
        return
    ratio = (one / right)[(right != 0) | (one != 0)]
    if len(ratio) > 1 and ratio.isfinite().all():  # one number alone has some factor to any other
        words = f"yours is {ratio[0]:.4g} times the right one: a sum, or a mean over something else?"
        yield words, same(ratio, ratio[:1].expand_as(ratio))


# What has become of a piece

RIGHT, WRONG, MISSING = "✓", "✗", "○"


class Verdict(NamedTuple):
    """What has become of a piece, and why."""

    mark: str  # RIGHT, WRONG or MISSING
    says: str
    renamed: bool = False  # whether what it holds bears other names than the book's


def judge(piece: Piece, candidate: Any) -> Verdict:
    """Compare a piece by value with the book's, and say what is likely to be wrong with another one."""
    try:
        actual = outcomes(piece, candidate)
        if renamed := actual[_NAMES] != _expected(piece.key)[_NAMES]:
            actual = outcomes(piece, candidate, by_name=False)
    except NotImplementedError:
        return Verdict(MISSING, "not written yet")
    right = _expected(piece.key, by_name=not renamed)
    different = [question for question in piece.probes if not same(actual[question], right[question])]
    if not different:
        return Verdict(RIGHT, f"equal to the book's in all that was asked ({len(right) - 1})", renamed)
    first = different[0]
    where = f"{first}: {difference(actual[first], right[first])}"
    cause = _cause(piece, actual, first, not renamed)
    return Verdict(WRONG, "; ".join(filter(None, (cause, where))), renamed)


def _cause(piece: Piece, actual: dict[str, Any], first: str, by_name: bool) -> str:
    # What gives these values: a usual mistake, or something simple that was done to the right ones.
    right, partly = _expected(piece.key, None, by_name), ""
    for number, mistake in enumerate(piece.mistakes):
        wrong = _expected(piece.key, number, by_name)
        if all(same(actual[question], wrong[question]) for question in piece.probes):
            return mistake.says
        if same(actual[first], wrong[first]) and not same(wrong[first], right[first]):
            partly = partly or f"{mistake.says}; something else is wrong as well"
    if isinstance(actual[first], NameError):
        return "imports and helpers belong in the same cell"
    if partly or isinstance(actual[first], Exception) or isinstance(right[first], Exception):
        return partly
    return transformation(actual[first], right[first])


@functools.cache
def _expected(key: str, number: int | None = None, by_name: bool = True) -> dict[str, Any]:
    # The outcomes of the book's piece, or of the same with one of its mistakes.
    piece = pieces()[key]
    code = piece.code if number is None else with_mistake(piece, piece.mistakes[number])
    return outcomes(piece, defined(piece, code), by_name=by_name)


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
        return Verdict(WRONG, f"its cell raises {_kind(error)}")


# A reader's notebooks

# The modules in which a reader's pieces take the places of the book's.
CORE = ("embedding", "attention", "layers", "model", "loss", "training", "decoding", "toy")
_ON_EARLIER = "02", "03", "04", "05", "06", "09"  # chapters that build their models of the reader's pieces


class Workbook:
    """A reader's pieces: a notebook runs on its own, and where models are built on those of the ones before.

    Args:
        chapter: of the notebook, such as `"03-attention"`.
        folder: where the reader's other notebooks lie.
    """

    def __init__(self, chapter: str, folder: str = ".") -> None:
        import_module("transformer.speed.fast")  # before a piece is replaced: fast modules know the book's
        self.chapter = chapter
        self.verdicts: dict[str, Verdict] = {}
        self._books: dict[str, Any] = {}  # the book's pieces that were replaced in the package
        self._lent: dict[str, Any] = {}  # what a notebook was given in place of its own pieces
        self._away: dict[str, Any] = {}  # its own pieces during a cell that runs on the book's
        for other in dict.fromkeys(piece.chapter for piece in pieces().values()):
            path = Path(folder) / f"{other}.ipynb"
            if other < chapter and path.is_file():
                cells = written(path)
                lacking = [key for key, code in cells.items() if not self._takes(pieces()[key], code)]
                n_right = sum(self.verdicts[key].mark == RIGHT for key in cells)
                marks = ", ".join(f"{self.verdicts[key].mark} {pieces()[key].name}" for key in lacking)
                books = f"; the book's: {marks}" if marks else ""
                print(f"{other}: {n_right} of {len(cells)} are yours{books}")
        print(self)

    def use(self, own: Any) -> Any:
        """Judge a piece and say so; return it if it is right, and the book's if it is not."""
        piece = pieces()[f"{self.chapter}/{own.__name__}"]
        if own is not self._lent.get(piece.key):  # or only this cell has been run again
            if not self._takes(piece, _cell_with(own), own):
                own = self._lent[piece.key] = _defined_in(sys._getframe(1).f_globals, piece)
        mark, says, _ = self.verdicts[piece.key]
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

    def __str__(self) -> str:
        marks = [self.verdicts[key].mark if key in self.verdicts else MISSING for key in pieces()]
        strip = "".join("■" if mark == RIGHT else "□" for mark in marks)
        return f"{strip} {marks.count(RIGHT)} of {len(marks)} pieces are yours"

    def _takes(self, piece: Piece, code: str, own: Any = None) -> bool:
        # Judge a piece, by its cell if there is a text, and let the core of the package use it if it is right
        # and fits. A chapter that measures the book's classes, or knows them by name, keeps them.
        verdict = self.verdicts[piece.key] = judge_code(piece, code) if code else judge(piece, own)
        fits = verdict.mark == RIGHT and not verdict.renamed
        if piece.module in CORE and (self.chapter[:2] in _ON_EARLIER or self.chapter == piece.chapter):
            old = getattr(import_module(f"transformer.{piece.module}"), piece.name)
            book = self._books.setdefault(piece.key, old)
            new = (defined(piece, code) if code else own) if fits else book
            for module in ("transformer", *(f"transformer.{name}" for name in CORE)):
                names = vars(sys.modules[module]) if module in sys.modules else {}
                names.update({name: new for name, value in names.items() if value is old})
        return fits


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


def written(path: str | Path) -> dict[str, str]:
    """The code that a notebook has for each of its pieces, by their keys; `ValueError` if it is none."""
    try:
        cells = json.loads(Path(path).read_text(encoding="utf8"))["cells"]
        marked = [(cell["metadata"].get("workbook", []), "".join(cell["source"])) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no notebook") from error
    return {key: code for keys, code in marked for key in keys if key in pieces()}
