"""Training: how long a step takes, what it keeps in memory, and what its time goes into."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measure import (
    MIB,
    OperationCounter,
    interleaved,
    milliseconds_text,
    product_peak,
    ratio,
    ratio_text,
    ratios_to_ours,
    saved_bytes,
    seconds,
    spread,
    table,
)
from benchmarks.peers import Training, described, peer_trainings
from benchmarks.workload import Batch, Size, token_counts, training_flops
from transformer.language.batches import padding_waste
from transformer.training import evaluating, to_device

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
    size: Size,
    batches: list[Batch],
    precision: str,
    device: torch.device,
    rounds: int,
    peak: float,
    seed: int = 0,
) -> dict[str, Any]:
    """Time the training step of all engines on the same batches.

    Args:
        size: of the model.
        batches: a round of each engine takes a step on all of them.
        precision: `"float32"` or `"bfloat16"`.
        device: to train on.
        rounds: how many rounds are timed.
        peak: operations a second of the best matrix product.
        seed: of the weights.

    Returns:
        for each engine the seconds of a step, target tokens and useful operations a second, and its speed
        beside ours; and what they were measured on.
    """
    batches = [to_device(batch, device) for batch in batches]
    trainings = {name: build() for name, build in peer_trainings(size, precision, device, seed).items()}
    differences = agreement(trainings, batches[0])

    works = {name: partial(go_through, training, batches) for name, training in trainings.items()}
    times = interleaved(works, rounds, device)
    tokens = token_counts(batches, size.config.pad_id)
    flops = training_flops(size.config, batches)
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
        "steps per round": len(batches),
        "tokens": tokens,
        "target positions per batch": [tgt[:, 1:].numel() for _, tgt in batches],
        "padding waste": padding_waste(batches) if size.config.pad_id == 0 else 0.0,
        "useful flops": flops,
        "engines": engines,
    }


def print_steps(title: str, result: dict[str, Any]) -> None:
    """Print what `time_steps` returned."""
    headers = ["engine", "ms a step", "target tok/s", "GFLOP/s", "share of peak", "ours × as fast"]
    rows = []
    for name, engine in result["engines"].items():
        rows.append(
            [
                name,
                milliseconds_text(engine["seconds"]),
                f"{engine['target tokens per second']:,.0f}",
                f"{engine['flops per second'] / 1e9:,.1f}",
                f"{engine['share of peak']:.3f}",
                ratio_text(engine["ours"]),
            ]
        )
    print(table(title, headers, rows), end="\n\n", flush=True)


def measure_training(
    size: Size, batches: list[Batch], precisions: list[str], device: torch.device, rounds: int, seed: int
) -> dict[str, Any]:
    """Time training steps in each precision, beside the machine's best product."""
    peaks = {precision: product_peak(precision, device) for precision in precisions}
    rows = [
        [
            f"{precision}, {found['kernel']}",
            "×".join(map(str, found["shape"])),
            f"{found['flops'] / 1e9:,.0f}",
        ]
        for precision in precisions
        for found in peaks[precision]["products"]
    ]
    print(table("Matrix products", ["product", "shape", "GFLOP/s"], rows), end="\n\n", flush=True)
    results = []
    for precision in precisions:
        peak = peaks[precision]["flops"]
        result = time_steps(size, batches, precision, device, rounds, peak, seed)
        positions = result["target positions per batch"]
        about = round(sum(positions) / len(positions))
        print_steps(f"Training ({size.name}), {precision}, about {about:,} target tokens a batch", result)
        results.append(result)
    return {"peaks": peaks, "steps": results}


