"""From the plain model to the fast one: training steps with one fast path after another switched on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure import MIB, interleaved, ratio, ratio_text, saved_bytes, spread, table
from benchmarks.peers import LEARNING_RATE, our_model, with_f_linear
from benchmarks.training import agreement
from benchmarks.workload import Batch, Size, sentence_batches, shuffled_batches, token_counts, training_flops
from transformer import FastTransformer, accelerate, teacher_forced_loss
from transformer.fast import FastMultiHeadAttention
from transformer.text import padding_waste
from transformer.trainer import autocast
from transformer.training import to_device


@dataclass(frozen=True)
class Setup:
    """Which fast paths a training step takes.

    Args:
        kernel: attention by the fused kernel, else written out.
        fused_adam: the optimiser in one kernel.
        by_length: batches of sentences of about one length, else of random sentences.
        dense: the package's way to compute dense layers, else `F.linear`.
        chunks: the package's loss, else `F.cross_entropy` on all logits.
        precision: `"float32"` or `"bfloat16"`.
    """

    kernel: bool = False
    fused_adam: bool = False
    by_length: bool = False
    dense: bool = False
    chunks: bool = False
    precision: str = "float32"


# Each adds to the ones before it.
LEVERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "fused attention": {"kernel": True},
    "fused Adam": {"fused_adam": True},
    "batches by length": {"by_length": True},
    "dense layers": {"dense": True},
    "loss in chunks": {"chunks": True},
    "bfloat16": {"precision": "bfloat16"},
}


def setups() -> dict[str, Setup]:
    """The setup that each lever leads to, from the plain one on."""
    found, setup = {}, Setup()
    for name, change in LEVERS.items():
        found[name] = setup = replace(setup, **change)
    return found


def make_plain(model: FastTransformer, setup: Setup) -> None:
    """Take the fast paths out of a fast model that `setup` has not."""
    for module in model.modules():
        if isinstance(module, FastMultiHeadAttention) and not setup.kernel:
            module.register_forward_pre_hook(_want_weights, with_kwargs=True)
    if not setup.dense:
        with_f_linear(model)


def _want_weights(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return inputs, options | {"need_weights": True}  # which a fused kernel never computes


class LeverTraining:
    """A model in training, with the fast paths of a setup: `step(batch)` makes an update."""

    def __init__(self, size: Size, setup: Setup, device: torch.device, seed: int) -> None:
        self.model = accelerate(our_model(size.config, seed).to(device)).train()
        make_plain(self.model, setup)
        self.size, self.setup, self.device, self.precision = size, setup, device, setup.precision
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=setup.fused_adam
        )

    def mean_loss(self, batch: Batch) -> Tensor:
        """The loss of a batch per target token, ready for a backward pass."""
        with autocast(self.device, self.precision):
            if self.setup.chunks:
                loss, tokens = teacher_forced_loss(self.model, batch, smoothing=self.size.smoothing)
                return loss / tokens
            return self._plain_loss(*batch)

    def _plain_loss(self, src: Tensor, tgt: Tensor) -> Tensor:
        model = self.model
        hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
        return F.cross_entropy(
            model.project(hidden).float().flatten(0, 1),
            tgt[:, 1:].flatten(),
            ignore_index=model.config.pad_id,
            label_smoothing=self.size.smoothing,
        )

    def step(self, batch: Batch) -> None:
        """Make one update."""
        self.optimizer.zero_grad()
        self.mean_loss(batch).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.size.clip_norm)
        self.optimizer.step()

    def go_through(self, batches: list[Batch]) -> None:
        """Make one update on each batch."""
        for batch in batches:
            self.step(batch)


def measure_levers(
    size: Size, target_tokens: int, n_batches: int, device: torch.device, rounds: int, seed: int
) -> dict[str, Any]:
    """Time training on the same sentences with each setup, and count what a forward pass keeps.

    Args:
        size: of the model.
        target_tokens: target positions of a batch.
        n_batches: batches of sentences by length; in random order the same sentences make more.
        device: to train on.
        rounds: how many rounds are timed.
        seed: of weights, sentences and their order.
    """
    by_length = sentence_batches(size.config, target_tokens, n_batches, seed)
    at_random = shuffled_batches(size.config, by_length, target_tokens, seed)
    by_length, at_random = ([to_device(batch, device) for batch in some] for some in (by_length, at_random))
    middle = by_length[n_batches // 2]
    trainings = {name: LeverTraining(size, setup, device, seed) for name, setup in setups().items()}
    agreement({"ours": trainings["plain"], **trainings}, middle)
    used = {name: by_length if t.setup.by_length else at_random for name, t in trainings.items()}
    works: dict[str, Callable[[], None]] = {
        name: partial(training.go_through, used[name]) for name, training in trainings.items()
    }
    times = interleaved(works, rounds, device)
    tokens = token_counts(by_length, size.config.pad_id)
    levers, before = {}, "plain"
    for name, training in trainings.items():
        levers[name] = {
            "seconds": spread(times[name]),
            "target tokens per second": tokens["target"] / spread(times[name])["median"],
            "gain": ratio(times[before], times[name]),
            "beside plain": ratio(times["plain"], times[name]),
            "batches": len(used[name]),
            "padding waste": padding_waste(used[name]),
            "saved bytes": saved_bytes(training.model, partial(training.mean_loss, middle)),
        }
        before = name
    print_levers(size, levers)
    return {
        "size": size.name,
        "tokens": tokens,
        "useful flops": training_flops(size.config, by_length),
        "levers": levers,
    }


def print_levers(size: Size, levers: dict[str, Any]) -> None:
    """Print what `measure_levers` found."""
    rows = [
        [
            name,
            f"{lever['target tokens per second']:,.0f}",
            ratio_text(lever["gain"]),
            ratio_text(lever["beside plain"]),
            f"{lever['padding waste']:.1%}",
            f"{lever['saved bytes'] / MIB:.1f}",
        ]
        for name, lever in levers.items()
    ]
    headers = ["with", "target tok/s", "× the line above", "× plain", "padding", "saved, MiB"]
    print(table(f"From plain to fast ({size.name})", headers, rows), end="\n\n", flush=True)
