"""What must hold on every device: tried on the CPU always, and on a GPU where there is one."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import helpers
import pytest
import torch
from helpers import assert_close, assert_same
from torch.utils._python_dispatch import TorchDispatchMode

from transformer import (
    TrainingConfig,
    Transformer,
    accelerate,
    beam_search,
    greedy_search,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.runs.update import Updater
from transformer.training import to_device

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
KINDS = pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "fast"])
LOSSES = pytest.mark.parametrize("loss", [teacher_forced_loss, r_drop_loss], ids=["cross-entropy", "R-Drop"])


@pytest.fixture(params=DEVICES)
def device(request) -> torch.device:
    return torch.device(request.param)


def make_model(**changes) -> Transformer:
    """A model large enough for kernels of tiles."""
    sizes = dict(d_model=64, n_heads=4, d_ff=128, max_length=512, dropout=0.1, norm_first=True)
    return helpers.make_model(50, dtype=torch.float32, noise=0.0, **(sizes | changes))


def make_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids without and with padding."""
    generator = torch.Generator().manual_seed(seed)
    src, tgt = (torch.randint(4, 50, (16, length), generator=generator) for length in (12, 14))
    src[8:, 9:], tgt[8:, 10:], tgt[:, 0] = 0, 0, 2  # 2 is the start token
    return src, tgt


class Questions(TorchDispatchMode):
    """Notes on the CPU where the program must know a value, and would wait for a GPU.

    Looks at arguments and masks, which it takes on the CPU alone, don't count.
    """

    # Without `equal`, with which the fast model spares the processor a copy and never asks a GPU.
    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        if (name in self.ASKING or masks) and not self.on_the_cpu_alone():
            self.asked.append(name)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def on_the_cpu_alone() -> bool:
        frames = (frame for frame, _ in traceback.walk_stack(None))
        places = {(frame.f_globals["__name__"], frame.f_code.co_name) for frame in frames}
        return any(m == "transformer.validation" or f == "fast_attention" for m, f in places)


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """Where the program waits for the device, or on the CPU would wait for another one."""
    if device.type == "cpu":
        with Questions() as questions:
            yield questions.asked
        return
    found: list[str] = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True, action="always") as warned:
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [f"{each.filename}:{each.lineno}" for each in warned]


@pytest.mark.slow
@LOSSES
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@KINDS
@pytest.mark.filterwarnings("ignore:this processor has no units for bfloat16")
def test_a_training_step_never_waits_for_its_device(device, kind, precision, loss):
    model = kind(make_model().to(device))
    update = Updater(model, loss, lambda step: 1e-3, TrainingConfig(10, precision=precision))
    batch = to_device(make_batch(), device)
    update([batch])  # the first one makes the optimizer's state
    with waits(device) as found:
        for _ in range(3):
            total, _, _ = update([batch])
    assert found == []
    with waits(device) as found:
        assert total.item() > 0
    assert len(found) == 1  # a question is noticed


@KINDS
@pytest.mark.parametrize(
    ("search", "a_step"), [(greedy_search, 2), (partial(beam_search, beam_size=4), 1)], ids=["greedy", "beam"]
)
def test_how_often_a_search_waits_for_its_device(device, kind, search, a_step):
    """Greedy search asks for NaN and which sentences have ended, beam search whether one has."""
    model, src = make_model().eval(), make_batch()[0].to(device)
    with torch.no_grad():
        model.output.weight[model.config.eos_id] = -1  # so that no translation ends early
    searched, found = kind(model.to(device)), []
    for length in (4, 8):
        with waits(device) as asked:
            search(searched, src, max_length=length)
        found.append(len(asked))
    assert found[1] - found[0] == 4 * a_step


@LOSSES
@KINDS
def test_losses_and_gradients_are_those_of_the_plain_model_on_the_cpu(device, kind, loss):
    model = make_model(dropout=0.0).double()
    wanted, _ = loss(model, make_batch())
    slopes = torch.autograd.grad(wanted, list(model.parameters()))
    found, _ = loss(there := kind(model.to(device)), to_device(make_batch(), device))
    assert_same(found.cpu(), wanted, 1e-9)
    gradients = torch.autograd.grad(found, list(there.parameters()))
    assert_same([gradient.cpu() for gradient in gradients], list(slopes), 1e-9)


@KINDS
def test_logits_are_those_of_the_plain_model_on_the_cpu(device, kind):
    model, (src, tgt) = make_model(dropout=0.0).double(), make_batch()
    wanted = model(src, tgt)
    assert_close(kind(model.to(device))(src.to(device), tgt.to(device)).cpu(), wanted)


@pytest.mark.slow
@KINDS
def test_translations_are_those_of_the_plain_model_on_the_cpu(device, kind):
    model, (src, _) = make_model().double().eval(), make_batch()
    wanted = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    model, src = kind(model.to(device)), src.to(device)
    found = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.cpu(), theirs)
