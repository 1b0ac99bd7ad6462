"""A model shared out among processes makes the run that one process makes, and any number of them goes on.

This file is also the program that torchrun starts: `torchrun --nproc-per-node=2
tests/runs/test_sharding.py SCENES FOLDER` plays scenes, and every process leaves a report of
each in the folder.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_distributed import make_batches
from torch import nn

import transformer.runs.distributed
from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    evaluate_loss,
    process_group,
    teacher_forced_loss,
)
from transformer.__main__ import main
from transformer.runs.checkpoints import load_checkpoint, whole
from transformer.runs.distributed import LEAST_SHARD, gathered, rank_and_world_size, sharded
from transformer.runs.update import Updater

SETTINGS = dict(steps=7, log_every=2, evaluate_every=3, keep=9, average=0.8, weight_decay=0.1)
SIZES = dict(d_model=8, n_heads=2, n_layers=1, d_ff=12, dropout=0.0, max_length=9)


class Own(Transformer):
    """What is not accelerated."""


def make_trainer(folder=None, shard=True, seed=0, loss=teacher_forced_loss, kind=Transformer, **changes):
    torch.manual_seed(seed)
    dtype = changes.pop("dtype", torch.float64)
    model = kind(TransformerConfig(9, 9, **SIZES)).to(dtype)
    evaluate = partial(evaluate_loss, batches=make_batches(99))
    config, rate = TrainingConfig(**SETTINGS | changes), lambda step: 0.02 / step
    return Trainer(model, loss, make_batches, rate, config, folder, evaluate, shard=shard)


def story(trainer: Trainer) -> dict:
    """Log and numbers of a run; of shards, gathered by the first process."""
    state = trainer.state_dict()
    state = whole({"model": state["model"], "updater": state["updater"]})
    found = {"log": [{name: entry[name] for name in entry if name != "seconds"} for entry in trainer.history]}
    if rank_and_world_size()[0] == 0:
        moments = state["updater"]["optimizer"]["state"].values()
        found["moments"] = numbers(x for kept in moments for x in (kept["exp_avg"], kept["exp_avg_sq"]))
        found["weights"] = numbers(state["model"].values())
        found["average"] = numbers(state["updater"]["average"]["weights"])
    return found


def numbers(tensors) -> list[float]:
    return torch.cat([x.detach().flatten() for x in tensors]).tolist()


# -------------------------------------------------------------------------------------------------
# The scenes: what every process does, and what it reports
# -------------------------------------------------------------------------------------------------


def alike(folder: Path) -> dict:
    """Each process starts with other weights, and the first's must win; the best ones come back as well."""
    runs = {}
    for name, kind, accumulate in (("fast", Transformer, 1), ("fast twice", Transformer, 2), ("own", Own, 1)):
        seed = rank_and_world_size()[0]
        trainer = make_trainer(folder / name, seed=seed, kind=kind, accumulate=accumulate).fit()
        runs[name] = story(trainer) | {"kind": type(trainer.model).__name__}
        parts = [p.to_local().numel() / p.numel() for p in trainer.updater.parameters if p.dim() > 1]
        runs[name]["part"] = sum(parts) / len(parts)
        trainer.keeper.load_best()
        runs[name]["best"] = story(trainer).get("weights")
    return runs


def half(folder: Path) -> dict:
    """A loss scaler that overflows in one process has to skip the update in both."""

    def loss(model, batch):
        total, count = teacher_forced_loss(model, batch)
        return total * (1e36 if trainer.step == 2 and trainer.stream.rank == 1 else 1.0), count

    plain = make_trainer(precision="float16", dtype=torch.float32).fit()
    trainer = make_trainer(loss=loss, precision="float16", dtype=torch.float32)
    trainer.fit()
    return {"scales": [run.updater.scaler.get_scale() for run in (plain, trainer)]}


