"""What only a GPU can show; skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import helpers
import pytest
import torch

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    accelerate,
    beam_search,
    greedy_search,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.training import to_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CUDA = torch.device("cuda")
KINDS = pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "fast"])


def make_model(**changes) -> Transformer:
    """A model large enough for kernels of tiles."""
    sizes = dict(d_model=64, n_heads=4, d_ff=128, max_length=512, dropout=0.1, norm_first=True)
    return helpers.make_model(50, dtype=torch.float32, noise=0.0, **(sizes | changes))


def make_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids without and with padding."""
    generator = torch.Generator().manual_seed(seed)
    src, tgt = (torch.randint(4, 50, (16, length), generator=generator) for length in (12, 14))
    src[8:, 9:], tgt[8:, 10:] = 0, 0
    return src, tgt


@contextmanager
def no_waiting() -> Iterator[None]:
    """An error wherever the program would wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    "loss", [teacher_forced_loss, partial(r_drop_loss, alpha=5.0)], ids=["plain", "R-Drop"]
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@KINDS
def test_a_training_step_never_waits_for_the_device(kind, precision, loss):
    trainer = Trainer(
        kind(make_model().to(CUDA)),
        loss,
        batches=lambda epoch: [make_batch()],
        schedule=lambda step: 1e-3,
        config=TrainingConfig(10, precision=precision),
    )
    batch = to_device(make_batch(), CUDA)
    trainer.update([batch])  # the first one makes the optimizer's state
    with no_waiting():
        for _ in range(3):
            trainer.update([batch])


@pytest.mark.parametrize("loss_of", [teacher_forced_loss, r_drop_loss])
@KINDS
def test_both_devices_compute_the_same_loss_and_gradient(kind, loss_of):
    losses, gradients = [], []
    for device in (torch.device("cpu"), CUDA):
        model = kind(make_model(dropout=0.0).to(device).double())
        loss, _ = loss_of(model, to_device(make_batch(), device))
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad.cpu() for parameter in model.parameters()])
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)
    for ours, theirs in zip(*gradients):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


@KINDS
def test_both_devices_find_the_same_translations(kind):
    model, (src, _) = kind(make_model().double().eval()), make_batch()
    here = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    model, src = model.to(CUDA), src.to(CUDA)
    there = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    for ours, theirs in zip(here, there):
        assert torch.equal(ours, theirs.cpu())


def test_fast_and_plain_compute_the_same_there():
    model, (src, tgt) = make_model(dropout=0.0).double().to(CUDA), to_device(make_batch(), CUDA)
    found, wanted = (one(src, tgt) for one in (accelerate(model), model))
    torch.testing.assert_close(found, wanted, atol=1e-9, rtol=1e-9)
