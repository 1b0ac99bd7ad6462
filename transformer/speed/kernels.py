"""Kernels, and the choice among them."""

import ctypes
import platform
from collections.abc import Callable
from functools import partial
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer.attention import causal_mask, check_mask, fused_attention
from transformer.validation import is_traced

__all__ = [
    "HAS_ONEDNN", "linear_by_onednn", "onednn_wins", "fastest", "fast_linear", "fast_attention",
    "keep_freed_memory",
]  # fmt: skip


HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` in float32 by oneDNN."""
    multiply = _OneDNNLinear.apply if torch.is_grad_enabled() else _onednn_linear
    product: Tensor = multiply(x, weight, bias)
    return product


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _OneDNNLinear(torch.autograd.Function):
    # The operator has no derivative of its own. This one consists of such products again.
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        d_x = linear_by_onednn(slope, weight.T)
        rows, slopes = (y.reshape(-1, y.size(-1)) for y in (x, slope))  # [n, d_in], [n, d_out]
        if len(weight) < weight.size(1):  # a transposed first argument is copied: let it be the smaller
            d_weight = linear_by_onednn(slopes.T, rows.T)
        else:
            d_weight = linear_by_onednn(rows.T, slopes.T).T
        return d_x, d_weight, slopes.sum(0) if ctx.needs_input_grad[2] else None


# AMD's Zen 5, the first of them with `avx_vnni`, multiplies up to 512 bits at once, MKL seemingly 256.
_CPU: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch
_ZEN_5 = "AMD" in _CPU.get("cpu_name", "") and _CPU.get("avx_vnni", False)
_MKL_IS_SLOW = _ZEN_5 and torch.backends.cpu.get_cpu_capability() == "AVX512"
_LEAST_WORK = 2**22  # multiplications that are worth a call of oneDNN


def onednn_wins(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies `x` and `weight` faster than the library that PyTorch would take."""
    if not _MKL_IS_SLOW or x.numel() * weight.size(0) < _LEAST_WORK:
        return False
    float32_on_the_cpu = x.device.type == "cpu" and x.dtype == torch.float32
    captured = is_traced(x) or torch.is_autocast_enabled("cpu")
    return float32_on_the_cpu and not captured and HAS_ONEDNN and bool(torch.backends.mkldnn.enabled)


def fastest(x: Tensor, weight: Tensor) -> Callable[..., Tensor]:
    """The kernel that multiplies these. One that stands here makes a whole training step 1.15 times as fast
    on two kinds of processor, or 1.5 times on one."""
    return linear_by_onednn if onednn_wins(x, weight) else F.linear


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, by the fastest kernel."""
    return fastest(x, weight)(x, weight, bias)


def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """`fused_attention`, which does less where a look at the mask shows that less is needed."""
    looked_at = isinstance(mask, Tensor) and mask.device.type == "cpu" and not is_traced(mask)
    if mask is None or not looked_at:  # on a GPU, looking means waiting
        return fused_attention(query, key, value, mask, dropout)
    check_mask(mask, query, key)
    attend = partial(F.scaled_dot_product_attention, query, key, value, dropout_p=dropout)
    T, S = query.size(-2), key.size(-2)
    if mask.all():
        return attend()
    if mask.shape == (1, 1, T, S) and torch.equal(mask, causal_mask(T)):
        return attend(is_causal=True)
    if mask.any(dim=-1).all():  # no query has nothing to attend to
        return attend(mask)
    return fused_attention(query, key, value, mask, dropout)


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of less than 32 MiB for the next training step, and up to 1 GiB at the
    heap's end. It holds for the whole process, so a program calls it and a library does not: mallopt(3)."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
