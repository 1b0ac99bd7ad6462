"""What must hold on every device: tried on the CPU always, and on a GPU where there is one."""

from __future__ import annotations

import math
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import torch
from helpers import assert_close, assert_same
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    accelerate,
    beam_search,
    greedy_search,
    r_drop_loss,
    teacher_forced_loss,
)
from transformer.attention import fused_attention
from transformer.decoding import decoder_state
from transformer.runs.loop import Updater, autocast
from transformer.speed import fast, graphs
from transformer.speed.graphs import GraphedTransformer
from transformer.training import to_device

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
KINDS = pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "fast"])
LOSSES = pytest.mark.parametrize("loss", [teacher_forced_loss, r_drop_loss], ids=["cross-entropy", "R-Drop"])


@pytest.fixture(params=DEVICES)
def device(request) -> torch.device:
    return torch.device(request.param)


def make_model(**changes) -> Transformer:
    """A model large enough for kernels of tiles."""
    sizes = dict(d_model=64, n_heads=4, d_ff=128, max_length=512, dropout=0.1, norm_first=True)
    return helpers.make_model(50, dtype=torch.float32, noise=0.0, **(sizes | changes))


def make_batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids without and with padding."""
    generator = torch.Generator().manual_seed(seed)
    src, tgt = (torch.randint(4, 50, (16, length), generator=generator) for length in (12, 14))
    src[8:, 9:], tgt[8:, 10:], tgt[:, 0] = 0, 0, 2  # 2 is the start token
    return src, tgt


class Questions(TorchDispatchMode):
    """Notes on the CPU where the program must know a value, and would wait for a GPU.

    Looks at arguments and masks, which it takes on the CPU alone, don't count.
    """

    # Without `equal`, with which the fast model spares the processor a copy and never asks a GPU.
    ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        if (name in self.ASKING or masks) and not self.on_the_cpu_alone():
            self.asked.append(name)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def on_the_cpu_alone() -> bool:
        frames = (frame for frame, _ in traceback.walk_stack(None))
        places = {(frame.f_globals["__name__"], frame.f_code.co_name) for frame in frames}
        return any(m == "transformer.validation" or f == "fast_attention" for m, f in places)


@contextmanager
def waits(device: torch.device) -> Iterator[list[str]]:
    """Where the program waits for the device, or on the CPU would wait for another one."""
    if device.type == "cpu":
        with Questions() as questions:
            yield questions.asked
        return
    found: list[str] = []
    try:
        with warnings.catch_warnings(record=True, action="always") as warned:
            torch.cuda.set_sync_debug_mode("warn")  # which warns once that it is a prototype
            warned.clear()
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [f"{each.filename}:{each.lineno}" for each in warned]


@pytest.mark.slow
@LOSSES
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@KINDS
@pytest.mark.filterwarnings("ignore:this processor has no units for bfloat16")
def test_a_training_step_never_waits_for_its_device(device, kind, precision, loss):
    model = kind(make_model().to(device))
    update = Updater(model, loss, lambda step: 1e-3, precision=precision)
    batch = to_device(make_batch(), device)
    update([batch])  # the first one makes the optimizer's state
    with waits(device) as found:
        for _ in range(3):
            total, _, _ = update([batch])
    assert found == []
    with waits(device) as found:
        assert total.item() > 0
    assert len(found) == 1  # a question is noticed


@LOSSES
@KINDS
def test_losses_and_gradients_are_those_of_the_plain_model_on_the_cpu(device, kind, loss):
    model = make_model(dropout=0.0).double()
    wanted, _ = loss(model, make_batch())
    slopes = torch.autograd.grad(wanted, list(model.parameters()))
    found, _ = loss(there := kind(model.to(device)), to_device(make_batch(), device))
    assert_same(found.cpu(), wanted, 1e-9)
    gradients = torch.autograd.grad(found, list(there.parameters()))
    assert_same([gradient.cpu() for gradient in gradients], list(slopes), 1e-9)


@KINDS
def test_logits_are_those_of_the_plain_model_on_the_cpu(device, kind):
    model, (src, tgt) = make_model(dropout=0.0).double(), make_batch()
    wanted = model(src, tgt)
    assert_close(kind(model.to(device))(src.to(device), tgt.to(device)).cpu(), wanted)


@pytest.mark.slow
@KINDS
def test_translations_are_those_of_the_plain_model_on_the_cpu(device, kind):
    model, (src, _) = make_model().double().eval(), make_batch()
    wanted = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    model, src = kind(model.to(device)), src.to(device)
    found = greedy_search(model, src, 12), beam_search(model, src, 4, max_length=12).tokens
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours.cpu(), theirs)


# ---------- Updates as graphs


class Operations(Questions):
    """Notes what is done to which memory; what was made meanwhile may lie anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []
        self.made: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.done.append((str(func), [self.seen(x) for x in tree_leaves((args, kwargs or {}))]))
        self.made |= {
            x.untyped_storage().data_ptr() for x in tree_leaves(result) if isinstance(x, torch.Tensor)
        }
        return result

    def seen(self, x):
        if not isinstance(x, torch.Tensor):
            return x if isinstance(x, int | float | str | torch.dtype) else type(x)
        place = x.untyped_storage().data_ptr()
        return tuple(x.shape), x.dtype, "new" if place in self.made else place


