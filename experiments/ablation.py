"""What each ingredient of training buys: `ted-small` at a third of its updates, with one thing changed.

    python -m experiments.ablation train base dropout-01   # 25 to 45 minutes of one core a row
    python -m experiments.ablation score                   # writes transformer/records/book/ablation.json

A row that was stopped goes on at the next call; its checkpoints lie in runs/ablation. What a score is
computed from is kept beside the record, sentence by sentence, so that rows may be added on another day or
machine. TRANSFORMER_DATA names the folder that holds the TED corpus.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sacrebleu.metrics import BLEU

from transformer import TransformerConfig, Translator, load_corpus
from transformer.commands.recipes import RECIPES, changed, train_translator
from transformer.files import atomic_file, read_record, write_record
from transformer.language.translator import Search
from transformer.runs.folder import run_facts

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs") / "ablation"
RECORD = ROOT / "transformer" / "records" / "book" / "ablation.json"
COUNTS = RECORD.with_name("ablation-counts.npz")  # of every row, what `counts` returns
BUDGET = {"steps": 3300, "evaluate_every": 300}
ROWS: dict[str, dict[str, Any]] = {
    "base": {},
    "seed-1": {"seed": 1},
    "seed-2": {"seed": 2},
    "no-smoothing": {"smoothing": 0.0},
    "dropout-01": {"dropout": 0.1},
    "dropout-03": {"dropout": 0.3},
    "r-drop": {"r_drop": 5.0},
    "bpe-dropout": {"bpe_dropout": 0.1},
    "vocabulary-8000": {"vocab_size": 8000},
    "vocabulary-2000": {"vocab_size": 2000},
    "post-norm": {"norm_first": False},
    "no-positions": {},
    "untied": {},
    "half-width": {"d_model": 128, "d_ff": 512},
    "one-head": {"n_heads": 1},
}
# What a chapter says a word about is trained with three seeds a side.
REPEATED = ("dropout-01", "one-head", "vocabulary-8000", "r-drop", "bpe-dropout")
ROWS |= {f"{row}-seed-{seed}": ROWS[row] | {"seed": seed} for row in REPEATED for seed in (1, 2)}
# What is not a setting of a recipe: where it is looked up, and what stands there instead.
PATCHES = {
    "no-positions": (
        "transformer.embedding.sinusoidal_encoding",
        lambda length, d_model, dtype=None: torch.zeros(length, d_model, dtype=dtype),
    ),
    "untied": (
        "transformer.commands.data.TransformerConfig",
        partial(TransformerConfig, tie_embeddings=False),
    ),
}


def train(row: str, max_minutes: float | None) -> None:
    """Train a row, or go on with it; once it is over, translate the development split.

    The test split is for the models that the book reports, and no row looks at it.
    """
    folder = RUNS / row
    if (folder / "dev.json").exists():
        return
    with patch(*PATCHES[row]) if row in PATCHES else nullcontext():
        recipe = changed(RECIPES["ted-small"], **BUDGET | ROWS[row])
        translator, trainer = train_translator(recipe, folder, progress=True, max_minutes=max_minutes)
        if trainer.finished:
            translator.save(folder / "translator")
            seconds = round(sum(entry.get("seconds", 0.0) for entry in trainer.history))
            parameters = sum(parameter.numel() for parameter in translator.model.parameters())
            facts = run_facts(trainer.updater.device) | {"parameters": parameters, "seconds": seconds}
            write_record(folder / "record.json", facts | {"log": trainer.history})
            write_record(folder / "dev.json", {"beam 4": translated(translator)})


def translated(translator: Translator) -> list[str]:
    """The development split, translated with a beam of 4."""
    sources = [pair.source for pair in load_corpus("ted", "dev")]
    return translator.translate_tokenized(sources, Search(4))


def counts(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """What BLEU-tok is computed from, sentence by sentence: `[N, 10]`."""
    metric = BLEU(tokenize="none", force=True, effective_order=True)
    found = (metric.sentence_score(a, [b]) for a, b in zip(hypotheses, references, strict=True))
    return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in found], dtype=np.int16)


def bleu(sums: Sequence[int]) -> float:
    """BLEU of summed `counts`."""
    return BLEU.compute_bleu(list(sums[:4]), list(sums[4:8]), sums[8], sums[9]).score


def compared(ours: np.ndarray, base: np.ndarray, n_samples: int = 1000) -> dict[str, Any]:
    """A row's BLEU, and its gain over the base with a 95% interval: both on the same corpora drawn.

    Source: Koehn (2004).
    """
    draw, gains = random.Random(0), []
    for _ in range(n_samples):
        rows = draw.choices(range(len(base)), k=len(base))
        gains.append(bleu(ours[rows].sum(0).tolist()) - bleu(base[rows].sum(0).tolist()))
    gains.sort()
    score = bleu(ours.sum(0).tolist())
    return {
        "BLEU-tok": score,
        "gain": score - bleu(base.sum(0).tolist()),
        "interval": [gains[n_samples // 40], gains[-n_samples // 40 - 1]],
    }


def collect() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The facts and the counts of all rows: those on record, and over them those in runs/ablation."""
    facts: dict[str, Any] = read_record(RECORD)["rows"] if COUNTS.exists() else {}
    found: dict[str, np.ndarray] = dict(np.load(COUNTS)) if COUNTS.exists() else {}
    references = [pair.target for pair in load_corpus("ted", "dev")]
    kept = ("command", "commit", "device", "processor", "versions", "date", "parameters", "seconds")
    for row in (row for row in ROWS if (RUNS / row / "dev.json").exists()):
        record = read_record(RUNS / row / "record.json")
        facts[row] = {name: record[name] for name in kept} | {"settings": ROWS[row]}
        found[row] = counts(read_record(RUNS / row / "dev.json")["beam 4"], references)
    return facts, found


def score() -> None:
    """Compare every row with the base, and write the record."""
    facts, found = collect()
    rows = {row: facts[row] | compared(ours, found["base"]) for row, ours in found.items()}
    with atomic_file(COUNTS) as part, part.open("wb") as file:
        np.savez_compressed(file, **found)
    write_record(RECORD, {"budget": BUDGET, "pairs": len(found["base"]), "rows": rows})
    print("BLEU-tok of dev with a beam of 4, the gain over the base, and its 95% interval")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["gain"]):
        numbers = row["gain"], *row["interval"]
        print(f"  {name:24}{row['BLEU-tok']:6.2f}", *(f"{number:+7.2f}" for number in numbers))


def main() -> None:
    """Train or score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train", help="train rows, one after the other")
    training.add_argument("rows", nargs="+", choices=ROWS, metavar="row", help=", ".join(ROWS))
    training.add_argument("--max-minutes", type=float, help="of each row; it goes on at the next call")
    commands.add_parser("score", help="compare what is trained, and write the record")
    options = parser.parse_args()
    if options.command == "score":
        score()
        return
    for row in options.rows:
        train(row, options.max_minutes)


if __name__ == "__main__":
    main()
