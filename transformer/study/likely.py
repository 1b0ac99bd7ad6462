"""What a wrong piece of the workbook most likely did, by transformed references."""

import ast
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
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
    return brief(value)


def said(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {brief(str(error), str)}".rstrip(": ")


def brief(value: Any, write: Callable[[Any], str] = repr) -> str:
    """A value in at most 80 characters of one line."""
    text = " ".join(write(value).split())
    return text if len(text) <= 80 else f"{text[:79]}…"


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the sign is wrong": torch.neg,
    "you return the exponential of what is wanted": torch.exp,
    "you return the logarithm of what is wanted": torch.log,
    "you return the log-softmax of what is wanted": lambda x: x.log_softmax(-1) if x.dim() else x,
    "there is a softmax too many": lambda x: x.softmax(-1) if x.dim() else x,
    "you return the square of what is wanted": torch.square,
    "you return the square root of what is wanted": torch.sqrt,
    "you return the reciprocal of what is wanted": torch.reciprocal,
    "negative values have become 0": torch.relu,
    "signs are lost": torch.abs,
}


def transformation(found: Any, right: Any, inputs: dict[str, Tensor]) -> str:
    """What has been done to the right value to make this one, in words; an empty text for nothing simple.

    Args:
        inputs: what the piece was given, whose sizes may be factors, and which may have been added.
    """
    if isinstance(right, tuple | list | dict) and not isinstance(right, Draws):
        return _of_parts(found, right, inputs)
    if isinstance(right, Tensor | float | int) and isinstance(found, tuple | list | dict):
        return f"you return {_kind(found)}, and {_kind(right)} alone is wanted"
    if isinstance(right, bool) or not all(
        isinstance(value, Tensor | float | int) for value in (found, right)
    ):
        return ""
    one, other = torch.as_tensor(found), torch.as_tensor(right)
    if one.shape == other.shape and one.dtype != other.dtype:
        return f"the dtype is {one.dtype}, and {other.dtype} is wanted"
    if one.dtype == other.dtype == torch.bool and same(one, ~other):
        return "True and False are exchanged"
    one, other = one.detach().double(), other.detach().double()
    return next((words for words, made in _forms(one, other, inputs) if made), "") or _factor(
        one, other, inputs
    )


def _of_parts(found: Any, right: Any, inputs: dict[str, Tensor]) -> str:
    # Several results at once.
    if isinstance(found, Tensor) or isinstance(found, dict) != isinstance(right, dict):
        kind = "a dictionary" if isinstance(right, dict) else _kind(right)
        return f"you return {_kind(found)}, and {kind} is wanted"
    if isinstance(right, dict):
        found, right = ([each[key] for key in right if key in found] for each in (found, right))
    if not isinstance(found, tuple | list) or len(found) != len(right):
        return ""
    numbers = [all(isinstance(part, float) for part in each) for each in (found, right)]
    if all(numbers) and len(right) > 1:
        if words := transformation(torch.tensor(found), torch.tensor(right), inputs):
            return words
    for i, j in combinations(range(len(right)), 2):
        if same(found[i], right[j]) and same(found[j], right[i]) and not same(found[i], right[i]):
            return f"results {i + 1} and {j + 1} are exchanged"
    return next(
        filter(None, (transformation(*pair, inputs) for pair in zip(found, right) if not same(*pair))), ""
    )


def _forms(one: Tensor, right: Tensor, inputs: dict[str, Tensor]) -> Iterator[tuple[str, bool]]:
    # What may have been done to the right value, and whether it gives this one.
    if one.numel() == right.numel() and one.shape != right.shape:
        yield "the values are right, and their shape is not", same(one.flatten(), right.flatten())
        ordered = same(one.flatten().sort().values, right.flatten().sort().values)
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
    for i, n in enumerate(right.shape if right.numel() > 1 else ()):
        for j in range(i):
            yield f"axes {j} and {i} are exchanged", same(one, right.transpose(i, j))
        yield f"you sum over axis {i}, which should stay", n > 1 and same(one, right.sum(i))
        yield f"you take the mean over axis {i}, which should stay", n > 1 and same(one, right.mean(i))
        yield f"axis {i} runs backward", same(one, right.flip(i))
        yield f"the last entry of axis {i} is missing", n > 1 and same(one, right.narrow(i, 0, n - 1))
        yield f"the first entry of axis {i} is missing", n > 1 and same(one, right.narrow(i, 1, n - 1))
        for step in (1, -1):
            yield f"off by one: all is moved by {step:+} along axis {i}", same(one, right.roll(step, i))


