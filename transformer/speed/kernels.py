"""Kernels, and one table that chooses among them."""

import ctypes
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer.attention import causal_mask, check_mask, scaled_dot_product_attention
from transformer.validation import is_traced

__all__ = [
    "HAS_ONEDNN",
    "linear_by_onednn",
    "linear_by_columns",
    "dropout_by_bytes",
    "widened_attention",
    "onednn_wins",
    "CHOICES",
    "fastest",
    "fast_linear",
    "fast_attention",
    "keep_freed_memory",
]


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


def linear_by_columns(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `torch.nn.functional.linear` of a few rows `[N, d_in]` as (W xᵀ)ᵀ."""
    rows = x if len(x) > 1 else x.repeat(2, 1)
    product = (weight @ rows.T).T[: len(x)]  # [N, d_out]
    return product if bias is None else product + bias


def dropout_by_bytes(x: Tensor, rate: float) -> Tensor:
    """Compute `torch.nn.functional.dropout` from 16 random bits an entry."""
    dropped = min(round(rate * 2**16), 2**16 - 1)  # of 2¹⁶ equally likely numbers
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)  # from -2¹⁵ to 2¹⁵ - 1
    keep = torch.empty(x.shape, dtype=torch.uint8)  # truth values are slower to multiply with
    torch.ge(numbers, dropped - 2**15, out=keep)
    return (x * keep).mul_(2**16 / (2**16 - dropped))


def widened_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **options: Any
) -> Tensor:
    """Compute PyTorch's fused attention in float32, whose backward pass is faster on the CPU."""
    wide = query.float(), key.float(), value.float()
    with torch.autocast("cpu", enabled=False):
        return F.scaled_dot_product_attention(*wide, mask, **options).to(query.dtype)


def _family() -> int:
    # The processor's family, as Windows and Linux report it; 0 where neither does.
    told = platform.processor()
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text(encoding="utf8")
    found = re.search(r"family\s*:?\s*(\d+)", told, flags=re.IGNORECASE)
    return int(found[1]) if found else 0


@cache
def _is_amd() -> bool:
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in every torch
    return "AMD" in capabilities.get("cpu_name", "")


@cache
def _least_work() -> float:
    # The number of multiplications from which oneDNN is taken. On AMD's processors MKL seems to work on
    # 256 bits at a time. Servers of family 26 multiply 512 at once; earlier ones gain less.
    if not _is_amd() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return float("inf")
    return 2**22 if _family() >= 26 else 2**27


def _is_float32_on_the_cpu(x: Tensor) -> bool:
    here = x.device.type == "cpu" and x.dtype == torch.float32 and not is_traced(x)
    return here and not torch.is_autocast_enabled("cpu")


def onednn_wins(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies `x` and `weight` faster than the library that PyTorch would take."""
    there = HAS_ONEDNN and bool(torch.backends.mkldnn.enabled)
    return there and _is_float32_on_the_cpu(x) and x.numel() * weight.size(0) >= _least_work()


def _are_few_rows_from_memory(x: Tensor, weight: Tensor, n_read: int) -> bool:
    few, from_memory = x.numel() < 2**12, n_read >= 2**22  # 16 MB of weights
    return few and from_memory and _is_float32_on_the_cpu(x) and _is_amd()


def _onednn_wins_a_step(x: Tensor, weight: Tensor, n_read: int) -> bool:
    return onednn_wins(x, weight)


def _is_large(x: Tensor) -> bool:
    return not is_traced(x) and x.numel() >= 2**14 and x.device.type == "cpu"


def _is_short_half_with_gradient(query: Tensor) -> bool:
    half = query.dtype in (torch.bfloat16, torch.float16) and query.device.type == "cpu"
    return half and torch.is_grad_enabled() and (is_traced(query) or query.size(-2) <= 128)


def _always(*deciding: Any) -> bool:
    return True


# The kernels for each task, fastest first, each with the condition under which it wins.
CHOICES: dict[str, list[tuple[Callable[..., bool], Callable[..., Tensor]]]] = {
    "linear": [
        (onednn_wins, linear_by_onednn),
        (_always, F.linear),
    ],
    "linear of a step": [  # in which all products together read so many weights
        (_are_few_rows_from_memory, linear_by_columns),
        (_onednn_wins_a_step, linear_by_onednn),
        (_always, F.linear),
    ],
    "dropout": [
        (_is_large, dropout_by_bytes),
        (_always, F.dropout),
    ],
    "attention": [
        (_is_short_half_with_gradient, widened_attention),
        (_always, F.scaled_dot_product_attention),
    ],
}


def fastest(task: str, *deciding: Any) -> Callable[..., Tensor]:
    """The first kernel of `CHOICES[task]` whose condition holds for the tensors and sizes that decide."""
    for condition, kernel in CHOICES[task]:
        if condition(*deciding):
            return kernel
    raise LookupError(f"no kernel of CHOICES[{task!r}] can do this")


def fast_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`torch.nn.functional.linear`, by the fastest kernel."""
    return fastest("linear", x, weight)(x, weight, bias)


def fast_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """`fused_attention`, which leaves a mask out where a look at it shows that none is needed."""
    if is_traced(query, key, value) and not torch.compiler.is_compiling():  # vmap has no fused kernel
        return scaled_dot_product_attention(query, key, value, mask, dropout)[0]
    attend = partial(fastest("attention", query), query, key, value, dropout_p=dropout)
    if mask is None:
        return attend()
    check_mask(mask, query, key)
    nothing = ~mask.any(dim=-1, keepdim=True)  # [..., T, 1]
    if mask.device.type == "cpu" and not is_traced(mask):  # on a GPU, looking means waiting
        if mask.all():
            return attend()
        T, S = query.size(-2), key.size(-2)
        if mask.shape == (1, 1, T, S) and torch.equal(mask, causal_mask(T)):
            return attend(is_causal=True)
        if not nothing.any():
            return attend(mask)
    return attend(mask | nothing).masked_fill(nothing, 0.0)


def keep_freed_memory() -> None:
    """Keep freed blocks of less than 32 MiB for the next training step, and up to 1 GiB at the heap's end.

    By default glibc returns part of them to the system, which must then map and clear pages again.
    This holds for the whole process, so a program calls it at its own start, and a library does not.
    With other C libraries nothing changes. Source: mallopt(3).
    """
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
        mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
