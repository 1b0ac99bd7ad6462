"""transformer.attention, from book/03-attention.ipynb, "Attention".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "padding_mask",
    "causal_mask",
    "check_mask",
    "scaled_dot_product_attention",
    "fused_attention",
    "KeyValueCache",
    "onednn_is_faster",
    "linear_by_onednn",
    "linear_by_convolution",
    "fast_linear",
    "Linear",
    "is_untouched",
    "linear_together",
    "MultiHeadAttention",
]


# %% book/03-attention.ipynb · Masks · [masks-code]
import functools
import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.validation import (
    check_device,
    check_features,
    check_place,
    check_range,
    check_rate,
    check_size,
    check_type,
    is_traced,
)


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Which positions of a padded batch of token ids hold a token.

    Args:
        ids: token ids `[B, S]`, `torch.long`.
        pad_id: the padding token.

    Returns:
        `torch.bool` `[B, 1, 1, S]`, True where a query may attend.

    Raises:
        TypeError: `ids` is not a tensor of `torch.long`, or `pad_id` no `int`.
        ValueError: `ids` does not have two axes.
    """
    check_type(int, pad_id=pad_id)
    if not isinstance(ids, Tensor) or ids.dtype != torch.long:
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise TypeError(f"ids must be a torch.long tensor, not {kind}")
    if ids.dim() != 2:
        raise ValueError(f"ids must have shape [batch, length], not {list(ids.shape)}")
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | str | None = None) -> Tensor:
    """Which positions a target position may attend to: itself and everything before it.

    Args:
        length: number of target positions T.
        device: where the mask is to lie.

    Returns:
        `torch.bool` `[1, 1, T, T]`, True on and below the diagonal.

    Raises:
        TypeError: `length` is not an `int`.
        ValueError: `length` is negative, or there is no such device.

    Source: Vaswani et al. (2017), section 3.2.3.
    """
    if not torch.compiler.is_compiling():  # a traced length is a symbol, not an int
        check_size(minimum=0, length=length)
    if not isinstance(device, (torch.device, type(None))):
        device = check_device(device)
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


# %% book/03-attention.ipynb · A mask that is not one · [check-mask]
def check_mask(mask: Tensor | None, shape: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean or does not broadcast to the scores.

    Args:
        mask: the mask, or `None` for none.
        shape: of the scores, `(..., T, S)`.

    Raises:
        TypeError: the mask's dtype is not `torch.bool`; numbers that are added to the scores, or a
            1 that forbids, would mean something else.
        ValueError: the mask has an axis that is neither 1 nor the scores', or more axes than they.
    """
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"mask must be torch.bool (True = may attend), not {kind}")
    pairs = zip(reversed(mask.shape), reversed(shape), strict=False)  # broadcasting aligns the ends
    if mask.dim() > len(shape) or any(size not in (wanted, 1) for size, wanted in pairs):
        wanted, given = list(shape), list(mask.shape)
        raise ValueError(f"mask must be broadcastable to {wanted}, but has shape {given}")


# %% book/03-attention.ipynb · Scaled dot-product attention · [check-inputs]
def _check_inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float
) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_features(name, x, None, rank=None)
    if not query.dtype == key.dtype == value.dtype:
        dtypes = f"{query.dtype}, {key.dtype} and {value.dtype}"
        raise TypeError(f"query, key and value must have one dtype, not {dtypes}")
    if not query.device == key.device == value.device:
        devices = f"{query.device}, {key.device} and {value.device}"
        raise ValueError(f"query, key and value must lie on one device, not {devices}")
    if (
        min(query.dim(), key.dim(), value.dim()) < 2
        or query.shape[:-2] != key.shape[:-2]
        or query.size(-1) != key.size(-1)
        or key.shape[:-1] != value.shape[:-1]
    ):
        wanted = "[..., T, d_k], [..., S, d_k] and [..., S, d_v]"
        given = ", ".join(str(list(x.shape)) for x in (query, key, value))
        raise ValueError(f"query, key and value must have shapes {wanted}, not {given}")
    check_mask(mask, (*query.shape[:-1], key.size(-2)))
    if mask is not None:
        check_place("mask", mask, query, "the query")
    check_rate(dropout=dropout)


# %% book/03-attention.ipynb · Scaled dot-product attention · [scaled-dot-product-attention]
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √d_k) V, written out, with its weights.

    Args:
        query: `[..., T, d_k]`.
        key: `[..., S, d_k]`.
        value: `[..., S, d_v]`.
        mask: `torch.bool`, broadcastable to `[..., T, S]`, True where a query may attend. A query
            that may attend to nothing gets zeros. `None`: every query may attend to everything.
        dropout: rate at which weights are dropped.

    Returns:
        context `[..., T, d_v]` and the weights that made it `[..., T, S]`, after dropout. Under
        half precision the softmax is computed in float32.

    Raises:
        TypeError: an input is not floating-point, the dtypes differ, or the mask is not boolean.
        ValueError: a shape does not fit, or `dropout` lies outside [0, 1).

    Source: Vaswani et al. (2017), equation 1; dropout on the weights is later practice.
    """
    _check_inputs(query, key, value, mask, dropout)
    scores = (query / math.sqrt(query.size(-1))) @ key.transpose(-2, -1)  # [..., T, S]
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)  # matters only in a row with nothing to attend
    weights = F.dropout(weights.to(value.dtype), dropout)
    return weights @ value, weights


