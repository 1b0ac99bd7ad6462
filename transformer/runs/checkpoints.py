"""Checkpoints: the files, the settings they must agree with, and who writes and reads them."""

import hashlib
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO
import torch
from torch import Tensor, nn
from transformer.files import CheckpointError, atomic_file, naming_errors, regular_file
from transformer.runs.distributed import from_first, rank_and_world_size
from transformer.runs.folder import RunFolder, locked_by_first
from transformer.runs.log import RunLog, Scores
from transformer.runs.stream import BatchStream, RandomNumbers, random_state, set_random_state
from transformer.runs.update import SummedLoss, TrainingConfig, Updater
from transformer.validation import check_number, check_type
from transformer.weights import check_weights, plain_state, set_weights

__all__ = [
    "CHECKPOINT_FORMAT",
    "DamagedCheckpointError",
    "save_checkpoint",
    "load_checkpoint",
    "newest_whole",
    "Settings",
    "Checkpointer",
    "rescuing",
]


CHECKPOINT_FORMAT = "transformer-checkpoint-3"


class DamagedCheckpointError(CheckpointError):
    """A file that has changed, of which a part is missing, or that never was a checkpoint."""


def save_checkpoint(path: Path | str, state: dict[str, Any]) -> None:
    """Write tensors, numbers and dictionaries of them, and a checksum; whole or not at all.

    Raises:
        TypeError: `state` is not a dictionary.
        OSError: the file cannot be written; the message names it.
    """
    check_type(dict, state=state)
    with atomic_file(path) as part:
        try:
            with open(part, "wb") as file:
                torch.save({"format": CHECKPOINT_FORMAT, **state}, file)
        except RuntimeError as error:  # torch's own words for the error that `file` raised
            said = error.__context__
            raise said if isinstance(said, OSError) else OSError(f"{path}: {error}") from error
        _seal(part)


def _seal(path: Path) -> None:
    # A zip archive may end with a comment, which is preceded by its length in two bytes.
    with open(path, "rb+") as file:
        end = file.seek(-2, os.SEEK_END) + 2
        file.write(hashlib.sha256().digest_size.to_bytes(2, "little"))
        check_sum = _check_sum(file, end)
        file.seek(end)
        file.write(check_sum)


def _is_whole(file: BinaryIO) -> bool:
    end = os.fstat(file.fileno()).st_size - hashlib.sha256().digest_size
    return end > 0 and _check_sum(file, end) == file.read()