def refused(folder: Path) -> dict:
    """A model that is too small, and one whose layers share a parameter."""
    tied = Own(TransformerConfig(9, 9, **SIZES | {"n_layers": 2}))
    tied.decoder.layers[1].feed_forward = tied.decoder.layers[0].feed_forward
    said = {}
    for name, model, least in (("small", Own(tied.config), LEAST_SHARD), ("tied", tied, 1)):
        transformer.runs.distributed.LEAST_SHARD = least
        try:
            sharded(model, teacher_forced_loss)
        except (TypeError, ValueError) as error:
            said[name] = [type(error).__name__, str(error)]
    return said


def killed(folder: Path) -> dict:
    """The second process dies in its fifth update, and torchrun ends the first."""

    def loss(model, batch):
        if trainer.step == 4 and trainer.stream.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return teacher_forced_loss(model, batch)

    trainer = make_trainer(folder / "killed", loss=loss)
    trainer.fit()
    return {}


def resumed(folder: Path) -> dict:
    """By three processes, in shards and with whole copies."""
    runs = {}
    for name, shard in (("shards", True), ("copies", False)):
        trainer = make_trainer(folder / f"resumed by three, {name}", shard, seed=5)
        runs[name] = {"resumed": trainer.keeper.resume(), "step": trainer.step}
        kept = trainer.updater.optimizer.state.values()
        moments = [x.to_local() for state in kept for x in state.values() if hasattr(x, "to_local")]
        taken = sum(x.untyped_storage().nbytes() for x in moments)
        runs[name]["room"] = [taken, sum(x.nbytes for x in moments)]
        runs[name] |= story(trainer.fit())
    return runs


def command(folder: str) -> None:
    """The command line, with a moving average; it joins the processes itself."""
    toy = "steps=2 batch_size=2 length=3 d_model=8 n_heads=2 d_ff=8 n_layers=1 average=0.9".split()
    changes = [word for setting in toy for word in ("--set", setting)]
    sys.exit(main(["train", "toy", "--shard", "--device", "cpu", "--directory", folder, *changes]))