# %% book/03-attention.ipynb · The fused kernel · [fused-attention]
def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Compute `scaled_dot_product_attention` by torch's fused kernel, which stores no weights.

    Args:
        query: `[..., T, d_k]`.
        key: `[..., S, d_k]`.
        value: `[..., S, d_v]`.
        mask: `torch.bool`, broadcastable to `[..., T, S]`, True where a query may attend. A query
            that may attend to nothing gets zeros. `None`: every query may attend to everything.
        dropout: rate at which weights are dropped.

    Returns:
        context `[..., T, d_v]`.

    Raises:
        TypeError: an input is not floating-point, the dtypes differ, or the mask is not boolean.
        ValueError: a shape does not fit, or `dropout` lies outside [0, 1).

    Source: Dao et al. (2022).
    """
    _check_inputs(query, key, value, mask, dropout)
    if is_traced(query, key, value) and not torch.compiler.is_compiling():  # vmap knows no fused kernel
        return scaled_dot_product_attention(query, key, value, mask, dropout)[0]
    if mask is None:
        return _kernel(query, key, value, dropout_p=dropout)
    mask = torch.atleast_2d(mask)
    may_look = mask.device.type == "cpu" and not is_traced(mask)
    if may_look and mask.all():
        return _kernel(query, key, value, dropout_p=dropout)
    T, S = query.size(-2), key.size(-2)
    if may_look and mask.shape == (1, 1, T, S) and torch.equal(mask, causal_mask(T)):
        return _kernel(query, key, value, dropout_p=dropout, is_causal=True)
    # Kernels need not agree on a row with nothing: let it attend, then put zeros in its place.
    nothing = ~mask.any(dim=-1, keepdim=True)
    if may_look and not nothing.any():
        return _kernel(query, key, value, mask, dropout_p=dropout)
    context = _kernel(query, key, value, mask | nothing, dropout_p=dropout)
    return context.masked_fill(nothing, 0.0)


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, *mask: Tensor, **options: float | bool
) -> Tensor:
    half = query.dtype in (torch.bfloat16, torch.float16)
    if not half or query.device.type != "cpu" or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(query, key, value, *mask, **options)
    # A processor's way back is slow in half precision: to widen and to narrow costs less.
    wide = query.float(), key.float(), value.float()
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(*wide, *mask, **options).to(query.dtype)


# %% book/03-attention.ipynb · Keys and values kept for later · [key-value-cache]
class KeyValueCache:
    """The keys and values that one attention has computed so far, `[B, H, length, d_k]` each.

    It is made for generating without gradients: a backward pass through what it returned fails
    once more has been appended.

    Args:
        growing: True for self-attention, where every call adds its own positions; False for
            cross-attention, whose keys and values come from the memory at the first call and stay.
    """

    def __init__(self, growing: bool = True) -> None:
        check_type(bool, growing=growing)
        self.growing = growing
        self.length = 0
        self._buffer: Tensor | None = None                      # [2, B, H, capacity, d_k]
        self._spare: Tensor | None = None  # what the next order is written to

    @property
    def batch_size(self) -> int:
        """Number of batch rows kept; 0 before anything was appended."""
        return 0 if self._buffer is None else self._buffer.size(1)

    @property
    def complete(self) -> bool:
        """Whether a call needs to compute no keys and values of its own."""
        return not self.growing and self.length > 0

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all keys and all values kept so far.

        Raises:
            ValueError: nothing has been appended yet.
        """
        if self._buffer is None:
            raise ValueError("the cache is empty: append keys and values before reading")
        key, value = self._buffer[:, :, :, : self.length]
        return key, value

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values `[B, H, T, d_k]` of the next T positions and return all.

        Raises:
            TypeError: one is no floating-point tensor, or they have another dtype than what is kept.
            ValueError: the two shapes differ, or shape or device do not continue what is kept.
        """
        kept = key if self._buffer is None else self._buffer
        for name, x in (("key", key), ("value", value)):
            check_features(name, x, None, rank=4)
            check_place(name, x, kept, "the keys kept")
        if key.shape != value.shape:
            shapes = f"{list(key.shape)} and {list(value.shape)}"
            raise ValueError(f"key and value must share a shape [B, H, T, d_k], not {shapes}")
        B, H, T, d_k = key.shape
        end = self.length + T
        if self._buffer is not None and (B, H, d_k) != self._layout(self._buffer):
            kept = self._layout(self._buffer)
            raise ValueError(f"key must have B, H, d_k = {kept} as kept, not {(B, H, d_k)}")
        if self._buffer is None or end > self._buffer.size(3):
            # Doubling: t steps copy O(t) rows in all; growing by one each time would copy O(t²).
            grown = key.new_empty(2, B, H, max(end, 2 * self.length), d_k)
            if self._buffer is not None:
                grown[:, :, :, : self.length] = self._buffer[:, :, :, : self.length]
            self._buffer = grown
        self._buffer[0, :, :, self.length : end] = key
        self._buffer[1, :, :, self.length : end] = value
        self.length = end
        return self.read()

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` (`torch.long` `[B']`) in that order, each as often as it is named.

        Raises:
            TypeError: `rows` is no tensor of `torch.long`.
            ValueError: it does not have one axis, or lies on another device than what is kept.
            IndexError: a row is not in the batch; seen on the CPU, outside of tracing.
        """
        check_type(Tensor, rows=rows)
        if rows.dtype != torch.long:
            raise TypeError(f"rows must be a torch.long tensor, not {rows.dtype}")
        if rows.dim() != 1:
            raise ValueError(f"rows must have shape [batch], not {list(rows.shape)}")
        if self._buffer is None:
            return
        check_place("rows", rows, self._buffer, "the keys kept")
        check_range("rows", rows, self.batch_size)
        if rows.device.type == "cpu" and torch.equal(rows, torch.arange(self.batch_size)):
            return
        shape = (2, rows.size(0), *self._buffer.shape[2:])
        if self._spare is None or self._spare.shape != shape:
            self._spare = self._buffer.new_empty(shape)
        into = None if self._buffer.requires_grad else self._spare  # autograd wants a tensor of its own
        ordered = torch.index_select(self._buffer, 1, rows, out=into)
        self._buffer, self._spare = ordered, self._buffer.detach()

    @staticmethod
    def _layout(buffer: Tensor) -> tuple[int, int, int]:
        return buffer.size(1), buffer.size(2), buffer.size(4)  # B, H, d_k


