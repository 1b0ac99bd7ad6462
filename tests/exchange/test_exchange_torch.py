"""Weights carried between ours and torch.nn: equal in outputs and all gradients, or refused by name."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from helpers import ACTIVATIONS, BIASES, MODES, NORM_ORDERS, close, scrambled
from torch import Tensor, nn

from transformer import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LayerConfig,
    LayerNorm,
    MultiHeadAttention,
    Transformer,
    TransformerConfig,
    accelerate,
    causal_mask,
    from_torch,
    to_torch,
)

B, S, T, D, H, D_FF, KDIM, VDIM = 3, 7, 5, 12, 4, 20, 9, 10  # no two alike
LENGTHS = torch.tensor([7, 4, 5])
LAYER = LayerConfig(d_model=D, n_heads=H, d_ff=D_FF)
SIZES = {"d_model": D, "n_heads": H, "d_ff": D_FF}
REAL = torch.arange(S) < LENGTHS[:, None]  # [B, S], True = a token
PADDING_MASK = REAL[:, None, None]  # [B, 1, 1, S]

pytestmark = pytest.mark.usefixtures("float64")
BATCH_FIRST = pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "time first"])


# ---------- Modules of torch's, in every form


def attention(batch_first=True, **options):
    return scrambled(nn.MultiheadAttention(D, H, batch_first=batch_first, **options))


def layer(kind, batch_first=True, dropout=0.0, **options):
    return scrambled(kind(D, H, D_FF, dropout, batch_first=batch_first, **options))


def stack(kind, final_norm=True, n_layers=2, norm_bias=True, norm_eps=1e-5, **options):
    encodes = kind is nn.TransformerEncoder
    one = layer(nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer, **options)
    norm = nn.LayerNorm(D, norm_eps, bias=norm_bias) if final_norm else None
    extra = {"enable_nested_tensor": False} if encodes else {}
    return scrambled(kind(one, n_layers, norm, **extra))


def whole(batch_first=True, final_norm=True, n_layers=(2, 3), **options):
    halves = {
        "custom_encoder": stack(nn.TransformerEncoder, final_norm, n_layers[0], **options),
        "custom_decoder": stack(nn.TransformerDecoder, final_norm, n_layers[1], **options),
    }
    theirs = nn.Transformer(D, H, batch_first=batch_first, **halves)
    for part in theirs.modules():
        if isinstance(part, nn.MultiheadAttention):
            part.batch_first = batch_first
    return scrambled(theirs)


KINDS = {
    "encoder layer": lambda **options: layer(nn.TransformerEncoderLayer, **options),
    "decoder layer": lambda **options: layer(nn.TransformerDecoderLayer, **options),
    "encoder": lambda **options: stack(nn.TransformerEncoder, **options),
    "decoder": lambda **options: stack(nn.TransformerDecoder, **options),
    "transformer": whole,
}
EVERY_KIND = KINDS | {"attention": attention}
LAYERED = pytest.mark.parametrize("kind", KINDS)
EACH_KIND = pytest.mark.parametrize("kind", EVERY_KIND)
OURS = {
    "attention": MultiHeadAttention,
    "encoder layer": EncoderLayer,
    "decoder layer": DecoderLayer,
    "encoder": Encoder,
    "decoder": Decoder,
}


def together(ours) -> nn.Module:
    """One module, also of the pair."""
    return nn.ModuleList(ours) if isinstance(ours, tuple) else ours


def inputs_for(theirs, batch=B, dtype=torch.float64) -> list[Tensor]:
    """Batch first: what a module reads, in the order of its arguments."""
    x, z = ((batch, S, D), (batch, T, D))
    if isinstance(theirs, nn.MultiheadAttention):
        shapes = [z, (batch, S, theirs.kdim), (batch, S, theirs.vdim)]
    elif isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerEncoder):
        shapes = [x]
    else:
        shapes = [x, z] if isinstance(theirs, nn.Transformer) else [z, x]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def run_torch(theirs, inputs, batch_first=True, masked=True):
    """Torch's output, batch first whatever the module wants."""
    padding = ~REAL[: len(inputs[0])] if masked else None
    future = ~causal_mask(T)[0, 0] if masked else None
    given = inputs if batch_first else [x.transpose(0, 1) for x in inputs]
    if isinstance(theirs, nn.MultiheadAttention):
        output, _ = theirs(*given, key_padding_mask=padding, need_weights=False)
    elif isinstance(theirs, nn.TransformerEncoderLayer | nn.TransformerEncoder):
        output = theirs(*given, src_key_padding_mask=padding)
    else:
        masks = {"tgt_mask": future, "memory_key_padding_mask": padding}
        if isinstance(theirs, nn.Transformer):
            masks["src_key_padding_mask"] = padding
        output = theirs(*given, **masks)
    return output if batch_first else output.transpose(0, 1)


