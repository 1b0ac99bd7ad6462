"""Changes since 2017, one at a time, on two tasks: `python -m experiments.since_2017`.

Every row is a decoder-only model of 2017 with one change, or with all of them, of about the same number of
parameters, trained for the same number of updates: on characters of small Portuguese, or with `--task toy`
on Chapter 9's task, where the digits, the start token and the answer are one sequence. There two rows are
added, a prefix mask and the encoder and decoder of 2017. With `--peak 2` all learning rates are twice as
high. With `--choose`, each row on characters gets the rates that are best for it. One seed doubles or halves
them until the least loss on the development split lies inside, and two other seeds are then trained at
those rates as well. What is compared is the loss on the test split. The record
transformer/records/book/since-2017.json, which Chapter 15 reads, grows by one run at a time; what it holds
already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer import (
    FeedForward,
    LayerNorm,
    PositionalEncoding,
    TokenEmbedding,
    Transformer,
    causal_mask,
    load_corpus,
    reversal_batch,
    toy_config,
)
from transformer.attention import KeyValueCache
from transformer.files import write_record
from transformer.model import initialize
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.modern.parts import wsd_rate
from transformer.runs.folder import run_facts
from transformer.training import adamw, cooldown, evaluating

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "since-2017.json"
CHANGES = ("rms", "no-bias", "gate", "rotary", "grouped", "qk-norm", "wsd", "muon")
ROWS: dict[str, tuple[str, ...]] = {
    "2017": (),
    **{change: (change,) for change in CHANGES[:4]},
    "alibi": ("alibi",),
    **{change: (change,) for change in CHANGES[4:]},
    "all": CHANGES,
    "cooled": ("cooled",),  # a control for wsd: the schedule of 2017, which ends at zero
    "prefix": ("prefix",),  # toy task: the digits may look ahead at one another, as in an encoder
    "longer": ("longer",),  # a control for time: no row's updates take more than 1.7 times those of 2017
}
LONGER = 1.7
PAIR = "encoder-decoder"  # for the toy task
SIZES: dict[str, int] = {"d_model": 64, "n_heads": 4, "n_layers": 2}
CONTEXT, LONG, DIGITS = 64, 256, 10  # lengths of windows of characters, and of the toy task's inputs
RATE, MUON_RATE = 3e-3, 2e-2  # the peak of the schedule; muon: of the matrices in the layers
CHOOSER = 3  # the seed that chooses among rates
FACTORS = (2.0, 4.0)  # of the rates, to begin with


class SinusoidalEmbedding(nn.Sequential):
    """The token table and the positions of 2017, in the place of a token table alone."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__(TokenEmbedding(vocab_size, d_model), PositionalEncoding(d_model, 0.0, LONG))

    @property
    def weight(self) -> nn.Parameter:
        """The token table."""
        return self[0].weight


class PrefixModel(LanguageModel):
    """A language model whose first tokens, the inputs of the toy task and the start, all see one another."""

    def forward(self, ids: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None) -> Tensor:
        """As in `LanguageModel`."""
        return super().forward(ids, causal_mask(T := ids.size(1)) | (torch.arange(T) <= DIGITS), cache)


def build(changes: tuple[str, ...], vocab_size: int) -> LanguageModel:
    """A model with some changes; every other part is as in 2017, with the norms first."""
    d_model, d_ff = SIZES["d_model"], 170 if "gate" in changes else 256
    positions = next((name for name in ("rotary", "alibi") if name in changes), "none")
    shared = "grouped" in changes
    if shared:  # what the keys and values save goes to the network
        d_ff += 21 if "gate" in changes else 32
    model = (PrefixModel if "prefix" in changes else LanguageModel)(
        LanguageModelConfig(
            vocab_size, d_ff=d_ff, positions=positions, n_kv_heads=2 if shared else None,
            qk_norm="qk-norm" in changes, scale_embedding=positions != "none", **SIZES,
        )
    )  # fmt: skip
    bias = "no-bias" not in changes
    for layer in model.layers:
        if "gate" not in changes:
            layer.feed_forward = FeedForward(d_model, d_ff, bias=bias)
        for part in layer.modules():
            for name, linear in list(part.named_children()):
                if bias and isinstance(linear, nn.Linear):
                    setattr(part, name, nn.Linear(linear.in_features, linear.out_features))
        if "rms" not in changes:
            layer.attention_norm, layer.feed_norm = (LayerNorm(d_model, bias=bias) for _ in range(2))
        layer.apply(initialize)
    if "rms" not in changes:
        model.norm = LayerNorm(d_model, bias=bias)
    if positions == "none":
        model.embedding = SinusoidalEmbedding(vocab_size, d_model)
        model.output.weight = model.embedding.weight
    return model


