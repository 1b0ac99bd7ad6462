"""transformer.runs.accumulation, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["accumulate_gradients"]


# %% book/11-long-runs.ipynb · Several batches, one gradient · [accumulation-imports]
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from transformer.runs.distributed import rank_and_world_size, summed_over_all
from transformer.validation import check_type


# %% book/11-long-runs.ipynb · Several batches, one gradient · [accumulate-gradients]
def accumulate_gradients(
    loss: Callable[[Any], tuple[Tensor, Tensor]], batches: Iterable[Any],
    parameters: list[nn.Parameter], scale: Callable[[Tensor], Tensor] = lambda loss: loss,
    engine: DistributedDataParallel | None = None,
) -> tuple[Tensor, Tensor]:
    """Leave in `.grad` the gradient of the mean loss over all target tokens of all batches.

    Args:
        loss: `loss(batch)` returns the summed loss and the number of target tokens it sums over.
        batches: the batches that one update is made from.
        parameters: the parameters, without gradients yet.
        scale: multiplies the loss by a constant before the gradient is taken.
        engine: what `loss` calls to have the gradients averaged over several processes, each of
            which has at least one batch; `None` for one process. They travel with the last batch.

    Returns:
        the summed loss of all batches and their number of target tokens; tensors, so that the program
        need not wait for the device. Of several processes, each returns those of its own batches.
    """
    check_type(list, parameters=parameters)
    if not parameters:
        raise ValueError("parameters must hold at least one parameter")
    device, batches = parameters[0].device, list(batches)
    total, tokens = torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device)
    divisor = tokens
    for number, batch in enumerate(batches, start=1):
        travel = engine is not None and number == len(batches)
        with nullcontext() if engine is None or travel else engine.no_sync():
            batch_loss, count = loss(batch)
            before, tokens = divisor, tokens + count
            divisor = _tokens_per_process(tokens) if travel else tokens.clamp(min=1)
            for parameter in parameters if number > 1 else []:
                if parameter.grad is not None:  # of a mean over more tokens it is a smaller part
                    parameter.grad.mul_(before).div_(divisor)
            scale(batch_loss / divisor).backward()
        total = total + batch_loss.detach()
    return total, tokens


def _tokens_per_process(tokens: Tensor) -> Tensor:
    return summed_over_all(tokens).clamp(min=1) / rank_and_world_size()[1]
