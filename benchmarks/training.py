"""Training: how long a step takes, and what its time goes into."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch.compiler
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import (
    CPU,
    interleaved,
    product_peak,
    ratio,
    ratios_to_ours,
    seconds,
    spread,
)  # fmt: skip
from benchmarks.peers import Training, described, peer_trainings
from benchmarks.workload import Batch, Size, sentence_batches, token_counts, training_flops
from transformer.language.batches import padding_waste
from transformer.training import evaluating

N_BATCHES = 6
SMALL = 2000  # target tokens of a batch
PRECISIONS = ("float32", "bfloat16")
# A name of an operation holds one of these; the first kind that fits counts.
KINDS = {
    "attention": ("scaled_dot_product", "flash_attention", "efficient_attention"),
    "softmax and loss": (
        "softmax",
        "nll_loss",
        "cross_entropy",
        "crossentropy",
        "logsumexp",
        "exp_",
        "scatter",
    ),
    "dropout": ("dropout", "bernoulli", "random_"),
    "norms": ("layer_norm",),
    "optimiser": ("adam", "foreach", "vector_norm", "amp_"),
    "matrix products": ("mm", "linear", "matmul", "mkldnn", "conv"),
    "copies": ("copy", "clone", "cat", "fill", "zero", "contiguous", "index", "embedding"),
}
OTHER = "other"


def agreement(trainings: dict[str, Training], batch: Batch) -> dict[str, float]:
    """By how much the engines' losses per token differ from ours, dropout off.

    Raises:
        ValueError: an engine computes something else: its time would be of no interest.
    """
    losses = {}
    for name, training in trainings.items():
        with evaluating(training.model):
            losses[name] = training.mean_loss(batch).item()
    differences = {name: abs(loss - losses["ours"]) for name, loss in losses.items()}
    for name, training in trainings.items():
        tolerance = 1e-3 if training.precision == "float32" else 0.05
        if not differences[name] <= tolerance:
            raise ValueError(f"the loss of {name} is {losses[name]}, ours is {losses['ours']}")
    return differences


def go_through(training: Training, batches: list[Batch]) -> None:
    """Make one update on each batch."""
    for batch in batches:
        training.step(batch)


def time_steps(
    size: Size, batches: list[Batch], precision: str, rounds: int, peak: float, seed: int
) -> dict[str, Any]:
    """Time the training step of all engines on the same batches.

    Args:
        size: of the model.
        batches: a round of each engine takes a step on all of them.
        precision: `"float32"` or `"bfloat16"`.
        rounds: how many rounds are timed.
        peak: operations a second of the best matrix product.
        seed: of the weights.

    Returns:
        for each engine the seconds of a step, target tokens and useful operations a second, and its speed
        beside ours; and what they were measured on.
    """
    trainings = {name: build() for name, build in peer_trainings(size, precision, seed).items()}
    differences = agreement(trainings, batches[0])
    works = {name: partial(go_through, training, batches) for name, training in trainings.items()}
    times = interleaved(works, rounds)
    tokens, flops = token_counts(batches, size.config.pad_id), training_flops(size.config, batches)
    ours = ratios_to_ours(times)
    engines = {}
    for name, values in times.items():
        step = spread([value / len(batches) for value in values])
        rate = flops / len(batches) / step["median"]
        engines[name] = {
            **described(trainings[name]),
            "seconds": step,
            "target tokens per second": tokens["target"] / len(batches) / step["median"],
            "flops per second": rate,
            "share of peak": rate / peak,
            "ours": ours[name],
            "loss difference": differences.get(name),
        }
    return {
        "size": size.name,
        "precision": precision,
        "batches": len(batches),
        "tokens": tokens,
        "target positions per batch": [tgt[:, 1:].numel() for _, tgt in batches],
        "padding waste": padding_waste(batches),
        "useful flops": flops,
        "engines": engines,
    }


def measure_training(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Time training steps in each precision, beside the machine's best product."""
    batches = sentence_batches(size.config, SMALL, N_BATCHES, seed)
    peaks = {precision: product_peak(precision, CPU) for precision in PRECISIONS}
    steps = [
        time_steps(size, batches, precision, rounds, peak["flops"], seed) for precision, peak in peaks.items()
    ]
    return {"peaks": peaks, "steps": steps}


def middle_batch(size: Size, seed: int) -> Batch:
    """A batch of sentences of middle length."""
    return sentence_batches(size.config, SMALL, 1, seed)[0]


def measure_compiled(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Time training steps on one batch, plain, plain and compiled, and fast.

    Returns:
        for each engine the seconds of a step and its speed beside plain; `"first step"`: the seconds of
        the compiled engine's first one, in which it is compiled.
    """
    batch, builders = middle_batch(size, seed), peer_trainings(size, "float32", seed)
    trainings = {
        "ours, plain": builders["ours, plain"](),
        "ours, plain, compiled": builders["ours, plain"](compiled=True),
        "ours": builders["ours"](),
    }
    config: Any = torch.compiler.config
    with config.patch(force_disable_caches=True):  # what an earlier run built would be found
        first = seconds(lambda: trainings["ours, plain, compiled"].step(batch), CPU)
    works = {name: partial(training.step, batch) for name, training in trainings.items()}
    times = interleaved(works, rounds)
    engines = {
        name: {
            **described(trainings[name]),
            "seconds": spread(found),
            "beside plain": ratio(times["ours, plain"], found),
        }
        for name, found in times.items()
    }
    return {"size": size.name, "first step": first, "engines": engines}


def kind_of(operation: str) -> str:
    """Which of `KINDS` an operation of torch belongs to, by its name."""
    name = operation.lower().removeprefix("aten::")
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def profile_step(training: Training, batch: Batch) -> dict[str, Any]:
    """Where the time of one training step goes, after a step that warms up.

    Returns:
        `"shares"` of the time by kind; `"seconds"` by operation.
    """
    training.step(batch)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        training.step(batch)
    times = {event.key: event.self_cpu_time_total / 1e6 for event in recorded.key_averages()}
    shares = dict.fromkeys([*KINDS, OTHER], 0.0)
    total = sum(times.values())
    for operation, value in times.items():
        shares[kind_of(operation)] += value / total
    slowest = sorted(times.items(), key=lambda item: -item[1])
    return {
        "shares": shares,
        "seconds": {operation: value for operation, value in slowest if value > 0.001 * total},
    }


def measure_profile(size: Size, rounds: int, seed: int) -> dict[str, Any]:
    """Profile one training step of each engine."""
    batch, builders = middle_batch(size, seed), peer_trainings(size, "float32", seed)
    profiles = {name: profile_step(build(), batch) for name, build in builders.items()}
    return {"size": size.name, "precision": "float32", "engines": profiles}
