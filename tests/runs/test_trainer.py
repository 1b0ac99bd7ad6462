"""The trainer: against a loop written out, resumed bit by bit, stopped where it should be."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from helpers import adam_by_hand, contents
from helpers import run_batches as make_batches
from helpers import run_model as make_model
from helpers import run_rate as rate
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import transformer.runs.loop
from transformer import Trainer, TrainingConfig, accelerate, evaluate_loss, fit, teacher_forced_loss
from transformer.commands.recipes import Loss
from transformer.files import CheckpointError
from transformer.runs.folder import draw_curves, read_log
from transformer.runs.loop import Updater, autocast, best_precision, load_checkpoint, save_checkpoint
from transformer.runs.stream import BatchStream


def make_trainer(directory=None, model=None, loss=teacher_forced_loss, **changes):
    evaluate = changes.pop("evaluate", partial(evaluate_loss, batches=make_batches(99)))
    batches = changes.pop("batches", make_batches)
    schedule = changes.pop("schedule", rate)
    progress = changes.pop("progress", False)
    settings = dict(steps=12, log_every=2, evaluate_every=4, keep=2) | changes
    config = TrainingConfig(**settings)
    model = make_model() if model is None else model
    return Trainer(model, loss, batches, schedule, config, directory, evaluate, progress)


def frozen(model):
    """With a table that isn't trained."""
    model.src_embedding.requires_grad_(False)
    return model


class Cut(BaseException):
    """The power is gone: nothing is done about it."""


def cut_after(calls: int):
    """The loss, until it has been called `calls` times."""
    left = [calls]

    def loss(model, batch):
        left[0] -= 1
        if left[0] < 0:
            raise Cut
        return teacher_forced_loss(model, batch)

    return loss


def same_state(one: Trainer, two: Trainer) -> bool:
    """Whether parameters, optimizer, scaler, place and history are equal, bit for bit."""
    a, b = one.model.state_dict(), two.model.state_dict()
    averages, others = (t.updater.optimizer.state_dict()["state"] for t in (one, two))
    parts = ("stream", "scores")
    places = [[t.step, *(getattr(t, part).state_dict() for part in parts)] for t in (one, two)]
    place = [places[i] + [t.updater.scaler.state_dict()] for i, t in enumerate((one, two))]
    kept = [t.updater.average for t in (one, two)]
    means = [average.state_dict() if average else {"n_updates": 0, "weights": []} for average in kept]
    histories = [[entry | {"seconds": 0} for entry in t.history] for t in (one, two)]
    return (
        all(torch.equal(a[name], b[name]) for name in a)
        and averages.keys() == others.keys()
        and all(torch.equal(averages[p][k], others[p][k]) for p in averages for k in averages[p])
        and place[0] == place[1]
        and means[0]["n_updates"] == means[1]["n_updates"]
        and all(map(torch.equal, means[0]["weights"], means[1]["weights"]))
        and histories[0] == histories[1]
    )


# Bad input


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: TrainingConfig(1, average=1.0), ValueError, r"average must lie in \[0, 1\), but is 1.0"),
        (lambda: TrainingConfig(1, clip_norm=math.nan), ValueError, "clip_norm must be greater"),
        (lambda: TrainingConfig(1, precision="half"), ValueError, r"precision must be one of \['float32', "),
        (lambda: TrainingConfig(1, weight_decay=-0.1), ValueError, "weight_decay must be finite"),
        (lambda: make_trainer().fit(max_minutes=-1.0), ValueError, "max_minutes must be finite and at least"),
        (lambda: draw_curves([], "a.doc"), ValueError, r"ending must be one of \[.*'png'.*\], not 'doc'"),
    ],
)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_half_precision_has_no_attention_that_plans_for_every_shape():
    with autocast(torch.device("cpu"), "bfloat16"):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_a_run_goes_on_in_another_precision():
    """As one begun on another GPU does, where precision is "auto": the scale begins anew."""
    one, other = (Updater(make_model(), teacher_forced_loss, rate, 1.0, f"float{n}") for n in (32, 16))
    other.load_state_dict(one.state_dict())
    assert other.scaler.is_enabled()


# The place in the data