class StandIn:
    """A graph on the CPU: does the same as the first time to the same memory, and asks for no value."""

    replays = 0

    def __init__(self, function) -> None:
        self.function, self.first = function, None

    def __call__(self):
        with Operations() as operations:
            results = self.function()
        self.first = self.first or operations.done
        for now, before in zip(operations.done, self.first, strict=True):
            assert now == before
        assert operations.asked == []
        StandIn.replays += 1
        return tuple(result.clone() for result in results)


class StandInRecorder:
    """Records on the CPU by `StandIn`."""

    def __init__(self, device) -> None:
        assert device.type == "cpu"

    def __call__(self, function):
        return StandIn(function)

    def eagerly(self, function):
        return function()


@pytest.fixture
def recorder(device, monkeypatch):
    """What records on the device."""
    if device.type == "cpu":
        monkeypatch.setitem(graphs.RECORDERS, "cpu", StandInRecorder)
        monkeypatch.setattr(fast, "fast_attention", fused_attention)  # a mask is looked at on the CPU alone
        monkeypatch.setattr(StandIn, "replays", 0)
    return StandInRecorder if device.type == "cpu" else graphs.CUDARecorder


@pytest.mark.parametrize("search", [greedy_search, partial(beam_search, beam_size=4)], ids=["greedy", "beam"])
@pytest.mark.parametrize("kind", [accelerate, GraphedTransformer])
def test_how_often_a_search_waits_for_its_device(recorder, device, kind, search, monkeypatch):
    """Every eighth step it asks which sentences have ended, and once for the length of the longest."""
    monkeypatch.setattr(fast, "_LOOK_EVERY", {})  # on the CPU as on a GPU
    model, src = make_model().eval(), make_batch()[0].to(device)
    with torch.no_grad():
        model.output.weight[model.config.eos_id] = -1  # so that no translation ends early
    searched, found = kind(model.to(device)), []
    for length in (8, 40):
        with waits(device) as asked:
            search(searched, src, max_length=length)
        found.append(len(asked))
    assert found[1] - found[0] == 4


SMALL = dict(d_model=8, n_heads=2, n_layers=1, d_ff=12, max_length=16)


def train(device, dropout=0.0, directory=None, loss=teacher_forced_loss, graphs=True, model=None, **changes):
    """A run of 12 updates, whose rates a float32 holds exactly."""
    model = (model or make_model(**SMALL, dropout=dropout)).to(device)
    config = TrainingConfig(**(dict(steps=12, log_every=3, evaluate_every=4) | changes))

    def batches(epoch):  # other ids in each, and in another order
        src, tgt = make_batch(epoch)
        return [(src, tgt), (src[:9, :7], tgt[:9, :6])][:: (-1) ** epoch]

    rate = lambda step: 2.0 ** -(6 + step % 3)
    return Trainer(model, loss, batches, rate, config, directory, graphs=graphs).fit()


