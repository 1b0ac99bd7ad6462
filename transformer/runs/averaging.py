"""transformer.runs.averaging, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["MovingAverage"]


# %% book/11-long-runs.ipynb · Forgetting the start · [averaging-imports]
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from transformer.validation import check_rate, check_size, check_type


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