def test_a_first_batch_of_arrays_has_a_checksum():
    batches = np.zeros(3), np.ones(3), np.arange(3), np.arange(3)[::-1]
    assert len({BatchStream([[batch]], 1, 0).fingerprint for batch in batches}) == 4


def test_a_frozen_run_goes_on_compiled(tmp_path):
    make_trainer(tmp_path, frozen(make_model()), steps=4).fit()
    make_trainer(tmp_path, torch.compile(frozen(make_model()), backend="eager"), steps=6).fit()


LINES = [torch.randint(4, 9, (6,), generator=torch.Generator().manual_seed(n)) for n in range(10)]


def loader(**options):
    """A stranger's: sentences of one length, shuffled by torch's own generator."""
    pairs = [(ids, nn.functional.pad(ids, (1, 0), value=2)) for ids in LINES]
    return DataLoader(pairs, batch_size=3, shuffle=True, **options)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [2, 7])
def test_a_loader_that_shuffles_gives_the_same_batches_when_the_run_is_resumed(tmp_path, updates):
    """And other ones in every epoch; whatever is drawn for them, dropout does not notice."""
    seen = []

    def loss(model, batch):
        seen.append(batch[0])
        return teacher_forced_loss(model, batch)

    whole = make_trainer(batches=loader(), loss=loss).fit()
    first, second, third = (torch.cat(seen[epoch * 4 : epoch * 4 + 4]) for epoch in range(3))
    assert not first.equal(second) and not second.equal(third)
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(torch.stack(LINES).tolist())
    with pytest.raises(Cut):
        make_trainer(tmp_path, batches=loader(), loss=cut_after(updates), evaluate_every=1).fit()
    assert same_state(
        make_trainer(batches=loader(), evaluate_every=1).fit(),
        make_trainer(tmp_path, make_model(seed=3), batches=loader(), evaluate_every=1).fit(),
    )
    assert not same_state(whole, make_trainer(batches=loader(), seed=1).fit())


STATEFUL = "batches must not have a generator of its own, whose state no checkpoint knows"
SAMPLER = RandomSampler(LINES, generator=torch.Generator())


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"batches": iter([])}, TypeError, "batches must be a Callable .*, or an iterable for every epoch"),
        ({"batches": loader(generator=torch.Generator())}, ValueError, STATEFUL),
        ({"batches": DataLoader(LINES, None, sampler=SAMPLER)}, ValueError, STATEFUL),
        ({"batches": DataLoader(LINES, batch_sampler=BatchSampler(SAMPLER, 3, False))}, ValueError, STATEFUL),
        ({"evaluate": lambda model: {"loss": 1.0, "step": 9}}, ValueError, "must not name a metric 'step'"),
        ({"evaluate": lambda model: {"loss": 1.0, "rate": 9}}, ValueError, "must not name a metric 'rate'"),
        ({"evaluate": lambda model: {"loss": 1.0, "crc": 9}}, ValueError, "must not name a metric 'crc'"),
        ({"evaluate": lambda model: {"loss": 1.0, 2: 9}}, TypeError, "a metric's name must be a str"),
        ({"evaluate": lambda model: {"loss": "a"}}, TypeError, "the metric loss must be a number, not 'a'"),
        ({"loss": lambda model, batch: model(*batch).mean()}, TypeError, "two scalars, .* not a mean alone"),
    ],
    ids=["iterator", "generator", "no batches", "sampler", "step", "rate", "crc", "name", "number", "mean"],
)
def test_batches_losses_and_metrics_that_no_run_can_be_made_of_are_refused(tmp_path, changes, error, said):
    with pytest.raises(error, match=said):
        make_trainer(tmp_path, **changes).fit()


# What is shown of a log


HISTORY = [
    {"step": 5, "epoch": 0, "loss": 4.5, "rate": 1e-3, "norm": 2.0, "tokens": 9000, "seconds": 2.0},
    {"step": 5, "loss": 4.25, "bleu": 1.5},
    {"step": 9, "epoch": 1, "loss": 3.5, "rate": 2e-3, "norm": 1.0, "tokens": 7000, "seconds": 0.0},
]


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_curves_are_those_of_the_log(tmp_path, ending):
    figure = draw_curves(HISTORY, tmp_path / f"curves.{ending}")
    drawn = {
        (ax.get_ylabel(), line.get_label()): list(zip(*line.get_data()))
        for ax in figure.axes
        for line in ax.get_lines()
    }
    assert drawn == {
        ("loss", "training"): [(5, 4.5), (9, 3.5)],
        ("loss", "unseen"): [(5, 4.25)],
        ("bleu", "unseen"): [(5, 1.5)],
        ("rate", "learning rate"): [(5, 1e-3), (9, 2e-3)],
    }
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[ending]
    assert (tmp_path / f"curves.{ending}").read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 1


