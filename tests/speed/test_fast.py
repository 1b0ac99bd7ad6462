"""The fast model: the numbers of the plain one, for those models that have no others."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest import mock

import helpers
import pytest
import torch
import torch.nn.functional as F
from helpers import DROPPING, assert_same
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

import transformer.speed.chunked_loss
import transformer.speed.fast
import transformer.speed.kernels
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
from transformer.attention import KeyValueCache
from transformer.decoding import DecoderState, decoder_state
from transformer.speed.fast import FastDecoderState, FastLinear, FastTransformer

V, PAD, BOS = 11, 0, 2
LOSSES = {"cross-entropy": teacher_forced_loss, "R-Drop": r_drop_loss}


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    return helpers.make_model(seed=seed, dtype=dtype, **({"dropout": 0.1} | changes)).eval()


def make_sources(batch: int = 5, length: int = 6) -> Tensor:
    """Sources of length 6, 5, 4, …, the last of padding alone."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, V, (batch, length), generator=generator)
    lengths = torch.arange(length, length - batch + 1, -1).clamp_min(0).tolist() + [0]
    return src.masked_fill(torch.arange(length) >= torch.tensor(lengths)[:, None], PAD)


def make_batch(batch: int = 5, length: int = 6) -> tuple[Tensor, Tensor]:
    """Sources and targets, both with padding."""
    src = make_sources(batch, length)
    return src, torch.cat((torch.full((batch, 1), BOS), src), 1)


def with_gradients(value: Tensor, model: nn.Module) -> list[Tensor]:
    return [value, *torch.autograd.grad(value.square().sum() / 7, list(model.parameters()))]


FORMS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "pre-norm, none on top": {"norm_first": True, "final_norm": False},
    "norm on top of post-norm": {"final_norm": True},
    "no bias": {"bias": False},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": "silu"},
    "three tables": {"tie_embeddings": False},
    "dropout in its place": DROPPING,
}
EITHER_LIBRARY = pytest.mark.parametrize("slow", [False, True], ids=["MKL", "oneDNN"])


@contextmanager
def libraries(slow: bool) -> Iterator[None]:
    """As on a machine where oneDNN is the faster library, or is not, whatever the number of rows."""
    if slow and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    with mock.patch.multiple("transformer.speed.kernels", _MKL_IS_SLOW=slow, _LEAST_WORK=0):
        yield


# The same numbers ----------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**16),
    batch=st.integers(1, 30),
    length=st.integers(1, 9),
    n_layers=st.sampled_from([1, 2, (2, 1), (1, 3)]),
    norm_first=st.booleans(),
    final_norm=st.sampled_from([None, False, True]),
    tie_embeddings=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(["relu", "gelu"]),
    pieces=st.booleans(),
)
def test_outputs_losses_and_gradients_are_those_of_the_plain_model(seed, batch, length, pieces, **changes):
    model = make_model(seed, **changes)
    fast = accelerate(model)
    src, tgt = make_batch(batch, length)
    assert_same(*(with_gradients(one(src, tgt[:, :-1]), model) for one in (fast, model)))
    at_once = 5 * V if pieces else 2**20
    limits = {"_FEW_LOGITS": 0 if pieces else at_once, "_AT_ONCE": {"cpu": at_once}}
    with mock.patch.multiple(transformer.speed.chunked_loss, **limits):
        for loss in LOSSES.values():
            found, wanted = (loss(one, (src, tgt)) for one in (fast, model))
            assert found[1] == wanted[1]
            assert_same(*(with_gradients(value, model) for value, _ in (found, wanted)))


@pytest.mark.slow
@EITHER_LIBRARY
@pytest.mark.parametrize("form", FORMS)
def test_it_is_the_plain_model_in_float32_by_whatever_library(form, slow):
    model = make_model(dtype=torch.float32, **FORMS[form])
    src, tgt = make_batch(20, 9)
    with libraries(slow):
        fast = accelerate(model)
        assert_same(*(with_gradients(one(src, tgt), model) for one in (fast, model)), 1e-4)
        for loss in LOSSES.values():
            assert_same(*(with_gradients(loss(one, (src, tgt))[0], model) for one in (fast, model)), 1e-3)
        with torch.no_grad():
            assert_same([fast(src, tgt)], [model(src, tgt)], 1e-5)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("options", [{"smoothing": 0.0}, {"smoothing": 0.4}], ids=str)
def test_losses_are_smoothed_as_asked_and_leave_out_the_configured_padding(loss, options):
    model, (src, tgt) = make_model(pad_id=7), make_batch()
    batch = src.where(src != PAD, 7), tgt.where(tgt != PAD, 7)
    assert (batch[0] == 7).any() and not (batch[0] == PAD).any()
    assert_same(loss(accelerate(model), batch, **options), loss(model, batch, **options))


