"""The trainer: a run that can be stopped and goes on exactly."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any
from torch import nn
from transformer.model import Transformer
from transformer.runs.checkpoints import Checkpointer, Settings, rescuing
from transformer.runs.distributed import largest, rank_and_world_size
from transformer.runs.folder import RunFolder, locked_by_first
from transformer.runs.log import RunLog, Scores
from transformer.runs.stream import BatchStream, EpochBatches, RandomNumbers
from transformer.runs.update import Evaluation, RateSchedule, SummedLoss, TrainingConfig, Updater
from transformer.speed.fast import accelerated
from transformer.validation import check_number, check_type
from transformer.weights import is_compiled, original, plain_transformer

__all__ = ["StoppedRun", "Stop", "Trainer"]


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

    def obey(self, step: int, steps: int, saved: bool) -> None:
        """Raise `StoppedRun` if any process has noted a signal."""
        if number := largest(max(self.signals, default=0)):
            how = " with a checkpoint; the same call goes on from there" if saved else ""
            raise StoppedRun(f"stopped at step {step:,} of {steps:,}{how}", number, step)


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
        evaluate: Evaluation | None = None, progress: bool = False,
    ) -> None:
        _check_parts(model, loss, schedule, config, evaluate)
        self.model: Any = model if is_compiled(model) else accelerated(model, stacklevel=3)
        self.config: TrainingConfig = config
        folder = directory if isinstance(directory, RunFolder | None) else RunFolder(directory)
        self.updater: Updater = Updater(self.model, loss, schedule, config)
        size, (rank, world_size) = config.accumulate, rank_and_world_size()
        self.stream: BatchStream = BatchStream(batches, size, rank, world_size, config.seed)
        self.random: RandomNumbers = RandomNumbers(config.seed, self.updater.device)
        self.log: RunLog = RunLog(self.updater, self.stream, folder.path if folder else None, progress)
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
            CheckpointError, BlockingIOError: as in `Checkpointer.resume`; and see `rescuing`.
        """
        stop = Stop(max_minutes)
        with locked_by_first(self.checkpointer.folder):
            self.random.begin()
            self.checkpointer.begin()
            with stop.noting(), rescuing(self.checkpointer):
                self._loop(stop)
            self.random.pause()
            stop.obey(self.step, self.config.steps, self.checkpointer.folder is not None)
        return self

    def _loop(self, stop: Stop) -> None:
        config, checkpointer, log = self.config, self.checkpointer, self.log
        self.model.train()
        with closing(iter(self.stream)) as groups, log.bar(config.steps, self.step) as show:
            stopping = False
            while not (stopping or self.finished and checkpointer.settled):
                if checkpointer.settled:  # or else an error came before what the last update made due
                    start = time.perf_counter()
                    numbers = self.updater(next(groups))
                    log.add(numbers, time.perf_counter() - start)
                    checkpointer.mark(settled=False)
                stopping = stop.is_due()
                due = self.step % config.evaluate_every == 0 or self.step == config.steps
                logged = due or self.step % config.log_every == 0
                if logged:
                    log.write_line()
                if due:
                    self.scores.measure(self.step, log.write)
                if logged:
                    log.line.clear()
                checkpointer.mark(settled=True)
                show(self.step, logged)
                if due or stopping:
                    checkpointer.save()
