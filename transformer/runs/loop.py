"""transformer.runs.loop, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "SummedLoss", "RateSchedule", "Evaluation", "random_state", "set_random_state", "CHECKPOINT_FORMAT",
    "save_checkpoint", "load_checkpoint", "accumulate_gradients", "PRECISIONS", "autocast", "best_precision",
    "MovingAverage", "Updater",
]


# %% book/11-long-runs.ipynb · Killed and resumed · [checkpoint-imports]
import hashlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformer.files import CheckpointError, atomic_file, regular_file
from transformer.runs.distributed import data_parallel, rank_and_world_size, summed_over_all
from transformer.training import adamw, check_loss, to_device
from transformer.validation import check_number

SummedLoss = Callable[[Any, Any], tuple[Tensor, Tensor | int]]
RateSchedule = Callable[[int], float]
Evaluation = Callable[[Any], Mapping[str, float]]


# %% book/11-long-runs.ipynb · Killed and resumed · [random-state]
def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own random generators, on the CPU and on `device`."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with the numbers that followed `random_state`, on a device of its kind."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    elif "mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["mps"])


# %% book/11-long-runs.ipynb · Killed and resumed · [save-checkpoint]
CHECKPOINT_FORMAT = "transformer-checkpoint-3"


def save_checkpoint(path: Path | str, state: dict[str, Any]) -> None:
    """Write tensors, numbers and dictionaries of them, and a checksum, or nothing.

    Raises:
        OSError: the file cannot be written; the message names it.
    """
    content = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **state}, content)
    content.seek(-2, io.SEEK_END)  # a zip archive ends with a comment's length
    content.write(hashlib.sha256().digest_size.to_bytes(2, "little"))
    content.write(hashlib.sha256(content.getbuffer()).digest())
    with atomic_file(path) as part:
        part.write_bytes(content.getbuffer())


# %% book/11-long-runs.ipynb · Killed and resumed · [load-checkpoint]
def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read onto the CPU what `save_checkpoint` wrote, executing nothing.

    Raises:
        OSError: the file cannot be read; `FileNotFoundError` where there is none.
        CheckpointError: a bit of it has changed, a part is missing, it is in another format, or it
            never was a checkpoint; the message names it.
    """
    content, size = regular_file(path).read_bytes(), hashlib.sha256().digest_size
    if hashlib.sha256(memoryview(content)[:-size]).digest() != content[-size:]:
        raise CheckpointError(f"{path} is not a whole checkpoint: its checksum is wrong")
    try:
        state: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        given = state["format"]
    except Exception as error:  # a stranger's file can raise half a dozen types of error
        message = f"{type(error).__name__}: {str(error).strip():.200}"
        raise CheckpointError(f"{path} is not a checkpoint that can be read ({message})") from error
    if given != CHECKPOINT_FORMAT:
        wanted = f"in the format {CHECKPOINT_FORMAT!r}, but says {given!r:.60}"
        raise CheckpointError(f"{path} is not a checkpoint {wanted}")
    return dict(state)


# %% book/11-long-runs.ipynb · Gradient accumulation: several batches, one gradient · [accumulate-gradients]
def accumulate_gradients(
    loss: Callable[[Any], tuple[Tensor, Tensor]], batches: Iterable[Any],
    parameters: list[nn.Parameter],
    scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    engine: DistributedDataParallel | None = None,
) -> tuple[Tensor, Tensor]:
    """Leave in `.grad` the gradient of the mean loss over all tokens of all batches.

    Args:
        loss: `loss(batch)` returns the summed loss and its number of target tokens.
        batches: what one update is made from; of several processes, each has one.
        parameters: those of the model, without gradients yet.
        scale: multiplies the loss by a constant before the gradient is taken.
        engine: what `loss` calls to have gradients averaged over several processes,
            after the last batch; `None` for one process.

    Returns:
        this process's summed loss and its number of target tokens, both tensors.
    """
    device, batches = parameters[0].device, list(batches)
    total = torch.zeros((), device=device)
    divisor = tokens = torch.zeros((), dtype=torch.long, device=device)
    for number, batch in enumerate(batches, start=1):
        travel = engine is not None and number == len(batches)
        with nullcontext() if engine is None or travel else engine.no_sync():
            batch_loss, count = loss(batch)
            before, tokens = divisor, tokens + count
            divisor = tokens.clamp(min=1)
            if travel:  # one W-th of the tokens of all processes
                world_size = rank_and_world_size()[1]
                divisor = summed_over_all(tokens).clamp(min=1) / world_size
            for parameter in parameters if number > 1 else []:
                if parameter.grad is not None:  # a smaller part of more tokens
                    parameter.grad.mul_(before).div_(divisor)
            scale(batch_loss / divisor).backward()
        total = total + batch_loss.detach()
    return total, tokens


# %% book/11-long-runs.ipynb · What must stay in float32 · [autocast]
PRECISIONS = dict(
    float32=torch.float32, bfloat16=torch.bfloat16, float16=torch.float16
)


