"""The harness of `make bench`: what it counts is counted right, and its engines compute the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import transformer.speed.kernels  # noqa: E402
from benchmarks import (  # noqa: E402
    bench,
    corpus,
    decoding,
    levers,
    measure,
    peers,
    training,
    workload,
)
from benchmarks.corpus import corpus_facts  # noqa: E402
from transformer import TransformerConfig  # noqa: E402
from transformer.language.corpora import Pair  # noqa: E402

CPU = torch.device("cpu")
SMALL = workload.Size("small", TransformerConfig(50, 50, d_model=16, n_heads=2, n_layers=2, d_ff=24))


def batch_of(config: TransformerConfig, rows: int, src_length: int, tgt_length: int) -> workload.Batch:
    """A batch without padding."""
    src = torch.randint(4, config.src_vocab_size, (rows, src_length))
    tgt = torch.randint(4, config.tgt_vocab_size, (rows, tgt_length + 1))
    tgt[:, 0] = config.bos_id
    return src, tgt


def trainings(size: workload.Size = SMALL) -> dict[str, Callable[..., peers.Training]]:
    """How to build the engines in training, in float32 on the CPU."""
    return peers.peer_trainings(size, "float32", CPU)


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


def test_padding_is_no_useful_work():
    """A batch with padding needs what its sentences need one by one."""
    config = SMALL.config
    (batch,) = workload.sentence_batches(config, 200, 1)
    src, tgt = batch
    alone = [
        (src[i : i + 1, : int((src[i] != 0).sum())], tgt[i : i + 1, : int((tgt[i] != 0).sum())])
        for i in range(len(src))
    ]
    assert (src == 0).any()
    assert workload.training_flops(config, [batch]) == workload.training_flops(config, alone)


# The engines compute the same


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


def test_an_engine_that_computes_something_else_is_refused():
    """The check that stands before every timing can fail."""
    (batch,) = workload.sentence_batches(SMALL.config, 60, 1)
    steps = {name: trainings()[name]() for name in ("ours", "torch.nn")}
    with torch.no_grad():
        steps["torch.nn"].model.transformer.decoder.layers[0].linear1.weight.neg_()
    with pytest.raises(ValueError, match="the loss of torch.nn is"):
        training.agreement(steps, batch)


# What is timed is what its row says


def test_rows_train_the_model_and_use_the_kernels_that_they_name(monkeypatch):
    """The plain model by its plain loop; the control by `F.linear`, where the fast model takes oneDNN."""
    called = []
    spy = lambda x, weight, bias=None: called.append(x) or F.linear(x, weight, bias)
    monkeypatch.setattr(transformer.speed.kernels, "_MKL_IS_SLOW", True)
    monkeypatch.setattr(transformer.speed.kernels, "_LEAST_WORK", 0)
    wins = transformer.speed.kernels.onednn_wins
    monkeypatch.setattr(transformer.speed.kernels, "CHOICES", [(wins, spy), (lambda *_: True, F.linear)])
    batch = batch_of(SMALL.config, 4, 6, 6)
    for name, described in (
        ("ours", {"model": "FastTransformer", "loop": "Trainer"}),
        ("ours, F.linear", {"model": "FastTransformer", "loop": "Trainer"}),
        ("ours, plain", {"model": "Transformer", "loop": "plain"}),
    ):
        step = trainings()[name]()
        assert peers.described(step) == described
        before = [parameter.detach().clone() for parameter in step.model.parameters()]
        step.step(batch)
        assert all(not torch.equal(a, b) for a, b in zip(before, step.model.parameters()))
        assert bool(called) == (name == "ours")
        called.clear()
    with pytest.raises(TypeError, match="trained is a"):
        peers.TrainerTraining(peers.our_model(SMALL.config), SMALL, "float32", CPU)


def test_every_lever_computes_the_same_loss_and_gradient():
    """Dropout off: what differs is how, not what."""
    batch = batch_of(SMALL.config, 16, 16, 16)
    results = {}
    for name, setup in levers.setups().items():
        step = peers.Training(levers.model_of(SMALL, setup, 0), SMALL, setup.precision, CPU)
        step.model.eval()
        loss = step.mean_loss(batch)
        loss.backward()
        results[name] = loss, torch.cat([p.grad.flatten() for p in step.model.parameters()])
    for name, (loss, gradient) in results.items():
        rtol = 0.02 if name == "bfloat16" else 1e-5
        torch.testing.assert_close(loss.float(), results["plain"][0], rtol=rtol, atol=0)
        distance = (gradient - results["plain"][1]).norm() / gradient.norm()
        assert distance < (0.1 if name == "bfloat16" else 1e-5)


def test_no_search_ends_early():
    """The end token's logit is zero, and never the highest: 32 tokens come out, none of them an end."""
    size = workload.Size("wide", TransformerConfig(500, 500, d_model=32, n_heads=2, n_layers=1, d_ff=32))
    found = peers.searches(size, CPU)
    src = workload.decoding_sources(size.config, 4)
    ours = decoding.checked(found["ours"], src, 1)
    for name in ("ours, plain", "torch.nn, no cache"):
        assert torch.equal(decoding.checked(found[name], src, 1), ours)
    assert decoding.checked(found["ours"], src, 4).shape == (4, 32)
    assert decoding.same(ours, ours) == 1.0
    with torch.no_grad():
        table = found["ours"].args[0].output.weight
        table[size.config.eos_id] = 10 * table[ours[0, 0]]
    with pytest.raises(ValueError, match="ended before 32"):
        decoding.checked(found["ours"], src, 1)


