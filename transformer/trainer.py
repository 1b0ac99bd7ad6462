"""transformer.trainer, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "PRECISIONS",
    "autocast",
    "best_precision",
    "MovingAverage",
    "TrainingConfig",
    "Updater",
    "BatchStream",
    "random_state",
    "set_random_state",
    "check_finite",
    "LogLine",
    "score_of",
    "latest_numbers",
    "draw_curves",
    "StoppedRun",
    "RunState",
    "Run",
    "Trainer",
]


# %% book/11-long-runs.ipynb · What must stay in float32 · [trainer-imports]
import hashlib
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, is_dataclass
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.distributed import rank_and_world_size
from transformer.files import CheckpointError, processor
from transformer.validation import check_choice, check_rate, check_size, check_type

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# %% book/11-long-runs.ipynb · What must stay in float32 · [autocast]
def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context that computes matrix products, but not sums, in `precision`, one of `PRECISIONS`.

    Raises:
        TypeError: `device` is not a `torch.device`.
        ValueError: the precision is unknown.
    """
    check_type(torch.device, device=device)
    check_choice(PRECISIONS, precision=precision)
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, PRECISIONS[precision])


# %% book/11-long-runs.ipynb · Which of the three · [best-precision]
_UNITS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},  # the last is Arm's
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def best_precision(device: torch.device) -> str:
    """The precision in which a device is fast and trains as well as in float32.

    Args:
        device: to train on.

    Returns:
        `"bfloat16"` for a GPU or a processor that has units for it, `"float16"` for a GPU from 7.0 on;
        `"float32"` for everything else, Apple's `mps` included.

    Raises:
        TypeError: `device` is not a `torch.device`.
    """
    check_type(torch.device, device=device)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"
    # We do not know what torch does with such units on a Mac.
    known = device.type == "cpu" and sys.platform != "darwin"
    return "bfloat16" if known and _UNITS["bfloat16"] & processor()[1] else "float32"


# %% book/11-long-runs.ipynb · Forgetting the start · [exchanged]
@contextmanager
def _exchanged(parameters: list[nn.Parameter], values: list[Tensor]) -> Iterator[None]:
    # Inside, the parameters have these values, and the list has the parameters' own.
    def exchange() -> None:
        for i, parameter in enumerate(parameters):
            parameter.data, values[i] = values[i], parameter.data

    exchange()
    try:
        yield
    finally:
        exchange()


# %% book/11-long-runs.ipynb · Forgetting the start · [moving-average-class]
class MovingAverage:
    """An exponential moving average of a model's parameters, which forgets where it started.

    Args:
        model: the model, whose parameters stay the same objects.
        decay: how much of itself the average keeps in an update, in [0, 1); in the n-th update it
            keeps no more than (1 + n) / (10 + n).

    Source: averaging: Polyak and Juditsky (1992).
    """

    parameters: list[nn.Parameter]
    decay: float
    n_updates: int
    weights: list[Tensor]

    def __init__(self, model: nn.Module, decay: float) -> None:
        check_type(nn.Module, model=model)
        check_rate(decay=decay)
        self.parameters, self.decay, self.n_updates = list(model.parameters()), decay, 0
        self.weights = [parameter.detach().clone() for parameter in self.parameters]  # the averages

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        self.n_updates += 1
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        for average, parameter in zip(self.weights, self.parameters):
            average.lerp_(parameter, 1 - decay)

    def applied(self) -> AbstractContextManager[None]:
        """Give the model the averaged weights for a while; afterward it gets its own back."""
        return _exchanged(self.parameters, self.weights)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"n_updates": self.n_updates, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; another model's weights are a `ValueError`."""
        check_type(dict, average=state)
        check_size(minimum=0, n_updates=state["n_updates"])
        if [x.shape for x in state["weights"]] != [x.shape for x in self.weights]:
            raise ValueError("the averaged weights are another model's")
        self.n_updates = state["n_updates"]
        for average, weight in zip(self.weights, state["weights"]):
            average.copy_(weight)


# %% book/11-long-runs.ipynb · Settings · [training-config]
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
        _check_training(self)


# %% book/11-long-runs.ipynb · Settings · [check-training-config]
from transformer.validation import check_number


