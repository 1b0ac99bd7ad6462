"""What a wrong piece of the workbook most likely did, by transformed references."""

import ast
import math
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from os.path import commonprefix
from typing import Any, NamedTuple
import torch
from torch import Tensor

__all__ = [
    "Draws",
    "draws",
    "half_precision",
    "same",
    "difference",
    "said",
    "brief",
    "transformation",
    "edits",
]


class Draws(NamedTuple):
    """What many runs of something random give; equal in distribution is equal."""

    mean: Tensor
    spread: Tensor
    together: Tensor  # the spread of the sum over all entries, which are to be drawn one by one


def draws(run: Callable[..., Tensor], *inputs: Tensor) -> Draws:
    """The distribution of `run` over 4,000 copies of the first row of its inputs."""
    found = run(*(x[:1].repeat_interleave(4000, dim=0) for x in inputs)).detach().double()
    return Draws(found.mean(0), found.std(0), found.flatten(1).sum(1).std())


def half_precision(run: Callable[..., Tensor], *inputs: Tensor) -> list[str]:
    """How exact `run` is in half precision, beside itself in float64."""
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        small = [x.to(dtype) for x in inputs]
        exact, own = run(*(x.double() for x in small)), run(*small)
        off = (own.double() - exact).abs().max() / exact.abs().max()
        inside = "float32" if off < 0.6 * torch.finfo(own.dtype).eps + 4e-6 else "half precision"
        found.append(f"{dtype} in, {own.dtype} out, computed in {inside}")
    return found


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes agree: numbers but for rounding, draws in distribution, exceptions in type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        alike = one.shape == other.shape and one.dtype == other.dtype
        return alike and torch.allclose(one, other, rtol=1e-7, atol=1e-9, equal_nan=True)
    if isinstance(other, Draws):
        alike = isinstance(one, Draws) and one.mean.shape == other.mean.shape
        scales = other.spread.max(), other.spread.max(), other.together
        return alike and all(bool((a - b).abs().max() <= 0.12 * s) for a, b, s in zip(one, other, scales))
    if isinstance(other, Exception):
        return type(one) is type(other)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-7, abs_tol=1e-9) or one != one and other != other
    if isinstance(other, tuple | list):
        alike = isinstance(one, tuple | list) and len(one) == len(other)
        return alike and all(same(*pair) for pair in zip(one, other))
    if isinstance(other, dict):
        alike = isinstance(one, dict) and one.keys() == other.keys()
        return alike and all(same(one[key], other[key]) for key in other)
    return type(one) is type(other) and bool(one == other)


def difference(found: Any, right: Any) -> str:
    """How an outcome differs from the right one, with the first place that does."""
    if isinstance(found, Exception):
        return f"yours raises {said(found)}"
    if isinstance(right, Exception):
        return f"a {type(right).__name__} is wanted here, and yours raises none"
    if isinstance(found, Tensor) and isinstance(right, Tensor):
        return _of_tensors(found, right)
    if isinstance(right, Draws) and isinstance(found, Draws):
        largest = [[f"{x.flatten()[x.abs().argmax()]:.3g}" for x in each] for each in (found, right)]
        return "over 4,000 draws, mean, spread and spread of the sum are {}, not {}".format(
            *map(", ".join, largest)
        )
    if isinstance(right, tuple | list) and isinstance(found, tuple | list) and len(found) == len(right):
        place = next(i for i, pair in enumerate(zip(found, right)) if not same(*pair))
        return f"part {place + 1} of {len(right)}: {difference(found[place], right[place])}"
    if isinstance(right, dict) and isinstance(found, dict) and right.keys() == found.keys():
        key = next(key for key in right if not same(found[key], right[key]))
        return f"{key!r}: {difference(found[key], right[key])}"
    return f"yours is {_kind(found)}, and {_kind(right)} is wanted"


def _of_tensors(found: Tensor, right: Tensor) -> str:
    for name, mine, books in (
        ("has the shape", list(found.shape), list(right.shape)),
        ("has the dtype", found.dtype, right.dtype),
        ("holds NaN", int(found.isnan().sum()), int(right.isnan().sum())),
    ):
        if mine != books:
            return f"yours {name} {mine}, the book's {books}"
    wrong = ~torch.isclose(found.double(), right.double(), rtol=1e-7, atol=1e-9, equal_nan=True)
    place = tuple(wrong.nonzero()[0].tolist())
    values = f"yours is {found[place].item():.6g}, the book's {right[place].item():.6g}"
    return f"first at {list(place)} of {wrong.sum()} places, {values}" if place else values