def run_ours(ours, inputs, masked=True):
    mask = PADDING_MASK[: len(inputs[0])] if masked else None
    causal = causal_mask(T) if masked else None
    if isinstance(ours, tuple):
        return ours[1](inputs[1], ours[0](inputs[0], mask), causal, mask)
    if isinstance(ours, MultiHeadAttention):
        return ours(*inputs, mask)[0]
    masks = [mask] if isinstance(ours, EncoderLayer | Encoder) else [causal, mask]
    return ours(*inputs, *masks)


def renamed(theirs, ours, take) -> dict[str, Tensor]:
    """What `take` finds in torch's parameters, under our names; written apart from the library."""
    if isinstance(theirs, nn.Transformer):
        encoder = renamed(theirs.encoder, ours[0], take)
        decoder = renamed(theirs.decoder, ours[1], take)
        pairs = (("0", encoder), ("1", decoder))
        return {f"{half}.{name}": x for half, found in pairs for name, x in found.items()}
    cross = "residual" if isinstance(theirs, nn.TransformerDecoderLayer | nn.TransformerDecoder) else ""
    norm2 = f"cross_{cross}.norm" if cross else "feed_residual.norm"
    found = {}
    for name, parameter in theirs.named_parameters():
        for old, new in (
            (r"\bself_attn\b", "self_attention"),
            (r"\bmultihead_attn\b", "cross_attention"),
            (r"\blinear", "feed_forward.w_"),
            (r"\bnorm1\b", "self_residual.norm"),
            (r"\bnorm2\b", norm2),
            (r"\bnorm3\b", "feed_residual.norm"),
            (r"\bout_proj\b", "w_o"),
            (r"\b([qkv])_proj_weight", r"w_\1.weight"),
        ):
            name = re.sub(old, new, name)
        if "in_proj_" in name:
            for letter, rows in zip("qkv", take(parameter).chunk(3)):
                found[name.replace("in_proj_", f"w_{letter}.")] = rows
        else:
            found[name] = take(parameter)
    return found


def assert_same_function(theirs, ours, batch_first=True, masked=True):
    """Equal outputs, and equal gradients of all inputs and of all parameters."""
    inputs = inputs_for(theirs)
    copies = [x.detach().clone().requires_grad_() for x in inputs]
    expected = run_torch(theirs, inputs, batch_first, masked)
    output = run_ours(ours, copies, masked)
    assert close(output, expected)
    direction = torch.randn_like(expected)
    (expected * direction).sum().backward()
    (output * direction).sum().backward()
    for x, copied in zip(inputs, copies):
        assert x.grad.abs().max() > 1e-3
        assert close(copied.grad, x.grad)
    gradients = renamed(theirs, ours, lambda parameter: parameter.grad)
    parameters = dict(together(ours).named_parameters())
    assert gradients.keys() == parameters.keys()
    for name, parameter in parameters.items():
        assert close(parameter.grad, gradients[name]), name
        if not name.endswith("w_k.bias"):  # a softmax is blind to it: its gradient is 0
            assert parameter.grad.abs().max() > 1e-6, name