def _check_sum(file: BinaryIO, end: int) -> bytes:
    # The checksum of all bytes before `end`, which is the file's position afterward.
    check_sum, left = hashlib.sha256(), end
    file.seek(0)
    while left and (content := file.read(min(left, 1 << 20))):
        check_sum.update(content)
        left -= len(content)
    return check_sum.digest()


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read onto the CPU what `save_checkpoint` wrote, executing nothing.

    Args:
        path: of the file.

    Returns:
        the state.

    Raises:
        OSError: the file cannot be read; `FileNotFoundError` where there is none.
        DamagedCheckpointError: a bit of it has changed, a part is missing, or it never was a
            checkpoint; the message names it.
        CheckpointError: it is whole, but in another format.
    """
    path = regular_file(path)
    with naming_errors(path), path.open("rb") as file:
        if not _is_whole(file):
            raise DamagedCheckpointError(f"{path} is not a whole checkpoint: its checksum is wrong")
        try:
            _check_archive(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
            if _unfolded(state, {}) > os.fstat(file.fileno()).st_size:
                raise ValueError("unfolded, it is larger than the file")
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a stranger's file can raise half a dozen types of error
            if "DefaultCPUAllocator" in str(error):  # too little memory, which torch calls a RuntimeError
                raise MemoryError(f"{path}: {error}") from error
            said = f"{type(error).__name__}: {str(error).strip():.200}"
            raise CheckpointError(f"{path} is not a checkpoint that can be read ({said})") from error
    given = state.get("format") if isinstance(state, dict) else None
    if given != CHECKPOINT_FORMAT:
        message = f"{path} is not a checkpoint in the format {CHECKPOINT_FORMAT!r}"
        raise CheckpointError(f"{message}, but says {given!r:.60}" if given else message)
    return dict(state)


def _check_archive(file: BinaryIO) -> None:
    # A small archive can hold something large once unpacked, and torch unpacks it all.
    entries = zipfile.ZipFile(file).infolist()
    if any(entry.compress_type for entry in entries):
        raise ValueError("torch.save compresses nothing")
    if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
        raise ValueError("its entries claim more than the file holds")
    file.seek(0)


def _unfolded(value: Any, known: dict[int, float]) -> float:
    # The number of values inside, each counted as often as it is reached.
    if id(value) not in known:
        known[id(value)] = math.inf  # so something that holds itself would have no end
        inner: Iterable[Any] = value if isinstance(value, list | tuple | set) else ()
        if isinstance(value, dict):
            inner = [*value, *value.values()]
        n_inner = sum(_unfolded(item, known) for item in inner)
        hollow = isinstance(value, Tensor) and _is_hollow(value)
        known[id(value)] = math.inf if hollow else 1 + n_inner
    return known[id(value)]


def _is_hollow(x: Tensor) -> bool:
    # Whether a tensor claims more numbers than its storage has.
    return x.is_meta or x.layout != torch.strided or x.nbytes > x.untyped_storage().nbytes()


def newest_whole(paths: list[Path]) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    """The last whole one of some checkpoints, and its state; `None` twice for no checkpoints.

    Raises:
        CheckpointError: there are checkpoints, and none is whole; or one is in another format.
    """
    damaged: list[DamagedCheckpointError] = []
    for path in reversed(paths):
        try:
            state = load_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for damage in damaged:
            warnings.warn(f"{damage}; going on from {path.name}", stacklevel=5)
        return path, state
    if damaged:
        raise CheckpointError(
            f"{paths[0].parent} holds a run, but no checkpoint of it is whole: "
            f"{'; '.join(map(str, damaged))}. Put a whole one there, or begin in another folder"
        )
    return None, None


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


class Checkpointer:
    """Writes and reads the checkpoints of a run, for all its processes; without a folder it does nothing.

    Args:
        folder: of the run; `None` for nowhere.
        keep: as in `TrainingConfig`.
        updater, stream, random, log, scores, settings: the parts of the run.

    Attributes:
        settled: whether what the last update made due, such as an evaluation, is done.
    """

    folder: RunFolder | None
    settled: bool
    updater: Updater
    model: nn.Module

    def __init__(
        self, folder: RunFolder | None, keep: int, updater: Updater, stream: BatchStream,
        random: RandomNumbers, log: RunLog, scores: Scores, settings: Settings,
    ) -> None:
        self.folder, self.keep, self.settled = folder, keep, True
        self.updater, self.stream, self.log, self.scores = updater, stream, log, scores
        self.settings, self.model = settings, updater.model
        self.first = rank_and_world_size()[0] == 0  # the process that writes
        self.parts: dict[str, Any] = {  # by their names in the file, in the order in which they are loaded
            "updater": updater, "stream": stream, "random": random, "journal": log,
            "scores": scores, "settings": settings,
        }

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
        state = {"model": plain_state(self.model), **parts, "keeper": {"settled": self.settled}}
        if self.first:
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
            path, state = newest_whole(self.folder.checkpoints()) if self.first else (None, None)
            path = from_first(path)
            if path is None:
                self.folder.check_unused()
                return False
            self._restore(state or load_checkpoint(path), path)
            self.log.reload(self.updater.step if self.settled else self.updater.step - 1)
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
            check_type(bool, settled=(settled := state["keeper"]["settled"]))
            self.settled = settled
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

    def mark(self, settled: bool) -> None:
        """Note where the run is, to come back to after an error in what follows."""
        self.settled = settled
        self.marked = self.updater.step, self.stream.state_dict(), random_state(self.updater.device)


@contextmanager
def rescuing(run: Checkpointer) -> Iterator[None]:
    """A context that leaves a checkpoint of the last whole update after an error inside it, if there is
    a folder, this is the only process, and all numbers are finite."""
    run.mark(run.settled)
    try:
        yield
    except Exception:
        with suppress(Exception):  # the error to tell of is the one that came first
            _rescue(run)
        raise


def _rescue(run: Checkpointer) -> None:
    (step, place, random), updater = run.marked, run.updater
    if run.stream.world_size > 1:  # one process cannot know where the others are
        return
    if run.folder is None or updater.stepping or step != updater.step:
        return
    finite = all(bool(p.isfinite().all()) for p in updater.parameters)
    if finite and not run.folder.checkpoint(step).exists():
        run.stream.load_state_dict(place)
        set_random_state(random, updater.device)
        run.save()
