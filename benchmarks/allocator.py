"""What it is worth to keep freed memory: the same training steps in processes that do so and that do not."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.measure import milliseconds_text, ratio, ratio_text, seconds, spread, table
from benchmarks.peers import Training, peer_trainings
from benchmarks.workload import Batch, Size
from transformer.speed.kernels import keep_freed_memory

WARM_UP = 4  # rounds that are not counted: a heap grows for some steps until every block finds its place

_round: list[tuple[Training, list[Batch]]] = []  # what this process has prepared


def prepare(size: Size, batches: list[Batch], keeps: bool, threads: int, seed: int) -> None:
    """Build the fast model, in a process that keeps freed memory or not."""
    torch.set_num_threads(threads)
    if keeps:
        keep_freed_memory()
    _round.append((peer_trainings(size, "float32", torch.device("cpu"), seed)["ours"](), batches))


def page_faults() -> int:
    """How often this process has asked the system for a page of memory; 0 where the system does not tell."""
    if find_spec("resource") is None:
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def go_round() -> tuple[float, float]:
    """Seconds and page faults of a step, on average over the batches."""

    def work() -> None:
        for batch in batches:
            training.step(batch)

    ((training, batches),) = _round
    before = page_faults()
    taken = seconds(work, torch.device("cpu"))
    return taken / len(batches), (page_faults() - before) / len(batches)


def measure_allocator(sizes: list[tuple[Size, list[Batch]]], rounds: int, seed: int) -> dict[str, Any]:
    """Time training steps of each size, round by round in two processes that take turns.

    Returns:
        for each size, of both processes, seconds and page faults of a step; `"gain"`: the ratio of the times.
    """
    results: dict[str, Any] = {}
    rows = []
    for size, batches in sizes:
        with ExitStack() as stack:
            new_process = partial(ProcessPoolExecutor, 1, get_context("spawn"), prepare)
            threads = torch.get_num_threads()
            processes = {
                name: stack.enter_context(new_process((size, batches, name == "kept", threads, seed)))
                for name in ("returned", "kept")
            }
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in processes}
            for number in range(WARM_UP + rounds):
                for name in reversed(processes) if number % 2 else processes:
                    found[name].append(processes[name].submit(go_round).result())
        counted = {name: values[WARM_UP:] for name, values in found.items()}
        times, faults = (
            {name: [one[place] for one in values] for name, values in counted.items()} for place in (0, 1)
        )
        results[size.name] = {
            name: {"seconds": spread(times[name]), "faults": spread(faults[name])} for name in processes
        }
        results[size.name]["gain"] = ratio(times["returned"], times["kept"])
        for name in processes:
            row = results[size.name][name]
            gain = ratio_text(results[size.name]["gain"]) if name == "kept" else None
            texts = milliseconds_text(row["seconds"]), f"{row['faults']['median']:,.0f}"
            rows.append([size.name, name, *texts, gain])
    headers = ["model", "freed memory", "ms a step", "page faults", "× as fast"]
    print(table("Freed memory, returned to the system or kept", headers, rows), end="\n\n", flush=True)
    return results
