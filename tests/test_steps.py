"""A step of a search, lean and plain: the same numbers, and no more work than there is."""

from __future__ import annotations

import warnings
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import transformer.attention
import transformer.decoding
from transformer import (
    LeanSteps,
    MultiHeadAttention,
    Steps,
    Transformer,
    TransformerConfig,
    beam_search,
    greedy_search,
    is_plain,
    quantize,
    search_steps,
    step_linear,
)

V, PAD, BOS = 11, 0, 2


def make_model(seed: int = 0, dtype: torch.dtype = torch.float64, **changes) -> Transformer:
    """An untrained model in evaluation mode, its biases and norms no longer 0 and 1."""
    torch.manual_seed(seed)
    sizes = dict(d_model=12, n_heads=3, n_layers=2, d_ff=20, max_length=12) | changes
    model = Transformer(TransformerConfig(V, V, **sizes)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def make_sources(batch: int = 5, length: int = 6) -> torch.Tensor:
    """Sources of length 6, 5, 4, …, the last of padding alone."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(4, V, (batch, length), generator=generator)
    lengths = torch.arange(length, length - batch + 1, -1).tolist() + [0]
    return src.masked_fill(torch.arange(length) >= torch.tensor(lengths)[:, None], PAD)


@torch.no_grad()
def walk(model: nn.Module, kind: type[Steps], beam_size: int, n_steps: int = 6) -> list[torch.Tensor]:
    """The logits of steps between which rows change places, and sentences leave."""
    generator = torch.Generator().manual_seed(1)
    src = make_sources()
    steps, sentences = kind(model, src, beam_size), len(src)
    last = torch.full((sentences * beam_size,), BOS)
    logits = []
    for step in range(n_steps):
        logits.append(steps.project(steps(last)))
        if step in (2, 4):
            sentences -= 1  # the first one leaves
        first = torch.arange(len(last) // beam_size - sentences, len(last) // beam_size)[:, None] * beam_size
        rows = first + torch.randint(beam_size, (sentences, beam_size), generator=generator)
        steps.keep(rows.flatten())
        last = torch.randint(3, V, (sentences * beam_size,), generator=generator)
    return logits


FORMS = {
    "post-norm": {},
    "pre-norm": {"norm_first": True},
    "pre-norm, none on top": {"norm_first": True, "final_norm": False},
    "norm on top of post-norm": {"final_norm": True},
    "no bias": {"bias": False},
    "gelu": {"activation": "gelu"},
    "three tables": {"tie_embeddings": False},
    "dropout in its place": {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5},
}


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("form", FORMS)
def test_lean_steps_are_the_plain_ones(form, beam_size):
    model = make_model(**FORMS[form])
    assert is_plain(model)
    for lean, plain in zip(walk(model, LeanSteps, beam_size), walk(model, Steps, beam_size)):
        torch.testing.assert_close(lean, plain, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("faster", [True, False])
@pytest.mark.parametrize("beam_size", [1, 2, 20])
def test_lean_steps_are_the_plain_ones_in_float32_by_whatever_library(beam_size, faster, monkeypatch):
    if faster and not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: faster)
    model = make_model(dtype=torch.float32)
    for lean, plain in zip(walk(model, LeanSteps, beam_size), walk(model, Steps, beam_size)):
        torch.testing.assert_close(lean, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lean_steps_keep_half_precision(dtype):
    model = make_model(dtype=dtype)
    for lean, plain in zip(walk(model, LeanSteps, 2), walk(model, Steps, 2)):
        assert lean.dtype == dtype
        torch.testing.assert_close(lean, plain, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("batch", [2, 40])
def test_searches_run_under_autocast(batch):
    model, src = make_model(dtype=torch.float32), torch.full((batch, 5), 6)
    with torch.autocast("cpu", torch.bfloat16):
        assert greedy_search(model, src, 9).size(0) == batch
        assert beam_search(model, src, 2, max_length=9).tokens.size(0) == batch


@pytest.mark.filterwarnings("ignore:this PyTorch has no product of bytes")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_lean_steps_of_int8_layers_are_the_plain_ones(beam_size, bias):
    model = quantize(make_model(dtype=torch.float32, bias=bias))
    assert is_plain(model)
    for lean, plain in zip(walk(model, LeanSteps, beam_size), walk(model, Steps, beam_size)):
        torch.testing.assert_close(lean, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_searches_find_the_same_with_either(seed, monkeypatch):
    model, src = make_model(seed, norm_first=seed == 1), make_sources()
    found = greedy_search(model, src, 10), beam_search(model, src, 3, max_length=10)
    monkeypatch.setattr(transformer.decoding, "is_plain", lambda model: False)
    plain = greedy_search(model, src, 10), beam_search(model, src, 3, max_length=10)
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1].tokens, plain[1].tokens)
    torch.testing.assert_close(found[1].scores, plain[1].scores, atol=1e-10, rtol=1e-10)


# Who may not go past the modules ----------------------------------------------------------------------


class OwnDecode(Transformer):
    def decode(self, *arguments, **options):
        return super().decode(*arguments, **options)


class Louder(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def other_layer(model: Transformer) -> None:
    model.decoder.layers[1].self_attention = nn.Identity()


def other_decode(model: Transformer) -> None:
    model.decode = MethodType(Transformer.encode, model)


def other_positions(model: Transformer) -> None:
    model.positions = nn.Identity()


def other_embedding(model: Transformer) -> None:
    model.tgt_embedding = nn.Embedding(V, 12)


def other_dropout(model: Transformer) -> None:
    model.decoder.layers[0].self_residual.dropout = nn.Tanh()


def other_dropout_below(model: Transformer) -> None:
    model.positions.dropout = nn.Tanh()


def pre_hook(model: Transformer) -> None:
    model.decoder.layers[0].register_forward_pre_hook(lambda *given: None)


def other_forward(model: Transformer) -> None:
    model.decoder.layers[0].feed_forward.forward = lambda x: x


def other_heads(model: Transformer) -> None:
    model.decoder.layers[0].cross_attention = MultiHeadAttention(12, 2)


def other_order(model: Transformer) -> None:
    model.decoder.layers[1].feed_residual.norm_first = True


def hook(model: Transformer) -> None:
    model.decoder.layers[0].feed_forward.w_1.register_forward_hook(lambda *given: None)


CHANGES = [other_layer, other_decode, other_positions, other_embedding]
CHANGES += [other_dropout, other_dropout_below, other_forward, pre_hook, hook]
CHANGES += [other_heads, other_order]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_is_not_plain(change):
    model = make_model()
    assert is_plain(model)
    change(model)
    assert not is_plain(model)


def test_a_subclass_with_its_own_decode_and_a_stranger_are_not_plain():
    config = make_model().config
    assert not is_plain(OwnDecode(config)) and not is_plain(nn.Linear(2, 2))
    for kind, expected in ((OwnDecode, Steps), (Transformer, LeanSteps)):
        with search_steps(kind(config), make_sources()) as steps:
            assert type(steps) is expected and not steps.model.training and not torch.is_grad_enabled()
            assert torch.is_inference_mode_enabled() == (expected is LeanSteps)
        assert steps.model.training


@pytest.mark.parametrize("change", [other_heads, other_order], ids=lambda change: change.__name__)
def test_a_search_respects_a_part_that_is_not_as_configured(change):
    model = make_model()
    change(model.float())
    with search_steps(model.eval(), make_sources()) as steps:
        assert type(steps) is Steps


def test_a_hook_hears_every_step_of_a_search():
    model, heard = make_model(), []
    model.decoder.layers[0].register_forward_hook(lambda *given: heard.append(1))
    found = greedy_search(model, make_sources(), 7)
    assert len(heard) == found.size(1)


@pytest.mark.parametrize("name", ["w_q", "w_o"])
def test_a_dense_layer_of_another_kind_is_called(name):
    model = make_model()
    attention = model.decoder.layers[0].self_attention
    louder = Louder(12, 12).double()
    louder.load_state_dict(getattr(attention, name).state_dict())
    setattr(attention, name, louder)
    assert is_plain(model)
    for lean, plain in zip(walk(model, LeanSteps, 1), walk(model, Steps, 1)):
        torch.testing.assert_close(lean, plain, atol=1e-10, rtol=1e-10)


def test_a_projection_of_ones_own_is_used():
    model = make_model()
    model.project = lambda hidden: Transformer.project(model, hidden).roll(1, dims=-1)
    for lean, plain in zip(walk(model, LeanSteps, 1), walk(model, Steps, 1)):
        torch.testing.assert_close(lean, plain, atol=1e-10, rtol=1e-10)


# Dense layers for few rows ----------------------------------------------------------------------------

ONEDNN = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@ONEDNN
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("d_in", [7, 1030])
@pytest.mark.parametrize("rows", [1, 2, 4, 5, 31, 32, 33])
def test_step_linear_is_linear(rows, d_in, bias, monkeypatch):
    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: True)
    torch.manual_seed(0)
    x, weight = torch.randn(rows, d_in), torch.randn(9, d_in)
    shift = torch.randn(9) if bias else None
    wanted = F.linear(x.double(), weight.double(), None if shift is None else shift.double())
    found = step_linear(x, weight, shift)
    assert found.shape == (rows, 9) and found.layout == torch.strided
    torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-5)


@pytest.fixture
def libraries(monkeypatch):
    """Notes which library each product was given to, as if oneDNN were the faster one here."""
    used, linear = [], F.linear

    def spy(x, weight, bias=None):
        used.append("oneDNN" if x.is_mkldnn else "MKL")
        return linear(x, weight, bias)

    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: True)
    monkeypatch.setattr(F, "linear", spy)
    return used


@ONEDNN
def test_only_float32_on_a_processor_goes_to_onednn(libraries, monkeypatch):
    many, weight = torch.randn(40, 6), torch.randn(9, 6)
    step_linear(many, weight)
    assert libraries == ["oneDNN"]
    step_linear(many.double(), weight.double()), step_linear(many.to("meta"), weight.to("meta"))
    with torch.autocast("cpu", torch.bfloat16):
        assert step_linear(many, weight).dtype == torch.bfloat16
    with warnings.catch_warnings(action="ignore"), torch.backends.mkldnn.flags(enabled=False):
        step_linear(many, weight)
    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: False)
    step_linear(many, weight)
    assert libraries == ["oneDNN", *["MKL"] * 5]


# Counted work -----------------------------------------------------------------------------------------


class Counter(TorchDispatchMode):
    """Counts matrix products and their operations, those in the fused attention included."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name in ("mm", "addmm"):
            left, right = args[-2:]
            self.products += 1
            self.flops += 2 * left.size(0) * left.size(1) * right.size(1)
        elif name.startswith("_scaled_dot_product"):
            query, key = args[:2]
            self.flops += 4 * query.numel() * key.size(2)
        return result


def counted_steps(model: Transformer, src: torch.Tensor, n_steps: int, beam_size: int = 1) -> list[Counter]:
    counters = []
    with torch.no_grad():  # in inference mode a product does not show what it is made of
        steps = LeanSteps(model, src, beam_size)
        for _ in range(n_steps):
            with Counter() as counter:
                steps.project(steps(torch.full((len(src) * beam_size,), 5)))
            counters.append(counter)
    return counters


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_step_costs_what_the_formula_says(beam_size, monkeypatch):
    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: False)
    model = make_model(dtype=torch.float32)
    src = torch.full((3, 6), 7)
    d, d_ff, layers, S, rows = 12, 20, 2, 6, 3 * beam_size
    for t, counter in enumerate(counted_steps(model, src, 8, beam_size), start=1):
        assert counter.products == 8 * layers + 1
        dense = layers * (6 * 2 * d * d + 2 * 2 * d * d_ff) + 2 * d * V
        assert counter.flops == rows * (dense + layers * 2 * 2 * d * (t + S))


