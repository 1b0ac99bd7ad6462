"""The folder of a run: its lock, its checkpoints and its log; the facts of a record; curves."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.files import CheckpointError, atomic_file, naming_errors, regular_file, write_record
from transformer.plots import plot_curves
from transformer.runs.distributed import rank_and_world_size, summed_over_all
from transformer.runs.loop import Updater, load_checkpoint
from transformer.runs.stream import BatchStream
from transformer.training import check_device
from transformer.validation import check_choice, check_size, check_type, optional_import

__all__ = ["run_facts", "read_log", "RunFolder", "RunLog", "draw_curves"]


def run_facts(device: torch.device | str) -> dict[str, Any]:
    """What it takes to repeat a run on a device: command, commit (with a `+` where the package differs from
    it), device, processor, versions, and the date in UTC; what cannot be found out is an empty string."""
    device, model = check_device(device), platform.processor()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
    versions = {"python": platform.python_version()}
    for library in ("torch", "tokenizers", "sacrebleu"):
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else model
    kernels = torch.backends.cpu.get_cpu_capability()
    in_notebook = any("ipykernel_launcher" in argument for argument in sys.orig_argv)
    return {
        "command": "a cell of a notebook" if in_notebook else shlex.join(["python", *sys.orig_argv[1:]]),
        "commit": _commit(),
        "device": f"{device.type}: {name}, {torch.get_num_threads()} threads",
        "processor": {"model": model, "architecture": platform.machine(), "kernels": kernels},
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(resources.files("transformer")), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        if not git("ls-files", "*.py"):  # installed inside a repository that is not ours
            return ""
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "*.py") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def read_log(directory: Path | str) -> list[dict[str, float]]:
    """The entries of a run's `log.jsonl`, without a last line that was cut off; `[]` without a log.
    A line that has changed since it was written is a `CheckpointError`, which names it; what is no folder
    is a `NotADirectoryError`."""
    if not Path(directory).is_dir():
        raise NotADirectoryError(f"directory must be the folder of a run, not {str(directory)!r}")
    path = regular_file(Path(directory) / "log.jsonl")
    entries: list[dict[str, float]] = []
    try:
        *lines, rest = path.read_bytes().decode("utf8").split("\n") if path.exists() else [""]
        for line in [*lines, rest] if "}" in rest[:-1] else lines:  # more than the beginning of an entry
            entry: Any = json.loads(line)
            check_type(dict, entry=entry)
            if entry.pop("crc", None) not in (None, _line_sum(entry)):
                raise ValueError("its checksum is wrong")
            check_size(minimum=0, step=entry.get("step"))
            check_type((int, float), **entry)
            entries.append(entry)
    except (ValueError, TypeError, RecursionError) as error:
        message = f"{path} is not the log of a run: line {len(entries) + 1}: {error}"
        raise CheckpointError(message) from error
    return entries


def _line(entry: dict[str, float]) -> str:
    return json.dumps(entry | {"crc": _line_sum(entry)}) + "\n"


def _line_sum(entry: dict[str, float]) -> str:
    return f"{zlib.crc32(json.dumps(entry).encode()):08x}"


class RunFolder:
    """The folder of a run, made when it is first locked: its checkpoints, best weights and log, and a
    `config.json` with what `config` says of the run."""

    def __init__(self, path: os.PathLike[str] | str, config: dict[str, Any] | None = None) -> None:
        self.path, self.config = Path(path), config
        self.best, self._log = self.path / "best.pt", self.path / "log.jsonl"
        filelock = optional_import("filelock")  # here, because it takes long to import
        self._lock, self._timeout = filelock.FileLock(self.path / "run.lock"), filelock.Timeout

    def __fspath__(self) -> str:
        return str(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out (`BlockingIOError`); this one may lock again. What is made for the lock
        goes with it, unless a run has begun."""
        places = [self.path / "run.lock", self.path, *self.path.parents]
        new = [place for place in places if not place.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except self._timeout:
            raise BlockingIOError(f"{self.path} is in use: another process is training there") from None
        try:
            yield
        finally:
            for place in () if self.checkpoints() else new:
                with suppress(OSError):  # there is something else in it
                    place.rmdir() if place.is_dir() else place.unlink()
            self._lock.release()

    def write_config(self) -> None:
        """Write `config.json`, now that the run begins or has gone on."""
        if self.config is not None:
            write_record(self.path / "config.json", self.config)

    def checkpoint(self, step: int) -> Path:
        """Where the checkpoint of an update is."""
        return self.path / f"checkpoint-{step:08d}.pt"

    def checkpoints(self) -> list[Path]:
        """All checkpoints, oldest first."""
        digits = 8 * "[0-9]"  # a copy of one under another name is not one of them
        return sorted(self.path.glob(f"checkpoint-{digits}.pt"))

    def latest_valid(self) -> Path | None:
        """The last checkpoint that is whole; a warning tells of those after it. `None` where no run is; a
        run without a whole checkpoint is a `CheckpointError`."""
        damaged: list[str] = []
        for path in reversed(self.checkpoints()):
            try:
                load_checkpoint(path)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for damage in damaged:
                warnings.warn(f"{damage}; going on from {path.name}", stacklevel=5)
            return path
        if damaged or any(path.exists() and path.stat().st_size for path in (self.best, self._log)):
            message = f"{self.path} holds a run, but no checkpoint of it is whole"
            reasons = "; ".join(damaged) or "none is left"
            raise CheckpointError(f"{message}: {reasons}. Put a whole one there, or begin in another folder")
        return None

    def prune(self, step: int, keep: int) -> None:
        """Remove all but the newest checkpoints up to an update, and what was never finished."""
        for path in [path for path in self.checkpoints() if path <= self.checkpoint(step)][:-keep]:
            path.unlink()
        for path in self.path.glob(f".*.{16 * '[0-9a-f]'}.part"):  # of `atomic_file`
            path.unlink()

    def append_log(self, entry: dict[str, float]) -> None:
        """Add a line to `log.jsonl`; it is on the disk when this returns."""
        with naming_errors(self._log), open(self._log, "a", encoding="utf8") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(file.fileno())

    def write_log(self, entries: list[dict[str, float]]) -> None:
        """Make `entries` the whole of `log.jsonl`."""
        with atomic_file(self._log) as part:
            part.write_text("".join(map(_line, entries)), encoding="utf8")


_LEAST_SCALE = 2.0**-16  # of a loss in float16, after 32 updates skipped: no other helps


class RunLog:
    """The log of a run: its entries, `history`, the line that has begun, and the file in its folder, if it
    has one. With each entry a line is printed, of the run's `total_steps` updates; where they are 0, none."""

    def __init__(
        self, updater: Updater, stream: BatchStream, folder: RunFolder | None = None, total_steps: int = 0
    ) -> None:
        self.updater, self.stream, self.folder, self.total_steps = updater, stream, folder, total_steps
        self.history: list[dict[str, float]] = []
        self.first = rank_and_world_size()[0] == 0
        self._begin_line()

    def _begin_line(self) -> None:
        self.updates: list[tuple[Tensor, ...]] = []  # loss, tokens, norm; they stay on the device
        self.places: list[dict[str, Any]] = []  # step, epoch, batch, learning rate
        self.seconds = 0.0

    def reload(self) -> None:
        """Read the log up to the last update, and remove what was written after it."""
        if self.folder is not None:
            entries = read_log(self.folder.path)
            self.history[:] = [entry for entry in entries if entry["step"] <= self.updater.step]
            if self.first:
                self.folder.write_log(self.history)
            if self.updater.step:
                self.say(f"going on from step {self.updater.step:,} of {self.total_steps:,}")

    def add(self, numbers: tuple[Tensor, ...], seconds: float) -> None:
        """Add to the line what the last update returned, and how long it took."""
        step, stream = self.updater.step, self.stream
        place: dict[str, Any] = {"step": step, "epoch": stream.epoch, "batch": stream.position}
        self.places.append(place | {"learning rate": f"{self.updater.schedule(step):.2e}"})
        self.updates.append(numbers)
        self.seconds += seconds

    def numbers(self) -> list[Tensor]:
        """Losses, tokens and norms `[n]` of the line, of all processes together, on the CPU; all finite, but
        for the norms of updates that float16 skipped."""
        if not self.updates:  # an empty line takes no time, not even in a checkpoint
            return [torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0)]
        start = time.perf_counter()
        losses, counts, norms = (torch.stack(column) for column in zip(*self.updates))
        losses, counts, norms = summed_over_all(losses).cpu(), summed_over_all(counts).cpu(), norms.cpu()
        scaler = self.updater.scaler  # lowered, it may help after a bad gradient, whose update is skipped
        skipping = scaler.is_enabled() and scaler.get_scale() > _LEAST_SCALE
        bad = ~losses.isfinite() if skipping else ~(losses + norms).isfinite()
        if bad.any():
            first = int(bad.nonzero()[0])
            where = ", ".join(f"{what} {value}" for what, value in self.places[first].items())
            message = f"the loss is {losses[first].item()} and its gradient's norm {norms[first].item()}"
            raise FloatingPointError(f"{message} at {where}")
        self.seconds += time.perf_counter() - start
        return [losses, counts, norms]

    def write_line(self) -> None:
        """Write the line, and begin another."""
        losses, counts, norms = self.numbers()
        step, tokens, place = self.updater.step, int(counts.sum()), self.places[-1]
        loss, rate = losses.double().sum().item() / max(tokens, 1), self.updater.schedule(step)
        entry = {"step": place["step"], "epoch": place["epoch"], "loss": loss, "rate": rate}
        made = norms[norms.isfinite()].tolist()  # of updates that were not skipped
        entry |= {"norm": made[-1]} if made else {}
        self.write(entry | {"tokens": tokens, "seconds": round(self.seconds, 3)})
        self._begin_line()

    def write(self, entry: dict[str, float]) -> None:
        """Add an entry; of several processes, the first writes it into the log."""
        self.history.append(entry)
        if self.folder is not None and self.first:
            self.folder.append_log(entry)
        if self.total_steps:
            self.say(self._line(entry))

    def say(self, text: str) -> None:
        """Print a line, where any are printed; of several processes, the first does."""
        if self.total_steps and self.first:
            with suppress(OSError):  # the terminal has been closed, and the run may go on
                print(text, file=sys.stderr, flush=True)

    def _line(self, entry: dict[str, float]) -> str:
        start = f"step {entry['step']:,} of {self.total_steps:,}:"
        if "rate" not in entry:
            scores = (f"{name} {x:.4g}" for name, x in entry.items() if name != "step")
            return f"{start} unseen {', '.join(scores)}"
        speed = entry["tokens"] / max(self.seconds, 1e-3)
        left = (self.total_steps - self.updater.step) * self.seconds / len(self.places) / 60
        return f"{start} loss {entry['loss']:.3f}, {speed:,.0f} tokens/s, {left:,.0f} minutes left"

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the line that has begun."""
        return {"numbers": self.numbers(), "places": self.places, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the line of `state_dict`: sums over all processes, which the first takes over."""
        losses, counts, norms = (column.to(self.updater.device) for column in state["numbers"])
        mine = int(self.first)
        self.updates, self.places = list(zip(losses * mine, counts * mine, norms)), state["places"]
        self.seconds = float(state["seconds"])


