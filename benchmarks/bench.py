"""Measure the package beside its peers, print tables, write a JSON file: `python -m benchmarks.bench`."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Collection
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
from benchmarks.training import measure_compiled, measure_profile, measure_saved, measure_training
from benchmarks.workload import SIZES, Batch, Size, sentence_batches
from transformer.files import read_record, write_record
from transformer.runs.folder import run_facts
from transformer.speed.kernels import keep_freed_memory

N_BATCHES = 6
LEVER_BATCHES = 3  # by length; at random the same sentences make about twice as many
TEXT_BATCHES = 2  # the same on real sentences, which make two to three times as many
SMALL = 2000  # target tokens of a batch
CPU = torch.device("cpu")  # of a GPU, `gpu` is the measurement
PRECISIONS = ["float32", "bfloat16"]


def training(options: argparse.Namespace) -> dict[str, Any]:
    """Time training steps."""
    batches = sentence_batches(chosen(options).config, SMALL, N_BATCHES, options.seed)
    precisions = options.precision or PRECISIONS
    return measure_training(chosen(options), batches, precisions, CPU, options.rounds, options.seed)


def compiled(options: argparse.Namespace) -> dict[str, Any]:
    """Time a training step with `torch.compile`, and what it costs to compile it."""
    return measure_compiled(chosen(options), middle_batch(options), CPU, options.rounds, options.seed)


def chosen(options: argparse.Namespace) -> Size:
    """The size asked for."""
    return SIZES[options.size]


def middle_batch(options: argparse.Namespace) -> Batch:
    """A batch of sentences of middle length."""
    return sentence_batches(chosen(options).config, SMALL, 1, options.seed)[0]


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Count saved activations."""
    return measure_saved(chosen(options), middle_batch(options), CPU, options.seed)


def profiles(options: argparse.Namespace) -> dict[str, Any]:
    """Profile a training step."""
    return measure_profile(chosen(options), middle_batch(options), "float32", CPU, options.seed)


def levers(options: argparse.Namespace) -> dict[str, Any]:
    """Time training steps from the plain model to the fast one."""
    return measure_levers(chosen(options), SMALL, LEVER_BATCHES, CPU, options.rounds, options.seed)


def levers_on(corpus: str, options: argparse.Namespace) -> dict[str, Any]:
    """The same on real sentences, of one corpus."""
    size, rounds = chosen(options), options.rounds
    return measure_on_text(corpus, size, SMALL, TEXT_BATCHES, CPU, rounds, options.seed)


def roofline(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the machine's ceilings and the parts of a model under them."""
    return measure_roofline(chosen(options), CPU, options.rounds, options.seed)


def decoding(options: argparse.Namespace) -> dict[str, Any]:
    """Time searches."""
    return measure_decoding(chosen(options), CPU, options.rounds, options.seed)


SECTIONS = {
    "roofline": roofline,
    "training": training,
    "compiled": compiled,
    "levers": levers,
    "levers on phrases": partial(levers_on, "phrases"),
    "levers on ted": partial(levers_on, "ted"),  # where TRANSFORMER_DATA says where it is
    "memory": memory,
    "profile": profiles,
    "decoding": decoding,
}


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--threads", type=int, help="of torch; by default it chooses")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="measure only this; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each engine (%(default)s)")
    parser.add_argument("--size", choices=SIZES, default="b", help="of the model (%(default)s)")
    parser.add_argument(
        "--precision", action="append", choices=PRECISIONS,
        help="of the section training; bfloat16 is very slow on a processor without units for it (both)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of weights, tokens and dropout (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/bench-cpu.json"), help="(%(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or (options.threads is not None and options.threads < 1):
        parser.error("--rounds and --threads must be at least 1")
    return options


def earlier_sections(path: Path, facts: dict[str, Any], measured: Collection[str]) -> dict[str, Any]:
    """The sections that a file has from an earlier run, without those to be measured again.

    Raises:
        ValueError: they would be lost, because they were measured in other circumstances.
    """
    earlier = read_record(path) if path.exists() else {}
    kept = {name: earlier[name] for name in SECTIONS if name in earlier and name not in measured}
    circumstances = ("machine", "versions", "peers", "device", "seed", "rounds")
    differing = [name for name in circumstances if earlier.get(name) != facts[name]]
    if kept and differing:
        raise ValueError(
            f"output {path} has sections that were measured with other {', '.join(differing)}: "
            f"{', '.join(kept)}; choose another file, or delete this one"
        )
    return kept


def prepare(options: argparse.Namespace) -> None:
    """Set threads and seed of this process."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one section, in a process that keeps freed memory, as the command line's does."""
    keep_freed_memory()
    prepare(options)
    return SECTIONS[name](options)


def in_new_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one section where nothing ran before: after large models an allocator is slower with small ones."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, name, options).result()


def main(arguments: list[str] | None = None) -> None:
    """Run the sections asked for; the file is written at the end, whole or not at all.

    What the file has of other sections stays. Machine, versions, seed and rounds must be theirs.
    """
    options = read_arguments(arguments)
    prepare(options)
    for line in missing_peers():
        print(line)
    record = run_facts(CPU) | machine_facts()
    record |= {"seed": options.seed, "rounds": options.rounds}
    at_hand = [name for name in SECTIONS if name != "levers on ted" or os.environ.get("TRANSFORMER_DATA")]
    sections = options.only or at_hand
    facts = {name: record[name] for name in ("command", "commit", "date")}  # of each section
    record = earlier_sections(options.output, record, sections) | record
    processor, torch_version = record["machine"]["processor"], record["versions"]["torch"]
    print(f"{processor}, {record['device']}, torch {torch_version}\n", flush=True)
    for name in sections:
        start = time.perf_counter()
        record[name] = in_new_process(name, options)
        record[name] |= {"duration": round(time.perf_counter() - start, 1), **facts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_record(options.output, record)
    print(f"written: {options.output}")


if __name__ == "__main__":
    main()
