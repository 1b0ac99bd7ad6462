"""A deep encoder and a shallow decoder: the recipe `phrases`, with its layers elsewhere.

    python -m experiments.depths train      # some minutes of one core for each of the models
    python -m experiments.depths measure    # writes transformer/records/book/depths.json

A model that is trained lies in runs/depths, and training that was stopped goes on. All models have about the
same number of parameters, and one kind is trained for twice as many updates, to see whether that makes up for
a lower score. `measure` scores them on the test split, and times their searches in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from benchmarks.measure import interleaved, table
from transformer import Translator, load_corpus
from transformer.commands.recipes import RECIPES, changed
from transformer.commands.training import train_translator
from transformer.files import write_record
from transformer.language.corpora import Pair
from transformer.language.translator import Search, evaluate_translator
from transformer.runs.folder import run_facts

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs") / "depths"
RECORD = ROOT / "transformer" / "records" / "book" / "depths.json"
BUDGET = {"evaluate_every": 1400, "precision": "float32"}  # what the recipe is changed in
KINDS: dict[str, dict[str, Any]] = {  # layers of encoder and decoder; gains are against the first
    "2,2": {"n_layers": (2, 2)},
    "4,1": {"n_layers": (4, 1)},
    "4,1 trained twice as long": {"n_layers": (4, 1), "steps": 2 * RECIPES["phrases"].training.steps},
}
BASE = next(iter(KINDS))
SEEDS = (0, 1, 2)
SEARCHES = {"greedy": Search(1), "beam 4": Search(4)}
BATCHES = (1, 64)  # sentences that are translated together
TIMED = 64  # sentences, of the test split, of a round


def folder(kind: str, seed: int) -> Path:
    """Where a model is trained."""
    return RUNS / f"{kind.replace(',', '-').replace(' ', '-')}-seed-{seed}"


def train() -> None:
    """Train what is not there yet."""
    for seed in SEEDS:
        for kind, settings in KINDS.items():
            place = folder(kind, seed)
            if not (place / "translator").exists():
                train_translator(changed(RECIPES["phrases"], **settings, seed=seed, **BUDGET), place)
                print(f"trained {place}", flush=True)


def work(translator: Translator, sources: list[str], batch: int, search: Search) -> Callable[[], object]:
    """A search for all sources, so many at a time."""
    groups = [sources[start : start + batch] for start in range(0, len(sources), batch)]
    return lambda: [translator.translate_tokenized(group, search) for group in groups]


def timed(
    models: dict[str, Translator], sources: list[str], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """For each search and size of a batch the sentences a second of each model, round by round."""
    found = {}
    for name, search in SEARCHES.items():
        for batch in BATCHES:
            works = {kind: work(model, sources, batch, search) for kind, model in models.items()}
            times = interleaved(works, rounds, torch.device("cpu"))
            rates = {kind: [len(sources) / spent for spent in times[kind]] for kind in times}
            found[f"{name}, batch {batch}"] = rates
    return found


def gains(rates: dict[str, list[float]]) -> dict[str, float]:
    """How many times as fast as the base each model is: the median over the rounds."""
    return {
        kind: median(ours / theirs for ours, theirs in zip(own, rates[BASE], strict=True))
        for kind, own in rates.items()
    }


def measure(test: list[Pair], rounds: int) -> dict[str, Any]:
    """Scores, sizes and speeds of all models, by seed."""
    sources = [pair.source for pair in test[:TIMED]]
    rows: dict[str, Any] = {kind: {"BLEU-tok": {}, "times as fast": {}, "rates": {}} for kind in KINDS}
    for seed in SEEDS:
        models = {kind: Translator.load(folder(kind, seed) / "translator", "cpu") for kind in KINDS}
        for name, model in models.items():
            rows[name]["parameters"] = sum(weight.numel() for weight in model.model.parameters())
            for search, settings in SEARCHES.items():
                score = evaluate_translator(model, test, settings)["BLEU-tok"]["score"]
                rows[name]["BLEU-tok"].setdefault(search, []).append(score)
        for case, rates in timed(models, sources, rounds).items():
            beside = gains(rates)
            for name in KINDS:
                rows[name]["rates"].setdefault(case, []).append(median(rates[name]))
                rows[name]["times as fast"].setdefault(case, []).append(beside[name])
    return rows


def main() -> None:
    """Train or measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["train", "measure"])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each search (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.command == "train":
        train()
        return
    test = load_corpus("phrases", "test")
    rows = measure(test, options.rounds)
    facts = {"budget": BUDGET, "seeds": SEEDS, "pairs": len(test), "timed": TIMED, "rounds": options.rounds}
    write_record(RECORD, run_facts("cpu") | facts | {"rows": rows})
    lines = [
        [name, f"{row['parameters']:,}"]
        + [f"{mean(scores):.1f}" for scores in row["BLEU-tok"].values()]
        + [f"{mean(values):.2f}" for values in row["times as fast"].values()]
        for name, row in rows.items()
    ]
    first = rows[BASE]
    headers = ["layers", "parameters", *first["BLEU-tok"], *first["times as fast"]]
    print(table("BLEU-tok of the test split, and times as fast: means over seeds", headers, lines))


if __name__ == "__main__":
    main()
