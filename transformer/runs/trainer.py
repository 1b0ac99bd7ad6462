"""The trainer: a run that can be stopped and goes on exactly."""

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from typing import Any
import torch
from torch import nn
from transformer.files import CheckpointError
from transformer.model import Transformer
from transformer.runs.distributed import all_gather, rank_and_world_size, summed_over_all
from transformer.runs.folder import RunFolder, RunLog
from transformer.runs.loop import (
    PRECISIONS, Evaluation, RateSchedule, SummedLoss, Updater, autocast, load_checkpoint, random_state,
    save_checkpoint, set_random_state,
)  # fmt: skip
from transformer.runs.stream import BatchStream, EpochBatches, RandomNumbers
from transformer.speed.fast import accelerated
from transformer.speed.graphs import UpdateGraphs
from transformer.training import evaluating
from transformer.validation import check_choice, check_number, check_rate, check_size, check_type
from transformer.weights import is_compiled, original, plain_name, plain_state, plain_transformer, set_weights

__all__ = ["TrainingConfig", "Trainer", "Scores", "StoppedRun", "Stop"]


@dataclass(frozen=True)
class TrainingConfig:
    """The settings of a training run, apart from model, loss, data and schedule.

    Args:
        steps: number of updates.
        accumulate: number of batches that each process contributes to an update.
        clip_norm: the longest gradient, as an L2 norm over all parameters; `inf` for no limit.
        precision: `"float32"`, or what matrix products are computed in: `"bfloat16"`, `"float16"`;
            `"auto"` for the `best_precision` of the device.
        seed: of dropout, and of everything else that draws from torch's own generator.
        log_every: updates between two lines of the log.
        evaluate_every: updates between two evaluations and checkpoints.
        keep: number of newest checkpoints kept, besides the best weights.
        monitor: the metric that decides which weights are best; with a `-` before it, less is better.
        weight_decay: how much an update also shrinks matrices, in units of the learning rate.
        average: how much of itself the moving average of the weights keeps in an update; 0 for none.
            Evaluations use it, and so does what runs in `with trainer.updater.averaged():`.
        patience: evaluations without a new best after which the run is over; 0 for any number, or without
            `evaluate`.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of its range.
    """

    steps: int
    accumulate: int = 1
    clip_norm: float = 1.0
    precision: str = "float32"
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 1000
    keep: int = 2
    monitor: str = "-loss"
    weight_decay: float = 0.0
    average: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        names = ("steps", "accumulate", "log_every", "evaluate_every", "keep")
        check_size(**{name: getattr(self, name) for name in names})
        check_size(minimum=0, seed=self.seed, patience=self.patience)
        check_rate(average=self.average)
        check_number(weight_decay=self.weight_decay)
        check_choice([*PRECISIONS, "auto"], precision=self.precision)
        check_type(str, monitor=self.monitor)
        check_type((int, float), clip_norm=self.clip_norm)
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be greater than 0, but is {self.clip_norm}")


# Updates whose learning rate a checkpoint remembers, once they are made.
_REMEMBERED = (1, 10, 100)
_PUBLISHED = "output.bias", "positions.table"  # what models from elsewhere have, which `exchange` can keep