def _factor(one: Tensor, right: Tensor, inputs: dict[str, Tensor]) -> str:
    # A number that one value is times the other, or more than it, and where it may come from.
    if one.shape != right.shape:
        return ""
    gap, ratio = (one - right).flatten(), (one / right).flatten()
    ratio = ratio[(right.flatten() != 0) | (one.flatten() != 0)]
    if one.numel() > 1 and gap.isfinite().all() and same(gap, gap[:1].expand_as(gap)):
        return f"the same number is added everywhere: {gap[0]:.6g}"
    if len(ratio) and ratio.isfinite().all() and same(ratio, ratio[:1].expand_as(ratio)):
        factor = ratio[0].item()
        whose = {
            n: f"axis {i} of `{name}`" for name, x in inputs.items() for i, n in enumerate(x.shape) if n > 1
        }
        for n, axis in whose.items():
            for value, words in ((n, f"{n}"), (1 / n, f"1/{n}"), (n**0.5, f"√{n}"), (n**-0.5, f"1/√{n}")):
                if math.isclose(factor, value, rel_tol=1e-6):
                    return (
                        f"yours is {words} times the right one, and {axis} has the length {n}: sum or mean?"
                    )
        simple = Fraction(factor).limit_denominator(12)
        if one.numel() > 1 or simple and math.isclose(factor, simple, rel_tol=1e-6):
            return (
                f"yours is {simple if math.isclose(factor, simple) else f'{factor:.6g}'} times the right one"
            )
    if one.numel() > 1 and same(one.flatten().sort().values, right.flatten().sort().values):
        return "the values are right, but stand in other places"
    return ""


_OTHERS = {  # what is easily taken for what
    "mean": "sum amax", "sum": "mean", "max": "min", "min": "max", "amax": "amin mean sum",
    "argmax": "argmin", "tril": "triu", "triu": "tril", "sin": "cos", "cos": "sin",
    "any": "all", "all": "any", "exp": "exp2", "log": "log2 log10", "prod": "sum",
    "softmax": "log_softmax sigmoid", "log_softmax": "softmax", "square": "abs",
    "sqrt": "square", "repeat_interleave": "repeat", "round": "floor ceil",
}  # fmt: skip
_SIGNS: dict[type[Any], tuple[str, str]] = {  # how an operator is written, and what is easily taken for it
    ast.Add: ("+", "Sub Mult"), ast.Sub: ("−", "Add"), ast.Mult: ("·", "Div Add"), ast.Div: ("/", "Mult"),
    ast.Pow: ("power", "Mult"), ast.FloorDiv: ("//", "Mod"), ast.Mod: ("%", "FloorDiv"),
    ast.MatMult: ("@", ""), ast.BitAnd: ("and", "BitOr"), ast.BitOr: ("or", "BitAnd"),
    ast.Eq: ("=", "NotEq"), ast.NotEq: ("≠", "Eq"),
    ast.Gt: (">", "GtE Lt"), ast.GtE: ("≥", "Gt Lt"), ast.Lt: ("<", "LtE Gt"), ast.LtE: ("≤", "Lt Gt"),
}  # fmt: skip
_Slips = Iterator[tuple[str, Any]]


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
    known = stored | {node.arg for node in nodes if isinstance(node, ast.arg)} - {"self"}
    # What is looped over stays, or a list may grow while it is read.
    fixed = {id(part) for node in nodes if hasattr(node, "iter") for part in ast.walk(node.iter)}
    taken = lambda node: [
        (f"`{each}` where `{node.id}` belongs", ast.Name(each)) for each in sorted(known - {node.id})
    ]
    free = lambda node: isinstance(node, ast.Name) and node.id in known and id(node) not in fixed
    for slips in (_slips, lambda node: taken(node) if free(node) else ()):
        for node in nodes:
            for words, other in slips(node):
                _Exchange(node, other).visit(tree)
                yield words, ast.unparse(ast.fix_missing_locations(tree))
                _Exchange(other, node).visit(tree)


