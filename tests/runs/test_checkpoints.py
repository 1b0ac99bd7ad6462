"""Checkpoints that are cut, foreign or hostile, their log, and the folder of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch

import transformer.files
import transformer.runs.folder
import transformer.runs.loop
from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Vocabulary,
    teacher_forced_loss,
)
from transformer.files import CheckpointError
from transformer.runs.folder import RunFolder, read_log, run_facts
from transformer.runs.loop import load_checkpoint, save_checkpoint

VOCABULARY = Vocabulary.train(["o gato preto", "a casa branca"] * 3, 30)
SIZES = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16, max_length=6)
BATCH = torch.tensor([[4, 5, 3], [6, 3, 0]]), torch.tensor([[2, 5, 3], [2, 3, 0]])


def make_model(seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    size = len(VOCABULARY)
    return Transformer(TransformerConfig(size, size, **SIZES | changes)).eval()


class Malice:
    """What would make a folder named "executed" if it were unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("line", ["[]", '{"step": "3"}', '{"step": -1}', "{"])
def test_a_log_holds_entries_with_steps(tmp_path, line):
    RunFolder(tmp_path).write_log([{"step": 1}])
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write(line + "\n" + '{"step": 2}\n')
    with pytest.raises(
        NotADirectoryError, match=r"directory must be the folder of a run, not '.*log\.jsonl'"
    ):
        read_log(tmp_path / "log.jsonl")
    with pytest.raises(CheckpointError, match=r"log\.jsonl is not the log of a run"):
        read_log(tmp_path)


def make_trainer(folder: Path | None, model: Transformer | None = None, **changes) -> Trainer:
    return Trainer(
        model or make_model(),
        loss=teacher_forced_loss,
        batches=lambda epoch: [BATCH] * 3,
        schedule=lambda step: 1e-3,
        config=TrainingConfig(**dict(steps=2, evaluate_every=1, log_every=1) | changes),
        directory=folder,
    )


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_a_flipped_bit_is_told_of_and_the_checkpoint_before_is_taken(tmp_path):
    whole = make_trainer(None, steps=3).fit()
    make_trainer(tmp_path).fit()
    newest, best = tmp_path / "checkpoint-00000002.pt", tmp_path / "best.pt"
    newest.write_bytes(flipped(newest.read_bytes(), 8 * newest.read_bytes().index(b"PK\x05\x06") // 3))
    with pytest.warns(UserWarning, match=r"00000002\.pt is not a whole .*; going on from .*00000001\.pt"):
        again = make_trainer(tmp_path, steps=3).fit()
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
    save_checkpoint(best, {"model": make_model(seed=5).state_dict()})
    place = best.read_bytes().index(make_model(seed=5).output.weight.detach().numpy().tobytes())
    best.write_bytes(flipped(best.read_bytes(), 8 * place + 30))
    with pytest.raises(CheckpointError, match=r"best\.pt is not a whole checkpoint: its checksum is wrong"):
        again.load_best()
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))


def spoil(state: dict, path: tuple[str, ...], value=None, remove: bool = False) -> dict:
    *way, last = path
    inner = state
    for name in way:
        inner = inner[name]
    if remove:
        del inner[last]
    else:
        inner[last] = value
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        partial(spoil, remove=True, path=("updater", "optimizer")),
        partial(spoil, remove=True, path=("scores", "best")),
        partial(spoil, value="three", path=("updater", "step")),
        partial(spoil, remove=True, path=("random",)),
    ],
    ids=lambda change: " ".join(map(str, change.keywords.values())),
)
def test_a_checkpoint_without_what_a_run_needs_is_named(tmp_path, change):
    make_trainer(tmp_path).fit()
    path = tmp_path / "checkpoint-00000002.pt"
    state = load_checkpoint(path)
    change(state)
    del state["format"]
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=r"checkpoint-00000002\.pt cannot be resumed from"):
        make_trainer(tmp_path).fit()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: torch.save({"format": "transformer-checkpoint-1", "x": Malice()}, path),
        lambda path: save_checkpoint(path, {"x": Malice()}),  # with a checksum that is right
    ],
)
def test_foreign_file_is_refused_and_never_executed(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="foreign.pt is not a (whole )?checkpoint"):
        load_checkpoint(tmp_path / "foreign.pt")
    assert not (tmp_path / "executed").exists()


def test_run_facts_say_what_is_needed_to_repeat_a_run(monkeypatch):
    command = ["/somewhere/bin/python3", "-m", "transformer", "train", "a b"]
    monkeypatch.setattr(sys, "orig_argv", command)
    facts = run_facts(torch.device("cpu"))
    assert facts["command"] == "python -m transformer train 'a b'"
    assert facts["versions"]["torch"] == metadata.version("torch")
    assert facts["device"].startswith("cpu: ") and "threads" in facts["device"]
    assert facts["date"].endswith("+00:00")
    assert facts["processor"]["kernels"] == torch.backends.cpu.get_cpu_capability()
    assert facts["processor"]["model"] and facts["processor"]["architecture"]
    assert facts == json.loads(json.dumps(facts))
    command = ["/x/python", "-m", "ipykernel_launcher", "-f", "/x/kernel.json"]
    monkeypatch.setattr(sys, "orig_argv", command)
    assert run_facts("cpu")["command"] == "a cell of a notebook"


def test_the_commit_is_the_package_s_own_or_none(monkeypatch, tmp_path):
    package = tmp_path / "transformer"
    package.mkdir()
    monkeypatch.setattr(transformer.runs.folder.resources, "files", lambda name: package)
    git = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]

    assert run_facts("cpu")["commit"] == ""  # no repository at all
    git(["git", "init", "-q"])
    git(["git", *identity, "commit", "-q", "--allow-empty", "-m", "another's"])
    (package / "a.py").write_text("1\n")
    assert run_facts("cpu")["commit"] == ""  # a repository that does not hold the package
    git(["git", "add", "."])
    git(["git", *identity, "commit", "-q", "-m", "ours"])
    head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    assert run_facts("cpu")["commit"] == head
    (package / "a.py").write_text("2\n")
    assert run_facts("cpu")["commit"] == head + "+"


def test_a_folder_is_held_by_one_and_may_be_held_twice_by_it(tmp_path):
    folder = RunFolder(tmp_path / "new")
    with folder.locked(), folder.locked():
        with pytest.raises(BlockingIOError, match="new is in use: another process is training there"):
            with RunFolder(tmp_path / "new").locked():
                pass
    with RunFolder(tmp_path / "new").locked():
        pass