# Counting and reporting


def test_a_ratio_is_the_median_of_those_within_the_rounds():
    """Which need not be the ratio of the medians, here 20."""
    assert measure.spread([7.0]) == {"median": 7.0, "min": 7.0, "max": 7.0, "rounds": [7.0]}
    ratios = measure.ratios_to_ours({"ours": [1.0, 10.0, 1.0], "other": [1.0, 20.0, 30.0]})
    assert ratios["other"] == {"median": 2.0, "min": 1.0, "max": 30.0, "rounds": [1.0, 2.0, 30.0]}
    assert measure.ratio_text(ratios["other"]) == "2.00 (1.00–30.00)"
    assert measure.milliseconds_text(measure.spread([0.001, 0.002])) == "1.5 (1.0–2.0)"
    with pytest.raises(ValueError):
        measure.ratio([1.0, 2.0], [1.0])


# The command


def test_the_command_writes_one_record_and_keeps_the_sections_of_an_equal_run(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "in_new_process", bench.measure)  # so that sections can be exchanged
    for name in ("decoding", "memory"):
        monkeypatch.setitem(bench.SECTIONS, name, lambda options, name=name: {"answer": name})
    path = tmp_path / "deep" / "bench.json"
    arguments = ["--rounds", "2", "--output", str(path)]
    bench.main(["--only", "decoding", *arguments])
    bench.main(["--only", "memory", *arguments])
    record = json.loads(path.read_text(encoding="utf8"))
    assert [record[name]["answer"] for name in ("decoding", "memory")] == ["decoding", "memory"]
    assert {"command", "commit", "date", "device", "versions", "machine", "peers"} <= record.keys()
    with pytest.raises(ValueError, match=r"bench.json has .* with other rounds: decoding; choose"):
        bench.main(["--only", "memory", "--rounds", "3", "--output", str(path)])
    assert json.loads(path.read_text(encoding="utf8")) == record
    assert [entry.name for entry in path.parent.iterdir()] == ["bench.json"]


# What the chapter on text reports of a corpus


def test_facts_by_hand(monkeypatch):
    splits = {
        "train": [Pair("a b", "x"), Pair("a b", "x"), Pair("c", "c")],
        "dev": [Pair("a d", "x")],
        "test": [Pair("c", "c"), Pair("d", "y z")],
    }
    monkeypatch.setattr(corpus, "load_corpus", lambda name, split: splits[split])
    every = corpus_facts("ours", sizes=(20,), budgets=(8,), dropouts=(0.0, 0.9))
    facts = every["splits"]
    (usual, most), ((_, *pieces),) = every["dropout"], every["vocabularies"]
    assert usual == [0.0, *pieces] and most[0] == 0.9 and most[1] > pieces[0]
    assert facts["train"] == {
        "pairs": 3, "tokens": [5, 3], "types": [3, 2], "lengths": [[(1, 1), (2, 2)], [(1, 3)]],
        "repeated": 1, "equal sides": 1, "in train": 3, "unknown": [0.0, 0.0],
    }  # fmt: skip
    assert facts["dev"]["unknown"] == [0.5, 0.0] and facts["test"]["unknown"] == [0.5, 2 / 3]
    assert facts["test"]["in train"] == 1
