"""Modules of `torch.nn`, read and written."""

from typing import Any
import torch
from torch import Tensor, nn
from transformer.attention import MultiHeadAttention
from transformer.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, LayerConfig, LayerNorm
from transformer.model import Decoder, Encoder, TransformerConfig
from transformer.validation import check_type
from transformer.weights import differences, original, parts_of, place_all, plain_state

__all__ = ["from_torch", "to_torch"]


# Parts of torch's, and what they are in ours.
_ENCODER_PARTS = {
    "self_attn": "self_attention", "out_proj": "w_o",
    "dropout1": "self_residual.dropout", "norm1": "self_residual.norm",
    "linear1": "feed_forward.w_1", "dropout": "feed_forward.dropout", "linear2": "feed_forward.w_2",
    "dropout2": "feed_residual.dropout", "norm2": "feed_residual.norm",
}  # fmt: skip
_DECODER_PARTS = _ENCODER_PARTS | {
    "multihead_attn": "cross_attention",
    "dropout2": "cross_residual.dropout", "norm2": "cross_residual.norm",
    "dropout3": "feed_residual.dropout", "norm3": "feed_residual.norm",
}  # fmt: skip
_KINDS: dict[type, type] = {
    nn.MultiheadAttention: MultiHeadAttention,
    nn.TransformerEncoderLayer: EncoderLayer, nn.TransformerEncoder: Encoder,
    nn.TransformerDecoderLayer: DecoderLayer, nn.TransformerDecoder: Decoder,
}  # fmt: skip
_LAYERS: dict[type, type] = {
    nn.TransformerEncoder: nn.TransformerEncoderLayer, nn.TransformerDecoder: nn.TransformerDecoderLayer,
}  # fmt: skip


def _our_names(name: str, theirs: nn.Module) -> list[str]:
    """Our names for what torch has under one: of a part, or of a tensor, of which it stacks some."""
    decodes = isinstance(theirs, nn.TransformerDecoder | nn.TransformerDecoderLayer)
    parts = _DECODER_PARTS if decodes else _ENCODER_PARTS
    *path, last = [parts.get(part, part) for part in name.split(".")]
    letters = "qkv" if last.startswith("in_proj_") else last[0] if last.endswith("_proj_weight") else ""
    leaves = [f"w_{letter}.{last.rpartition('_')[2]}" for letter in letters]
    return [".".join([*path, leaf]) for leaf in leaves or [last]]


def _activation_name(function: Any) -> str:
    """The activation that has a function's values."""
    x = torch.linspace(-9.0, 9.0, 37, device="cpu")
    for name, activation in ACTIVATIONS.items():
        if torch.equal(activation(x), function(x)):
            return name
    given = getattr(function, "__name__", function)
    raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, not {given}")


def _form(layer: Any) -> dict[str, Any]:
    """The form of a layer, torch's or ours, as fields of a `LayerConfig`."""
    if isinstance(layer, EncoderLayer | DecoderLayer):
        network, activation = layer.feed_forward.w_1, layer.feed_forward.activation
        n_heads, norm_first = layer.self_attention.n_heads, layer.self_residual.norm_first
    else:
        network, activation = layer.linear1, _activation_name(layer.activation)
        n_heads, norm_first = layer.self_attn.num_heads, layer.norm_first
    form = {"d_model": network.in_features, "n_heads": n_heads, "d_ff": network.out_features}
    return form | {"activation": activation, "bias": network.bias is not None, "norm_first": norm_first}


def _attention_plans(module: Any, batch_first: bool) -> tuple[nn.Module, nn.Module]:
    if isinstance(module, MultiHeadAttention):
        d_model, n_heads, bias = module.w_q.in_features, module.n_heads, module.w_q.bias
        kdim, vdim = module.w_k.in_features, module.w_v.in_features
    else:
        d_model, n_heads, bias = module.embed_dim, module.num_heads, module.in_proj_bias
        kdim, vdim = module.kdim, module.vdim
    form: dict[str, Any] = {"bias": bias is not None, "kdim": kdim, "vdim": vdim}
    theirs = nn.MultiheadAttention(d_model, n_heads, batch_first=batch_first, **form)
    return theirs, MultiHeadAttention(d_model, n_heads, **form)


def _plans(module: Any, kind: Any, batch_first: bool) -> tuple[nn.Module, nn.Module]:
    """Two modules of the form that `module` has, torch's, of this `kind`, and ours, to be given numbers."""
    if kind is nn.MultiheadAttention:
        return _attention_plans(module, batch_first)
    layer_kind: Any = _LAYERS.get(kind, kind)
    form, *others = [_form(original(layer)) for layer in ([module] if kind is layer_kind else module.layers)]
    for other in others:
        if other != form:
            raise ValueError(f"layers must be of one form, not {form} and {other}")
    sizes = form["d_model"], form["n_heads"], form["d_ff"]
    options = {"bias": form["bias"], "norm_first": form["norm_first"], "batch_first": batch_first}
    layer = layer_kind(*sizes, activation=ACTIVATIONS[form["activation"]], **options)
    ours: Any = _KINDS[kind]
    if kind is layer_kind:
        return layer, ours(LayerConfig(**form))
    n_layers, norm = len(module.layers), None
    stack = ours(TransformerConfig(4, 4, n_layers=n_layers, final_norm=False, **form))  # of any vocabularies
    if not isinstance(module.norm, nn.Identity | None):
        has_bias = getattr(module.norm, "bias", None) is not None
        norm, stack.norm = nn.LayerNorm(sizes[0], bias=has_bias), LayerNorm(sizes[0], bias=has_bias)
    nested = {"enable_nested_tensor": False} if kind is nn.TransformerEncoder else {}
    return kind(layer, n_layers, norm, **nested), stack


