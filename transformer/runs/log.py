"""The log of a run: lines of updates, evaluations, a progress bar, curves."""

import json
import math
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.files import CheckpointError, atomic_file, naming_errors, regular_file, sync_names
from transformer.plots import plot_curves
from transformer.runs.distributed import rank_and_world_size, summed_over_all
from transformer.runs.stream import BatchStream, undisturbed
from transformer.runs.update import Evaluation, Updater, check_finite
from transformer.validation import check_choice, check_size, check_type, optional_import

__all__ = [
    "read_log",
    "write_log",
    "append_log",
    "LogLine",
    "RunLog",
    "score_of",
    "Scores",
    "latest_numbers",
    "draw_curves",
]


_COLUMNS = ("step", "epoch", "loss", "rate", "norm", "tokens", "seconds")  # of a line of updates


def read_log(directory: Path | str) -> list[dict[str, float]]:
    """The entries of a run's `log.jsonl`, without a last line that was cut off; `[]` without a log.

    Raises:
        CheckpointError: the file is not a log, or a line has changed since it was written; the
            message names it, and the line.
    """
    path = regular_file(Path(directory) / "log.jsonl")
    try:
        *lines, rest = path.read_bytes().decode("utf8").split("\n") if path.exists() else [""]
        if "}" in rest[:-1]:  # a whole entry, and then something that is not the end of a line
            raise ValueError(f"line {len(lines) + 1} has no end")
        return [_log_entry(line, number) for number, line in enumerate(lines, start=1)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not the log of a run: {error}") from error


def _log_entry(line: str, number: int) -> dict[str, float]:
    try:
        entry: dict[str, Any] = json.loads(line)
        check_type(dict, entry=entry)
        if entry.pop("crc", None) not in (None, _line_sum(entry)):
            raise ValueError("its checksum is wrong")
        step: Any = entry.get("step")
        check_size(minimum=0, step=step)
        check_type((int, float), **entry)
        if entry.keys() & {"rate", "norm", "seconds"}:  # updates, and no evaluation
            for name in _COLUMNS:
                if name not in entry:
                    raise ValueError(f"{name!r} is missing")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"line {number}: {error}") from error
    return entry


def _line(entry: dict[str, float]) -> str:
    return json.dumps(entry | {"crc": _line_sum(entry)}) + "\n"


def _line_sum(entry: dict[str, float]) -> str:
    return f"{zlib.crc32(json.dumps(entry).encode()):08x}"


def write_log(directory: Path | str, entries: list[dict[str, float]]) -> None:
    """Make `entries` the whole of a run's `log.jsonl`."""
    with atomic_file(Path(directory) / "log.jsonl") as part:
        part.write_text("".join(map(_line, entries)), encoding="utf8")


def append_log(directory: Path | str, entry: dict[str, float]) -> None:
    """Add a line to a run's `log.jsonl`; it is on the disk when this returns."""
    path = Path(directory) / "log.jsonl"
    is_new = not path.exists()
    with naming_errors(path), open(path, "a", encoding="utf8") as file:
        file.write(_line(entry))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_names(path.parent)


def _numbers_of_all(
    updates: list[tuple[Tensor, ...]], places: list[dict[str, Any]], check_norms: bool
) -> list[Tensor]:
    # Losses, tokens and norms [n] of all processes together, on the CPU, all finite.
    if not updates:
        return [torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0)]
    losses, counts, norms = (torch.stack(column) for column in zip(*updates))
    losses, counts = summed_over_all(losses).cpu(), summed_over_all(counts).cpu()
    norms = norms.cpu()
    # A bad gradient makes all later losses bad, so the first bad norm says where to look.
    good = norms.isfinite().long().cumprod(0) if check_norms else torch.ones(len(norms))
    check_finite("loss", losses[: int(good.sum()) + 1], places)
    if check_norms:
        check_finite("norm", norms, places)
    return [losses, counts, norms]