# ---------- Equal in outputs and gradients


@MODES
@BATCH_FIRST
@BIASES
@pytest.mark.parametrize(
    "widths",
    [{}, {"kdim": KDIM, "vdim": VDIM}, {"kdim": KDIM}, {"vdim": VDIM}],
    ids=["one width", "three widths", "keys' own", "values' own"],
)
def test_attention_is_the_same_function(widths, bias, batch_first, training):
    theirs = attention(batch_first, bias=bias, **widths).train(training)
    ours = from_torch(theirs)
    widths = ours.w_k.in_features, ours.w_v.in_features
    assert (*widths, ours.n_heads) == (theirs.kdim, theirs.vdim, H)
    assert_same_function(theirs, ours, batch_first)
    theirs = to_torch(scrambled(ours), batch_first=batch_first)
    ours.zero_grad()
    assert (theirs.kdim, theirs.vdim) == (ours.w_k.in_features, ours.w_v.in_features)
    assert_same_function(theirs, ours, batch_first)


@pytest.mark.slow
@BIASES
@ACTIVATIONS
@NORM_ORDERS
@LAYERED
def test_layers_and_stacks_are_the_same_function(kind, norm_first, activation, bias):
    batch_first = norm_first ^ bias ^ (activation == "relu")  # each with every pair of the others
    options = {"norm_first": norm_first, "activation": activation, "bias": bias}
    theirs = KINDS[kind](batch_first=batch_first, **options)
    ours = from_torch(theirs)
    assert_same_function(theirs, ours, batch_first)
    scrambled(together(ours)).zero_grad()
    assert_same_function(to_torch(ours, batch_first=batch_first), ours, batch_first)


@pytest.mark.slow
@pytest.mark.parametrize("final_norm", [True, False], ids=["norm on top", "none"])
@NORM_ORDERS
@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
def test_a_norm_on_top_is_carried_over(kind, norm_first, final_norm):
    theirs = KINDS[kind](final_norm=final_norm, norm_first=norm_first)
    ours = from_torch(theirs)
    for half in ours if isinstance(ours, tuple) else (ours,):
        assert type(half.norm) is (LayerNorm if final_norm else nn.Identity)
    assert_same_function(theirs, ours)
    scrambled(together(ours)).zero_grad()
    again = to_torch(ours)
    for half in (again.encoder, again.decoder) if kind == "transformer" else (again,):
        assert (half.norm is not None) == final_norm
    assert_same_function(again, ours)


@LAYERED
def test_epsilons_are_carried_over_place_by_place(kind):
    theirs = KINDS[kind](layer_norm_eps=1e-2)
    norms = [part for part in theirs.modules() if isinstance(part, nn.LayerNorm)]
    for number, norm in enumerate(norms):
        norm.eps = 0.1 + 0.05 * number
    ours = from_torch(theirs)
    assert_same_function(theirs, ours)
    again = to_torch(ours)
    assert [part.eps for part in again.modules() if isinstance(part, nn.LayerNorm)] == [
        norm.eps for norm in norms
    ]


# ---------- There and back


def same_state(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) and first[name].dtype == second[name].dtype for name in first
    )


@BIASES
@EACH_KIND
def test_there_and_back_gives_the_same_weights_and_types(kind, bias):
    theirs = EVERY_KIND[kind](bias=bias)
    ours = from_torch(theirs)
    back, again = to_torch(ours), from_torch(to_torch(ours))
    assert type(back) is type(theirs) and same_state(back, theirs)
    assert type(again) is type(ours) and same_state(together(again), together(ours))
    if kind == "transformer":
        assert [type(half) for half in ours] == [Encoder, Decoder]
        assert (back.d_model, back.nhead, back.batch_first) == (D, H, True)
    else:
        assert type(ours) is OURS[kind]
    if kind in ("encoder", "decoder"):
        assert back.num_layers == len(ours.layers) == 2


