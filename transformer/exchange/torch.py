"""Modules of `torch.nn`, read and written."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, overload
import torch
from torch import nn
from transformer.attention import MultiHeadAttention
from transformer.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, LayerConfig, LayerNorm, Residual
from transformer.model import Decoder, Encoder, TransformerConfig
from transformer.validation import check_rate
from transformer.weights import differences, original, parameter_owners

__all__ = ["agreed", "place_copy", "check_exact_type", "check_parts", "from_torch", "to_torch"]


_ENCODER_PARTS = {
    "self_attn": "self_attention",
    "dropout1": "self_residual.dropout",
    "norm1": "self_residual.norm",
    "linear1": "feed_forward.w_1",
    "dropout": "feed_forward.dropout",
    "linear2": "feed_forward.w_2",
    "dropout2": "feed_residual.dropout",
    "norm2": "feed_residual.norm",
}
_DECODER_PARTS = _ENCODER_PARTS | {
    "multihead_attn": "cross_attention",
    "dropout2": "cross_residual.dropout",
    "norm2": "cross_residual.norm",
    "dropout3": "feed_residual.dropout",
    "norm3": "feed_residual.norm",
}


def _pairs(theirs: Any, ours: Any) -> Iterator[tuple[nn.Module, nn.Module]]:
    """The parts of two modules that correspond to each other, torch's first."""
    if isinstance(theirs, nn.MultiheadAttention):
        yield theirs, ours
    elif isinstance(theirs, nn.TransformerEncoder | nn.TransformerDecoder):
        for their_layer, our_layer in zip(theirs.layers, ours.layers, strict=True):
            yield from _pairs(their_layer, our_layer)
        if theirs.norm is not None:
            yield theirs.norm, ours.norm
    else:
        decodes = isinstance(theirs, nn.TransformerDecoderLayer)
        for name, path in (_DECODER_PARTS if decodes else _ENCODER_PARTS).items():
            yield theirs.get_submodule(name), ours.get_submodule(path)


def agreed(name: str, values: list[Any]) -> Any:
    """The value that all of `values` have."""
    if any(value != values[0] for value in values):
        given = " and ".join(sorted({str(value) for value in values}))
        raise ValueError(f"{name} must be the same everywhere, not {given}")
    return values[0]


def _split(stacked: nn.Parameter | None) -> Sequence[nn.Parameter | None]:
    """Cut what torch keeps for queries, keys and values together."""
    if stacked is None:
        return [None, None, None]
    return [nn.Parameter(rows, stacked.requires_grad) for rows in stacked.detach().chunk(3)]


def _stack(parts: Sequence[Any]) -> nn.Parameter | None:
    """Put what we keep for queries, keys and values on top of one another."""
    if not agreed("bias of w_q, w_k and w_v", [part is not None for part in parts]):
        return None
    trained = agreed("requires_grad of w_q, w_k and w_v", [part.requires_grad for part in parts])
    return nn.Parameter(torch.cat([part.detach() for part in parts]), trained)


def place_copy(target: nn.Module, name: str, value: nn.Parameter | None) -> None:
    """Put a copy of `value` where `target` was built to have a parameter of this shape."""
    planned = getattr(target, name)
    wanted, given = (None if tensor is None else list(tensor.shape) for tensor in (planned, value))
    if wanted != given:
        kind = type(target).__name__
        raise ValueError(f"{name} of {kind} must have shape {wanted}, not {given}")
    if value is not None:
        copied = value.detach().clone(memory_format=torch.contiguous_format)
        setattr(target, name, nn.Parameter(copied, value.requires_grad))


def _place_both(target: nn.Module, source: Any) -> None:
    place_copy(target, "weight", source.weight)
    place_copy(target, "bias", source.bias)


