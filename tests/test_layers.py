"""The layers: equal to torch's with gradients, causal, blind to padding, the same with a cache."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, BIASES, MODES, NORM_ORDERS, close, scrambled
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from transformer import (
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    LayerConfig,
    LayerNorm,
    TransformerConfig,
    attention_tap,
    causal_mask,
    padding_mask,
)
from transformer.attention import KeyValueCache
from transformer.layers import Residual

# No two sizes are equal, so that no axis can be taken for another.
B, S, T, H, D_K, D_FF = 2, 7, 5, 3, 4, 10
D = H * D_K
SIZES = {"d_model": D, "n_heads": H, "d_ff": D_FF}
pytestmark = pytest.mark.usefixtures("float64")
SOURCE = torch.tensor([[9, 9, 9, 9, 9, 9, 9], [9, 9, 9, 9, 0, 0, 0]])  # [B, S], padded with 0
SOURCE_MASK = padding_mask(SOURCE)  # [B, 1, 1, S]


def make_config(**changes) -> LayerConfig:
    return LayerConfig(**(SIZES | {"dropout": 0.0} | changes))


def make_encoder_layer(**changes) -> EncoderLayer:
    return scrambled(EncoderLayer(make_config(**changes)))


def make_decoder_layer(**changes) -> DecoderLayer:
    return scrambled(DecoderLayer(make_config(**changes)))


def seeded(function: Callable[..., Tensor], *args, **kwargs) -> Tensor:
    """The result of a function that draws random numbers, always from the same seed."""
    torch.manual_seed(1)
    return function(*args, **kwargs)


def gradients(output: Tensor, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradient for every input of one fixed random weighting of the output."""
    arriving = torch.randn(output.shape, generator=torch.Generator().manual_seed(2))
    return dict(zip(inputs, torch.autograd.grad(output, list(inputs.values()), arriving)))


# ---------- The same parameters under torch's names


def attention_as_torch(ours: dict[str, Tensor], name: str, torch_name: str) -> dict[str, Tensor]:
    """Parameters (or their gradients) of our attention `name`, called and stacked as torch does."""
    theirs = {}
    for kind in ("weight", "bias"):
        if f"{name}.w_q.{kind}" in ours:
            stacked = torch.cat([ours[f"{name}.{part}.{kind}"] for part in ("w_q", "w_k", "w_v")])
            theirs[f"{torch_name}.in_proj_{kind}"] = stacked
            theirs[f"{torch_name}.out_proj.{kind}"] = ours[f"{name}.w_o.{kind}"]
    return theirs


