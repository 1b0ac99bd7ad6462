"""Training: the learning rate, a look at a model, and the plain loop against one written out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
import torch
from helpers import adam_by_hand, refuses
from helpers import run_batches as make_batches
from helpers import run_model as make_model
from helpers import run_rate as rate
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader

import transformer.training
from transformer import (
    Trainer,
    TrainingConfig,
    accelerate,
    best_device,
    evaluate_loss,
    fit,
    noam_rate,
    teacher_forced_loss,
)
from transformer.language.corpora import Pair
from transformer.training import (
    adamw,
    as_epochs,
    check_loss,
    cooldown,
    evaluating,
    load_record,
    record_path,
    to_device,
)


class Cut(Exception):
    """The power is gone."""


# ---------- The learning rate


@given(st.integers(1, 10**6), st.integers(1, 4096), st.integers(1, 10**5))
def test_noam_rate_is_a_line_up_to_the_peak_and_a_root_after_it(step, d_model, warmup_steps):
    peak = 1 / math.sqrt(d_model * warmup_steps)
    if step <= warmup_steps:
        expected = peak * step / warmup_steps
    else:
        expected = peak * math.sqrt(warmup_steps / step)
    assert math.isclose(noam_rate(step, d_model, warmup_steps), expected, rel_tol=1e-9)
    assert math.isclose(noam_rate(step, d_model, warmup_steps, 3.0), 3 * expected, rel_tol=1e-9)


@given(st.integers(1, 200), st.floats(0, 1))
def test_cooldown_is_one_and_then_a_line_to_zero(steps, fraction):
    factors = [cooldown(step, steps, fraction) for step in range(1, steps + 1)]
    for step, factor in enumerate(factors, start=1):
        left = steps - step + 1  # this update and those after it
        expected = 1.0 if left >= fraction * steps else left / (fraction * steps)
        assert math.isclose(factor, expected)
    assert all(0 < factor <= 1 for factor in factors)
    assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: noam_rate(0, 8, 10), ValueError, "step must be at least 1, but is 0"),
        (lambda: noam_rate(1, 8, 0), ValueError, "warmup_steps must be at least 1, but is 0"),
        (lambda: noam_rate(1.0, 8, 10), TypeError, "step must be an int, not float"),
        (lambda: cooldown(0, 9, 0.5), ValueError, "step must be at least 1, but is 0"),
        (lambda: cooldown(10, 9, 0.5), ValueError, "step must be at most steps, which is 9, but is"),
        (lambda: cooldown(1, 9, 1.5), ValueError, r"fraction must lie in \[0, 1\], but is 1.5"),
        (lambda: best_device("float32"), TypeError, "dtype must be a dtype, not str"),
        (lambda: adamw([], math.nan), ValueError, "weight_decay must be finite and at least 0, but is nan"),
        (lambda: run(model=None), TypeError, "model must be a Module, not NoneType"),
        (lambda: run(model=nn.ReLU()), ValueError, "model must have a parameter that can be trained, but"),
        (lambda: run(steps=0), ValueError, "steps must be at least 1, but is 0"),
        (lambda: run(steps=2.5), TypeError, "steps must be an int, not float"),
        (lambda: run(evaluate_every=0), ValueError, "evaluate_every must be at least 1, but is 0"),
        (lambda: run(seed=-1), ValueError, "seed must be at least 0, but is -1"),
        (lambda: run(clip_norm=0), ValueError, "clip_norm must be greater than 0, but is 0"),
        (lambda: run(clip_norm=math.nan), ValueError, "clip_norm must be greater than 0, but is nan"),
        (lambda: run(clip_norm="1"), TypeError, "clip_norm must be a number, not str"),
        (lambda: run(evaluate=lambda model: {"step": 9.0}), ValueError, "must not name a metric 'step'"),
        (lambda: run(schedule=lambda step: -1.0), ValueError, r"schedule\(1\) must be finite and at least 0"),
        (lambda: run(schedule=lambda step: None), TypeError, r"schedule\(1\) must be a number, not NoneType"),
        (lambda: run(batches=lambda epoch: []), ValueError, r"batches\(0\) gave no batch"),
        (
            lambda: run(batches=lambda epoch: make_batches(0)[epoch * 9 :]),
            ValueError,
            r"batches\(1\) gave no batch",
        ),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("cuda", "mps", "dtype", "best"),
    [
        (True, False, torch.float32, "cuda"),
        (True, True, torch.float64, "cuda"),
        (False, True, torch.float32, "mps"),
        (False, True, torch.bfloat16, "mps"),
        (False, True, torch.float64, "cpu"),  # Apple's GPUs have none
        (False, False, torch.float32, "cpu"),
    ],
)
def test_the_best_device_is_a_gpu_that_has_the_dtype(monkeypatch, cuda, mps, dtype, best):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert best_device(dtype) == torch.device(best)
    assert best_device() == torch.device("mps" if mps and not cuda else "cuda" if cuda else "cpu")


# ---------- Looking at a model, moving a batch


@pytest.mark.parametrize("mode", [True, False])
def test_evaluating_leaves_no_trace_even_of_a_failure(mode):
    model = make_model().train(mode)
    with pytest.raises(Cut), evaluating(model):
        assert not model.training and not torch.is_grad_enabled()
        raise Cut
    assert model.training == mode and torch.is_grad_enabled()
    assert all(module.training == mode for module in model.modules())


def test_evaluating_leaves_frozen_parts_frozen():
    model = make_model(dropout=0.5).train()
    frozen = model.encoder.layers[0].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training and model.decoder.training
    assert not any(module.training for module in frozen.modules())


def test_a_batch_moves_with_all_that_can_move():
    x, meta = torch.zeros(2), torch.device("meta")
    assert to_device(x, meta).is_meta
    named = to_device({"src": x, "sides": [x, x]}, meta)
    assert named["src"].is_meta and len(named["sides"]) == 2 and named["sides"][1].is_meta
    moved = to_device((x, x), meta)
    assert isinstance(moved, tuple) and len(moved) == 2 and all(part.is_meta for part in moved)
    pair = to_device(Pair(x, ("a", x)), meta)
    assert pair.source.is_meta and pair.target[0] == "a" and pair.target[1].is_meta


def test_evaluate_loss_counts_every_token_once():
    model = make_model(dropout=0.5).double()
    batches = make_batches(3)
    metrics = evaluate_loss(model, batches)
    assert model.training and evaluate_loss(model, lambda epoch: batches[epoch:]) == metrics

    model.eval()
    losses, hits = [], []
    for src, tgt in batches:  # sentence by sentence and token by token
        for b in range(len(src)):
            length = int(tgt[b].count_nonzero())
            logits = model(src[b : b + 1, : int(src[b].count_nonzero())], tgt[b : b + 1, : length - 1])
            for t in range(1, length):
                losses.append(-logits[0, t - 1].log_softmax(-1)[tgt[b, t]].item())
                hits.append(logits[0, t - 1].argmax() == tgt[b, t])
    assert math.isclose(metrics["loss"], sum(losses) / len(losses), rel_tol=1e-9)
    assert math.isclose(metrics["accuracy"], sum(hits) / len(hits), rel_tol=1e-6)


def used_up() -> Iterator:
    batches = iter(make_batches(0))
    assert len([*batches]) == 5
    return batches


@pytest.mark.parametrize(
    "batches",
    [[], used_up(), [(torch.ones(2, 3).long(), torch.tensor([[2, 0, 0]] * 2))]],
    ids=["no batch", "used up", "padding alone"],
)
def test_no_target_token_is_no_perfect_score(batches):
    model = make_model().train()
    with refuses(ValueError, "batches must hold at least one target token, but hold none"):
        evaluate_loss(model, batches)
    assert model.training


# ---------- The plain loop


def run(**changes) -> list[dict[str, float]]:
    given = dict(model=make_model(), loss=teacher_forced_loss, batches=make_batches, schedule=rate, steps=12)
    return fit(**given | changes)


@pytest.mark.parametrize("clip_norm", [math.inf, 0.5])
def test_fit_equals_a_loop_written_out(clip_norm):
    trained = make_model(dropout=0.0).double()
    history = run(model=trained, clip_norm=clip_norm)

    model = make_model(dropout=0.0).double()
    parameters = list(model.parameters())
    averages = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    stream = [(epoch, batch) for epoch in range(3) for batch in make_batches(epoch)]
    for step, (entry, (epoch, batch)) in enumerate(zip(history, stream), start=1):
        loss, count = teacher_forced_loss(model, batch)
        gradients = torch.autograd.grad(loss / count, parameters)
        norm = adam_by_hand(parameters, gradients, averages, step, clip_norm)
        assert (entry["step"], entry["epoch"], entry["tokens"]) == (step, epoch, count)
        assert math.isclose(entry["loss"], (loss / count).item(), rel_tol=1e-6)
        assert math.isclose(entry["norm"], norm, rel_tol=1e-6)
        assert math.isclose(entry["rate"], rate(step))
    assert len(history) == 12
    # torch adds 1e-6 to the norm before it divides, which is all the difference there is
    for p, q in zip(parameters, trained.parameters()):
        assert torch.allclose(p, q, rtol=0, atol=1e-6)


@pytest.mark.parametrize("make", [list, lambda pair: dict(zip(("src", "tgt"), pair))], ids=["list", "dict"])
def test_a_batch_may_be_a_dictionary_and_a_count_a_number(make):
    """As other people's data loaders and losses have them, in the loop and in the trainer."""

    def loss(model, batch):
        pair = tuple(batch.values()) if isinstance(batch, dict) else batch
        total, count = teacher_forced_loss(model, pair)
        return total, int(count)

    batches = lambda epoch: map(make, make_batches(epoch))
    model, trained, usual = (make_model() for _ in range(3))
    config = TrainingConfig(steps=3)
    fit(model, loss, batches, rate, steps=3)
    fit(usual, teacher_forced_loss, make_batches, rate, steps=3)
    assert Trainer(trained, loss, batches, rate, config).fit().step == 3
    assert all(map(torch.equal, model.parameters(), usual.parameters()))


