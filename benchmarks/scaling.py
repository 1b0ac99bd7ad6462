"""What a training step costs against the length of the sentences and the width of the model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks.measure import interleaved, spread, table
from benchmarks.peers import TrainerTraining, our_model
from benchmarks.workload import Batch, Size, even_batch, forward_flops, training_flops
from transformer import accelerate
from transformer.training import to_device

TOKENS = 2048  # of a batch, on each side: a power of two, as the lengths are
LENGTHS = (16, 32, 64, 128, 256, 512)
WIDTHS = (64, 128, 256, 512)
HEAD_WIDTH = 64
LENGTH = 32  # of sentences where the width changes


def measure_scaling(size: Size, device: torch.device, rounds: int, seed: int) -> dict[str, Any]:
    """Time our training step for each length, and for each width; the batch has `TOKENS` target tokens."""
    by_length = {length: (size, length) for length in LENGTHS}
    by_width = {width: (widened(size, width), LENGTH) for width in WIDTHS}
    groups = {"length": by_length, "d_model": by_width}
    return {"size": size.name} | {
        name: measure_group(name, group, device, rounds, seed) for name, group in groups.items()
    }


def widened(size: Size, d_model: int) -> Size:
    """The same number of layers, with heads of `HEAD_WIDTH` and a hidden width of 4·d_model."""
    config = replace(size.config, d_model=d_model, n_heads=d_model // HEAD_WIDTH, d_ff=4 * d_model)
    return replace(size, config=config)


def measure_group(
    title: str, group: dict[int, tuple[Size, int]], device: torch.device, rounds: int, seed: int
) -> list[dict[str, Any]]:
    """Time a step of each size and length, interleaved."""
    works, batches = {}, {}
    for value, (size, length) in group.items():
        batch: Batch = to_device(even_batch(size.config, length, TOKENS, seed), device)
        training = TrainerTraining(accelerate(our_model(size.config, seed)), size, "float32", device)
        works[str(value)], batches[value] = partial(training.step, batch), batch
    times = interleaved(works, rounds, device)
    results = []
    for value, (size, length) in group.items():
        forward = forward_flops(size.config, length, length)
        result = {
            title: value,
            "seconds": spread(times[str(value)]),
            "useful flops": training_flops(size.config, [batches[value]]),
            "attention share": forward["attention"] / sum(forward.values()),
        }
        results.append(result)
    rows = [
        [
            str(row[title]),
            f"{row['useful flops'] / 1e9:.1f}",
            f"{row['attention share']:.1%}",
            f"{1000 * row['seconds']['median']:.0f}",
            f"{row['useful flops'] / row['seconds']['median'] / 1e9:.0f}",
        ]
        for row in results
    ]
    headers = [title, "GFLOP", "of attention", "ms", "GFLOP/s"]
    print(
        table(f"A training step of {TOKENS} tokens, by {title}", headers, rows),
        end="\n\n",
        flush=True,
    )
    return results