@pytest.mark.parametrize("loss", LOSSES)
def test_dropout_draws_what_it_draws_in_the_plain_model(loss):
    model, batch = make_model(**DROPPING).train(), make_batch(20, 6)
    results = []
    for one in (accelerate(model), model):
        torch.manual_seed(3)
        results.append(with_gradients(LOSSES[loss](one, batch)[0], model))
    assert_same(*results)


def test_attention_maps_and_a_cache_are_the_plain_ones():
    model, (src, tgt) = make_model(), make_batch()
    fast = accelerate(model)
    assert_same(fast.attention_maps(src, tgt), model.attention_maps(src, tgt))
    results = []
    for one in (fast, model):
        cache, memory = KeyValueCache(), one.encode(src)
        with torch.no_grad():
            results.append([one.decode(part, memory, None, cache) for part in tgt.split(3, dim=1)])
    assert_same(*results)


@pytest.mark.slow
def test_a_trainer_trains_the_accelerated_model():
    model = make_model()
    given = teacher_forced_loss, lambda epoch: [make_batch()], lambda step: 1e-2, TrainingConfig(steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = Trainer(model, *given)
        assert (
            type(trainer.model) is FastTransformer
            and Trainer(nn.Linear(2, 2), *given).model.weight.dim() == 2
        )
    before = model.output.weight.detach().clone()
    trainer.fit()
    assert not torch.equal(model.output.weight, before)  # the parameters are the model's
    calls = []
    model.output.register_forward_hook(lambda *given: calls.append(given))
    with pytest.warns(
        UserWarning, match="without faster kernels: accelerate takes only .* output has another"
    ):
        trainer = Trainer(model, *given)
    assert trainer.model is model and trainer.fit().step == 1 and calls


def test_what_listens_to_a_model_is_heard_by_the_accelerated_one():
    model, (src, tgt) = make_model(), make_batch()
    fast, louder = accelerate(model), lambda module, given: given[0].roll(1, -1)
    found = lambda one: [one(src, tgt), teacher_forced_loss(one, (src, tgt))[0], greedy_search(one, src, 8)]
    before = found(fast)
    for part in (layer(model).cross_attention.w_o, model.output):
        with part.register_forward_pre_hook(louder):
            assert_same(found(fast), found(model))
            assert not any(map(torch.equal, found(fast)[:2], before))
    assert_same(found(fast), before)


# The same parameters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_shared_and_called_the_same(tied):
    model = make_model(tie_embeddings=tied)
    model.src_embedding.weight.requires_grad_(False)  # frozen, and to stay so
    state = torch.get_rng_state()
    fast = accelerate(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert accelerate(fast) is fast and accelerate(model) is not fast
    ours, theirs = (dict(one.named_parameters(remove_duplicate=False)) for one in (fast, model))
    assert ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)
    assert (
        not fast.src_embedding.weight.requires_grad
        and fast.encoder.layers[0].feed_forward.w_1.weight.requires_grad
    )
    assert fast.positions.table is model.positions.table
    assert list(fast.state_dict()) == list(model.state_dict())
    assert {type(module) for module in model.modules()}.isdisjoint({FastLinear, FastTransformer})


@pytest.mark.parametrize("change", ["double", "load", "assign"])
def test_what_is_done_to_the_numbers_of_one_is_done_to_the_other(change):
    for direction in (1, -1):
        model = make_model(dtype=torch.float32)
        one, other = (model, accelerate(model))[::direction]
        if change == "double":
            one.double()
        else:
            one.load_state_dict(make_model(5, torch.float32).state_dict(), assign=change == "assign")
        for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
            assert a.dtype == b.dtype and a.device == b.device and (a.is_meta or torch.equal(a, b))
        assert other.positions.table is one.positions.table
        assert other.src_embedding.weight is other.output.weight


def test_each_has_its_own_mode():
    model = make_model().train()
    model.encoder.eval()
    fast = accelerate(model)
    assert fast.training and fast.decoder.training and not fast.encoder.training
    fast.eval()
    assert model.training and not fast.training
    fast.train()
    model.eval()
    assert fast.training and not model.training


def test_a_copy_stands_by_itself():
    model, (src, tgt) = make_model(), make_batch()
    fast = accelerate(model)
    file = io.BytesIO()
    torch.save(fast, file)
    file.seek(0)
    for again in (copy.deepcopy(fast), torch.load(file, weights_only=False)):
        assert type(again) is FastTransformer and again.output.weight is again.src_embedding.weight
        assert again.output.weight is not model.output.weight
        assert_same([again(src, tgt)], [model(src, tgt)])
        assert_same([teacher_forced_loss(again, (src, tgt))[0]], [teacher_forced_loss(model, (src, tgt))[0]])
        assert torch.equal(greedy_search(again, src, 5), greedy_search(model, src, 5))


# Who may not be accelerated ------------------------------------------------------------------------------


class Own(Transformer):
    pass


def layer(model: Transformer):
    return model.decoder.layers[1]


def share(model: Transformer) -> None:
    layer(model).feed_forward.w_1.weight = model.decoder.layers[0].feed_forward.w_1.weight


REFUSED = {  # a change, and what the message names
    "a subclass": (lambda m: setattr(m, "__class__", Own), "the model is of Own, not of Transformer"),
    "a part of one's own": (lambda m: setattr(m, "extra", nn.Linear(2, 2)), "extra is of Linear"),
    "another rate": (
        lambda m: setattr(layer(m).feed_residual.dropout, "p", 0.3),
        "decoder.layers.1.feed_residual.dropout has another p",
    ),
    "a forward": (
        lambda m: setattr(layer(m).feed_forward, "forward", lambda x: x),
        "decoder.layers.1.feed_forward has another forward",
    ),
    "a hook": (
        lambda m: m.output.register_forward_hook(lambda *given: None),
        "output has another _forward_hooks",
    ),
    "computed weights": (
        lambda m: parametrize.register_parametrization(layer(m).feed_forward.w_1, "weight", nn.Identity()),
        "decoder.layers.1.feed_forward.w_1 is of ParametrizedLinear",
    ),
    "positions of another length": (
        lambda m: setattr(m.positions, "table", torch.zeros(5, 12)),
        "positions has other buffers",
    ),
    "a weight for two": (share, "its parameters are not shared as configured"),
    "two dtypes": (lambda m: layer(m).float(), "its parameters have several devices or dtypes"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_changed_model_is_refused_by_name(name):
    change, message = REFUSED[name]
    model = make_model()
    accelerate(model)
    change(model)
    with pytest.raises(
        TypeError, match=f"accelerate takes only what a configuration makes, but .*({message})"
    ):
        accelerate(model)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole, asked for", "whole", "in place", "a layer"])
def test_of_a_compiled_model_it_takes_what_was_compiled(how):
    model, (src, tgt) = make_model(), make_batch()
    wanted = model(src, tgt)
    compiled = torch.compile(model, backend="eager") if how.startswith("whole") else model
    if how == "in place":
        model.compile(backend="eager")
    if how == "a layer":
        model.encoder.layers[1] = torch.compile(model.encoder.layers[1], backend="eager")
    for one in {model, compiled}:
        fast = accelerate(one)
        assert type(fast) is FastTransformer and fast.output.weight is model.output.weight
        assert list(fast.state_dict()) == list(make_model().state_dict())
        assert_same([fast(src, tgt)], [wanted])


def test_what_is_no_transformer_is_refused():
    for something in (nn.Linear(2, 2), None, make_model().config):
        with pytest.raises(TypeError, match="model must be a Transformer"):
            accelerate(something)


# Captured, transformed, in mixed precision ---------------------------------------------------------------


@pytest.mark.slow
def test_its_r_drop_is_captured_by_compile():  # and its cross-entropy below
    model, batch = make_model(n_layers=1), make_batch(20, 9)
    loss = partial(r_drop_loss, accelerate(model))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_same(*(with_gradients(value, model) for value, _ in (compiled(batch), loss(batch))))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [lambda model: model, accelerate], ids=["plain", "fast"])
def test_one_graph_serves_the_batches_of_every_shape(kind):
    """Batches by length have as many shapes as lengths, and no step may wait for the compiler again."""
    from torch._dynamo.utils import counters  # here, because it takes seconds to import

    torch._dynamo.reset()
    counters.clear()
    model = kind(make_model(dtype=torch.float32, n_layers=1))

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        total, n_tokens = teacher_forced_loss(model, batch)
        return total / n_tokens

    batches = []
    for B, S, T in ((8, 6, 7), (5, 9, 11), (3, 8, 10)):
        src, tgt = torch.randint(3, V, (B, S)), torch.randint(3, V, (B, T))
        src[0, -1] = tgt[0, -1] = PAD
        tgt[:, 0] = model.config.bos_id
        batches.append((src, tgt))
    wanted = [loss(batch).item() for batch in batches]
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="eager")
    for batch, value in zip(batches, wanted, strict=True):
        found = compiled(batch)
        found.backward()
        assert found.item() == pytest.approx(value, rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.slow
def test_it_is_captured_by_export_for_any_lengths():
    fast, (src, tgt) = accelerate(make_model(n_layers=1)), make_batch(5, 6)
    batch, source, target = (torch.export.Dim(name, min=2, max=11) for name in ("batch", "source", "target"))
    dynamic = ({0: batch, 1: source}, {0: batch, 1: target})
    program = torch.export.export(fast, (src, tgt), dynamic_shapes=dynamic, strict=True)
    src, tgt = make_batch(3, 4)
    assert_same([program.module()(src, tgt)], [fast(src, tgt)])


@pytest.mark.parametrize("loss", LOSSES)
def test_it_runs_under_autocast(loss):
    model, batch = make_model(dtype=torch.float32), make_batch(20, 9)
    exact, _ = LOSSES[loss](model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        found, _ = LOSSES[loss](accelerate(model), batch)
    assert found.dtype == torch.float32 and abs(found / exact - 1) < 0.02
    found.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())


@pytest.mark.parametrize("batch", [2, 40])
def test_searches_run_under_autocast(batch):
    fast, src = accelerate(make_model(dtype=torch.float32)), torch.full((batch, 5), 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert greedy_search(fast, src, 9).size(0) == batch
        assert beam_search(fast, src, 2, max_length=9).tokens.size(0) == batch
        state, plain = both_states(fast, src, 2)
        logits = [walk(each, 2, sentences=batch) for each in (state, plain)]
    assert isinstance(state, FastDecoderState)
    assert state.output[0].dtype == torch.bfloat16  # cast once, and not at every step
    for ours, theirs in zip(*logits, strict=True):
        torch.testing.assert_close(ours.float(), theirs.float(), atol=0.1, rtol=0.05)


# A step of a search --------------------------------------------------------------------------------------


@torch.no_grad()
def walk(state: DecoderState, beam_size: int, n_steps: int = 6, sentences: int = 5) -> list[Tensor]:
    """The logits of steps between which rows change places, and sentences leave."""
    generator = torch.Generator().manual_seed(1)
    last = torch.full((sentences * beam_size,), BOS)
    logits = []
    for step in range(n_steps):
        logits.append(state.step(last))
        before = sentences
        if step in (2, 4):
            sentences -= 1  # the first one leaves
        first = torch.arange(before - sentences, before)[:, None] * beam_size
        rows = first + torch.randint(beam_size, (sentences, beam_size), generator=generator)
        state.keep(rows.flatten())
        last = torch.randint(3, V, (sentences * beam_size,), generator=generator)
    return logits


def both_states(model: Transformer, src: Tensor, beam_size: int) -> tuple[DecoderState, DecoderState]:
    with torch.no_grad():
        fast, plain = decoder_state(accelerate(model), src, beam_size), DecoderState(model, src, beam_size)
    assert type(fast) is FastDecoderState
    return fast, plain


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_fast_steps_are_the_plain_ones(form, beam_size):
    model = make_model(**FORMS[form])
    assert_same(*(walk(state, beam_size) for state in both_states(model, make_sources(), beam_size)))


@EITHER_LIBRARY
@pytest.mark.parametrize("beam_size", [1, 2, 20])
def test_fast_steps_are_the_plain_ones_in_float32_by_whatever_library(beam_size, slow):
    with libraries(slow):
        states = both_states(make_model(dtype=torch.float32), make_sources(), beam_size)
        assert_same(*(walk(state, beam_size) for state in states), 1e-5)


def test_rows_keep_their_places_beyond_the_first_room_of_the_cache():
    states = both_states(make_model(max_length=40), make_sources(), 2)
    assert_same(*(walk(state, 2, 36) for state in states))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_searches_find_the_same(seed, dtype):
    model, src = make_model(seed, dtype, norm_first=seed == 1), make_sources()
    fast = accelerate(model)
    assert torch.equal(greedy_search(fast, src, 10), greedy_search(model, src, 10))
    many = torch.cat([src.roll(n, 0) for n in range(12)])  # more than is ranked at a time
    for sources, beam_size in ((src, 1), (many, 3), (src, V + 1)):
        found, wanted = (beam_search(one, sources, beam_size, max_length=10) for one in (fast, model))
        assert torch.equal(found.tokens, wanted.tokens)
        assert_same([found.scores], [wanted.scores], 1e-10 if dtype == torch.float64 else 1e-4)


def test_what_a_search_returns_can_be_learned_from():
    """Steps are in inference mode, whose tensors autograd refuses; what a search returns it must not."""
    fast, src = accelerate(make_model()), make_sources()
    found = greedy_search(fast, src, 5), *beam_search(fast, src, 2, max_length=5)
    assert not any(x.is_inference() for x in found)
    table = torch.randn(V, 3, requires_grad=True)
    F.embedding(found[0], table).sum().backward()
    weight = torch.ones(found[2].shape, dtype=torch.float64, requires_grad=True)
    (weight * found[2]).sum().backward()
    assert table.grad.any() and torch.equal(weight.grad, found[2])


def test_a_search_between_updates_sees_the_new_weights():
    model, src = make_model(), make_sources()
    fast = accelerate(model)
    greedy_search(fast, src, 5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    assert torch.equal(greedy_search(fast, src, 9), greedy_search(model, src, 9))
    teacher_forced_loss(fast, make_batch())[0].backward()
