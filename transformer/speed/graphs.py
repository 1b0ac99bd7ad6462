"""CUDA graphs of updates and of search steps: recorded once for a shape, and launched as one from then on."""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer.runs.loop import random_state, set_random_state
from transformer.decoding import DecoderState, decoder_state
from transformer.speed.fast import FastDecoderState, FastTransformer

__all__ = [
    "CUDAGraph", "RECORDERS", "rounded", "UpdateGraphs", "GraphedTransformer",
]  # fmt: skip


Numbers = tuple[Tensor, ...]
_Shape = tuple[torch.Size, ...]  # of all tensors of an update


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
_MOST_BYTES = 1 << 31  # of the steps that are kept


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

    Batches of few shapes are what `TokenBatches` makes that is given `lengths`. A warning says once why there
    is no graph.

    Args:
        updater: an `Updater` of batches that are pairs of token ids. Its loss may depend on nothing but
            model and batch.

    Attributes:
        shapes: how often each shape was met in this call of `used`: those of source and target, of all
            batches of an update.
    """

    updater: Any
    device: torch.device
    shapes: Counter[_Shape]

    def __init__(self, updater: Any) -> None:
        self.updater, self.device, self.shapes = updater, updater.device, Counter()

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context in which these are the updater's updates."""
        updater, self.shapes, self._recording = self.updater, Counter(), True
        self._graphs: dict[_Shape, tuple[list[Tensor], Callable[[], Numbers]]] = {}
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

    def __call__(self, batches: list[tuple[Tensor, Tensor]]) -> Numbers:
        """Make an update from batches that lie anywhere, as `Updater.update` does."""
        given = [ids for pair in batches for ids in pair]
        shape = tuple(ids.shape for ids in given)
        self.shapes[shape] += 1
        if shape in self._graphs:
            places, graph = self._graphs[shape]
            for ids, place in zip(given, places, strict=True):
                place.copy_(self._pinned(ids), non_blocking=True)
            return graph()
        if self.shapes[shape] >= _MEETINGS and self._recording:
            if len(self._graphs) < _MOST_GRAPHS:
                return self._recorded(shape, batches)
            self._recording = False
            why = f"there are {_MOST_GRAPHS} already; `lengths` of `TokenBatches` give batches few shapes"
            _warn("updates of further shapes", why)
        return self._recorder.eagerly(partial(self.updater.update, batches))

    def _recorded(self, shape: _Shape, batches: list[tuple[Tensor, Tensor]]) -> Numbers:
        # The first update by a new graph. Whatever goes wrong, it is made eagerly from the same state.
        places = [(src.to(self.device, copy=True), tgt.to(self.device, copy=True)) for src, tgt in batches]
        update = partial(self.updater.update, places)
        parts = self.updater.model, self.updater
        states, random = deepcopy(([part.state_dict() for part in parts], random_state(self.device)))
        try:
            graph = self._recorder(update)
            self._graphs[shape] = [ids for pair in places for ids in pair], graph
            return graph()
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

    def _pinned(self, ids: Tensor) -> Tensor:
        return ids.pin_memory() if self.device.type == "cuda" and not ids.is_cuda else ids


class GraphedTransformer(FastTransformer):
    """A `FastTransformer` that searches on an NVIDIA GPU by graphs, one for a step of so many rows.

    Small ones are kept for searches to come, as long as the model's tensors stay where they are.
    """


class _Step:
    # A step of a fixed size, of tensors that stay where they are; the second time it is recorded.

    graph: Callable[[], Numbers] | None = None
    met: bool = False

    def __init__(self, state: FastDecoderState, room: int, key: Hashable) -> None:
        keys, n_layers = state.layers[0].keys, len(state.layers)  # [B, H, S, d_k]
        n_heads, d_k = keys.size(1), keys.size(3)
        self.state, self.key, self.tensors = state, key, _tensors(state)
        self.past = keys.new_zeros(2, n_layers, len(keys) * state.beam_size, n_heads, room, d_k)
        self.last = torch.zeros(self.past.size(2), dtype=torch.long, device=keys.device)
        self.place, self.n_bytes = self.last[:1].clone(), sum(x.nbytes for x in (self.past, *self.tensors))

    def load(self, state: FastDecoderState, past: Tensor) -> None:
        """Go on where a search is whose keys and values are `past`, of as many rows or fewer."""
        pairs = zip(self.tensors, _tensors(state), strict=True)
        moved = [(ours, theirs) for ours, theirs in pairs if ours.data_ptr() != theirs.data_ptr()]
        if moved:
            torch._foreach_copy_(*map(list, zip(*moved)))
        self.past.zero_()  # what isn't written yet counts nothing, and must not be NaN
        self.past[:, :, : past.size(2), :, : past.size(4)] = past

    def compute(self) -> Numbers:
        """The logits after `last`, whose keys and values go to `place`."""
        past, place = self.past, self.place  # [2, n_layers, N, H, room, d_k], [1]
        seen = torch.arange(past.size(4), device=place.device)[None] <= place  # [1, room]
        new = past.permute(1, 2, 0, 3, 4, 5)  # [n_layers, N, 2, H, room, d_k]
        parts = zip(new.unbind(), *(part.unbind() for part in past), strict=True)
        each = ((*part, place, seen) for part in parts)
        return (self.state._logits(self.last, self.state.positions[place], each),)


