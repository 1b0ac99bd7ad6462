"""transformer.interop, from book/15-interchange.ipynb, "Interchange".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "from_torch",
    "to_torch",
    "refusing_damage",
    "ForeignFolder",
    "fitted_weights",
    "from_marian",
    "to_marian",
    "MarianTranslator",
    "to_ctranslate2",
    "CTranslate2Translator",
    "ENGINES",
    "load_translator",
    "to_onnx",
]


# %% book/15-interchange.ipynb · Names side by side · [parts]
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from transformer.attention import KeysAndValues, KeyValueCache, MultiHeadAttention, Projection
from transformer.decoding import length_norm
from transformer.embedding import sinusoidal_encoding
from transformer.fast import parameter_owners
from transformer.files import CheckpointError, read_record, regular_file
from transformer.layers import (
    ACTIVATIONS,
    DecoderLayer,
    EncoderLayer,
    LayerConfig,
    LayerNorm,
    Residual,
)
from transformer.model import Decoder, Encoder, Transformer, TransformerConfig
from transformer.text import UNK_ID
from transformer.training import evaluating
from transformer.translation import Translator, pretrained_folder, translate_ids
from transformer.validation import (
    check_choice,
    check_device,
    check_number,
    check_rate,
    check_size,
    check_type,
    optional_import,
)

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


# %% book/15-interchange.ipynb · Names side by side · [pairs]
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


# %% book/15-interchange.ipynb · Three matrices in one · [stacking]
def _one(name: str, values: list[Any]) -> Any:
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
    if not _one("bias of w_q, w_k and w_v", [part is not None for part in parts]):
        return None
    trained = _one("requires_grad of w_q, w_k and w_v", [part.requires_grad for part in parts])
    return nn.Parameter(torch.cat([part.detach() for part in parts]), trained)


# %% book/15-interchange.ipynb · Build first, fill afterward · [placing]
def _place(target: nn.Module, name: str, value: nn.Parameter | None) -> None:
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
    _place(target, "weight", source.weight)
    _place(target, "bias", source.bias)


# %% book/15-interchange.ipynb · Build first, fill afterward · [attention-copies]
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
        _place(linear, "weight", weight)
        _place(linear, "bias", bias)
    _place_both(ours.w_o, theirs.out_proj)


def _attention_to_torch(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    linears = [ours.w_q, ours.w_k, ours.w_v]
    if theirs.in_proj_weight is not None:
        _place(theirs, "in_proj_weight", _stack([linear.weight for linear in linears]))
    else:
        for letter, linear in zip("qkv", linears, strict=True):
            _place(theirs, f"{letter}_proj_weight", linear.weight)
    _place(theirs, "in_proj_bias", _stack([linear.bias for linear in linears]))
    _place_both(theirs.out_proj, ours.w_o)


# %% book/15-interchange.ipynb · Build first, fill afterward · [filling]
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


# %% book/15-interchange.ipynb · What is refused · [refusing]
def _check_kind(name: str, value: Any, *kinds: type) -> None:
    if type(value) not in kinds:
        names = [f"{kind.__module__}.{kind.__name__}" for kind in (*kinds, type(value))]
        *wanted, given = [name.removeprefix("builtins.") for name in names]
        raise TypeError(f"{name} must be of type {' or '.join(wanted)}, not {given}")


def _check_parts(module: nn.Module, *form: Any) -> nn.Module:
    with torch.device("meta"):
        plan: nn.Module = type(module)(*form)
    kinds = {name: type(part) for name, part in plan.named_modules()}
    for name, part in module.named_modules(remove_duplicate=False):
        if not name.startswith("activation"):
            _check_kind(name, part, kinds.pop(name, type(None)))
    if kinds:
        raise TypeError(f"{type(module).__name__} must have a part {min(kinds)}")
    return plan


def _check_untied(module: nn.Module) -> None:
    parameters = [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise ValueError("module must not use one parameter in two places: its copies would part")


# %% book/15-interchange.ipynb · One form for all layers · [settings]
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
        "d_model": _one("embed_dim", [attention.embed_dim for attention in attentions]),
        "n_heads": _one("num_heads", [attention.num_heads for attention in attentions]),
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
        "n_heads": _one("n_heads", [attention.n_heads for attention in attentions]),
        "d_ff": layer.feed_forward.w_1.out_features,
        "activation": layer.feed_forward.activation,
        "bias": layer.feed_forward.w_1.bias is not None,
        "norm_first": _one("norm_first", [residual.norm_first for residual in residuals]),
    }


# %% book/15-interchange.ipynb · One form for all layers · [common-settings]
def _settings(layers: list[nn.Module]) -> dict[str, Any]:
    """The form that all `layers` have, torch's or ours, as fields of a `LayerConfig`."""
    found, small = [], LayerConfig(d_model=2, n_heads=1, d_ff=2)
    for layer in layers:
        if isinstance(layer, EncoderLayer | DecoderLayer):
            _check_parts(layer, small)
            found.append(_our_settings(layer))
        else:
            _check_parts(layer, small.d_model, small.n_heads, small.d_ff)
            found.append(_torch_settings(layer))
    return {name: _one(name, [settings[name] for settings in found]) for name in found[0]}


def _layers(stack: Any, kind: type) -> list[nn.Module]:
    """The layers of a stack: at least one, and all of one kind."""
    if not len(stack.layers):
        raise ValueError("layers must hold at least one layer, but is empty")
    for number, layer in enumerate(stack.layers):
        _check_kind(f"layers.{number}", layer, kind)
    return list(stack.layers)