def _kind(value: Any) -> str:
    # What sort of thing it is, where that says more than its text.
    if isinstance(value, Tensor):
        return f"a tensor {list(value.shape)}"
    if isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
        return f"a {type(value).__name__} of {', '.join(map(_kind, value))}"
    return "a dictionary" if isinstance(value, dict) else brief(value)


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {brief(str(error), str)}".rstrip(": ")


def brief(value: Any, write: Callable[[Any], str] = repr) -> str:
    """A value in at most 80 characters of one line."""
    text = " ".join(write(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


# One value made of another

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the sign is wrong": torch.neg,
    "signs are lost": torch.abs,
    "negative values have become 0": torch.relu,
    "you return the exponential of what is wanted": torch.exp,
    "you return the logarithm of what is wanted": torch.log,
    "you return the log-softmax of what is wanted": lambda x: x.log_softmax(-1) if x.dim() else x,
    "there is a softmax too many": lambda x: x.softmax(-1) if x.dim() else x,
    "you return the square of what is wanted": torch.square,
    "you return the square root of what is wanted": torch.sqrt,
    "you return the reciprocal of what is wanted": torch.reciprocal,
}
_ALONG: dict[str, Callable[[Tensor, int], Tensor]] = {
    "you sum over axis {0}, which should stay": lambda x, axis: x.sum(axis),
    "you take the mean over axis {0}, which should stay": lambda x, axis: x.mean(axis),
    "axis {0} runs backward": lambda x, axis: x.flip(axis),
    "the last entry of axis {0} is missing": lambda x, axis: x.narrow(axis, 0, x.size(axis) - 1),
    "the first entry of axis {0} is missing": lambda x, axis: x.narrow(axis, 1, x.size(axis) - 1),
    "off by one: all is moved by +1 along axis {0}": lambda x, axis: x.roll(1, axis),
    "off by one: all is moved by -1 along axis {0}": lambda x, axis: x.roll(-1, axis),
}
_KINDS = Draws, bool, dict, (tuple, list), (Tensor, float, int)


def transformation(found: Any, right: Any, inputs: dict[str, Tensor]) -> str:
    """What has been done to the right value to make this one, in words; an empty text for nothing simple.

    Args:
        inputs: what the piece was given, whose sizes may be factors, and which may have been added.
    """
    mine, wanted = (next((k for k in _KINDS if isinstance(value, k)), None) for value in (found, right))
    if None in (mine, wanted) or wanted in (Draws, bool):
        return ""
    if mine is not wanted:
        return f"you return {_kind(found)}, and {_kind(right)} is wanted"
    if isinstance(right, dict):
        found, right = ([each[key] for key in right if key in found] for each in (found, right))
    if isinstance(right, tuple | list):
        for i, j in combinations(range(min(len(found), len(right))), 2):
            if same(found[i], right[j]) and same(found[j], right[i]) and not same(found[i], right[i]):
                return f"results {i + 1} and {j + 1} are exchanged"
        parts = (transformation(*pair, inputs) for pair in zip(found, right) if not same(*pair))
        return next(filter(None, parts), "")
    one, other = torch.as_tensor(found), torch.as_tensor(right)
    if one.shape == other.shape and one.dtype != other.dtype:
        return f"the dtype is {one.dtype}, and {other.dtype} is wanted"
    if one.dtype == other.dtype == torch.bool and same(one, ~other):
        return "True and False are exchanged"
    made = _made(one.detach().double(), other.detach().double(), inputs)
    return next((words for words, so in made if so), "")


def _made(one: Tensor, right: Tensor, inputs: dict[str, Tensor]) -> Iterator[tuple[str, bool]]:
    # What may have been done to the right value, and whether it gives this one.
    ordered = same(one.flatten().sort().values, right.flatten().sort().values)
    if one.shape != right.shape:
        yield "the values are right, and their shape is not", same(one.flatten(), right.flatten())
        yield "the values are right, but they are joined or cut along another axis", ordered
    if right.dim() == 0 and one.dim():
        yield "you return a value for each entry, and their mean is wanted", same(one.mean(), right)
        yield "you return a value for each entry, and their sum is wanted", same(one.sum(), right)
    if one.shape == right.shape:
        yield "yours is 0 everywhere", not one.any()
        for words, function in _FUNCTIONS.items() if (right != right.round()).any() else ():
            yield words, same(one, function(right))
        for name, x in inputs.items():
            added = x.shape == right.shape and x.is_floating_point()
            yield f"`{name}` is added to what is wanted", added and same(one, right + x)
    for axis, n in enumerate(right.shape if right.numel() > 1 else ()):
        for other in range(axis):
            yield f"axes {other} and {axis} are exchanged", same(one, right.transpose(other, axis))
        for words, along in _ALONG.items() if n > 1 else ():
            yield words.format(axis), same(one, along(right, axis))
    if one.shape == right.shape:
        gap, ratio = (one - right).flatten(), (one / right)[(right != 0) | (one != 0)]
        if one.numel() > 1 and gap.isfinite().all():
            yield f"the same number is added everywhere: {gap[0]:.6g}", same(gap, gap[:1].expand_as(gap))
        if len(ratio) and ratio.isfinite().all() and same(ratio, ratio[:1].expand_as(ratio)):
            words = _factor(ratio[0].item(), inputs)
            yield words, one.numel() > 1 or "." not in words  # one number alone has some factor to any other
        yield "the values are right, but stand in other places", one.numel() > 1 and ordered


def _factor(factor: float, inputs: dict[str, Tensor]) -> str:
    # A factor in words, and where it may come from.
    for name, x in inputs.items():
        for axis, n in enumerate(x.shape):
            for value, words in ((n, f"{n}"), (1 / n, f"1/{n}"), (n**0.5, f"√{n}"), (n**-0.5, f"1/√{n}")):
                if n > 1 and math.isclose(factor, value, rel_tol=1e-6):
                    whose = f"axis {axis} of `{name}` has the length {n}: sum or mean?"
                    return f"yours is {words} times the right one, and {whose}"
    simple = Fraction(factor).limit_denominator(12)
    return f"yours is {simple if math.isclose(factor, simple) else f'{factor:.6g}'} times the right one"


# One slip in right code

_OTHERS = {  # what is easily taken for what
    "mean": "sum amax", "sum": "mean", "max": "min", "min": "max", "amax": "amin mean sum",
    "argmax": "argmin", "tril": "triu", "triu": "tril", "sin": "cos", "cos": "sin",
    "any": "all", "all": "any", "exp": "exp2", "log": "log2 log10", "prod": "sum",
    "softmax": "log_softmax sigmoid", "log_softmax": "softmax", "square": "abs",
    "sqrt": "square", "repeat_interleave": "repeat", "round": "floor ceil",
}  # fmt: skip
_SIGNS: dict[type[Any], tuple[type[Any], ...]] = {
    ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add,), ast.Mult: (ast.Div, ast.Add), ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,), ast.FloorDiv: (ast.Mod,), ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,), ast.BitOr: (ast.BitAnd,), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,),
    ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.Lt),
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.Gt),
}  # fmt: skip
_LIBRARIES = "math", "torch", "F", "nn"