# %% book/03-attention.ipynb · A dense layer as a convolution · [fast-linear]
_FEW_ROWS, _LITTLE_WORK = 128, 2**22  # rows, and multiplications


@functools.cache
def _mkl_is_slow() -> bool:
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch
    amd = "AMD" in capabilities.get("cpu_name", "")
    return amd and torch.backends.cpu.get_cpu_capability() == "AVX512"


def onednn_is_faster(x: Tensor) -> bool:
    """Whether oneDNN multiplies a matrix like `x` faster than the library that PyTorch would take.

    It does so on AMD processors with AVX-512, in float32, outside of autocast, unless the tensor
    `is_traced` or `torch.backends.mkldnn` is switched off.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not is_traced(x)
        and _mkl_is_slow()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.enabled
    )


def linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` in oneDNN's own tensors, where no gradient is wanted.

    Where PyTorch has been built without oneDNN, it is `torch.nn.functional.linear` itself.

    Args:
        x: `[..., d_in]`, in float32 on a processor.
        weight: `[d_out, d_in]`.
        bias: `[d_out]`, or `None` for none.

    Returns:
        x Wᵀ + b, `[..., d_out]`.
    """
    if not torch.backends.mkldnn.is_available():
        return F.linear(x, weight, bias)
    return F.linear(x.to_mkldnn(), weight, bias).to_dense()


