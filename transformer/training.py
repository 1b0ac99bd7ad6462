"""transformer.training, from book/07-training.ipynb, "Training".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "adamw",
    "noam_rate",
    "cooldown",
    "PRECISIONS",
    "TrainingConfig",
    "autocast",
    "best_precision",
    "MovingAverage",
    "process_group",
    "rank_and_world_size",
    "accumulate_gradients",
    "atomic_file",
    "CHECKPOINT_FORMAT",
    "regular_file",
    "CheckpointError",
    "DamagedCheckpointError",
    "save_checkpoint",
    "load_checkpoint",
    "set_weights",
    "evaluating",
    "move",
    "evaluate_loss",
    "monitored",
    "read_log",
    "write_log",
    "latest_numbers",
    "draw_curves",
    "prefetch",
    "random_state",
    "set_random_state",
    "check_finite",
    "StoppedRun",
    "Trainer",
    "run_facts",
    "write_record",
    "read_record",
    "record_path",
    "load_record",
    "save_weights",
    "load_weights",
]


# %% book/07-training.ipynb · Training · [imports]
import hashlib
import json
import math
import os
import platform
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import metadata, resources
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from transformer.loss import label_smoothed_cross_entropy, token_accuracy
from transformer.plots import plot_curves
from transformer.validation import (
    check_choice,
    check_device,
    check_number,
    check_rate,
    check_size,
    check_type,
    optional_import,
)


# %% book/07-training.ipynb · Shrinking the weights · [adamw]
def adamw(parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> torch.optim.AdamW:
    """Adam with the paper's constants, and a decay of the matrices that its step has no part in.

    Args:
        parameters: what to optimise.
        weight_decay: λ; an update of rate η multiplies matrices by 1 − ηλ, and leaves vectors alone.

    Returns:
        the optimiser; its rate is to be set before each update.

    Raises:
        TypeError, ValueError: `weight_decay` is no number, negative or not finite.

    Source: Kingma and Ba (2015); Loshchilov and Hutter (2019).
    """
    check_number(weight_decay=weight_decay)
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=True)


# %% book/07-training.ipynb · The formula · [noam-rate]
def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The paper's learning rate: linear up to `warmup_steps`, then falling as 1/√step.

    Args:
        step: number of the update, counted from 1.
        d_model: width of the model.
        warmup_steps: the step at which the rate is highest.
        factor: multiplies the whole curve.

    Returns:
        factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    Raises:
        TypeError: `step`, `d_model` or `warmup_steps` is not an int, or `factor` no number.
        ValueError: one of the three is below 1, or `factor` negative or not finite.

    Source: Vaswani et al. (2017), equation 3.
    """
    check_size(step=step, d_model=d_model, warmup_steps=warmup_steps)
    check_number(factor=factor)
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


# %% book/07-training.ipynb · Ending low · [cooldown]
def cooldown(step: int, steps: int, fraction: float) -> float:
    """A factor for the learning rate that falls linearly to 0 over the last part of a run.

    Args:
        step: number of the update, counted from 1.
        steps: number of updates of the run.
        fraction: the share of the run over which the rate falls; 0 for a factor of 1 throughout.

    Returns:
        1 before the last part; then (steps - step + 1) / (fraction · steps).

    Raises:
        TypeError: `step` or `steps` is not an int, or `fraction` no number.
        ValueError: `step` is below 1 or above `steps`, or `fraction` outside [0, 1].
    """
    check_size(step=step, steps=steps)
    if step > steps:
        raise ValueError(f"step must be at most steps, which is {steps}, but is {step}")
    check_type((int, float), fraction=fraction)
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1], but is {fraction}")
    return min(1.0, (steps - step + 1) / (fraction * steps)) if fraction else 1.0


# %% book/07-training.ipynb · What must stay in float32 · [training-config]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that a training run is told beside model, loss and data.

    Args:
        steps: number of updates.
        accumulate: number of batches whose gradients one update sums.
        clip_norm: the longest gradient, as an L2 norm over all parameters; `inf` for no limit.
        precision: `"float32"`, or what matrix products are computed in: `"bfloat16"`, `"float16"`;
            `"auto"` for the `best_precision` of the device.
        seed: of dropout, and of whatever else draws from torch's own generator.
        log_every: updates between two lines of the log.
        evaluate_every: updates between two evaluations and checkpoints.
        keep: number of newest checkpoints kept, beside the best.
        monitor: the metric that tells the best; it begins with `-` where less is better.
        weight_decay: what matrices are shrunk by beside a step, in units of the learning rate.
        average: how much of itself the moving average of the weights keeps in an update; 0 for none.
        patience: evaluations without a new best after which the run is over; 0 for no end but
            `steps`.

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


# %% book/07-training.ipynb · What must stay in float32 · [autocast]
def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """Where matrix products are computed in `precision`, one of `PRECISIONS`, and sums are not.

    Raises:
        TypeError: `device` is no `torch.device`.
        ValueError: the precision is unknown.
    """
    check_type(torch.device, device=device)
    check_choice(PRECISIONS, precision=precision)
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, PRECISIONS[precision])


# %% book/07-training.ipynb · Which of the three · [best-precision]
def best_precision(device: torch.device) -> str:
    """In which precision a device is fast and trains as well as in float32.

    Args:
        device: to train on.

    Returns:
        `"bfloat16"` for a GPU or a processor that has units for it, `"float16"` for an older GPU;
        `"float32"` for everything else, Apple's `mps` included.

    Raises:
        TypeError: `device` is no `torch.device`.
    """
    check_type(torch.device, device=device)
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.get_device_capability(device) >= (8, 0) else "float16"
    # What torch does with such units on a Mac is not known to us.
    known = device.type == "cpu" and sys.platform != "darwin"
    return "bfloat16" if known and _UNITS["bfloat16"] & _processor()[1] else "float32"