def encoder_decoder() -> Transformer:
    """The model of 2017 for the toy task, norms first: a layer each for encoder and decoder.

    The decoder's second attention costs parameters, which the networks give up.
    """
    return Transformer(toy_config(**{**SIZES, "n_layers": 1}, d_ff=190, dropout=0.0, norm_first=True))


@cache
def characters(split: str) -> Tensor:
    """The Portuguese side of a split of the small corpus, a sentence a line, as numbers."""
    train, text = (
        "".join(pair.source + "\n" for pair in load_corpus("phrases", s)) for s in ("train", split)
    )
    number = {letter: index for index, letter in enumerate(sorted(set(train)))}
    return torch.tensor([number[letter] for letter in text if letter in number])


def optimizers(model: nn.Module, muon: bool) -> list[tuple[torch.optim.Optimizer, float]]:
    """The optimizers, with their peak rates."""
    if not muon:
        return [(adamw(model.parameters()), RATE)]
    matrices = [p for name, p in model.named_parameters() if name.startswith("layers.") and p.dim() == 2]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    return [(torch.optim.Muon(matrices, weight_decay=0.0), MUON_RATE), (adamw(others), RATE)]


def shape(step: int, steps: int, warmup: int, changes: tuple[str, ...]) -> float:
    """The schedule, as a share of its peak."""
    if "wsd" in changes:
        return wsd_rate(step, steps, 1.0, warmup)
    rate = min(step / warmup, math.sqrt(warmup / step))
    return rate * cooldown(step, steps, 0.2) if "cooled" in changes else rate


