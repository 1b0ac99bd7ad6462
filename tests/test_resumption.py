"""A run that is killed at any moment, and started again, ends as the run that nobody touched.

No exception is thrown here: SIGKILL ends the process, and no line of Python runs after it. This file is also
the program that is killed: `python tests/test_resumption.py FOLDER` makes a run, and forks one that dies at
its first event, one that dies at its second, and so on, where the events are all the batches, writes, renames
and removals of the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    evaluate_loss,
    load_checkpoint,
    read_log,
    teacher_forced_loss,
)

SETTINGS = dict(steps=6, accumulate=2, log_every=2, evaluate_every=3, keep=1)
SETTINGS |= dict(precision="float16", average=0.9)


def make_batches(epoch: int, n_batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(epoch)
    ids = torch.randint(4, 9, (n_batches, 3, 4), generator=generator)
    return [(batch, torch.nn.functional.pad(batch, (1, 0), value=2)) for batch in ids]


def make_trainer(folder: Path | str, loss: Callable = teacher_forced_loss) -> Trainer:
    torch.manual_seed(0)
    config = TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=12, dropout=0.2, max_length=8)
    return Trainer(
        Transformer(config),
        loss,
        make_batches,
        lambda step: 0.01 / step,
        TrainingConfig(**SETTINGS),
        folder,
        partial(evaluate_loss, batches=make_batches(99)),
    )


# -------------------------------------------------------------------------------------------------
# The program that is killed
# -------------------------------------------------------------------------------------------------


def mortal(death: int) -> tuple[Callable, list[str]]:
    """A function to be called at every event, which kills the process at event number `death`."""
    events: list[str] = []

    def event(name: str, just_before: Callable[[], None] = lambda: None) -> None:
        events.append(name)
        if len(events) == death:
            just_before()
            os.kill(os.getpid(), signal.SIGKILL)

    return event, events


def run(folder: str, death: int = 0) -> list[str]:
    """Make or go on with a run that dies at event number `death`; 0 for never."""
    event, events = mortal(death)

    def save(state, file, save=torch.save):
        save(state, file)
        event("half a file", lambda: (file.flush(), os.ftruncate(file.fileno(), file.tell() // 2)))

    def fsync(descriptor, fsync=os.fsync):
        event("before fsync")
        fsync(descriptor)

    def replace(source, target, replace=os.replace):
        event(f"before replacing {Path(target).name}")
        replace(source, target)
        event(f"after replacing {Path(target).name}")

    def unlink(path, missing_ok=False, unlink=Path.unlink):
        event(f"before removing {path.name}")
        unlink(path, missing_ok=missing_ok)

    def loss(model, batch):
        event("batch")
        return teacher_forced_loss(model, batch)

    def log(entry):
        event("half a line", lambda: half_a_line(folder))
        write(entry)
        event(f"after the line of step {entry['step']}")

    torch.save, os.fsync, os.replace, Path.unlink = save, fsync, replace, unlink
    trainer = make_trainer(folder, loss)
    write, trainer._log = trainer._log, log
    trainer.fit()
    return events


def half_a_line(folder: str) -> None:
    with open(Path(folder) / "log.jsonl", "a") as file:
        file.write('{"step": 1')


def forked(function: Callable, *arguments) -> int:
    """The exit status of a process of its own that calls a function."""
    process = os.fork()
    if process == 0:
        try:
            function(*arguments)
            os._exit(0)
        finally:  # an exception must not go on in the parent's place
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def digest(folder: Path) -> dict[str, str]:
    """What is left of a run, in numbers that differ where a bit does."""
    (checkpoint,) = folder.glob("checkpoint-*.pt")
    state = {checkpoint.name: load_checkpoint(checkpoint), "best": load_checkpoint(folder / "best.pt")}
    state["log"] = [entry | {"seconds": 0} for entry in read_log(folder)]
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents(state)} | {
        "files": " ".join(sorted(path.name for path in folder.iterdir()))
    }


def contents(value, name: str = ""):
    """Every leaf of nested dictionaries and lists, as bytes, under its way from the root."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from contents(item, f"{name}/{key}")
    else:
        yield name, value.numpy().tobytes() if isinstance(value, torch.Tensor) else pickle.dumps(value)


def kill_everywhere(root: Path) -> list[dict]:
    """Every event of a run with the statuses of the killed and the resumed run, and what differs."""
    make_trainer(root / "warm").fit()  # what is imported and made ready now, a fork need not
    forked(run_and_note, str(root / "whole"), str(root / "events.json"))
    events, whole = json.loads((root / "events.json").read_text()), digest(root / "whole")
    report = [{"event": "none", "whole": whole}]
    for death, event in enumerate(events, start=1):
        folder = root / str(death)
        statuses = [forked(run, str(folder), death), forked(run, str(folder))]
        left = digest(folder)
        different = sorted(name for name in whole.keys() | left.keys() if whole.get(name) != left.get(name))
        report.append({"event": event, "statuses": statuses, "different": different})
    return report


def run_and_note(folder: str, path: str) -> None:
    Path(path).write_text(json.dumps(run(folder)))


# -------------------------------------------------------------------------------------------------
# The tests
# -------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_killed_at_any_event_the_run_ends_with_the_same_bits(tmp_path):
    done = start(str(tmp_path))
    assert done.returncode == 0, done.stderr
    (_, whole), *report = json.loads(done.stdout)[0].items(), *json.loads(done.stdout)[1:]
    names = {entry["event"] for entry in report}
    for name in ("checkpoint-00000003.pt", "checkpoint-00000006.pt", "best.pt", "log.jsonl"):
        assert {f"before replacing {name}", f"after replacing {name}"} <= names
    assert {"batch", "half a file", "half a line", "before fsync", "after the line of step 3"} <= names
    assert "before removing checkpoint-00000003.pt" in names
    for entry in report:
        assert entry["statuses"] == [-signal.SIGKILL, 0] and entry["different"] == [], entry
    # And what was compared is the run: its weights, averages, place, scaler, generators and log.
    for part in ("model", "optimizer", "scaler", "average", "progress/best", "random", "log"):
        assert any(f"/{part}" in name for name in whole[1]), part


def test_a_digest_differs_where_a_bit_does(tmp_path):
    """Were it blind, the test above could not fail."""
    leaf = torch.zeros(3)
    one = dict(contents({"a": [leaf, {"b": 1.0}], "c": "x"}))
    leaf[2] = -0.0
    two = dict(contents({"a": [leaf, {"b": 1.0}], "c": "x"}))
    assert {name for name in one if one[name] != two[name]} == {"/a/0"}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(kill_everywhere(Path(sys.argv[1]))))