# %% book/15-interchange.ipynb · From torch.nn, and back · [planned-ours]
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
        _check_parts(theirs, 2, 1)
        sizes, bias = (theirs.embed_dim, theirs.num_heads), theirs.in_proj_bias is not None
        return MultiHeadAttention(*sizes, bias=bias, kdim=theirs.kdim, vdim=theirs.vdim)
    if kind in (EncoderLayer, DecoderLayer):
        return kind(LayerConfig(**_settings([theirs])))
    encodes = kind is Encoder
    layers = _layers(theirs, nn.TransformerEncoderLayer if encodes else nn.TransformerDecoderLayer)
    settings = _settings(layers)
    # A configuration's vocabularies play no part in a stack.
    ours = kind(TransformerConfig(4, 4, n_layers=len(layers), **settings))
    _check_kind("norm", theirs.norm, nn.LayerNorm, type(None))
    ours.norm = nn.Identity()
    if theirs.norm is not None:
        ours.norm = LayerNorm(settings["d_model"], bias=theirs.norm.bias is not None)
    return ours


# %% book/15-interchange.ipynb · From torch.nn, and back · [from-torch]
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
    _check_kind("module", module, *_COUNTERPARTS, nn.Transformer)
    _check_untied(module)
    attentions = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    if attentions:
        _one("batch_first", [attention.batch_first for attention in attentions])
    if isinstance(module, nn.Transformer):
        _check_kind("encoder", module.encoder, nn.TransformerEncoder)
        _check_kind("decoder", module.decoder, nn.TransformerDecoder)
        encoder, decoder = from_torch(module.encoder), from_torch(module.decoder)
        _settings([*encoder.layers, *decoder.layers])  # two halves of one form
        return encoder, decoder
    with torch.device("meta"):
        ours = _planned_ours(module)
    ours.train(module.training)
    for their_part, our_part in _pairs(module, ours):
        _fill(our_part, their_part)
    return ours


# %% book/15-interchange.ipynb · From torch.nn, and back · [planned-torch]
def _torch_layer(kind: Any, settings: dict[str, Any], batch_first: bool) -> Any:
    sizes = settings["d_model"], settings["n_heads"], settings["d_ff"]
    options = {name: settings[name] for name in ("bias", "norm_first")}
    activation = ACTIVATIONS[settings["activation"]]
    return kind(*sizes, activation=activation, batch_first=batch_first, **options)


