"""CUDA graphs of updates and of search steps: recorded once for a shape, and launched as one from then on."""

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
from transformer.decoding import DecoderState, decoder_state
from transformer.speed.fast import FastDecoderState, FastTransformer

__all__ = [
    "CUDAGraph", "RECORDERS", "rounded", "UpdateGraphs", "GraphedTransformer",
]  # fmt: skip


_Shape = tuple[int, int]  # rows; positions that source and target are padded to
Numbers = tuple[Tensor, ...]


class CUDAGraph:
    """What a function does on a GPU, to tensors that stay where they are: recorded, and not yet done."""

    _first: Any = None  # stays: all share its memory, as no two run at once; PyTorch refuses a lost one's
    _aside: Any = None  # the stream of what is done before: a new one each time would keep memory of its own

    def __init__(self, function: Callable[[], Numbers]) -> None:
        self._graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        pool, mode = CUDAGraph._first and CUDAGraph._first.pool(), "thread_local"  # others' threads may copy
        try:
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode=mode):
                self._results = function()
        except Exception:  # up to PyTorch 2.11, stream and generator stay those of the recording
            torch.cuda.set_stream(here)
            generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            raise
        CUDAGraph._first = CUDAGraph._first or self._graph

    def __call__(self) -> Numbers:
        """Do it; the results are copies, since another graph may write where they were."""
        self._graph.replay()
        return tuple(result.clone() for result in self._results)

    @staticmethod
    def eagerly(function: Callable[[], Numbers]) -> Numbers:
        """Do on another stream what is to be recorded later, as PyTorch asks for."""
        here = torch.cuda.current_stream()
        aside = CUDAGraph._aside = CUDAGraph._aside or torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            results = function()
        here.wait_stream(aside)
        return results


RECORDERS: dict[str, Any] = {"cuda": CUDAGraph}  # by the kind of device
_MEETINGS = 3  # of a shape, the last of which is recorded
_MOST_GRAPHS = 64
_ROOM = 64  # tokens that a search has room for at first: for more, it is recorded again


def rounded(n: int) -> int:
    """The next number of three binary digits and zeros, at most a quarter more: of 9 it is 10, of 17 20."""
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit


def _error_summary(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip():.200}"


def _warn(of: str, why: str) -> None:
    warnings.warn(f"{of} are made one operation at a time, and not as graphs: {why}", stacklevel=3)


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
    shapes: Counter[tuple[_Shape, ...]]
    positions: list[int]

    def __init__(self, updater: Any) -> None:
        self.updater, self.device = updater, updater.device
        self.shapes, self.positions = Counter(), [0, 0]

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context in which these are the updater's updates."""
        updater, self.shapes, self._recording = self.updater, Counter(), True
        self._buffers: dict[tuple[_Shape, ...], list[tuple[Tensor, Tensor]]] = {}
        self._graphs: dict[tuple[_Shape, ...], Callable[[], Numbers]] = {}
        on_a_gpu, accelerated = self.device.type in RECORDERS, isinstance(updater.model, FastTransformer)
        if on_a_gpu and accelerated and updater.engine is None:
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
        if self.shapes[shape] >= _MEETINGS and self._recording:
            if len(self._graphs) < _MOST_GRAPHS:
                return self._recorded(shape)
            self._recording = False
            _warn("updates of further shapes", f"there are {_MOST_GRAPHS} already")
        return self._recorder.eagerly(partial(self.updater.update, buffers))

    def _recorded(self, shape: tuple[_Shape, ...]) -> Numbers:
        # The first update by a new graph. Whatever goes wrong, it is made eagerly from the same state.
        update = partial(self.updater.update, self._buffers[shape])
        parts = self.updater.model, self.updater
        states, random = deepcopy(([part.state_dict() for part in parts], random_state(self.device)))
        try:
            self._graphs[shape] = self._recorder(update)
            return self._graphs[shape]()
        except Exception as error:  # of a recording, many kinds
            why = _error_summary(error)
        self._stop_recording(why)  # out here, where the error no longer holds the recording's memory
        for part, state in zip(parts, states):
            part.load_state_dict(state)
        set_random_state(random, self.device)
        return update()

    def _stop_recording(self, why: str) -> None:
        self._graphs, self._recording = {}, False
        _warn("updates", why)

    def _shape(self, src: Tensor, tgt: Tensor) -> _Shape:
        longest, most = max(src.size(1), tgt.size(1) - 1), self.updater.model.config.max_length
        return rounded(len(src)), max(longest, min(rounded(longest), most))

    def _padded(self, ids: Tensor, rows: int, length: int) -> Tensor:
        padding, pad_id = (0, length - ids.size(1), 0, rows - len(ids)), self.updater.model.config.pad_id
        padded = F.pad(ids, padding, value=pad_id)
        return padded.pin_memory() if self.device.type == "cuda" and not padded.is_cuda else padded


