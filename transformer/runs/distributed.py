"""Several processes: one device for each, and one gradient for all."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from transformer.training import best_device, check_device

__all__ = ["process_group", "rank_and_world_size", "all_gather", "summed_over_all", "data_parallel"]


@contextmanager
def process_group(device: torch.device | str | None = None) -> Iterator[torch.device]:
    """Join the processes that torchrun has started; without torchrun there is nothing to join.

    Args:
        device: to compute on; `None` for the `best_device`. Under torchrun each process of a
            machine gets a GPU of its own.

    Yields:
        the device of this process.

    Raises:
        ValueError: there is no such device, as when there are fewer GPUs than processes.
    """
    device = best_device() if device is None else device
    if "LOCAL_RANK" not in os.environ:
        yield check_device(device)
        return
    if str(device).startswith("cuda"):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    device = check_device(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo"
    store, rank, world_size = next(distributed.rendezvous("env://"))
    # When torchrun starts them again, they must not meet at the addresses of those that died.
    store = distributed.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    long = timedelta(hours=2)  # the others wait while the first evaluates
    distributed.init_process_group(backend, timeout=long, store=store, rank=rank, world_size=world_size)
    yield device
    # Not after an error: all processes must leave together, and the others do not know of it.
    distributed.destroy_process_group()


def rank_and_world_size() -> tuple[int, int]:
    """Which process this is, counted from 0, and how many there are; (0, 1) outside of a group."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "LOCAL_RANK" in os.environ and os.environ.get("WORLD_SIZE") != "1":
        raise RuntimeError("torchrun has started several processes: join them by `process_group`")
    return 0, 1


def all_gather(value: Any) -> list[Any]:
    """Collect a value from every process, by rank, the first one's first; all wait for it."""
    n_processes = rank_and_world_size()[1]
    values = [value] * n_processes
    if n_processes > 1:
        distributed.all_gather_object(values, value)
    return values


def summed_over_all(x: Tensor) -> Tensor:
    """The sum of the tensors of all processes, on the device of `x`."""
    if rank_and_world_size()[1] > 1:
        x = x.clone()
        distributed.all_reduce(x)
    return x


def data_parallel(
    model: nn.Module, loss: Callable[[Any, Any], tuple[Tensor, Tensor | int]]
) -> DistributedDataParallel | None:
    """A loss of a batch whose gradient is averaged over all processes; `None` for one process."""
    if rank_and_world_size()[1] == 1:
        return None
    engine = DistributedDataParallel(_LossOf(model, loss))
    engine.broadcast_buffers = False  # they are constants, like the table of positions
    return engine


class _LossOf(nn.Module):
    # A loss calls parts of the model; DistributedDataParallel must see one forward pass.
    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], tuple[Tensor, Tensor | int]]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> tuple[Tensor, Tensor | int]:
        return self.loss(self.model, batch)
