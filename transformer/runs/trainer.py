"""The trainer: a run that can be stopped and goes on exactly."""

import hashlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.files import CheckpointError
from transformer.model import Transformer
from transformer.runs.checkpoints import load_checkpoint, newest_whole, save_checkpoint, whole
from transformer.runs.distributed import from_first, largest, rank_and_world_size
from transformer.runs.folder import RunFolder
from transformer.runs.journal import Journal, Scores
from transformer.runs.stream import BatchStream, EpochBatches, RandomNumbers, random_state, set_random_state
from transformer.runs.update import Evaluation, RateSchedule, SummedLoss, TrainingConfig, Updater
from transformer.speed.fast import accelerated
from transformer.validation import check_number, check_type
from transformer.weights import (
    check_weights,
    is_compiled,
    original,
    plain_state,
    plain_transformer,
    set_weights,
)

__all__ = ["StoppedRun", "Stop", "Settings", "Keeper", "Trainer"]


class StoppedRun(KeyboardInterrupt):
    """Raised by `Trainer.fit` in the main thread, when SIGINT, SIGTERM or SIGHUP asks the process to
    end. The update in progress was finished and, where there is a directory, a checkpoint written.

    Attributes:
        signal: number of the signal.
        step: number of updates made.
    """

    signal: int
    step: int

    def __init__(self, message: str, number: int, step: int) -> None:
        super().__init__(message)
        self.signal, self.step = number, step


# SIGHUP, where there is one, says that the terminal has been closed.
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def _noted_in(noted: list[int]) -> Iterator[None]:
    # The signals that ask the process to end, noted instead of obeyed. A second one is obeyed, but
    # not within a second, because Ctrl-C reaches every process, and a launcher passes it on again.
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
        yield
    finally:
        for number, how in before.items():
            signal.signal(number, how)