@contextmanager
def autocast(device: torch.device, precision: str) -> Iterator[None]:
    """A context that computes matrix products, but not sums, in `precision`."""
    if precision == "float32":
        yield
        return
    before = torch.backends.cuda.cudnn_sdp_enabled()
    # On an H100 or a B200, half precision may get cuDNN's attention, which plans
    # anew for each new shape of a batch.
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        with torch.autocast(device.type, PRECISIONS[precision]):
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


# %% book/11-long-runs.ipynb · Does it train as well? · [best-precision]
def best_precision(device: torch.device) -> str:
    """`"bfloat16"` on a GPU that has it, `"float16"` on one from 7.0 on, else `"float32"`."""
    if device.type != "cuda":
        return "float32"
    generation = torch.cuda.get_device_capability(device)
    if generation >= (8, 0):
        return "bfloat16"
    return "float16" if generation >= (7, 0) else "float32"


# %% book/11-long-runs.ipynb · Weight averaging (EMA): the mean of many weights · [moving-average-class]
class MovingAverage:
    """A moving average of a model's parameters; Polyak and Juditsky (1992) take the plain mean.

    Args:
        model: the model, whose parameters stay the same objects.
        decay: what the average keeps of itself in an update, in [0, 1); in the n-th
            update at most (1 + n) / (10 + n), so it forgets where it started.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.parameters = list(model.parameters())
        self.weights = [p.detach().clone() for p in self.parameters]
        self.decay = decay
        first = self.weights[0]  # beside which the count lies: a GPU keeps it by itself
        dtype = torch.promote_types(first.dtype, torch.float32)
        self.n_updates = first.new_zeros((), dtype=dtype)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the parameters as they are now."""
        self.n_updates += 1
        share = (9 / (10 + self.n_updates)).clamp(min=1 - self.decay)  # 1 - d_n
        for average, parameter in zip(self.weights, self.parameters):
            average.lerp_(parameter, share.to(average))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averaged weights, and afterward its own again."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        for i, parameter in enumerate(self.parameters):
            parameter.data, self.weights[i] = self.weights[i], parameter.data

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs."""
        return {"n_updates": int(self.n_updates), "weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
        self.n_updates.fill_(state["n_updates"])
        for average, weight in zip(self.weights, state["weights"], strict=True):
            average.copy_(weight)


# %% book/11-long-runs.ipynb · The whole update · [updater]
class Updater:
    """Makes and counts the updates of a run; arguments as in `Trainer`.

    Attributes:
        make: makes an update at the rate that is set: `update`, or a graph of it.
        scaler, average, engine: of float16, of the weights, and of several
            processes; the last two are `None` where they are not needed.
    """

    def __init__(
        self, model: nn.Module, loss: SummedLoss, schedule: RateSchedule, clip_norm: float = 1.0,
        precision: str = "float32", weight_decay: float = 0.0, average: float = 0.0,
    ) -> None:
        self.model = model
        self.schedule = schedule
        self.clip_norm = clip_norm
        self.step = 0
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise ValueError("model must have a parameter that can be trained")
        self.device = self.parameters[0].device
        self.precision = best_precision(self.device) if precision == "auto" else precision
        self.engine = data_parallel(model, loss)
        self._own_loss = partial(loss, model) if self.engine is None else self.engine
        self.optimizer = adamw(self.parameters, weight_decay)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.average = MovingAverage(model, average) if average else None
        self.make: Callable[[list[Any]], tuple[Tensor, ...]] = self.update

    def loss(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch and its tokens, on the device of the model."""
        with autocast(self.device, self.precision):
            total, tokens = check_loss(self._own_loss(to_device(batch, self.device)))
        return total, torch.as_tensor(tokens)

    def update(self, batches: list[Any]) -> tuple[Tensor, ...]:
        """Make an update from the mean loss over all target tokens of `batches`; return
        the summed loss, the number of tokens, and the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        scale = self.scaler.scale
        total, tokens = accumulate_gradients(self.loss, batches, self.parameters, scale, self.engine)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        return total, tokens, norm

    def __call__(self, batches: list[Any]) -> tuple[Tensor, ...]:
        """Make the next update at the schedule's rate, as `update`, and count it."""
        rate = self.schedule(self.step + 1)
        check_number(**{f"schedule({self.step + 1})": rate})
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):  # from which a graph reads it
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        numbers = self.make(batches)
        self.step += 1
        return numbers

    def averaged(self) -> AbstractContextManager[None]:
        """A context where the model has the averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the weights."""
        average = None if self.average is None else self.average.state_dict()
        states = {"step": self.step, "optimizer": self.optimizer.state_dict()}
        return states | {"scaler": self.scaler.state_dict(), "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned, with the settings of the config."""
        own = self.optimizer.state_dict() | {"state": state["optimizer"]["state"]}
        self.optimizer.load_state_dict(own)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.scaler.is_enabled())
        if state["scaler"]:  # empty after another precision; then the scale begins anew
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step = state["step"]
