"""The trainer: a run that can be stopped and goes on exactly."""

import os
import time
import warnings
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any
from torch import nn
from transformer.files import CheckpointError
from transformer.model import Transformer
from transformer.runs.checkpoints import DamagedCheckpointError, load_checkpoint, save_checkpoint
from transformer.runs.distributed import Stop, from_first, rank_and_world_size
from transformer.runs.folder import RunFolder, RunLog, Scores, locked_by_first
from transformer.runs.stream import BatchStream, EpochBatches, RandomNumbers, fingerprint
from transformer.runs.update import PRECISIONS, Evaluation, RateSchedule, SummedLoss, Updater
from transformer.speed.fast import accelerated
from transformer.speed.graphs import UpdateGraphs
from transformer.validation import check_choice, check_number, check_rate, check_size, check_type
from transformer.weights import check_weights, is_compiled, original, plain_state, plain_transformer
from transformer.weights import set_weights

__all__ = ["TrainingConfig", "run_settings", "check_settings", "Checkpointer", "Trainer"]


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
        patience: evaluations without a new best after which the run is over; 0 for any number.

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


def run_settings(
    updater: Updater, loss: SummedLoss, config: TrainingConfig, first_batch: str, step: int
) -> dict[str, str]:
    """What must be the same when a run goes on, as text that a checkpoint holds and a message shows.

    Args:
        updater, loss, config: of the run.
        first_batch: a checksum.
        step: number of updates made.
    """
    found = {name: value for name, value in vars(config).items() if name not in ("steps", "keep")}
    if is_dataclass(of_model := getattr(updater.model, "config", None)):
        found |= {f"model.{name}": value for name, value in vars(of_model).items()}
    words = {name: repr(value) for name, value in found.items()}
    for number in (number for number in _REMEMBERED if number <= step):
        check_number(**{(name := f"rate of update {number}"): (rate := updater.schedule(number))})
        words[name] = f"{rate:.6e}"  # another machine may round differently
    options = vars(loss) if is_dataclass(loss) else getattr(loss, "keywords", {})
    plain = {name: value for name, value in options.items() if isinstance(value, float | int | str)}
    return words | {"options of the loss": repr(plain), "first batch": first_batch}


class Checkpointer:
    """Writes and reads the checkpoints of a run, for all its processes; without a folder it does nothing.

    Args:
        folder: of the run; `None` for nowhere.
        config: as in `Trainer`.
        updater, stream, random, log, scores: the parts of the run.
        settings: `settings(step)` returns the `run_settings` after so many updates.
    """

    folder: RunFolder | None
    config: TrainingConfig
    updater: Updater
    model: nn.Module
    log: RunLog
    scores: Scores
    settings: Callable[[int], dict[str, str]]

    def __init__(
        self, folder: RunFolder | None, config: TrainingConfig, updater: Updater, stream: BatchStream,
        random: RandomNumbers, log: RunLog, scores: Scores, settings: Callable[[int], dict[str, str]],
    ) -> None:
        self.folder, self.config, self.updater, self.model = folder, config, updater, updater.model
        self.log, self.scores, self.settings = log, scores, settings
        self._first = rank_and_world_size()[0] == 0  # the process that writes
        parts = updater, stream, random, log, scores
        # By their names in the file, in the order in which they are loaded.
        self._parts: dict[str, Any] = dict(zip(("updater", "stream", "random", "journal", "scores"), parts))

    def begin(self) -> None:
        """Go on from the newest checkpoint, or evaluate once and write the first one, before the log
        begins, so that no log is without a checkpoint."""
        if self.resume():
            return
        if self.updater.step == 0:
            self.scores.dry_run()
        if self.folder is not None and self._first:
            self.folder.write_config()
        self.save()

    def save(self) -> None:
        """Write a checkpoint of all processes, and then the best weights, if these are the best."""
        if self.folder is None:
            return
        states = {name: part.state_dict() for name, part in self._parts.items()}
        if self._first:
            step = self.updater.step
            plan = {"steps": self.config.steps, "rate": float(self.updater.schedule(step)) if step else 0.0}
            states["settings"] = {"words": self.settings(step), "plan": plan}
            save_checkpoint(self.folder.checkpoint(step), {"model": plain_state(self.model), **states})
            self._follow_up(self.folder)
        from_first(None)  # no process goes on before the file is there

    def _follow_up(self, folder: RunFolder) -> None:
        # What follows the checkpoint of this step. If the run was cut off after it, resuming does this.
        if 0 < self.scores.best_step == self.updater.step:
            with self.updater.averaged():
                best = {"step": self.updater.step, "score": self.scores.best}
                save_checkpoint(folder.best, {"model": plain_state(self.model), **best})
        folder.prune(self.updater.step, self.config.keep)

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
            path = from_first(_newest_whole(self.folder.checkpoints()) if self._first else None)
            if path is None:
                self.folder.check_unused()
                return False
            self._restore(load_checkpoint(path), path)
            self.log.reload()
            if self._first:
                self._follow_up(self.folder)
                self.folder.write_config()
            return True

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        check_weights(self.model, state, path)
        try:
            step = state["updater"]["step"]
            rate = self.updater.schedule(step) if step else 0.0
            check_settings(state["settings"], self.settings(step), self.config.steps, step, rate, path)
            set_weights(self.model, state, path)
            for name, part in self._parts.items():
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


