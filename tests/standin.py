"""A device that is not there: training steps on it compute shapes, types and devices, and never a number.

    python tests/standin.py    # prints a row for each kind of step, as JSON

PyTorch lets a program register a device of its own. This one has no memory, and its tensors are "fake": to
mix them with tensors of the processor, or to ask for one of their values, is an error, where a GPU would
refuse or make the program wait. Registering it changes the whole process, so the tests run this file in one
of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    accelerate,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.runs.precision import autocast
from transformer.runs.update import Updater

KINDS = {"plain": lambda model: model, "accelerated": accelerate}
LOSSES = {"cross-entropy": partial(teacher_forced_loss, smoothing=0.1), "R-Drop": r_drop_loss}
PRECISIONS = ("float32", "bfloat16", "float16")
# What autocast computes in the smaller format on a GPU, and what it computes in float32.
SMALLER = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
LARGER = ("log_softmax.int", "softmax.int", "cross_entropy_loss", "nll_loss", "layer_norm", "norm.Scalar")


class Backend(_DummyBackendModule):
    """What `torch` asks of a device's module."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        pass


def register() -> list[torch.library.Library]:
    """Make the device known, with autocast's rules; they hold as long as what is returned."""
    _setup_privateuseone_for_python_backend("standin", Backend())
    rules = torch.library.Library("aten", "IMPL", "AutocastPrivateUse1")
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    for name in (*SMALLER, *LARGER):
        rules.impl(name, casting(name))
    return [rules, others]


def casting(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    own = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)  # type: ignore[attr-defined]

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.float32 if name in LARGER else torch.get_autocast_dtype("standin")

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        with torch._C._ExcludeDispatchKeyGuard(own):
            return op(*map(cast, args), **{key: cast(value) for key, value in options.items()})

    return kernel


def moved(model: nn.Module, mode: FakeTensorMode) -> Callable[[Tensor], Tensor]:
    """Move a model to the stand-in; return what moves a tensor."""
    fakes: dict[int, tuple[Tensor, Tensor]] = {}  # with the real one, whose id no other may take meanwhile

    def fake(x: Tensor) -> Tensor:
        if id(x) not in fakes:
            new: Tensor = FakeTensor(mode, torch.empty_like(x, device="meta"), torch.device("standin"))
            fakes[id(x)] = nn.Parameter(new) if isinstance(x, nn.Parameter) else new, x
        return fakes[id(x)][0]

    for module in model.modules():
        for own in (module._parameters, module._buffers):
            for name, x in own.items():
                if x is not None and not isinstance(x, FakeTensor):
                    own[name] = fake(x)
    return fake


def prepared(kind: str) -> tuple[FakeTensorMode, nn.Module, list[tuple[Tensor, Tensor]]]:
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": 2, "d_ff": 32, "dropout": 0.1}
    mode, model = FakeTensorMode(), KINDS[kind](Transformer(TransformerConfig(11, 11, **sizes)))
    fake = moved(model, mode)
    ids = [fake(torch.zeros(3, length, dtype=torch.long)) for length in (5, 6)]
    return mode, model, [tuple(ids)] * 2


def step(kind: str, precision: str, loss: str) -> dict[str, Any]:
    """An update with two batches, clipping, optimizer and moving average: where it was made, and in what."""
    mode, model, batches = prepared(kind)
    config = TrainingConfig(
        1, accumulate=2, clip_norm=1.0, precision=precision, weight_decay=0.1, average=0.9
    )
    with mode:
        updater = Updater(model, LOSSES[loss], lambda step: 1e-3, config)
        total, tokens, norm = updater(batches)
        with autocast(updater.device, precision):
            logits = model(*batches[0])
    found = [total, tokens, norm, *updater.parameters, *(p.grad for p in updater.parameters)]
    return {
        "devices": " ".join(sorted({str(x.device) for x in found})),
        "logits": str(logits.dtype),
        "gradients": " ".join({str(p.grad.dtype) for p in updater.parameters}),
        "scaled": updater.scaler.is_enabled(),
    }


class Enough(Exception):
    """Raised by a schedule when the updates have been made that are looked at."""


def loop(kind: str, reading: bool = False) -> str:
    """How the trainer's loop comes from one line of its log to the next; `reading` asks for every loss."""
    mode, model, batches = prepared(kind)
    made: list[int] = []

    def schedule(step: int) -> float:
        made.append(step)
        if step > 8:
            raise Enough
        return 1e-3

    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        total, tokens = teacher_forced_loss(model, batch)
        return (total if not reading else total * total.item()), tokens

    with mode:
        trainer = Trainer(model, loss, lambda epoch: batches, schedule, TrainingConfig(100, log_every=100))
        try:
            trainer.fit()
        except Enough:
            return f"{trainer.step} updates without a question"
        except Exception as error:
            return type(error).__name__
    raise AssertionError("the schedule was never asked for update 9")


def mixing() -> str:
    """What comes of vectors that have been left on the processor."""
    mode, model, _ = prepared("plain")
    try:
        with mode:
            model.project(torch.zeros(3, 16))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "nothing"


if __name__ == "__main__":
    kept = register()
    steps = {" ".join(names): step(*names) for names in product(KINDS, PRECISIONS, LOSSES)}
    loops = {kind: loop(kind) for kind in KINDS} | {"reading": loop("plain", reading=True)}
    print(json.dumps({"steps": steps, "loops": loops, "mixing": mixing()}, indent=1))