class Trainer:
    """Trains a model: batches in; updates, log, evaluations and checkpoints out.

    A run that has a directory can be resumed. In a `process_group`, the trainers of all processes make one
    run, in one directory. With `config.average`, the averaged weights are evaluated and kept as the best.

    Args:
        model: any module, on the device that it is to be trained on. A `Transformer` that is not compiled
            is accelerated, or a warning says why not.
        loss: `loss(model, batch)` returns the summed loss and the number of target tokens.
        batches: `batches(epoch)` returns an epoch's batches, the same ones every time and in every
            process, on which resuming rests; or a list, or a `DataLoader`, as in `BatchStream`.
        schedule: `schedule(step)` returns the learning rate of update `step`, counted from 1.
        config: the run's settings.
        directory: of log and checkpoints, a path or a `RunFolder` that may be locked already; or `None`.
        evaluate: `evaluate(model)` returns metrics, without gradients; only the first process calls it, and
            once more before the first update.
        progress: whether to print a line with each entry of the log.
        graphs: whether a GPU gets whole updates at once, as in `UpdateGraphs`, which is for batches that are
            small and of few shapes. The loss may depend on nothing but the model and the batch.

    Attributes:
        updater, stream, random, log, scores, history: its parts, and the lines of the log.

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
    ) -> None:  # fmt: skip
        check_type(nn.Module, model=model)
        check_type(TrainingConfig, config=config)
        check_type(Callable, loss=loss, schedule=schedule)
        _check_evaluation(evaluate, config.patience)
        _warn_if_unsavable(model)
        self.model: Any = model if is_compiled(model) else accelerated(model, stacklevel=3)
        self.loss = loss
        self.config = config
        settings = config.clip_norm, config.precision, config.weight_decay, config.average
        folder = directory if isinstance(directory, RunFolder | None) else RunFolder(directory)
        self.folder = folder
        self.updater = Updater(self.model, loss, schedule, *settings)
        self.graphs = UpdateGraphs(self.updater) if graphs else None
        self.stream = BatchStream(batches, config.accumulate, config.seed)
        self.random = RandomNumbers(config.seed, self.updater.device)
        self.log = RunLog(self.updater, self.stream, self.folder, config.steps * progress)
        self.history = self.log.history
        self.scores = Scores(self.updater, evaluate, config.monitor)
        parts = self.updater, self.stream, self.random, self.log, self.scores  # loaded in this order
        self._parts: dict[str, Any] = dict(zip(("updater", "stream", "random", "journal", "scores"), parts))

    @property
    def step(self) -> int:
        """Updates made."""
        return self.updater.step

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or patience is at its end."""
        impatient = 0 < self.config.patience <= self.scores.evaluations_since_best
        return self.step >= self.config.steps or impatient

    def fit(self, max_minutes: float | None = None) -> "Trainer":
        """Train until the run is finished, from the newest checkpoint if there is one.

        Args:
            max_minutes: when the call ends with a checkpoint, and the next goes on; `None` for never.

        Raises:
            StoppedRun: a signal asked the process to end.
            FloatingPointError: the loss, its gradient or the metric to monitor is not finite.
            TypeError, ValueError: no batch in an epoch, or a metric that no log can hold, or none to monitor.
            CheckpointError: no checkpoint is whole, or the newest whole one has another model, frozen part,
                setting (but `steps` and `keep`), first batch, rate of update 1, 10 or 100 (for as many
                `steps`), or option of a loss, a dataclass or `partial`. The directory is as it was then.
            BlockingIOError: another process is training in the directory.
        """
        stop = Stop(max_minutes)
        graphs = nullcontext() if self.graphs is None else self.graphs.used()
        with self.folder.locked() if self.folder and self.log.first else nullcontext():
            self.random.begin()
            _begin(self)
            self.log.reload()  # after the checkpoint, so that no log is without one
            with stop.catch_signals(), graphs:
                self._loop(stop)
            self.random.pause()
            stop.raise_if_signaled(self.step, self.config.steps, self.folder is not None)
        return self

    def load_best(self) -> None:
        """Give the model the best weights; `ValueError` without a directory, `OSError` without a score."""
        if self.folder is None:
            raise ValueError("a trainer without a directory keeps no best weights")
        set_weights(self.model, load_checkpoint(self.folder.best), self.folder.best)

    def _loop(self, stop: "Stop") -> None:
        config, log, stopping = self.config, self.log, False
        self.model.train()
        with closing(iter(self.stream)) as groups:
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
                if due or stopping:
                    _save(self)


def _warn_if_unsavable(model: nn.Module) -> None:
    # Now, and not once it is trained.
    if isinstance(original(model), Transformer):
        published = _PUBLISHED if hasattr(getattr(model, "positions", None), "table") else ()
        try:
            plain_transformer(model, besides=published)
        except TypeError as error:
            warnings.warn(f"save_model and Translator will refuse it: {error}", stacklevel=3)


def _check_evaluation(evaluate: Evaluation | None, patience: int) -> None:
    check_type((Callable, type(None)), evaluate=evaluate)
    if evaluate is None and patience:
        raise ValueError(f"patience = {patience} needs evaluate, but evaluate is None")