class LogLine:
    """The next line of a log; with `check_norms`, an infinite gradient is an error.

    Args:
        check_norms: whether it is.
        device: where the numbers of the updates are.
    """

    check_norms: bool
    device: torch.device | str
    seconds: float

    def __init__(self, check_norms: bool = True, device: torch.device | str = "cpu") -> None:
        self.check_norms, self.device = check_norms, device
        self.clear()

    def clear(self) -> None:
        """Begin a new line."""
        self.updates: list[tuple[Tensor, ...]] = []  # loss, tokens, norm; they stay on the device
        self.places: list[dict[str, Any]] = []  # step, epoch, batch, learning rate
        self.seconds = 0.0

    def add(self, numbers: tuple[Tensor, ...], place: dict[str, Any], seconds: float) -> None:
        """Note an update of this process, where it was, and how long it took."""
        self.updates.append(numbers)
        self.places.append(place)
        self.seconds += seconds

    def numbers(self) -> list[Tensor]:
        """Losses, tokens and norms `[n]` of all processes together, on the CPU, all finite."""
        start = time.perf_counter()
        numbers = _numbers_of_all(self.updates, self.places, self.check_norms)
        if self.updates:  # a line that has not begun takes no time, not even in a checkpoint
            self.seconds += time.perf_counter() - start
        return numbers

    def entry(self, rate: float) -> dict[str, float]:
        """The line, with the learning rate of its last update."""
        losses, counts, norms = self.numbers()
        tokens, norm, place = int(counts.sum()), norms[-1].item(), self.places[-1]
        loss, seconds = losses.double().sum().item() / max(tokens, 1), round(self.seconds, 3)
        entry = {"step": place["step"], "epoch": place["epoch"], "loss": loss, "rate": rate}
        return entry | {"norm": norm, "tokens": tokens, "seconds": seconds}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"numbers": self.numbers(), "places": self.places, "seconds": self.seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned: sums over all processes, which the first takes over."""
        losses, counts, norms = (column.to(self.device) for column in state["numbers"])
        if rank_and_world_size()[0] > 0:
            losses, counts = torch.zeros_like(losses), torch.zeros_like(counts)
        self.updates, self.places = list(zip(losses, counts, norms)), state["places"]
        self.seconds = float(state["seconds"])


class RunLog:
    """The log of a run: its entries, the line that has begun, and the file in its folder.

    Args:
        updater, stream: make the updates that it tells of.
        directory: of the file; `None` for no file.
        progress: whether the first process shows a progress bar.

    Attributes:
        history: the entries of the log.
        line: the `LogLine` that has begun.
    """

    updater: Updater
    stream: BatchStream
    directory: Path | None
    progress: bool

    history: list[dict[str, float]]
    line: LogLine

    def __init__(
        self, updater: Updater, stream: BatchStream, directory: Path | None = None, progress: bool = False
    ) -> None:
        self.updater, self.stream, self.directory, self.history = updater, stream, directory, []
        self.line = LogLine(not updater.scaler.is_enabled(), updater.device)
        self.progress = progress and rank_and_world_size()[0] == 0

    def add(self, numbers: tuple[Tensor, ...], seconds: float) -> None:
        """Add to the line what the last update returned, where it was, and how long it took."""
        step, stream = self.updater.step, self.stream
        place: dict[str, Any] = {"step": step, "epoch": stream.epoch, "batch": stream.position}
        place["learning rate"] = f"{self.updater.schedule(step):.2e}"
        self.line.add(numbers, place, seconds)

    def write_line(self) -> None:
        """Write the line as it is; it begins anew with `line.clear`."""
        self.write(self.line.entry(self.updater.schedule(self.updater.step)))

    def write(self, entry: dict[str, float]) -> None:
        """Add an entry; of several processes, the first writes it into the log."""
        self.history.append(entry)
        if self.directory is not None and rank_and_world_size()[0] == 0:
            append_log(self.directory, entry)

    def reload(self, last: int) -> None:
        """Read the log up to update `last`, and remove what was written after it."""
        if self.directory is not None:
            self.history[:] = [entry for entry in read_log(self.directory) if entry["step"] <= last]
            if rank_and_world_size()[0] == 0:
                write_log(self.directory, self.history)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs: the line that has begun."""
        return self.line.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the line of `state_dict`; the lines before it are in the log."""
        self.line.load_state_dict(state)

    @contextmanager
    def bar(self, steps: int, done: int) -> Iterator[Callable[[int, bool], None]]:
        """Show the progress of a run that has made `done` of its updates.

        Yields:
            a function that takes the number of updates made, and whether the log has new entries.
        """
        if not self.progress:
            yield lambda step, logged: None
            return
        bar = _Bar(steps, done)
        try:
            yield lambda step, logged: bar.show(step, latest_numbers(self.history) if logged else {})
        finally:
            bar.draw("\n")


def score_of(metrics: Mapping[str, float], monitor: str) -> float:
    """The metric that `TrainingConfig.monitor` names, with the sign that makes more better.

    Raises:
        ValueError: there is no such metric.
    """
    name = monitor.removeprefix("-")
    if name not in metrics:
        raise ValueError(f"monitor is {monitor!r}, but evaluate returned {sorted(metrics)}")
    return -metrics[name] if monitor.startswith("-") else metrics[name]


class Scores:
    """Evaluates the model of a run, and remembers the best score.

    Args:
        updater: has the model that is evaluated.
        evaluate: as in `Trainer`; `None` for no evaluations.
        monitor: as in `TrainingConfig`.

    Attributes:
        best, best_step: the best score, more being better, and the update it was reached at.
        stale: number of evaluations since.
    """

    updater: Updater
    evaluate: Evaluation | None
    monitor: str
    best: float
    best_step: int
    stale: int

    def __init__(self, updater: Updater, evaluate: Evaluation | None, monitor: str) -> None:
        self.updater, self.evaluate, self.monitor = updater, evaluate, monitor
        self.best, self.best_step, self.stale = -math.inf, 0, 0

    def dry_run(self) -> None:
        """Evaluate and leave no trace, since an error should not come late."""
        if self.evaluate is not None:
            with undisturbed(self.updater.device):
                score_of(self.updater.metrics(self.evaluate), self.monitor)

    def measure(self, step: int, write: Callable[[dict[str, float]], None]) -> None:
        """Evaluate after update `step`, `write` the metrics, and then count them."""
        if self.evaluate is None:
            return
        metrics = self.updater.metrics(self.evaluate)
        score = score_of(metrics, self.monitor)
        check_finite(f"metric {self.monitor}", torch.tensor([score]), [{"step": step}])
        write({"step": step, **metrics})
        self.stale += 1
        if score > self.best:
            self.best, self.best_step, self.stale = score, step, 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"best": self.best, "best_step": self.best_step, "stale": self.stale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        best, best_step, stale = state["best"], state["best_step"], state["stale"]
        check_type((int, float), best=best)
        check_size(minimum=0, best_step=best_step, stale=stale)
        self.best, self.best_step, self.stale = best, best_step, stale


def latest_numbers(history: list[dict[str, float]]) -> dict[str, str]:
    """What a progress bar shows of a log: its last updates, and its last evaluation.

    Args:
        history: entries as in `Trainer.history`, or as `read_log` returns them.

    Returns:
        numbers as text, by name; those of the evaluation begin with `dev`.

    Raises:
        TypeError: `history` is not a list.
    """
    check_type(list, history=history)
    shown: dict[str, str] = {}
    for entry in history:
        if "rate" in entry:
            speed = entry["tokens"] / max(entry["seconds"], 1e-3)
            shown |= {"loss": f"{entry['loss']:.3f}", "rate": f"{entry['rate']:.1e}"}
            shown["tokens/s"] = f"{speed:,.0f}"
        else:
            metrics = {name: value for name, value in entry.items() if name != "step"}
            shown |= {f"dev {name}": f"{value:.3f}" for name, value in metrics.items()}
    return shown


class _Bar:
    # A line on standard error, by a clock that nobody sets; silent from where it cannot be written.
    def __init__(self, steps: int, done: int) -> None:
        self.format, self.start = optional_import("tqdm").tqdm.format_meter, time.monotonic()
        self.steps, self.done, self.step = steps, done, done
        self.numbers: dict[str, str] = {}
        self.drawn, self.width, self.works = -math.inf, 0, True

    def show(self, step: int, numbers: dict[str, str]) -> None:
        self.step, self.numbers = step, self.numbers | numbers
        if time.monotonic() - self.drawn > 0.1:
            self.draw()

    def draw(self, end: str = "") -> None:
        self.drawn = time.monotonic()
        if self.works:
            try:
                line = self.line()
                sys.stderr.write(f"\r{line:<{self.width}}{end}")
                sys.stderr.flush()
                self.width = len(line)
            except Exception:  # a reader that has gone, a terminal that was closed
                self.works = False

    def line(self) -> str:
        columns = shutil.get_terminal_size((0, 0)).columns or None
        plain = "utf" not in (sys.stderr.encoding or "").lower()
        shown = ", ".join(f"{name}={value}" for name, value in self.numbers.items())
        past, options = self.drawn - self.start, {"initial": self.done, "unit": "step"}
        line: str = self.format(
            self.step, self.steps, past, columns, ascii=plain, postfix=shown, **options
        )
        return line


def draw_curves(history: list[dict[str, float]], path: Path | str) -> Any:
    """Draw what a log tells over the updates: the loss, the metrics, the learning rate.

    Args:
        history: entries as in `Trainer.history`, or as `read_log` returns them.
        path: where the picture goes; its ending is the format, such as `.png` or `.svg`.

    Returns:
        the matplotlib figure.

    Raises:
        TypeError: `history` is not a list.
        ValueError: the format is unknown.
        OSError: the file cannot be written; the message names it.
        ImportError: matplotlib is missing.
    """
    check_type(list, history=history)
    path, updates = Path(path), [entry for entry in history if "rate" in entry]
    tests = [entry for entry in history if "rate" not in entry]
    metrics = dict.fromkeys(name for entry in tests for name in entry if name != "step")
    panels = {"loss": {"training": updates, "unseen": tests}}
    panels |= {name: {"unseen": tests} for name in metrics if name != "loss"}
    panels |= {"rate": {"learning rate": updates}}

    figure = optional_import("matplotlib.figure").Figure(
        (3 * len(panels), 2.8), layout="constrained"
    )
    check_choice(figure.canvas.get_supported_filetypes(), ending=path.suffix[1:])
    for ax, (name, entries) in zip(figure.subplots(1, len(panels)), panels.items()):
        curves = {
            label: [(entry["step"], entry[name]) for entry in chosen if name in entry]
            for label, chosen in entries.items()
        }
        plot_curves(
            {label: points for label, points in curves.items() if points}, "update", name, ax
        )
    with atomic_file(path) as part:
        figure.savefig(part, format=path.suffix[1:])
    return figure