def linear_by_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` as a convolution with a kernel of one pixel.

    Args:
        x: `[..., d_in]`.
        weight: `[d_out, d_in]`.
        bias: `[d_out]`, or `None` for none.

    Returns:
        x Wᵀ + b, `[..., d_out]`.
    """
    rows = x.numel() // x.size(-1)
    fits = x.dim() == 3 and x.size(0) >= 16 and x.size(1) > 1   # a batch is a pile of pictures already
    pictures = x
    if not fits:
        pictures = F.pad(x.reshape(rows, -1), (0, 0, 0, -rows % 16)).view(16, -1, x.size(-1))
    channels_last = pictures[:, None].permute(0, 3, 1, 2)       # [pictures, d_in, 1, pixels]
    filtered = F.conv2d(channels_last, weight[:, :, None, None], bias)
    result = filtered.permute(0, 2, 3, 1).squeeze(1)            # [pictures, pixels, d_out]
    return result if fits else result.reshape(-1, weight.size(0))[:rows].view(*x.shape[:-1], -1)


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` by the faster of the two libraries that PyTorch has.

    Args:
        x: `[..., d_in]`.
        weight: `[d_out, d_in]`.
        bias: `[d_out]`, or `None` for none.

    Returns:
        x Wᵀ + b, `[..., d_out]`.
    """
    if (
        onednn_is_faster(x)
        and x.numel() >= _FEW_ROWS * x.size(-1)
        and x.numel() * weight.size(0) >= _LITTLE_WORK
    ):
        return linear_by_convolution(x, weight, bias)
    return F.linear(x, weight, bias)


class Linear(nn.Linear):
    """`torch.nn.Linear`, computed by `fast_linear`.

    Args:
        in_features: width of the input.
        out_features: width of the result.
        bias: whether the layer has one.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias)

    def forward(self, x: Tensor) -> Tensor:
        """Compute x Wᵀ + b for `x` `[..., d_in]`; the result is `[..., d_out]`."""
        return fast_linear(x, self.weight, self.bias)


# %% book/03-attention.ipynb · Three products in one · [linear-together]
def is_untouched(module: nn.Module) -> bool:
    """Whether nobody listens to a module by a hook or has given it another `forward`."""
    hooks = module._forward_hooks, module._forward_pre_hooks
    hooks += module._backward_hooks, module._backward_pre_hooks
    return not any(hooks) and "forward" not in vars(module)


