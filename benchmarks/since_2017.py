"""Changes since 2017, one at a time, on characters of small Portuguese: `python -m benchmarks.since_2017`.

Every row is a decoder-only model of 2017 with one change, or with all of them, of about the same number of
parameters, trained on the same characters for the same number of updates. With `--peak 2` all learning
rates are twice as high. The record transformer/records/since-2017.json, which Chapter 16 reads, grows by one
run at a time; what it holds already is not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer import (
    FeedForward,
    LayerNorm,
    PositionalEncoding,
    TokenEmbedding,
    load_corpus,
)
from transformer.files import run_facts, write_record
from transformer.model import initialize
from transformer.modern import (
    LanguageModel,
    LanguageModelConfig,
    next_token_loss,
    wsd_rate,
)
from transformer.training import adamw, cooldown, evaluating

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "since-2017.json"
CHANGES = ("rms", "no-bias", "gate", "rotary", "grouped", "qk-norm", "wsd", "muon")
ROWS: dict[str, tuple[str, ...]] = {
    "2017": (),
    **{change: (change,) for change in CHANGES[:4]},
    "alibi": ("alibi",),
    **{change: (change,) for change in CHANGES[4:]},
    "all": CHANGES,
    "cooled": ("cooled",),  # a control for wsd: the schedule of 2017, which ends at zero
}
SIZES: dict[str, int] = {"d_model": 64, "n_heads": 4, "n_layers": 2}
STEPS, BATCH, CONTEXT, LONG, WARMUP = 400, 32, 64, 256, 40
RATE, MUON_RATE = 3e-3, 2e-2  # the peak of the schedule; muon: of the matrices in the layers


class SinusoidalEmbedding(nn.Sequential):
    """The token table and the positions of 2017, in the place of a token table alone."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__(TokenEmbedding(vocab_size, d_model), PositionalEncoding(d_model, 0.0, LONG))

    @property
    def weight(self) -> nn.Parameter:
        """The token table."""
        return self[0].weight


def build(changes: tuple[str, ...], vocab_size: int) -> LanguageModel:
    """A model with some changes; every other part is as in 2017, with the norms first."""
    d_model, d_ff = SIZES["d_model"], 170 if "gate" in changes else 256
    positions = next((name for name in ("rotary", "alibi") if name in changes), "none")
    shared = "grouped" in changes
    if shared:  # what the keys and values save goes to the network
        d_ff += 21 if "gate" in changes else 32
    model = LanguageModel(
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


def shape(step: int, changes: tuple[str, ...]) -> float:
    """The schedule, as a share of its peak."""
    if "wsd" in changes:
        return wsd_rate(step, STEPS, 1.0, WARMUP)
    rate = min(step / WARMUP, math.sqrt(WARMUP / step))
    return rate * cooldown(step, STEPS, 0.2) if "cooled" in changes else rate


def test_loss(model: nn.Module, ids: Tensor, length: int) -> float:
    """Nats per character on the first 16,384 characters of the test, in windows of a length."""
    windows = ids[:16_385].unfold(0, length + 1, length)
    with evaluating(model):
        losses = [next_token_loss(model, batch)[0] for batch in windows.split(16)]
    return float(sum(losses)) / (len(windows) * length)


def run(name: str, seed: int, factor: float) -> dict[str, Any]:
    """Train one row from one seed, its peak rates times a factor, and say how it did."""
    torch.manual_seed(seed)
    train, test, changes = characters("train"), characters("test"), ROWS[name]
    model = build(changes, int(train.max()) + 1)
    both, began = optimizers(model, "muon" in changes), time.process_time()
    for step in range(1, STEPS + 1):
        starts = torch.randint(len(train) - CONTEXT, (BATCH, 1))
        loss, count = next_token_loss(model, train[starts + torch.arange(CONTEXT + 1)])
        model.zero_grad()
        (loss / count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, peak in both:
            for group in optimizer.param_groups:
                group["lr"] = factor * peak * shape(step, changes)
            optimizer.step()
    return {
        "row": name,
        "seed": seed,
        "peak": factor,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": test_loss(model, test, CONTEXT),
        "loss_long": test_loss(model, test, LONG),
        "seconds": round(time.process_time() - began, 1),
        **run_facts("cpu"),
    }


def main() -> None:
    """Run what is asked for and not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", nargs="*", default=list(ROWS), help=f"of {', '.join(ROWS)} (all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each row (3)")
    parser.add_argument("--peak", type=float, default=1.0, help="a factor for all learning rates (1)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(RECORD.read_text(encoding="utf8"))["runs"] if RECORD.exists() else []
    for seed in range(options.seeds):
        for name in options.rows:
            asked = (name, seed, options.peak)
            if asked not in [(entry["row"], entry["seed"], entry.get("peak", 1.0)) for entry in runs]:
                runs.append(run(*asked))
                setting = {"steps": STEPS, "batch": BATCH, "context": CONTEXT, "long": LONG, **SIZES}
                write_record(RECORD, {"setting": setting, "runs": runs})


if __name__ == "__main__":
    main()