def _metric(name: Any, value: Any) -> tuple[str, float]:
    # As a log can hold it.
    check_type(str, **{"a metric's name": name})
    if name in ("step", "rate", "crc"):  # by which a log is read
        raise ValueError(f"evaluate(model) must not name a metric {name!r}: the log does")
    try:
        return name, float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(f"the metric {name} must be a number, not {value!r:.60}") from None


class Scores:
    """Evaluates the model of a run by `evaluate`, and remembers the best score: that of the metric
    `monitor`, with the sign that makes more better; the update it was reached at; how many follow it."""

    def __init__(self, updater: Updater, evaluate: Evaluation | None, monitor: str) -> None:
        self.updater, self.evaluate, self.monitor = updater, evaluate, monitor
        self.best, self.best_step, self.evaluations_since_best = -math.inf, 0, 0

    def _measured(self, evaluate: Evaluation) -> tuple[dict[str, float], float]:
        # The metrics of the averaged weights, in the first process alone, and the score.
        updater, name, measured = self.updater, self.monitor.removeprefix("-"), None
        if rank_and_world_size()[0] == 0:
            with updater.averaged(), evaluating(updater.model), autocast(updater.device, updater.precision):
                check_type(Mapping, **{"evaluate(model)": (given := evaluate(updater.model))})
                measured = dict(map(_metric, given, given.values()))
        metrics: dict[str, float] = all_gather(measured)[0]
        if name not in metrics:
            raise ValueError(f"monitor is {self.monitor!r}, but evaluate returned {sorted(metrics)}")
        return metrics, -metrics[name] if self.monitor.startswith("-") else metrics[name]

    def dry_run(self) -> None:
        """Evaluate and leave no trace, since an error shouldn't come late."""
        if self.evaluate is not None:
            before = random_state(self.updater.device)
            self._measured(self.evaluate)
            set_random_state(before, self.updater.device)

    def measure(self, write: Callable[[dict[str, float]], None]) -> None:
        """Evaluate, `write` the metrics, then count them."""
        if self.evaluate is None:
            return
        step, (metrics, score) = self.updater.step, self._measured(self.evaluate)
        if not math.isfinite(score):
            raise FloatingPointError(f"the metric {self.monitor} is {score} at step {step}")
        write({"step": step, **metrics})
        self.evaluations_since_best += 1
        if score > self.best:
            self.best, self.best_step, self.evaluations_since_best = score, step, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"best": self.best, "best_step": self.best_step, "stale": self.evaluations_since_best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.best, self.best_step = state["best"], state["best_step"]
        self.evaluations_since_best = state["stale"]


# SIGHUP, where there is one, says that the terminal has been closed.
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stop:
    """Says when a call of `Trainer.fit` ends before its run does: its time is over, or a signal has come."""

    def __init__(self, max_minutes: float | None = None) -> None:
        minutes = math.inf if max_minutes is None else max_minutes
        check_number(max_minutes=0 if minutes == math.inf else minutes)
        self.deadline = time.monotonic() + 60 * minutes
        self.signals: list[int] = []

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """A context in which the signals that ask the process to end are noted instead of obeyed; a second
        one is obeyed, but not within a second, since a launcher passes on what has reached all processes."""
        times: list[float] = []

        def note(number: int, frame: Any) -> None:
            self.signals.append(number)
            times.append(time.perf_counter())
            if times[-1] - times[0] > 1:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        handlers = {number: signal.getsignal(number) for number in _ENDINGS}
        before: dict[int, Any] = {n: how for n, how in handlers.items() if how not in (None, signal.SIG_IGN)}
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
        """Whether time is over by the first process's clock, or a signal has come to any process."""
        late = time.monotonic() >= self.deadline and rank_and_world_size()[0] == 0
        return bool(summed_over_all(torch.tensor(int(late or bool(self.signals)))))

    def raise_if_signaled(self, step: int, steps: int, saved: bool) -> None:
        """Raise `StoppedRun` if any process has noted a signal."""
        if number := max(all_gather(max(self.signals, default=0))):
            how = " with a checkpoint, from which the same call goes on" if saved else ""
            raise StoppedRun(f"stopped at step {step:,} of {steps:,}{how}", number, step)