# The tasks -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a model learns, and how it is examined.

    Args:
        rows: the names of its rows.
        vocab_size: of the models.
        steps, warmup, batch: updates, those of the warm-up, and sequences in an update.
        draw: token ids of an update, `[B, T + 1]`.
        loss: of a model on them, summed, and of how many tokens.
        examine: the scores of a trained model.
    """

    rows: tuple[str, ...]
    vocab_size: int
    steps: int
    warmup: int
    batch: int
    draw: Callable[[int], Tensor]
    loss: Callable[[nn.Module, Tensor], tuple[Tensor, int]]
    examine: Callable[[nn.Module], dict[str, float]]

    @property
    def setting(self) -> dict[str, int]:
        """What the record says of it."""
        return {"steps": self.steps, "warmup": self.warmup, "batch": self.batch, **SIZES}


def next_token_loss(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of every token of `ids` `[B, T + 1]` but the first, and their number, for `fit`."""
    logits, targets = model(ids[:, :-1]), ids[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss, torch.tensor(targets.numel(), device=ids.device)


def windows(batch: int) -> Tensor:
    """Some characters of the training sentences, from anywhere: `[B, CONTEXT + 1]`."""
    train = characters("train")
    return train[torch.randint(len(train) - CONTEXT, (batch, 1)) + torch.arange(CONTEXT + 1)]


def loss_on(split: str, model: nn.Module, length: int) -> float:
    """Nats per character on the first 16,384 characters of a split, in windows of a length."""
    found = characters(split)[:16_385].unfold(0, length + 1, length)
    with evaluating(model):
        losses = [next_token_loss(model, batch)[0] for batch in found.split(16)]
    return float(sum(losses)) / (len(found) * length)


def reversals(batch: int, generator: torch.Generator | None = None) -> Tensor:
    """Digits, start token, answer: `[B, 2 DIGITS + 1]`."""
    return torch.cat(reversal_batch(batch, DIGITS, generator=generator), dim=1)


def answers(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The logits of the answer, and the answer: `[B, DIGITS, V]`, `[B, DIGITS]`."""
    if isinstance(model, Transformer):
        logits = model(ids[:, :DIGITS], ids[:, DIGITS:-1])
    else:
        logits = model(ids[:, :-1])[:, DIGITS:]
    return logits, ids[:, DIGITS + 1 :]


def answer_loss(model: nn.Module, ids: Tensor) -> tuple[Tensor, int]:
    """Cross-entropy of the answers alone, summed: what comes before was drawn at random."""
    logits, answer = answers(model, ids)
    return F.cross_entropy(logits.flatten(0, 1), answer.flatten(), reduction="sum"), answer.numel()


def exact(model: nn.Module) -> dict[str, float]:
    """The share of right tokens and sequences of 2,000 unseen ones, given what comes before.

    A sequence whose every token is the likeliest, given the ones before it, is also what greedy search
    finds; so the second figure is that of a search.
    """
    with evaluating(model):
        logits, answer = answers(model, reversals(2000, torch.Generator().manual_seed(10_000)))
    right = (logits.argmax(-1) == answer).double()
    return {"tokens": right.mean().item(), "sequences": right.amin(dim=1).mean().item()}


@cache
def task(name: str) -> Task:
    """A task by its name."""
    if name == "toy":
        rows = (*(row for row in ROWS if row != "cooled"), PAIR)
        return Task(rows, DIGITS + 2, 800, 100, 64, reversals, answer_loss, exact)
    n_characters = int(characters("train").max()) + 1
    examine = lambda model: {
        "loss": loss_on("test", model, CONTEXT),
        "loss_long": loss_on("test", model, LONG),
        "loss_dev": loss_on("dev", model, CONTEXT),
    }
    rows = tuple(row for row in ROWS if row != "prefix")
    return Task(rows, n_characters, 400, 40, 32, windows, next_token_loss, examine)


TASKS = ("letters", "toy")


# The runs ------------------------------------------------------------------------------------------


def run(on: str, name: str, seed: int, factor: float) -> dict[str, Any]:
    """Train one row from one seed, its peak rates times a factor, and say how it did."""
    torch.manual_seed(seed)
    what, changes = task(on), () if name == PAIR else ROWS[name]
    steps = round(what.steps * LONGER) if "longer" in changes else what.steps
    model = encoder_decoder() if name == PAIR else build(changes, what.vocab_size)
    both, began = optimizers(model, "muon" in changes), time.process_time()
    for step in range(1, steps + 1):
        loss, count = what.loss(model, what.draw(what.batch))
        model.zero_grad()
        (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in both:
            for group in optimizer.param_groups:
                group["lr"] = factor * peak * shape(step, steps, what.warmup, changes)
            optimizer.step()
    seconds = round(time.process_time() - began, 1)
    return {
        "task": on,
        "row": name,
        "seed": seed,
        "peak": factor,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **what.examine(model),
        "seconds": seconds,
        **run_facts("cpu"),
    }


def identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    """What tells one run of the record from another."""
    return tuple(entry[key] for key in ("task", "row", "seed", "peak"))


def recorded() -> list[dict[str, Any]]:
    """The runs in the record."""
    return json.loads(RECORD.read_text(encoding="utf8"))["runs"] if RECORD.exists() else []


def ensure(on: str, name: str, seed: int, factor: float) -> dict[str, Any]:
    """A run from the record, or a new one that the record then holds."""
    runs = recorded()
    for entry in runs:
        if identity(entry) == (on, name, seed, factor):
            return entry
    entry = run(on, name, seed, factor)
    settings = {name: task(name).setting for name in TASKS}
    lengths = {"context": CONTEXT, "long": LONG, "digits": DIGITS}
    runs.append(entry)
    write_record(
        RECORD,
        {"settings": settings, "lengths": lengths, "longer": LONGER, "chooser": CHOOSER, "runs": runs},
    )
    return entry


def chosen_factor(name: str) -> float:
    """The factor of the rates with the least loss on the development split, between two that are worse."""
    at = lambda factor: ensure("letters", name, CHOOSER, factor)["loss_dev"]
    tried = {factor: at(factor) for factor in FACTORS}
    while (best := min(tried, key=tried.__getitem__)) in (min(tried), max(tried)):
        beyond = best / 2 if best == min(tried) else 2 * best
        tried[beyond] = at(beyond)
    return best


def main() -> None:
    """Run what is asked for and not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", help=f"of {', '.join((*ROWS, PAIR))} (all of the task)")
    parser.add_argument("--task", choices=TASKS, default="letters")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row (3)")
    parser.add_argument("--peak", type=float, default=1.0, help="a factor for all learning rates (1)")
    parser.add_argument("--choose", action="store_true", help="find each row's best factor, and use that")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(task(options.task).rows):
        parser.error(f"the task {options.task} has no row {', '.join(sorted(unknown))}")
    if options.choose and options.task != "letters":
        parser.error("only the task letters has a split by which to choose")
    torch.set_num_threads(1)
    names = options.rows or task(options.task).rows
    factors = {name: chosen_factor(name) if options.choose else options.peak for name in names}
    seeds = [CHOOSER, *range(options.seeds - 1)] if options.choose else range(options.seeds)
    for seed in seeds:
        for name, factor in factors.items():
            ensure(options.task, name, seed, factor)


if __name__ == "__main__":
    main()