_COMPARED = "class", "_parameters", "n_heads", "num_heads", "norm_first", "batch_first", "add_zero_attn"


def _checked_plans(module: nn.Module, kind: Any, batch_first: bool) -> tuple[nn.Module, nn.Module]:
    """The `_plans` of a module, if each of its parts is as in the one of its own kind."""
    try:
        with torch.device("meta"):
            plans = _plans(module, kind, batch_first)
    except AttributeError as error:
        raise TypeError(f"module must be as its class makes it, but {error}") from error
    for name, what, message in differences(module, plans[0 if type(module) is kind else 1]):
        if what in _COMPARED and not name.endswith("activation"):
            refusal = TypeError if what == "class" else ValueError
            raise refusal(f"module must be as its class makes it, but {message}")
    return plans


def _filled(target: Any, weights: dict[str, Tensor], source: nn.Module, theirs: nn.Module) -> Any:
    """A plan with weights, and with the mode, the rates and the epsilons of its `source`."""
    place_all(target, weights)
    sources, targets = parts_of(source), parts_of(target)
    for name, part in parts_of(theirs).items():
        if isinstance(part, nn.MultiheadAttention | nn.Dropout | nn.LayerNorm):
            ours = _our_names(name, theirs)[0]
            given, taker = (sources[name], targets[ours]) if target is not theirs else (sources[ours], part)
            for setting in vars(given).keys() & {"eps", "p", "dropout"}:
                setattr(taker, setting, getattr(given, setting))
    return target.train(source.training)


def _check_kind(given: Any, kinds: Any, more: str = "") -> None:
    if type(given) not in kinds:
        *names, actual = [f"{kind.__module__}.{kind.__name__}" for kind in (*kinds, type(given))]
        raise TypeError(f"module must be of type {' or '.join(names)} itself{more}, not {actual}")


def from_torch(module: nn.Module) -> Any:
    """Make a module of ours that computes what one of `torch.nn` does, with copies of its weights.

    Args:
        module: a `torch.nn.MultiheadAttention`, `TransformerEncoderLayer`,
            `TransformerDecoderLayer`, `TransformerEncoder`, `TransformerDecoder` or `Transformer`,
            with `batch_first` either way, compiled or not.

    Returns:
        Our `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or `Decoder`; for a
        `torch.nn.Transformer` the pair `(Encoder, Decoder)`. Ours are batch first, and True in
        their masks means *may attend*. Dropout rates, epsilons, dtype, device and mode are those
        of `module`; all parameters can be trained, and one in two places becomes two.

    Raises:
        TypeError: `module`, or a part of it, is of another type; a subclass is another type.
        ValueError: it does what ours cannot: `add_bias_kv`, `add_zero_attn`, an activation other
            than ReLU, exact GELU and SiLU, a norm without weights, layers of different form or
            `batch_first`.
    """
    _check_kind(module := original(module), [*_KINDS, nn.Transformer])
    if isinstance(module, nn.Transformer):
        return from_torch(module.encoder), from_torch(module.decoder)
    attentions = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    theirs, ours = _checked_plans(module, type(module), attentions[0].batch_first if attentions else True)
    weights: dict[str, Tensor] = {}
    for name, x in plain_state(module).items():
        names = _our_names(name, theirs)
        weights |= {each: part.clone() for each, part in zip(names, x.chunk(len(names)), strict=True)}
    return _filled(ours, weights, module, theirs)


def to_torch(module: nn.Module | tuple[Encoder, Decoder], batch_first: bool = True) -> Any:
    """Make a module of `torch.nn` that computes what one of ours does, with copies of its weights.

    Args:
        module: a `MultiHeadAttention`, `EncoderLayer`, `DecoderLayer`, `Encoder` or `Decoder`, or a
            pair `(Encoder, Decoder)`, compiled or not.
        batch_first: whether inputs and output of the result are `[batch, time, d_model]`, as ours
            are, or `[time, batch, d_model]`.

    Returns:
        A `torch.nn.MultiheadAttention`, `TransformerEncoderLayer`, `TransformerDecoderLayer`,
        `TransformerEncoder` or `TransformerDecoder`; for a pair a `torch.nn.Transformer`. True in
        its masks means *must not attend*. Dropout rates, epsilons, dtype, device and mode are
        those of `module`; all parameters can be trained, and one in two places becomes two.

    Raises:
        TypeError: `module`, or a part of it, is of another type; a subclass is another type.
        ValueError: the layers differ in form.
    """
    check_type(bool, batch_first=batch_first)
    if isinstance(module, tuple):
        encoder, decoder = to_torch(module[0], batch_first), to_torch(module[1], batch_first)
        _check_kind(encoder, [nn.TransformerEncoder])
        _check_kind(decoder, [nn.TransformerDecoder])
        form, empty = encoder.layers[0].self_attn, nn.Identity()  # as it draws all parameters anew
        halves: dict[str, Any] = {"custom_encoder": empty, "custom_decoder": empty}
        pair = nn.Transformer(form.embed_dim, form.num_heads, batch_first=batch_first, **halves)
        pair.encoder, pair.decoder, pair.training = encoder, decoder, encoder.training
        return pair
    _check_kind(ours := original(module), _KINDS.values(), ", or a pair (model.encoder, model.decoder)")
    kind = next(theirs for theirs, own in _KINDS.items() if type(ours) is own)
    theirs, _ = _checked_plans(ours, kind, batch_first)
    state = plain_state(ours)
    names = {name: _our_names(name, theirs) for name in theirs.state_dict()}
    weights = {name: torch.cat([state[each] for each in some]) for name, some in names.items()}
    return _filled(theirs, weights, ours, theirs)
