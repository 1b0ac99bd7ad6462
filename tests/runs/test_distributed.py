"""Several processes make the run that one process makes, and nobody waits for ever.

This file is also the program that torchrun starts: `torchrun --nproc-per-node=2 --max-restarts=1
tests/runs/test_distributed.py FOLDER` plays all scenes, and every process leaves reports in the folder.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    best_device,
    evaluate_loss,
    teacher_forced_loss,
)
from transformer.__main__ import main
from transformer.runs.distributed import (
    all_gather,
    data_parallel,
    process_group,
    rank_and_world_size,
    summed_over_all,
)
from transformer.runs.folder import read_log
from transformer.runs.loop import accumulate_gradients, load_checkpoint
from transformer.runs.trainer import StoppedRun

SETTINGS = dict(steps=7, log_every=2, evaluate_every=3, keep=9, average=0.8)


def make_batches(epoch: int, n_batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Five to an epoch, which two processes cannot share evenly; of unequal length, one without a target."""
    generator = torch.Generator().manual_seed(epoch)
    batches = []
    for number in range(n_batches):
        size, length = torch.randint(2, 7, (2,), generator=generator).tolist()
        ids = torch.randint(4, 9, (size, length), generator=generator)
        tgt = nn.functional.pad(ids, (1, 0), value=2)
        tgt[0 if number != 3 else slice(None), 1:] = 0
        batches.append((ids, tgt))
    return batches


def make_trainer(folder=None, dropout: float = 0.0, seed: int = 0, loss=teacher_forced_loss, **changes):
    torch.manual_seed(seed)
    config = TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=12, dropout=dropout, max_length=9)
    evaluate = changes.pop("evaluate", partial(evaluate_loss, batches=make_batches(99)))
    model, rate = Transformer(config).to(changes.pop("dtype", torch.float32)), lambda step: 0.02 / step
    return Trainer(model, loss, make_batches, rate, TrainingConfig(**SETTINGS | changes), folder, evaluate)


def weights(trainer: Trainer) -> list[float]:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).tolist()


def story(trainer: Trainer) -> list[dict]:
    return [{name: entry[name] for name in entry if name != "seconds"} for entry in trainer.history]


# ---------- The scenes: what every process does, and what it reports


def alike(folder: Path) -> dict:
    """Without dropout: each process starts with other weights, and the first's must win."""
    runs = {}
    for accumulate in (1, 2):
        seed = rank_and_world_size()[0]
        trainer = make_trainer(seed=seed, accumulate=accumulate, dtype=torch.float64).fit()
        runs[str(accumulate)] = {"log": story(trainer), "weights": weights(trainer)}
    return runs


def whole(folder: Path, name: str = "whole", **changes) -> dict:
    """With dropout, in one piece."""
    trainer = make_trainer(folder / name, dropout=0.3, **changes).fit()
    return {
        "log": story(trainer),
        "weights": weights(trainer),
        "place": [trainer.stream.epoch, trainer.stream.position],
    }


def whole_of_four(folder: Path) -> dict:
    """As `whole`, with four batches to an update."""
    return whole(folder, "four", accumulate=2)


def killed(folder: Path) -> dict:
    """As `whole_of_four`, but the second process dies in its eleventh batch and torchrun starts both anew."""
    calls = []

    def loss(model, batch):
        calls.append(batch)
        if len(calls) == 11 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return teacher_forced_loss(model, batch)

    return whole(folder, "killed", loss=loss, accumulate=2)


def stopped(folder: Path) -> dict:
    """As `whole`, but the second process gets a signal in its fifth update, and both go on when both have
    ended."""

    def loss(model, batch):
        if trainer.step == 4 and trainer.stream.rank == 1 and not ends:
            signal.raise_signal(signal.SIGTERM)
        return teacher_forced_loss(model, batch)

    trainer, ends = None, []
    while trainer is None or not trainer.finished:
        trainer = make_trainer(folder / "stopped", dropout=0.3, seed=len(ends), loss=loss)
        try:
            ends.append([0, trainer.fit().step])
        except StoppedRun as stop:
            ends.append([int(stop.signal), stop.step])
    return {"ends": ends, "log": story(trainer), "weights": weights(trainer)}


def patience(folder: Path) -> dict:
    """The score never improves; and only the first process is asked for it."""
    asked = []

    def evaluate(model):
        asked.append(trainer.stream.rank)
        return {"loss": 1.0}

    trainer = make_trainer(folder / "patience", patience=1, steps=90, evaluate=evaluate)
    trainer.fit()
    return {"step": trainer.step, "asked": asked, "stale": trainer.scores.evaluations_since_best}


