"""A run that is killed at any moment, and started again, ends as the run that nobody touched.

SIGKILL ends a process, and no line of Python runs after it: what is left is the folder as it was. So a run
has its folder copied at all its batches, evaluations, writes, renames and removals, and from each copy a run
goes on. `python tests/runs/test_resumption.py FOLDER NAME` plays one of the scenes below.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import re
import shutil
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
from transformer.commands.data import PrefetchedEpochs
from transformer.runs.folder import read_log
from transformer.runs.loop import load_checkpoint
from transformer.runs.trainer import StoppedRun

SETTINGS = dict(steps=4, accumulate=2, log_every=3, evaluate_every=2, keep=1)
SETTINGS |= dict(precision="float16", average=0.9)


def make_batches(epoch: int, n_batches: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(epoch)
    ids = torch.randint(4, 9, (n_batches, 3, 4), generator=generator)
    return [(batch, torch.nn.functional.pad(batch, (1, 0), value=2)) for batch in ids]


def with_much_data(epoch: int) -> Callable:
    """Batches that come in a package too large for a pipe."""
    return partial(of_package, bytes(1_000_000), os.getpid())


def of_package(package: bytes, maker: int, epoch: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert (maker == os.getpid()) == (sys.platform != "linux")
    return make_batches(epoch)


def make_trainer(
    folder: Path | str | None, loss: Callable = teacher_forced_loss, batches: Callable = make_batches, **how
) -> Trainer:
    torch.manual_seed(0)
    config = TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=12, dropout=0.2, max_length=8)
    return Trainer(
        Transformer(config),
        loss,
        batches,
        lambda step: 0.01 / step,
        TrainingConfig(**SETTINGS),
        folder,
        evaluate,
        **how,
    )


def evaluate(model: torch.nn.Module) -> dict[str, float]:
    torch.rand(1)  # whatever it draws
    return evaluate_loss(model, make_batches(99))


# ---------- What a killed run leaves


def left_at_every_event(folder: Path, patch: pytest.MonkeyPatch) -> dict[Path, list[str]]:
    """Make a run; return what a kill would leave, a copy for each state of the folder, with its events."""
    left: dict[Path, list[str]] = {}
    copies: dict[tuple, Path] = {}

    def event(name: str, log: str = "") -> None:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        copy = copies.setdefault((*sorted(files.items()), log), folder.with_name(f"{len(copies)}"))
        left.setdefault(copy, []).append(name)
        if not copy.exists():
            shutil.copytree(folder, copy)
            with open(copy / "log.jsonl", "a") as file:
                file.write(log)

    def write_bytes(path, content, write=Path.write_bytes):
        write(path, content[: len(content) // 2])
        event("half a file")
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

    def evaluated(model):
        event("evaluation")
        return evaluate(model)

    def log(entry):
        event("half a line", '{"step": 1')
        write(entry)
        event(f"after the line of step {entry['step']}")

    trainer = make_trainer(folder, loss)
    patch.setattr(Path, "write_bytes", write_bytes)
    patch.setattr(os, "fsync", fsync)
    patch.setattr(os, "replace", replace)
    patch.setattr(Path, "unlink", unlink)
    write, trainer.log.write, trainer.scores.evaluate = trainer.log.write, log, evaluated
    trainer.fit()
    return left


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


# ---------- Scenes with signals, and with two runs in one folder


def by_word(model, batch):
    """The loss; but not before a word of the process that watches."""
    print("batch", flush=True)
    sys.stdin.readline()
    return teacher_forced_loss(model, batch)


def work(folder: str) -> None:
    """A run as the command line makes one: a sentence and an exit status where it is stopped."""
    try:
        make_trainer(folder, by_word, PrefetchedEpochs(with_much_data)).fit()
    except StoppedRun as stopped:
        print(stopped)
        sys.exit(128 + stopped.signal)


def hang(folder: str) -> None:
    """A run whose update never ends."""
    loss = lambda model, batch: (print("batch", flush=True), time.sleep(600))
    make_trainer(folder, loss, PrefetchedEpochs(with_much_data)).fit()


# ---------- The tests


@pytest.mark.slow
def test_killed_at_any_event_the_run_ends_with_the_same_bits(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        left = left_at_every_event(tmp_path / "whole", patch)
    whole, names = digest(tmp_path / "whole"), set(sum(left.values(), []))
    for name in (*(f"checkpoint-0000000{step}.pt" for step in (0, 2, 4)), "best.pt"):
        assert {f"before replacing {name}", f"after replacing {name}"} <= names
    assert {"batch", "evaluation", "half a file", "half a line"} <= names
    assert {"before fsync", "after the line of step 3"} <= names
    assert "before removing checkpoint-00000002.pt" in names
    for copy, events in left.items():
        make_trainer(copy).fit()
        assert digest(copy) == whole, events
    # And what was compared is the run: its weights, averages, place, scaler, generators and log.
    for part in ("model", "optimizer", "scaler", "average", "scores/best", "random", "log"):
        assert any(f"/{part}" in name for name in whole), part


@pytest.mark.slow
def test_batches_prepared_ahead_are_those_of_their_epoch(tmp_path):
    """In an unbroken run, in one that goes on in the middle of an epoch, and in any order."""
    make_trainer(tmp_path / "whole").fit()
    make_trainer(tmp_path / "ahead", batches=PrefetchedEpochs(with_much_data)).fit(max_minutes=1e-9)
    ahead = PrefetchedEpochs(with_much_data)
    trainer = make_trainer(tmp_path / "ahead", batches=ahead).fit()
    assert digest(tmp_path / "ahead") == digest(tmp_path / "whole")
    assert multiprocessing.active_children() == []
    for epoch in (0, 0, 1, 2, 7, 0):
        given, wanted = trainer.stream.batches(epoch), make_batches(epoch)
        assert all(torch.equal(*pair) for batches in zip(given, wanted) for pair in zip(*batches))
    ahead.close()
    assert multiprocessing.active_children() == []
    ahead = PrefetchedEpochs(lambda epoch: time.sleep(60 * epoch) or make_batches)
    ahead(0)
    start = time.monotonic()
    ahead.close()  # while the next epoch, which nobody wants any more, is prepared
    assert multiprocessing.active_children() == [] and time.monotonic() - start < 20


def test_a_program_that_leaves_them_open_ends():
    """The other process ignores the signal by which Python ends those that are left."""
    program = "from transformer.commands import data\nahead = data.PrefetchedEpochs(lambda epoch: range)\n"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", program + "print(list(ahead(2)))"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert found.stdout == "[0, 1]\n" and found.returncode == 0


@contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, __file__, *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


def processes(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    found = subprocess.run(["ps", "-s", str(session), "-o", "stat="], capture_output=True, text=True)
    return [state for state in found.stdout.split() if not state.startswith("Z")]


def wait_for_batch(process: subprocess.Popen) -> None:
    assert process.stdout.readline() == "batch\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_signal_ends_a_run_with_a_checkpoint_and_a_sentence_and_it_goes_on_with_the_same_bits(tmp_path):
    with started(str(tmp_path / "stopped"), "work") as process:
        for _ in range(2 * 2):  # batches of the first two updates
            wait_for_batch(process)
            process.stdin.write("go on\n")
            process.stdin.flush()
        wait_for_batch(process)
        os.killpg(process.pid, signal.SIGTERM)  # to all of the run's processes
        out, err = process.communicate("go on\n" * 2, timeout=60)
    *_, sentence = out.splitlines()
    assert process.returncode == 128 + signal.SIGTERM and "Traceback" not in err
    assert sentence == "stopped at step 3 of 4 with a checkpoint, from which the same call goes on"
    assert (tmp_path / "stopped" / "checkpoint-00000003.pt").exists()
    make_trainer(tmp_path / "stopped").fit()
    make_trainer(tmp_path / "whole").fit()
    assert digest(tmp_path / "stopped") == digest(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signals_are_whose_they_were_when_fit_is_over(tmp_path, name):
    if not hasattr(signal, name):
        pytest.skip("this system has no such signal")
    number = getattr(signal, name)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, number)}

    def loss(asked, model, batch):
        if trainer.step == 1 and not asked:
            asked.append(signal.raise_signal(number))
        return teacher_forced_loss(model, batch)

    whole = make_trainer(None).fit()
    for folder, kept in ((tmp_path, " with a checkpoint, from .*"), (None, "")):
        trainer = make_trainer(folder, partial(loss, []))
        with pytest.raises(KeyboardInterrupt, match=f"^stopped at step 2 of 4{kept}$") as stop:
            trainer.fit()
        assert isinstance(stop.value, StoppedRun)
        assert (stop.value.signal, stop.value.step) == (number, 2)
        assert handlers == {number: signal.getsignal(number) for number in handlers}
        again = trainer.fit()
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


@pytest.mark.slow
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
@pytest.mark.skipif(os.name == "nt", reason="signals are of another kind there")
def test_a_second_run_in_the_folder_is_refused_until_a_second_signal_has_ended_the_first(tmp_path):
    said = re.escape(f"{tmp_path} is in use: another process is training there")
    with started(str(tmp_path), "hang") as process:
        wait_for_batch(process)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert sys.platform != "linux" or len(processes(process.pid)) == 2
        with pytest.raises(BlockingIOError, match=said):
            make_trainer(tmp_path).fit()
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # at once: the same one, handed on by a launcher
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == -signal.SIGTERM
    while processes(process.pid):  # the one that prepares batches ends with the run
        time.sleep(0.01)
    assert (tmp_path / "run.lock").exists()  # the file stays, and the lock has gone with its process
    assert make_trainer(tmp_path).fit().finished


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"work": work, "hang": hang}[sys.argv[2]](sys.argv[1])