def _attention_from_torch(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    if theirs.bias_k is not None or theirs.bias_v is not None:
        raise ValueError("add_bias_kv must be False: MultiHeadAttention learns no extra key")
    if theirs.add_zero_attn:
        raise ValueError("add_zero_attn must be False: MultiHeadAttention adds no key of zeros")
    weights: Sequence[nn.Parameter | None]
    weights = [theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight]
    if theirs.in_proj_weight is not None:
        weights = _split(theirs.in_proj_weight)
    biases = _split(theirs.in_proj_bias)
    for linear, weight, bias in zip((ours.w_q, ours.w_k, ours.w_v), weights, biases, strict=True):
        place_copy(linear, "weight", weight)
        place_copy(linear, "bias", bias)
    _place_both(ours.w_o, theirs.out_proj)


def _attention_to_torch(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    linears = [ours.w_q, ours.w_k, ours.w_v]
    if theirs.in_proj_weight is not None:
        place_copy(theirs, "in_proj_weight", _stack([linear.weight for linear in linears]))
    else:
        for letter, linear in zip("qkv", linears, strict=True):
            place_copy(theirs, f"{letter}_proj_weight", linear.weight)
    place_copy(theirs, "in_proj_bias", _stack([linear.bias for linear in linears]))
    _place_both(theirs.out_proj, ours.w_o)


def _fill(target: Any, source: nn.Module) -> None:
    """Give a part all that its counterpart has: mode, parameters, epsilon, rate."""
    target.train(source.training)
    if isinstance(source, nn.MultiheadAttention):
        _attention_from_torch(target, source)
    elif isinstance(source, MultiHeadAttention):
        _attention_to_torch(target, source)
    elif not isinstance(source, nn.Dropout):
        _place_both(target, source)
    if isinstance(source, LayerNorm | nn.LayerNorm):
        target.eps = source.eps
    for name in ("p", "dropout"):  # a dropout's rate, an attention's rate
        if hasattr(source, name):
            check_rate(dropout=getattr(source, name))
            setattr(target, name, getattr(source, name))


def check_exact_type(name: str, value: Any, *kinds: type) -> None:
    """Refuse what is not of one of these types itself, or is compiled, as a whole or in part."""
    for path, part in value.named_modules() if isinstance(value, nn.Module) else ():
        if part is not original(part):
            place = ".".join(filter(None, (name, path)))
            raise TypeError(f"{place} must not be compiled: give the module inside, its _orig_mod")
    if type(value) not in kinds:
        names = [f"{kind.__module__}.{kind.__name__}" for kind in (*kinds, type(value))]
        *wanted, given = [name.removeprefix("builtins.") for name in names]
        raise TypeError(f"{name} must be of type {' or '.join(wanted)}, not {given}")


def check_parts(module: nn.Module, *form: Any, compared: Collection[str] = ()) -> None:
    with torch.device("meta"):
        plan = type(module)(*form)
    for name, what, given, wanted in differences(module, plan, compared):
        if what == "sharing":
            raise ValueError("model must share the parameters that its configuration shares, and no others")
        if what != "class":
            raise ValueError(f"{what} of {name} must be {wanted} as configured, not {given}")
        if given is None:
            raise TypeError(f"{type(module).__name__} must have a part {name}")
        if not name.startswith("activation"):
            check_exact_type(name, given, type(wanted))


def _check_untied(module: nn.Module) -> None:
    if any(name != owner for name, owner in parameter_owners(module).items()):
        raise ValueError("module must not use one parameter in two places: its copies would part")


def _activation_name(function: Any) -> str:
    if type(function) is nn.ReLU:
        return "relu"
    if type(function) is nn.GELU and function.approximate == "none":
        return "gelu"
    if type(function) is nn.SiLU:
        return "silu"
    for name, known in ACTIVATIONS.items():
        if function is known:
            return name
    given = getattr(function, "__name__", function)
    raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, not {given}")


def _torch_settings(layer: Any) -> dict[str, Any]:
    attentions = [part for part in layer.modules() if isinstance(part, nn.MultiheadAttention)]
    return {
        "d_model": agreed("embed_dim", [attention.embed_dim for attention in attentions]),
        "n_heads": agreed("num_heads", [attention.num_heads for attention in attentions]),
        "d_ff": layer.linear1.out_features,
        "activation": _activation_name(layer.activation),
        "bias": layer.linear1.bias is not None,
        "norm_first": layer.norm_first,
    }


def _our_settings(layer: Any) -> dict[str, Any]:
    attentions = [part for part in layer.modules() if isinstance(part, MultiHeadAttention)]
    residuals = [part for part in layer.modules() if isinstance(part, Residual)]
    return {
        "d_model": layer.self_residual.norm.d_model,
        "n_heads": agreed("n_heads", [attention.n_heads for attention in attentions]),
        "d_ff": layer.feed_forward.w_1.out_features,
        "activation": layer.feed_forward.activation,
        "bias": layer.feed_forward.w_1.bias is not None,
        "norm_first": agreed("norm_first", [residual.norm_first for residual in residuals]),
    }


def _settings(layers: list[nn.Module]) -> dict[str, Any]:
    """The form that all `layers` have, torch's or ours, as fields of a `LayerConfig`."""
    found, small = [], LayerConfig(d_model=2, n_heads=1, d_ff=2)
    for layer in layers:
        if isinstance(layer, EncoderLayer | DecoderLayer):
            check_parts(layer, small)
            found.append(_our_settings(layer))
        else:
            check_parts(layer, small.d_model, small.n_heads, small.d_ff)
            found.append(_torch_settings(layer))
    return {name: agreed(name, [settings[name] for settings in found]) for name in found[0]}


def _layers(stack: Any, kind: type) -> list[nn.Module]:
    """The layers of a stack: at least one, and all of one kind."""
    if not len(stack.layers):
        raise ValueError("layers must hold at least one layer, but is empty")
    for number, layer in enumerate(stack.layers):
        check_exact_type(f"layers.{number}", layer, kind)
    return list(stack.layers)


_COUNTERPARTS = {
    nn.MultiheadAttention: MultiHeadAttention,
    nn.TransformerEncoderLayer: EncoderLayer,
    nn.TransformerDecoderLayer: DecoderLayer,
    nn.TransformerEncoder: Encoder,
    nn.TransformerDecoder: Decoder,
}


def _planned_ours(theirs: Any) -> nn.Module:
    """A module of ours in the form of torch's, whose parameters are yet to come."""
    kind: Any = _COUNTERPARTS[type(theirs)]
    if kind is MultiHeadAttention:
        check_parts(theirs, 2, 1)
        sizes, bias = (theirs.embed_dim, theirs.num_heads), theirs.in_proj_bias is not None
        return MultiHeadAttention(*sizes, bias=bias, kdim=theirs.kdim, vdim=theirs.vdim)
    if kind in (EncoderLayer, DecoderLayer):
        return kind(LayerConfig(**_settings([theirs])))
    encodes = kind is Encoder
    layers = _layers(theirs, nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer)
    settings = _settings(layers)
    # A configuration's vocabularies play no part in a stack.
    ours = kind(TransformerConfig(4, 4, n_layers=len(layers), **settings))
    check_exact_type("norm", theirs.norm, nn.LayerNorm, type(None))
    ours.norm = nn.Identity()
    if theirs.norm is not None:
        ours.norm = LayerNorm(settings["d_model"], bias=theirs.norm.bias is not None)
    return ours


@overload
def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> EncoderLayer: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> DecoderLayer: ...
@overload
def from_torch(module: nn.TransformerEncoder) -> Encoder: ...
@overload
def from_torch(module: nn.TransformerDecoder) -> Decoder: ...
@overload
def from_torch(module: nn.Transformer) -> tuple[Encoder, Decoder]: ...


def from_torch(module: nn.Module) -> nn.Module | tuple[Encoder, Decoder]:
    """Make a module of ours that computes what one of `torch.nn` does, with copies of its weights.

    Args:
        module: a `torch.nn.MultiheadAttention`, `TransformerEncoderLayer`,
            `TransformerDecoderLayer`, `TransformerEncoder`, `TransformerDecoder` or `Transformer`,
            with `batch_first` either way.

    Returns:
        Our `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or `Decoder`; for a
        `torch.nn.Transformer` the pair `(Encoder, Decoder)`. Ours are batch first, and True in
        their masks means *may attend*. Dropout rates, epsilons, dtype, device, mode and
        `requires_grad` are those of `module`.

    Raises:
        TypeError: `module`, or a part of it, is of another type; a subclass is another type.
        ValueError: it does what ours cannot: `add_bias_kv`, `add_zero_attn`, an activation other
            than ReLU, exact GELU and SiLU, a norm without weights, a dropout rate of 1, layers of
            different form or `batch_first`, one parameter in two places.

    Example:
        >>> theirs, x = nn.MultiheadAttention(8, num_heads=2, batch_first=True), torch.randn(1, 3, 8)
        >>> torch.allclose(from_torch(theirs)(x, x, x)[0], theirs(x, x, x)[0], atol=1e-5)
        True
    """
    check_exact_type("module", module, *_COUNTERPARTS, nn.Transformer)
    _check_untied(module)
    attentions = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    if attentions:
        agreed("batch_first", [attention.batch_first for attention in attentions])
    if isinstance(module, nn.Transformer):
        check_exact_type("encoder", module.encoder, nn.TransformerEncoder)
        check_exact_type("decoder", module.decoder, nn.TransformerDecoder)
        encoder, decoder = from_torch(module.encoder), from_torch(module.decoder)
        _settings([*encoder.layers, *decoder.layers])  # two halves of one form
        return encoder, decoder
    with torch.device("meta"):
        ours = _planned_ours(module)
    ours.train(module.training)
    for their_part, our_part in _pairs(module, ours):
        _fill(our_part, their_part)
    return ours


def _torch_layer(kind: Any, settings: dict[str, Any], batch_first: bool) -> Any:
    sizes = settings["d_model"], settings["n_heads"], settings["d_ff"]
    options = {name: settings[name] for name in ("bias", "norm_first")}
    activation = ACTIVATIONS[settings["activation"]]
    return kind(*sizes, activation=activation, batch_first=batch_first, **options)


def _planned_torch(ours: Any, batch_first: bool) -> nn.Module:
    """A module of torch's in the form of ours, whose parameters are yet to come."""
    if isinstance(ours, MultiHeadAttention):
        check_parts(ours, 2, 1)
        options: dict[str, Any] = {"bias": ours.w_q.bias is not None, "batch_first": batch_first}
        options |= {"kdim": ours.w_k.in_features, "vdim": ours.w_v.in_features}
        return nn.MultiheadAttention(ours.w_q.in_features, ours.n_heads, **options)
    encodes = isinstance(ours, Encoder | EncoderLayer)
    layer_kind: Any = nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer
    if isinstance(ours, EncoderLayer | DecoderLayer):
        return _torch_layer(layer_kind, _settings([ours]), batch_first)
    layers = _layers(ours, EncoderLayer if encodes else DecoderLayer)
    settings = _settings(layers)
    layer = _torch_layer(layer_kind, settings, batch_first)
    check_exact_type("norm", ours.norm, LayerNorm, nn.Identity)
    norm = None
    if isinstance(ours.norm, LayerNorm):
        norm = nn.LayerNorm(settings["d_model"], bias=ours.norm.bias is not None)
    if encodes:
        return nn.TransformerEncoder(layer, len(layers), norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(layer, len(layers), norm)


@overload
def to_torch(module: MultiHeadAttention, batch_first: bool = True) -> nn.MultiheadAttention: ...
@overload
def to_torch(module: EncoderLayer, batch_first: bool = True) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch(module: DecoderLayer, batch_first: bool = True) -> nn.TransformerDecoderLayer: ...
@overload
def to_torch(module: Encoder, batch_first: bool = True) -> nn.TransformerEncoder: ...
@overload
def to_torch(module: Decoder, batch_first: bool = True) -> nn.TransformerDecoder: ...
@overload
def to_torch(module: tuple[Encoder, Decoder], batch_first: bool = True) -> nn.Transformer: ...


def to_torch(module: nn.Module | tuple[Encoder, Decoder], batch_first: bool = True) -> nn.Module:
    """Make a module of `torch.nn` that computes what one of ours does, with copies of its weights.

    Args:
        module: a `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or `Decoder`, or a
            pair `(Encoder, Decoder)`.
        batch_first: whether inputs and output of the result are `[batch, time, d_model]`, as ours
            are, or `[time, batch, d_model]`.

    Returns:
        A `torch.nn.MultiheadAttention`, `TransformerEncoderLayer`, `TransformerDecoderLayer`,
        `TransformerEncoder` or `TransformerDecoder`; for a pair a `torch.nn.Transformer`. True in
        its masks means *must not attend*. Dropout rates, epsilons, dtype, device, mode and
        `requires_grad` are those of `module`, place by place.

    Raises:
        TypeError: `module`, or a part of it, is of another type; a subclass is another type.
        ValueError: the layers differ in form, one parameter is used in two places, or a part of
            what torch keeps as one parameter is frozen.
    """
    if isinstance(module, tuple):
        return _pair_to_torch(module, batch_first)
    check_exact_type("module", module, *_COUNTERPARTS.values(), tuple)
    check_exact_type("batch_first", batch_first, bool)
    _check_untied(module)
    with torch.device("meta"):
        theirs = _planned_torch(module, batch_first)
    theirs.train(module.training)
    for their_part, our_part in _pairs(theirs, module):
        _fill(their_part, our_part)
    return theirs


def _pair_to_torch(pair: tuple[Encoder, Decoder], batch_first: bool) -> nn.Transformer:
    if [type(stack) for stack in pair] != [Encoder, Decoder]:
        given = ", ".join(type(stack).__name__ for stack in pair)
        raise TypeError(f"module must be a pair (Encoder, Decoder), not ({given})")
    encoder, decoder = pair
    _check_untied(nn.ModuleList(pair))
    stacks = to_torch(encoder, batch_first), to_torch(decoder, batch_first)
    settings = _settings([*encoder.layers, *decoder.layers])  # two halves of one form
    empty: dict[str, Any] = {"custom_encoder": nn.Identity(), "custom_decoder": nn.Identity()}
    d_model, n_heads = settings["d_model"], settings["n_heads"]
    theirs = nn.Transformer(d_model, n_heads, batch_first=batch_first, **empty)
    theirs.encoder, theirs.decoder = stacks
    theirs.training = encoder.training or decoder.training
    return theirs
