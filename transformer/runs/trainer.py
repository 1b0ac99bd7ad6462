"""transformer.runs.trainer, from book/D-runs.ipynb, "Workshop D: Runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["StoppedRun", "RunState", "Run", "Trainer"]


# %% book/D-runs.ipynb · Reasons to stop · [runs-trainer-imports]
import hashlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.runs.averaging import MovingAverage
from transformer.runs.checkpoints import (
    CheckpointError,
    check_weights,
    load_checkpoint,
    newest_whole,
    save_checkpoint,
    set_weights,
)
from transformer.runs.distributed import from_all, from_first, largest, rank_and_world_size
from transformer.runs.folder import RunFolder, append_log, read_log, write_log
from transformer.runs.journal import LogLine, latest_numbers, progress_bar, score_of
from transformer.runs.precision import autocast
from transformer.runs.stream import BatchStream, EpochBatches, random_state, restore_random, set_random_state
from transformer.runs.update import RateSchedule, SummedLoss, TrainingConfig, Updater, check_finite
from transformer.speed.fast import accelerated
from transformer.training import evaluating
from transformer.validation import check_number, check_size, check_type


# %% book/D-runs.ipynb · Reasons to stop · [stopped-run]
class StoppedRun(KeyboardInterrupt):
    """Raised by `Trainer.fit` when SIGINT, SIGTERM or SIGHUP asks the process to end.

    Attributes:
        signal: number of the signal.
        step: number of updates made.
    """

    signal: int
    step: int

    def __init__(self, message: str, number: int, step: int) -> None:
        super().__init__(message)
        self.signal, self.step = number, step


# %% book/D-runs.ipynb · Reasons to stop · [noted-signals]
# SIGHUP, where there is one, says that the terminal has been closed.
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    # The signals that ask the process to end, noted instead of obeyed. A second one is obeyed, but
    # not within a second, because Ctrl-C reaches every process, and a launcher passes it on again.
    noted: list[int] = []
    times: list[float] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        times.append(time.perf_counter())
        if times[-1] - times[0] > 1:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    found = {number: signal.getsignal(number) for number in _ENDINGS}
    before: dict[int, Any] = {
        number: how for number, how in found.items() if how not in (None, signal.SIG_IGN)
    }
    if threading.current_thread() is not threading.main_thread():
        before = {}  # only the main thread may handle signals
    try:
        for number in before:
            signal.signal(number, note)
        yield noted
    finally:
        for number, how in before.items():
            signal.signal(number, how)


# %% book/D-runs.ipynb · Reasons to stop · [reason-to-stop]
def _reason_to_stop(signals: list[int], deadline: float | None = None) -> int:
    # 0 for none, 1 if time is over by the first process's clock, or the number of a signal; the
    # same in all processes, because they ask after the same update.
    late = deadline is not None and time.monotonic() >= deadline
    first = rank_and_world_size()[0] == 0
    return largest(max(signals, default=int(late and first)))


# %% book/D-runs.ipynb · Settings that must agree · [fingerprint]
def _fingerprint(batch: Any) -> str:
    # Of all tensors in nested tuples, lists and dictionaries; whatever else a batch holds is left out.
    total = hashlib.sha256()
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            numbers = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            total.update(f"{part.dtype} {list(part.shape)}".encode() + numbers.numpy().tobytes())
        elif isinstance(part, Mapping | list | tuple):
            waiting += part.values() if isinstance(part, Mapping) else part
    return total.hexdigest()[:16]


# %% book/D-runs.ipynb · Settings that must agree · [settings]
_REMEMBERED = {f"rate of update {step}": step for step in (1, 10, 100)}


def _settings(run: "RunState", remembered: Iterable[str]) -> dict[str, str]:
    # What must be the same when a run goes on, as text that a checkpoint holds and a message shows.
    may_change = ("steps", "keep")
    found = {name: value for name, value in vars(run.config).items() if name not in may_change}
    if is_dataclass(of_model := getattr(run.model, "config", None)):
        found |= {f"model.{name}": value for name, value in vars(of_model).items()}
    words = {name: repr(value) for name, value in found.items()}
    for name in remembered:
        check_number(**{name: (rate := run.schedule(_REMEMBERED[name]))})
        words[name] = f"{rate:.6e}"  # another machine may round differently
    options = vars(run.loss) if is_dataclass(run.loss) else getattr(run.loss, "keywords", {})
    plain = {name: value for name, value in options.items() if isinstance(value, float | int | str)}
    return words | {"options of the loss": repr(plain), "first batch": run.fingerprint}


def _tell_of_schedule(run: "RunState", steps: int, rate: float) -> None:
    # What a run that was planned for so many steps, and made its last update at this rate, has to expect.
    now = run.schedule(run.step)
    if f"{now:.6e}" != f"{rate:.6e}":
        said = f"the schedule is now that of {run.config.steps:,} updates and no longer of {steps:,}"
        here = f"update {run.step:,} had the rate {rate:.1e}, and would have {now:.1e}"
        warnings.warn(f"{said}: {here}", stacklevel=7)


def _check_settings(found: Any, own: dict[str, str], path: Path, prolonged: bool) -> None:
    # A run that is made longer may have another schedule.
    if not isinstance(found, dict) or found.keys() != own.keys():
        raise CheckpointError(f"{path} cannot be resumed from: its settings are other ones")
    compared = [name for name in own if not (prolonged and name in _REMEMBERED)]
    changed = [f"{n} = {found[n]!s:.60} and not {own[n]}" for n in compared if found[n] != own[n]]
    if changed:
        raise CheckpointError(f"{path} belongs to a run with {', '.join(changed)}")


# %% book/D-runs.ipynb · What a run consists of · [run-state]
class RunState:
    """What a training run consists of; its arguments are those of `Trainer`.

    Attributes:
        model: what is trained: the given one, accelerated where it can be.
        updater, stream, line: the `Updater`, the `BatchStream` with the place in the data, and the
            `LogLine` that has begun.
        device, precision, average: as in `Updater`.
        step: number of updates made.
        settled: whether what the last update made due is done: line, evaluation, checkpoint.
        best, best_step, stale: the best score, the update it was reached at, and the number of
            evaluations since.
        history: the entries of the log.
        rank, world_size: which process this is, and how many there are.
    """

    model: Any
    loss: SummedLoss
    batches: EpochBatches
    schedule: RateSchedule
    config: TrainingConfig
    rank: int
    world_size: int
    updater: Updater
    device: torch.device
    precision: str
    average: MovingAverage | None
    stream: BatchStream
    line: LogLine
    step: int
    best: float
    best_step: int
    stale: int

    def __init__(
        self, model: nn.Module, loss: SummedLoss, batches: EpochBatches, schedule: RateSchedule,
        config: TrainingConfig,
    ) -> None:
        check_type(nn.Module, model=model)
        check_type(TrainingConfig, config=config)
        check_type(Callable, loss=loss, schedule=schedule)  # type: ignore[arg-type]
        self.model = accelerated(model, stacklevel=5)  # where a trainer is made
        self.loss, self.batches, self.schedule, self.config = loss, batches, schedule, config
        self.rank, self.world_size = rank_and_world_size()
        self.updater = updater = Updater(self.model, loss, config)
        self.device, self.precision = updater.device, updater.precision
        self.average = updater.average
        shares = (config.accumulate, self.rank, self.world_size)
        self.stream = BatchStream(batches, *shares, config.seed)
        self.line = LogLine(check_norms=not updater.scaler.is_enabled())
        self.step, self.settled = 0, True
        self.best, self.best_step, self.stale = -math.inf, 0, 0
        self.history: list[dict[str, float]] = []

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the first batch of all."""
        return _fingerprint(self.stream.first())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        made = [name for name, step in _REMEMBERED.items() if step <= self.step]
        return {
            "settings": _settings(self, made),
            "plan": {"steps": self.config.steps, "rate": self._rate()},
            "model": self.model.state_dict(),
            **self.updater.state_dict(),
            "progress": {
                "step": self.step, "epoch": self.stream.epoch, "position": self.stream.position,
                "best": self.best, "best_step": self.best_step, "stale": self.stale,
            },
            "settled": self.settled,
            "line": self.line.state_dict(),
            "random": from_all(random_state(self.device)),
        }

    def _rate(self) -> float:
        return float(self.schedule(self.step)) if self.step else 0.0  # of the last update

    def load_state_dict(self, state: dict[str, Any], path: Path) -> None:
        """Go on from what `state_dict` returned and `path` held, once the model has its weights."""
        self.updater.load_state_dict(state)
        self.line.load_state_dict(state["line"], self.device)
        self._set_progress(**state["progress"])
        self.settled = state.get("settled") is not False  # checkpoints of old do not say
        restore_random(state["random"], self.device, path)

    def _set_progress(
        self, step: int, epoch: int, position: int, best: float, best_step: int, stale: int
    ) -> None:
        check_type((int, float), best=best)
        counts = {"step": step, "epoch": epoch, "position": position}
        check_size(minimum=0, **counts, best_step=best_step, stale=stale)
        self.step, self.best, self.best_step, self.stale = step, best, best_step, stale
        self.stream.epoch, self.stream.position = epoch, position


