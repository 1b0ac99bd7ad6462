"""The toy task, further than Chapter 9 trains it: `python -m experiments.toy`.

It writes to transformer/records/book/. What is stopped goes on from runs/ when it is called again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from transformer import Transformer, load_toy_model, reversal_batch, toy_config
from transformer.commands.recipes import RECIPES, changed
from transformer.files import write_record
from transformer.runs.folder import run_facts
from transformer.runs.trainer import Trainer
from transformer.toy import crowd, faultless, match_by_copies, reverse_and_mark

ROOT = Path(__file__).resolve().parents[1]
RECORDS, RUNS = ROOT / "transformer" / "records" / "book", ROOT / "runs"

# Many copies: the toy's own recipe on batches of which a half is crowded. A short run does not do: after
# 7,000 updates, five to nine copies are right one moment and wrong the next.
CROWDED, SEED = 0.5, 1
MANY_COPIES = changed(RECIPES["toy"], seed=SEED)


def crowded_batches(
    epoch: int, share: float, batch_size: int = 32, per_epoch: int = 500, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """As `reversal_batches`, but a share of each batch has gone through `crowd`."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    few = round(share * batch_size)
    for _ in range(per_epoch):
        inputs, outputs = reversal_batch(batch_size, 10, generator=generator)
        inputs[:few] = crowd(inputs[:few], generator)
        outputs[:few, 1:] = reverse_and_mark(inputs[:few], mark=10)
        yield inputs, outputs


def evaluate(model: Transformer) -> dict[str, float]:
    """The scores on sequences drawn at random, and by the number of copies."""
    random, _ = reversal_batch(1000, 10, generator=torch.Generator().manual_seed(20_000))
    copies = match_by_copies(model, n_sequences=100, seed=20_000)
    shares = {str(n): share for n, share in copies.items()}
    return {"sequences": faultless(model, random).double().mean().item()} | shares


def unseen(n_sequences: int, seed: int) -> Tensor:
    """Random sequences, without those that occurred in the batches of `many_copies`."""

    def numbers(digits: Tensor) -> Tensor:
        return digits @ 10 ** torch.arange(10)

    epochs = range(MANY_COPIES.training.steps // 500)
    batches = (batch for epoch in epochs for batch in crowded_batches(epoch, CROWDED, seed=SEED))
    seen = torch.cat([numbers(inputs) for inputs, _ in batches])
    drawn, _ = reversal_batch(n_sequences + 1000, 10, generator=torch.Generator().manual_seed(seed))
    return drawn[~torch.isin(numbers(drawn), seen)][:n_sequences]


def many_copies(max_minutes: float | None) -> None:
    """Train a toy model on crowded batches, and record its scores."""
    torch.manual_seed(SEED)
    trainer = Trainer(
        Transformer(toy_config(**asdict(MANY_COPIES.model))),
        loss=MANY_COPIES.loss,
        batches=partial(crowded_batches, share=CROWDED, seed=SEED),
        schedule=MANY_COPIES.rate,
        config=MANY_COPIES.training,
        directory=RUNS / "toy-many-copies",
        evaluate=evaluate,
    ).fit(max_minutes)
    if not trainer.finished:
        return
    model = Transformer(toy_config(**asdict(MANY_COPIES.model)))
    model.load_state_dict(trainer.model.state_dict())
    model.eval()
    random = unseen(100_000, seed=50_000)
    wrong = [digits.tolist() for part in random.split(1000) for digits in part[~faultless(model, part)]]
    record = run_facts("cpu") | {
        "crowded": CROWDED,
        "recipe": asdict(MANY_COPIES),
        "curve": [entry for entry in trainer.history if "sequences" in entry],
        "test": {"n": len(random), "wrong": wrong, "sequences": 1 - len(wrong) / len(random)},
        "copies": {
            "n": 2000,
            "toy": match_by_copies(load_toy_model(), 2000, seed=50_000),
            "toy-many-copies": match_by_copies(model, 2000, seed=50_000),
        },
    }
    write_record(RECORDS / "toy-many-copies.json", record)


def main() -> None:
    """Run what is asked for, as far as the time allows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--max-minutes", type=float, help="stop the run in progress after so long")
    options = parser.parse_args()
    torch.set_num_threads(1)
    many_copies(options.max_minutes)


if __name__ == "__main__":
    main()