def play(names: str, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformer.runs.distributed.LEAST_SHARD = 1
    if names == "command":
        command(folder)
    with process_group("cpu"):
        for name in names.split(","):
            report = globals()[name](Path(folder))
            (Path(folder) / f"{name}-{rank_and_world_size()[0]}.json").write_text(json.dumps(report))


# -------------------------------------------------------------------------------------------------
# The tests
# -------------------------------------------------------------------------------------------------


def torchrun(names: str, folder: Path, n_processes: int) -> subprocess.CompletedProcess:
    if os.name == "nt":
        pytest.skip("signals are of another kind there")
    options = ["--standalone", f"--nproc-per-node={n_processes}", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, __file__, names, str(folder)]
    root = str(Path(__file__).resolve().parents[2])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


def reports_of(name: str, folder: Path, n_processes: int) -> list[dict]:
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(n_processes)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What two processes leave when one of them has been killed in the end."""
    folder = tmp_path_factory.mktemp("sharding")
    done = torchrun("alike,half,refused,killed", folder, 2)
    assert done.returncode != 0 and (folder / "refused-1.json").exists(), done.stderr
    return folder


def assert_alike(run: dict, expected: dict) -> None:
    for entry, other in zip(run["log"], expected["log"], strict=True):
        assert entry.keys() == other.keys()
        assert all(math.isclose(entry[name], other[name], rel_tol=1e-9) for name in entry), entry
    for name in ("weights", "moments", "average"):
        one, two = (torch.tensor(found[name], dtype=torch.float64) for found in (run, expected))
        assert torch.allclose(one, two, rtol=0, atol=1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fast", "fast twice", "own"])
def test_shards_make_the_updates_of_one_process_with_twice_the_batches(folder, name, tmp_path):
    first, second = (report[name] for report in reports_of("alike", folder, 2))
    trainer = make_trainer(tmp_path, shard=False, accumulate=4 if name == "fast twice" else 2).fit()
    assert_alike(first, story(trainer))
    assert first["log"] == second["log"] and "weights" not in second
    assert first["kind"] == ("Own" if name == "own" else "FastTransformer")
    assert first["part"] + second["part"] == pytest.approx(1) and 0.4 < first["part"] < 0.6
    trainer.keeper.load_best()
    found = first["best"], story(trainer)["weights"]
    best, expected = (torch.tensor(weights, dtype=torch.float64) for weights in found)
    assert torch.allclose(best, expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_an_overflow_in_one_process_skips_the_update_in_both(folder):
    one, two = reports_of("half", folder, 2)
    plain, skipped = one["scales"]
    assert one == two and skipped == plain / 2


@pytest.mark.slow
def test_what_gains_nothing_and_what_cannot_be_shared_out_is_refused(folder):
    said = "shard must be False, or the model must have 1,000,000 parameters for each of 2 processes, but it"
    for report in reports_of("refused", folder, 2):
        assert report["small"][0] == "ValueError" and report["small"][1].startswith(said)
        name = "decoder.layers.0.feed_forward.w_1.weight"
        assert report["tied"] == ["TypeError", f"shard must be False: {name} is a parameter of two layers"]


def test_one_process_has_nobody_to_share_with():
    with pytest.raises(ValueError, match="shard must be False for one process; torchrun starts several"):
        make_trainer()


@pytest.mark.slow
def test_a_run_of_shards_that_was_killed_is_gone_on_with_by_one_process(folder, tmp_path):
    """From the checkpoint of update 3, which holds what one process would have written."""
    shutil.copytree(folder / "killed", tmp_path / "one")
    trainer = make_trainer(tmp_path / "one", shard=False, seed=5)
    with pytest.warns(UserWarning, match="was written by 2 processes, not 1: dropout starts anew"):
        assert trainer.keeper.resume()
    expected = make_trainer(shard=False, accumulate=2, steps=3).fit()
    assert_alike(story(trainer), story(expected))
    assert trainer.stream.state_dict() == expected.stream.state_dict()
    with pytest.warns(UserWarning, match="dropout starts anew"):
        assert trainer.fit().step == 7


@pytest.mark.slow
def test_a_run_of_shards_that_was_killed_is_gone_on_with_by_three_processes(folder):
    for name in ("shards", "copies"):
        shutil.copytree(folder / "killed", folder / f"resumed by three, {name}")
    done = torchrun("resumed", folder, 3)
    assert done.returncode == 0, done.stderr
    first, *others = reports_of("resumed", folder, 3)
    assert first["shards"]["resumed"] and first["shards"]["step"] == 3
    assert_alike(first["shards"], first["copies"])
    for report in (first, *others):
        taken, needed = report["shards"]["room"]
        assert taken == needed > 0  # and not what the whole would take
    assert all(other["shards"]["log"] == first["shards"]["log"] for other in others)
    files = (folder / f"resumed by three, {name}" / "checkpoint-00000007.pt" for name in ("shards", "copies"))
    one, two = (load_checkpoint(file)["updater"]["optimizer"]["param_groups"] for file in files)
    assert one == two


@pytest.mark.slow
def test_the_command_line_shares_a_model_out_and_leaves_it_whole(tmp_path):
    done = torchrun("command", tmp_path, 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exact match") == 1
    state, kept = (
        load_checkpoint(tmp_path / "checkpoint-00000002.pt"),
        load_file(tmp_path / "model.safetensors"),
    )
    found = sorted(x.flatten().tolist() for x in kept.values())
    assert found == sorted(x.half().flatten().tolist() for x in state["updater"]["average"]["weights"])
    assert any(not x.equal(state["model"][name].half()) for name, x in kept.items())  # the last weights


def test_other_engines_have_nothing_to_gather():
    model = nn.Linear(2, 2)
    updater = Updater(model, lambda *given: given, lambda step: 0.1, TrainingConfig(1))
    with gathered(updater.engine), gathered(model):
        assert whole({"a": (model.weight, 3)})["a"][0] is model.weight


if __name__ == "__main__":
    play(*sys.argv[1:])