class Stop:
    """Says when a call of `Trainer.fit` ends before its run does.

    Args:
        max_minutes: the time that the call has; `None` for no limit.
    """

    deadline: float | None
    signals: list[int]

    def __init__(self, max_minutes: float | None = None) -> None:
        check_number(max_minutes=0 if max_minutes is None else max_minutes)
        self.deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        self.signals = []

    def noting(self) -> AbstractContextManager[None]:
        """A context in which the signals that ask the process to end are noted instead of obeyed."""
        return _noted_in(self.signals)

    def is_due(self) -> bool:
        """Whether time is over by the first process's clock, or a signal has come; the same in all
        processes, because they ask after the same update."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        first = rank_and_world_size()[0] == 0
        return largest(int(bool(self.signals) or (late and first))) > 0

    def obey(self, step: int, steps: int, kept: bool) -> None:
        """Raise `StoppedRun` if any process has noted a signal."""
        if number := largest(max(self.signals, default=0)):
            how = " with a checkpoint; the same call goes on from there" if kept else ""
            raise StoppedRun(f"stopped at step {step:,} of {steps:,}{how}", number, step)


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


_REMEMBERED = {f"rate of update {step}": step for step in (1, 10, 100)}


class Settings:
    """What must be the same when a run goes on.

    Args:
        updater, stream: parts of the run.
        loss, config: as in `Trainer`.

    Attributes:
        fingerprint: a checksum of the first batch of all.
    """

    updater: Updater
    stream: BatchStream
    loss: SummedLoss
    config: TrainingConfig

    def __init__(
        self, updater: Updater, stream: BatchStream, loss: SummedLoss, config: TrainingConfig
    ) -> None:
        self.updater, self.stream, self.loss, self.config = updater, stream, loss, config

    @cached_property
    def fingerprint(self) -> str:
        return _fingerprint(self.stream.first())

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint says of them, and of what was planned."""
        step = self.updater.step
        made = [name for name, number in _REMEMBERED.items() if number <= step]
        rate = float(self.updater.schedule(step)) if step else 0.0
        return {"words": self._words(made), "plan": {"steps": self.config.steps, "rate": rate}}

    def check(self, state: Any, path: Path) -> None:
        """Refuse a checkpoint of other settings; a run that is made longer may have another schedule."""
        found, plan = (state.get(name) if isinstance(state, dict) else None for name in ("words", "plan"))
        made = [name for name in _REMEMBERED if isinstance(found, dict) and name in found]
        own = self._words(made)
        if not isinstance(found, dict) or found.keys() != own.keys():
            raise CheckpointError(f"{path} cannot be resumed from: its settings are other ones")
        prolonged = isinstance(plan, dict) and plan["steps"] < self.config.steps
        compared = [name for name in own if not (prolonged and name in _REMEMBERED)]
        changed = [f"{n} = {found[n]!s:.60} and not {own[n]}" for n in compared if found[n] != own[n]]
        if changed:
            raise CheckpointError(f"{path} belongs to a run with {', '.join(changed)}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Say what a run has to expect that was planned for fewer updates; the updater knows its step."""
        (steps, rate), step = (state["plan"][name] for name in ("steps", "rate")), self.updater.step
        if steps >= self.config.steps or not step:
            return
        now = self.updater.schedule(step)
        if f"{now:.6e}" != f"{rate:.6e}":
            said = f"the schedule is now that of {self.config.steps:,} updates and no longer of {steps:,}"
            here = f"update {step:,} had the rate {rate:.1e}, and would have {now:.1e}"
            warnings.warn(f"{said}: {here}", stacklevel=6)  # where `fit` was called

    def _words(self, remembered: Iterable[str]) -> dict[str, str]:
        # As text that a checkpoint holds and a message shows.
        may_change = ("steps", "keep")
        found = {name: value for name, value in vars(self.config).items() if name not in may_change}
        if is_dataclass(of_model := getattr(self.updater.model, "config", None)):
            found |= {f"model.{name}": value for name, value in vars(of_model).items()}
        words = {name: repr(value) for name, value in found.items()}
        for name in remembered:
            check_number(**{name: (rate := self.updater.schedule(_REMEMBERED[name]))})
            words[name] = f"{rate:.6e}"  # another machine may round differently
        options = vars(self.loss) if is_dataclass(self.loss) else getattr(self.loss, "keywords", {})
        plain = {name: value for name, value in options.items() if isinstance(value, float | int | str)}
        return words | {"options of the loss": repr(plain), "first batch": self.fingerprint}


class Keeper:
    """Keeps a run in its folder, for all its processes; without a folder it keeps nothing.

    Args:
        run: what is kept.
        directory: where, as in `Trainer`.

    Attributes:
        folder: the directory as a `RunFolder`; `None` for nowhere.
        settled: whether what the last update made due is done.
    """

    run: "Trainer"
    folder: RunFolder | None
    first: bool
    settled: bool

    def __init__(self, run: "Trainer", directory: os.PathLike[str] | str | None) -> None:
        self.run, self.settled = run, True
        self.folder = directory if isinstance(directory, RunFolder | None) else RunFolder(directory)
        self.first = rank_and_world_size()[0] == 0  # the process that writes

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs out. The first process holds the lock; the others are told if it is taken."""
        with ExitStack() as stack:
            fault = ""
            if self.folder is not None and self.first:
                try:
                    stack.enter_context(self.folder.locked())
                except BlockingIOError as error:
                    fault = str(error)
            if fault := from_first(fault):
                raise BlockingIOError(fault)
            yield

    def begin(self) -> None:
        """Go on from the newest checkpoint, or evaluate on trial and write the first one, before the log
        begins, so that no log is without a checkpoint."""
        if self.resume():
            return
        if self.run.step == 0:
            self.run.scores.trial()
        if self.folder is not None and self.first:
            self.folder.note_config()
        self.save()

    def save(self) -> None:
        """Write a checkpoint of all processes, and then the best weights, if these are the best."""
        if self.folder is None:
            return
        state = self._whole(self.run.state_dict())
        if self.first:
            save_checkpoint(self.folder.checkpoint(self.run.step), state)
        self._tidy(self.folder)
        from_first(None)  # no process goes on before the file is there

    def _whole(self, state: dict[str, Any]) -> dict[str, Any]:
        return whole(state) if self.run.updater.shard else state

    def _tidy(self, folder: RunFolder) -> None:
        # What follows the checkpoint of this step. If the run was cut off after it, resuming does this.
        run = self.run
        if 0 < run.scores.best_step == run.step:
            with run.updater.averaged():
                best = {"model": plain_state(run.model), "step": run.step, "score": run.scores.best}
                best = self._whole(best)
                if self.first:
                    save_checkpoint(folder.best, best)
        if self.first:
            folder.tidy(run.step, run.config.keep)

    def resume(self) -> bool:
        """Take up the newest whole checkpoint, chosen by the first process; return whether there was one.

        Raises:
            CheckpointError: no checkpoint is whole, or all are gone from a run; or the newest
                whole one is of another model, of other settings (except `steps` and `keep`), of
                another schedule (unless `steps` is raised), loss or first batch as far as a
                checkpoint tells, or in another format. Nothing in the directory has changed then.
            BlockingIOError: another process is training in the directory.
        """
        if self.folder is None:
            return False
        with self.alone():
            path, state = newest_whole(self.folder.checkpoints()) if self.first else (None, None)
            path = from_first(path)
            if path is None:
                self.folder.check_unused()
                return False
            self._restore(state or load_checkpoint(path), path)
            self.run.journal.take_up(self.run.step if self.settled else self.run.step - 1)
            self._tidy(self.folder)
            if self.first:
                self.folder.note_config()
            return True

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        check_weights(self.run.model, state, path)
        try:
            state = _by_parts(state)
            self.run.settings.check(state.get("settings"), path)
            set_weights(self.run.model, state, path)
            self.run.load_state_dict(state)
        except CheckpointError:
            raise
        except Exception as error:  # weights alone, or another program's checkpoint
            message = f"{path} cannot be resumed from ({type(error).__name__}: {error})"
            raise CheckpointError(message) from error

    def checkpoints(self) -> list[Path]:
        """The checkpoints in the folder, oldest first."""
        return [] if self.folder is None else self.folder.checkpoints()

    def load_best(self) -> None:
        """Give the model the weights that `config.monitor` found best.

        Raises:
            ValueError: there is no folder.
            FileNotFoundError: nothing has been evaluated yet.
            CheckpointError: the file is damaged, or belongs to another model.
        """
        if self.folder is None:
            raise ValueError("a trainer without a directory keeps no best weights")
        set_weights(self.run.model, load_checkpoint(self.folder.best), self.folder.best)

    def mark(self, settled: bool) -> None:
        """Note where the run is, to come back to after an error in what follows."""
        run, self.settled = self.run, settled
        self._marked = run.step, run.stream.state_dict(), random_state(run.updater.device)

    @contextmanager
    def rescuing(self) -> Iterator[None]:
        """A context that leaves a checkpoint of the last whole update after an error inside it, if
        there is a folder, this is the only process, and all numbers are finite."""
        self.mark(self.settled)
        try:
            yield
        except Exception:
            with suppress(Exception):  # the error to tell of is the one that came first
                self._rescue()
            raise

    def _rescue(self) -> None:
        (step, place, random), run = self._marked, self.run
        if run.stream.world_size > 1:  # one process cannot know where the others are
            return
        if self.folder is None or run.updater.stepping or step != run.step:
            return
        finite = all(bool(p.isfinite().all()) for p in run.updater.parameters)
        if finite and not self.folder.checkpoint(step).exists():
            run.stream.load_state_dict(place)
            set_random_state(random, run.updater.device)
            self.save()

    def state_dict(self) -> dict[str, bool]:
        """What a checkpoint needs."""
        return {"settled": self.settled}

    def load_state_dict(self, state: dict[str, bool]) -> None:
        """Go on from what `state_dict` returned."""
        check_type(bool, settled=state["settled"])
        self.settled = state["settled"]


def _by_parts(state: dict[str, Any]) -> dict[str, Any]:
    # What a checkpoint of version 0.2.0 held, whose parts were not apart yet.
    if "progress" not in state:
        return state
    progress, taken = state["progress"], lambda part, *names: {name: part[name] for name in names}
    return {
        "model": state["model"],
        "updater": taken(progress, "step") | taken(state, "optimizer", "scaler", "average"),
        "stream": taken(progress, "epoch", "position"),
        "random": state["random"],
        "journal": state["line"],
        "scores": taken(progress, "best", "best_step", "stale"),
        "keeper": {"settled": state.get("settled", True)},
        "settings": {"words": state["settings"], "plan": state.get("plan", {"steps": math.inf, "rate": 0.0})},
    }


_PUBLISHED = "output.bias", "positions.table"  # what models from elsewhere have, which `exchange` can keep


def _check_parts(
    model: Any, loss: Any, schedule: Any, config: Any, evaluate: Evaluation | None
) -> None:
    check_type(nn.Module, model=model)
    check_type(TrainingConfig, config=config)
    check_type(Callable, loss=loss, schedule=schedule)
    check_type((Callable, type(None)), evaluate=evaluate)
    if isinstance(original(model), Transformer):
        plain_transformer(model, besides=_PUBLISHED)  # now, and not once it is trained and to be saved


class Trainer:
    """Trains a model: batches in; updates, log, evaluations and checkpoints out.

    A run that has a directory can be resumed. Inside a `process_group` of several processes, each
    has a trainer, and the trainers make one run; the directory is one that all of them see. With
    `config.average`, the averaged weights are what is evaluated and kept as the best.

    Args:
        model: any module, on the device that it is to be trained on. A `Transformer` that is not compiled
            is accelerated, or a warning says why not; a hook set later is not called.
        loss: `loss(model, batch)` returns the summed loss and the number of target tokens.
        batches: `batches(epoch)` returns an epoch's batches, the same ones every time and in every
            process, on which resuming rests; or a list, or a `DataLoader`, as in `BatchStream`.
        schedule: `schedule(step)` returns the learning rate of update `step`, counted from 1.
        config: the run's settings.
        directory: of log and checkpoints, a path or a `RunFolder` that may be locked already; or `None`.
        evaluate: `evaluate(model)` returns metrics, in evaluation mode and without gradients. Only the
            first of several processes calls it, and once before the first update, as a trial.
        progress: whether to show a progress bar.
        shard: whether the processes share the model out among them, as `sharded` describes.

    Attributes:
        updater, stream, random, journal, scores, keeper, settings: its parts; a checkpoint holds them.
        history: the lines of the log.

    Example:
        >>> model, x = nn.Linear(1, 1), torch.ones(4, 1)
        >>> loss = lambda model, x: ((model(x) - 2).square().sum(), torch.tensor(len(x)))
        >>> config = TrainingConfig(steps=6, log_every=2)
        >>> trainer = Trainer(model, loss, lambda epoch: [x], lambda step: 0.1, config).fit()
        >>> [entry["step"] for entry in trainer.history]
        [2, 4, 6]
    """

    PARTS: tuple[str, ...] = ("updater", "stream", "random", "journal", "scores", "keeper", "settings")

    def __init__(
        self, model: nn.Module, loss: SummedLoss, batches: EpochBatches, schedule: RateSchedule,
        config: TrainingConfig, directory: os.PathLike[str] | str | None = None,
        evaluate: Evaluation | None = None, progress: bool = False, shard: bool = False,
    ) -> None:
        _check_parts(model, loss, schedule, config, evaluate)
        self.model: Any = model if is_compiled(model) else accelerated(model, stacklevel=3)
        self.config: TrainingConfig = config
        self.keeper: Keeper = Keeper(self, directory)
        self.updater: Updater = Updater(self.model, loss, schedule, config, shard)
        size, (rank, world_size) = config.accumulate, rank_and_world_size()
        self.stream: BatchStream = BatchStream(batches, size, rank, world_size, config.seed)
        self.random: RandomNumbers = RandomNumbers(config.seed, self.updater.device)
        self.journal: Journal = Journal(self.updater, self.stream, self.keeper.folder, progress)
        self.history: list[dict[str, float]] = self.journal.history
        self.scores: Scores = Scores(self.updater, evaluate, config.monitor)
        self.settings: Settings = Settings(self.updater, self.stream, loss, config)

    @property
    def step(self) -> int:
        """Updates made."""
        return self.updater.step

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or patience is at its end."""
        return self.step >= self.config.steps or 0 < self.config.patience <= self.scores.stale

    def fit(self, max_minutes: float | None = None) -> "Trainer":
        """Train until the run is finished, from the newest checkpoint if there is one.

        Args:
            max_minutes: when the call ends with a checkpoint, and the next goes on; `None` for never.

        Raises:
            StoppedRun: a signal asked the process to end.
            FloatingPointError: the loss, its gradient or the metric to monitor is not finite.
            ValueError: an epoch has no batch, or the metric to monitor is missing.
            CheckpointError, BlockingIOError: as in `Keeper.resume`; and see `Keeper.rescuing`.
        """
        stop = Stop(max_minutes)
        with self.keeper.alone():
            self.random.begin()
            self.keeper.begin()
            with stop.noting(), self.keeper.rescuing():
                self._loop(stop)
            self.random.pause()
            stop.obey(self.step, self.config.steps, kept=self.keeper.folder is not None)
        return self

    def _loop(self, stop: Stop) -> None:
        config, keeper, journal = self.config, self.keeper, self.journal
        self.model.train()
        with closing(iter(self.stream)) as groups, journal.bar(config.steps, self.step) as show:
            stopping = False
            while not (stopping or self.finished and keeper.settled):
                if keeper.settled:  # or else an error came before what the last update made due
                    start = time.perf_counter()
                    numbers = self.updater(next(groups))
                    journal.note(numbers, time.perf_counter() - start)
                    keeper.mark(settled=False)
                stopping = stop.is_due()
                due = self.step % config.evaluate_every == 0 or self.step == config.steps
                logged = due or self.step % config.log_every == 0
                if logged:
                    journal.write_line()
                if due:
                    self.scores.take(self.step, journal.write)
                if logged:
                    journal.line.clear()
                keeper.mark(settled=True)
                show(self.step, logged)
                if due or stopping:
                    keeper.save()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds: the weights, and the state of every part."""
        parts = {name: getattr(self, name).state_dict() for name in self.PARTS}
        return {"model": plain_state(self.model), **parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned, once the model has its weights."""
        for name in self.PARTS:
            getattr(self, name).load_state_dict(state[name])