class _Steps:
    # Those of a model that are kept, the last used last. One that a search has is no other's meanwhile.

    def __init__(self) -> None:
        self.recording, self._kept = True, dict[Hashable, _Step]()

    def take(self, model: FastTransformer, state: FastDecoderState, room: int, past: Tensor) -> _Step:
        places = tuple(x.data_ptr() for x in chain(model.parameters(), model.buffers()))
        shapes = tuple((x.shape, x.dtype) for x in _tensors(state))
        key = places, shapes, state.beam_size, room
        step = self._kept.pop(key, None) or _Step(state, room, key)
        step.load(state, past)
        return step

    def give_back(self, step: _Step) -> None:
        if step.n_bytes <= _MOST_BYTES:
            self._kept[step.key] = step
            while sum(each.n_bytes for each in [*self._kept.values()]) > _MOST_BYTES:
                del self._kept[next(iter(self._kept))]


_STEPS: WeakKeyDictionary[FastTransformer, _Steps] = WeakKeyDictionary()  # copies of a model begin anew


class _GraphedDecoderState(DecoderState):
    """The numbers of `FastDecoderState`, each step launched as one graph.

    Sentences, their tokens and the room for keys and values are padded up to a few sizes. The rows of
    sentences that have left are computed too, until half of all rows have left. Where a graph cannot be
    recorded, a warning says why, and steps are made without.
    """

    @torch.inference_mode()
    def __init__(self, model: FastTransformer, src: Tensor, beam_size: int = 1) -> None:
        n_rows, length = rounded(len(src)), min(rounded(src.size(1)), model.config.max_length)
        padding = 0, length - src.size(1), 0, n_rows - len(src)
        state = FastDecoderState(model, F.pad(src, padding, value=model.config.pad_id), beam_size)
        self.model, self.look_every, self.memory = model, state.look_every, vars(state).pop("memory")
        self._recorder, self._steps = RECORDERS[src.device.type], _STEPS.setdefault(model, _Steps())
        self._n_rows, self._length = len(src) * beam_size, 0
        past = vars(state).pop("past").buffer[:, :, :0]  # which is kept elsewhere
        self._step = self._steps.take(model, state, _ROOM, past)

    def __del__(self) -> None:
        if "_step" in vars(self):  # not if the search never began
            self._steps.give_back(self._step)

    @torch.inference_mode()
    def step(self, last: Tensor) -> Tensor:
        """As in `DecoderState`."""
        if self._length == self._step.past.size(4):
            self._move(len(self._step.last), 2 * self._length)
        self._step.last[: len(last)] = last
        self._step.place.fill_(self._length)
        self._length += 1
        (logits,) = self._computed(self._step)
        return logits[: len(last)]

    def _computed(self, step: _Step) -> Numbers:
        again, step.met = step.met, True
        if again and step.graph is None and self._steps.recording:
            try:
                step.graph = self._recorder(step.compute)
                return step.graph()
            except Exception as error:  # of a recording, many kinds
                why = _error_summary(error)
            self._steps.recording, step.graph = False, None
            _warn("a search's steps", why)
            # And again: a step only adds to what is kept, and always in its place.
        return self._recorder.eagerly(step.compute) if step.graph is None else step.graph()

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """As in `FastDecoderState`."""
        n, state, past = len(rows), self._step.state, self._step.past[..., : self._length, :]
        past[:, :, :n] = past[:, :, rows]
        if n == self._n_rows:
            return
        sentences, self._n_rows = rows[:: state.beam_size] // state.beam_size, n
        m, masks = len(sentences), [] if state.memory_mask is None else [state.memory_mask]
        for part in (*masks, *(part for layer in state.layers for part in (layer.keys, layer.values))):
            part[:m] = part[sentences]
        if 2 * n <= len(self._step.last):
            self._move(rounded(m) * state.beam_size, self._step.past.size(4))

    def _move(self, n_rows: int, room: int) -> None:
        # Go on by a step of another size.
        step, state = self._step, copy(self._step.state)
        n, state.layers = n_rows // state.beam_size, [copy(layer) for layer in state.layers]
        for layer in state.layers:
            layer.keys, layer.values = layer.keys[:n].clone(), layer.values[:n].clone()
        state.memory_mask = None if state.memory_mask is None else state.memory_mask[:n].clone()
        past = step.past[:, :, : self._n_rows, :, : self._length]
        self._step = self._steps.take(self.model, state, room, past)
        self._steps.give_back(step)


def _tensors(state: FastDecoderState) -> list[Tensor]:
    # What a step reads apart from the model's own tensors, some of which may be among these.
    parts = [state.memory_mask, state.output, *(x for layer in state.layers for x in vars(layer).values())]
    groups = (part if isinstance(part, tuple) else (part,) for part in parts)
    return [part for group in groups for part in group if isinstance(part, Tensor)]


@decoder_state.register
def _decoder_state(model: GraphedTransformer, src: Tensor, beam_size: int = 1) -> DecoderState:
    kind = _GraphedDecoderState if src.device.type in RECORDERS else FastDecoderState
    return kind(model, src, beam_size)
