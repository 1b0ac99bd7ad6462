"""What a GPU would be asked: training on the device of standin.py, and what searches must read back."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from standin import KINDS, LOSSES, PRECISIONS
from torch.utils._python_dispatch import TorchDispatchMode

import transformer.decoding
import transformer.model
from transformer import Transformer, TransformerConfig, beam_search, greedy_search


@pytest.fixture(scope="module")
def standin() -> dict[str, Any]:
    script = Path(__file__).with_name("standin.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


@pytest.mark.parametrize(("kind", "precision", "loss"), list(product(KINDS, PRECISIONS, LOSSES)))
def test_an_update_stays_on_its_device_and_asks_for_no_value(standin, kind, precision, loss):
    """Two batches, clipping, optimizer and moving average; each question would have been an error."""
    assert standin["steps"][f"{kind} {precision} {loss}"] == {
        "devices": "standin:0",
        "logits": f"torch.{precision}",
        "gradients": "torch.float32",
        "scaled": precision == "float16",
    }


def test_the_loop_asks_nothing_between_two_lines_of_its_log(standin):
    assert standin["loops"] == dict.fromkeys(KINDS, "8 updates without a question") | {
        "reading": "DataDependentOutputException"  # what asks is found
    }
    assert "device" in standin["mixing"]  # and so is what is left on the processor


class Questions(TorchDispatchMode):
    """Counts what must know a value, and would make the program wait for a GPU."""

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
        if name in self.ASKING or masks:
            self.asked.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("search", "asked"), [(greedy_search, ["nonzero"]), (beam_search, ["any"])])
def test_how_often_a_search_must_ask_its_device(monkeypatch, kind, search, asked):
    """Greedy search asks which sentences have ended; beam search, whether a beginning has, and then which
    sentences go on. The checks of arguments and for NaN, which ask too, are off."""
    for name in ("check_ids", "check_memory", "check_positions", "_check_numbers"):
        for module in (transformer.decoding, transformer.model):
            monkeypatch.setattr(module, name, lambda *args, **options: None, raising=False)
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(11, 11, d_model=16, n_heads=2, n_layers=2, d_ff=32)).eval()
    with torch.no_grad():
        model.output.weight[model.config.eos_id] = -1  # so that no translation ends early
    searched, src, found = KINDS[kind](model), torch.randint(4, 11, (3, 5)), []
    for length in (4, 8):
        with Questions() as questions:
            search(searched, src, max_length=length)
        found.append(len(questions.asked))
    assert found[1] - found[0] == 4 * len(asked)
