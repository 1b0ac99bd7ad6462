"""CUDA graphs of updates and of search steps: recorded once for a shape, and launched as one from then on."""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache, partial
from itertools import chain
from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary, WeakSet
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformer.runs.loop import random_state, set_random_state
from transformer.decoding import DecoderState, decoder_state
from transformer.model import Transformer
from transformer.speed.fast import FastDecoderState, FastTransformer

__all__ = [
    "CUDARecorder", "RECORDERS", "rounded", "UpdateGraphs", "GraphedTransformer",
]  # fmt: skip


Numbers = tuple[Tensor, ...]
_Shape = tuple[torch.Size, ...]  # of all tensors of an update


class CUDARecorder:
    """Records on one GPU what a function does to tensors that stay where they are, without doing it.

    Its graphs share memory, as no two run at once.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self._lock = device, RLock()
        self._graphs: WeakSet[Any] = WeakSet()  # PyTorch refuses the memory of graphs that are all gone
        with torch.cuda.device(device):  # new streams each time would keep memory of their own
            self._aside, self._stream = torch.cuda.Stream(), torch.cuda.Stream()
            self._done = torch.cuda.Event()

    def __call__(self, function: Callable[[], Numbers]) -> Callable[[], Numbers]:
        """What does as recorded; its results are copies, since another graph may write where they were."""

        def replay() -> Numbers:
            with self._lock, torch.cuda.device(self.device):
                self._done.wait()  # for one on another stream
                graph.replay()
                copies = tuple(result.clone() for result in results)
                self._done.record()
                return copies

        with self._lock, torch.cuda.device(self.device):
            graph, results = self._recorded(function)
        return replay

    def eagerly(self, function: Callable[[], Numbers]) -> Numbers:
        """Do on another stream what is to be recorded later, as PyTorch asks for."""
        with self._lock, torch.cuda.device(self.device):
            here = torch.cuda.current_stream()
            self._aside.wait_stream(here)
            with torch.cuda.stream(self._aside):
                results = function()
            here.wait_stream(self._aside)
            for result in results:
                result.record_stream(here)
            return results

    def _recorded(self, function: Callable[[], Numbers]) -> tuple[Any, Numbers]:
        graph, here = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        inference = torch.is_inference_mode_enabled()
        earlier = next(iter(self._graphs), None)  # held until this one shares its memory
        pool = torch.cuda.graph_pool_handle() if earlier is None else earlier.pool()
        how: Any = {"pool": pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        begun, collects = False, gc.isenabled()
        gc.disable()  # another graph that is destroyed meanwhile would spoil this one
        try:  # up to PyTorch 2.11, what the generator needs is made here, for all modes
            with torch.inference_mode(False), torch.cuda.graph(graph, **how):  # other threads may copy
                begun = True
                with torch.inference_mode(inference):
                    results = function()
        except Exception:
            torch.cuda.set_stream(here)
            if torch.__version__ < "2.14":  # compared as versions
                self._release(graph, pool, begun)
            # What later recordings must not share: memory that is recorded still, and cuBLAS's of the stream.
            self._graphs.clear()
            self._stream = torch.cuda.Stream()
            self._free_generator()
            raise
        finally:
            if collects:
                gc.enable()
        self._graphs.add(graph)
        return graph, results

    def _release(self, graph: Any, pool: Any, begun: bool) -> None:
        # What a recording that failed leaves behind in earlier versions of PyTorch.
        with suppress(RuntimeError):  # raised where it has ended
            torch._C._cuda_endAllocateToPool(self.device.index, pool)
            begun = True
        try:
            graph.pool()  # of a whole one, which releases it by itself
        except RuntimeError:
            if begun:
                torch._C._cuda_releasePool(self.device.index, pool)

    def _free_generator(self) -> None:
        generator = torch.cuda.default_generators[self.device.index]
        state = generator.get_state()
        try:
            torch.empty(1, device=self.device).uniform_()
        except RuntimeError:  # it takes itself for recorded
            generator.graphsafe_set_state(generator.clone_state())
        generator.set_state(state)


RECORDERS: dict[str, Callable[[torch.device], Any]] = {"cuda": cache(CUDARecorder)}  # by the kind of device
_MEETINGS = 3  # of a shape, the last of which is recorded
_MOST_GRAPHS = 64
_ROOM = 64  # tokens that a search has room for at first: for more, it is recorded again
_MOST_BYTES = 1 << 32  # of the steps that are kept


def rounded(n: int) -> int:
    """The next number of three binary digits and zeros, at most a quarter more: of 9 it is 10, of 17 20."""
    unit = 1 << max(n.bit_length() - 3, 0)
    return -(-n // unit) * unit


def _error_summary(error: BaseException) -> str:
    if "during capture" in str(error):  # the end of a recording fails, too, after what spoiled it
        error = error.__context__ or error
    return f"{type(error).__name__}: {str(error).strip():.200}"


def _warn(of: str, why: str) -> None:
    warnings.warn(f"{of} are made one operation at a time, and not as graphs: {why}", stacklevel=3)


class UpdateGraphs:
    """Makes a run's updates as graphs, one for each shape that is met a third time.

    `TokenBatches` with `lengths` makes batches of few shapes. A warning says once why there is no graph.

    Args:
        updater: an `Updater` of batches that are pairs of token ids. Its loss may depend on nothing but
            model and batch.

    Attributes:
        shapes: how often each shape was met since `used` was entered: the sizes of source and target in
            every batch of an update.
    """

    def __init__(self, updater: Any) -> None:
        self.updater, self.device = updater, updater.device
        self.shapes: Counter[_Shape] = Counter()

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context in which these are the updater's updates."""
        updater, self.shapes, self._recording = self.updater, Counter(), True
        self._graphs: dict[_Shape, tuple[list[Tensor], Callable[[], Numbers]]] = {}
        fast = isinstance(updater.model, FastTransformer) and not updater.model.has_hooks
        alone = updater.engine is None and not torch.is_anomaly_enabled()
        if self.device.type in RECORDERS and fast and alone:
            vars(updater.optimizer)["_warned_capturable_if_run_uncaptured"] = True  # at first it is
            for group in updater.optimizer.param_groups:  # the fused kernel reads a rate of this dtype
                group |= {"lr": torch.zeros((), dtype=torch.float32, device=self.device), "capturable": True}
            updater.make, self._recorder = self, RECORDERS[self.device.type](self.device)
        else:
            why = "they need an NVIDIA GPU, one process, no anomaly mode, an accelerated model, no hooks"
            self._stop_recording(why)
        try:
            yield
        finally:
            updater.make, self._graphs = updater.update, {}
            for group in updater.optimizer.param_groups:
                group |= {"lr": 0.0, "capturable": False}

    def __call__(self, batches: list[tuple[Tensor, Tensor]]) -> Numbers:
        """Make an update from batches that lie anywhere, as `Updater.update` does."""
        batches = sorted(batches, key=lambda pair: [ids.shape for ids in pair])  # in any order
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
        states: Any = [part.state_dict() for part in parts]  # kept where the recording needs no memory
        states = tree_map_only(Tensor, lambda x: x.detach().to("cpu", copy=True), states)
        random = random_state(self.device)
        try:
            self._graphs[shape] = [ids for pair in places for ids in pair], self._recorder(update)
            return self._graphs[shape][1]()
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

    def __init__(self, state: FastDecoderState, room: int, key: Hashable, shared: tuple[int, ...]) -> None:
        keys, n_layers = state.layers[0].keys, len(state.layers)  # [B, H, S, d_k]
        n_heads, d_k = keys.size(1), keys.size(3)
        self.state, self.key, self.tensors = state, key, _tensors(state)
        self.past = keys.new_zeros(2, n_layers, len(keys) * state.beam_size, n_heads, room, d_k)
        self.last = torch.zeros(self.past.size(2), dtype=torch.long, device=keys.device)
        self.place, own = self.last[:1].clone(), (x for x in self.tensors if x.data_ptr() not in shared)
        self.n_bytes = sum(x.nbytes for x in (self.past, *own))

    def load(self, state: FastDecoderState, past: Tensor) -> None:
        """Go on where a search is whose keys and values are `past`, of as many rows or fewer."""
        pairs = zip(self.tensors, _tensors(state), strict=True)
        others = [pair for pair in pairs if pair[0].data_ptr() != pair[1].data_ptr()]
        if others:
            torch._foreach_copy_([ours for ours, _ in others], [theirs for _, theirs in others])
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
    # A model's steps that wait for the next search, the last used last; a search takes its own out.

    def __init__(self) -> None:
        self.recording, self._kept = True, dict[Hashable, _Step]()

    def take(self, model: Transformer, state: FastDecoderState, room: int, past: Tensor) -> _Step:
        places = tuple(x.data_ptr() for x in chain(model.parameters(), model.buffers()))
        shapes = tuple((x.shape, x.dtype) for x in _tensors(state))
        kind = state.table.device.type
        autocast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
        key = places, shapes, autocast, torch.backends.cuda.matmul.fp32_precision, state.beam_size, room
        step = self._kept.pop(key, None) or _Step(state, room, key, places)
        step.load(state, past)
        return step

    def give_back(self, step: _Step) -> None:
        if step.n_bytes <= _MOST_BYTES:
            self._kept[step.key] = step
            while self._too_many():
                self._kept.pop(next(iter([*self._kept]), None), None)

    def _too_many(self) -> bool:
        sizes = [step.n_bytes for step in [*self._kept.values()]]
        return len(sizes) > _MOST_GRAPHS or sum(sizes) > _MOST_BYTES

    def stop_recording(self) -> None:
        self.recording = False
        for step in [*self._kept.values()]:
            step.graph = None


