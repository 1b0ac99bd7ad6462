"""Train chapter 13's small corpus with and without R-Drop, from many seeds: `python -m experiments.r_drop`.

It runs the chapter's own cells and writes transformer/records/book/r-drop.json, which the chapter reads.
"""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from transformer.files import write_record
from transformer.runs.folder import run_facts

ROOT = Path(__file__).resolve().parents[1]
CHAPTER = ROOT / "book" / "13-translation.ipynb"
CELLS = ("imports", "r-drop-toy")
ALPHAS = (0, 1, 5)


def chapter() -> dict[str, Any]:
    """The names that the chapter's cells define."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text("utf8"))["cells"]}
    names: dict[str, Any] = {}
    exec("from transformer import *", names)
    for name in CELLS:
        exec(cells[name], names)
    return names


def run(alpha: int, seed: int) -> list[tuple[int, float, float]]:
    """One training run: step, divergence of two passes, and test loss at each measurement."""
    torch.set_num_threads(1)
    return chapter()["watch"](alpha, seed)


def main() -> None:
    """Run all seeds and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8, help="runs with each weight (8)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs at a time")
    options = parser.parse_args()
    facts, seeds = run_facts("cpu"), range(options.seeds)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        jobs = {alpha: [pool.submit(run, alpha, seed) for seed in seeds] for alpha in ALPHAS}
        curves = {str(alpha): [job.result() for job in jobs[alpha]] for alpha in ALPHAS}
    write_record(ROOT / "transformer" / "records" / "book" / "r-drop.json", {**facts, "curves": curves})


if __name__ == "__main__":
    main()