def _check_training(config: TrainingConfig) -> None:
    names = ("steps", "accumulate", "log_every", "evaluate_every", "keep")
    check_size(**{name: getattr(config, name) for name in names})
    check_size(minimum=0, seed=config.seed, patience=config.patience)
    check_rate(average=config.average)
    check_number(weight_decay=config.weight_decay)
    check_choice([*PRECISIONS, "auto"], precision=config.precision)
    check_type(str, monitor=config.monitor)
    check_type((int, float), clip_norm=config.clip_norm)
    if not config.clip_norm > 0:
        raise ValueError(f"clip_norm must be greater than 0, but is {config.clip_norm}")


# %% book/11-long-runs.ipynb · The update · [updater-parts]
from transformer.distributed import accumulate_gradients, data_parallel
from transformer.training import adamw, as_epochs, check_loss, to_device

_Loss = Callable[[Any, Any], tuple[Tensor, Tensor]]
_Schedule = Callable[[int], float]


def _precision_on(device: torch.device, precision: str) -> str:
    chosen = best_precision(device) if precision == "auto" else precision
    if device.type == "cpu" and chosen in _UNITS and not _UNITS[chosen] & processor()[1]:
        said = f"this processor has no units for {chosen} and only imitates it, which can take"
        warnings.warn(f"{said} many times as long as float32", stacklevel=6)
    return chosen


def _on_device(
    loss: Callable[[Any], tuple[Tensor, Tensor]], device: torch.device, precision: str
) -> Callable[[Any], tuple[Tensor, Tensor]]:
    def loss_of(batch: Any) -> tuple[Tensor, Tensor]:
        with autocast(device, precision):
            total, tokens = check_loss(loss(to_device(batch, device)))
        return total, torch.as_tensor(tokens)

    return loss_of


# %% book/11-long-runs.ipynb · The update · [updater]
class Updater:
    """Makes the updates of a run, from the model, loss and settings of a `Trainer`.

    Attributes:
        parameters, device, precision, optimizer: what is trained, where, how exactly, and by what.
        stepping: whether the parameters are being changed; an error then leaves neither the old
            ones nor the new.
        scaler, average, engine: of float16, of the weights, and of several processes; the last two
            are `None` where they are not needed.
    """

    parameters: list[nn.Parameter]
    device: torch.device
    clip_norm: float
    precision: str
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    average: MovingAverage | None
    engine: nn.parallel.DistributedDataParallel | None
    loss: Callable[[Any], tuple[Tensor, Tensor]]

    def __init__(self, model: nn.Module, loss: _Loss, config: TrainingConfig) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("model must have a parameter that can be trained, but has none")
        self.device, self.clip_norm = self.parameters[0].device, config.clip_norm
        self.precision = _precision_on(self.device, config.precision)
        self.optimizer = adamw(self.parameters, config.weight_decay)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.average = MovingAverage(model, config.average) if config.average else None
        self.engine = data_parallel(model, loss)
        own = partial(loss, model) if self.engine is None else self.engine
        self.loss = _on_device(own, self.device, self.precision)
        self.stepping = False

    def __call__(self, batches: list[Any], rate: float) -> tuple[Tensor, Tensor, Tensor]:
        """Make an update; return summed loss, number of target tokens and norm of the gradient."""
        self.optimizer.zero_grad()
        scale, engine = self.scaler.scale, self.engine
        total, tokens = accumulate_gradients(self.loss, batches, self.parameters, scale, engine)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.stepping = True
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.stepping = False
        return total, tokens, norm

    def averaged(self) -> AbstractContextManager[None]:
        """A context where the model has the averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        average = None if self.average is None else self.average.state_dict()
        states = {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}
        return states | {"average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; the settings stay those of the config."""
        own, kept = self.optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"]
        groups = [a | {"lr": b["lr"]} for a, b in zip(own, kept, strict=True)]
        self.optimizer.load_state_dict(state["optimizer"] | {"param_groups": groups})
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


