"""Several processes: one gradient for all, and one end, also by a signal."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from transformer.training import best_device, check_device
from transformer.validation import check_number

__all__ = [
    "process_group", "rank_and_world_size", "broadcast", "all_gather", "summed_over_all", "data_parallel",
    "StoppedRun", "Stop",
]  # fmt: skip


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


def broadcast(value: Any) -> Any:
    """Give every process the first one's value; all of them wait for it."""
    box = [value]
    if rank_and_world_size()[1] > 1:
        distributed.broadcast_object_list(box, src=0)
    return box[0]


def all_gather(value: Any) -> list[Any]:
    """Collect a value from every process, by rank."""
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
    model: nn.Module, loss: Callable[[Any, Any], tuple[Tensor, Tensor]]
) -> DistributedDataParallel | None:
    """A loss of a batch whose gradient is averaged over all processes; `None` for one process."""
    if rank_and_world_size()[1] == 1:
        return None
    engine = DistributedDataParallel(_LossOf(model, loss))
    engine.broadcast_buffers = False  # they are constants, like the table of positions
    return engine


class _LossOf(nn.Module):
    # A loss calls parts of the model; DistributedDataParallel must see one forward pass.
    def __init__(self, model: nn.Module, loss: Callable[[Any, Any], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        return self.loss(self.model, batch)


class StoppedRun(KeyboardInterrupt):
    """Raised by `Trainer.fit` in the main thread, when `signal`, SIGINT, SIGTERM or SIGHUP, asks the process
    to end. The update in progress, `step`, was finished and, where there is a directory, saved."""

    signal: int
    step: int

    def __init__(self, message: str, number: int, step: int) -> None:
        super().__init__(message)
        self.signal, self.step = number, step


# SIGHUP, where there is one, says that the terminal has been closed.
_ENDINGS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Stop:
    """Says when a call of `Trainer.fit` ends before its run does: its time is over, or a signal has come."""

    deadline: float
    signals: list[int]

    def __init__(self, max_minutes: float | None = None) -> None:
        check_number(max_minutes=0 if max_minutes is None else max_minutes)
        self.deadline = math.inf if max_minutes is None else time.monotonic() + 60 * max_minutes
        self.signals = []

    @contextmanager
    def catch_signals(self) -> Iterator[None]:
        """A context in which the signals that ask the process to end are noted instead of obeyed; a second
        one is obeyed, but not within a second, since a launcher passes on what has reached all processes."""
        times: list[float] = []

        def note(number: int, frame: Any) -> None:
            self.signals.append(number)
            times.append(time.perf_counter())
            if times[-1] - times[0] > 1:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        handlers = {number: signal.getsignal(number) for number in _ENDINGS}
        before: dict[int, Any] = {n: how for n, how in handlers.items() if how not in (None, signal.SIG_IGN)}
        if threading.current_thread() is not threading.main_thread():
            before = {}  # only the main thread may handle signals
        try:
            for number in before:
                signal.signal(number, note)
            yield
        finally:
            for number, how in before.items():
                signal.signal(number, how)

    def is_due(self) -> bool:
        """Whether time is over by the first process's clock, or a signal has come to any process."""
        late = time.monotonic() >= self.deadline and rank_and_world_size()[0] == 0
        return bool(summed_over_all(torch.tensor(int(late or bool(self.signals)))))

    def raise_if_signaled(self, step: int, steps: int, saved: bool) -> None:
        """Raise `StoppedRun` if any process has noted a signal."""
        if number := max(all_gather(max(self.signals, default=0))):
            how = " with a checkpoint, from which the same call goes on" if saved else ""
            raise StoppedRun(f"stopped at step {step:,} of {steps:,}{how}", number, step)