def linear_together(x: Tensor, layers: Sequence[nn.Module]) -> Sequence[Tensor]:
    """Apply several dense layers to one input, in one product where that saves time.

    Args:
        x: `[..., d_in]`.
        layers: modules that each make `[..., d_out]` of it. All must be `Linear`, and
            untouched, to go together; otherwise, and for few rows, they are called one by one.

    Returns:
        what each of them returns.
    """
    # For few rows, to copy the weights would be most of the work; a captured graph serves any number.
    few = not torch.compiler.is_compiling() and x.numel() < _FEW_ROWS * x.size(-1)
    if few or not all(type(layer) is Linear and is_untouched(layer) for layer in layers):
        return [layer(x) for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if len(biases) not in (0, len(layers)):
        return [layer(x) for layer in layers]
    weight = torch.cat([layer.weight for layer in layers])
    bias = torch.cat(biases) if biases else None
    return fast_linear(x, weight, bias).split([len(layer.weight) for layer in layers], dim=-1)


# %% book/03-attention.ipynb · The module · [multi-head-attention]
class MultiHeadAttention(nn.Module):
    """Attention in `n_heads` subspaces of width d_k = d_model / n_heads at once.

    Args:
        d_model: width of the queries and of the result.
        n_heads: number of heads H; divides d_model.
        dropout: rate at which attention weights are dropped in training.
        bias: whether the four projections have one.
        kdim: width of the keys' input; `None` for d_model.
        vdim: width of the values' input; `None` for d_model.

    Raises:
        TypeError: a size is not an `int`, or the rate not a number.
        ValueError: a size is below 1, `n_heads` does not divide `d_model`, or the rate lies outside
            [0, 1).

    Source: Vaswani et al. (2017), section 3.2.2.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
    ) -> None:
        super().__init__()
        self.kdim = d_model if kdim is None else kdim
        self.vdim = d_model if vdim is None else vdim
        check_size(d_model=d_model, n_heads=n_heads, kdim=self.kdim, vdim=self.vdim)
        check_rate(dropout=dropout)
        check_type(bool, bias=bias)
        if d_model % n_heads:
            raise ValueError(
                f"n_heads must divide d_model, but {n_heads} does not divide {d_model}"
            )
        self.d_model, self.n_heads, self.dropout = d_model, n_heads, dropout
        self.w_q = Linear(d_model, d_model, bias)
        self.w_k = Linear(self.kdim, d_model, bias)
        self.w_v = Linear(self.vdim, d_model, bias)
        self.w_o = Linear(d_model, d_model, bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let every query attend to the keys and gather their values.

        Args:
            query: `[B, T, d_model]`; `[K·B, T, d_model]` with a cache that does not grow, where K
                rows of queries in sequence share a row of keys.
            key: `[B, S, kdim]`.
            value: `[B, S, vdim]`.
            mask: `torch.bool`, broadcastable to `[B, H, T, S]`, True where a query may attend; to
                `[B, H, 1, S]` where queries share keys.
            need_weights: whether to return the weights, which the fused kernel never stores.
            cache: the keys and values of earlier calls; the mask's S then counts them as well.

        Returns:
            output `[B, T, d_model]`, and the weights that made it `[B, H, T, S]` or `None`.

        Raises:
            TypeError: an input is not floating-point, or not of the weights' dtype; the mask is not
                boolean; `cache` is no `KeyValueCache`.
            ValueError: a shape does not fit, or a tensor lies on another device than the weights.
        """
        inputs = (
            ("query", query, self.d_model),
            ("key", key, self.kdim),
            ("value", value, self.vdim),
        )
        for name, x, features in inputs:
            check_features(name, x, features)
            check_place(name, x, self.w_q.weight)
        if cache is not None:
            check_type(KeyValueCache, cache=cache)
        sharing = 1
        if (
            cache is not None
            and not cache.growing
            and key.size(0)
            and not query.size(0) % key.size(0)
        ):
            sharing = query.size(0) // key.size(0)  # K
        if query.size(0) != sharing * key.size(0) or key.shape[:2] != value.shape[:2]:
            given = ", ".join(str(list(x.shape)) for x in (query, key, value))
            raise ValueError(
                f"query, key and value must share the batch, key and value the length, not {given}"
            )
        known = cache is not None and cache.complete
        query, *made = (self._split(x) for x in self._project(query, key, value, known))
        if sharing > 1:
            query = (
                query.unflatten(0, (-1, sharing)).transpose(1, 2).flatten(2, 3)
            )  # [B, H, K·T, d_k]
        if known:
            if key.size(1) != cache.length:
                raise ValueError(
                    f"key must have the cache's length {cache.length}, not {key.size(1)}"
                )
            key, value = cache.read()
        else:
            key, value = made                                   # [B, H, S, d_k]
            if cache is not None:
                key, value = cache.append(key, value)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            context, weights = scaled_dot_product_attention(query, key, value, mask, dropout)
        else:
            context, weights = fused_attention(query, key, value, mask, dropout), None
        if sharing > 1:
            context = self._unshare(context, sharing)  # [K·B, H, T, d_k]
            weights = None if weights is None else self._unshare(weights, sharing)
        return self.w_o(context.transpose(1, 2).flatten(2)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor, known: bool) -> Iterable[Tensor]:
        if known:
            return [self.w_q(query)]
        if query is key and key is value:
            return linear_together(query, (self.w_q, self.w_k, self.w_v))
        if key is value:
            return self.w_q(query), *linear_together(key, (self.w_k, self.w_v))
        return self.w_q(query), self.w_k(key), self.w_v(value)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # [B, H, T, d_k]

    @staticmethod
    def _unshare(x: Tensor, sharing: int) -> Tensor:
        return (
            x.unflatten(2, (sharing, -1)).transpose(1, 2).flatten(0, 1)
        )  # [B, H, K·T, …] -> [K·B, H, T, …]