class _Exchange(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def _write(part: ast.AST) -> str:
    return f"`{brief(ast.unparse(part), str)}`"


def _slips(node: ast.AST) -> _Slips:
    match node:
        case ast.BinOp(left, op, right) if type(op) in _SIGNS:
            yield from _slips_of_operator(node, left, op, right)
        case ast.Compare(left, [op], [right]) if type(op) in _SIGNS:
            for other in _SIGNS[type(op)][1].split():
                kind = getattr(ast, other)
                words = f"{_SIGNS[kind][0]} where {_SIGNS[type(op)][0]} belongs, before {_write(right)}"
                yield words, ast.Compare(left, [kind()], [right])
        case ast.UnaryOp(op, operand):
            sign = "minus" if isinstance(op, ast.USub) else "not"
            yield f"the {sign} before {_write(operand)} is missing", operand
        case ast.Constant(int() | float() as n) if not isinstance(n, bool):
            near = (n - 1, n + 1, -n) if isinstance(n, int) else (n * 10, n / 10, n * 2, n / 2)
            for number in dict.fromkeys(near):
                if number != n:
                    yield f"{number} where {n} belongs", ast.Constant(number)
        case ast.IfExp(test, body, orelse):
            yield f"{_write(body)} whatever {_write(test)} says", body
            yield f"{_write(orelse)} whatever {_write(test)} says", orelse
        case ast.Subscript(value, ast.Slice() | ast.Tuple()):
            yield f"the slice of {_write(value)} is missing", value
        case ast.Attribute(value, "T" | "mT"):
            yield f"{_write(value)} is not transposed", value
        case ast.Tuple(parts, ctx):
            for i, j in combinations(range(len(parts)), 2):
                words = f"{_write(parts[i])} and {_write(parts[j])} are exchanged"
                yield words, ast.Tuple(_swapped(parts, i, j), ctx)
        case ast.Call():
            yield from _slips_of_call(node)
        case _:
            yield from _slips_of_statement(node)


def _slips_of_statement(node: ast.AST) -> _Slips:
    match node:
        case ast.For() | ast.comprehension():
            read = _write(node.iter)
            for part, words in (
                ("1:", "all but the first"),
                (":-1", "all but the last"),
                (":1", "only the first"),
            ):
                part_of = ast.parse(f"[*{ast.unparse(node.iter)}][{part}]", mode="eval").body
                fields = {**dict(ast.iter_fields(node)), "iter": part_of}
                yield f"{words} of {read} counts", type(node)(**fields)
        case ast.AugAssign(target, _, value):
            yield f"{_write(target)} is replaced where it should grow", ast.Assign([target], value)
        case ast.Expr(ast.Constant()) | ast.Assign(_, ast.Constant()):
            pass
        case ast.Expr() | ast.Assign() | ast.If():
            yield f"{_write(node)} is missing", ast.Pass()


def _swapped(parts: list[Any], i: int, j: int) -> list[Any]:
    return [parts[j] if k == i else parts[i] if k == j else part for k, part in enumerate(parts)]


def _slips_of_operator(node: ast.BinOp, left: ast.expr, op: ast.operator, right: ast.expr) -> _Slips:
    sign, others = _SIGNS[type(op)]
    for other in others.split():
        kind = getattr(ast, other)
        yield (
            f"{_SIGNS[kind][0]} where {sign} belongs, before {_write(right)}",
            ast.BinOp(left, kind(), right),
        )
    if isinstance(right, ast.BinOp):
        grouped = ast.BinOp(ast.BinOp(left, op, right.left), right.op, right.right)
        yield f"parentheses around {_write(grouped.left)}, where none belong", grouped
    yield f"{sign} {_write(right)} is missing", left
    yield f"{_write(left)} {sign} is missing", right
    if not isinstance(op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
        yield f"the sides of {sign} {_write(right)} are exchanged", ast.BinOp(right, op, left)
    if isinstance(op, ast.Mult | ast.Div):
        yield f"{_write(right)} counts twice", ast.BinOp(node, op, right)
        yield f"{_write(node)} is twice too large", ast.BinOp(node, ast.Mult(), ast.Constant(2))
        yield f"{_write(node)} is half of what it should be", ast.BinOp(node, ast.Div(), ast.Constant(2))


def _slips_of_call(node: ast.Call) -> _Slips:
    function, given = node.func, node.args
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "your piece")
    name = "your piece" if name == "piece" else name
    again = lambda *given: ast.Call(function, [*given], node.keywords)
    for other in _OTHERS.get(name, "").split():
        changed = (
            ast.Attribute(function.value, other) if isinstance(function, ast.Attribute) else ast.Name(other)
        )
        yield f"`{other}` where `{name}` belongs", ast.Call(changed, given, node.keywords)
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") not in (
        "math",
        "torch",
        "F",
        "nn",
    ):
        yield f"`{name}` is missing", function.value
    for i, argument in enumerate(given):
        rest = given[:i], given[i + 1 :]
        if isinstance(argument, ast.BinOp):
            apart = ast.BinOp(again(*rest[0], argument.left, *rest[1]), argument.op, argument.right)
            yield f"{_write(argument.right)} stands outside of `{name}`", apart
        if not isinstance(argument, ast.Starred):
            yield f"`{name}` of {_write(argument)} is missing", argument
        yield f"{_write(argument)} does not reach `{name}`", again(*rest[0], *rest[1])
        yield f"{_write(argument)} does not reach `{name}`", again(*rest[0], ast.Constant(None), *rest[1])
        if "mask" in getattr(argument, "id", ""):
            yield (
                f"{_write(argument)} is inverted",
                again(*rest[0], ast.UnaryOp(ast.Invert(), argument), *rest[1]),
            )
    for i, j in combinations(range(len(given)), 2):
        both = f"{_write(given[i])} and {_write(given[j])}"
        yield f"{both} are exchanged in `{name}`", again(*_swapped(given, i, j))
    for keyword in node.keywords:
        fewer = [each for each in node.keywords if each is not keyword]
        yield f"`{keyword.arg}` does not reach `{name}`", ast.Call(function, given, fewer)
