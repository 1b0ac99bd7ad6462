"""The settings of a training run, and what else it is given."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from torch import Tensor
from transformer.validation import check_choice, check_number, check_rate, check_size, check_type

__all__ = ["SummedLoss", "RateSchedule", "Evaluation", "TrainingConfig"]


SummedLoss = Callable[[Any, Any], tuple[Tensor, Tensor]]
RateSchedule = Callable[[int], float]
Evaluation = Callable[[Any], Mapping[str, float]]


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
        check_choice(["float32", "bfloat16", "float16", "auto"], precision=self.precision)
        check_type(str, monitor=self.monitor)
        check_type((int, float), clip_norm=self.clip_norm)
        if not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be greater than 0, but is {self.clip_norm}")
