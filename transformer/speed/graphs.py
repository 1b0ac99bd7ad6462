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
from transformer.runs.loop import random_state, set_random_state
from transformer.speed.fast import FastTransformer

__all__ = ["Shape", "CUDAGraph", "RECORDERS", "rounded", "UpdateGraphs"]


Shape = tuple[int, int]  # rows; positions that source and target are padded to
Numbers = tuple[Tensor, ...]


class CUDAGraph:
    """What a function does on a GPU, to tensors that stay where they are: recorded, and not yet done."""

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
        """Do on another stream what is to be recorded later, as PyTorch asks for."""
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
    """The next number of three binary digits and zeros, at most a quarter more: of 9 it is 10, of 17 20."""
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit


class UpdateGraphs:
    """Makes a run's updates as graphs, one for each shape that is met a third time.

    Batches are padded to few shapes, whether or not there is a graph for them, so that a run which is
    resumed, or whose graph cannot be recorded, draws the same dropout. A warning says once why there is none.

    Args:
        updater: an `Updater` of batches that are pairs of token ids. Its loss may depend on nothing but
            model and batch, and not on how much padding the batch has.

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
        updater, self.shapes, self._recording = self.updater, Counter(), True
        self._buffers: dict[tuple[Shape, ...], list[tuple[Tensor, Tensor]]] = {}
        self._graphs: dict[tuple[Shape, ...], Callable[[], Numbers]] = {}
        on_a_gpu, known = self.device.type in RECORDERS, isinstance(updater.model, FastTransformer)
        if on_a_gpu and known and updater.engine is None:
            vars(updater.optimizer)["_warned_capturable_if_run_uncaptured"] = True  # at first it is
            for group in updater.optimizer.param_groups:  # the fused kernel reads a rate of this dtype
                group |= {"lr": torch.zeros((), device=self.device), "capturable": True}
            updater.make, self._recorder = self, RECORDERS[self.device.type]
        else:
            self._stop_recording("they need an NVIDIA GPU, one process, and a model that `accelerate` takes")
        try:
            yield
        finally:
            updater.make, self._graphs = updater.update, {}
            for group in updater.optimizer.param_groups:
                group |= {"lr": 0.0, "capturable": False}

    def __call__(self, batches: list[Any]) -> Numbers:
        """Make an update from batches that lie anywhere, as `Updater.update` does."""
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
        said = "updates are made one operation at a time, and not as graphs"
        warnings.warn(f"{said}: {why}", stacklevel=2)

    def _shape(self, src: Tensor, tgt: Tensor) -> Shape:
        longest, most = max(src.size(1), tgt.size(1) - 1), self.updater.model.config.max_length
        return rounded(len(src)), max(longest, min(rounded(longest), most))

    def _padded(self, ids: Tensor, rows: int, length: int) -> Tensor:
        padding, pad_id = (0, length - ids.size(1), 0, rows - len(ids)), self.updater.model.config.pad_id
        padded = F.pad(ids, padding, value=pad_id)
        return padded.pin_memory() if self.device.type == "cuda" and not padded.is_cuda else padded