def in_turn(pairs: list) -> DataLoader:
    return DataLoader(pairs, batch_size=None, shuffle=False)


@pytest.mark.parametrize("kind", [list, tuple, in_turn])
def test_batches_may_be_a_list_or_a_data_loader(kind):
    """Every epoch gets all of them: twelve updates take five batches twice, and two of them once more."""
    usual, other, batches = make_model(dropout=0.0), make_model(dropout=0.0), make_batches(0)
    run(model=usual, batches=lambda epoch: batches)
    history = run(model=other, batches=kind(batches))
    assert [entry["epoch"] for entry in history] == [0] * 5 + [1] * 5 + [2] * 2
    assert all(map(torch.equal, usual.parameters(), other.parameters()))


@pytest.mark.parametrize("batches", [iter([]), (batch for batch in ()), 3, None])
def test_batches_that_last_one_epoch_are_refused(batches):
    with pytest.raises(TypeError, match=f"^batches must be a Callable .*, not {type(batches).__name__}$"):
        run(batches=batches)
    assert as_epochs(make_batches) is make_batches


@pytest.mark.parametrize(
    "result, kind",
    [
        (torch.tensor(2.0), "Tensor"),
        (torch.tensor([2.0, 3.0]), "Tensor"),
        (2.0, "float"),
        (None, "NoneType"),
        ((torch.tensor(2.0), torch.zeros(3, 4)), "tuple"),  # a loss and its logits
        ((2.0, 3), "tuple"),
    ],
)
def test_a_loss_that_is_no_sum_with_its_count_is_refused(result, kind):
    model, told = make_model(), "two scalars, a sum and the number of its target tokens, and not a mean alone"
    before = model.output.weight.clone()
    with refuses(TypeError, f"loss must return {told}, but returned a {kind}"):
        run(model=model, loss=lambda model, batch: result)
    assert model.output.weight.equal(before)
    total = torch.tensor(2.0)
    assert check_loss((total, 3)) == (total, 3) == check_loss([total, torch.tensor(3)])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"loss": None}, "loss must be a Callable, not NoneType (None)"),
        ({"schedule": 1e-3}, "schedule must be a Callable, not float (0.001)"),
        ({"evaluate": {}}, "evaluate must be a Callable or NoneType, not dict ({})"),
        ({"evaluate": lambda model: 0.5}, "evaluate(model) must be a Mapping, not float (0.5)"),
        ({"batches": lambda epoch: None}, "batches(0) must be an Iterable, not NoneType (None)"),
        ({"batches": [("a", "b")]}, "batch must be a pair of tensors, source and target, not (str, str)"),
    ],
)
def test_what_fit_and_trainer_cannot_use_is_named(changes, message):
    with refuses(TypeError, message):
        run(**changes)
    given = dict(model=make_model(), loss=teacher_forced_loss, batches=make_batches, schedule=rate)
    if message.startswith("batches(0)"):
        message = "'NoneType' object is not iterable"
    with refuses(TypeError, message):
        Trainer(**given | changes, config=TrainingConfig(2)).fit()