def as_torch(ours: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters (or their gradients) of one of our layers, by the names that torch's layer has."""
    theirs = attention_as_torch(ours, "self_attention", "self_attn")
    theirs |= attention_as_torch(ours, "cross_attention", "multihead_attn")
    norms = [f"{name}_residual.norm" for name in ("self", "cross", "feed")]
    norms = [name for name in norms if f"{name}.weight" in ours]
    pairs = {"feed_forward.w_1": "linear1", "feed_forward.w_2": "linear2"}
    pairs |= {name: f"norm{number}" for number, name in enumerate(norms, start=1)}
    for name, torch_name in pairs.items():
        for kind in ("weight", "bias"):
            if f"{name}.{kind}" in ours:
                theirs[f"{torch_name}.{kind}"] = ours[f"{name}.{kind}"]
    return theirs


def torch_twin(ours: nn.Module, kind: type[nn.Module], activation: str, bias: bool) -> nn.Module:
    """Torch's layer with the weights of ours."""
    norm_first = ours.self_residual.norm_first
    twin = kind(D, H, D_FF, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias)
    twin.load_state_dict(as_torch(dict(ours.state_dict())))  # strict: nothing missing, nothing over
    return twin


def assert_same_gradients(
    ours: nn.Module, output: Tensor, theirs: nn.Module, expected: Tensor, inputs: dict[str, Tensor]
) -> None:
    """Compare the gradients of all parameters and inputs."""
    mine = gradients(output, inputs | dict(ours.named_parameters()))
    wanted = gradients(expected, inputs | dict(theirs.named_parameters()))
    mine = {name: mine[name] for name in inputs} | as_torch(mine)
    assert mine.keys() == wanted.keys()
    assert [name for name in wanted if not close(mine[name], wanted[name])] == []


# ---------- Layer normalization


@BIASES
@pytest.mark.parametrize("eps", [1e-5, 0.3, 0.0])
@pytest.mark.parametrize("shape", [(D,), (B, D), (B, T, D), (B, H, S, D)], ids=str)
def test_layer_norm_equals_torchs_with_gradients(shape, eps, bias):
    ours = scrambled(LayerNorm(D, eps, bias))
    theirs = nn.LayerNorm(D, eps, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(shape, requires_grad=True)
    assert close(ours(x), theirs(x))
    mine = gradients(ours(x), {"x": x} | dict(ours.named_parameters()))
    wanted = gradients(theirs(x), {"x": x} | dict(theirs.named_parameters()))
    assert all(close(mine[name], wanted[name]) for name in wanted)


def test_layer_norm_of_equal_entries_is_the_shift():
    norm = scrambled(LayerNorm(D))
    assert close(norm(torch.full((B, T, D), 4.0)), norm.bias.expand(B, T, D))


# ---------- The position-wise network


@BIASES
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_feed_forward_equals_torchs_modules_with_gradients(activation, bias):
    ours = scrambled(FeedForward(D, D_FF, activation=activation, bias=bias))
    bend = {"relu": nn.ReLU(), "gelu": nn.GELU(), "silu": nn.SiLU()}[activation]
    theirs = nn.Sequential(nn.Linear(D, D_FF, bias), bend, nn.Linear(D_FF, D, bias))
    theirs.load_state_dict(
        {name.replace("w_1", "0").replace("w_2", "2"): p for name, p in ours.state_dict().items()}
    )
    x = torch.randn(B, T, D, requires_grad=True)
    assert close(ours(x), theirs(x))
    mine = gradients(ours(x), {"x": x} | dict(ours.named_parameters()))
    wanted = gradients(theirs(x), {"x": x} | dict(theirs.named_parameters()))
    assert all(close(a, b) for a, b in zip(mine.values(), wanted.values(), strict=True))
    with pytest.raises(ValueError, match=r"^activation must be one of \['relu', .*, not 'tanh'$"):
        FeedForward(D, D_FF, activation="tanh")


def test_feed_forward_drops_behind_the_activation():
    feed_forward = scrambled(FeedForward(D, D_FF, dropout=0.4))
    x = torch.randn(B, T, D)
    torch.manual_seed(1)
    hidden = F.dropout(F.relu(feed_forward.w_1(x)), 0.4)
    assert close(seeded(feed_forward, x), feed_forward.w_2(hidden))
    assert close(feed_forward.eval()(x), feed_forward.w_2(F.relu(feed_forward.w_1(x))))


# ---------- Residuals


@MODES
@NORM_ORDERS
def test_residual_is_its_formula(norm_first, training):
    residual = scrambled(Residual(make_config(dropout=0.3, norm_first=norm_first))).train(training)
    sublayer, norm = nn.Linear(D, D), residual.norm
    x = torch.randn(B, T, D)

    def drop(y: Tensor) -> Tensor:
        return seeded(F.dropout, y, 0.3) if training else y

    expected = x + drop(sublayer(norm(x))) if norm_first else norm(x + drop(sublayer(x)))
    assert close(seeded(residual, x, sublayer), expected)


# ---------- What a layer is told


def test_a_layer_config_is_a_value_and_the_base_model_by_default():
    config = LayerConfig()
    assert (config.d_model, config.n_heads, config.d_ff, config.dropout) == (512, 8, 2048, 0.1)
    assert config == LayerConfig() and hash(config) == hash(LayerConfig())
    with pytest.raises(FrozenInstanceError):
        config.d_model = 24
    with pytest.raises(TypeError):
        LayerConfig(512)  # type: ignore[call-arg]  # nine numbers in a row would be mistaken for each other


@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_layers_take_the_config_of_a_layer_and_of_a_model_alike(kind):
    config = make_config(
        attention_dropout=0.2, activation_dropout=0.1, activation="gelu", bias=False, norm_first=True
    )
    of_model = TransformerConfig(9, 9, **asdict(config))
    layers = [seeded(kind, given) for given in (config, of_model)]
    inputs = (torch.randn(B, T, D),) if kind is EncoderLayer else (torch.randn(B, T, D), torch.randn(B, S, D))
    one, other = (seeded(layer, *inputs) for layer in layers)
    assert torch.equal(one, other) and str(layers[0]) == str(layers[1])


# ---------- Layers: equal to torch's


@BIASES
@ACTIVATIONS
@NORM_ORDERS
def test_encoder_layer_equals_torchs_with_gradients(norm_first, activation, bias):
    ours = make_encoder_layer(norm_first=norm_first, activation=activation, bias=bias)
    theirs = torch_twin(ours, nn.TransformerEncoderLayer, activation, bias)
    x = torch.randn(B, S, D, requires_grad=True)
    output = ours(x, SOURCE_MASK)
    expected = theirs(x, src_key_padding_mask=~SOURCE_MASK[:, 0, 0])
    assert close(output, expected)
    assert_same_gradients(ours, output, theirs, expected, {"x": x})


@BIASES
@ACTIVATIONS
@NORM_ORDERS
def test_decoder_layer_equals_torchs_with_gradients(norm_first, activation, bias):
    ours = make_decoder_layer(norm_first=norm_first, activation=activation, bias=bias)
    theirs = torch_twin(ours, nn.TransformerDecoderLayer, activation, bias)
    inputs = {name: torch.randn(B, n, D, requires_grad=True) for name, n in (("x", T), ("memory", S))}
    output = ours(**inputs, self_mask=causal_mask(T), memory_mask=SOURCE_MASK)
    future, padding = ~causal_mask(T)[0, 0], ~SOURCE_MASK[:, 0, 0]
    expected = theirs(*inputs.values(), tgt_mask=future, memory_key_padding_mask=padding)
    assert close(output, expected)
    assert_same_gradients(ours, output, theirs, expected, inputs)


# ---------- Layers: dropout where it belongs


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_rate_acts_in_training_only(rate):
    still, dropping = make_encoder_layer(), make_encoder_layer(**{rate: 0.3})
    dropping.load_state_dict(still.state_dict())
    x = torch.randn(B, S, D)
    assert close(dropping.eval()(x), still(x))
    assert not close(dropping.train()(x), still(x), atol=1e-3)
    assert close(seeded(dropping, x), seeded(dropping, x))  # torch's own generator decides


@pytest.mark.parametrize("rate", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kind", [EncoderLayer, DecoderLayer])
def test_only_its_own_rate_falls_on_attention_weights(kind, rate):
    layer = kind(make_config(**{rate: 0.5}))
    others = () if kind is EncoderLayer else (torch.randn(B, S, D),)
    with attention_tap(layer) as maps:
        layer(torch.randn(B, T, D), *others)
    dropped = {bool((weights == 0).any()) for weights in maps.values()}
    assert dropped == {rate == "attention_dropout"}


@NORM_ORDERS
def test_dropout_acts_on_what_each_sublayer_returns(norm_first):
    layer = make_encoder_layer(norm_first=norm_first, dropout=0.3)
    x = torch.randn(B, S, D)
    sublayers = (
        (layer.self_residual.norm, lambda y: layer.self_attention(y, y, y)[0]),
        (layer.feed_residual.norm, layer.feed_forward),
    )
    torch.manual_seed(1)
    expected = x
    for norm, sublayer in sublayers:
        if norm_first:
            expected = expected + F.dropout(sublayer(norm(expected)), 0.3)
        else:
            expected = norm(expected + F.dropout(sublayer(expected), 0.3))
    assert close(seeded(layer, x), expected)


# ---------- Layers: who sees whom


@NORM_ORDERS
def test_nothing_to_attend_gives_numbers_and_gradients(norm_first):
    layer = make_encoder_layer(norm_first=norm_first)
    x = torch.randn(B, S, D, requires_grad=True)
    output = layer(x, torch.zeros(1, 1, 1, S, dtype=torch.bool))
    found = gradients(output, {"x": x} | dict(layer.named_parameters()))
    assert output.isfinite().all() and all(g.isfinite().all() for g in found.values())


# ---------- Layers: one position at a time


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.booleans())
@torch.no_grad()
def test_a_cache_gives_what_the_whole_gives(pieces, norm_first):
    layer = make_decoder_layer(norm_first=norm_first)
    length = sum(pieces)
    x, memory = torch.randn(B, length, D), torch.randn(B, S, D)
    cache, outputs, start = KeyValueCache(), [], 0
    for piece in pieces:
        end = start + piece
        mask = causal_mask(end)[:, :, start:]  # the new positions' rows
        outputs.append(layer(x[:, start:end], memory, mask, SOURCE_MASK, cache))
        start = end
    assert close(torch.cat(outputs, dim=1), layer(x, memory, causal_mask(length), SOURCE_MASK))
    assert cache.length == length


# ---------- Layers: precision, graphs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_layers_work_in_every_precision(dtype):
    # Norms as they start: with random gains near 0, rounding would be divided by little.
    exact = EncoderLayer(make_config())
    x = torch.randn(B, S, D)
    rounded = copy.deepcopy(exact).to(dtype)(x.to(dtype), SOURCE_MASK)
    assert rounded.dtype == dtype
    assert (rounded.double() - exact(x, SOURCE_MASK)).abs().max() < 20 * torch.finfo(dtype).eps
