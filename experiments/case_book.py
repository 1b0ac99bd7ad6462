"""The trials of Chapter 16, each from ten draws of the initial weights: what a fault does to a small model.

    python -m experiments.case_book    # ten minutes of one core

The faults, the model and its training are the chapter's own cells. The record is
transformer/records/book/case-book.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from transformer.files import write_record
from transformer.runs.folder import run_facts

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "transformer" / "records" / "book" / "case-book.json"
CHAPTER = ROOT / "book" / "16-clinic.ipynb"
# The cells that define the task, the trials and the faults; they train nothing.
CELLS = ("imports", "bench-task", "bench-trial", "bench-planted", "attention-wrong", "faults")
SEEDS = range(10)
TABLE = "transformer.embedding.sinusoidal_encoding"
ATTENTION = "transformer.attention.fused_attention"
NORMS = ("transformer.layers.LayerNorm", "transformer.model.LayerNorm")
# Of each fault: what is replaced, and the name by which the chapter calls the replacement.
FAULTS: dict[str, dict[str, str]] = {
    "right": {},
    "counted from one": {TABLE: "counted_from_one"},
    "base 100000": {TABLE: "base_100000"},
    "no positions": {TABLE: "no_positions"},
    "added late": {ATTENTION: "mask_added_late"},
    "multiplied late": {ATTENTION: "mask_multiplied_late"},
    "over the queries": {ATTENTION: "softmax_over_queries"},
    "over the words": dict.fromkeys(NORMS, "WordNorm"),
    "unbiased norm": dict.fromkeys(NORMS, "DeviationNorm"),
    "wrong stream": {"transformer.model.DecoderLayer": "WrongStream"},
}


def chapter() -> dict[str, Any]:
    """What the chapter's own cells define."""
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(CHAPTER.read_text("utf8"))["cells"]}
    names: dict[str, Any] = {}
    for name in CELLS:
        exec(cells[name], names)
    return names


def run(names: dict[str, Any], fault: str, seed: int, **settings: Any) -> dict[str, Any]:
    """The curve and the two scores of one trial."""
    planted = [(place, names[wrong]) for place, wrong in FAULTS[fault].items()]
    trial = names["run_trial"](*planted, seed=seed, **settings)._asdict()
    del trial["model"]
    return trial | {"losses": [(step, round(loss, 4)) for step, loss in trial["losses"]]}


def main() -> None:
    """Run all trials and write the record."""
    torch.set_num_threads(1)
    names = chapter()
    trials: dict[str, list[dict[str, Any]]] = {}
    for fault in FAULTS:
        trials[fault] = [run(names, fault, seed) for seed in SEEDS]
        free = sorted(trial["free"] for trial in trials[fault])
        print(f"{fault:18} sentences written correctly: {free[0]:.2f} to {free[-1]:.2f}", flush=True)
    write_record(RECORD, run_facts("cpu") | {"seeds": len(SEEDS), "trials": trials})


if __name__ == "__main__":
    main()
