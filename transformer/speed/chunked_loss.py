"""transformer.speed.chunked_loss, from book/10-speed.ipynb, "Speed".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["linear_cross_entropy"]


# %% book/10-speed.ipynb · The loss without the logits · [chunked-loss-imports]
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.loss import label_smoothed_cross_entropy
from transformer.speed.kernels import fast_linear, fastest
from transformer.validation import check_range, check_rate, is_traced


# %% book/10-speed.ipynb · The loss without the logits · [loss-and-slope]
def _loss_and_slope(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int
) -> tuple[Tensor, Tensor]:
    # Of rows [n, V] and targets [n]: the summed loss and the slope P - Q, padding too.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    real = (targets != pad_id)[:, None]  # [n, 1]
    true = targets[:, None].where(real, 0)  # the padding may lie outside [0, V)
    log_p = z.log_softmax(-1)  # [n, V]
    wanted = (1 - smoothing) * log_p.gather(1, true)
    wanted += smoothing * log_p.mean(-1, keepdim=True)
    loss = -wanted.masked_fill(~real, 0.0).sum()
    slope = log_p.exp_().sub_(smoothing / z.size(-1))
    slope.scatter_add_(1, true, torch.full_like(wanted, smoothing - 1))
    return loss, slope.to(logits.dtype)


# %% book/10-speed.ipynb · The loss without the logits · [chunked-loss]
_FEW_LOGITS = 2**21  # 8 MB in float32, which fit into a processor's cache
_AT_ONCE = {"cpu": _FEW_LOGITS}  # larger on a GPU, so that there are few launches


class _ChunkedLoss(torch.autograd.Function):
    # Of hidden rows [n, d_model], zero at padding, which keeps it out of the table's gradient.
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float, pad_id: int
    ) -> Tensor:
        device, wide = hidden.device.type, torch.promote_types(weight.dtype, torch.float32)
        d_columns = torch.zeros_like(weight.T, dtype=wide)  # of the table, transposed; summed over the chunks
        half = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if half else weight.dtype
        table = weight.to(dtype)  # once, and not for every chunk
        total, slopes = weight.new_zeros(()), []
        multiply = fastest(hidden, table)
        n = max(1, _AT_ONCE.get(device, 2**26) // len(table))
        for rows, y in zip(hidden.to(dtype).split(n), targets.split(n)):
            loss, slope = _loss_and_slope(multiply(rows, table), y, smoothing, pad_id)
            total = total + loss
            slopes.append(multiply(slope, table.T))
            if multiply is F.linear and dtype == wide:  # in place, without another matrix of that size
                d_columns.addmm_(rows.T, slope)
            else:
                d_columns += multiply(rows.T, slope.T)
        d_weight = d_columns.T.to(weight.dtype).contiguous()
        ctx.save_for_backward(torch.cat(slopes).to(hidden.dtype), d_weight)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_total, d_weight * d_total, None, None, None


# %% book/10-speed.ipynb · The loss without the logits · [linear-cross-entropy]
def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.1,
    pad_id: int = 0,
) -> Tensor:
    """The summed `label_smoothed_cross_entropy` of logits that never exist as a whole.

    Args:
        hidden: vectors `[..., d_model]`.
        weight: the output table `[V, d_model]`; the logits are hidden · weightᵀ.
        targets: token ids `[...]`.
        smoothing, pad_id: as in `label_smoothed_cross_entropy`.

    Returns:
        a scalar in nats, to be differentiated once; for up to 2²¹ logits, at will.

    Raises:
        TypeError, ValueError: shapes do not fit, or `smoothing` is not in [0, 1).
        IndexError: on the CPU, a target is not in the vocabulary.
    """
    if hidden.shape[:-1] != targets.shape:  # which would be matched all the same
        given = f"{list(hidden.shape)} and {list(targets.shape)}"
        raise ValueError(f"hidden and targets must be [..., d] and [...], not {given}")
    check_rate(smoothing=smoothing)
    check_range("targets", targets.where(targets != pad_id, 0), len(weight))
    whole = is_traced(hidden, weight) or not torch.is_grad_enabled()
    if whole or targets.numel() * len(weight) <= _FEW_LOGITS:
        logits = fast_linear(hidden, weight)
        return label_smoothed_cross_entropy(logits, targets, smoothing, pad_id, "sum")
    targets = targets.reshape(-1)
    rows = hidden.reshape(-1, hidden.size(-1))
    rows = rows.masked_fill((targets == pad_id)[:, None], 0.0)
    return _ChunkedLoss.apply(rows, weight, targets, smoothing, pad_id)
