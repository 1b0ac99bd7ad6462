"""Where a run is in its data and its random numbers."""

import atexit
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformer.runs.loop import random_state, set_random_state
from transformer.runs.distributed import all_gather, rank_and_world_size
from transformer.training import as_epochs

__all__ = ["EpochBatches", "BatchStream", "PrefetchedEpochs", "RandomNumbers", "fingerprint"]


EpochBatches = Callable[[int], Iterable[Any]] | Iterable[Any]


class BatchStream:
    """The batches of all epochs in groups, each for one update, starting at any place: after so many batches
    of an epoch, `position`, that were handed out to any process.

    Args:
        batches: `batches(epoch)` returns an epoch's batches; or what can be iterated again in every
            epoch, as a list or a `DataLoader` can.
        accumulate: number of batches that this process has in a group.
        seed: what is drawn from torch's generator while an epoch's batches are made, as a
            `DataLoader` does that shuffles, depends on this and on the epoch alone.
    """

    rank: int
    world_size: int
    epoch: int
    position: int
    size: int
    seed: int
    batches: Callable[[int], Iterable[Any]]

    def __init__(self, batches: EpochBatches, accumulate: int = 1, seed: int = 0) -> None:
        if isinstance(getattr(batches, "generator", None), torch.Generator):
            message = "batches must not have a generator of its own, whose state no checkpoint knows"
            raise ValueError(f"{message}: leave it out, and the seed of the run decides")
        self.rank, self.world_size = rank_and_world_size()
        self.batches, self.size, self.seed = as_epochs(batches), accumulate * self.world_size, seed
        self.epoch = self.position = 0

    def __iter__(self) -> Generator[list[Any], None, None]:
        group: list[Any] = []
        try:
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
        finally:
            getattr(self.batches, "close", lambda: None)()

    def state_dict(self) -> dict[str, int]:
        """The place in the data, as a checkpoint needs it."""
        return {"epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on at the place that `state_dict` returned."""
        self.epoch, self.position = state["epoch"], state["position"]

    def first(self) -> Any:
        """The first batch of the first epoch; `None` where there is none."""
        return next(self._epoch(0), None)

    def _epoch(self, epoch: int, start: int = 0) -> Iterator[Any]:
        drawn = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch).get_state()
        batches, end = None, object()
        while True:
            with torch.random.fork_rng(devices=[]):  # dropout must not notice what is drawn here
                torch.set_rng_state(drawn)
                batches = islice(self.batches(epoch), start, None) if batches is None else batches
                batch = next(batches, end)
                drawn = torch.get_rng_state()
            if batch is end:
                return
            yield batch


class PrefetchedEpochs:
    """The batches of an epoch, prepared in another process while the epoch before is trained on.

    Linux alone can copy a process with all that it has read; elsewhere they are prepared when they are due.

    Args:
        prepare: `prepare(epoch)` returns what gives the batches when it is called with the epoch. It
            depends on the epoch alone, and needs no GPU.
    """

    prepare: Callable[[int], Callable[[int], Iterable[Any]]]
    _coming: Iterator[Any]
    _epoch: int
    _prepared: Callable[[int], Iterable[Any]]

    def __init__(self, prepare: Callable[[int], Callable[[int], Iterable[Any]]]) -> None:
        self.prepare = prepare
        self.close()
        _ALL.add(self)

    def __call__(self, epoch: int) -> Iterable[Any]:
        """The batches of the epoch; those of the next are prepared from now on."""
        if sys.platform != "linux" or multiprocessing.current_process().daemon:
            return self.prepare(epoch)(epoch)
        if epoch not in (self._epoch, self._epoch + 1):
            self._coming = self._in_a_worker(epoch)
        if epoch != self._epoch:
            self._epoch, self._prepared = epoch, next(self._coming)
        return self._prepared(epoch)

    def close(self) -> None:
        """End the other process."""
        self._epoch, self._prepared, self._coming = -2, lambda epoch: (), iter(())

    def _in_a_worker(self, epoch: int) -> Iterator[Any]:
        # What is prepared for an epoch and those after it, never more than one of them ahead.
        loader = DataLoader(
            _Prepared(self.prepare), None, sampler=count(epoch), num_workers=1, prefetch_factor=1,
            collate_fn=lambda prepared: prepared, worker_init_fn=_follow_parent,
            multiprocessing_context="fork", generator=torch.Generator(),
        )  # fmt: skip
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads, not copied
            return iter(loader)


_ALL: weakref.WeakSet[PrefetchedEpochs] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Before Python's own end of other processes, which would wait for one that ignores its signal.
    for epochs in _ALL:
        epochs.close()


class _Prepared(Dataset[Any]):  # not `PrefetchedEpochs` itself: in a circle, none would end the other process
    def __init__(self, prepare: Callable[[int], Any]) -> None:
        self.prepare = prepare

    def __getitem__(self, epoch: int) -> Any:
        return self.prepare(epoch)


def _follow_parent(number: int) -> None:
    # Signals that end a run are for the parent to obey; without it, this process ends whatever it waits for.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


class RandomNumbers:
    """What a run of this seed draws from torch's own generators, other numbers in every process."""

    rank: int
    world_size: int
    seed: int
    device: torch.device

    def __init__(self, seed: int, device: torch.device) -> None:
        self.rank, self.world_size = rank_and_world_size()
        self.seed, self.device = seed * self.world_size + self.rank, device
        self._paused: dict[str, Tensor] | None = None

    def begin(self) -> None:
        """Begin with the seed, or where `pause` was called."""
        torch.manual_seed(self.seed)
        if self._paused is not None:
            set_random_state(self._paused, self.device)

    def pause(self) -> None:
        """Note where the generators are, since others may draw before the run goes on."""
        self._paused = random_state(self.device)

    def state_dict(self) -> list[dict[str, Tensor]]:
        """What a checkpoint needs: the states of all processes."""
        return all_gather(random_state(self.device))

    def load_state_dict(self, states: list[dict[str, Tensor]]) -> None:
        """Go on from what `state_dict` returned, each process from its own."""
        if len(states) == self.world_size:
            set_random_state(states[self.rank], self.device)
        else:
            message = f"the checkpoint was written by {len(states)} processes, not {self.world_size}"
            warnings.warn(f"{message}: dropout starts anew", stacklevel=4)


def fingerprint(batch: Any) -> str:
    """A checksum of all tensors in nested tuples, lists and dictionaries; the rest is left out."""
    total, waiting = hashlib.sha256(), [batch]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            numbers = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            total.update(f"{part.dtype} {list(part.shape)}".encode() + numbers.numpy().tobytes())
        elif isinstance(part, Mapping | list | tuple):
            waiting += part.values() if isinstance(part, Mapping) else part
    return total.hexdigest()[:16]