# %% book/D-runs.ipynb · How it is kept · [run-alone]
@contextmanager
def _alone(folder: RunFolder | None) -> Iterator[None]:
    # The first process holds the lock on the folder; the others are told if it is taken.
    with ExitStack() as stack:
        fault = ""
        if folder is not None and rank_and_world_size()[0] == 0:
            try:
                stack.enter_context(folder.locked())
            except BlockingIOError as error:
                fault = str(error)
        if fault := from_first(fault):
            raise BlockingIOError(fault)
        yield


# %% book/D-runs.ipynb · How it is kept · [run]
class Run(RunState):
    """A training run that is kept in a folder; its arguments are those of `Trainer`."""

    directory: Path | None
    folder: RunFolder | None

    def __init__(
        self, model: nn.Module, loss: SummedLoss, batches: EpochBatches, schedule: RateSchedule,
        config: TrainingConfig, directory: os.PathLike[str] | str | None = None,
    ) -> None:
        super().__init__(model, loss, batches, schedule, config)
        if directory is not None and not isinstance(directory, RunFolder):
            directory = RunFolder(directory)
        self.folder = directory
        self.directory = None if self.folder is None else self.folder.path

    def checkpoints(self) -> list[Path]:
        """The checkpoints in the directory, oldest first."""
        return [] if self.folder is None else self.folder.checkpoints()

    def save(self) -> None:
        """Write a checkpoint, and best weights if these are; keep the newest `config.keep`."""
        if self.folder is None:
            return
        state = self.state_dict()
        if self.rank == 0:
            save_checkpoint(self.folder.checkpoint(self.step), state)
            self._tidy(self.folder)
        from_first(None)  # no process goes on before the file is there

    def _tidy(self, folder: RunFolder) -> None:
        # What follows the checkpoint of this step. If the run was cut off after it, resuming does this.
        if 0 < self.best_step == self.step:
            with self.updater.averaged():
                best = {"model": self.model.state_dict(), "step": self.step, "score": self.best}
                save_checkpoint(folder.best, best)
        folder.tidy(self.step, self.config.keep)

    def resume(self) -> bool:
        """Take up the newest whole checkpoint in the directory; return whether there was one.

        Raises:
            CheckpointError: no checkpoint is whole, or all are gone from a run; or the newest
                whole one is of another model, of other settings (except `steps` and `keep`), of
                another schedule (unless `steps` is raised), loss or first batch as far as a
                checkpoint tells, or in another format. Nothing in the directory has changed then.
            BlockingIOError: another process is training in the directory.
        """
        if self.folder is None:
            return False
        with _alone(self.folder):
            path, state = newest_whole(self.checkpoints()) if self.rank == 0 else (None, None)
            path = from_first(path)
            if path is None:
                self.folder.check_unused()
                return False
            self._restore(state or load_checkpoint(path), path)
            log, last = read_log(self.folder.path), self.step if self.settled else self.step - 1
            self.history = [entry for entry in log if entry["step"] <= last]
            if self.rank == 0:
                write_log(self.folder.path, self.history)
                self._tidy(self.folder)
                self.folder.note_config()
            return True

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        check_weights(self.model, state, path)
        settings = state.get("settings")
        made = [name for name in _REMEMBERED if isinstance(settings, dict) and name in settings]
        plan = state.get("plan") or {"steps": math.inf}  # checkpoints of old have none
        prolonged = isinstance(plan, dict) and plan["steps"] < self.config.steps
        _check_settings(settings, _settings(self, made), path, prolonged)
        set_weights(self.model, state, path)
        try:
            self.load_state_dict(state, path)
            if prolonged and self.step:
                _tell_of_schedule(self, **plan)
        except Exception as error:  # weights alone, or another program's checkpoint
            message = f"{path} cannot be resumed from ({type(error).__name__}: {error})"
            raise CheckpointError(message) from error

    def load_best(self) -> None:
        """Give the model the weights that `config.monitor` found best.

        Raises:
            ValueError: the trainer has no directory.
            FileNotFoundError: nothing has been evaluated yet.
            CheckpointError: the file is damaged, or belongs to another model.
        """
        if self.folder is None:
            raise ValueError("a trainer without a directory keeps no best weights")
        set_weights(self.model, load_checkpoint(self.folder.best), self.folder.best)