# %% book/11-long-runs.ipynb · The place in the data · [batch-stream]
class BatchStream:
    """The batches of all epochs in groups, each for one update, starting at any place.

    Args:
        batches: `batches(epoch)` returns an epoch's batches; or what can be iterated again in every
            epoch, as a list or a `DataLoader` can.
        accumulate: number of batches that this process has in a group.
        rank, world_size: which process this is, and how many share the batches.
        seed: what is drawn from torch's generator while an epoch's batches are made, as a
            `DataLoader` does that shuffles, depends on this and on the epoch alone.

    Attributes:
        epoch, position: the epoch, and how many of its batches have been handed out, to any process.

    Raises:
        TypeError: `batches` is neither.
        ValueError: it is a `DataLoader` with a generator of its own.
    """

    batches: Callable[[int], Iterable[Any]]
    size: int
    rank: int
    world_size: int
    epoch: int
    position: int

    def __init__(
        self,
        batches: Callable[[int], Iterable[Any]] | Iterable[Any],
        accumulate: int = 1,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
    ) -> None:
        if isinstance(getattr(batches, "generator", None), torch.Generator):
            said = "batches must not have a generator of its own, whose state no checkpoint knows"
            raise ValueError(f"{said}: leave it out, and the seed of the run decides")
        self.batches, self.size = as_epochs(batches), accumulate * world_size
        self.rank, self.world_size, self.seed = rank, world_size, seed
        self.epoch = self.position = 0

    def __iter__(self) -> Generator[list[Any], None, None]:
        group: list[Any] = []
        while True:
            for batch in self._epoch(self.epoch, self.position):
                self.position += 1
                group.append(batch)
                if len(group) == self.size:
                    yield group[self.rank :: self.world_size]
                    group = []
            if self.position == 0:
                raise ValueError(f"batches({self.epoch}) gave no batch")
            self.epoch, self.position = self.epoch + 1, 0

    def first(self) -> Any:
        """The first batch of the first epoch; `None` where there is none."""
        return next(self._epoch(0), None)

    def _epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch).get_state()
        batches, end = self._from(epoch, start), object()
        while True:
            with torch.random.fork_rng(devices=[]):  # dropout must not notice what is drawn here
                torch.set_rng_state(drawn)
                batch = next(batches, end)
                drawn = torch.get_rng_state()
            if batch is end:
                return
            yield batch

    def _from(self, epoch: int, start: int) -> Iterator[Any]:
        yield from islice(self.batches(epoch), start, None)  # begun only when the first is asked for


# %% book/11-long-runs.ipynb · The random numbers · [random-state]
def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own random generators, on the CPU and on `device`.

    Raises:
        TypeError: `device` is not a `torch.device`.
    """
    check_type(torch.device, device=device)
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with the random numbers that followed when `random_state` was called.

    Args:
        state: what it returned.
        device: the device to draw on; a state that belongs to another kind of device is left out.

    Raises:
        TypeError: `state` is not a mapping.
        KeyError: it lacks the state of the CPU.
    """
    check_type(Mapping, state=state)
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    elif "mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["mps"])


# %% book/11-long-runs.ipynb · The line of the log · [check-finite]
def check_finite(name: str, values: Tensor, steps: list[dict[str, Any]]) -> None:
    """Stop where a number of an update is infinite or not a number.

    Args:
        name: what the message calls the numbers.
        values: one of each update, `[n]`.
        steps: of each update, what the message says of it.

    Raises:
        TypeError: `values` is not a tensor.
        FloatingPointError: a value is not finite; the message describes the first such update.
    """
    check_type(Tensor, values=values)
    bad = (~values.isfinite()).nonzero().flatten().tolist()
    if bad:
        where = ", ".join(f"{what} {value}" for what, value in steps[bad[0]].items())
        raise FloatingPointError(f"the {name} is {values[bad[0]].item()} at {where}")


# %% book/11-long-runs.ipynb · The line of the log · [numbers-of-all]
from transformer.distributed import summed_over_all


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