def edits(code: str, name: str = "") -> Iterator[tuple[str, str]]:
    """Right code with one usual slip at a time: what the slip is, in words, and the code that has it.

    Args:
        code: of a cell, or an expression.
        name: the definition in which slips are made; of an expression, none.
    """
    tree = ast.parse(code)
    roots = [node for node in tree.body if getattr(node, "name", None) == name] if name else [tree]
    nodes = [node for root in roots for node in ast.walk(root)]
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = sorted(stored | {node.arg for node in nodes if isinstance(node, ast.arg)} - {"self"})
    # What is looped over stays, or a list may grow while it is read.
    fixed = {id(part) for node in nodes if hasattr(node, "iter") for part in ast.walk(node.iter)}
    taken = lambda node: [ast.Name(other) for other in known if other != node.id]
    free = lambda node: isinstance(node, ast.Name) and node.id in known and id(node) not in fixed
    above = {id(part): node for node in nodes for part in ast.iter_child_nodes(node)}
    for slips in (_others, _lacking, lambda node: taken(node) if free(node) else ()):
        for node in nodes:
            short = isinstance(node, ast.Name | ast.Constant) and isinstance(above.get(id(node)), ast.expr)
            shown = above[id(node)] if short else node
            right = ast.unparse(shown)
            for other in slips(node):
                _Exchange(node, other).visit(tree)
                wrong = ast.unparse(ast.fix_missing_locations(tree))
                words = _told(right, ast.unparse(shown if short else other))
                _Exchange(other, node).visit(tree)
                yield words, wrong


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _told(right: str, wrong: str) -> str:
    # What stands where, without what both have in common at their ends.
    parts = [re.findall(r"[\w.]+|\W", text) for text in (right, wrong)]
    start = len(commonprefix(parts))
    end = len(commonprefix([part[start:][::-1] for part in parts]))
    was, now = ("".join(part[start : len(part) - end]).strip() for part in parts)
    if any(part.count("(") != part.count(")") or ")" in part.partition("(")[0] for part in (was, now)):
        was, now = right, wrong
    within = f" in `{brief(right, str)}`" * (was != right)
    if now in ("", "pass"):
        return f"`{brief(was, str)}` is missing{within}"
    return f"`{brief(now, str)}` {f'where `{brief(was, str)}` belongs' if was else 'is too much'}{within}"