def test_a_longer_past_adds_to_a_step_in_proportion(monkeypatch):
    monkeypatch.setattr(transformer.attention, "_mkl_is_slow", lambda: False)
    flops = [counter.flops for counter in counted_steps(make_model(max_length=60), make_sources(), 60)]
    assert len(set(b - a for a, b in zip(flops, flops[1:]))) == 1 and flops[0] < flops[1]


def test_few_logits_exist_at_once_in_beam_search():
    model, sizes = make_model(), []
    model.project = lambda hidden: sizes.append(len(hidden)) or Transformer.project(model, hidden)
    src = torch.randint(4, V, (50, 5), generator=torch.Generator().manual_seed(0))
    beam_search(model, src, beam_size=4, max_length=3)
    assert max(sizes) == 64 and sum(sizes[:4]) == 50 * 4


# What a search leaves behind --------------------------------------------------------------------------


def test_what_a_search_returns_can_be_learned_from():
    """Searches run in inference mode, whose tensors autograd refuses; what they return it must not."""
    model, src = make_model(), make_sources()
    found = greedy_search(model, src, 5), *beam_search(model, src, 2, max_length=5)
    assert not any(x.is_inference() for x in found)
    table = torch.randn(V, 3, requires_grad=True)
    F.embedding(found[0], table).sum().backward()
    weight = torch.ones(found[2].shape, dtype=torch.float64, requires_grad=True)
    (weight * found[2]).sum().backward()
    assert table.grad.any() and torch.equal(weight.grad, found[2])