# %% book/11-long-runs.ipynb · The line of the log · [log-line]
class LogLine:
    """The next line of a log; with `check_norms`, an infinite gradient is an error."""

    seconds: float

    def __init__(self, check_norms: bool = True) -> None:
        self.check_norms = check_norms
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

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Go on from what `state_dict` returned: sums over all processes, which the first takes over."""
        losses, counts, norms = (column.to(device) for column in state["numbers"])
        if rank_and_world_size()[0] > 0:
            losses, counts = torch.zeros_like(losses), torch.zeros_like(counts)
        self.updates, self.places = list(zip(losses, counts, norms)), state["places"]
        self.seconds = float(state["seconds"])


# %% book/11-long-runs.ipynb · The line of the log · [score-of]
def score_of(metrics: Mapping[str, float], monitor: str) -> float:
    """The metric that `TrainingConfig.monitor` names, with the sign that makes more better.

    Raises:
        ValueError: there is no such metric.
    """
    name = monitor.removeprefix("-")
    if name not in metrics:
        raise ValueError(f"monitor is {monitor!r}, but evaluate returned {sorted(metrics)}")
    return -metrics[name] if monitor.startswith("-") else metrics[name]


# %% book/11-long-runs.ipynb · The line of the log · [log-shown]
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


# %% book/11-long-runs.ipynb · The line of the log · [progress-bar]
import shutil

from transformer.validation import optional_import


@contextmanager
def _progress_bar(
    steps: int, done: int, shown: bool
) -> Iterator[Callable[[int, dict[str, str]], None]]:
    # Yields a function that takes the number of updates made, and new numbers where there are any.
    if not shown:
        yield lambda step, numbers: None
        return
    bar = _Bar(steps, done)
    try:
        yield bar.show
    finally:
        bar.draw("\n")


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


# %% book/11-long-runs.ipynb · The line of the log · [draw-curves]
from transformer.files import atomic_file
from transformer.plots import plot_curves


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


# %% book/11-long-runs.ipynb · Reasons to stop · [stopped-run]
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


# %% book/11-long-runs.ipynb · Reasons to stop · [noted-signals]
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


# %% book/11-long-runs.ipynb · Reasons to stop · [reason-to-stop]
from transformer.distributed import largest


def _reason_to_stop(signals: list[int], deadline: float | None = None) -> int:
    # 0 for none, 1 if time is over by the first process's clock, or the number of a signal; the
    # same in all processes, because they ask after the same update.
    late = deadline is not None and time.monotonic() >= deadline
    first = rank_and_world_size()[0] == 0
    return largest(max(signals, default=int(late and first)))


# %% book/11-long-runs.ipynb · Settings that must agree · [fingerprint]
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


# %% book/11-long-runs.ipynb · Settings that must agree · [settings]
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


# %% book/11-long-runs.ipynb · What a run consists of · [restore-random]
from transformer.distributed import from_all, from_first

_Batches = Callable[[int], Iterable[Any]] | Iterable[Any]


def _restore_random(states: Any, device: torch.device, path: Path) -> None:
    # Each process has its own.
    check_type(list, random=states)
    rank, world_size = rank_and_world_size()
    if len(states) == world_size:
        set_random_state(states[rank], device)
    else:
        said = f"{path} was written by {len(states)} processes, not {world_size}"
        warnings.warn(f"{said}: dropout starts anew", stacklevel=6)


# %% book/11-long-runs.ipynb · What a run consists of · [run-state]
from transformer.fast import accelerated


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
    loss: _Loss
    batches: _Batches
    schedule: _Schedule
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
        self, model: nn.Module, loss: _Loss, batches: _Batches, schedule: _Schedule,
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
        _restore_random(state["random"], self.device, path)

    def _set_progress(
        self, step: int, epoch: int, position: int, best: float, best_step: int, stale: int
    ) -> None:
        check_type((int, float), best=best)
        counts = {"step": step, "epoch": epoch, "position": position}
        check_size(minimum=0, **counts, best_step=best_step, stale=stale)
        self.step, self.best, self.best_step, self.stale = step, best, best_step, stale
        self.stream.epoch, self.stream.position = epoch, position


# %% book/11-long-runs.ipynb · How it is kept · [run-alone]
from transformer.files import (
    RunFolder,
    append_log,
    check_weights,
    load_checkpoint,
    newest_whole,
    read_log,
    save_checkpoint,
    set_weights,
    write_log,
)


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


# %% book/11-long-runs.ipynb · How it is kept · [run]
class Run(RunState):
    """A training run that is kept in a folder; its arguments are those of `Trainer`."""

    directory: Path | None
    folder: RunFolder | None

    def __init__(
        self, model: nn.Module, loss: _Loss, batches: _Batches, schedule: _Schedule,
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


# %% book/11-long-runs.ipynb · How it goes · [trainer-parts]
from transformer.training import evaluating

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


# %% book/11-long-runs.ipynb · How it goes · [trainer]
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
        self, model: nn.Module, loss: _Loss, batches: _Batches, schedule: _Schedule,
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
        bar = _progress_bar(config.steps, self.step, self.progress and self.rank == 0)
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