# %% book/D-runs.ipynb · How it goes · [trainer-parts]
_Evaluation = Callable[[Any], Mapping[str, float]]


def _metrics(run: RunState, evaluate: _Evaluation) -> dict[str, float]:
    with run.updater.averaged(), evaluating(run.model), autocast(run.device, run.precision):
        metrics = evaluate(run.model)
    check_type(Mapping, **{"evaluate(model)": metrics})
    if taken := metrics.keys() & {"step", "rate", "norm", "seconds", "crc"}:
        raise ValueError(f"evaluate returned {sorted(taken)}, which the log uses itself")
    return {name: float(value) for name, value in metrics.items()}


def _stopped(run: Run, number: int) -> StoppedRun:
    kept = " with a checkpoint; the same call goes on from there" if run.folder else ""
    message = f"stopped at step {run.step:,} of {run.config.steps:,}{kept}"
    return StoppedRun(message, number, run.step)


# %% book/D-runs.ipynb · How it goes · [trainer]
class Trainer(Run):
    """Trains a model: batches in; updates, log, evaluations and checkpoints out.

    A run that has a directory can be resumed. Inside a `process_group` of several processes, each
    has a trainer, and the trainers make one run; the directory is one that all of them see. With
    `config.average`, the averaged weights are what is evaluated and kept as the best.

    Args:
        model: the model, on the device that it is to be trained on. A `Transformer` is accelerated,
            and where `accelerate` refuses, a warning says why; a hook set later is not called.
        loss: `loss(model, batch)` returns the summed loss and the number of target tokens.
        batches: `batches(epoch)` returns an epoch's batches. The same epoch must give the same
            batches every time, in every process: this is what resuming rests on. A list serves for
            every epoch; a `DataLoader` shuffles by the epoch's number and `config.seed`.
        schedule: `schedule(step)` returns the learning rate of update `step`, counted from 1.
        config: the run's settings.
        directory: where log and checkpoints go: a path, or a `RunFolder` that the caller may have
            locked; `None` for nowhere.
        evaluate: `evaluate(model)` returns metrics; it is called in evaluation mode without gradients,
            and only by the first of several processes. The first call comes before the first update
            and is a trial, which leaves no trace.
        progress: whether to show a progress bar.

    Attributes:
        model, step, best, best_step, stale, device, precision, average, rank, world_size: as in
            `RunState`.
        history: one entry per log line: step, epoch, loss, rate, gradient norm, tokens and seconds;
            or step and metrics.

    Example:
        >>> model, x = nn.Linear(1, 1), torch.ones(4, 1)
        >>> loss = lambda model, x: ((model(x) - 2).square().sum(), torch.tensor(len(x)))
        >>> config = TrainingConfig(steps=6, log_every=2)
        >>> trainer = Trainer(model, loss, lambda epoch: [x], lambda step: 0.1, config).fit()
        >>> [entry["step"] for entry in trainer.history]
        [2, 4, 6]
    """

    evaluate: _Evaluation | None
    progress: bool

    def __init__(
        self, model: nn.Module, loss: SummedLoss, batches: EpochBatches, schedule: RateSchedule,
        config: TrainingConfig, directory: os.PathLike[str] | str | None = None,
        evaluate: _Evaluation | None = None, progress: bool = False,
    ) -> None:
        super().__init__(model, loss, batches, schedule, config, directory)
        check_type((Callable, type(None)), evaluate=evaluate)  # type: ignore[arg-type]
        self.evaluate, self.progress = evaluate, progress
        self._random: dict[str, Tensor] | None = None  # between two calls of `fit`

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or patience is at its end."""
        return self.step >= self.config.steps or 0 < self.config.patience <= self.stale

    def fit(self, max_minutes: float | None = None) -> "Trainer":
        """Train until the run is finished, from the newest checkpoint if there is one.

        Args:
            max_minutes: when this time is over, the call ends after the update in progress, with a
                checkpoint, and the next call goes on; `None` for no limit.

        Returns:
            the trainer; its model is in training mode.

        Raises:
            StoppedRun: SIGINT, SIGTERM or SIGHUP came, if this is the main thread. The update in
                progress was finished and, where there is a directory, a checkpoint written.
            FloatingPointError: the loss, its gradient or the metric to monitor is not finite.
            ValueError: an epoch has no batch, or the metric to monitor is missing.
            CheckpointError, BlockingIOError: as in `resume`.

        Any other error leaves a checkpoint of the last whole update, if there is a directory, this is
        the only process, and all numbers are finite.
        """
        check_number(max_minutes=0 if max_minutes is None else max_minutes)
        deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        with _alone(self.folder):
            self._begin()
            with _noted_signals() as signals:
                try:
                    self._loop(signals, deadline)
                except Exception:
                    self._rescue()
                    raise
            self._random = random_state(self.device)
            stop = _reason_to_stop(signals)
        if stop:
            raise _stopped(self, stop)
        return self

    def _begin(self) -> None:
        torch.manual_seed(self.config.seed * self.world_size + self.rank)
        if not self.resume():
            if self._random is not None:
                set_random_state(self._random, self.device)
            if self.step == 0 and self.evaluate is not None:
                self._try(self.evaluate)
            if self.folder is not None and self.rank == 0:
                self.folder.note_config()
            self.save()  # before the log begins, so that no log is without a checkpoint
        self.model.train()
        self._mark()

    def _try(self, evaluate: _Evaluation) -> None:
        # What is wrong with an evaluation should not come out after a thousand updates.
        before = random_state(self.device)
        metrics = from_first(_metrics(self, evaluate) if self.rank == 0 else None)
        score_of(metrics, self.config.monitor)
        set_random_state(before, self.device)

    def _loop(self, signals: list[int], deadline: float | None) -> None:
        stop, config = 0, self.config
        bar = progress_bar(config.steps, self.step, self.progress and self.rank == 0)
        with closing(iter(self.stream)) as groups, bar as show:
            while not (stop or self.finished and self.settled):
                if self.settled:
                    self._make_update(groups)
                stop = _reason_to_stop(signals, deadline)
                due = self.step % config.evaluate_every == 0 or self.step == config.steps
                line = due or self.step % config.log_every == 0
                if line:
                    self._log(self.line.entry(self.schedule(self.step)))
                if due and self.evaluate is not None:
                    self._evaluate(self.evaluate)
                if line:
                    self.line.clear()
                self.settled = True
                self._mark()
                show(self.step, latest_numbers(self.history) if line else {})
                if due or stop:
                    self.save()

    def _make_update(self, groups: Iterator[list[Any]]) -> None:
        start = time.perf_counter()
        numbers = self.update(next(groups))
        place = {"step": self.step, "epoch": self.stream.epoch, "batch": self.stream.position}
        rate = f"{self.schedule(self.step):.2e}"
        self.line.add(numbers, place | {"learning rate": rate}, time.perf_counter() - start)
        self.settled = False
        self._mark()

    def update(self, batches: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Make an update from the mean loss over all target tokens of this process's `batches`.

        Returns:
            summed loss and number of target tokens of these batches, and the gradient's norm before
            clipping; tensors all.
        """
        rate = self.schedule(self.step + 1)
        check_number(**{f"schedule({self.step + 1})": rate})
        numbers = self.updater(batches, rate)
        self.step += 1
        return numbers

    def _mark(self) -> None:
        # Where the run is, to come back to after an error in what follows.
        place = (self.step, self.stream.epoch, self.stream.position)
        self._marked = *place, random_state(self.device)

    def _rescue(self) -> None:
        # A checkpoint of the last whole update. Of several processes, one cannot know where the others are.
        step, epoch, position, random = self._marked
        if self.folder is None or self.world_size > 1 or self.updater.stepping or step != self.step:
            return
        with suppress(Exception):  # the error to tell of is the one that came first
            whole = all(bool(p.isfinite().all()) for p in self.updater.parameters)
            if whole and not self.folder.checkpoint(step).exists():
                self.stream.epoch, self.stream.position = epoch, position
                set_random_state(random, self.device)
                self.save()

    def _log(self, entry: dict[str, float]) -> None:
        self.history.append(entry)
        if self.directory is not None and self.rank == 0:
            append_log(self.directory, entry)

    def _evaluate(self, evaluate: _Evaluation) -> None:
        metrics = from_first(_metrics(self, evaluate) if self.rank == 0 else None)
        score = score_of(metrics, self.config.monitor)
        check_finite(f"metric {self.config.monitor}", torch.tensor([score]), [{"step": self.step}])
        self._log({"step": self.step, **metrics})
        self.stale += 1
        if score > self.best:
            self.best, self.best_step, self.stale = score, self.step, 0
