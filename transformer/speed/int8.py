"""Dense layers in bytes, for decoding on a CPU."""

import copy
import warnings
from collections.abc import Callable
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer
from transformer.speed.fast import FastMultiHeadAttention, FastTransformer, accelerate
from transformer.validation import check_features, check_finite_weights, check_place

__all__ = ["QuantizedLinear", "QuantizedMultiHeadAttention", "QuantizedTransformer", "quantize"]


_FLOAT = torch.empty(0, dtype=torch.float32, device="cpu")  # what int8 layers take and return
_LEAST = 1e-30  # weights that are all zero need a scale, too


def _product_of_bytes(x: Tensor, packed: torch.ScriptObject | None) -> Tensor:
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


def _rounded(weight: Tensor) -> Tensor:
    # PyTorch's quantized tensor, with a scale for every output.
    scale = weight.abs().amax(dim=1).clamp_min(_LEAST) / 127  # [d_out]
    zero = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():  # PyTorch wants to replace this constructor one day
        warnings.simplefilter("ignore")
        return torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)


class QuantizedLinear(nn.Module):
    """A dense layer for inference on the CPU: int8 weights, inputs rounded row by row.

    Args:
        weight, bias: `[d_out, d_in]` in float32 on the CPU, and `[d_out]` or `None`.
    """

    packed: Any
    whole: tuple[Tensor, Tensor] | None
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        check_features("weight", weight, None, rank=2)
        check_place("weight", weight, _FLOAT, "int8 layers")
        rounded = _rounded(weight.detach())
        self.packed = _packed(rounded)
        whole = rounded.int_repr().float(), rounded.q_per_channel_scales().float()
        self.whole = whole if self.packed is None else None
        self.bias = None if bias is None else bias.detach().clone()

    def weight(self) -> Tensor:
        """The rounded weights `[d_out, d_in]`, as floating-point numbers."""
        if self.whole is None:
            return torch.ops.quantized.linear_unpack(self.packed)[0].dequantize()
        return self.whole[0] * self.whole[1][:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]` in float32; the result is `[..., d_out]`."""
        if self.training or (x.requires_grad and torch.is_grad_enabled()):
            raise ValueError("int8 layers have no gradient: call eval(), and train the float model")
        check_place("x", x, _FLOAT, "int8 layers")
        return self.product(x)

    def product(self, x: Tensor) -> Tensor:
        """What `forward` returns, for an `x` that has been checked."""
        x = x.float()  # under autocast, attention returns fewer bits
        scaled = x.abs()  # at first: new memory is expensive, so this is used again
        largest = scaled.amax(dim=-1, keepdim=True)  # [..., 1]; 0 makes 0, whatever 0 / 0 becomes
        x = torch.div(x, largest, out=scaled)
        if self.whole is None:
            y = _product_of_bytes(x, self.packed)  # [..., d_out]
        else:  # sums of whole numbers below 2**24, of up to 2,096 inputs, are exact in float32
            whole, scale = self.whole
            y = F.linear(x.nan_to_num_().mul_(63).round_(), whole) * (scale / 63)
        return y.mul_(largest) if self.bias is None else torch.addcmul(self.bias, y, largest, out=y)

    def for_steps(self, n_read: int) -> Callable[[int], Callable[[Tensor], Tensor]]:
        """As in `FastLinear`; there is one kernel."""
        return lambda rows: self.product


class QuantizedMultiHeadAttention(FastMultiHeadAttention):
    """`FastMultiHeadAttention` whose dense layers hold int8, as `quantize` makes it."""

    w_qkv: QuantizedLinear

    def for_steps(self, n_read: int) -> Callable[[int], Callable[[Tensor], Tensor]]:
        """As in `FastMultiHeadAttention`, by the one product that `quantize` has packed."""
        return self.w_qkv.for_steps(n_read)


class QuantizedTransformer(FastTransformer, overrides_nothing=True):
    """A `FastTransformer` for inference on the CPU, whose dense layers hold int8."""


# Their losses are the plain ones, on whole logits: the chunked ones need the table's gradient.
_int8_loss = teacher_forced_loss.register(QuantizedTransformer, teacher_forced_loss.dispatch(object))
_int8_r_drop_loss = r_drop_loss.register(QuantizedTransformer, r_drop_loss.dispatch(object))


def quantize(model: Transformer) -> QuantizedTransformer:
    """Copy a model for faster inference on the CPU, with int8 weights in its dense layers.

    To keep it, keep the model it was made from: the copy's `state_dict` holds no dense layers. Where
    PyTorch has no product of bytes for the processor, a warning says so: the copy rounds as it
    does elsewhere, but is no faster than the model.

    Args:
        model: a model in float32 on the CPU that `accelerate` accepts; it stays as it is.

    Returns:
        the copy, in evaluation mode and without gradients. The rounding of a row depends on that
        row alone, so that the rest of a batch still plays no part.

    Raises:
        TypeError: `model` is not such a model, or not in float32.
        ValueError: `model` is not on the CPU, or a weight of it is not finite.

    Example:
        >>> from transformer import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(20, 20, d_model=16, n_heads=2)).eval()
        >>> quantize(model)(torch.tensor([[5, 7, 3]]), torch.tensor([[2, 9]])).shape
        torch.Size([1, 2, 20])
    """
    quantized: Any = copy.deepcopy(accelerate(model)).requires_grad_(False)
    quantized.__class__ = QuantizedTransformer
    for module in list(quantized.modules()):
        if isinstance(module, FastMultiHeadAttention):
            module.__class__ = QuantizedMultiHeadAttention
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, QuantizedLinear(child.weight, child.bias))
    weights = {name: p for name, p in model.named_parameters() if name != "output.bias"}
    check_finite_weights(weights)  # of which int8 would have made numbers; -inf on logits forbids a token
    for layer in quantized.decoder.layers:
        own = layer.self_attention
        parts = own.w_q, own.w_k, own.w_v
        bias = None if own.w_q.bias is None else torch.cat([part.bias for part in parts])
        own.w_qkv = QuantizedLinear(torch.cat([part.weight() for part in parts]), bias)
    quantized._count_tensors()
    if quantized.output.packed is None:
        engine = torch.backends.quantized.engine
        why = f"this PyTorch has no product of bytes in its engine {engine!r} (those for x86 have one)"
        warnings.warn(f"{why}: int8 layers compute in float32, and save nothing", stacklevel=2)
    return quantized.eval()
