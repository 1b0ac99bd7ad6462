"""The translator that the package carries, searched by PyTorch and by CTranslate2 in one process, in turn.

    python -m experiments.engines    # writes transformer/records/book/engines.json; some minutes of one core

Both are given sentences and give sentences, so that subwords count as well. Time is what one thread spends.
"""

from __future__ import annotations

import argparse
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.measure import table
from experiments.depths import SEARCHES, timed
from transformer import load_corpus
from transformer.exchange.translators import load_translator
from transformer.files import write_record
from transformer.runs.folder import run_facts

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "engines.json"
OURS, THEIRS = "pytorch", "ctranslate2"
TIMED = 64  # sentences, of the test split, of a round


def compared(sentences: list[str], rounds: int) -> dict[str, Any]:
    """For each search the sentences that both translate alike; for each size of a batch the speed of both."""
    models: dict[str, Any] = {OURS: load_translator("phrases", "cpu")}
    models[THEIRS] = load_translator("phrases", "cpu", THEIRS)
    same = {}
    for name, search in SEARCHES.items():
        found = [model.translate_tokenized(sentences, search) for model in models.values()]
        same[name] = sum(ours == theirs for ours, theirs in zip(*found, strict=True))
    rows = {}
    for case, rates in timed(models, sentences[:TIMED], rounds).items():
        beside = [theirs / ours for ours, theirs in zip(rates[OURS], rates[THEIRS], strict=True)]
        rows[case] = {
            "sentences a second": {engine: median(rates[engine]) for engine in models},
            "times as fast": median(beside),
            "range": [min(beside), max(beside)],
        }
    return {"sentences": len(sentences), "same": same, "rows": rows}


def main() -> None:
    """Compare, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each search (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = compared([pair.source for pair in load_corpus("phrases", "test")], options.rounds)
    facts = {"timed": TIMED, "rounds": options.rounds, "ctranslate2": metadata.version("ctranslate2")}
    write_record(RECORD, run_facts("cpu") | facts | found)
    lines = [
        [case, *(f"{rate:.0f}" for rate in row["sentences a second"].values()), f"{row['times as fast']:.2f}"]
        for case, row in found["rows"].items()
    ]
    print(table("sentences a second", ["search", OURS, THEIRS, "times as fast"], lines))
    print(found["same"], "of", found["sentences"], "sentences are translated alike")


if __name__ == "__main__":
    main()