class StoppedRun(KeyboardInterrupt):
    """Raised by `Trainer.fit` in the main thread, when `signal`, SIGINT, SIGTERM or SIGHUP, asks the process
    to end. The update in progress, `step`, was finished and, where there is a directory, saved."""

    def __init__(self, message: str, number: int, step: int) -> None:
        super().__init__(message)
        self.signal, self.step = number, step


def _begin(trainer: Trainer) -> None:
    # Go on, or write the first checkpoint of a run whose evaluation doesn't fail.
    if not _resume(trainer):
        trainer.scores.dry_run()
        _save(trainer)


def _resume(trainer: Trainer) -> bool:
    """Go on from the newest whole checkpoint, chosen by the first process; return whether there is one."""
    if trainer.folder is None:
        return False
    path = all_gather(trainer.folder.latest_valid() if trainer.log.first else None)[0]
    if path is None:
        return False
    state = load_checkpoint(path)
    try:
        theirs, ours = state["settings"]["words"], _settings(trainer, state["updater"]["step"])
        longer = state["settings"]["plan"]["steps"] < trainer.config.steps  # may have another schedule
        if (done := state["updater"]["step"]) > trainer.config.steps:
            raise CheckpointError(f"{path} has made {done} updates, more than steps = {trainer.config.steps}")
        compared = [name for name in theirs | ours if not (longer and name.startswith("rate of"))]
        changed = [name for name in compared if theirs.get(name) != ours.get(name)]
        if changed:
            pairs = (f"{name} = {theirs.get(name)!s:.60} and not {ours.get(name)!s:.60}" for name in changed)
            raise CheckpointError(f"{path} belongs to a run with {', '.join(pairs)}")
        set_weights(trainer.model, state, path)
        for name, part in trainer._parts.items():
            part.load_state_dict(state[name])
    except CheckpointError:
        raise
    except Exception as error:  # weights alone, or another program's checkpoint
        message = f"{path} cannot be resumed from ({type(error).__name__}: {error})"
        raise CheckpointError(message) from error
    if trainer.log.first:
        _follow_up(trainer, trainer.folder)
    return True


def _settings(trainer: Trainer, step: int) -> dict[str, str]:
    # What must be the same when the run goes on, as text that a checkpoint holds and a message shows.
    values = {name: value for name, value in vars(trainer.config).items() if name not in ("steps", "keep")}
    if is_dataclass(of_model := getattr(trainer.model, "config", None)):
        values |= {f"model.{name}": value for name, value in vars(of_model).items()}
    words = {name: repr(value) for name, value in values.items()}
    frozen = [plain_name(name) for name, p in trainer.model.named_parameters() if not p.requires_grad]
    words |= {"frozen": repr(frozen)} if frozen else {}  # Adam's averages go by place
    for number in (number for number in _REMEMBERED if number <= step):
        words[f"rate of update {number}"] = f"{trainer.updater.schedule(number):.6e}"  # rounding may differ
    options = vars(trainer.loss) if is_dataclass(trainer.loss) else getattr(trainer.loss, "keywords", {})
    plain = {name: value for name, value in options.items() if isinstance(value, float | int | str)}
    return words | {"options of the loss": repr(plain), "first batch": trainer.stream.fingerprint}


def _follow_up(trainer: Trainer, folder: RunFolder) -> None:
    # What follows the checkpoint of this step. If the run was cut off after it, resuming does this.
    if 0 < trainer.scores.best_step == trainer.step:
        with trainer.updater.averaged():
            best = {"step": trainer.step, "score": trainer.scores.best}
            save_checkpoint(folder.best, {"model": plain_state(trainer.model), **best})
    folder.prune(trainer.step, trainer.config.keep)


def _save(trainer: Trainer) -> None:
    # A checkpoint of all processes, and then what follows it.
    if trainer.folder is None:
        return
    state = {name: part.state_dict() for name, part in trainer._parts.items()}
    if trainer.log.first:
        plan = {"steps": trainer.config.steps}
        state["settings"] = {"words": _settings(trainer, trainer.step), "plan": plan}
        trainer.folder.write_config()
        weights = {"model": plain_state(trainer.model)}
        save_checkpoint(trainer.folder.checkpoint(trainer.step), weights | state)
        _follow_up(trainer, trainer.folder)
    all_gather(None)  # no process goes on before the file is there
