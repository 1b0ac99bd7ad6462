"""A run that is killed at any moment, and started again, ends as the run that nobody touched.

SIGKILL ends the process, and no line of Python runs after it. This file is also the program that is killed:
`python tests/runs/test_resumption.py FOLDER` makes a run, and forks one that dies at its first event, one
that dies at its second, and so on, where the events are all the batches, evaluations, writes, renames and
removals of the run. `python tests/runs/test_resumption.py FOLDER NAME` plays one of the scenes
below.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
    teacher_forced_loss,
)
from transformer.runs.checkpoints import load_checkpoint
from transformer.runs.folder import read_log
from transformer.runs.trainer import StoppedRun

SETTINGS = dict(steps=4, accumulate=2, log_every=3, evaluate_every=2, keep=1)
SETTINGS |= dict(precision="float16", average=0.9)


def make_batches(epoch: int, n_batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(epoch)
    ids = torch.randint(4, 9, (n_batches, 3, 4), generator=generator)
    return [(batch, torch.nn.functional.pad(batch, (1, 0), value=2)) for batch in ids]


def make_trainer(folder: Path | str | None, loss: Callable = teacher_forced_loss, **how) -> Trainer:
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
        **how,
    )


# -------------------------------------------------------------------------------------------------
# The program that is killed
# -------------------------------------------------------------------------------------------------


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def mortal(death: int) -> tuple[Callable, list[str]]:
    """A function to be called at every event, which kills the process at event number `death`."""
    events: list[str] = []

    def event(name: str, just_before: Callable[[], None] = lambda: None) -> None:
        events.append(name)
        if len(events) == death:
            just_before()
            kill()

    return event, events


def run(folder: str, death: int = 0) -> list[str]:
    """Make or go on with a run that dies at event number `death`; 0 for never."""
    event, events = mortal(death)

    def write_bytes(path, content, write=Path.write_bytes):
        event("half a file", lambda: write(path, content[: len(content) // 2]))
        write(path, content)

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

    def evaluate(model):
        torch.rand(1)  # whatever it draws
        event("evaluation")
        return evaluation(model)

    def log(entry):
        event("half a line", lambda: half_a_line(folder))
        write(entry)
        event(f"after the line of step {entry['step']}")

    Path.write_bytes, os.fsync, os.replace, Path.unlink = write_bytes, fsync, replace, unlink
    trainer = make_trainer(folder, loss)
    write, trainer.log.write = trainer.log.write, log
    evaluation, trainer.scores.evaluate = trainer.scores.evaluate, evaluate
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


def killed_everywhere(root: Path) -> list[dict]:
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
# Scenes with signals, and with two runs in one folder
# -------------------------------------------------------------------------------------------------


def by_word(model, batch):
    """The loss; but not before a word of the process that watches."""
    print("batch", flush=True)
    sys.stdin.readline()
    return teacher_forced_loss(model, batch)


def work(folder: str) -> None:
    """A run as the command line makes one: a sentence and an exit status where it is stopped."""
    try:
        make_trainer(folder, by_word).fit()
    except StoppedRun as stopped:
        print(stopped)
        sys.exit(128 + stopped.signal)


def hang(folder: str) -> None:
    """A run whose update never ends."""
    make_trainer(folder, lambda model, batch: (print("batch", flush=True), time.sleep(600))).fit()


# -------------------------------------------------------------------------------------------------
# The tests
# -------------------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.CompletedProcess:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="no process can be killed or forked like this there")
def test_killed_at_any_event_the_run_ends_with_the_same_bits(tmp_path):
    done = start(str(tmp_path))
    assert done.returncode == 0, done.stderr
    (_, whole), *report = json.loads(done.stdout)[0].items(), *json.loads(done.stdout)[1:]
    names = {entry["event"] for entry in report}
    checkpoints = [f"checkpoint-0000000{step}.pt" for step in (0, 2, 4)]
    for name in (*checkpoints, "best.pt"):
        assert {f"before replacing {name}", f"after replacing {name}"} <= names
    assert {"batch", "evaluation", "half a file", "half a line"} <= names
    assert {"before fsync", "after the line of step 3"} <= names
    assert "before removing checkpoint-00000002.pt" in names
    for entry in report:
        assert entry["statuses"] == [-signal.SIGKILL, 0] and entry["different"] == [], entry
    # And what was compared is the run: its weights, averages, place, scaler, generators and log.
    for part in ("model", "optimizer", "scaler", "average", "scores/best", "random", "log"):
        assert any(f"/{part}" in name for name in whole[1]), part


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_batch(process: subprocess.Popen) -> None:
    assert process.stdout.readline() == "batch\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_run_with_a_checkpoint_and_a_sentence_and_it_goes_on_with_the_same_bits(
    tmp_path, name
):
    number = getattr(signal, name)
    with started(str(tmp_path / "stopped"), "work") as process:
        for _ in range(2 * 2):  # batches of the first two updates
            wait_for_batch(process)
            process.stdin.write("go on\n")
            process.stdin.flush()
        wait_for_batch(process)
        process.send_signal(number)
        out, err = process.communicate("go on\n" * 2, timeout=60)
    *_, sentence = out.splitlines()
    assert process.returncode == 128 + number and "Traceback" not in err
    assert sentence == "stopped at step 3 of 4 with a checkpoint, from which the same call goes on"
    assert (tmp_path / "stopped" / "checkpoint-00000003.pt").exists()
    make_trainer(tmp_path / "stopped").fit()
    make_trainer(tmp_path / "whole").fit()
    assert digest(tmp_path / "stopped") == digest(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_second_signal_ends_a_process_as_ever(tmp_path):
    with started(str(tmp_path), "hang") as process:
        wait_for_batch(process)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # at once: the same one, handed on by a launcher
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM


def test_signals_are_whose_they_were_when_fit_is_over(tmp_path):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def loss(asked, model, batch):
        if trainer.step == 1 and not asked:
            asked.append(signal.raise_signal(signal.SIGINT))
        return teacher_forced_loss(model, batch)

    for folder, kept in ((tmp_path, " with a checkpoint, from .*"), (None, "")):
        trainer = make_trainer(folder, partial(loss, []))
        with pytest.raises(KeyboardInterrupt, match=f"^stopped at step 2 of 4{kept}$") as stop:
            trainer.fit()
        assert isinstance(stop.value, StoppedRun)
        assert (stop.value.signal, stop.value.step) == (signal.SIGINT, 2)
        assert handlers == {number: signal.getsignal(number) for number in handlers}
        again = trainer.fit()
        whole = make_trainer(None).fit()
        assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
        strip = lambda history: [entry | {"seconds": 0} for entry in history]
        assert strip(again.history) == strip(whole.history)


def test_a_signal_in_the_last_moment_is_not_lost():
    def evaluate(model):
        if trainer.step == 4:
            signal.raise_signal(signal.SIGTERM)
        return {"loss": 1.0}

    trainer = make_trainer(None)
    trainer.scores.evaluate = evaluate
    with pytest.raises(StoppedRun, match="stopped at step 4 of 4"):
        trainer.fit()


def test_what_is_ignored_stays_ignored_and_another_thread_has_no_signals(tmp_path):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a job that a shell puts in the background
    try:
        trainer = make_trainer(None, lambda *given: (signal.raise_signal(2), teacher_forced_loss(*given))[1])
        assert trainer.fit().finished
    finally:
        signal.signal(signal.SIGINT, before)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make_trainer(tmp_path).fit).result().finished


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused_until_the_first_is_dead(tmp_path):
    said = re.escape(f"{tmp_path} is in use: another process is training there")
    with started(str(tmp_path), "hang") as process:
        wait_for_batch(process)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        for go_on in (Trainer.fit, lambda trainer: trainer.checkpointer.resume()):
            with pytest.raises(BlockingIOError, match=said):
                go_on(make_trainer(tmp_path))
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert not make_trainer(tmp_path / "another").checkpointer.resume()  # another folder is another lock
        process.kill()
        process.wait()
    assert (tmp_path / "run.lock").exists()  # the file stays, and the lock has gone with its process
    assert make_trainer(tmp_path).fit().finished


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[2:]:
        {"work": work, "hang": hang}[sys.argv[2]](sys.argv[1])
    else:
        print(json.dumps(killed_everywhere(Path(sys.argv[1]))))