def assert_same_run(one: Trainer, two: Trainer, tolerance: float) -> None:
    """Weights, their averages and the log agree."""
    for ours, theirs in zip(one.history, two.history, strict=True):
        for name in ours.keys() - {"seconds"}:
            assert math.isclose(ours[name], theirs[name], rel_tol=tolerance), name
    kept = [
        [*run.model.parameters(), *(run.updater.average.weights if run.updater.average else [])]
        for run in (one, two)
    ]
    for ours, theirs in zip(*kept, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.slow
@LOSSES
@pytest.mark.parametrize(
    "changes", [{"clip_norm": 0.05, "average": 0.9}, {"accumulate": 2, "weight_decay": 0.1}]
)
def test_updates_as_graphs_are_the_eager_ones(recorder, device, loss, changes):
    double = lambda: make_model(**SMALL, dropout=0.0).double()
    run = train(device, loss=loss, model=double(), **changes)
    assert_same_run(run, train(device, loss=loss, model=double(), graphs=False, **changes), 1e-9)
    assert {each for shape in run.graphs.shapes for each in shape} == {(16, 12), (16, 14), (9, 7), (9, 6)}
    assert recorder is not StandInRecorder or StandIn.replays == (8 if changes.get("average") else 10)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.filterwarnings("ignore:this processor has no units for bfloat16")
def test_a_resumed_run_of_graphs_ends_with_the_same_bits(recorder, device, tmp_path, precision):
    settings = dict(dropout=0.2, precision=precision, average=0.9)
    whole = train(device, **settings)
    train(device, directory=tmp_path, steps=8, **settings)
    assert_same_run(train(device, directory=tmp_path, **settings), whole, 0.0)


def broken(recorder, when):
    class Broken(recorder):
        def __call__(self, function):
            graph = super().__call__(function)
            if when == "recording":
                raise RuntimeError("out of order")

            working = iter(range(5 if when == "later" else 0))

            def replay():
                results = graph()
                if next(working, None) is None:
                    raise RuntimeError("out of order")
                return results

            return replay

    return Broken


@pytest.mark.slow
@pytest.mark.parametrize("when", ["recording", "replay"])
def test_after_a_graph_that_fails_the_run_goes_on_from_the_same_state(recorder, device, monkeypatch, when):
    wanted = train(device, dropout=0.2, precision="float16")
    monkeypatch.setitem(graphs.RECORDERS, device.type, broken(recorder, when))
    with pytest.warns(UserWarning, match="one operation at a time, .*: RuntimeError: out of order") as warned:
        found = train(device, dropout=0.2, precision="float16")
    assert len(warned) == 1
    assert_same_run(found, wanted, 0.0)


@pytest.mark.slow
def test_an_update_that_cannot_be_recorded_is_made_eagerly(recorder, device):
    def asking(model, batch):
        total, n_tokens = teacher_forced_loss(model, batch)
        return (total if total.item() > 0 else -total), n_tokens

    with pytest.warns(UserWarning, match="one operation at a time"):
        found = train(device, dropout=0.2, loss=asking)
    assert_same_run(found, train(device, dropout=0.2, loss=asking, graphs=False), 1e-6)


@pytest.mark.parametrize("why", ["no GPU", "no fast model", "anomalies"])
@pytest.mark.filterwarnings("ignore:the model runs as it is")
def test_what_no_graph_can_hold_is_trained_eagerly_and_said_once(monkeypatch, why):
    device, start = torch.device("cpu"), make_model(**SMALL, dropout=0.0).double()
    if why == "no fast model":
        start.encoder.register_forward_hook(lambda *given: None)
    monkeypatch.setattr(graphs, "RECORDERS", {} if why == "no GPU" else {"cpu": StandInRecorder})
    monkeypatch.setattr(torch, "is_anomaly_enabled", lambda: why == "anomalies")
    with pytest.warns(UserWarning, match="and not as graphs: they need an NVIDIA GPU, one process") as found:
        run = train(device, model=deepcopy(start))
    assert len([warning for warning in found if "graphs" in str(warning.message)]) == 1
    assert_same_run(run, train(device, graphs=False, model=deepcopy(start)), 1e-9)


# ---------- Searches as graphs


def searched(model: Transformer, device: torch.device) -> list[torch.Tensor]:
    """What searches find in 40 steps, for which there is room after it is doubled twice."""
    src = torch.cat([make_batch()[0], torch.zeros(1, 12, dtype=torch.long)]).to(device)
    beams = [beam_search(model, src, beam_size, max_length=40) for beam_size in (1, 4)]
    return [greedy_search(model, src, 40), *(x for beam in beams for x in beam)]


@pytest.mark.slow
@pytest.mark.parametrize("look_every", [1, 8])
def test_searches_as_graphs_are_the_eager_ones(recorder, device, monkeypatch, look_every):
    monkeypatch.setattr(fast, "_LOOK_EVERY", {device.type: look_every})
    monkeypatch.setattr(graphs, "_ROOM", 16)
    lengths = set()
    for changes in ({}, {"norm_first": False, "n_layers": 1}):
        model = make_model(**changes).double().eval().to(device)
        found, wanted = (searched(kind(model), device) for kind in (GraphedTransformer, accelerate))
        assert_same(found, wanted, 1e-9)
        lengths |= set((wanted[3][:, 0] != 0).sum(1).tolist())
    assert len(lengths) > 3  # sentences leave at several times
    assert recorder is not StandInRecorder or StandIn.replays > 150


def test_steps_as_graphs_in_half_precision_are_the_eager_ones(recorder, device):
    """Keys and values have the precision of the products that make them."""
    model, src = make_model().eval().to(device), make_batch()[0].to(device)
    with autocast(device, "bfloat16"):
        states: list[Any] = [decoder_state(kind(model), src) for kind in (GraphedTransformer, accelerate)]
        for _ in range(4):
            ours, theirs = (state.step(src[:, 0]).float() for state in states)
            assert_close(ours, theirs, rtol=0.05, atol=0.1)
    assert {states[0]._step.past.dtype, states[1].past.buffer.dtype} == {torch.bfloat16}


def test_the_graphs_of_a_search_serve_later_ones(recorder, device, monkeypatch):
    """Of new weights, too, but not of weights that lie elsewhere, and each one search at a time."""
    recorded = []

    class Counting(recorder):
        def __call__(self, function):
            recorded.append(function)
            return super().__call__(function)

    monkeypatch.setitem(graphs.RECORDERS, device.type, Counting)
    plain, src = make_model().eval().to(device), make_batch()[0].to(device)
    with torch.no_grad():
        plain.output.weight[plain.config.eos_id] = -1  # so that no translation ends early
    plain.double()
    model, weight = GraphedTransformer(plain), plain.decoder.layers[0].feed_forward.w_1.weight
    change = lambda: weight.data.mul_(1.5)
    move = lambda: setattr(weight, "data", weight.data.clone())
    keep_none = lambda: monkeypatch.setattr(graphs, "_MOST_BYTES", 0)
    counts = []
    for prepare in (change, change, move, change, keep_none, change, change):
        prepare()
        found = beam_search(model, src[: 15 + len(counts) % 2], max_length=20)
        assert_same(list(found), list(beam_search(plain, src[: 15 + len(counts) % 2], max_length=20)), 1e-9)
        counts.append(len(recorded))
    assert counts == [1, 1, 2, 2, 2, 3, 4]
    states: list[Any] = [decoder_state(each, src) for each in (model, model, plain)]
    for token in (5, 6, 7):
        ours, others, theirs = (state.step(torch.full_like(src[:, 0], token)) for state in states)
        assert_close(ours, theirs)
        assert_close(others, theirs)


def test_a_source_that_is_too_long_is_refused_by_graphs_as_well(recorder, device):
    model = GraphedTransformer(make_model(max_length=16).to(device))
    with pytest.raises(ValueError, match="src must have at most max_length = 16"):
        decoder_state(model, torch.full((1, 20), 5, device=device))


@pytest.mark.parametrize("when", ["recording", "replay", "later"])
def test_after_a_graph_that_fails_a_search_goes_on(recorder, device, monkeypatch, when):
    model, src = make_model().double().eval().to(device), make_batch()[0].to(device)
    monkeypatch.setitem(graphs.RECORDERS, device.type, broken(recorder, when))
    with pytest.warns(UserWarning, match="a search's steps are made one .*: out of order") as said:
        found = beam_search(GraphedTransformer(model), src, max_length=20)
    assert len(said) == 1
    assert_same(list(found), list(beam_search(model, src, max_length=20)), 1e-9)


class Pretense:
    """What `CUDARecorder` asks of PyTorch, where there is no GPU."""

    def __init__(self, monkeypatch, fails: bool = False) -> None:
        self.alive: Counter[object] = Counter()
        self.given: list[object] = []
        pretense = self

        class Graph:
            memory: object

            def pool(self):
                if fails:
                    raise RuntimeError("not a whole graph")
                return self.memory

            def replay(self):
                pass

            def __del__(self):
                pretense.alive[self.memory] -= 1

        @contextmanager
        def recording(graph, pool, stream, capture_error_mode):
            assert stream == "streams[1]" and not torch.is_inference_mode_enabled()
            assert pool not in self.dead
            graph.memory = pool
            self.alive[pool] += 1
            yield
            if fails:
                raise RuntimeError("not permitted when stream is capturing")
            self.known.add(pool)

        self.known: set[object] = set()
        streams = (f"streams[{number}]" for number in count())
        for name, value in {
            "CUDAGraph": Graph,
            "graph": recording,
            "graph_pool_handle": object,
            "Stream": lambda: next(streams),
            "Event": lambda: SimpleNamespace(wait=lambda: None, record=lambda: None),
            "device": lambda device: nullcontext(),
            "current_stream": lambda: "mine",
            "set_stream": self.given.append,
            "default_generators": (self,),
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
            called = partial(self.called, name)
            monkeypatch.setattr(torch._C, name, called, raising=False)
        self.recorder = graphs.CUDARecorder(torch.device("cuda:0"))

    @property
    def dead(self) -> set[object]:
        """Memory whose graphs are all gone."""
        return {memory for memory in self.known if self.alive[memory] == 0}

    def called(self, name, *given):
        self.given.append((name, given[0]))

    def get_state(self):
        return "its state"

    def clone_state(self):
        return "its copy"

    def set_state(self, state):
        self.given.append(state)

    graphsafe_set_state = set_state


def test_graphs_share_the_memory_of_those_that_are_alive(monkeypatch):
    """PyTorch refuses memory whose graphs are all gone, as those of an earlier run are."""
    pretense = Pretense(monkeypatch)
    record = lambda value: pretense.recorder(lambda: (torch.tensor(value),))
    kept = [record(3.0), record(5.0)]
    assert [graph()[0].item() for graph in kept] == [3.0, 5.0] and len(pretense.known) == 1
    kept.clear()
    with torch.inference_mode():
        assert record(7.0)()[0].is_inference()
    assert len(pretense.known) == 2


def stuck(*shape, device):
    raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")


def test_a_recording_that_fails_leaves_nothing_behind(monkeypatch):
    """PyTorch leaves stream, memory and generator as the recording had them, where its end fails."""
    pretense = Pretense(monkeypatch, fails=True)
    monkeypatch.setattr(torch, "empty", stuck)
    with pytest.raises(RuntimeError, match="not permitted"):
        pretense.recorder(lambda: ())
    assert pretense.given == [
        "mine", ("_cuda_endAllocateToPool", 0), ("_cuda_releasePool", 0), "its copy", "its state",
    ]  # fmt: skip
