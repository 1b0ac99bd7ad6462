"""Where a run is in its data and its random numbers."""

import hashlib
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any
import torch
from torch import Tensor
from transformer.runs.loop import random_state, set_random_state
from transformer.runs.distributed import all_gather, rank_and_world_size
from transformer.training import as_epochs

__all__ = ["EpochBatches", "BatchStream", "RandomNumbers"]


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

    def __init__(self, batches: EpochBatches, accumulate: int = 1, seed: int = 0) -> None:
        group = getattr(batches, "batch_sampler", None)
        owners = batches, getattr(batches, "sampler", None), group, getattr(group, "sampler", None)
        if any(isinstance(getattr(each, "generator", None), torch.Generator) for each in owners):
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

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of all tensors and arrays in the first batch of the first epoch, a nest of tuples, lists
        and dictionaries, and objects' own; the rest is left out."""
        total, waiting = hashlib.sha256(), [next(self._epoch(0), None)]
        while waiting:
            part: Any = waiting.pop()
            kind = getattr(getattr(part, "dtype", None), "kind", "O")
            if kind in "biufc" and hasattr(part, "tobytes"):  # NumPy's
                total.update(f"{part.dtype} {[*part.shape]}".encode() + part.tobytes())
            elif isinstance(part, Tensor):
                numbers = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                total.update(f"{part.dtype} {list(part.shape)}".encode() + numbers.numpy().tobytes())
            elif isinstance(part, Mapping | list | tuple):
                waiting += part.values() if isinstance(part, Mapping) else part
            elif hasattr(part, "__dict__"):  # its own tensors: it may refer to anything, itself included
                parts = vars(part).values()
                waiting += [own for own in parts if isinstance(own, Tensor) or hasattr(own, "tobytes")]
        return total.hexdigest()[:16]

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


class RandomNumbers:
    """What a run of this seed draws from torch's own generators, other numbers in every process."""

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
            warnings.warn(f"{message}: dropout starts anew", stacklevel=5)
