"""Measure the package beside its peers on a CPU, print it, write a file: `python -m benchmarks.bench`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.decoding import measure_decoding
from benchmarks.levers import measure_levers, measure_on_text
from benchmarks.measure import machine_facts
from benchmarks.peers import missing_peers
from benchmarks.roofline import measure_roofline
from benchmarks.training import measure_compiled, measure_profile, measure_training
from benchmarks.workload import SIZES
from transformer.files import write_record
from transformer.runs.folder import run_facts
from transformer.speed.kernels import keep_freed_memory

# Each is given the size of the model, the number of timed rounds, and a seed of weights, tokens and dropout.
SECTIONS = {
    "roofline": measure_roofline,
    "training": measure_training,
    "compiled": measure_compiled,
    "levers": measure_levers,
    "levers on ted": partial(measure_on_text, "ted"),  # where TRANSFORMER_DATA says where it is
    "profile": measure_profile,
    "decoding": measure_decoding,
}


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--threads", type=int, help="of torch; by default it chooses")
    only = "measure only this; may be repeated"
    parser.add_argument("--only", action="append", choices=SECTIONS, help=only)
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each engine (%(default)s)")
    parser.add_argument("--size", choices=SIZES, default="b", help="of the model (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, tokens and dropout (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/bench-cpu.json"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or (options.threads is not None and options.threads < 1):
        parser.error("--rounds and --threads must be at least 1")
    return options


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one section, in a process that keeps freed memory, as the command line's does."""
    keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    return SECTIONS[name](SIZES[options.size], options.rounds, options.seed)


def in_new_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one section where nothing ran before: after large models an allocator is slower with small ones."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, name, options).result()


def lines(found: dict[str, Any], path: str = "") -> Iterator[str]:
    """The numbers of a section, a line for each dictionary that has some; of a spread, the median."""
    numbers = {name: x.get("median") if isinstance(x, dict) else x for name, x in found.items()}
    shown = [f"{name} {x:,.4g}" for name, x in numbers.items() if isinstance(x, int | float)]
    if shown:
        yield f"  {path:40} {', '.join(shown[:8])}"
    for name, inner in found.items():
        rows = enumerate(inner) if isinstance(inner, list) else [("", inner)]
        for number, row in rows:
            if isinstance(row, dict) and "median" not in row:
                yield from lines(row, f"{path} {name} {number}".strip())


def main(arguments: list[str] | None = None) -> None:
    """Run the sections asked for; the file is written anew after each."""
    options = read_arguments(arguments)
    if options.threads is not None:
        torch.set_num_threads(options.threads)  # which the facts tell
    for line in missing_peers():
        print(line)
    record = run_facts("cpu") | machine_facts() | {"seed": options.seed, "rounds": options.rounds}
    at_hand = [name for name in SECTIONS if name != "levers on ted" or os.environ.get("TRANSFORMER_DATA")]
    facts = {name: record[name] for name in ("command", "commit", "date")}  # of each section
    processor, torch_version = record["machine"]["processor"], record["versions"]["torch"]
    print(f"{processor}, {record['device']}, torch {torch_version}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name in options.only or at_hand:
        start = time.perf_counter()
        found = in_new_process(name, options)
        record[name] = found | {"duration": round(time.perf_counter() - start, 1), **facts}
        print(f"\n{name}", *lines(found), sep="\n", flush=True)
        write_record(options.output, record)
    print(f"\nwritten: {options.output}")


if __name__ == "__main__":
    main()
