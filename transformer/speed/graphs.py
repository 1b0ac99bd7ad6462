"""CUDA graphs of whole updates: recorded once for a shape, and launched as one from then on."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer.runs.checkpoints import random_state, set_random_state
from transformer.speed.fast import FastTransformer
from transformer.training import evaluating

__all__ = ["Shape", "CUDAGraph", "RECORDERS", "rounded", "UpdateGraphs"]


Shape = tuple[int, int]  # rows; positions that source and target are padded to
Numbers = tuple[Tensor, ...]


class CUDAGraph:
    """What a function does on a GPU, recorded and not yet done.

    Args:
        function: reads and writes tensors that stay where they are, and waits for none of them.
    """

    _pool: Any = None  # of memory: one for all, because no two graphs run at once

    def __init__(self, function: Callable[[], Numbers]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=CUDAGraph._pool):
            self._results = function()
        CUDAGraph._pool = self._graph.pool()

    def __call__(self) -> Numbers:
        """Do it; the results are copies, since another graph may write where they were."""
        self._graph.replay()
        return tuple(result.clone() for result in self._results)

    @staticmethod
    def eagerly(function: Callable[[], Numbers]) -> Numbers:
        """Do what is to be recorded later, on another stream, as PyTorch asks for before a recording."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            results = function()
        here.wait_stream(aside)
        return results


RECORDERS: dict[str, Any] = {"cuda": CUDAGraph}  # by the kind of device
_MEETINGS = 3  # of a shape, the last of which is recorded
_MOST_GRAPHS = 64


def rounded(n: int) -> int:
    """The next number of three binary digits and zeros, which is at most a quarter more.

    Example:
        >>> [rounded(n) for n in (7, 9, 17, 100)]
        [7, 10, 20, 112]
    """
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit


def _say(why: str) -> None:
    warnings.warn(f"updates are made one operation at a time, and not as graphs: {why}", stacklevel=2)


class UpdateGraphs:
    """Makes a run's updates as graphs, one for each shape that is met a third time.

    Batches are padded to few shapes, whether or not there is a graph for them, so that a run which is
    resumed, or whose graph cannot be recorded, draws the same dropout. A warning says once why there is none.

    Args:
        updater: an `Updater`; its loss may depend on nothing but model and batch.

    Attributes:
        shapes: how often each shape was met in this call of `used`; one for each batch of an update.
        positions: of all batches, without and with the padding of their shapes.
    """

    updater: Any
    device: torch.device
    shapes: Counter[tuple[Shape, ...]]
    positions: list[int]

    def __init__(self, updater: Any) -> None:
        self.updater, self.device = updater, updater.device
        self.shapes, self.positions = Counter(), [0, 0]

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context in which these are the updater's updates."""
        optimizer, self.shapes, self._recording = self.updater.optimizer, Counter(), True
        self._buffers: dict[tuple[Shape, ...], list[tuple[Tensor, Tensor]]] = {}
        self._graphs: dict[tuple[Shape, ...], Callable[[], Numbers]] = {}
        if why := self._general_obstacle():
            _say(why)
        else:
            vars(optimizer)["_warned_capturable_if_run_uncaptured"] = True  # at first it is
            for group in optimizer.param_groups:  # the fused kernel reads a rate of this dtype
                group |= {"lr": torch.zeros((), device=self.device), "capturable": True}
            self.updater.make, self._recorder = self, RECORDERS[self.device.type]
        try:
            yield
        finally:
            self.updater.make, self._graphs = self.updater.update, {}
            for group in optimizer.param_groups:
                group |= {"lr": 0.0, "capturable": False}

    def __call__(self, batches: list[Any]) -> Numbers:
        """Make an update from batches that lie anywhere, as `Updater.update` does."""
        if not self.shapes and (why := self._obstacle(batches[0])):
            self.updater.make = self.updater.update
            _say(why)
            return self.updater.update(batches)
        if self._recording and torch.is_anomaly_enabled():
            self._stop_recording("anomalies are looked for")
        shape = tuple(self._shape(src, tgt) for src, tgt in batches)
        if shape not in self._buffers:
            empty = partial(torch.empty, dtype=torch.long, device=self.device)
            self._buffers[shape] = [(empty(rows, n), empty(rows, n + 1)) for rows, n in shape]
        buffers, graph = self._buffers[shape], self._graphs.get(shape)
        for pair, places in zip(batches, buffers, strict=True):
            for ids, place in zip(pair, places, strict=True):
                place.copy_(self._padded(ids, *place.shape), non_blocking=True)
                self.positions = [self.positions[0] + ids.numel(), self.positions[1] + place.numel()]
        self.shapes[shape] += 1
        if graph is not None:
            return graph()
        if self.shapes[shape] >= _MEETINGS and self._recording and len(self._graphs) < _MOST_GRAPHS:
            return self._recorded(shape)
        return self._recorder.eagerly(partial(self.updater.update, buffers))

    def _recorded(self, shape: tuple[Shape, ...]) -> Numbers:
        # The first update by a new graph. Whatever goes wrong, it is made eagerly from the same state.
        update = partial(self.updater.update, self._buffers[shape])
        parts = self.updater.model, self.updater
        states, random = deepcopy(([part.state_dict() for part in parts], random_state(self.device)))
        try:
            self._graphs[shape] = self._recorder(update)
            return self._graphs[shape]()
        except Exception as error:  # of a recording, many kinds
            self._stop_recording(f"{type(error).__name__}: {str(error).strip():.200}")
            for part, state in zip(parts, states):
                part.load_state_dict(state)
            set_random_state(random, self.device)
            return update()

    def _stop_recording(self, why: str) -> None:
        self._graphs, self._recording = {}, False
        _say(why)

    def _general_obstacle(self) -> str | None:
        if self.device.type not in RECORDERS:
            return f"an NVIDIA GPU has them, and {self.device.type} has not"
        if not isinstance(self.updater.model, FastTransformer):
            return "the model is none that `accelerate` takes"
        return None if self.updater.engine is None else "several processes make them"

    def _obstacle(self, batch: Any) -> str | None:
        try:
            src, tgt = batch
            rows, length = self._shape(src, tgt)
            wider = self._padded(src, rows + 1, length), self._padded(tgt, rows + 1, length + 1)
            with evaluating(self.updater.model):
                (loss, count), (padded, of_padded) = map(self.updater.loss, ((src, tgt), wider))
        except (TypeError, ValueError, AttributeError) as error:
            return f"a batch is no pair of token ids ({error})"
        same = count == of_padded and torch.isclose(loss, padded, rtol=1e-2)
        return None if same else "more padding changes the loss"

    def _shape(self, src: Tensor, tgt: Tensor) -> Shape:
        longest, most = max(src.size(1), tgt.size(1) - 1), self.updater.model.config.max_length
        return rounded(len(src)), max(longest, min(rounded(longest), most))

    def _padded(self, ids: Tensor, rows: int, length: int) -> Tensor:
        padding, pad_id = (0, length - ids.size(1), 0, rows - len(ids)), self.updater.model.config.pad_id
        padded = F.pad(ids, padding, value=pad_id)
        return padded.pin_memory() if self.device.type == "cuda" and not padded.is_cuda else padded