class GraphedTransformer(FastTransformer):
    """A `FastTransformer` that searches on an NVIDIA GPU by graphs, one for a step of so many rows."""


class _GraphedDecoderState(FastDecoderState):
    """The numbers of `FastDecoderState`, each step launched as one graph, which is recorded once for so many
    rows and so much room for keys and values.

    What a graph reads stays where it is: the rows of sentences that have left are computed too, until half of
    all rows have left. Where a graph cannot be recorded, a warning says why, and steps are made without.
    """

    memory_mask: Tensor | None

    @torch.inference_mode()
    def __init__(self, model: FastTransformer, src: Tensor, beam_size: int = 1) -> None:
        super().__init__(model, src, beam_size)
        past = self.past.buffer  # what isn't written yet counts nothing, and must not be NaN
        self.past.buffer = past.new_zeros(*past.shape[:4], _ROOM, past.size(5))
        self._recorder, self._recording = RECORDERS[src.device.type], True
        self._last, self._place = src.new_zeros(len(src) * beam_size), src.new_zeros(1)
        self._n_rows = len(self._last)
        self._begin()

    def _begin(self) -> None:
        # Of tensors in other places, the first step prepares kernels, and the second is recorded.
        self._met, self._graph = 0, None

    @torch.inference_mode()
    def step(self, last: Tensor) -> Tensor:
        """As in `DecoderState`."""
        past = self.past
        if past.length == past.buffer.size(4):
            past.buffer = torch.cat((past.buffer, torch.zeros_like(past.buffer)), 4)  # doubled
            self._begin()
        self._last[: len(last)] = last
        self._place.fill_(past.length)
        past.length, self._met = past.length + 1, self._met + 1
        (logits,) = self._recorded() if self._met == 2 and self._recording else self._computed()
        return logits[: len(last)]

    def _recorded(self) -> Numbers:
        try:
            self._graph = self._recorder(self._compute)
            return self._computed()
        except Exception as error:  # of a recording, many kinds
            why = _error_summary(error)
        self._recording, self._graph = False, None
        _warn("a search's steps", why)
        return self._computed()  # as before: a step only adds to what is kept, and always in its place

    def _computed(self) -> Numbers:
        return self._recorder.eagerly(self._compute) if self._graph is None else self._graph()

    def _compute(self) -> Numbers:
        buffer, place = self.past.buffer, self._place  # [2, n_layers, N, H, room, d_k], [1]
        seen = torch.arange(buffer.size(4), device=place.device)[None] <= place  # [1, room]
        new = buffer.permute(1, 2, 0, 3, 4, 5)  # [n_layers, N, 2, H, room, d_k]
        parts = zip(new.unbind(), *(part.unbind() for part in buffer), strict=True)
        past = ((*part, place, seen) for part in parts)
        return (self._logits(self._last, self.positions[place], past),)

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """As in `FastDecoderState`."""
        n, past = len(rows), self.past
        past.buffer[:, :, :n] = past.buffer[:, :, rows]
        if n == self._n_rows:
            return
        sentences, self._n_rows = rows[:: self.beam_size] // self.beam_size, n
        m, masks = len(sentences), [] if self.memory_mask is None else [self.memory_mask]
        for part in (*masks, *(part for layer in self.layers for part in (layer.keys, layer.values))):
            part[:m] = part[sentences]
        if 2 * n <= len(self._last):
            past.buffer, self._last = past.buffer[:, :, :n].clone(), self._last[:n].clone()
            self.memory_mask = None if self.memory_mask is None else self.memory_mask[:m]
            for layer in self.layers:
                layer.keys, layer.values = layer.keys[:m].clone(), layer.values[:m].clone()
            self._begin()


@decoder_state.register
def _decoder_state(model: GraphedTransformer, src: Tensor, beam_size: int = 1) -> DecoderState:
    kind = _GraphedDecoderState if src.device.type in RECORDERS else FastDecoderState
    return kind(model, src, beam_size)
