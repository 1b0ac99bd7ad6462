"""The harness of `make bench`: what it counts is counted right, and its engines compute the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import tasks
import torch
from torch import nn
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu, peers, workload
from transformer import TransformerConfig, accelerate, teacher_forced_loss
from transformer.runs.loop import Updater

ROOT = Path(__file__).resolve().parents[2]

SMALL = workload.Size("small", TransformerConfig(50, 50, d_model=16, n_heads=2, n_layers=2, d_ff=24))


def batch_of(config: TransformerConfig, rows: int, src_length: int, tgt_length: int) -> workload.Batch:
    """A batch without padding."""
    src = torch.randint(4, config.src_vocab_size, (rows, src_length))
    tgt = torch.randint(4, config.tgt_vocab_size, (rows, tgt_length + 1))
    tgt[:, 0] = config.bos_id
    return src, tgt


def trainings(size: workload.Size = SMALL) -> dict[str, Callable[..., peers.Training]]:
    """How to build the engines in training, in float32 on the CPU."""
    return peers.peer_trainings(size, "float32")


def flops_by_torch(model: nn.Module, batch: workload.Batch) -> tuple[int, int]:
    """What torch counts: products with weights in training, attention in the forward pass alone.

    The backward pass of a fused kernel computes the scores anew, which is not useful work.
    """
    src, tgt = batch
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        model(src, tgt[:, :-1])
    with FlopCounterMode(display=False) as both:
        model(src, tgt[:, :-1]).sum().backward()

    def split(counter: FlopCounterMode) -> tuple[int, int]:
        counts = counter.get_flop_counts()["Global"]
        attention = sum(n for op, n in counts.items() if "attention" in str(op) or "bmm" in str(op))
        return sum(counts.values()) - attention, attention

    return split(both)[0], split(forward)[1]


# Work by formula


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ours", "torch.nn"])
def test_the_formula_is_what_torch_counts_without_padding(engine):
    """Products with weights to the operation; attention too, but that torch counts what causality forbids."""
    config, rows, S, T = SMALL.config, 3, 5, 7
    batch = batch_of(config, rows, S, T)
    flops = workload.forward_flops(config, S, T)
    linear, attention = flops_by_torch(trainings()[engine]().model, batch)
    assert linear == 3 * rows * flops["linear"]
    unseen = config.n_layers * 4 * config.d_model * (T * T - T * (T + 1) // 2)
    assert attention in (0, rows * (flops["attention"] + unseen))  # 0: a kernel that torch does not count
    assert workload.training_flops(config, [batch]) == 3 * rows * sum(flops.values())


# The engines compute the same


@pytest.mark.slow
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_nn_computes_our_loss_with_our_weights(norm_first):
    """In float64, to the last digits, padding and all, with and without dropout's inner places."""
    config = TransformerConfig(50, 50, d_model=16, n_heads=2, n_layers=2, d_ff=24, norm_first=norm_first)
    size = workload.Size("small", config)
    (batch,) = workload.sentence_batches(config, 60, 1)
    losses = []
    for name in ("ours", "ours, F.linear", "ours, plain", "torch.nn", "torch.nn, no inner dropout"):
        step = trainings(size)[name]()
        model = step.model.double().eval()
        losses.append(step.mean_loss(batch).double())
        losses[-1].backward()
        if name == "torch.nn, no inner dropout":
            modules = list(model.transformer.modules())
            dropped = [m.dropout for m in modules if isinstance(m, nn.MultiheadAttention)]
            assert dropped == [0.0] * 6
    assert losses[0].item() > 1
    for loss in losses[1:]:
        torch.testing.assert_close(loss, losses[0], rtol=1e-6, atol=0)


@pytest.mark.slow
def test_each_rung_without_a_lever_is_without_it_alone(monkeypatch):
    monkeypatch.setattr(gpu, "mean_seconds", lambda work, device: work() and 1.0)

    wide = workload.Size("wide", TransformerConfig(8000, 8000, d_model=16, n_heads=2, n_layers=1, d_ff=24))

    def called(rung: str) -> set[str]:
        with profile() as seen:
            gpu.measured(wide, 400, gpu.LADDER[rung], torch.device("cpu"))
        return {each.key for each in seen.key_averages()}

    levers = {
        "without fused attention": "flash_attention",
        "without fused Adam": "fused_adamw",
        "without a chunked loss": "_ChunkedLoss",
    }
    for without in ("accelerated", *levers):
        names = " ".join(called(without))
        assert [lever for lever in levers if levers[lever] not in names] == [without] * (without in levers)


def test_weights_in_half_precision_and_joined_residuals_train_alike():
    (batch,), losses = workload.sentence_batches(SMALL.config, 200, 1), []
    for kind, precision in ((Updater, "float32"), (Updater, "float32"), (gpu.HalfWeights, "bfloat16")):
        model = accelerate(peers.our_model(SMALL.config)).eval()
        if losses:
            gpu.compile_residuals(model, lambda function: function)
        updater = kind(model, teacher_forced_loss, lambda step: 1e-2, 1.0, precision)
        losses.append([(found[0] / found[1]).item() for found in map(updater, [[batch]] * 8)])
    assert losses[0][-1] < 0.9 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[2] == pytest.approx(losses[0], rel=0.02)


def test_a_part_for_a_gpu_leaves_its_rows_and_a_line_for_those_of_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "mean_seconds", gpu.seconds)
    gpu.main("searches", "cpu", "0", str(tmp_path))
    (line,) = tasks.shown(json.loads((tmp_path / "searches.json").read_text()))
    row = r"beam [14](, graphs)? ms a step [\d.]+"
    assert re.fullmatch(rf"1 sentences, {row}( \| {row}){{3}}", " ".join(line.split()))
