"""The machine's ceilings, and how near the parts of a Transformer come to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.measure import CPU, interleaved, memory_bandwidth, product_peak, spread
from benchmarks.peers import our_model
from benchmarks.workload import Size
from transformer import TransformerConfig, accelerate
from transformer.attention import fused_attention

SENTENCES, LENGTH = 64, 32
FLOAT = 4  # bytes


@dataclass(frozen=True)
class Part:
    """A part of a model at work.

    Args:
        work: runs it once.
        flops: that it needs.
        bytes: that it must read and write, each of its arguments and results once.
    """

    work: Callable[[], object]
    flops: int
    bytes: int


def work_by_formula(config: TransformerConfig, rows: int, length: int) -> dict[str, tuple[int, int]]:
    """Operations and bytes, in float32, of the parts of a model that reads `rows` tokens.

    Args:
        config: of the model.
        rows: tokens at once.
        length: tokens of a sentence.

    Returns:
        for each part, floating-point operations and bytes that it must read and write.
    """
    d, d_ff, V = config.d_model, config.d_ff, config.tgt_vocab_size
    parameters = 12 * d * d  # enough of them for a memory-bound update
    numbers = {  # operations, and numbers read and written
        "dense layer": (2 * rows * d * d_ff, rows * d + d * d_ff + rows * d_ff),
        "logits": (2 * rows * d * V, rows * d + d * V + rows * V),
        "attention": (4 * rows * length * d, 4 * rows * d),  # scores and weighted sums; q, k, v and result
        "softmax, loss": (4 * rows * V, rows * V),  # maximum, difference, exponential, sum
        "layer norm": (7 * rows * d, 2 * rows * d),  # 1 for the mean, 3 variance, 1 scale, 2 gain and bias
        "addition": (rows * d, 3 * rows * d),
        "ReLU": (rows * d_ff, 2 * rows * d_ff),
        "dropout": (rows * d, 2 * rows * d),
        "Adam": (12 * parameters, 7 * parameters),  # reads weight, gradient, two averages; writes all but one
        "dense layer, one row": (2 * d * d_ff, d + d * d_ff + d_ff),
        "logits, one row": (2 * d * V, d + d * V + V),
    }
    return {name: (flops, FLOAT * count) for name, (flops, count) in numbers.items()}


def parts_of(size: Size, seed: int) -> dict[str, Part]:
    """The parts of a forward pass over `SENTENCES` sentences of `LENGTH` tokens, Adam, and single rows."""
    config, rows = size.config, SENTENCES * LENGTH
    d, d_ff, V = config.d_model, config.d_ff, config.tgt_vocab_size
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    model = accelerate(our_model(config, seed))
    layer = model.encoder.layers[0]
    x, y, hidden, logits = numbers(rows, d), numbers(rows, d), numbers(rows, d_ff), numbers(rows, V)
    heads = numbers(3, SENTENCES, config.n_heads, LENGTH, d // config.n_heads)
    targets = torch.randint(V, (rows,), generator=generator)
    weight = numbers(12, d, d).requires_grad_()
    weight.grad = numbers(12, d, d)
    adam = torch.optim.Adam([weight], fused=True)
    works: dict[str, Callable[[], object]] = {
        "dense layer": lambda: layer.feed_forward.w_1(x),
        "logits": lambda: model.project(x),
        "attention": lambda: fused_attention(*heads),
        "softmax, loss": lambda: F.cross_entropy(logits, targets),
        "layer norm": lambda: layer.self_residual.norm(x),
        "addition": lambda: x + y,
        "ReLU": lambda: F.relu(hidden),
        "dropout": lambda: F.dropout(x, 0.1),
        "Adam": adam.step,
        "dense layer, one row": lambda: layer.feed_forward.w_1(x[:1]),
        "logits, one row": lambda: model.project(x[:1]),
    }
    formula = work_by_formula(config, rows, LENGTH)
    return {name: Part(work, *formula[name]) for name, work in works.items()}


def measure_roofline(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Measure the ceilings in float32, and each part's operations a second under them."""
    parts = parts_of(size, seed)
    bandwidth, peak = memory_bandwidth(CPU), product_peak("float32", CPU)
    calls = {
        name: max(1, round(2e-2 / max(part.flops / peak["flops"], part.bytes / bandwidth["cache"])))
        for name, part in parts.items()
    }
    calls = {name: min(500, count) for name, count in calls.items()}

    def repeated(name: str) -> Callable[[], None]:
        def work() -> None:
            with torch.no_grad():
                for _ in range(calls[name]):
                    parts[name].work()

        return work

    times = interleaved({name: repeated(name) for name in parts}, rounds)
    results = {}
    for name, part in parts.items():
        once = spread([value / calls[name] for value in times[name]])
        results[name] = {"flops": part.flops, "bytes": part.bytes, "seconds": once}
    return {
        "size": size.name,
        "sentences": SENTENCES,
        "length": LENGTH,
        "bandwidth": bandwidth,
        "peak": peak,
        "parts": results,
    }