def test_fit_and_trainer_make_the_same_updates():
    model, other = make_model(), make_model()
    history = run(model=accelerate(model), seed=3)
    config = TrainingConfig(12, log_every=1, seed=3)
    trainer = Trainer(other, teacher_forced_loss, make_batches, rate, config).fit()
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert [entry["norm"] for entry in history] == [entry["norm"] for entry in trainer.history]


def test_evaluation_is_where_it_should_be_and_leaves_no_trace():
    modes = []

    def evaluate(model):
        modes.append(model.training or torch.is_grad_enabled())
        return {"score": 1.0}

    model = make_model().eval()
    history = run(model=model, steps=11, evaluate=evaluate, evaluate_every=4)
    assert [entry["step"] for entry in history if "score" in entry] == [4, 8, 11]
    assert modes == [False] * 3 and model.training


def test_frozen_parameters_stay():
    model = make_model()
    model.encoder.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    run(model=model)
    changed = {name for name, p in model.named_parameters() if not p.equal(before[name])}
    assert changed and not any(name.startswith("encoder.") for name in changed)


@pytest.mark.parametrize(
    "spoil, told",
    [
        (lambda total, weight: total * math.nan, "'loss': nan"),
        (lambda total, weight: total - math.inf, "'loss': -inf"),
        (lambda total, weight: total + (weight - weight.detach()).abs().sqrt().sum(), "'norm': nan"),
    ],
    ids=["a loss that is none", "an infinite loss", "a gradient that is none"],
)
def test_numbers_that_are_none_stop_the_run_before_the_step(spoil, told):
    seen = []

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        seen.append(model.output.weight.detach().clone())
        return (spoil(total, model.output.weight) if len(seen) == 7 else total), count

    model = make_model()
    with pytest.raises(FloatingPointError, match=f"'step': 7, 'epoch': 1, .*{told}"):
        run(model=model, loss=loss)
    assert model.output.weight.equal(seen[-1]) and not seen[-1].equal(seen[-2])


# ---------- Records


def test_records_are_found_and_missing_ones_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(transformer.training.resources, "files", lambda name: tmp_path)
    (tmp_path / "records").mkdir()
    record = {"score": 0.5, "words": ["pão"]}
    (tmp_path / "records" / "toy.json").write_text(json.dumps(record), encoding="utf8")
    assert load_record("toy") == record
    assert record_path("toy.json") == tmp_path / "records" / "toy.json"
    with pytest.raises(FileNotFoundError, match=r"no recorded file 'joy.json', but .*'toy.json'"):
        load_record("joy")


def test_no_name_of_a_record_leads_out_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "records").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    for name in ("../secret", str(tmp_path / "secret")):
        with pytest.raises(FileNotFoundError, match="there is no recorded file"):
            load_record(name)


def test_matrices_decay_and_vectors_do_not():
    matrix, vector = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))
    optimizer = adamw([matrix, vector], weight_decay=0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    matrix.grad, vector.grad = torch.zeros_like(matrix), torch.zeros_like(vector)
    optimizer.step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 3), 1 - 0.1 * 0.5))
    assert torch.equal(vector.detach(), torch.ones(3))