@EACH_KIND
def test_weights_are_copied_and_never_shared(kind):
    theirs = EVERY_KIND[kind]()
    ours = from_torch(theirs)
    numbers = torch.get_rng_state()
    third = to_torch(ours)
    assert torch.equal(torch.get_rng_state(), numbers)  # nobody's random numbers are touched
    memory = [
        {p.untyped_storage().data_ptr() for p in together(module).parameters()}
        for module in (theirs, ours, third)
    ]
    assert not memory[0] & memory[1] and not memory[1] & memory[2]
    assert len(memory[1]) == len(list(together(ours).parameters()))  # each parameter has its own


# ---------- What is not a weight: mode, rates


@LAYERED
def test_the_mode_is_kept(kind):
    for training in (True, False):
        theirs = KINDS[kind]().train(training)
        ours = together(from_torch(theirs))
        for module in (*ours.children(), to_torch(from_torch(theirs))):
            assert module.training == training


RATES = {
    "encoder layer": ("self_attn", "dropout", "dropout1", "dropout2"),
    "decoder layer": ("self_attn", "multihead_attn", "dropout", "dropout1", "dropout2", "dropout3"),
}


def set_rate(theirs: nn.Module, place: str, rate: float) -> None:
    part = getattr(theirs, place)
    setattr(part, "dropout" if isinstance(part, nn.MultiheadAttention) else "p", rate)


@NORM_ORDERS
@pytest.mark.parametrize("kind, place", [(kind, place) for kind in RATES for place in RATES[kind]])
def test_each_place_keeps_its_rate(kind, place, norm_first):
    """One sentence, one seed: both draw the same numbers, and drop the same."""
    theirs = KINDS[kind](norm_first=norm_first)
    inputs = inputs_for(theirs, batch=1)
    without = run_torch(theirs, inputs)
    set_rate(theirs, place, 0.4)
    ours = from_torch(theirs)
    results = []
    for call in (
        lambda: run_torch(theirs, inputs),
        lambda: run_ours(ours, inputs),
        lambda: run_torch(to_torch(ours), inputs),
    ):
        torch.manual_seed(1)
        results.append(call())
    assert not close(results[0], without, atol=0.1)  # something is dropped
    assert close(results[1], results[0]) and close(results[2], results[0])


# ---------- Refused by name


def of(module: nn.Module, path: str, part) -> nn.Module:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, part)
    return module


class Subclass(nn.TransformerEncoderLayer):
    """Of another type, whatever it computes."""


class Doubled(nn.Linear):
    """With the parameters of a linear layer, and another function."""


def encoder_layer(**options):
    return layer(nn.TransformerEncoderLayer, **options)


def stacked(second: nn.Module) -> nn.TransformerEncoder:
    """A stack with another second layer."""
    return of(stack(nn.TransformerEncoder), "layers.1", second)


def set_to(module: nn.Module, path: str, name: str, value) -> nn.Module:
    setattr(module.get_submodule(path), name, value)
    return module


def our_stack(kind=Encoder, **changes):
    return kind(TransformerConfig(4, 4, **(SIZES | {"n_layers": 2} | changes)))


def without_a_part() -> nn.Module:
    module = encoder_layer()
    del module.dropout2
    return module