_UNITS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},  # the last is Arm's
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
_INSTRUCTIONS = {"avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "sve", "sve2"}


def _processor() -> tuple[str, set[str]]:
    # The processor's model, and those of its instructions that decide how fast products are: as
    # torch tells, where it does so, and as Linux tells.
    told = getattr(torch.cpu, "get_capabilities", dict)()
    names = {"avx512_f": "avx512f", "fp16_arith": "asimdhp"}
    found = {names.get(name, name) for name, value in told.items() if value is True}
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    found.update(facts.get("flags", facts.get("Features", "")).split())
    models = [facts.get("model name"), told.get("cpu_name"), platform.processor()]
    return next(filter(None, models), ""), found & _INSTRUCTIONS.union(*_UNITS.values())


def _warn_of_imitation(device: torch.device, precision: str) -> None:
    if device.type == "cpu" and precision in _UNITS and not _UNITS[precision] & _processor()[1]:
        said = f"this processor has no units for {precision} and only imitates it, which can take"
        warnings.warn(f"{said} many times as long as float32", stacklevel=3)


# %% book/07-training.ipynb · Forgetting the start · [moving-average-class]
class MovingAverage:
    """An exponential moving average of a model's parameters, which forgets where it started.

    Args:
        model: the model, whose parameters stay the same objects.
        decay: how much of itself the average keeps in an update, in [0, 1); in the n-th update it
            keeps no more than (1 + n) / (10 + n).

    Attributes:
        weights: the averages, in the order of `model.parameters()`, a shared table once.

    Raises:
        TypeError, ValueError: `model` is no module, or `decay` not in [0, 1).

    Source: averaging: Polyak and Juditsky (1992).
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        check_type(nn.Module, model=model)
        check_rate(decay=decay)
        self.parameters, self.decay, self.n_updates = list(model.parameters()), decay, 0
        self.weights = [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        self.n_updates += 1
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        for average, parameter in zip(self.weights, self.parameters):
            average.lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averaged weights, and its own back afterwards."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.data, self.weights[i] = self.weights[i], parameter.data

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"n_updates": self.n_updates, "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            TypeError, KeyError: `state` is no such dictionary.
            ValueError: it belongs to another model.
        """
        check_type(dict, average=state)
        check_size(minimum=0, n_updates=state["n_updates"])
        if [x.shape for x in state["weights"]] != [x.shape for x in self.weights]:
            raise ValueError("the averaged weights are another model's")
        self.n_updates = state["n_updates"]
        for average, weight in zip(self.weights, state["weights"]):
            average.copy_(weight)


# %% book/07-training.ipynb · Several processes · [process-group]
@contextmanager
def process_group(device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started; without torchrun there is nobody to join.

    Args:
        device: to compute on; `None` for a GPU where there is one. Under torchrun each process of a
            machine gets a GPU of its own.

    Yields:
        the device of this process.

    Raises:
        ValueError: there is no such device, there are fewer GPUs than processes, or the environment
            is not torchrun's.
        RuntimeError: this torch cannot connect processes, or they do not find each other.
    """
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if "LOCAL_RANK" not in os.environ:
        yield check_device(device)
        return
    device = _own_device(device)
    _connect(_backend(device))
    yield device
    # After an error nobody takes leave: for that one needs the others, and they know of nothing.
    distributed.destroy_process_group()


def _own_device(device: torch.device | str) -> torch.device:
    values = {name: os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    for name, value in values.items():
        if not value.isdecimal():
            raise ValueError(f"{name} must be a number, as torchrun sets it, but is {value!r}")
    if not str(device).startswith("cuda"):
        return check_device(device)
    own, n_devices = int(values["LOCAL_RANK"]), torch.cuda.device_count()
    if own >= n_devices:
        raise ValueError(f"{n_devices} GPUs are too few for process {own}, counted from 0")
    torch.cuda.set_device(own)
    return torch.device("cuda", own)


def _backend(device: torch.device) -> str:
    backend = {"cuda": "nccl", "cpu": "gloo"}.get(device.type)
    if backend is None:
        raise ValueError(f"several processes need cpu or cuda, not {device.type}")
    if not (distributed.is_available() and getattr(distributed, f"is_{backend}_available")()):
        raise RuntimeError(f"this torch was built without {backend}: start one process only")
    return backend


def _connect(backend: str) -> None:
    try:
        store, rank, world_size = next(distributed.rendezvous("env://"))
        # Started again by torchrun, they must not meet the addresses of those that have died.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = distributed.PrefixStore(f"attempt {attempt}", store)
        long = timedelta(hours=2)  # the others wait while the first evaluates
        distributed.init_process_group(
            backend, timeout=long, store=store, rank=rank, world_size=world_size
        )
    except (RuntimeError, ValueError) as error:
        message = f"the processes that torchrun started do not find each other: {error}"
        raise RuntimeError(message) from error


def rank_and_world_size() -> tuple[int, int]:
    """Which process this is, counted from 0, and how many there are; (0, 1) outside of a group.

    Raises:
        RuntimeError: torchrun has started several, and this one has not joined the others.
    """
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise RuntimeError("torchrun has started several processes: join them by `process_group`")
    return 0, 1


# %% book/07-training.ipynb · One gradient of all · [accumulate-gradients]
def accumulate_gradients(
    loss: Callable[[Any], tuple[Tensor, Tensor]],
    batches: Iterable[Any],
    parameters: list[nn.Parameter],
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    engine: DistributedDataParallel | None = None,
) -> tuple[Tensor, Tensor]:
    """Leave in `.grad` the gradient of the mean loss over all target tokens of all batches.

    Args:
        loss: `loss(batch)` returns the summed loss and the number of target tokens it sums over.
        batches: the batches that one update is made from.
        parameters: the parameters, without gradients yet.
        scale: multiplies the loss by a constant before the gradient is taken.
        engine: what `loss` calls to have the gradients averaged over several processes, each of
            which has at least one batch; `None` for one process.

    Returns:
        the summed loss of all batches and their number of target tokens; tensors, so that nobody
        has to wait for the device. Of several processes, each returns those of its own batches.

    Raises:
        TypeError: `parameters` is no list.
        ValueError: there is no parameter.
    """
    check_type(list, parameters=parameters)
    if not parameters:
        raise ValueError("parameters must hold at least one parameter")
    device, batches = parameters[0].device, list(batches)
    total, tokens = torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device)
    for number, batch in enumerate(batches, start=1):
        alone = engine is None or number < len(batches)  # the last gradients travel
        with engine.no_sync() if engine is not None and alone else nullcontext():
            batch_loss, count = loss(batch)
            before, tokens = tokens, tokens + count
            divisor = tokens.clamp(min=1) if alone else _tokens_per_process(tokens)
            for parameter in parameters if number > 1 else []:
                if parameter.grad is not None:  # of a mean over more tokens it is a smaller part
                    parameter.grad.mul_(before).div_(divisor)
            scale(batch_loss / divisor).backward()
        total = total + batch_loss.detach()
    return total, tokens


def _tokens_per_process(tokens: Tensor) -> Tensor:
    tokens = tokens.clone()
    distributed.all_reduce(tokens)
    return tokens.clamp(min=1) / distributed.get_world_size()


class _LossOf(nn.Module):
    # A loss calls parts of the model; DistributedDataParallel has to see one forward pass.
    def __init__(self, model: nn.Module, loss: Callable) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        return self.loss(self.model, batch)


# %% book/07-training.ipynb · What else must be agreed on · [processes-talk]
def _from_first(value: Any) -> Any:
    # What the first process says, in all of them; nobody goes on before the first is here.
    box = [value]
    if rank_and_world_size()[1] > 1:
        distributed.broadcast_object_list(box, src=0)
    return box[0]


def _from_all(value: Any) -> list[Any]:
    # What every process says, by rank.
    n_processes = rank_and_world_size()[1]
    values = [value] * n_processes
    if n_processes > 1:
        distributed.all_gather_object(values, value)
    return values


# %% book/07-training.ipynb · Files that are whole · [atomic-files]
@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """Give an empty file to write to, which takes the place of `path` at the end, all at once.

    Args:
        path: the file to write or replace. If the writing fails, it stays as it was.

    Raises:
        OSError: the file cannot be written, as on a full disk; the message names it.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with _naming(path):
            part.touch(exist_ok=False)  # not if anything has that name, be it a link
            yield part
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    # Who opens a file in vain is told its name; who writes to it on a full disk is not.
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


# %% book/07-training.ipynb · Files that are whole · [checkpoint-files]
CHECKPOINT_FORMAT = "transformer-checkpoint-3"


def regular_file(path: Path | str) -> Path:
    """The path of a file to read, unless what stands there is a folder, or a device without an end.

    Raises:
        OSError: it is no regular file; a missing one is left for `open` to report.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file")
    return path


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint of this package, or not one of this model."""


class DamagedCheckpointError(CheckpointError):
    """A file of which a part is missing, or that never was a checkpoint."""


def save_checkpoint(path: Path | str, state: dict[str, Any]) -> None:
    """Write tensors, numbers and dictionaries of them, and a check sum; whole or not at all.

    Raises:
        TypeError: `state` is no dictionary.
        OSError: the file cannot be written; the message names it.
    """
    check_type(dict, state=state)
    with atomic_file(path) as part:
        try:
            with open(part, "wb") as file:
                torch.save({"format": CHECKPOINT_FORMAT, **state}, file)
        except RuntimeError as error:  # torch's own words for what `file` has just said
            said = error.__context__
            raise said if isinstance(said, OSError) else OSError(f"{path}: {error}") from error
        _seal(part)


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote, to the CPU, executing nothing.

    Args:
        path: of the file.

    Returns:
        the state.

    Raises:
        OSError: the file cannot be read; `FileNotFoundError` where there is none.
        DamagedCheckpointError: a bit of it has changed, a part is missing, or it never was a
            checkpoint; the message names it.
        CheckpointError: it is whole, and of another format.
    """
    path = regular_file(path)
    with _naming(path), path.open("rb") as file:
        if not _is_whole(file):
            raise DamagedCheckpointError(f"{path} is no whole checkpoint: its check sum is wrong")
        try:
            _check_archive(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
            if _unfolded(state, {}) > os.fstat(file.fileno()).st_size:
                raise ValueError("unfolded, it is larger than the file")
        except (OSError, MemoryError):
            raise
        except Exception as error:  # written by a stranger: by half a dozen types of error
            said = f"{type(error).__name__}: {str(error).strip():.200}"
            raise CheckpointError(f"{path} is no checkpoint that can be read ({said})") from error
    given = state.get("format") if isinstance(state, dict) else None
    if given != CHECKPOINT_FORMAT:
        message = f"{path} is no checkpoint in the format {CHECKPOINT_FORMAT!r}"
        raise CheckpointError(f"{message}, but says {given!r:.60}" if given else message)
    return state


def _seal(path: Path) -> None:
    # A zip archive may end with a comment, and before it stands its length, in two bytes.
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
    # Of all bytes before `end`, where the file is left.
    check_sum, left = hashlib.sha256(), end
    file.seek(0)
    while left and (content := file.read(min(left, 1 << 20))):
        check_sum.update(content)
        left -= len(content)
    return check_sum.digest()


def _check_archive(file: BinaryIO) -> None:
    # A small archive can hold what is large when it is unpacked, and torch unpacks it all.
    entries = zipfile.ZipFile(file).infolist()
    if any(entry.compress_type for entry in entries):
        raise ValueError("torch.save compresses nothing")
    if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
        raise ValueError("its entries claim more than the file holds")
    file.seek(0)


def _unfolded(value: Any, known: dict[int, float]) -> float:
    # The number of values inside, each as often as it is reached. A list of lists that are one and
    # the same is short in the file, and without an end for who prints it.
    if id(value) not in known:
        known[id(value)] = math.inf  # what holds itself
        inner: Iterable[Any] = value if isinstance(value, list | tuple | set) else ()
        if isinstance(value, dict):
            inner = [*value, *value.values()]
        n_inner = sum(_unfolded(item, known) for item in inner)
        known[id(value)] = math.inf if isinstance(value, Tensor) and _is_hollow(value) else 1 + n_inner
    return known[id(value)]


def _is_hollow(x: Tensor) -> bool:
    # Whether a tensor claims more numbers than its storage holds.
    return x.is_meta or x.layout != torch.strided or x.nbytes > x.untyped_storage().nbytes()


def set_weights(model: nn.Module, state: dict[str, Any], path: Path | str) -> None:
    """Give a model the weights of a checkpoint.

    Args:
        model: the model; it keeps its dtype and device.
        state: what `load_checkpoint` returned.
        path: the file that it came from, for the message.

    Raises:
        TypeError: `model` is no module.
        CheckpointError: the weights are another model's, or there are none; the model stays as it was.
    """
    check_type(nn.Module, model=model)
    weights = state.get("model") if isinstance(state, dict) else None
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} holds no weights")
    if fault := _misfit(model, weights):
        raise CheckpointError(f"{path} belongs to another model: {fault}")
    model.load_state_dict(weights, strict=False)  # a table under two names may come under one


def _misfit(model: nn.Module, weights: dict[str, Any]) -> str:
    # Why weights are not the model's; "" where they are. Asked before the first of them is copied.
    own = model.state_dict()
    for name, x in weights.items():
        if name not in own:
            return f"it knows no {name!r}"
        if not isinstance(x, Tensor) or x.is_floating_point() != own[name].is_floating_point():
            return f"{name!r} is {getattr(x, 'dtype', type(x).__name__)}, not {own[name].dtype}"
        if x.shape != own[name].shape:
            return f"{name!r} has shape {list(x.shape)}, not {list(own[name].shape)}"
    filled: dict[int, str] = {}
    for name, x in weights.items():
        first = filled.setdefault(own[name].data_ptr(), name)
        if not torch.equal(x, weights[first]):
            return f"{first!r} and {name!r} differ, and are one table here"
    missing = [name for name in own if own[name].data_ptr() not in filled]
    return f"it lacks {missing[0]!r}" if missing else ""


# %% book/07-training.ipynb · Files that are whole · [newest-whole]
def _newest_whole(paths: list[Path]) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    # The last of some checkpoints that is whole, and its state. Where none is, and where one is in
    # another format, it is somebody's work: an error, and not a reason to begin anew.
    damaged: list[DamagedCheckpointError] = []
    for path in reversed(paths):
        try:
            state = load_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for error in damaged:
            warnings.warn(f"{error}; going on from {path.name}", stacklevel=5)
        return path, state
    if damaged:
        raise CheckpointError(
            f"{paths[0].parent} holds a run, but no checkpoint of it is whole: "
            f"{'; '.join(map(str, damaged))}. Put a whole one there, or begin in another folder"
        )
    return None, None


# %% book/07-training.ipynb · A look without a trace · [evaluating]
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off, and put every module back into its mode afterwards."""
    check_type(nn.Module, model=model)
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def move(batch: Any, device: torch.device) -> Any:
    """Move the tensors in a tuple, list or dict to a device; what is no tensor stays as it is."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {key: move(item, device) for key, item in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple
        return type(batch)(*(move(item, device) for item in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(move(item, device) for item in batch)
    return batch


# %% book/07-training.ipynb · Loss and accuracy on unseen data · [evaluate-loss]
def evaluate_loss(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The unsmoothed loss and the accuracy of next-token prediction, every token counting the same.

    Args:
        model: a `Transformer`; dropout is off while it is evaluated.
        batches: pairs of source ids `[B, S]` and target ids `[B, T + 1]` that begin with the start
            token.

    Returns:
        `"loss"` in nats per target token, and `"accuracy"` in [0, 1].

    Raises:
        TypeError, ValueError, IndexError: as in `Transformer`.
    """
    check_type(nn.Module, model=model)
    device, pad_id = next(model.parameters()).device, model.config.pad_id
    sums = torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for batch in batches:
            src, tgt = move(batch, device)
            logits, targets = model(src, tgt[:, :-1]), tgt[:, 1:]
            count = (targets != pad_id).sum()
            loss = label_smoothed_cross_entropy(logits, targets, 0.0, pad_id, reduction="sum")
            correct = token_accuracy(logits, targets, pad_id) * count
            sums += torch.stack([loss, correct, count]).cpu()
    loss, correct, count = sums.tolist()
    return {"loss": loss / max(count, 1), "accuracy": correct / max(count, 1)}


def monitored(metrics: Mapping[str, float], monitor: str) -> float:
    """The metric that `TrainingConfig.monitor` names, with the sign that makes more better.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there is no such metric.
    """
    check_type(Mapping, metrics=metrics)
    check_type(str, monitor=monitor)
    name = monitor.removeprefix("-")
    if name not in metrics:
        raise ValueError(f"monitor is {monitor!r}, but evaluate returned {sorted(metrics)}")
    return -metrics[name] if monitor.startswith("-") else metrics[name]


# %% book/07-training.ipynb · A log of lines · [log-files]
_COLUMNS = ("step", "epoch", "loss", "rate", "norm", "tokens", "seconds")  # of a line of updates


def read_log(directory: Path | str) -> list[dict[str, float]]:
    """The entries of a run's `log.jsonl`, but for a last line cut off; `[]` without a log.

    Raises:
        CheckpointError: the file is no log; the message names it, and the line.
    """
    path, entries = regular_file(Path(directory) / "log.jsonl"), []
    try:
        text = path.read_text(encoding="utf8") if path.exists() else ""
        for number, line in enumerate(text.splitlines(keepends=True), start=1):
            if line.endswith("\n"):
                entries.append(_log_entry(line, number))
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no log of a run: {error}") from error
    return entries


def _log_entry(line: str, number: int) -> dict[str, float]:
    try:
        entry = json.loads(line)
        check_type(dict, entry=entry)
        check_size(minimum=0, step=entry.get("step"))
        check_type((int, float), **entry)
        if entry.keys() & {"rate", "norm", "seconds"}:  # updates, and no evaluation
            for name in _COLUMNS:
                if name not in entry:
                    raise ValueError(f"{name!r} is missing")
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"line {number}: {error}") from error
    return entry


def write_log(directory: Path | str, entries: list[dict[str, float]]) -> None:
    """Make `entries` the whole of a run's `log.jsonl`."""
    with atomic_file(Path(directory) / "log.jsonl") as part:
        part.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf8")


# %% book/07-training.ipynb · A log of lines · [log-shown]
def latest_numbers(history: list[dict[str, float]]) -> dict[str, str]:
    """What a progress bar shows of a log: its last updates, and its last evaluation.

    Args:
        history: entries as in `Trainer.history`, or as `read_log` returns them.

    Returns:
        numbers as text, by name; those of the evaluation begin with `dev`.

    Raises:
        TypeError: `history` is no list.
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


def draw_curves(history: list[dict[str, float]], path: Path | str) -> Any:
    """Draw what a log tells over the updates: the loss, the metrics, the learning rate.

    Args:
        history: entries as in `Trainer.history`, or as `read_log` returns them.
        path: where the picture goes; its ending is the format, such as `.png` or `.svg`.

    Returns:
        the matplotlib figure.

    Raises:
        TypeError: `history` is no list.
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


# %% book/07-training.ipynb · Where the batches come from · [prefetch]
def prefetch(batches: Iterable[Any], n_ahead: int = 4) -> Iterator[Any]:
    """Give the same batches, made ahead by a thread.

    Args:
        batches: what to iterate over; if it draws random numbers, then from a generator of its own,
            as the thread draws at another time than the loop would have.
        n_ahead: number of batches that wait at most.

    Yields:
        the batches, in their order; an error of `batches` is raised where it occurred.

    Raises:
        TypeError, ValueError: `n_ahead` is no `int`, or below 1.
    """
    check_size(n_ahead=n_ahead)
    ready: queue.Queue[tuple[str, Any]] = queue.Queue(n_ahead)
    wanted = threading.Event()
    wanted.set()

    def make() -> None:
        try:
            for batch in batches:
                ready.put(("batch", batch))
                if not wanted.is_set():
                    return
            ready.put(("end", None))
        except BaseException as error:
            ready.put(("error", error))

    thread = threading.Thread(target=make, name="prefetch", daemon=True)
    thread.start()
    try:
        while (found := ready.get())[0] == "batch":
            yield found[1]
        if found[0] == "error":
            raise found[1]
    finally:
        wanted.clear()
        while thread.is_alive():  # it may be waiting for room
            with suppress(queue.Empty):
                ready.get(timeout=0.01)


# %% book/07-training.ipynb · The state of chance · [random-state]
def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own random generators, on the CPU and on `device`.

    Raises:
        TypeError: `device` is no `torch.device`.
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
        TypeError: `state` is no mapping.
        KeyError: it lacks the state of the CPU.
    """
    check_type(Mapping, state=state)
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    elif "mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["mps"])


# %% book/07-training.ipynb · When the numbers stop · [check-finite]
def check_finite(name: str, values: Tensor, steps: list[dict[str, Any]]) -> None:
    """Stop where a number of an update is infinite or not a number.

    Args:
        name: what the message calls the numbers.
        values: one of each update, `[n]`.
        steps: of each update, what the message says of it.

    Raises:
        TypeError: `values` is no tensor.
        FloatingPointError: a value is not finite; the message describes the first such update.
    """
    check_type(Tensor, values=values)
    bad = (~values.isfinite()).nonzero().flatten().tolist()
    if bad:
        where = ", ".join(f"{what} {value}" for what, value in steps[bad[0]].items())
        raise FloatingPointError(f"the {name} is {values[bad[0]].item()} at {where}")


# %% book/07-training.ipynb · One run to a folder · [stopped-run]
class StoppedRun(KeyboardInterrupt):
    """What `Trainer.fit` ends with when the process is asked to end, by SIGINT or SIGTERM.

    Attributes:
        signal: number of the signal.
        step: number of updates made.
    """

    def __init__(self, message: str, number: int, step: int) -> None:
        super().__init__(message)
        self.signal, self.step = number, step


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    # The signals that ask the process to end, noted instead of obeyed. Who asks again is obeyed; but
    # not within a second, for Ctrl-C reaches every process, and a launcher hands it on once more.
    noted: list[int] = []
    times: list[float] = []

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        times.append(time.perf_counter())
        if times[-1] - times[0] > 1:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = {number: how for number, how in before.items() if how not in (None, signal.SIG_IGN)}
    if threading.current_thread() is not threading.main_thread():
        before = {}  # only the main thread may ask for them
    try:
        for number in before:
            signal.signal(number, note)
        yield noted
    finally:
        for number, how in before.items():
            signal.signal(number, how)


# %% book/07-training.ipynb · The trainer · [trainer]
_PLACE = ("step", "epoch", "position", "best", "best_step", "stale")
_MAY_CHANGE = ("steps", "keep")  # settings of a run that goes on


class Trainer:
    """Trains a model: batches in; updates, log, evaluations and checkpoints out.

    A run that has a directory can be resumed. Inside a `process_group` of several processes, each
    has a trainer, and the trainers make one run; the directory is one that all of them see. With
    `config.average`, what is evaluated and kept as the best are the averaged weights.

    Args:
        model: the model, on the device that it is to be trained on.
        loss: `loss(model, batch)` returns the summed loss and the number of target tokens that it
            sums over.
        batches: `batches(epoch)` returns an epoch's batches. The same epoch must give the same
            batches every time, in every process: this is what resuming rests on.
        schedule: `schedule(step)` returns the learning rate of update `step`, counted from 1.
        config: the run's settings.
        directory: where log and checkpoints go; `None` for nowhere.
        evaluate: `evaluate(model)` returns metrics, called in evaluation mode without gradients, of
            several processes in the first.
        progress: whether to show a progress bar.

    Attributes:
        rank, world_size: which process this is, and how many there are.
        step: number of updates made.
        best, best_step, stale: the best score, the update it was reached at, and the number of
            evaluations since.
        history: one entry per log line: step, epoch, loss, rate, gradient norm, tokens and seconds;
            or step and metrics.
        precision: what `config.precision` means on this device.
        average: the `MovingAverage` of the weights, or `None`.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], tuple[Tensor, Tensor]],
        batches: Callable[[int], Iterable[Any]],
        schedule: Callable[[int], float],
        config: TrainingConfig,
        directory: Path | str | None = None,
        evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
        progress: bool = False,
    ) -> None:
        check_type(nn.Module, model=model)
        check_type(TrainingConfig, config=config)
        check_type(Callable, loss=loss, batches=batches, schedule=schedule)
        check_type((Callable, type(None)), evaluate=evaluate)
        self.model, self.loss, self.batches, self.schedule = model, loss, batches, schedule
        self.config, self.evaluate, self.progress = config, evaluate, progress
        self.directory = None if directory is None else Path(directory)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("model must have a parameter that can be trained, but has none")
        self.device = self.parameters[0].device
        self.optimizer = adamw(self.parameters, config.weight_decay)
        auto = config.precision == "auto"
        self.precision = best_precision(self.device) if auto else config.precision
        _warn_of_imitation(self.device, self.precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.average = MovingAverage(model, config.average) if config.average else None
        self.rank, self.world_size = rank_and_world_size()
        self.engine = None
        if self.world_size > 1:
            self.engine = DistributedDataParallel(_LossOf(model, loss))
            self.engine.broadcast_buffers = False  # they are constants, as the table of positions
            # What the processors tell each other must not wait for the GPUs.
            self._talk = distributed.new_group(backend="gloo") if self.device.type == "cuda" else None
        self.step = self.epoch = self.position = self.best_step = self.stale = 0
        self.best = -math.inf
        self.history: list[dict[str, float]] = []
        self._random: dict[str, Tensor] | None = None  # between two calls of `fit`
        self._lock = None
        if self.directory is not None:
            self._lock = optional_import("filelock").FileLock(self.directory / "run.lock")
        self._clear_line()

    @property
    def finished(self) -> bool:
        """Whether all updates are made, or patience is at its end."""
        return self.step >= self.config.steps or 0 < self.config.patience <= self.stale

    def fit(self, max_minutes: float | None = None) -> "Trainer":
        """Train until the run is finished, from the newest checkpoint if there is one.

        Args:
            max_minutes: when this time is over, the call ends after the update in progress, with a
                checkpoint; `None` for no limit. The next call goes on, and the run's result is the
                same.

        Returns:
            the trainer; its model is in training mode.

        Raises:
            StoppedRun: SIGINT or SIGTERM came, if this is the main thread. The update in progress
                was finished and, where there is a directory, a checkpoint written.
            FloatingPointError: the loss or its gradient is no longer finite.
            ValueError: an epoch has no batch, or the metric to monitor is missing.
            CheckpointError: what is in the directory is another run, or damaged; it stays as it is.
            BlockingIOError: another process is training in the directory.
        """
        check_number(max_minutes=0 if max_minutes is None else max_minutes)
        deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        stop, config = 0, self.config
        with self._alone():
            self._begin()
            with (
                _noted_signals() as signals,
                closing(self._groups()) as groups,
                self._progress_bar() as bar,
            ):
                while not (self.finished or stop):
                    self._make_update(groups)
                    stop = self._reason_to_stop(signals, deadline)
                    due = self.step % config.evaluate_every == 0 or self.step == config.steps
                    line = due or self.step % config.log_every == 0
                    if line:
                        self._end_line()
                    if bar is not None:
                        bar.update(self.step - bar.n)
                        if line:
                            bar.set_postfix(latest_numbers(self.history))
                    if due:
                        self._evaluate()
                    if due or stop:
                        self.save()
            self._random = random_state(self.device)
            stop = self._reason_to_stop(signals)
        if stop:
            kept = " with a checkpoint; the same call goes on from there" if self.directory else ""
            message = f"stopped at step {self.step:,} of {config.steps:,}{kept}"
            raise StoppedRun(message, stop, self.step)
        return self

    def update(self, batches: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Make one update from the mean loss over all target tokens of `batches`.

        Args:
            batches: those of this process; of several processes, each has equally many.

        Returns:
            summed loss and number of target tokens of these batches, and the gradient's norm before
            clipping; tensors all.
        """
        summed = self.engine or partial(self.loss, self.model)

        def loss(batch):
            with autocast(self.device, self.precision):
                return summed(move(batch, self.device))

        self.optimizer.zero_grad()
        total, tokens = accumulate_gradients(
            loss, batches, self.parameters, self.scaler.scale, self.engine
        )
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm)
        rate = self.schedule(self.step + 1)
        check_number(**{f"schedule({self.step + 1})": rate})
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        self.step += 1
        return total, tokens, norm

    def save(self) -> None:
        """Write a checkpoint, the best weights if these are, and remove the older checkpoints.

        The newest `config.keep` of them stay.
        """
        if self.directory is None:
            return
        state = {
            "settings": self._settings(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": self.average and self.average.state_dict(),
            "progress": {name: getattr(self, name) for name in _PLACE},
            "line": {"numbers": self._numbers(), "places": self._places, "seconds": self._seconds},
            "random": _from_all(random_state(self.device)),
        }
        if self.rank == 0:
            save_checkpoint(self._path(), state)
            self._tidy()
        _from_first(None)

    def checkpoints(self) -> list[Path]:
        """The checkpoints in the directory, oldest first."""
        return sorted(self.directory.glob("checkpoint-*.pt")) if self.directory else []

    def resume(self) -> bool:
        """Take up the newest whole checkpoint in the directory; return whether there was one.

        Raises:
            CheckpointError: there are checkpoints, but none is whole; or there is a log, or best
                weights, without a checkpoint; or the newest whole one belongs to another model, was
                made with other settings than these (but for `steps` and `keep`), or is in another
                format. Nothing in the directory has changed then.
            BlockingIOError: another process is training in the directory.
        """
        if self.directory is None:
            return False
        with self._alone():
            path, state = _newest_whole(self.checkpoints()) if self.rank == 0 else (None, None)
            path = _from_first(path)
            if path is None:
                self._check_empty()
                return False
            self._restore(state or load_checkpoint(path), path)
            # What was logged after the checkpoint will happen again, and be logged again.
            self.history = [line for line in read_log(self.directory) if line["step"] <= self.step]
            if self.rank == 0:
                write_log(self.directory, self.history)
                self._tidy()
            return True

    def load_best(self) -> None:
        """Give the model the weights that `config.monitor` found best.

        Raises:
            ValueError: the trainer has no directory.
            FileNotFoundError: nothing has been evaluated yet.
            CheckpointError: the file is damaged, or belongs to another model.
        """
        if self.directory is None:
            raise ValueError("a trainer without a directory keeps no best weights")
        path = self.directory / "best.pt"
        set_weights(self.model, load_checkpoint(path), path)

    def _begin(self) -> None:
        torch.manual_seed(self.config.seed * self.world_size + self.rank)
        if not self.resume():
            if self._random is not None:
                set_random_state(self._random, self.device)
            self.save()  # before the log begins, so that no log is without a checkpoint
        self.model.train()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # The lock belongs to the process: the system takes it away when that ends, in whatever way.
        fault = ""
        if self.directory is not None and self.rank == 0:
            self.directory.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except optional_import("filelock").Timeout:
                fault = f"{self.directory} is in use: another process is training there"
        if fault := _from_first(fault):
            raise BlockingIOError(fault)
        try:
            yield
        finally:
            if self._lock is not None and self.rank == 0:
                self._lock.release()

    def _check_empty(self) -> None:
        for path in (self.directory / "best.pt", self.directory / "log.jsonl"):
            if path.exists() and path.stat().st_size:
                raise CheckpointError(
                    f"{path} is of a run whose checkpoints are gone: put one back, or begin in "
                    "another folder"
                )

    def _settings(self) -> dict[str, str]:
        # As text, for a checkpoint to hold and a message to show.
        found = {name: vars(self.config)[name] for name in vars(self.config) if name not in _MAY_CHANGE}
        if is_dataclass(model := getattr(self.model, "config", None)):
            found |= {f"model.{name}": value for name, value in vars(model).items()}
        return {name: repr(value) for name, value in found.items()}

    def _restore(self, state: dict[str, Any], path: Path) -> None:
        set_weights(self.model, state, path)
        self._check_settings(state.get("settings"), path)
        try:
            own = self.optimizer.state_dict()["param_groups"]  # settings are the config's
            self.optimizer.load_state_dict(state["optimizer"] | {"param_groups": own})
            self.scaler.load_state_dict(state["scaler"])
            if self.average is not None:
                self.average.load_state_dict(state["average"])
            self._restore_line(**state["line"])
            place = {name: state["progress"][name] for name in _PLACE}
            check_type((int, float), best=place["best"])
            check_size(minimum=0, **{name: place[name] for name in _PLACE if name != "best"})
            vars(self).update(place)
            check_type(list, random=state["random"])
            if len(state["random"]) == self.world_size:
                set_random_state(state["random"][self.rank], self.device)
            else:
                said = f"{path} was written by {len(state['random'])} processes, not"
                warnings.warn(f"{said} {self.world_size}: dropout starts anew", stacklevel=4)
        except Exception as error:  # weights alone, or another program's idea of a checkpoint
            message = f"{path} cannot be resumed from ({type(error).__name__}: {error})"
            raise CheckpointError(message) from error

    def _check_settings(self, settings: Any, path: Path) -> None:
        own = self._settings()
        if not isinstance(settings, dict) or settings.keys() != own.keys():
            raise CheckpointError(f"{path} cannot be resumed from: its settings are other ones")
        changed = [f"{n} = {settings[n]!s:.60} and not {own[n]}" for n in own if settings[n] != own[n]]
        if changed:
            raise CheckpointError(f"{path} belongs to a run with {', '.join(changed)}")

    def _restore_line(self, numbers: list[Tensor], places: list[dict], seconds: float) -> None:
        # They are sums over all processes, so the first has them and the others add nothing.
        losses, counts, norms = (column.to(self.device) for column in numbers)
        if self.rank > 0:
            losses, counts = torch.zeros_like(losses), torch.zeros_like(counts)
        self._updates, self._places = list(zip(losses, counts, norms)), places
        self._seconds = float(seconds)

    def _path(self) -> Path:
        return self.directory / f"checkpoint-{self.step:08d}.pt"

    def _tidy(self) -> None:
        # What follows from the checkpoint of this step: cut off after it, this is done on resuming.
        if 0 < self.best_step == self.step:
            with self._averaged():
                best = {"model": self.model.state_dict(), "step": self.step, "score": self.best}
                save_checkpoint(self.directory / "best.pt", best)
        # A later number can only be a file that could not be read: it must not push out good ones.
        for path in [p for p in self.checkpoints() if p <= self._path()][: -self.config.keep]:
            path.unlink()
        for name in ("checkpoint-*.pt", "best.pt", "log.jsonl"):  # what a killed run was writing
            for path in self.directory.glob(f".{name}.*.part"):
                path.unlink()

    def _averaged(self) -> AbstractContextManager:
        return nullcontext() if self.average is None else self.average.applied()

    def _groups(self) -> Iterator[list[Any]]:
        # What one update is made from: `accumulate` batches for each process, across the borders of
        # epochs. `position` counts the batches of this epoch that were handed out, to anybody.
        group: list[Any] = []
        while True:
            with torch.random.fork_rng(devices=[]):  # what dropout draws must not change with this
                batches = iter(self.batches(self.epoch))
                for _ in islice(batches, self.position):
                    pass
            for batch in batches:
                self.position += 1
                group.append(batch)
                if len(group) == self.config.accumulate * self.world_size:
                    yield group[self.rank :: self.world_size]
                    group = []
            if self.position == 0:
                raise ValueError(f"batches({self.epoch}) gave no batch")
            self.epoch, self.position = self.epoch + 1, 0

    def _make_update(self, groups: Iterator[list[Any]]) -> None:
        # Its numbers stay on the device until the line of the log ends.
        start = time.perf_counter()
        self._updates.append(self.update(next(groups)))
        place = {"step": self.step, "epoch": self.epoch, "batch": self.position}
        self._places.append(place | {"learning rate": f"{self.schedule(self.step):.2e}"})
        self._seconds += time.perf_counter() - start

    def _reason_to_stop(self, signals: list[int], deadline: float | None = None) -> int:
        # 0 for none, 1 if time is over by the first process's clock, or the number of a signal; the
        # same in all processes, for they ask after the same update.
        late = deadline is not None and time.monotonic() >= deadline
        reason = max(signals, default=int(late and self.rank == 0))
        if self.engine is None:
            return reason
        largest = torch.tensor(reason)
        distributed.all_reduce(largest, distributed.ReduceOp.MAX, group=self._talk)
        return int(largest)

    def _numbers(self) -> list[Tensor]:
        # Losses, tokens and norms of the updates since the last line, of all processes together.
        start = time.perf_counter()
        if not self._updates:
            return [torch.zeros(0), torch.zeros(0, dtype=torch.long), torch.zeros(0)]
        losses, counts, norms = (torch.stack(column) for column in zip(*self._updates))
        if self.engine is not None:
            distributed.all_reduce(losses)
            distributed.all_reduce(counts)
        losses, counts, norms = losses.cpu(), counts.cpu(), norms.cpu()
        check_finite("loss", losses, self._places)
        if not self.scaler.is_enabled():  # with float16 such an update was dropped, as it should be
            check_finite("norm", norms, self._places)
        self._seconds += time.perf_counter() - start
        return [losses, counts, norms]

    def _end_line(self) -> None:
        losses, counts, norms = self._numbers()
        entry: dict[str, float] = {
            "step": self.step,
            "epoch": self.epoch,
            "loss": losses.double().sum().item() / max(int(counts.sum()), 1),
            "rate": self.schedule(self.step),
            "norm": norms[-1].item(),
            "tokens": int(counts.sum()),
            "seconds": round(self._seconds, 3),
        }
        self._log(entry)
        self._clear_line()

    def _clear_line(self) -> None:
        # Updates since the last line of the log, where they were, and how long they took.
        self._updates: list[tuple[Tensor, ...]] = []
        self._places: list[dict[str, Any]] = []
        self._seconds = 0.0

    def _evaluate(self) -> None:
        if self.evaluate is None:
            return
        metrics = _from_first(self._metrics() if self.rank == 0 else None)
        self._log({"step": self.step, **metrics})
        score = monitored(metrics, self.config.monitor)
        self.stale += 1
        if score > self.best:
            self.best, self.best_step, self.stale = score, self.step, 0

    def _metrics(self) -> dict[str, float]:
        half = autocast(self.device, self.precision)
        with self._averaged(), evaluating(self.model), half:
            metrics = self.evaluate(self.model)
        check_type(Mapping, **{"evaluate(model)": metrics})
        return {name: float(value) for name, value in metrics.items()}

    def _log(self, entry: dict[str, float]) -> None:
        self.history.append(entry)
        if self.directory is not None and self.rank == 0:
            path = self.directory / "log.jsonl"
            with _naming(path), open(path, "a", encoding="utf8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())  # before a checkpoint that comes after it

    def _progress_bar(self) -> AbstractContextManager:
        if not self.progress or self.rank > 0:
            return nullcontext()
        tqdm = optional_import("tqdm").tqdm
        return tqdm(total=self.config.steps, initial=self.step, unit="step")


# %% book/07-training.ipynb · Runs that can be believed · [records]
def run_facts(device: torch.device | str) -> dict[str, Any]:
    """What one needs to know to repeat a run.

    Args:
        device: that the run used.

    Returns:
        command, commit (with a `+` where the package differs from it), device, processor (model,
        architecture, the instruction sets that decide how fast products are, and the one that
        torch's own kernels use), versions, and the date in UTC. What cannot be found out is an empty
        string.

    Raises:
        ValueError: there is no such device.
    """
    device = check_device(device)
    model, instructions = _processor()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else model
    versions = {"python": platform.python_version()}
    for library in ("torch", "tokenizers", "sacrebleu"):
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    return {
        "command": _command(),
        "commit": _commit(),
        "device": f"{device.type}: {name}, {torch.get_num_threads()} threads",
        "processor": {
            "model": model,
            "architecture": platform.machine(),
            "instructions": sorted(instructions),
            "kernels": torch.backends.cpu.get_cpu_capability(),
        },
        "versions": versions,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _command() -> str:
    # As it was typed, but for the path of the interpreter.
    arguments = sys.orig_argv[1:]
    if any("ipykernel_launcher" in argument for argument in arguments):
        return "a cell of a notebook"
    return shlex.join(["python", *arguments])


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


# %% book/07-training.ipynb · Runs that can be believed · [record-files]
def write_record(path: Path | str, record: dict[str, Any]) -> None:
    """Write a record as JSON, whole or not at all."""
    with atomic_file(path) as part:
        text = json.dumps(record, indent=1, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf8")


def read_record(path: Path | str) -> dict[str, Any]:
    """Read what `write_record` wrote.

    Raises:
        OSError: the file cannot be opened; `FileNotFoundError` where there is none.
        CheckpointError: the file holds no record; the message names it.
    """
    path = regular_file(path)
    try:
        record = json.loads(path.read_text(encoding="utf8"))
        check_type(dict, record=record)
    except (ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} is no record: {error}") from error
    return record


def record_path(name: str) -> Path:
    """Where a file of the recorded runs lies in the installed package.

    Raises:
        TypeError: `name` is no string.
        FileNotFoundError: there is no such file; the message says which there are.
    """
    check_type(str, name=name)
    folder = Path(str(resources.files("transformer"))) / "records"
    known = sorted(path.name for path in folder.glob("*"))
    if name not in known:  # nor is a path that leads out of the folder
        raise FileNotFoundError(f"there is no recorded file {name!r}, but there are {known}")
    return folder / name


def load_record(name: str) -> dict[str, Any]:
    """Read the record `name` of a run that the book reports.

    Raises:
        FileNotFoundError: there is no such record.
    """
    return read_record(record_path(f"{name}.json"))


# %% book/07-training.ipynb · Weights to keep · [weights]
def save_weights(model: nn.Module, path: Path | str, dtype: torch.dtype = torch.float32) -> None:
    """Write a model's weights as safetensors, a shared table once.

    Args:
        model: the model.
        path: of the file.
        dtype: to write in; `torch.float16` halves the file.

    Raises:
        TypeError: `model` is no module, or `dtype` no `torch.dtype`.
        ValueError: `dtype` is not floating-point.
        OSError: the file cannot be written; the message names it.
        ImportError: safetensors is missing.
    """
    check_type(nn.Module, model=model)
    check_type(torch.dtype, dtype=dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be floating-point, but is {dtype}")
    safetensors, weights, seen = optional_import("safetensors.torch"), {}, set()
    for name, x in sorted(model.state_dict().items()):
        if x.data_ptr() not in seen:
            seen.add(x.data_ptr())
            x = x.to(dtype) if x.is_floating_point() else x
            weights[name] = x.cpu().clone(memory_format=torch.contiguous_format)
    with atomic_file(path) as part:
        part.write_bytes(safetensors.save(weights))


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Read what `save_weights` wrote into a model of the same configuration.

    Args:
        model: the model; it keeps its dtype and device.
        path: of the file.

    Raises:
        TypeError: `model` is no module.
        OSError: the file cannot be opened; `FileNotFoundError` where there is none.
        CheckpointError: the file is damaged, or does not fit the model, which then stays as it was;
            the message names the file.
        ImportError: safetensors is missing.
    """
    check_type(nn.Module, model=model)
    safetensors, content = optional_import("safetensors.torch"), regular_file(path).read_bytes()
    try:
        weights = safetensors.load(content)
    except MemoryError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} does not hold this model's weights: {error}") from error
    if fault := _misfit(model, weights):
        raise CheckpointError(f"{path} does not hold this model's weights: {fault}")
    model.load_state_dict(weights, strict=False)  # a shared table is in the file once
