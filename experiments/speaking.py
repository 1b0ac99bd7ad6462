"""A small model of Llama's form that speaks Small Portuguese: `python -m experiments.speaking`.

`train SEED` trains one on the Portuguese side of the training split, a few minutes on one core, and keeps its
weights in runs/speaking/.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer import TokenBatches, Vocabulary, fit, load_corpus
from transformer.language.batches import pad
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.modern.parts import wsd_rate
from transformer.runs.checkpoints import save_weights
from transformer.runs.folder import run_facts, write_record

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "speaking"
SUBWORDS, STEPS, WARMUP, PEAK, MAX_TOKENS = 1000, 2000, 100, 4e-3, 640
SIZES: dict[str, Any] = {"d_model": 96, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3, "d_ff": 192}


def sentences(split: str) -> list[str]:
    """The Portuguese sentences of a split of the small corpus."""
    return [pair.source for pair in load_corpus("phrases", split)]


def encoded(vocabulary: Vocabulary, split: str) -> list[list[int]]:
    """The sentences of a split as ids, with start and end."""
    return [[BOS_ID, *ids, EOS_ID] for ids in vocabulary.encode_batch(sentences(split))]


def built(vocabulary: Vocabulary) -> LanguageModel:
    """The model, untrained."""
    return LanguageModel(LanguageModelConfig(len(vocabulary), **SIZES))


def sentence_loss(model: LanguageModel, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of every token of `ids` `[B, T + 1]` but the first and padding, and their number."""
    logits, targets = model(ids[:, :-1]), ids[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD_ID, reduction="sum")
    return loss, (targets != PAD_ID).sum()


def train(seed: int, steps: int = STEPS) -> None:
    """Train from one seed, and keep weights and facts."""
    torch.set_num_threads(1)
    facts = run_facts("cpu")
    vocabulary = Vocabulary.train(sentences("train"), SUBWORDS)
    rows, unseen = encoded(vocabulary, "train"), pad(encoded(vocabulary, "dev"))
    torch.manual_seed(seed)
    model = built(vocabulary)
    batches = TokenBatches([(row, row) for row in rows], MAX_TOKENS, seed=seed)
    history = fit(
        model,
        lambda model, batch: sentence_loss(model, batch[1]),
        batches,
        lambda step: wsd_rate(step, steps, PEAK, WARMUP),
        steps,
        evaluate=lambda model: {"dev": float(torch.divide(*sentence_loss(model, unseen)))},
        evaluate_every=250,
    )
    RUNS.mkdir(parents=True, exist_ok=True)
    save_weights(model, RUNS / f"seed-{seed}.safetensors")
    curve = [[row["step"], round(row["dev"], 4)] for row in history if "dev" in row]
    write_record(RUNS / f"seed-{seed}.json", {"seed": seed, "steps": steps, "dev": curve, **facts})
    print(f"seed {seed}: {curve[-1][1]} nats a subword on the development split")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True, dest="command")
    of_train = commands.add_parser("train", help="train a model from a seed")
    of_train.add_argument("seed", type=int)
    options = parser.parse_args()
    train(options.seed)


if __name__ == "__main__":
    main()
