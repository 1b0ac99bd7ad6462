"""The peak memory of one training step or beam search of one engine, in a process that does nothing else."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.decoding import LENGTH, able
from benchmarks.measure import MIB, table
from benchmarks.peers import peer_trainings, searches
from benchmarks.workload import SIZES, Size, decoding_sources, sentence_batches
from transformer.speed.kernels import keep_freed_memory
from transformer.training import to_device

WORKS = ("training step", "beam search")


def resident_peak() -> int:
    """The most memory that this process ever held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, what `getrusage` reports begins with the peak of the parent process
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    import resource  # there is none on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident() -> int:
    """The memory that this process holds, in bytes; where the system does not tell, the most it ever held."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return resident_peak()
    import resource

    return int(statm.read_text().split()[1]) * resource.getpagesize()


def peak_of(work: str, engine: str, size: Size, device: torch.device, seed: int) -> int:
    """By how much memory grows, at most, over what it is with the model built.

    A training step is an engine's first: gradients and the optimizer's averages are part of it.
    """
    if work == "training step":
        training = peer_trainings(size, "float32", device, seed)[engine]()
        (batch,) = sentence_batches(size.config, 2000, 1, seed)
        batch = to_device(batch, device)

        def run() -> None:
            training.step(batch)
    else:
        search = searches(size, device, seed)[engine]
        src = to_device(decoding_sources(size.config, 64, seed), device)

        def run() -> None:
            search(src, 4, LENGTH)

    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    before = resident()
    run()
    return resident_peak() - before


def measure_peak(size: Size, device: torch.device, seed: int) -> dict[str, Any]:
    """Measure each engine and work in a process of its own, and print the table."""
    searching = [engine for engine in searches(size, device, seed) if able(engine, beam_size=4)]
    engines = dict(zip(WORKS, (peer_trainings(size, "float32", device, seed), searching), strict=True))
    rows: list[list[object]] = []
    results: dict[str, dict[str, int]] = {}
    for work in WORKS:
        for engine in engines[work]:
            arguments = ["--work", work, "--engine", engine, "--size", size.name, "--device", device.type]
            arguments += ["--seed", str(seed), "--threads", str(torch.get_num_threads())]
            command = [sys.executable, "-m", "benchmarks.peak", *arguments]
            done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
            results.setdefault(work, {})[engine] = json.loads(done.stdout)
            rows.append([f"{work}, {engine}", f"{results[work][engine] / MIB:.0f}"])
    print(
        table(f"Peak memory ({size.name}), over the model's own", ["work", "MiB"], rows),
        end="\n\n",
        flush=True,
    )
    return {"size": size.name, "bytes": results}


def main() -> None:
    """Measure one engine and print the bytes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=WORKS, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    print(peak_of(options.work, options.engine, SIZES[options.size], device, options.seed))


if __name__ == "__main__":
    main()