def bad(folder: Path) -> dict:
    """The loss of one batch, which the second process has, is not a number."""

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        return total * (math.nan if trainer.step == 4 and trainer.stream.rank == 1 else 1.0), count

    trainer = make_trainer(folder / "bad", loss=loss, log_every=3)
    try:
        trainer.fit()
    except FloatingPointError as error:
        return {"error": str(error), "files": sorted(path.name for path in (folder / "bad").iterdir())}
    return {"error": ""}


def half(folder: Path) -> dict:
    """A loss scaler that overflows in one process has to skip the update in both."""

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        return total * (1e36 if trainer.step == 2 and trainer.stream.rank == 1 else 1.0), count

    plain = make_trainer(precision="float16").fit()
    trainer = make_trainer(loss=loss, precision="float16")
    trainer.fit()
    scales = [run.updater.scaler.get_scale() for run in (plain, trainer)]
    return {"weights": weights(trainer), "scales": scales}


SCENES = (alike, whole, whole_of_four, stopped, patience, bad, half, killed)


def play(folder: Path) -> None:
    """All scenes; those who start anew play the last again."""
    torch.set_num_threads(1)
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    with process_group("cpu") as device:
        assert device == torch.device("cpu")
        rank, world_size = rank_and_world_size()
        assert world_size == 2
        for scene in SCENES if first else SCENES[-1:]:
            (folder / f"{scene.__name__}-{rank}.json").write_text(json.dumps(scene(folder)))
    assert not distributed.is_initialized()
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "2"  # the command makes a group of its own
    sizes = ("steps=2", "evaluate_every=2", "batch_size=2", "length=3")
    command = ["train", "toy", "--device", "cpu", "--directory", str(folder / "command")]
    assert main([*command, *(word for size in sizes for word in ("--set", size))]) == 0


# ---------- The tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def reports(folder) -> list[dict]:
    """What each of the two processes reports of every scene."""
    if os.name == "nt":
        pytest.skip("signals are of another kind there")
    root = str(Path(__file__).resolve().parents[2])
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, str(folder)]
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (folder / "printed").write_text(done.stdout)
    names = [scene.__name__ for scene in SCENES]
    return [
        {name: json.loads((folder / f"{name}-{rank}.json").read_text()) for name in names} for rank in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [1, 2])
def test_two_processes_make_the_updates_of_one_with_twice_the_batches(reports, accumulate):
    trainer = make_trainer(accumulate=2 * accumulate, dtype=torch.float64).fit()
    expected_weights = torch.tensor(weights(trainer), dtype=torch.float64)
    for report in reports:
        run = report["alike"][str(accumulate)]
        for entry, expected in zip(run["log"], story(trainer), strict=True):
            assert entry.keys() == expected.keys()
            assert all(math.isclose(entry[name], expected[name], rel_tol=1e-9) for name in entry), entry
        own = torch.tensor(run["weights"], dtype=torch.float64)
        assert torch.allclose(own, expected_weights, rtol=0, atol=1e-9)
    assert reports[0]["alike"] == reports[1]["alike"]  # to the last bit


@pytest.mark.slow
def test_dropout_differs_between_processes_and_weights_do_not(reports, folder):
    assert reports[0]["whole"] == reports[1]["whole"]
    random = load_checkpoint(folder / "whole" / "checkpoint-00000007.pt")["random"]
    assert len(random) == 2 and not torch.equal(random[0]["cpu"], random[1]["cpu"])


@pytest.mark.slow
def test_a_signal_to_one_process_stops_all_after_the_same_update(reports, folder):
    for report in reports:
        assert report["stopped"]["ends"] == [[signal.SIGTERM, 5], [0, 7]]
        assert report["stopped"]["log"] == report["whole"]["log"]
        assert report["stopped"]["weights"] == report["whole"]["weights"]


@pytest.mark.slow
def test_decisions_are_made_together(reports, folder):
    said = "the loss is nan and its gradient's norm nan at step 5, epoch 1, batch 5, learning rate 4.00e-03"
    for rank, report in enumerate(reports):
        assert report["patience"] == {"step": 6, "asked": [0, 0, 0] if rank == 0 else [], "stale": 1}
        assert report["bad"]["error"] == said
        names = ["best.pt", "checkpoint-00000000.pt", "checkpoint-00000003.pt", "log.jsonl", "run.lock"]
        assert report["bad"]["files"] == names
    assert reports[0]["half"] == reports[1]["half"]
    plain, skipped = reports[0]["half"]["scales"]
    assert skipped == plain / 2


