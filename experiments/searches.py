"""Beams and length penalties, far enough that the best is inside: `python -m experiments.searches`.

    python -m experiments.searches phrases                                    # the translator of the package
    python -m experiments.searches ted runs/ablation/dropout-01-seed-1        # runs of experiments.ablation

Every search translates each third pair of the development split. BLEU, length and brevity penalty go into
the record transformer/records/book/searches.json, one search at a time; what it holds already is not
searched again. TRANSFORMER_DATA names the folder that holds the TED corpus.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import table
from transformer import Translator, load_corpus
from transformer.files import read_record, write_record
from transformer.language.translator import Search, evaluate_translator
from transformer.runs.folder import run_facts

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "searches.json"
EVERY = 3
PENALTIES = (0.6, 1.0, 0.0, 1.4, 2.0, 3.0, 4.0)  # those near the usual one first
# Greedy search knows no penalty.
GRID = (
    Search(1),
    *(Search(4, penalty) for penalty in PENALTIES),
    *(Search(8, penalty) for penalty in (1.0, 1.4, 2.0, 3.0)),
)


def brevity(line: str) -> tuple[float, float]:
    """How long translations are, in lengths of the references, and the penalty, from sacreBLEU's line."""
    written, wanted = (int(re.search(rf"{side}_len = (\d+)", line)[1]) for side in ("hyp", "ref"))
    return written / wanted, math.exp(min(0.0, 1.0 - wanted / written))


def searched(translator: Translator, pairs: list[Any], search: Search) -> dict[str, Any]:
    """What one search makes of the pairs."""
    began = time.process_time()
    scores = evaluate_translator(translator, pairs, search)
    length, penalty = brevity(scores["BLEU-detok"]["line"])
    return {
        "beam_size": search.beam_size,
        "length_penalty": search.length_penalty,
        "BLEU-detok": scores["BLEU-detok"]["score"],
        "signature": scores["BLEU-detok"]["signature"],
        "length": round(length, 4),
        "brevity penalty": round(penalty, 4),
        "seconds": round(time.process_time() - began, 1),
    }


def of_run(path: Path) -> tuple[Translator, dict[str, Any]]:
    """The translator of a run, and what its record says of how it was trained."""
    record = read_record(path / "record.json")
    facts = {key: record[key] for key in ("command", "commit", "date")}
    return Translator.load(path / "translator", "cpu"), facts


def add(corpus: str, name: str, translator: Translator, trained: dict[str, Any]) -> None:
    """Search with what the record does not hold yet."""
    pairs = load_corpus(corpus, "dev")[::EVERY]
    rows = read_record(RECORD)["rows"] if RECORD.exists() else {}
    row = rows.setdefault(name, {"corpus": corpus, "split": "dev", "pairs": len(pairs), "trained": trained})
    grid = row.setdefault("grid", [])
    known = {(entry["beam_size"], entry["length_penalty"]) for entry in grid}
    for search in GRID:
        if (search.beam_size, search.length_penalty) not in known:
            grid.append(searched(translator, pairs, search))
            write_record(RECORD, {"rows": rows | {name: row | run_facts("cpu")}})
    cells = [
        [e["beam_size"], e["length_penalty"], f"{e['BLEU-detok']:.2f}", f"{e['brevity penalty']:.3f}"]
        for e in grid
    ]
    print(table(f"{name}, {len(pairs)} pairs", ["beam", "penalty", "BLEU", "brevity"], cells), flush=True)


def main() -> None:
    """Search with what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", choices=("phrases", "ted"), help="of the development split")
    parser.add_argument("runs", nargs="*", type=Path, help="their folders (the package's translator)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.runs:
        add(options.corpus, options.corpus, Translator.load(options.corpus, "cpu"), {})
    for path in options.runs:
        add(options.corpus, path.name, *of_run(path))


if __name__ == "__main__":
    main()