# The trainer makes the updates that it says


@pytest.mark.slow
@pytest.mark.parametrize("accumulate, clip_norm", [(1, math.inf), (1, 0.5), (3, 0.5)])
def test_trainer_equals_a_loop_written_out(accumulate, clip_norm):
    trainer = make_trainer(
        model=make_model(dropout=0.0).double(),
        accumulate=accumulate,
        clip_norm=clip_norm,
        log_every=1,
        evaluate=None,
    ).fit()

    model = make_model(dropout=0.0).double()
    parameters = list(model.parameters())
    averages = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    stream = [batch for epoch in range(20) for batch in make_batches(epoch)]
    for step, entry in enumerate(trainer.history, start=1):
        group = stream[(step - 1) * accumulate : step * accumulate]
        losses, counts = zip(*(teacher_forced_loss(model, batch) for batch in group))
        gradients = torch.autograd.grad(sum(losses) / sum(counts), parameters)
        norm = adam_by_hand(parameters, gradients, averages, step, clip_norm)
        assert entry["step"] == step and entry["tokens"] == sum(counts)
        assert math.isclose(entry["loss"], sum(losses).item() / sum(counts).item(), rel_tol=1e-6)
        assert math.isclose(entry["norm"], norm, rel_tol=1e-6)
        assert math.isclose(entry["rate"], rate(step))
    assert trainer.step == len(trainer.history) == 12
    # torch adds 1e-6 to the norm before it divides, which is all the difference there is
    for p, q in zip(parameters, trainer.model.parameters()):
        assert torch.allclose(p, q, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_trainer_makes_the_updates_of_fit_to_the_bit():
    trainer = make_trainer(evaluate=None, log_every=1).fit()
    model = make_model()
    history = fit(accelerate(model), teacher_forced_loss, make_batches, rate, steps=12)
    assert all(map(torch.equal, model.parameters(), trainer.model.parameters()))
    assert [entry["norm"] for entry in history] == [entry["norm"] for entry in trainer.history]


def test_the_optimizers_settings_are_the_configurations_and_not_the_files(tmp_path):
    make_trainer(tmp_path, steps=4, weight_decay=0.5).fit()
    path = tmp_path / "checkpoint-00000004.pt"
    state = load_checkpoint(path)
    for group in state["updater"]["optimizer"]["param_groups"]:
        group |= {"weight_decay": 7.0, "betas": (0.5, 0.5), "maximize": True}
    save_checkpoint(path, {name: value for name, value in state.items() if name != "format"})
    trainer = make_trainer(tmp_path, steps=4, weight_decay=0.5).fit()
    groups = trainer.updater.optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert all(group["betas"] == (0.9, 0.98) and not group["maximize"] for group in groups)
    assert trainer.updater.optimizer.state_dict()["state"][0]["step"] == 4


@pytest.mark.parametrize(
    "capability, precision",
    [((6, 1), "float32"), ((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")],
)
def test_a_gpu_gets_the_precision_that_its_generation_has(monkeypatch, capability, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert best_precision(torch.device("cuda", 0)) == precision
    assert best_precision(torch.device("mps")) == best_precision(torch.device("meta")) == "float32"


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_auto_is_the_precision_of_the_device(monkeypatch, precision):
    monkeypatch.setattr(transformer.runs.loop, "best_precision", lambda device: precision)
    updater = make_trainer(precision="auto").updater
    assert updater.precision == precision and updater.scaler.is_enabled() == (precision == "float16")


def test_trainer_stops_for_log_and_evaluation_where_it_should():
    trainer = make_trainer(steps=11, log_every=3, evaluate_every=4).fit()
    assert [e["step"] for e in trainer.history if "rate" in e] == [3, 4, 6, 8, 9, 11]
    assert [e["step"] for e in trainer.history if "accuracy" in e] == [4, 8, 11]
    assert trainer.model.training
    logged = sum(entry.get("tokens", 0) for entry in trainer.history)
    stream = [batch for epoch in range(3) for batch in make_batches(epoch)][:11]
    assert logged == sum(int((tgt[:, 1:] != 0).sum()) for _, tgt in stream)


def test_float16_clips_and_logs_the_gradient_without_its_scale():
    norms = []
    for precision in ("float32", "float16"):
        settings = dict(steps=1, clip_norm=0.01, evaluate=None, precision=precision)
        trainer = make_trainer(model=make_model(dropout=0.0), **settings)
        enabled = trainer.updater.scaler.is_enabled()
        trainer.updater.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=enabled)
        trainer.fit()
        left = torch.stack([p.grad.norm() for p in trainer.updater.parameters]).norm().item()
        assert math.isclose(left, 0.01, rel_tol=0.01)
        norms.append(trainer.history[0]["norm"])
    assert math.isclose(*norms, rel_tol=0.05)


def test_float16_skips_an_update_that_overflows_and_remembers_the_scale(tmp_path):
    factors = iter([1e36])  # times the scale this is infinite, and so is the gradient

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        return total * next(factors, 1.0), count

    trainer = make_trainer(tmp_path, loss=loss, precision="float16", steps=1, evaluate=None).fit()
    assert all(map(torch.equal, trainer.model.parameters(), make_model().parameters()))
    again = make_trainer(tmp_path, precision="float16", steps=1, evaluate=None).fit()
    assert again.updater.scaler.get_scale() == 2**16 / 2
    assert "norm" not in trainer.history[0]
    factors = iter(lambda: 1e36, None)  # for ever
    with pytest.raises(FloatingPointError, match="norm (inf|nan) at step"):
        make_trainer(loss=loss, precision="float16", steps=50, log_every=10, evaluate=None).fit()


# The trainer resumes


@pytest.mark.slow
def test_a_finished_run_is_left_as_it_is_and_can_be_prolonged(tmp_path):
    finished = make_trainer(tmp_path, steps=8).fit()
    assert same_state(finished, make_trainer(tmp_path, steps=8, loss=cut_after(0)).fit())
    assert same_state(make_trainer(steps=12).fit(), make_trainer(tmp_path, steps=12).fit())


@pytest.mark.parametrize("damage", [lambda content: content[:-500], bytes.swapcase])
def test_where_every_checkpoint_is_damaged_nothing_begins_and_nothing_changes(tmp_path, damage):
    make_trainer(tmp_path).fit()
    for path in tmp_path.glob("checkpoint-*.pt"):
        path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path)
    said = "holds a run, but no checkpoint of it is whole: .*00000012.pt is not .*00000008.pt is not a whole"
    with pytest.raises(CheckpointError, match=said) as refusal:
        make_trainer(tmp_path).fit()
    assert str(tmp_path) in str(refusal.value) and "in another folder" in str(refusal.value)
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize("left", ["log.jsonl", "best.pt"])
def test_work_whose_checkpoints_are_gone_is_not_written_over(tmp_path, left):
    make_trainer(tmp_path).fit()
    for path in tmp_path.iterdir():
        if path.name not in (left, "run.lock"):
            path.unlink()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="holds a run, but no checkpoint of it is whole: none is left"):
        make_trainer(tmp_path).fit()
    assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes, said",
    [
        ({"clip_norm": 0.5, "seed": 3}, "clip_norm = 1.0 and not 0.5, seed = 0 and not 3"),
        ({"average": 0.9}, "average = 0.0 and not 0.9"),
        ({"model": make_model(dropout=0.3)}, "model.dropout = 0.2 and not 0.3"),
        ({"schedule": lambda step: 2 * rate(step), "steps": 4}, "rate of update 1 = "),
        (
            {"loss": partial(teacher_forced_loss, smoothing=0.3)},
            "options of the loss = {} and not {'smoothing': 0.3}",
        ),
        ({"loss": Loss(smoothing=0.3)}, "options of the loss = {} and not {'smoothing': 0.3, 'r_drop': 0.0}"),
        ({"batches": lambda epoch: make_batches(epoch + 1)}, "first batch = '?[0-9a-f]{16}"),
        ({"batches": lambda epoch: [batch[::-1] for batch in make_batches(epoch)]}, "first batch = "),
        ({"model": frozen(make_model(seed=7))}, r"frozen = None and not \['src_embedding.weight'\]"),
    ],
    ids=["config", "average", "model", "schedule", "partial", "loss", "data", "sides", "frozen"],
)
def test_a_run_does_not_go_on_with_other_settings(tmp_path, changes, said):
    make_trainer(tmp_path, steps=4).fit()
    before = contents(tmp_path)
    changes = {"model": make_model(seed=7)} | changes
    model = changes["model"]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(CheckpointError, match=f"00000004.pt belongs to a run with {said}"):
        make_trainer(tmp_path, **changes).fit()
    assert contents(tmp_path) == before
    assert all(map(torch.equal, weights, model.parameters()))
    with pytest.raises(CheckpointError, match="00000004.pt has made 4 updates, more than steps = 3"):
        make_trainer(tmp_path, steps=3).fit()
    longer = dict(steps=5, keep=7, schedule=lambda step: rate(step) / 2)  # these may change
    assert make_trainer(tmp_path, **longer).fit().step == 5


def test_a_metric_that_is_no_number_stops_the_run(tmp_path):
    """Instead of ending it for want of patience, with nothing kept as the best."""
    with pytest.raises(FloatingPointError, match="the metric -loss is nan at step 4$"):
        make_trainer(tmp_path, evaluate=lambda model: {"loss": math.nan}, patience=1).fit()
    with pytest.raises(ValueError, match="patience = 1 needs evaluate, but evaluate is None"):
        make_trainer(evaluate=None, patience=1)
    endless = make_trainer(evaluate=lambda model: {"loss": 1.0, "perplexity": math.inf}).fit()
    assert endless.step == 12  # what is not monitored may be infinite


# The end of a run, and slices of it


@pytest.mark.slow
@pytest.mark.parametrize("directory", [True, False])
def test_slices_make_the_run_that_is_made_in_one_piece(tmp_path, directory):
    """Whatever the caller draws between them; a call whose time is over makes one update."""
    folder = tmp_path if directory else None
    settings = dict(accumulate=3, log_every=3, evaluate_every=5)
    trainer, ends = make_trainer(folder, **settings), []
    while not trainer.finished and len(ends) < 12:
        if directory:
            trainer = make_trainer(folder, make_model(seed=7 if ends else 0), **settings)
        torch.rand(3)
        trainer.fit(max_minutes=0)
        ends.append(trainer.step)
    assert ends == list(range(1, 13))
    assert same_state(make_trainer(**settings).fit(), trainer)
    if directory:
        assert read_log(tmp_path) == trainer.history
        assert trainer.folder.checkpoints()[-1].name == "checkpoint-00000012.pt"


@pytest.mark.slow
def test_patience_ends_a_run_and_outlives_an_interruption(tmp_path):
    scores = {0: 9.0, 1: 1.0, 2: 3.0, 3: 2.0, 4: 3.0, 5: 4.0, 6: 0.0, 7: 4.0, 8: 3.0}
    seen = []

    def run():
        def evaluate(model):
            seen.append(trainer.step)
            return {"score": scores[trainer.step], "kind": 1.0}

        settings = dict(steps=12, patience=3, evaluate_every=1, monitor="score")
        trainer = make_trainer(tmp_path, evaluate=evaluate, **settings)
        return trainer.fit(max_minutes=0)

    calls = 0
    while not (trainer := run()).finished:
        calls += 1
        assert calls < 8
    assert seen == list(scores) and trainer.step == 8
    assert (trainer.scores.best_step, trainer.scores.evaluations_since_best) == (5, 3)
    assert trainer.folder.checkpoints()[-1].name == "checkpoint-00000008.pt"
    assert run().step == 8 and seen == list(scores)  # over is over


# The best weights


@pytest.mark.parametrize("monitor, best_step", [("score", 8), ("-score", 4)])
def test_best_weights_are_those_of_the_best_score(tmp_path, monitor, best_step):
    scores = iter([9.0, 1.0, 3.0, 2.0])  # the first is that of a trial
    weights = []

    def evaluate(model):
        assert not model.training and not torch.is_grad_enabled()
        weights.append({name: t.clone() for name, t in model.state_dict().items()})
        return {"score": next(scores)}

    trainer = make_trainer(tmp_path, evaluate=evaluate, monitor=monitor).fit()
    trainer.load_best()
    best = weights[best_step // 4]
    assert all(torch.equal(best[name], t) for name, t in trainer.model.state_dict().items())


@pytest.mark.slow
def test_the_average_is_of_every_update_and_is_what_is_evaluated_and_kept(tmp_path):
    seen, raw = [], []

    def loss(model, batch):
        raw.append([p.detach().clone() for p in model.parameters()])
        return teacher_forced_loss(model, batch)

    def evaluate(model):
        seen.append([p.detach().clone() for p in model.parameters()])
        return {"score": float(len(seen) == 3)}

    settings = dict(average=0.6, loss=loss, evaluate=evaluate, monitor="score")
    trainer = make_trainer(tmp_path, **settings).fit()
    raw.append([p.detach().clone() for p in trainer.model.parameters()])
    mean, means = raw[0], []
    for n, weights in enumerate(raw[1:], start=1):
        d = min(0.6, (1 + n) / (10 + n))
        mean = [d * m + (1 - d) * w for m, w in zip(mean, weights)]
        means.append(mean)
    for weights, expected in zip(seen[1:], means[3::4], strict=True):
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(weights, expected))
    trainer.load_best()
    assert all(map(torch.equal, trainer.model.parameters(), seen[2]))

    # Training itself is what it is without an average.
    plain = make_trainer(evaluate=None).fit()
    assert all(map(torch.equal, plain.model.parameters(), raw[-1]))
    assert plain.updater.average is None


# The trainer stops


def no_slope(weight):
    """0, with a derivative that is not a number."""
    return (weight - weight.detach()).abs().sqrt()


@pytest.mark.slow
@pytest.mark.parametrize(
    "first_bad, extra, message",
    [
        (
            8,
            lambda weight: math.nan,
            "the loss is nan .* at step 8, epoch 3, batch 1, learning rate 8.94e-03",
        ),
        (10, no_slope, "norm nan at step 10, "),  # every loss is finite until the very end
    ],
)
def test_numbers_that_are_none_stop_the_run_before_a_checkpoint(tmp_path, first_bad, extra, message):
    trainer: Trainer

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        bad = trainer.step + 1 >= first_bad
        return total + extra(model.output.weight[4, 0]) if bad else total, count

    settings = dict(steps=10, log_every=10, evaluate_every=5, accumulate=2)
    trainer = make_trainer(tmp_path, loss=loss, **settings)
    with pytest.raises(FloatingPointError, match=message):
        trainer.fit()
    names = ["checkpoint-00000000.pt", "checkpoint-00000005.pt"]
    assert [path.name for path in trainer.folder.checkpoints()] == names
    state = load_checkpoint(trainer.folder.checkpoints()[1])["model"]
    assert all(t.isfinite().all() for t in state.values())
    assert all(math.isfinite(value) for entry in read_log(tmp_path) for value in entry.values())


def test_an_epoch_without_a_batch_and_a_metric_that_is_missing_stop_the_run():
    with pytest.raises(ValueError, match=r"batches\(0\) gave no batch"):
        make_trainer(batches=lambda epoch: []).fit()
    with pytest.raises(ValueError, match=r"batches\(1\) gave no batch"):
        make_trainer(batches=lambda epoch: make_batches(0)[epoch * 9 :]).fit()
    trainer = make_trainer(monitor="bleu")
    with pytest.raises(ValueError, match="monitor is 'bleu', but evaluate returned"):
        trainer.fit()


def test_what_the_log_has_is_printed_only_when_asked_for(capfd):
    history = make_trainer(progress=True).fit().history
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"step {entry['step']} of 12" for entry in history]
    assert f"12: loss {history[-2]['loss']:.3f}, " in lines[-2]
    assert lines[-2].endswith(" tokens/s, 0 minutes left")
    assert f"12: unseen loss {history[-1]['loss']:.4g}, " in lines[-1]
    make_trainer().fit()
    assert capfd.readouterr().err == ""
