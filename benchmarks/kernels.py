"""Each kernel beside what it replaces, shape by shape: where does it win?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, product
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import MIB, interleaved, seconds, table
from benchmarks.workload import SIZES
from transformer import (
    Transformer,
    TransformerConfig,
    accelerate,
    beam_search,
    causal_mask,
    greedy_search,
)
from transformer.attention import fused_attention, scaled_dot_product_attention
from transformer.speed import chunked_loss
from transformer.speed.fast import FastTransformer
from transformer.speed.kernels import (
    CHOICES,
    HAS_ONEDNN,
    dropout_by_bytes,
    fast_attention,
    fastest,
    linear_by_columns,
    linear_by_onednn,
    widened_attention,
)

CPU = torch.device("cpu")
WEIGHTS = 32 * MIB  # of different matrices that take turns, as the layers of a decoder do
CACHED = MIB  # of those of a small decoder
SAMPLE = 0.004  # seconds of processor time: shorter calls are repeated until a clock sees them
HEADS, D_K = 4, 64
VOCABULARY, WIDTH = 8000, 256


class Case(NamedTuple):
    """A kernel and what it replaces, for one shape; `chosen`: whether the package takes it here."""

    kernel: str
    shape: str
    theirs: Callable[[], object]
    ours: Callable[[], object]
    chosen: bool


# What was tried, and is no part of the package.


def linear_by_dot_products(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A dense layer of one row `[1, d_in]` as d_out dot products."""
    return torch.linalg.vecdot(weight, x)[None] + bias


def written_out_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention by its formula."""
    return scaled_dot_product_attention(query, key, value)[0]


def joined_projections(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Several dense layers, given as weight, bias, weight, bias and so on, in one product."""
    weights, biases = parameters[::2], parameters[1::2]
    joined = F.linear(x, torch.cat(weights), torch.cat(biases))
    return joined.split([len(weight) for weight in weights], dim=-1)


