"""One update: gradients, clipping, the optimizer, the moving average."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from transformer.runs.accumulation import accumulate_gradients
from transformer.runs.averaging import MovingAverage
from transformer.runs.distributed import data_parallel, from_first, rank_and_world_size
from transformer.runs.precision import PRECISIONS, autocast, precision_on
from transformer.training import adamw, check_loss, evaluating, to_device
from transformer.validation import check_choice, check_number, check_rate, check_size, check_type

__all__ = ["TrainingConfig", "SummedLoss", "RateSchedule", "Evaluation", "Updater", "check_finite"]


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


SummedLoss = Callable[[Any, Any], tuple[Tensor, Tensor]]
RateSchedule = Callable[[int], float]
Evaluation = Callable[[Any], Mapping[str, float]]


def _on_device(
    loss: Callable[[Any], tuple[Tensor, Tensor]], device: torch.device, precision: str
) -> Callable[[Any], tuple[Tensor, Tensor]]:
    def loss_of(batch: Any) -> tuple[Tensor, Tensor]:
        with autocast(device, precision):
            total, tokens = check_loss(loss(to_device(batch, device)))
        return total, torch.as_tensor(tokens)

    return loss_of


def _as_metrics(found: Any) -> dict[str, float]:
    """What an evaluation returned, as the log can hold it."""
    check_type(Mapping, **{"evaluate(model)": found})
    if taken := found.keys() & {"step", "rate", "norm", "seconds", "crc"}:
        raise ValueError(f"evaluate returned {sorted(taken)}, which the log uses itself")
    return {name: float(value) for name, value in found.items()}


class Updater:
    """Makes and counts the updates of a run, from what a `Trainer` is given.

    Attributes:
        step: number of updates made.
        model, parameters, device, precision, optimizer: what is trained, where, how exactly, by what.
        stepping: whether the parameters are being changed; an error then leaves neither the old
            ones nor the new.
        scaler, average, engine: of float16, of the weights, and of several processes; the last two
            are `None` where they are not needed.
    """

    model: nn.Module
    step: int
    stepping: bool
    schedule: RateSchedule
    parameters: list[nn.Parameter]
    device: torch.device
    clip_norm: float
    precision: str
    optimizer: torch.optim.AdamW
    scaler: torch.amp.GradScaler
    average: MovingAverage | None
    engine: DistributedDataParallel | None
    loss: Callable[[Any], tuple[Tensor, Tensor]]

    def __init__(
        self, model: nn.Module, loss: SummedLoss, schedule: RateSchedule, config: TrainingConfig
    ) -> None:
        self.model, self.schedule = model, schedule
        if not any(p.requires_grad for p in model.parameters()):
            raise ValueError("model must have a parameter that can be trained, but has none")
        self.engine = data_parallel(model, loss)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.device, self.clip_norm = self.parameters[0].device, config.clip_norm
        self.precision = precision_on(self.device, config.precision)
        self.optimizer = adamw(self.parameters, config.weight_decay)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "float16")
        self.average = MovingAverage(model, config.average) if config.average else None
        own = partial(loss, model) if self.engine is None else self.engine
        self.loss = _on_device(own, self.device, self.precision)
        self.step, self.stepping = 0, False

    def __call__(self, batches: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Make an update from the mean loss over all target tokens of this process's `batches`; return
        their summed loss, their number of tokens, and the gradient's norm before clipping, all tensors."""
        check_number(**{f"schedule({self.step + 1})": (rate := self.schedule(self.step + 1))})
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
        self.step, self.stepping = self.step + 1, False
        return total, tokens, norm

    def averaged(self) -> AbstractContextManager[None]:
        """A context where the model has the averaged weights, if there are any."""
        return nullcontext() if self.average is None else self.average.applied()

    def metrics(self, evaluate: Evaluation) -> dict[str, float]:
        """What `evaluate` finds of the averaged weights; the first process evaluates for all."""
        found = None
        with self.averaged():
            if rank_and_world_size()[0] == 0:
                with evaluating(self.model), autocast(self.device, self.precision):
                    found = _as_metrics(evaluate(self.model))
        metrics: dict[str, float] = from_first(found)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the weights."""
        average = None if self.average is None else self.average.state_dict()
        states = {"step": self.step, "optimizer": self.optimizer.state_dict()}
        return states | {"scaler": self.scaler.state_dict(), "average": average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; the settings stay those of the config."""
        check_size(minimum=0, step=state["step"])
        own, kept = self.optimizer.state_dict()["param_groups"], state["optimizer"]["param_groups"]
        groups = [a | {"lr": b["lr"]} for a, b in zip(own, kept, strict=True)]
        self.optimizer.load_state_dict({"state": state["optimizer"]["state"], "param_groups": groups})
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step = state["step"]


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