_STEPS: WeakKeyDictionary[FastTransformer, _Steps] = WeakKeyDictionary()  # copies of a model begin anew


class _GraphedDecoderState(DecoderState):
    """The numbers of `FastDecoderState`, each step launched as one graph.

    Sentences, their tokens and the room for keys and values are padded up to a few sizes. The rows of
    sentences that have left are computed too, until half of all rows have left. Where a graph cannot be
    recorded, a warning says why, and steps are made without.
    """

    @torch.inference_mode()
    def __init__(self, model: FastTransformer, src: Tensor, beam_size: int = 1) -> None:
        most = max(src.size(1), model.config.max_length)
        n_rows, length = rounded(len(src)), min(rounded(src.size(1)), most)
        padding = 0, length - src.size(1), 0, n_rows - len(src)
        state = FastDecoderState(model, F.pad(src, padding, value=model.config.pad_id), beam_size)
        self.model, self.look_every, self.memory = model, state.look_every, vars(state).pop("memory")
        self._recorder = RECORDERS[src.device.type](src.device)
        self._steps = _STEPS.setdefault(model, _Steps())
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
        if again and self._steps.recording:
            try:
                step.graph = step.graph or self._recorder(step.compute)
                return step.graph()
            except Exception as error:  # of a recording, many kinds
                why = _error_summary(error)
            step.graph = None
            self._steps.stop_recording()
            _warn("a search's steps", why)
            # And again: a step only adds to what is kept, and always in its place.
        return self._recorder.eagerly(step.compute)

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
    recorded = src.device.type in RECORDERS and not model.has_hooks
    kind = _GraphedDecoderState if recorded else decoder_state.dispatch(FastTransformer)
    return kind(model, src, beam_size)
