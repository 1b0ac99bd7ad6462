"""transformer.fast, from book/10-speed.ipynb, "Speed".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "FastLinear",
    "FastDropout",
    "FastMultiHeadAttention",
    "FastTransformer",
    "accelerate",
    "FastDecoderState",
    "QuantizedLinear",
    "QuantizedTransformer",
    "quantize",
]


# %% book/10-speed.ipynb · From the plain model to the fast one · [fast-modules]
import copy
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import MultiHeadAttention
from transformer.decoding import DecoderState, decoder_state
from transformer.kernels import (
    fast_attention,
    fast_linear,
    fastest,
    fused_projections,
    linear_cross_entropy,
    linear_r_drop,
    step_linear,
)
from transformer.layers import ACTIVATIONS, DecoderLayer, LayerNorm
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer
from transformer.validation import check_features, check_place, check_type


class FastLinear(nn.Linear):
    """`torch.nn.Linear`, by the fastest kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`."""
        return fast_linear(x, self.weight, self.bias)


class FastDropout(nn.Dropout):
    """`torch.nn.Dropout`, by the fastest kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of `x` in training; the shape stays."""
        return fastest("dropout", x)(x, self.p) if self.training and self.p else x


class FastMultiHeadAttention(MultiHeadAttention):
    """`MultiHeadAttention`, by the fastest kernels."""

    def forward(self, query, key, value, mask=None, need_weights=False, cache=None):
        """As in `MultiHeadAttention`."""
        if need_weights or cache is not None:
            return super().forward(query, key, value, mask, need_weights, cache)
        q, k, v = (self._split(x) for x in self._project(query, key, value))  # [B, H, T, d_k]
        context = fast_attention(q, k, v, mask, self.dropout if self.training else 0.0)
        return self.w_o(context.transpose(1, 2).flatten(2)), None

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        if query is key and key is value:
            return [*fused_projections(query, (self.w_q, self.w_k, self.w_v))]
        if key is value:
            return [self.w_q(query), *fused_projections(key, (self.w_k, self.w_v))]
        return [self.w_q(query), self.w_k(key), self.w_v(value)]


# %% book/10-speed.ipynb · From the plain model to the fast one · [accelerate]
_FASTER = {
    nn.Linear: FastLinear,
    nn.Dropout: FastDropout,
    MultiHeadAttention: FastMultiHeadAttention,
}


def _check_plain(model: Transformer) -> None:
    # A plain model differs from what its configuration makes in its numbers only.
    with torch.device("meta"):
        made = {name: part for name, part in Transformer(model.config).named_modules()}
    parts = dict(model.named_modules())
    for name in [*made, *(name for name in parts if name not in made)]:
        what = name or "the model"
        if name not in made or name not in parts:
            raise TypeError(f"accelerate knows no model with{'' if name in parts else 'out'} {what}")
        part, wanted = parts[name], made[name]
        if type(part) is not type(wanted):
            given = type(part).__name__
            raise TypeError(f"accelerate wants {what} to be a {type(wanted).__name__}, not a {given}")
        for key in vars(part).keys() | vars(wanted).keys():
            if key in _NUMBERS:
                continue
            if vars(part).get(key, _ABSENT) != vars(wanted).get(key, _ABSENT):
                raise TypeError(f"accelerate knows no {key} of {what} but its configuration's")
        if any(
            getattr(part, kind).keys() != getattr(wanted, kind).keys()
            for kind in ("_parameters", "_buffers")
        ):
            raise TypeError(f"accelerate knows no other parameters of {what} than its configuration's")


_NUMBERS = {"_parameters", "_buffers", "_modules", "training"}
_ABSENT = object()


class FastTransformer(Transformer):
    """A `Transformer` by the fastest kernels, as `accelerate` makes it.

    It computes what its model does, and has the same parameters under the same names. Its searches and
    its losses do not call its modules, so hooks belong on the model and not here.
    """

    def __init_subclass__(cls, **options: object) -> None:
        if cls.__module__ != __name__:
            raise TypeError("FastTransformer has no subclasses: derive from Transformer instead")
        super().__init_subclass__(**options)

    def __init__(self, model: Transformer) -> None:
        with torch.device("meta"):
            super().__init__(model.config)
        self.load_state_dict(model.state_dict(keep_vars=True), assign=True)  # the very parameters
        self.positions.table = model.positions.table
        for part, given in zip(self.modules(), model.modules(), strict=True):
            part.training = given.training
            part.__class__ = _FASTER.get(type(part), type(part))


def accelerate(model: Transformer) -> FastTransformer:
    """The same model by the fastest kernels: the same parameters, the same numbers, in less time.

    Args:
        model: a `Transformer` whose every part is as its configuration makes it, without hooks.

    Raises:
        TypeError: a part is of another kind, has other settings, or has hooks; the message names it.
    """
    check_type(Transformer, model=model)
    if type(model) is not FastTransformer:
        _check_plain(model)
        model = FastTransformer(model)
    return model


# %% book/10-speed.ipynb · From the plain model to the fast one · [fast-losses]
@teacher_forced_loss.register
def _teacher_forced_loss(
    model: FastTransformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    src, tgt = batch
    targets, pad_id = tgt[:, 1:], model.config.pad_id
    hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
    loss = linear_cross_entropy(hidden, model.output.weight, targets, smoothing, pad_id)
    return loss, (targets != pad_id).sum()


@r_drop_loss.register
def _r_drop_loss(
    model: FastTransformer,
    batch: tuple[Tensor, Tensor],
    smoothing: float = 0.1,
    alpha: float = 5.0,
) -> tuple[Tensor, Tensor]:
    src, tgt = batch
    targets, pad_id = tgt[:, 1:], model.config.pad_id
    src, tgt = torch.cat((src, src)), torch.cat((tgt, tgt))  # [2B, S], [2B, T + 1]
    hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
    passes = hidden.reshape(2, targets.numel(), hidden.size(-1))
    loss = linear_r_drop(
        passes, model.output.weight, targets.reshape(-1), smoothing, alpha, pad_id
    )
    return loss, (targets != pad_id).sum()


# %% book/10-speed.ipynb · From the plain model to the fast one · [fast-layer]
class _LayerStep:
    # A decoder layer for one new position in every row, from the layer's weights.
    def __init__(self, layer: DecoderLayer, memory: Tensor, beam_size: int) -> None:
        own, cross, feed = layer.self_attention, layer.cross_attention, layer.feed_forward
        self.n_heads, self.beam_size = own.n_heads, beam_size
        self.qkv, self.own_output = _together(own), _dense(own.w_o)
        self.query, self.cross_output = _dense(cross.w_q), _dense(cross.w_o)
        self.w_1, self.w_2 = _dense(feed.w_1), _dense(feed.w_2)
        self.activation = ACTIVATIONS[feed.activation]
        residuals = layer.self_residual, layer.cross_residual, layer.feed_residual
        self.norms = [_norm(residual.norm) for residual in residuals]
        self.norm_first = layer.self_residual.norm_first
        pair = torch.stack((cross.w_k(memory), cross.w_v(memory)))  # [2, B, S, d_model]
        self.memory = pair.unflatten(3, (self.n_heads, -1)).transpose(2, 3).contiguous()

    # Of vectors x [N, d_model]; keys and values `kept` [2, N, H, t, d_k] end in the new place.
    def __call__(self, x: Tensor, kept: Tensor, mask: Tensor | None) -> Tensor:
        attend = partial(self.attend, kept=kept), partial(self.attend_memory, mask=mask)
        for norm, sublayer in zip(self.norms, (*attend, self.feed), strict=True):
            x = x + sublayer(norm(x)) if self.norm_first else norm(x + sublayer(x))
        return x

    def attend(self, x: Tensor, kept: Tensor) -> Tensor:
        qkv = self.qkv(x).view(len(x), 3, self.n_heads, 1, -1)  # [N, 3, H, 1, d_k]
        kept[:, :, :, -1:] = qkv[:, 1:].transpose(0, 1)
        context = _context(qkv[:, 0], *kept)  # [N, H, 1, d_k]
        return self.own_output(context.flatten(1))

    def attend_memory(self, x: Tensor, mask: Tensor | None) -> Tensor:
        shape = len(x) // self.beam_size, self.beam_size, self.n_heads, -1
        query = self.query(x).view(shape).transpose(1, 2)  # [B, H, K, d_k]
        context = _context(query, *self.memory, mask)
        return self.cross_output(context.transpose(1, 2).reshape(x.shape))

    def feed(self, x: Tensor) -> Tensor:
        return self.w_2(self.activation(self.w_1(x)))


def _context(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    return fastest("step attention", query, key)(query, key, value, mask)


def _dense(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    if isinstance(layer, QuantizedLinear):
        return layer.product
    return partial(step_linear, weight=layer.weight, bias=layer.bias)


def _together(attention: MultiHeadAttention) -> Callable[[Tensor], Tensor]:
    # Query, key and value in one vector; int8 layers come with one product for all three.
    if hasattr(attention, "w_qkv"):
        return attention.w_qkv.product
    products = [_dense(layer) for layer in (attention.w_q, attention.w_k, attention.w_v)]
    return lambda x: torch.cat([product(x) for product in products], dim=1)


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    if isinstance(norm, nn.Identity):
        return norm
    shape, weight, bias = (norm.d_model,), norm.weight, norm.bias
    return partial(torch.layer_norm, normalized_shape=shape, weight=weight, bias=bias, eps=norm.eps)


# %% book/10-speed.ipynb · From the plain model to the fast one · [fast-state]
_ROOM = 16  # for that many tokens at first


class FastDecoderState(DecoderState):
    """The numbers of `DecoderState`, from the decoder's weights and without the calls of its modules."""

    @torch.inference_mode()
    def __init__(self, model: FastTransformer, src: Tensor, beam_size: int = 1) -> None:
        self.beam_size, self.length = beam_size, 0
        self.memory, mask = model.encode(src), model.src_mask(src)  # [B, S, d_model], [B, 1, 1, S]
        self.mask = None if mask.all() else mask  # a look now spares every step a mask that hides nothing
        self.layers = [_LayerStep(layer, self.memory, beam_size) for layer in model.decoder.layers]
        self.norm, self.project = _norm(model.decoder.norm), _dense(model.output)
        self.table, self.scale = model.tgt_embedding.weight, model.config.d_model**0.5
        self.positions = model.positions.table
        config, rows = model.config, len(src) * beam_size
        shape = (config.n_layers, 2, rows, config.n_heads, _ROOM, config.d_model // config.n_heads)
        self.cache = self.memory.new_empty(shape)  # keys and values of all layers
        self.spare = self.cache[:, :, :0]

    @torch.inference_mode()
    def step(self, last: Tensor) -> Tensor:
        """As in `DecoderState`."""
        x = F.embedding(last, self.table) * self.scale + self.positions[self.length]  # [N, d_model]
        if self.length == self.cache.size(4):
            self.cache = torch.cat((self.cache, torch.empty_like(self.cache)), 4)  # doubled
        self.length += 1
        for layer, kept in zip(self.layers, self.cache[..., : self.length, :], strict=True):
            x = layer(x, kept, self.mask)
        return self.project(self.norm(x))

    @torch.inference_mode()
    def keep(self, rows: Tensor) -> None:
        """As in `DecoderState`; K rows in sequence must be of one sentence."""
        sentences = rows[:: self.beam_size] // self.beam_size
        if len(sentences) < len(self.memory):
            self.memory = self.memory[sentences]
            self.mask = None if self.mask is None else self.mask[sentences]
            for layer in self.layers:
                layer.memory = layer.memory[:, sentences]
        elif rows.device.type == "cpu" and torch.equal(rows, torch.arange(len(rows))):
            return
        if self.spare.shape[2:] != self.cache[:, :, : len(rows)].shape[2:]:
            self.spare = torch.empty_like(self.cache[:, :, : len(rows)])
        ordered = torch.index_select(self.cache, 2, rows, out=self.spare)
        self.cache, self.spare = ordered, self.cache


@decoder_state.register
def _decoder_state(model: FastTransformer, src: Tensor, beam_size: int = 1) -> DecoderState:
    return FastDecoderState(model, src, beam_size)


# %% book/10-speed.ipynb · From the plain model to the fast one · [quantized-linear]
_FLOAT = torch.empty(0, dtype=torch.float32, device="cpu")  # what int8 layers take and return
_LEAST = 1e-30  # weights that are all zero need a scale, too


def _product_of_bytes(x: Tensor, packed: torch.ScriptObject) -> Tensor:
    # Inputs from -1 to 1 are rounded to 63rds, and moved by 64 to be positive.
    multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default.op
    return multiply(x, 1 / 63, 64, packed)


def _packed(rounded: Tensor) -> torch.ScriptObject | None:
    # Weights in the order of x86's product of bytes; None where this PyTorch has no such product.
    try:
        packed = torch.ops.quantized.linear_prepack(rounded, None)
        _product_of_bytes(torch.zeros(1, rounded.size(1)), packed)
    except (RuntimeError, AttributeError):
        return None
    return packed


class QuantizedLinear(nn.Module):
    """A dense layer for inference on the CPU: int8 weights, inputs rounded row by row.

    PyTorch has the product of bytes for x86 processors. Elsewhere the same rounded numbers are
    multiplied in float32: the result is the same, memory and time are those of a float layer.
    The weights are no parameters, and not in the `state_dict`.

    Args:
        weight: `[d_out, d_in]`; every output gets a scale of its own.
        bias: `[d_out]`, or `None` for none.

    Raises:
        TypeError: `weight` is no float32 tensor.
        ValueError: `weight` does not have two axes, or does not lie on the CPU.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        check_features("weight", weight, None, rank=2)
        check_place("weight", weight, _FLOAT, "int8 layers")
        scale = weight.detach().abs().amax(dim=1).clamp_min(_LEAST) / 127  # [d_out]
        zero = torch.zeros(len(weight), dtype=torch.long)
        with warnings.catch_warnings():  # PyTorch wants to replace this constructor one day
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(weight.detach(), scale, zero, 0, torch.qint8)
        self.packed = _packed(rounded)
        self.whole = (rounded.int_repr().float(), scale) if self.packed is None else None
        self.bias = None if bias is None else bias.detach().clone()

    def weight(self) -> Tensor:
        """The rounded weights `[d_out, d_in]`, as floating-point numbers."""
        if self.whole is None:
            return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        whole, scale = self.whole
        return whole * scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`.

        Raises:
            TypeError: `x` is not float32.
            ValueError: the layer is in training mode, or `x` wants a gradient or is not on the CPU.
        """
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise ValueError("int8 layers have no gradient: call eval(), and train the float model")
        check_place("x", x, _FLOAT, "int8 layers")
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """What `forward` returns, for an `x` that has been checked."""
        scaled = x.abs()  # at first: fresh memory is dear, so the same is used again
        largest = scaled.amax(dim=-1, keepdim=True)  # [..., 1]; 0 makes 0, whatever 0 / 0 becomes
        x = torch.div(x, largest, out=scaled)
        if self.whole is None:
            y = _product_of_bytes(x, self.packed)  # [..., d_out]
        else:  # sums of whole numbers below 2**24 are exact in float32
            whole, scale = self.whole
            y = F.linear(x.nan_to_num_().mul_(63).round_(), whole) * (scale / 63)
        return y.mul_(largest) if self.bias is None else torch.addcmul(self.bias, y, largest, out=y)


# %% book/10-speed.ipynb · From the plain model to the fast one · [quantize]
class QuantizedTransformer(FastTransformer):
    """A `FastTransformer` for inference on the CPU, whose dense layers hold int8."""


def quantize(model: Transformer) -> QuantizedTransformer:
    """Copy a model for faster inference on the CPU, with int8 weights in its dense layers.

    To keep it, keep the model it was made of: its `state_dict` holds no dense layers. Where
    PyTorch has no product of bytes for the processor, a warning says so: the copy rounds as it
    does elsewhere, but is no faster than the model.

    Args:
        model: a model in float32 on the CPU that `accelerate` accepts; it stays as it is.

    Returns:
        the copy, in evaluation mode and without gradients. The rounding of a row depends on that
        row alone, so that the rest of a batch still plays no part.

    Raises:
        TypeError: `model` is no such model, or not in float32.
        ValueError: `model` is not on the CPU.
    """
    quantized = copy.deepcopy(accelerate(model)).requires_grad_(False)
    quantized.__class__ = QuantizedTransformer
    for module in list(quantized.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight, child.bias))
    for layer in quantized.decoder.layers:
        own = layer.self_attention
        parts = own.w_q, own.w_k, own.w_v
        bias = None if own.w_q.bias is None else torch.cat([part.bias for part in parts])
        own.w_qkv = QuantizedLinear(torch.cat([part.weight() for part in parts]), bias)
    if quantized.output.packed is None:
        why = "this PyTorch has no product of bytes for this processor (it has one for x86)"
        warnings.warn(f"{why}: int8 layers compute in float32, and save nothing", stacklevel=2)
    return quantized.eval()