def check_settings(saved: Any, own: dict[str, str], steps: int, step: int, rate: float, path: Path) -> None:
    """Refuse what a checkpoint says of settings if they are not a run's own.

    A run that is made longer may have another schedule, and a warning tells of it.

    Args:
        saved: what the checkpoint says.
        own: the `run_settings` after as many updates.
        steps: of the whole run.
        step, rate: the updates made, and the rate that the last of them would have now.
        path: of the checkpoint, for messages.

    Raises:
        CheckpointError: a setting differs; the message names it.
    """
    found, plan = saved["words"], saved["plan"]
    longer, then = plan["steps"] < steps, plan["rate"]
    if found.keys() != own.keys():
        raise CheckpointError(f"{path} cannot be resumed from: its settings are other ones")
    compared = [name for name in own if not (longer and name.startswith("rate of"))]
    changed = [f"{n} = {found[n]!s:.60} and not {own[n]}" for n in compared if found[n] != own[n]]
    if changed:
        raise CheckpointError(f"{path} belongs to a run with {', '.join(changed)}")
    if longer and f"{rate:.6e}" != f"{then:.6e}":
        said = f"the schedule is now that of {steps:,} updates and no longer of {plan['steps']:,}"
        here = f"update {step:,} had the rate {then:.1e}, and would have {rate:.1e}"
        warnings.warn(f"{said}: {here}", stacklevel=6)  # where `fit` was called


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
        progress: whether to print a line with each entry of the log.
        graphs: whether a GPU gets whole updates at once, as in `UpdateGraphs`: faster where its batches are
            small. The batches are padded, and the loss must be that of a batch, whatever else has happened.

    Attributes:
        loss: as given.
        updater, stream, random, log, scores: its parts; a checkpoint holds their states.
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
        self.loss: SummedLoss = loss
        self.config: TrainingConfig = config
        folder = directory if isinstance(directory, RunFolder | None) else RunFolder(directory)
        settings = config.clip_norm, config.precision, config.weight_decay, config.average
        updater = Updater(self.model, loss, schedule, *settings)
        stream = BatchStream(batches, config.accumulate, config.seed)
        first_batch = cache(lambda: fingerprint(stream.first()))
        self.updater: Updater = updater
        self.stream: BatchStream = stream
        self.graphs: UpdateGraphs | None = UpdateGraphs(updater) if graphs else None
        self.random: RandomNumbers = RandomNumbers(config.seed, updater.device)
        self.log: RunLog = RunLog(updater, stream, folder, config.steps if progress else 0)
        self.history: list[dict[str, float]] = self.log.history
        self.scores: Scores = Scores(updater, evaluate, config.monitor)
        self.checkpointer: Checkpointer = Checkpointer(
            folder, config, updater, stream, self.random, self.log, self.scores,
            lambda step: run_settings(updater, loss, config, first_batch(), step),
        )  # fmt: skip

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

    def _loop(self, stop: Stop) -> None:
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
                    self.checkpointer.save()