def test_what_a_hook_keeps_of_a_search_can_be_learned_from():
    model, kept = make_model(), []
    model.decoder.layers[0].register_forward_hook(lambda module, given, output: kept.append(output))
    greedy_search(model, make_sources(), 3)
    probe = torch.zeros(12, dtype=torch.float64, requires_grad=True)
    sum((x @ probe).sum() for x in kept).backward()
    assert probe.grad.any()


def test_rows_keep_their_places_beyond_the_first_room_of_the_cache():
    model = make_model(max_length=40)
    for lean, plain in zip(walk(model, LeanSteps, 2, 36), walk(model, Steps, 2, 36)):
        torch.testing.assert_close(lean, plain, atol=1e-10, rtol=1e-10)


def test_an_unchanged_order_moves_nothing_in_lean_steps():
    model, src = make_model(), make_sources()
    with search_steps(model, src, 2) as steps:
        steps(torch.full((2 * len(src),), BOS))
        before = steps.cache.data_ptr()
        steps.keep(torch.arange(2 * len(src)))
        assert steps.cache.data_ptr() == before
        steps.keep(torch.arange(2 * len(src)).view(-1, 2).flip(1).flatten())
        assert steps.cache.data_ptr() != before
        steps.keep(torch.arange(2 * len(src)).view(-1, 2).flip(1).flatten())
        assert steps.cache.data_ptr() == before  # back and forth between two buffers


@pytest.mark.parametrize("padded", [False, True])
def test_many_sentences_attend_by_the_written_out_function_to_the_same(padded):
    model = make_model()
    src = torch.randint(4, V, (40, 6), generator=torch.Generator().manual_seed(0))
    if padded:
        src[::3, 4:] = PAD
        src[7] = PAD
    last = torch.full((40,), BOS)
    with torch.no_grad():
        lean, plain = LeanSteps(model, src), Steps(model, src)
        for _ in range(4):
            found, wanted = lean.project(lean(last)), plain.project(plain(last))
            torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)
            last = wanted.argmax(-1)