VALUE, TYPE, A_STACK = ValueError, TypeError, nn.TransformerEncoder
A_LAYER, B_LAYER = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
AS_MADE = "module must be as its class makes it, but"
FROM = [
    (lambda: attention(add_bias_kv=True), VALUE, f"{AS_MADE} the model has other parameters: bias_k, bias_v"),
    (lambda: attention(add_zero_attn=True), VALUE, f"{AS_MADE} the model has another add_zero_attn"),
    (lambda: encoder_layer(activation=F.tanh), VALUE, "activation .*'gelu', 'relu', 'silu'.* tanh"),
    (lambda: encoder_layer(activation=nn.GELU("tanh")), VALUE, "activation .*approximate='tanh'"),
    (lambda: of(encoder_layer(), "norm2", nn.RMSNorm(D)), TYPE, "norm2 is of RMSNorm, not of LayerNorm"),
    (lambda: of(encoder_layer(), "adapter", nn.Linear(D, D)), TYPE, f"{AS_MADE} adapter is of Linear"),
    (without_a_part, TYPE, f"{AS_MADE} dropout2 is of NoneType"),
    (lambda: of(encoder_layer(), "linear1", nn.Identity()), TYPE, "'Identity' object has no attribute 'in_"),
    (lambda: of(encoder_layer(), "linear2", nn.Linear(D_FF + 1, D)), VALUE, "linear2 has other .*: weight"),
    (
        lambda: of(stack(A_STACK), "norm", nn.LayerNorm(D, elementwise_affine=False)),
        VALUE, "norm has other parameters: weight",
    ),
    (lambda: stacked(encoder_layer(activation="gelu")), VALUE, "layers must be of one form, not .*gelu"),
    (lambda: stacked(layer(B_LAYER)), TYPE, "layers.1 is of TransformerDecoderLayer, not of TransformerE"),
    (
        lambda: of(layer(B_LAYER), "multihead_attn", nn.MultiheadAttention(D, 3, batch_first=True)),
        VALUE, "multihead_attn has another num_heads",
    ),
    (
        lambda: set_to(stack(A_STACK), "layers.1.self_attn", "batch_first", False),
        VALUE, "has another batch_first",
    ),
    (lambda: of(whole(), "encoder", nn.Identity()), TYPE, "module must be of type .* not .*Identity"),
    (lambda: Subclass(D, H), TYPE, "module must be of type .*, not .*Subclass"),
    (lambda: {"weight": 1}, TYPE, "module must be of type .*, not builtins.dict"),
]  # fmt: skip


@pytest.mark.parametrize("make, error, said", FROM)
def test_from_torch_refuses(make, error, said):
    with pytest.raises(error, match=said):
        from_torch(make())


def other_heads():
    return of(our_stack(), "layers.1", EncoderLayer(LayerConfig(**SIZES | {"n_heads": 3})))


TO = [
    (lambda: (our_stack(Decoder), our_stack()), TYPE, "must be of type .*Encoder itself, not .*Decoder"),
    (other_heads, VALUE, "layers must be of one form"),
    (lambda: set_to(EncoderLayer(LAYER), "feed_residual", "norm_first", True), VALUE, "has another norm_fi"),
    (lambda: of(MultiHeadAttention(D, H), "w_v", Doubled(D, D)), TYPE, "w_v is of Doubled, not of Linear"),
    (lambda: Transformer(TransformerConfig(9, 9, n_layers=1, **SIZES)), TYPE, r"pair \(model.encoder, "),
    (
        lambda: accelerate(Transformer(TransformerConfig(9, 9, n_layers=1, **SIZES))).encoder,
        TYPE, "is of FastMultiHeadAttention, not of MultiHeadAttention",
    ),
]  # fmt: skip


@pytest.mark.parametrize("make, error, said", TO)
def test_to_torch_refuses(make, error, said):
    with pytest.raises(error, match=said):
        to_torch(make())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's, of what its compiler imports
def test_compiled_modules_are_read_as_they_were_before():
    theirs = stack(nn.TransformerEncoder)
    expected = from_torch(theirs)
    theirs.layers[1] = torch.compile(theirs.layers[1])
    ours = from_torch(torch.compile(theirs))
    assert same_state(ours, expected)
    ours.layers[0] = torch.compile(ours.layers[0])
    assert same_state(to_torch(torch.compile(ours)), to_torch(expected))


@pytest.mark.parametrize("given, name", [(nn.ReLU(), "relu"), (F.gelu, "gelu"), (nn.SiLU(), "silu")])
def test_activations_may_be_functions_or_modules(given, name):
    theirs = layer(nn.TransformerEncoderLayer, activation=given)
    ours = from_torch(theirs)
    assert ours.feed_forward.activation == name
    assert_same_function(theirs, ours)
    assert to_torch(ours).activation is getattr(F, name)