@pytest.mark.slow
def test_only_one_process_writes(reports, folder):
    assert [entry["step"] for entry in read_log(folder / "whole")] == [2, 3, 3, 4, 6, 6, 7, 7]
    names = ["best.pt", *(f"checkpoint-0000000{step}.pt" for step in (0, 3, 6, 7)), "log.jsonl", "run.lock"]
    assert sorted(path.name for path in (folder / "whole").iterdir()) == names


@pytest.mark.slow
def test_a_process_is_killed_and_torchrun_starts_all_again(reports, folder):
    """The second dies in update 6; both go on from the checkpoint of update 3."""
    assert all(report["killed"] == reports[0]["whole_of_four"] for report in reports)


@pytest.mark.slow
def test_the_command_trains_in_several_processes_and_one_speaks(reports, folder):
    assert (folder / "printed").read_text().count("exact match") == 1
    names = {path.name for path in (folder / "command").iterdir()}
    assert {"log.jsonl", "model.safetensors", "record.json", "config.json"} <= names
    assert read_log(folder / "command")[0]["tokens"] == 2 * 2 * 2 * 3  # processes, updates, sequences, digits


@pytest.mark.slow
def test_another_number_of_processes_goes_on_with_a_warning(reports, folder):
    with pytest.warns(UserWarning, match="was written by 2 processes, not 1: dropout starts anew"):
        trainer = make_trainer(folder / "whole", dropout=0.3, seed=5).fit()
    assert trainer.step == 7 and weights(trainer) == reports[0]["whole"]["weights"]


def test_without_torchrun_there_is_no_group(monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with process_group() as device:
        assert device.type == best_device().type
        assert rank_and_world_size() == (0, 1) and not distributed.is_initialized()
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"), process_group("nowhere"):
        pass


@pytest.fixture
def torchruns_environment(monkeypatch):
    """As of the only process; the test process itself can join it."""
    for name, value in dict(
        RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, MASTER_ADDR="localhost", MASTER_PORT=0
    ).items():
        monkeypatch.setenv(name, str(value))
    return monkeypatch


def test_one_process_is_a_group_as_well(torchruns_environment):
    with process_group("cpu") as device:
        assert device.type == "cpu" and distributed.is_initialized()
        trainer = make_trainer()
        assert (trainer.stream.rank, trainer.stream.world_size, trainer.updater.engine) == (0, 1, None)
    assert not distributed.is_initialized()


def test_a_process_without_a_gpu_of_its_own_is_refused(torchruns_environment):
    torchruns_environment.setenv("LOCAL_RANK", "99")
    with pytest.raises(ValueError, match="device .*cannot be used here"), process_group("cuda"):
        pass


def test_who_forgets_to_join_the_others_is_told(torchruns_environment):
    assert rank_and_world_size() == (0, 1)  # there are no others
    torchruns_environment.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="torchrun has started several processes: join them by"):
        make_trainer()


# ---------- Gradients of many batches


def squares(weight, batch):
    """A sum of squares and its number of terms; where x is 0 there is no target."""
    x, y = batch
    return ((x * weight - y) ** 2 * (x != 0)).sum(), (x != 0).sum()


@pytest.mark.parametrize("sizes", [[7], [0], [1, 0, 2], [5, 3, 3, 4]], ids=str)
def test_accumulated_gradient_is_the_big_batch_s(sizes):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, sum(sizes), dtype=torch.float64, generator=generator)
    x[::5] = 0  # so that some batches have fewer targets than entries, or none
    weight = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    batches = list(zip(x.split(sizes), y.split(sizes)))
    total, tokens = accumulate_gradients(partial(squares, weight), batches, [weight])

    count = int((x != 0).sum())
    residual = (x * weight - y).detach() * (x != 0)
    gradient = (2 * residual * x).sum() / max(count, 1)  # on paper
    assert torch.allclose(weight.grad, gradient, rtol=0, atol=1e-12)
    assert torch.allclose(total, residual.square().sum(), rtol=0, atol=1e-12)
    assert tokens == count and not total.requires_grad


def test_alone_a_process_talks_to_itself():
    assert all_gather({"a": 1}) == [{"a": 1}]
    x = torch.ones(2)
    assert summed_over_all(x) is x and data_parallel(nn.Linear(1, 1), lambda *given: given) is None


if __name__ == "__main__":
    play(Path(sys.argv[1]))