def _others(node: ast.AST) -> Iterator[ast.AST]:
    # What is easily taken for a sign, a number, a function, or for what a loop runs over.
    match node:
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, kind(), right) for kind in _SIGNS.get(type(op), ()))
            if isinstance(right, ast.BinOp):
                yield ast.BinOp(ast.BinOp(left, op, right.left), right.op, right.right)
            if not isinstance(op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
                yield ast.BinOp(right, op, left)
            if isinstance(op, ast.Mult | ast.Div):
                yield ast.BinOp(node, op, right)
                yield from (ast.BinOp(node, times, ast.Constant(2)) for times in (ast.Mult(), ast.Div()))
        case ast.Compare(left, [op], [right]):
            yield from (ast.Compare(left, [kind()], [right]) for kind in _SIGNS.get(type(op), ()))
        case ast.Constant(int() | float() as n) if not isinstance(n, bool):
            near = (n - 1, n + 1, -n) if isinstance(n, int) else (n * 10, n / 10, n * 2, n / 2)
            yield from (ast.Constant(number) for number in near if number != n)
        case ast.Attribute(value, name):
            yield from (ast.Attribute(value, other) for other in _OTHERS.get(name, "").split())
        case ast.Tuple(parts, context):
            yield from (ast.Tuple(changed, context) for changed in _swapped(parts))
        case ast.Call(function, given, named):
            yield from (ast.Call(function, changed, named) for changed in _swapped(given))
        case ast.For() | ast.comprehension():
            for part in ("1:", ":-1", ":1"):
                fewer = ast.parse(f"[*{ast.unparse(node.iter)}][{part}]", mode="eval").body
                yield type(node)(**{**dict(ast.iter_fields(node)), "iter": fewer})
        case ast.AugAssign(target, _, value):
            yield ast.Assign([target], value)


def _swapped(parts: list[Any]) -> Iterator[list[Any]]:
    for i, j in combinations(range(len(parts)), 2):
        yield [parts[j] if k == i else parts[i] if k == j else part for k, part in enumerate(parts)]


def _lacking(node: ast.AST) -> Iterator[ast.AST]:
    # A statement without its effect, a part in place of the whole, a call without one of its arguments.
    match node:
        case ast.Expr(ast.Constant()) | ast.Assign(_, ast.Constant()):
            pass
        case ast.Expr() | ast.Assign() | ast.If():
            yield ast.Pass()
        case ast.BinOp() | ast.UnaryOp() | ast.IfExp() | ast.Subscript() | ast.Attribute(_, "T" | "mT"):
            yield from (part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        case ast.Call(function, given, named):
            if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") not in _LIBRARIES:
                yield function.value
            yield from (part for part in given if not isinstance(part, ast.Starred))
            for i, part in enumerate(given):
                again = lambda *between, i=i: ast.Call(
                    function, [*given[:i], *between, *given[i + 1 :]], named
                )
                yield from (again(), again(ast.Constant(None)))
                if isinstance(part, ast.BinOp):  # one side of it outside
                    yield ast.BinOp(again(part.left), part.op, part.right)
                if "mask" in getattr(part, "id", ""):
                    yield again(ast.UnaryOp(ast.Invert(), part))
            yield from (
                ast.Call(function, given, [each for each in named if each is not one]) for one in named
            )