def single_projections(x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """The same in one product for each layer."""
    return tuple(map(partial(F.linear, x), parameters[::2], parameters[1::2]))


# What is measured.


def with_gradients(work: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> Callable[[], object]:
    """A call of `work`, and of its gradients by all inputs that want one."""
    wanted, found = [x for x in inputs if x.requires_grad], work(*inputs)
    slopes = [torch.ones_like(y) for y in (found if isinstance(found, tuple) else [found])]
    return lambda: torch.autograd.grad(work(*inputs), wanted, slopes)


def without_gradients(work: Callable[..., Tensor], *inputs: Tensor) -> Callable[[], object]:
    """A call of `work` as in a search."""
    return torch.inference_mode()(partial(work, *inputs))


def is_chosen(task: str, kernel: Callable[..., Tensor], *deciding: Any) -> bool:
    """Whether the table of choices has this kernel for such tensors, on this machine."""
    return fastest(task, *deciding) is kernel


def products() -> Iterator[Case]:
    """Dense layers in training, with all three gradients; none where this PyTorch has no oneDNN."""
    if not HAS_ONEDNN:
        return
    for rows, (inner, columns) in product((64, 256, 2048), ((256, 256), (256, 1024), (1024, 256))):
        x, weight = torch.randn(rows, inner, requires_grad=True), torch.randn(columns, inner)
        inputs = x, weight.requires_grad_(), torch.randn(columns, requires_grad=True)
        works = (with_gradients(kernel, *inputs) for kernel in (F.linear, linear_by_onednn))
        chosen = is_chosen("linear", linear_by_onednn, x, weight)
        yield Case("linear_by_onednn", f"{rows} × {inner} × {columns}", *works, chosen)


def steps() -> Iterator[Case]:
    """Dense layers of a search: few rows, no gradients, and every call has another matrix."""
    shapes = (256, 256), (256, 1024), (1024, 256), (256, 8000)
    for rows, (inner, columns) in product((1, 2, 4, 8, 64), shapes):
        kernels = [linear_by_onednn] if HAS_ONEDNN else []
        kernels += [linear_by_dot_products] if rows == 1 else []
        kernels += [linear_by_columns] if rows <= 8 else []
        for kernel in kernels:
            yield step(kernel, rows, inner, columns, WEIGHTS, "step")
    for rows, (inner, columns) in product((1, 2, 4, 8), shapes[:3]):
        yield step(linear_by_columns, rows, inner, columns, CACHED, "from the cache")


def step(kernel: Callable[..., Tensor], rows: int, inner: int, columns: int, size: int, where: str) -> Case:
    """A product of a search in which matrices of `size` bytes take turns."""
    x, bias = torch.randn(rows, inner), torch.randn(columns)
    weights = [torch.randn(columns, inner) for _ in range(math.ceil(size / (4 * inner * columns)))]

    def turns(kernel: Callable[..., Tensor]) -> Callable[[], object]:
        turn = cycle(weights)
        return without_gradients(lambda: kernel(x, next(turn), bias))

    chosen = is_chosen("linear of a step", kernel, x, weights[0], size // 4)
    shape = f"{rows} × {inner} × {columns}, {where}"
    return Case(kernel.__name__, shape, turns(F.linear), turns(kernel), chosen)


def searches() -> Iterator[Case]:
    """Whole searches with and without products by columns, by (b) and by a model that a cache can hold."""
    choices = CHOICES["linear of a step"]
    others = [choice for choice in choices if choice[1] is not linear_by_columns]
    small = TransformerConfig(1200, 1200, d_model=128, n_heads=4, n_layers=2, d_ff=256)
    for name, config in (("(b)", SIZES["b"].config), ("small", small)):
        model = accelerate(Transformer(config).eval())
        n_read = sum(weight.numel() for part in (model.decoder, model.output) for weight in part.parameters())
        for sentences, beam in ((1, 1), (1, 4), (2, 4), (8, 1), (16, 1)):
            src = torch.randint(4, config.src_vocab_size, (sentences, 20))
            works = (partial(searched, model, src, beam, found) for found in (others, choices))
            x = torch.empty(sentences * beam, config.d_model)
            chosen = is_chosen("linear of a step", linear_by_columns, x, model.output.weight, n_read)
            yield Case("linear_by_columns", f"{name}, {sentences} × beam {beam}", *works, chosen)


def searched(model: FastTransformer, src: Tensor, beam: int, choices: list[Any]) -> Tensor:
    """What a search finds, with other kernels for its steps."""
    with patch.dict(CHOICES, {"linear of a step": choices}):
        if beam == 1:
            return greedy_search(model, src, max_length=40)
        return beam_search(model, src, beam, max_length=40).tokens


def dropouts() -> Iterator[Case]:
    """Dropout in training, with its gradient."""
    for rows in (1, 4, 16, 64, 256, 2048):
        x = torch.randn(rows, WIDTH, requires_grad=True)
        works = (
            with_gradients(lambda x, kernel=kernel: kernel(x, 0.1), x)
            for kernel in (F.dropout, dropout_by_bytes)
        )
        yield Case("dropout_by_bytes", f"{rows} × {WIDTH}", *works, is_chosen("dropout", dropout_by_bytes, x))


def half_attention() -> Iterator[Case]:
    """Attention in bfloat16, with all gradients."""
    for sentences, length in ((1, 16), (64, 8), (64, 32), (16, 128), (8, 256), (4, 512)):
        heads = [
            torch.randn(sentences, HEADS, length, D_K, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        works = (
            with_gradients(kernel, *heads) for kernel in (F.scaled_dot_product_attention, widened_attention)
        )
        chosen = is_chosen("attention", widened_attention, heads[0])
        yield Case("widened_attention", f"{sentences} × {length}, bfloat16", *works, chosen)


def step_attention() -> Iterator[Case]:
    """Attention of one query, or of a beam's, in every sentence."""
    for sentences, beam, keys in product((1, 8, 32, 64), (1, 4), (10, 20, 40)):
        query = torch.randn(sentences, HEADS, beam, D_K)
        key, value = (torch.randn(sentences, HEADS, keys, D_K) for _ in range(2))
        works = (
            without_gradients(kernel, query, key, value)
            for kernel in (fused_attention, written_out_attention)
        )
        yield Case("written_out_attention", f"{sentences} × {beam}, {keys} keys", *works, False)


def projections() -> Iterator[Case]:
    """Query, key and value, in three products or in one, with all gradients."""
    for rows, width in product((128, 512, 2048), (256, 512)):
        x, parameters = torch.randn(rows, width, requires_grad=True), []
        for _ in range(3):
            layer = nn.Linear(width, width)
            parameters += [layer.weight, layer.bias]
        works = (with_gradients(work, x, *parameters) for work in (single_projections, joined_projections))
        yield Case("joined_projections", f"{rows} × {width} × 3·{width}", *works, False)


def masks() -> Iterator[Case]:
    """Attention with masks that say nothing, are causal, or hide padding; with all gradients."""
    for sentences, length in ((4, 8), (64, 32)):
        heads = [torch.randn(sentences, HEADS, length, D_K, requires_grad=True) for _ in range(3)]
        whole = torch.ones(sentences, 1, 1, length, dtype=torch.bool)
        padded = whole.clone()
        padded[::2, ..., length // 2 :] = False
        kinds = {"nothing hidden": whole, "causal": causal_mask(length), "padding": padded}
        for kind, mask in kinds.items():
            works = (
                with_gradients(lambda *heads, kernel=kernel, mask=mask: kernel(*heads, mask), *heads)
                for kernel in (fused_attention, fast_attention)
            )
            yield Case("fast_attention", f"{sentences} × {length}, {kind}", *works, True)


def losses() -> Iterator[Case]:
    """The output layer and its loss, with both gradients: whole logits, and chunks of several sizes."""
    for rows in (256, 1024, 2048):
        hidden = torch.randn(rows, WIDTH, requires_grad=True)
        weight = torch.randn(VOCABULARY, WIDTH, requires_grad=True)
        targets = torch.randint(1, VOCABULARY, (rows,))
        works = {
            at_once: with_gradients(
                partial(in_chunks, targets=targets, few=few, at_once=at_once), hidden, weight
            )
            for few, at_once in [(2**62, None), *((0, 2**power) for power in (19, 21, 23))]
        }
        whole = works.pop(None)
        for at_once, work in works.items():
            logits = rows * VOCABULARY
            if at_once < logits:
                shape = f"{rows} × {WIDTH} × {VOCABULARY}, 2^{at_once.bit_length() - 1} at once"
                chosen = logits > chunked_loss._FEW_LOGITS and at_once == chunked_loss._AT_ONCE["cpu"]
                yield Case("linear_cross_entropy", shape, whole, work, chosen)


def in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor, few: int, at_once: int | None) -> Tensor:
    """The loss by chunks of a given number of logits; without chunks up to `few`."""
    at_once_by_device = {} if at_once is None else {"cpu": at_once}
    with patch.multiple(chunked_loss, _FEW_LOGITS=few, _AT_ONCE=at_once_by_device):
        return chunked_loss.linear_cross_entropy(hidden, weight, targets)


FAMILIES = {
    "products": products, "steps": steps, "searches": searches, "dropout": dropouts,
    "attention in half precision": half_attention, "attention of a step": step_attention,
    "projections": projections, "masks": masks, "loss": losses,
}  # fmt: skip


def repeated(work: Callable[[], object], calls: int) -> Callable[[], None]:
    """So many calls, as one piece of work."""

    def many() -> None:
        for _ in range(calls):
            work()

    return many


def measure_case(case: Case, rounds: int) -> dict[str, Any]:
    """Time both sides in turn.

    Returns:
        kernel, shape, and whether the package takes it; `"theirs"` and `"ours"`: seconds of a call, the least
        of all rounds; `"gain"`: their ratio; `"quartiles"`: of the ratios within each round.
    """
    works = {"theirs": case.theirs, "ours": case.ours}
    calls = {}
    for name, work in works.items():
        work()
        calls[name] = max(1, round(SAMPLE / max(seconds(repeated(work, 3), CPU) / 3, 1e-6)))
    many = {name: repeated(work, calls[name]) for name, work in works.items()}
    times = interleaved(many, rounds, CPU)
    each = {name: [taken / calls[name] for taken in times[name]] for name in works}
    least = {name: min(taken) for name, taken in each.items()}
    ratios = [theirs / ours for theirs, ours in zip(each["theirs"], each["ours"], strict=True)]
    quartiles = statistics.quantiles(ratios, method="inclusive")[::2] if rounds > 1 else ratios * 2
    found = {"kernel": case.kernel, "shape": case.shape, "chosen": case.chosen}
    return found | least | {"gain": least["theirs"] / least["ours"], "quartiles": quartiles}


def measure_kernels(rounds: int, seed: int) -> dict[str, Any]:
    """Every kernel of the package, family by family; one thread."""
    torch.manual_seed(seed)
    found: dict[str, Any] = {}
    for name, family in FAMILIES.items():
        found[name] = [measure_case(case, rounds) for case in family()]
        rows = [
            [
                row["kernel"], row["shape"], f"{1e6 * row['theirs']:.0f}", f"{1e6 * row['ours']:.0f}",
                f"{row['gain']:.2f} ({row['quartiles'][0]:.2f}–{row['quartiles'][1]:.2f})",
                "yes" if row["chosen"] else "no",
            ]
            for row in found[name]
        ]  # fmt: skip
        headers = ["kernel", "shape", "µs before", "µs", "× as fast", "taken"]
        print(table(name, headers, rows), end="\n\n", flush=True)
    return found
