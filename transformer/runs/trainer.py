"""The trainer: a run that can be stopped and goes on exactly."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from torch import nn
from transformer.files import CheckpointError
from transformer.model import Transformer
from transformer.runs.checkpoints import DamagedCheckpointError, load_checkpoint, save_checkpoint
from transformer.runs.checkpoints import random_state, set_random_state
from transformer.runs.config import Evaluation, RateSchedule, SummedLoss, TrainingConfig
from transformer.runs.distributed import from_first, largest, rank_and_world_size
from transformer.runs.folder import RunFolder, RunLog, Scores, locked_by_first
from transformer.runs.stream import BatchStream, EpochBatches, RandomNumbers, fingerprint
from transformer.runs.update import Updater
from transformer.speed.fast import accelerated
from transformer.speed.graphs import UpdateGraphs
from transformer.validation import check_number, check_type
from transformer.weights import check_weights, is_compiled, original, plain_state, plain_transformer
from transformer.weights import set_weights

__all__ = ["StoppedRun", "Stop", "Settings", "Checkpointer", "Trainer"]


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

    @contextmanager
    def noting(self) -> Iterator[None]:
        """A context in which the signals that ask the process to end are noted instead of obeyed.

        A second one is obeyed, but not within a second, because Ctrl-C reaches every process, and a
        launcher passes it on again.
        """
        times: list[float] = []

        def note(number: int, frame: Any) -> None:
            self.signals.append(number)
            times.append(time.perf_counter())
            if times[-1] - times[0] > 1:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        found = {number: signal.getsignal(number) for number in _ENDINGS}
        before: dict[int, Any] = {n: how for n, how in found.items() if how not in (None, signal.SIG_IGN)}
        if threading.current_thread() is not threading.main_thread():
            before = {}  # only the main thread may handle signals
        try:
            for number in before:
                signal.signal(number, note)
            yield
        finally:
            for number, how in before.items():
                signal.signal(number, how)

    def is_due(self) -> bool:
        """Whether time is over by the first process's clock, or a signal has come; the same in all
        processes, because they ask after the same update."""
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return largest(int(bool(self.signals) or (late and rank_and_world_size()[0] == 0))) > 0

    def obey(self, step: int, steps: int, saved: bool) -> None:
        """Raise `StoppedRun` if any process has noted a signal."""
        if number := largest(max(self.signals, default=0)):
            how = " with a checkpoint, from which the same call goes on" if saved else ""
            raise StoppedRun(f"stopped at step {step:,} of {steps:,}{how}", number, step)


# Updates whose learning rate a checkpoint remembers, once they are made.
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
    loss: SummedLoss
    stream: BatchStream
    config: TrainingConfig

    def __init__(
        self, updater: Updater, stream: BatchStream, loss: SummedLoss, config: TrainingConfig
    ) -> None:
        self.updater, self.stream, self.loss, self.config = updater, stream, loss, config

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.stream.first())

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


class Checkpointer:
    """Writes and reads the checkpoints of a run, for all its processes; without a folder it does nothing.

    Args:
        folder: of the run; `None` for nowhere.
        keep: as in `TrainingConfig`.
        updater, stream, random, log, scores, settings: the parts of the run.
    """

    folder: RunFolder | None
    keep: int
    first: bool
    updater: Updater
    model: nn.Module
    log: RunLog
    scores: Scores
    settings: Settings

    def __init__(
        self, folder: RunFolder | None, keep: int, updater: Updater, stream: BatchStream,
        random: RandomNumbers, log: RunLog, scores: Scores, settings: Settings,
    ) -> None:
        self.folder, self.keep, self.updater, self.model = folder, keep, updater, updater.model
        self.log, self.scores, self.settings = log, scores, settings
        self.first = rank_and_world_size()[0] == 0  # the process that writes
        self.parts: dict[str, Any] = {  # by their names in the file, in the order in which they are loaded
            "updater": updater, "stream": stream, "random": random, "journal": log,
            "scores": scores, "settings": settings,
        }  # fmt: skip

    def begin(self) -> None:
        """Go on from the newest checkpoint, or evaluate once and write the first one, before the log
        begins, so that no log is without a checkpoint."""
        if self.resume():
            return
        if self.updater.step == 0:
            self.scores.dry_run()
        if self.folder is not None and self.first:
            self.folder.write_config()
        self.save()

    def save(self) -> None:
        """Write a checkpoint of all processes, and then the best weights, if these are the best."""
        if self.folder is None:
            return
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        if self.first:
            state = {"model": plain_state(self.model), **parts}
            save_checkpoint(self.folder.checkpoint(self.updater.step), state)
            self._follow_up(self.folder)
        from_first(None)  # no process goes on before the file is there

    def _follow_up(self, folder: RunFolder) -> None:
        # What follows the checkpoint of this step. If the run was cut off after it, resuming does this.
        if 0 < self.scores.best_step == self.updater.step:
            with self.updater.averaged():
                best = {"step": self.updater.step, "score": self.scores.best}
                save_checkpoint(folder.best, {"model": plain_state(self.model), **best})
        folder.prune(self.updater.step, self.keep)

    def resume(self) -> bool:
        """Go on from the newest whole checkpoint, chosen by the first process; return whether there was one.

        Raises:
            CheckpointError: no checkpoint is whole, or all are gone from a run; or the newest
                whole one is of another model, of other settings (except `steps` and `keep`), of
                another schedule (unless `steps` is raised), loss or first batch as far as a
                checkpoint tells, or in another format. Nothing in the directory has changed then.
            BlockingIOError: another process is training in the directory.
        """
        if self.folder is None:
            return False
        with locked_by_first(self.folder):
            path = from_first(_newest_whole(self.folder.checkpoints()) if self.first else None)
            if path is None:
                self.folder.check_unused()
                return False
            self._restore(load_checkpoint(path), path)
            self.log.reload()
            if self.first:
                self._follow_up(self.folder)
                self.folder.write_config()
            return True

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        check_weights(self.model, state, path)
        try:
            self.settings.check(state.get("settings"), path)
            set_weights(self.model, state, path)
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
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
        set_weights(self.model, load_checkpoint(self.folder.best), self.folder.best)


def _newest_whole(paths: list[Path]) -> Path | None:
    # The last whole one of some checkpoints; those after it are told of.
    damaged: list[DamagedCheckpointError] = []
    for path in reversed(paths):
        try:
            load_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for damage in damaged:
            warnings.warn(f"{damage}; going on from {path.name}", stacklevel=5)
        return path
    if damaged:
        said = f"{paths[0].parent} holds a run, but no checkpoint of it is whole"
        told = "; ".join(map(str, damaged))
        raise CheckpointError(f"{said}: {told}. Put a whole one there, or begin in another folder")
    return None


_PUBLISHED = "output.bias", "positions.table"  # what models from elsewhere have, which `exchange` can keep


def _check_parts(model: Any, loss: Any, schedule: Any, config: Any, evaluate: Evaluation | None) -> None:
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
        graphs: whether a GPU gets whole updates at once, as in `UpdateGraphs`: faster where its batches are
            small. The batches are padded, and the loss must be that of a batch, whatever else has happened.

    Attributes:
        updater, stream, random, log, scores, settings: its parts; a checkpoint holds their states.
        checkpointer: writes and reads checkpoints.
        history: the lines of the log.

    Example:
        >>> import torch
        >>> model, x = nn.Linear(1, 1), torch.ones(4, 1)
        >>> loss = lambda model, x: ((model(x) - 2).square().sum(), torch.tensor(len(x)))
        >>> config = TrainingConfig(steps=6, log_every=2)
        >>> trainer = Trainer(model, loss, lambda epoch: [x], lambda step: 0.1, config).fit()
        >>> [entry["step"] for entry in trainer.history]
        [2, 4, 6]
    """

    def __init__(
        self, model: nn.Module, loss: SummedLoss, batches: EpochBatches, schedule: RateSchedule,
        config: TrainingConfig, directory: os.PathLike[str] | str | None = None,
        evaluate: Evaluation | None = None, progress: bool = False, graphs: bool = False,
    ) -> None:
        _check_parts(model, loss, schedule, config, evaluate)
        self.model: Any = model if is_compiled(model) else accelerated(model, stacklevel=3)
        self.config: TrainingConfig = config
        folder = directory if isinstance(directory, RunFolder | None) else RunFolder(directory)
        self.updater: Updater = Updater(self.model, loss, schedule, config)
        self.graphs: UpdateGraphs | None = UpdateGraphs(self.updater, self._keep) if graphs else None
        self.stream: BatchStream = BatchStream(batches, config.accumulate, config.seed)
        self.random: RandomNumbers = RandomNumbers(config.seed, self.updater.device)
        self.log: RunLog = RunLog(self.updater, self.stream, folder, progress)
        self.history: list[dict[str, float]] = self.log.history
        self.scores: Scores = Scores(self.updater, evaluate, config.monitor)
        self.settings: Settings = Settings(self.updater, self.stream, loss, config)
        self.checkpointer: Checkpointer = Checkpointer(
            folder, config.keep, self.updater, self.stream, self.random, self.log, self.scores, self.settings
        )

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
            CheckpointError, BlockingIOError: as in `Checkpointer.resume`.
        """
        stop = Stop(max_minutes)
        graphs = nullcontext() if self.graphs is None else self.graphs.used()
        with locked_by_first(self.checkpointer.folder):
            self.random.begin()
            self.checkpointer.begin()
            with stop.noting(), graphs:
                self._loop(stop)
            self.random.pause()
            stop.obey(self.step, self.config.steps, self.checkpointer.folder is not None)
        return self

    def _keep(self) -> Callable[[], None]:
        # The state as it is now; calling what is returned goes back to it.
        device, parts = self.updater.device, (self.model, self.updater)
        states, random = deepcopy(([part.state_dict() for part in parts], random_state(device)))

        def go_back() -> None:
            for part, state in zip(parts, states):
                part.load_state_dict(state)
            set_random_state(random, device)

        return go_back

    def _loop(self, stop: Stop) -> None:
        config, log, stopping = self.config, self.log, False
        self.model.train()
        with closing(iter(self.stream)) as groups, log.bar(config.steps) as show:
            while not (stopping or self.finished):
                start = time.perf_counter()
                numbers = self.updater(next(groups))
                log.add(numbers, time.perf_counter() - start)
                stopping = stop.is_due()
                due = self.step % config.evaluate_every == 0 or self.step == config.steps
                if due or self.step % config.log_every == 0:
                    log.write_line()
                if due:
                    self.scores.measure(log.write)
                show()
                if due or stopping:
                    self.checkpointer.save()