def _planned_torch(ours: Any, batch_first: bool) -> nn.Module:
    """A module of torch's in the form of ours, whose parameters are yet to come."""
    if isinstance(ours, MultiHeadAttention):
        _check_parts(ours, 2, 1)
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
    _check_kind("norm", ours.norm, LayerNorm, nn.Identity)
    norm = None
    if isinstance(ours.norm, LayerNorm):
        norm = nn.LayerNorm(settings["d_model"], bias=ours.norm.bias is not None)
    if encodes:
        return nn.TransformerEncoder(layer, len(layers), norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(layer, len(layers), norm)


# %% book/15-interchange.ipynb · From torch.nn, and back · [to-torch]
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
    _check_kind("module", module, *_COUNTERPARTS.values(), tuple)
    _check_kind("batch_first", batch_first, bool)
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


# %% book/15-interchange.ipynb · Features have no order · [feature-order]
_WRITERS = ("w_o", "w_2", "norm")  # what they return has the features of the residual stream


def _reordered(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Our weights, for vectors whose feature i was feature `order[i]` before."""

    def moved(name: str, value: Tensor) -> Tensor:
        if name.split(".")[-2] in _WRITERS:
            return value[order]
        return value[:, order] if value.dim() == 2 else value  # a bias inside a head or a network

    return {name: moved(name, value) for name, value in weights.items()}


def _sines_first(d_model: int) -> Tensor:
    """For each of our features, its place where all sines come first, and then all cosines."""
    half = (d_model + 1) // 2
    return torch.arange(2 * half).view(2, half).T.flatten()[:d_model]


# %% book/15-interchange.ipynb · Names and settings · [marian-parts]
_MARIAN_PARTS = {
    "self_attn": "self_attention",
    "encoder_attn": "cross_attention",
    "q_proj": "w_q",
    "k_proj": "w_k",
    "v_proj": "w_v",
    "out_proj": "w_o",
    "fc1": "feed_forward.w_1",
    "fc2": "feed_forward.w_2",
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "final_layer_norm": "feed_residual.norm",
}
_MARIAN_TABLES = {
    "model.shared.weight": "src_embedding.weight",  # where all are one
    "model.encoder.embed_tokens.weight": "src_embedding.weight",
    "model.decoder.embed_tokens.weight": "tgt_embedding.weight",
    "lm_head.weight": "output.weight",
}


def _marian_names(theirs: Collection[str]) -> dict[str, str]:
    """Of Marian's weights, those that a `Transformer` has as well, each with our name."""
    names = {name: ours for name, ours in _MARIAN_TABLES.items() if name in theirs}
    for name in theirs:
        if ".layers." in name:
            path = name.removeprefix("model.").split(".")
            names[name] = ".".join(_MARIAN_PARTS.get(part, part) for part in path)
    return names


# %% book/15-interchange.ipynb · Names and settings · [marian-config]
_MARIAN_FIELDS = {
    "vocab_size": "src_vocab_size",
    "decoder_vocab_size": "tgt_vocab_size",
    "d_model": "d_model",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "share_encoder_decoder_embeddings": "tie_embeddings",
    "pad_token_id": "pad_id",
    "decoder_start_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "max_position_embeddings": "max_length",
}
_MARIAN_DEFAULTS = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}  # in older files
_MARIAN_SIZES = {"layers": "n_layers", "attention_heads": "n_heads", "ffn_dim": "d_ff"}  # of a stack
_MARIAN_ACTIVATIONS = {name: name for name in ACTIVATIONS} | {"swish": "silu"}


def _config_from_marian(theirs: Mapping[str, Any]) -> TransformerConfig:
    check_choice(["marian"], model_type=theirs.get("model_type"))
    check_choice([["MarianMTModel"], None], architectures=theirs.get("architectures"))
    theirs = _MARIAN_DEFAULTS | dict(theirs)
    if theirs.get("decoder_vocab_size") is None:
        theirs["decoder_vocab_size"] = theirs["vocab_size"]
    check_choice([True], scale_embedding=theirs["scale_embedding"])
    check_choice([0], encoder_layerdrop=theirs["encoder_layerdrop"])
    check_choice([0], decoder_layerdrop=theirs["decoder_layerdrop"])
    check_choice(list(_MARIAN_ACTIVATIONS), activation_function=theirs["activation_function"])

    def same(*names: str) -> Any:
        return _one(" and ".join(names), [theirs[name] for name in names])

    same("share_encoder_decoder_embeddings", "tie_word_embeddings")
    settings = {field: theirs[name] for name, field in _MARIAN_FIELDS.items()}
    for name, field in _MARIAN_SIZES.items():
        settings[field] = same(f"encoder_{name}", f"decoder_{name}")
    return TransformerConfig(**settings, activation=_MARIAN_ACTIVATIONS[theirs["activation_function"]])


def _config_to_marian(ours: TransformerConfig) -> dict[str, Any]:
    check_choice([False], norm_first=ours.norm_first, final_norm=ours.has_final_norm)
    check_choice([True], bias=ours.bias)
    settings = {name: getattr(ours, field) for name, field in _MARIAN_FIELDS.items()}
    for name, field in _MARIAN_SIZES.items():
        settings |= dict.fromkeys((f"encoder_{name}", f"decoder_{name}"), getattr(ours, field))
    settings |= {"activation_function": ours.activation, "tie_word_embeddings": ours.tie_embeddings}
    return settings | {"scale_embedding": True, "forced_eos_token_id": None}


# %% book/15-interchange.ipynb · Names and settings · [as-configured]
_SETTINGS = "p", "dropout", "activation_dropout", "eps", "n_heads", "num_heads", "norm_first"


def _check_as_configured(model: Any) -> None:
    """Refuse a whole model that is not as its configuration makes it, or not finite."""
    plan = _check_parts(model, model.config)
    for name, part in model.named_modules():
        for setting in _SETTINGS:
            given, wanted = (getattr(one, setting, None) for one in (part, plan.get_submodule(name)))
            if given != wanted and not isinstance(given, nn.Module):
                raise ValueError(f"{setting} of {name} must be {wanted} as configured, not {given}")
    if not parameter_owners(model).items() >= parameter_owners(plan).items():
        raise ValueError("model must share the parameters that its configuration shares, and no others")
    _check_finite({name: x for name, x in model.named_parameters() if name != "output.bias"})


def _place_all(target: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill a whole model that was built on the meta device; shared parameters stay shared."""
    for name, owner in parameter_owners(target).items():
        path, _, leaf = name.rpartition(".")
        part = target.get_submodule(path)
        if name == owner:
            _place(part, leaf, nn.Parameter(weights[name], getattr(part, leaf).requires_grad))
        else:
            setattr(part, leaf, target.get_parameter(owner))


# %% book/15-interchange.ipynb · A folder from a stranger · [foreign-folder]
_LARGEST_RECORD = 1 << 24  # bytes of a configuration, an index or a vocabulary
_FLOATS = ("F64", "F32", "F16", "BF16")  # as the head of a file calls them


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Turn whatever a stranger's file makes a program raise into a `CheckpointError` of one line.

    Args:
        path: what the message names. Errors of the system and of a missing library stay what they are.
    """
    try:
        yield
    except (CheckpointError, OSError, ImportError, MemoryError):
        raise
    except Exception as error:  # some twenty types, by the library that meets the damage
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if not isinstance(error, ValueError | TypeError | KeyError):
            said = f"{type(error).__name__}: {said}"
        raise CheckpointError(f"{path} cannot be used: {' '.join(said.split()):.300}") from error


def _int64(digits: str) -> int:
    if not -(2**63) <= (number := int(digits)) < 2**63:  # which no tensor could hold
        raise ValueError(f"{digits:.30} does not fit into 64 bits")
    return number


class ForeignFolder:
    """A model as others publish it: `config.json`, and safetensors files, of which the heads are read.

    Where there is an index, its files are read, and otherwise `model.safetensors`. A file must be
    among those that the folder lists, so that no path leads out of it. Nothing is executed.

    Args:
        path: of the folder.

    Raises:
        OSError: there is no such folder, or a file is missing; the message names it.
        CheckpointError: a file is damaged, or they do not belong together; the message names it.
        ImportError: safetensors is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.listed = {entry.name for entry in self.path.iterdir()}
        self.settings = self.record("config.json")
        self.shapes: dict[str, list[int]] = {}  # of the tensors, by name
        self._opened: dict[str, Any] = {}  # by the tensor's name
        index = "model.safetensors.index.json"
        self._read_heads(self._indexed(index) if index in self.listed else None)

    def record(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds; errors as above."""
        path = regular_file(self.path / name)
        with refusing_damage(path):
            if path.stat().st_size > _LARGEST_RECORD:
                raise ValueError(f"it has over {_LARGEST_RECORD:,} bytes")
            record: dict[str, Any] = json.loads(path.read_text(encoding="utf8"), parse_int=_int64)
            check_type(dict, record=record)
        return record

    def weights(self) -> dict[str, Tensor]:
        """All tensors, in the dtypes that they have in the files."""
        return {name: opened.get_tensor(name) for name, opened in self._opened.items()}

    def _indexed(self, index: str) -> dict[str, str]:
        with refusing_damage(self.path / index):
            places = self.record(index)["weight_map"]
            check_type(dict, weight_map=places)
            for file in places.values():
                if not isinstance(file, str) or file not in self.listed:
                    raise ValueError(f"the folder lists no file {file!r:.80}")
            if "model.safetensors" in self.listed - set(places.values()):
                raise ValueError("it does not name model.safetensors, which is there as well")
        return dict(places)

    def _read_heads(self, places: dict[str, str] | None) -> None:
        safetensors = optional_import("safetensors")
        if places is None and "model.safetensors" not in self.listed:
            raise FileNotFoundError(
                f"{self.path} holds neither model.safetensors nor its index; where it has the weights in "
                "another format, load it with transformers, and save it with save_pretrained"
            )
        for file in ["model.safetensors"] if places is None else sorted(set(places.values())):
            path = regular_file(self.path / file)
            with refusing_damage(path):
                opened = safetensors.safe_open(path, "pt")
                for name in opened.keys():
                    if places is not None and places.get(name) != file:
                        raise ValueError(f"it holds {name}, which the index does not put there")
                    head = opened.get_slice(name)
                    check_choice(_FLOATS, **{f"dtype of {name}": head.get_dtype()})
                    self.shapes[name], self._opened[name] = head.get_shape(), opened
        if missing := sorted((places or {}).keys() - self.shapes.keys()):
            raise CheckpointError(f"{self.path} lacks {missing[0]}, which its index names")


# %% book/15-interchange.ipynb · A folder from a stranger · [fitted-weights]
_LAYER = re.compile(r"(?<=layers\.)\d+")


def _check_finite(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of which one is infinite or not a number.

    Raises:
        ValueError: by the name of the first tensor that holds it.
    """
    for name, x in weights.items():
        if x.numel() and not all(math.isfinite(bound) for bound in torch.aminmax(x.detach())):
            raise ValueError(f"{name} holds numbers that are not finite")


def fitted_weights(
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
    names: Mapping[str, str],
    plan: nn.Module,
    n_layers: int,
    extras: Mapping[str, Sequence[int]],
) -> dict[str, Tensor]:
    """The weights of a model from elsewhere under our names, read when all names and shapes fit.

    Args:
        shapes: of their tensors.
        read: returns the tensors.
        names: for each of theirs, our name.
        plan: our model with a single layer in each stack, on the meta device.
        n_layers: how many layers the model has.
        extras: shapes of tensors that are no parameters of ours, and may be missing.

    Returns:
        a tensor for each parameter, a shared one under the first of its names; extras under their own.

    Raises:
        ValueError: a tensor is missing, is one too many, has another shape, or numbers that are not
            finite; or two that are one parameter of ours differ. The message names it.
    """
    owners, named = parameter_owners(plan), {**names, **{name: name for name in extras}}
    ours = {name: owners.get(named.get(name, ""), named.get(name, "")) for name in shapes}
    found = {number for name in ours.values() for number in _LAYER.findall(name)}
    if len(found) != n_layers:
        raise ValueError(f"the configuration has {n_layers:,} layers, and the weights {len(found):,}")
    wanted = {name: list(shape) for name, shape in extras.items()} | {
        _LAYER.sub(str(n), name): list(x.shape)
        for name, x in plan.named_parameters()
        for n in range(n_layers if _LAYER.search(name) else 1)
    }
    for name, own in ours.items():
        if own not in wanted:
            raise ValueError(f"{name} has no place in this model")
        if wanted[own] != list(shapes[name]):
            raise ValueError(f"{name} must have shape {wanted[own]}, not {list(shapes[name])}")
    if missing := sorted(wanted.keys() - extras.keys() - set(ours.values())):
        raise ValueError(f"no tensor stands for {missing[0]} of ours")
    theirs = read()
    _check_finite({name: theirs[name] for name in ours})
    first: dict[str, str] = {}
    for name, own in ours.items():
        if not torch.equal(theirs[first.setdefault(own, name)], theirs[name]):
            raise ValueError(f"{name} must equal {first[own]}, as both are one parameter here")
    return {own: theirs[name] for own, name in first.items()}


# %% book/15-interchange.ipynb · A folder from a stranger · [whole-folder]
@contextmanager
def _whole_folder(
    folder: str | Path, replaced: Collection[str], ours: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Path]:
    """An empty folder to write in, whose files are moved to `folder` at the end, if nothing fails.

    Args:
        folder: where the files belong; made if missing.
        replaced: patterns of the files that an earlier export has left there.
        ours: whether such an export wrote the `config.json` with these settings.

    Raises:
        ValueError: the folder holds another model.
    """
    folder = Path(folder).absolute()
    for name in ("SHA256SUMS", "config.json"):
        path = folder / name
        if path.exists() and not (path.suffix == ".json" and ours(read_record(path))):
            raise ValueError(f"folder must not hold another model, but {path} belongs to one: choose another")
    at = folder if folder.exists() else folder.parent
    at.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=at) as part:
        whole = Path(part, "whole")
        whole.mkdir()
        yield whole
        if at != folder:
            os.replace(whole, folder)
            return
        for old in [path for pattern in replaced for path in folder.glob(pattern)]:
            old.unlink()  # so that, cut off here, files are missing, and no old one stands beside a new one
        for new in sorted(whole.iterdir()):
            os.replace(new, folder / new.name)


# %% book/15-interchange.ipynb · There and back · [from-marian]
def from_marian(model: Any) -> Transformer:
    """Make a `Transformer` that computes what Hugging Face's Marian model does, with copies of its weights.

    The features of its vectors are in our order, so that positions are our own. A bias of the logits
    that is not zero becomes `output.bias`, and is minus infinity for tokens that `generate` was told
    never to choose. Everything else that their configuration says about a search is left out.

    Args:
        model: a `transformers.MarianMTModel`, or the path of a folder that holds one as safetensors,
            for which `transformers` is not needed.

    Returns:
        A `Transformer` of the same dtype, device and mode; that of a folder is in evaluation mode.
        Its padding and start token may be the same.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it does what ours cannot: stacks of different size, an activation other than
            ReLU, exact GELU and SiLU, embeddings that are not scaled or shared in part, dropped
            layers, learned positions; or it is not as its configuration says, or not finite.
        OSError, CheckpointError: as in `ForeignFolder`; what is refused in a folder is a
            `CheckpointError` as well.
        ImportError: transformers or safetensors is not installed.
    """
    if isinstance(model, str | Path):
        folder = ForeignFolder(model)
        with refusing_damage(folder.path):
            named = "generation_config.json" in folder.listed  # older folders say it all in one file
            search = folder.record("generation_config.json") if named else folder.settings
            banned = search.get("bad_words_ids")
            return _from_marian(folder.settings, banned, folder.shapes, folder.weights).eval()
    _check_kind("model", model, optional_import("transformers").MarianMTModel)
    settings, banned = model.config.to_dict(), model.generation_config.bad_words_ids
    _config_from_marian(settings)
    _check_as_configured(model)
    weights = model.state_dict()
    shapes = {name: x.shape for name, x in weights.items()}
    return _from_marian(settings, banned, shapes, lambda: weights).train(model.training)


_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed


def _from_marian(
    settings: Mapping[str, Any],
    banned: Any,
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
) -> Transformer:
    config = _config_from_marian(settings)
    length, d_model = config.max_length, config.d_model
    if length * d_model > _LARGEST_TABLE:
        asked = f"{length:,} positions of {d_model:,} features"
        raise ValueError(f"{asked} are more than {_LARGEST_TABLE:,} numbers")
    with torch.device("meta"):
        plan = Transformer(replace(config, n_layers=1))
    tables = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    extras = {"final_logits_bias": [1, config.tgt_vocab_size], **dict.fromkeys(tables, [length, d_model])}
    weights = fitted_weights(shapes, read, _marian_names(shapes), plan, config.n_layers, extras)
    given, order = {name: weights.pop(name) for name in extras if name in weights}, _sines_first(d_model)
    for name in given.keys() & tables:
        _check_sinusoids(given[name][:, order])
    with torch.device("meta"):
        ours = Transformer(config)
    _place_all(ours, _reordered(weights, order))
    bias = torch.zeros_like(ours.output.weight[:, 0])
    if "final_logits_bias" in given:
        bias.copy_(given["final_logits_bias"][0])
    bias[_banned(banned, len(bias))] = -torch.inf
    if bias.any():
        ours.output.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return ours.to(ours.output.weight)


def _check_sinusoids(table: Tensor) -> None:
    length, d_model = table.shape
    sinusoids = sinusoidal_encoding(length, d_model, table.dtype).to(table.device)
    rounding = max(1e-6, torch.finfo(table.dtype).eps)  # theirs is in float32, whatever the model is in
    if not torch.allclose(table, sinusoids, rtol=0, atol=rounding):
        raise ValueError("embed_positions must hold sinusoids: first all sines, then all cosines")


def _banned(bad_words_ids: Any, end: int) -> list[int]:
    check_type((list, type(None)), bad_words_ids=bad_words_ids)
    banned = bad_words_ids or []
    if any(not isinstance(tokens, list) or len(tokens) != 1 for tokens in banned):
        raise ValueError(f"bad_words_ids must hold single tokens, not {banned}")
    found = [token for (token,) in banned]
    check_size(minimum=0, **{f"bad_words_ids[{n}]": token for n, token in enumerate(found)})
    if found and max(found) >= end:
        raise ValueError(f"bad_words_ids must lie in [0, {end}), but hold {max(found)}")
    return found


# %% book/15-interchange.ipynb · There and back · [to-marian]
def to_marian(model: Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Marian model with the weights of ours.

    Args:
        model: a post-norm `Transformer` without norms on top, with biases. Its output may have a
            bias, in which minus infinity becomes a token that `generate` never chooses.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is of another form, not as its configuration says, or not finite; or `folder`
            holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: transformers is not installed.
    """
    transformers = optional_import("transformers")
    _check_kind("model", model, Transformer)
    settings = transformers.MarianConfig(**_config_to_marian(model.config))
    _check_as_configured(model)
    with torch.device("meta"):
        theirs = transformers.MarianMTModel(settings)
    weights, order = model.state_dict(), _sines_first(model.config.d_model).argsort()
    names = _marian_names(theirs.state_dict())
    moved = _reordered({name: weights[name] for name in names.values()}, order)
    table = model.positions.table[:, order]
    positions = {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
    _place_all(theirs, {name: moved[names[name]] for name in names} | positions)
    bias = weights.get("output.bias", torch.zeros_like(model.output.weight[:, 0]))
    banned = bias == -torch.inf
    theirs.final_logits_bias = bias.masked_fill(banned, 0.0)[None]
    theirs.generation_config.bad_words_ids = banned.nonzero().tolist() or None
    theirs.generation_config.max_length = model.config.max_length + 1  # theirs counts the start token
    written = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
    with _whole_folder(folder, written, lambda found: found.get("model_type") == "marian") as part:
        theirs.save_pretrained(part)


# %% book/15-interchange.ipynb · There and back · [marian-tokenizer]
def _marian_tokenizer(folder: ForeignFolder, config: TransformerConfig) -> Any:
    """The tokenizer of a Marian model; its class is built from these files, whatever others may say."""
    told = "tokenizer_config.json"
    told_of = folder.record(told) if told in folder.listed else {}
    used = ("source_lang", "target_lang", "separate_vocabs")
    options = {name: told_of[name] for name in used if name in told_of}
    files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    sizes = {"vocab.json": config.src_vocab_size}
    if options.get("separate_vocabs"):
        files["target_vocab_file"], sizes["target_vocab.json"] = "target_vocab.json", config.tgt_vocab_size
    for name in files.values():
        if not regular_file(folder.path / name).exists():
            raise FileNotFoundError(f"{folder.path / name} is missing, which Marian's tokenizer needs")
    for name, size in sizes.items():
        with refusing_damage(folder.path / name):
            _check_words(folder.record(name), size, config)
    with refusing_damage(folder.path):
        paths = {name: str(folder.path / file) for name, file in files.items()}
        return optional_import("transformers").MarianTokenizer(**paths, **options)


def _check_words(words: Mapping[str, Any], size: int, config: TransformerConfig) -> None:
    for word, token in words.items():
        check_size(minimum=0, **{f"number of {word!r:.40}": token})
    if len(set(words.values())) < len(words) or max(words.values(), default=size) >= size:
        raise ValueError(f"its words must have different numbers below {size}, as many as the model has")
    for word, token in {"</s>": config.eos_id, "<pad>": config.pad_id}.items():
        check_choice([token], **{f"number of {word!r}": words.get(word)})
    words["<unk>"]


# %% book/15-interchange.ipynb · There and back · [marian-translator]
class MarianTranslator:
    """A Marian model of Hugging Face with its vocabulary: sentences in, sentences out.

    Args:
        folder: of the model and its tokenizer.
        device: to translate on.

    Raises:
        OSError, CheckpointError: as in `from_marian`; or a file of the vocabulary is missing, is
            damaged, or does not fit the model.
        ValueError: there is no such device.
        ImportError: transformers or sentencepiece is not installed.
    """

    model: Transformer

    def __init__(self, folder: str | Path, device: torch.device | str = "cpu") -> None:
        optional_import("sentencepiece")  # which the tokenizer needs
        optional_import("transformers")
        self.model = from_marian(folder).to(check_device(device))
        self._tokenizer = _marian_tokenizer(ForeignFolder(folder), self.model.config)

    def translate(
        self, sentences: Sequence[str], beam_size: int = 4, length_penalty: float = 0.6
    ) -> list[str]:
        """Translate sentences; arguments and errors are those of `Translator.translate_tokenized`."""
        longest, sources = self.model.config.max_length, []
        for number, sentence in enumerate(sentences, start=1):
            *ids, end = self._tokenizer(sentence).input_ids
            if len(ids) >= longest:
                warnings.warn(f"sentence {number} is cut to its first {longest - 1} tokens", stacklevel=2)
            sources.append([*ids[: longest - 1], end])
        found = translate_ids(self.model, sources, beam_size, length_penalty)
        return list(self._tokenizer.batch_decode(found, skip_special_tokens=True))

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence, the end token included."""
        return len(self._tokenizer(sentence).input_ids)


# %% book/15-interchange.ipynb · CTranslate2 · [ctranslate2-slots]
def _array(*parts: Tensor) -> Any:
    return torch.cat([part.detach() for part in parts]).to("cpu", torch.float32).numpy()


def _fill_linear(place: Any, *layers: nn.Linear) -> None:
    """Put linear layers that read the same vectors on top of one another."""
    place.weight = _array(*(layer.weight for layer in layers))
    if layers[0].bias is not None:
        place.bias = _array(*(layer.bias for layer in layers))


def _fill_norm(place: Any, norm: LayerNorm) -> None:
    place.gamma = _array(norm.weight)
    place.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _fill_stack(place: Any, stack: Encoder | Decoder) -> None:
    """Fill the layers of a stack in the engine's specification, and the norm on top."""
    layers: Any = stack.layers
    for spot, layer in zip(place.layer, layers, strict=True):
        own = layer.self_attention
        _fill_linear(spot.self_attention.linear[0], own.w_q, own.w_k, own.w_v)
        _fill_linear(spot.self_attention.linear[1], own.w_o)
        _fill_norm(spot.self_attention.layer_norm, layer.self_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross = layer.cross_attention
            _fill_linear(spot.attention.linear[0], cross.w_q)
            _fill_linear(spot.attention.linear[1], cross.w_k, cross.w_v)
            _fill_linear(spot.attention.linear[2], cross.w_o)
            _fill_norm(spot.attention.layer_norm, layer.cross_residual.norm)
        _fill_linear(spot.ffn.linear_0, layer.feed_forward.w_1)
        _fill_linear(spot.ffn.linear_1, layer.feed_forward.w_2)
        _fill_norm(spot.ffn.layer_norm, layer.feed_residual.norm)
    if isinstance(stack.norm, LayerNorm):
        _fill_norm(place.layer_norm, stack.norm)


# %% book/15-interchange.ipynb · CTranslate2 · [to-ctranslate2]
_CTRANSLATE2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def to_ctranslate2(
    model: Transformer | Translator, folder: str | Path, quantization: str | None = None
) -> None:
    """Write a folder from which `ctranslate2.Translator` translates with the weights of ours.

    Args:
        model: a `Translator`, whose subwords become the engine's tokens and which adds an end token
            to each source; or a `Transformer`, whose tokens are then their numbers as strings.
        folder: where `model.bin`, `config.json` and the vocabulary are written. The engine's
            `max_decoding_length` must not exceed our `max_length`, and its `min_decoding_length` has
            to be set to 0, or no translation is empty. A translator's `config.json` says how texts
            are to be prepared, which the engine leaves to whoever calls it.
        quantization: how weights are stored, such as `"int8"` or `"float16"`; `None` for float32.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is not as its configuration says, or not finite; the engine knows no such
            `quantization`; or `folder` holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: ctranslate2 is not installed.
    """
    specs = optional_import("ctranslate2.specs")
    translates = isinstance(model, Translator)
    plain = model.model if isinstance(model, Translator) else model
    _check_kind("model", plain, Transformer)
    _check_as_configured(plain)
    config = plain.config
    spec = specs.TransformerSpec.from_config(
        config.n_layers,
        config.n_heads,
        no_final_norm=not config.has_final_norm,
        activation=specs.Activation[_CTRANSLATE2_ACTIVATIONS[config.activation]],
    )
    spec.encoder.embeddings[0].weight = _array(plain.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(plain.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, plain.output)
    table = sinusoidal_encoding(config.max_length, config.d_model, torch.float32).numpy()
    for place, stack in ((spec.encoder, plain.encoder), (spec.decoder, plain.decoder)):
        place.position_encodings.encodings = table
        place.pre_norm = config.norm_first  # only now, because with False it has no place for a final norm
        _fill_stack(place, stack)
    numbers = [str(token) for token in range(max(config.src_vocab_size, config.tgt_vocab_size))]
    words = model.vocabulary.pieces if isinstance(model, Translator) else numbers
    spec.register_source_vocabulary(words[: config.src_vocab_size])
    spec.register_target_vocabulary(words[: config.tgt_vocab_size])
    spec.config.unk_token = words[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = words[config.bos_id]
    spec.config.eos_token, spec.config.add_source_eos = words[config.eos_id], translates
    if isinstance(model, Translator):
        spec.config.add_attribute("preparation", vars(model.preparation))
    spec.validate()
    spec.optimize(quantization)
    written = ("config.json", "model.bin", "*_vocabulary.*")
    with _whole_folder(folder, written, lambda found: "add_source_eos" in found) as part:
        spec.save(str(part))


# %% book/15-interchange.ipynb · A translator on this engine · [engine]
class CTranslate2Translator(Translator):
    """A translator whose searches are run by CTranslate2.

    Its beam ends by the engine's own rule, so that a rare translation differs from those of PyTorch.

    Args:
        translator: where weights and vocabulary come from; later changes to the weights have no effect.
        quantization: as in `to_ctranslate2`.

    Raises:
        TypeError, ValueError, ImportError: as in `to_ctranslate2`.
    """

    def __init__(self, translator: Translator, quantization: str | None = None) -> None:
        super().__init__(translator.model, translator.vocabulary)
        engine = optional_import("ctranslate2").Translator
        device = next(self.model.parameters()).device.type
        self._ids = {piece: number for number, piece in enumerate(self.vocabulary.pieces)}
        with tempfile.TemporaryDirectory() as folder:
            to_ctranslate2(translator, folder, quantization)
            self._engine = engine(folder, device=device, intra_threads=torch.get_num_threads())

    def translate_ids(
        self,
        sources: list[list[int]],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        max_length: int = 200,
        max_tokens: int = 4000,
    ) -> list[list[int]]:
        """As in `Translator`, by the engine."""
        check_size(beam_size=beam_size, max_length=max_length, max_tokens=max_tokens)
        check_number(length_penalty=length_penalty)
        longest = min(max_length, self.model.config.max_length)
        found: list[list[int]] = [[] for _ in sources]
        rows = [row for row, ids in enumerate(sources) if len(ids) > 1]  # not the empty ones
        results = self._engine.translate_batch(
            [self.vocabulary.tokens(sources[row][:-1]) for row in rows],  # it adds the end itself
            beam_size=beam_size,
            num_hypotheses=beam_size,
            length_penalty=0,
            return_scores=True,
            min_decoding_length=0,  # a translation may be empty; the engine's default is 1
            max_decoding_length=longest,
            max_batch_size=max_tokens,
            batch_type="tokens",
        )
        for row, result in zip(rows, results, strict=True):
            lengths = [min(len(pieces) + 1, longest) for pieces in result.hypotheses]
            ranked = zip(result.scores, lengths, result.hypotheses, strict=True)
            best = max(ranked, key=lambda each: each[0] / length_norm(each[1], length_penalty))
            found[row] = [self._ids[piece] for piece in best[2]]
        return found


# %% book/15-interchange.ipynb · A translator on this engine · [load-translator]
ENGINES = ("pytorch", "ctranslate2")


def load_translator(
    name: str | Path, device: torch.device | str = "cpu", engine: str = "pytorch", **download: Any
) -> Translator | MarianTranslator:
    """The translator that a name stands for, ours or Marian's.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"` on the
            Hugging Face hub.
        device: to translate on.
        engine: what searches, one of `ENGINES`; a Marian model runs on `"pytorch"` only.
        **download: as in `pretrained_folder`.

    Raises:
        TypeError, ValueError, OSError, ImportError: as in `pretrained_folder`, and in `Translator.load`,
            `CTranslate2Translator` or `MarianTranslator`.
    """
    check_choice(ENGINES, engine=engine)
    folder = pretrained_folder(name, **download)
    config = folder / "config.json"
    if config.is_file() and read_record(config).get("model_type") == "marian":
        check_choice(["pytorch"], engine=engine)
        return MarianTranslator(folder, device)
    translator = Translator.load(folder, device)
    return translator if engine == "pytorch" else CTranslate2Translator(translator)


# %% book/15-interchange.ipynb · ONNX · [onnx-graphs]
class _GivenCache(KeyValueCache):
    """Keys and values from tensors `[n_layers, 2, B, H, length, d_k]`; what has grown is in `grown`."""

    def __init__(self, own: Tensor, cross: Tensor) -> None:
        super().__init__()
        self.length, self._own, self._cross = own.size(-2), iter(own), iter(cross)
        self.grown: list[Tensor] = []

    def append(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        self.grown.append(torch.cat([next(self._own), torch.stack(project())], dim=-2))
        return self.grown[-1][0], self.grown[-1][1]

    def hold(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        key, value = next(self._cross)
        return key, value


class _Graph(nn.Module):
    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model


class _EncoderGraph(_Graph):
    def forward(self, src: Tensor) -> tuple[Tensor, Tensor]:
        memory, layers = self.model.encode(src), self.model.decoder.layers
        readers: list[Any] = [layer.cross_attention for layer in layers]
        pairs = [(each._split(each.w_k(memory)), each._split(each.w_v(memory))) for each in readers]
        return self.model.src_mask(src), torch.stack([torch.stack(pair) for pair in pairs])


class _DecoderGraph(_Graph):
    def forward(self, last: Tensor, mask: Tensor, cross: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        cache = _GivenCache(own, cross)
        x = self.model.positions(self.model.tgt_embedding(last[:, None]), cache.length)
        hidden = self.model.decoder(x, x, None, mask, cache)  # reads no memory, as the cache holds it
        return self.model.project(hidden[:, -1]), torch.stack(cache.grown)


# %% book/15-interchange.ipynb · ONNX · [to-onnx]
def to_onnx(model: Transformer, folder: str | Path) -> None:
    """Write a model as two graphs, `encoder.onnx` and `decoder.onnx`, that a runtime for ONNX can run.

    The encoder's graph reads `src` `[B, S]` and returns `mask` and `cross`. The decoder's reads
    `last` `[B]`, the last token of every sentence, with `mask`, `cross` and `own`, the cache of t
    positions; it returns the next token's `logits` `[B, V]` and `grown`, the cache of t + 1. No
    graph checks its input: S is at most the model's `max_length`, and t is below it.

    Args:
        model: a plain `Transformer`.
        folder: where the files are written; the weights lie beside the graphs.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is not as its configuration says, or not finite; or `folder` holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: onnxscript is not installed.
    """
    optional_import("onnxscript")  # which torch needs
    _check_kind("model", model, Transformer)
    _check_as_configured(model)
    longest, device = model.config.max_length, next(model.parameters()).device
    batch, source = torch.export.Dim("batch"), torch.export.Dim("source", max=longest)
    past = torch.export.Dim("past", max=longest - 1)
    src = torch.zeros(2, 3, dtype=torch.long, device=device)  # any values will do
    with evaluating(model):
        mask, cross = _EncoderGraph(model)(src)
        own, last = cross[..., :2, :], src[:, 0]
        changing = {"mask": {0: batch, 3: source}, "cross": {2: batch, 4: source}}
        graphs = {
            "encoder": (_EncoderGraph, {"src": src}, {"src": {0: batch, 1: source}}),
            "decoder": (
                _DecoderGraph,
                {"last": last, "mask": mask, "cross": cross, "own": own},
                {"last": {0: batch}, **changing, "own": {2: batch, 4: past}},
            ),
        }
        with _whole_folder(folder, [f"{name}.onnx*" for name in graphs], lambda found: False) as part:
            for name, (graph, inputs, dynamic) in graphs.items():
                torch.onnx.export(
                    graph(model),
                    tuple(inputs.values()),
                    part / f"{name}.onnx",
                    input_names=list(inputs),
                    output_names=["mask", "cross"] if name == "encoder" else ["logits", "grown"],
                    dynamic_shapes=tuple(dynamic.values()),
                    dynamo=True,
                    verbose=False,
                )