def measure_compiled(
    size: Size, batch: Batch, device: torch.device, rounds: int, seed: int
) -> dict[str, Any]:
    """Time training steps on one batch, plain, plain and compiled, and fast.

    Returns:
        for each engine the seconds of a step and its speed beside plain; `"first step"`: the seconds of
        the compiled engine's first one, in which it is compiled.
    """
    batch = to_device(batch, device)
    builders = peer_trainings(size, "float32", device, seed)
    trainings = {
        "ours, plain": builders["ours, plain"](),
        "ours, plain, compiled": builders["ours, plain"](compiled=True),
        "ours": builders["ours"](),
    }
    config: Any = torch.compiler.config
    with config.patch(force_disable_caches=True):  # what an earlier run built would be found
        first = seconds(lambda: trainings["ours, plain, compiled"].step(batch), device)
    works: dict[str, Callable[[], None]] = {
        name: partial(training.step, batch) for name, training in trainings.items()
    }
    times = interleaved(works, rounds, device)
    plain = times["ours, plain"]
    engines = {
        name: {
            **described(trainings[name]),
            "seconds": spread(found),
            "beside plain": ratio(plain, found),
        }
        for name, found in times.items()
    }
    rows = [
        [name, milliseconds_text(engine["seconds"]), ratio_text(engine["beside plain"])]
        for name, engine in engines.items()
    ]
    title = f"A step on one batch ({size.name}); the first compiled one took {first:.0f} s"
    print(table(title, ["engine", "ms a step", "× plain"], rows), end="\n\n", flush=True)
    return {"size": size.name, "first step": first, "engines": engines}


def measure_saved(size: Size, batch: Batch, device: torch.device, seed: int) -> dict[str, Any]:
    """Count what the forward pass of each engine keeps for the backward pass."""
    batch = to_device(batch, device)
    results: dict[str, Any] = {}
    for precision in ("float32", "bfloat16"):
        for name, build in peer_trainings(size, precision, device, seed).items():
            training = build()
            kept = saved_bytes(training.model, lambda: training.mean_loss(batch))  # noqa: B023 (called at once)
            results.setdefault(name, {})[precision] = kept
    ours = results["ours"]
    rows = []
    for name, kept in results.items():
        texts = [f"{kept[p] / MIB:.1f}" for p in kept]
        rows.append([name, *texts, *(f"{ours[p] / kept[p]:.2f}" for p in kept)])
    columns = ["float32, MiB", "bfloat16, MiB", "ours ÷ this", "ours ÷ this"]
    tokens = token_counts([batch], size.config.pad_id)
    counts = f"{tokens['source']} source and {tokens['target']} target tokens"
    title = f"Saved for the backward pass ({size.name}), {counts}"
    print(table(title, ["engine", *columns], rows), end="\n\n", flush=True)
    return {"size": size.name, "tokens": tokens, "bytes": results}


def kind_of(operation: str) -> str:
    """Which of `KINDS` an operation of torch belongs to, by its name."""
    name = operation.lower().removeprefix("aten::")
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def profile_step(training: Training, batch: Batch) -> dict[str, Any]:
    """Where the time of one training step goes, after a step that warms up.

    Returns:
        `"shares"` of the time by kind; `"seconds"` by operation; `"operations"`, those that are no views.
    """
    training.step(batch)
    counter = OperationCounter()
    with counter:
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
        "operations": counter.count,
    }


def measure_profile(
    size: Size, batch: Batch, precision: str, device: torch.device, seed: int
) -> dict[str, Any]:
    """Profile one training step of each engine."""
    batch = to_device(batch, device)
    profiles = {
        name: profile_step(build(), batch)
        for name, build in peer_trainings(size, precision, device, seed).items()
    }
    kinds = [*KINDS, OTHER]
    rows = [[kind, *(f"{found['shares'][kind]:.1%}" for found in profiles.values())] for kind in kinds]
    rows.append(["operations", *(found["operations"] for found in profiles.values())])
    title = f"Where a training step's time goes ({size.name}), {precision}"
    print(table(title, ["kind", *profiles], rows), end="\n\n", flush=True)
    return {"size": size.name, "precision": precision, "engines": profiles}