def draw_curves(history: list[dict[str, float]], path: Path | str) -> Any:
    """Draw what a log tells over the updates: the loss, the metrics, the learning rate.

    Args:
        history: entries as in `Trainer.history`, or as `read_log` returns them.
        path: where the picture goes; its ending is the format, such as `.png` or `.svg`.

    Returns:
        the matplotlib figure.

    Raises:
        ValueError, OSError: the format is unknown, or the file cannot be written.
    """
    path, updates = Path(path), [entry for entry in history if "rate" in entry]
    tests = [entry for entry in history if "rate" not in entry]
    metrics = dict.fromkeys(name for entry in tests for name in entry if name != "step")
    panels = {"loss": {"training": updates, "unseen": tests}}
    panels |= {name: {"unseen": tests} for name in metrics if name != "loss"}
    panels |= {"rate": {"learning rate": updates}}

    figure = optional_import("matplotlib.figure").Figure((3 * len(panels), 2.8), layout="constrained")
    check_choice(figure.canvas.get_supported_filetypes(), ending=path.suffix[1:])
    for ax, (name, chosen) in zip(figure.subplots(1, len(panels)), panels.items()):
        curves = {
            label: points
            for label, entries in chosen.items()
            if (points := [(entry["step"], entry[name]) for entry in entries if name in entry])
        }
        plot_curves(curves, "update", name, ax)
    with atomic_file(path) as part:
        figure.savefig(part, format=path.suffix[1:])
    return figure
