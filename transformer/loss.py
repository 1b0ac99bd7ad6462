"""transformer.loss, from book/06-loss.ipynb, "Loss".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "check_targets",
    "check_logits",
    "label_smoothed_cross_entropy",
    "token_accuracy",
    "perplexity",
    "linear_cross_entropy",
    "check_batch",
    "teacher_forced_loss",
    "symmetric_kl",
    "r_drop_loss",
]


# %% book/06-loss.ipynb · Which mean · [label-smoothed-cross-entropy]
import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import fast_linear, linear_by_onednn, onednn_is_faster
from transformer.model import Transformer
from transformer.validation import (
    check_choice,
    check_features,
    check_ids,
    check_number,
    check_place,
    check_rate,
    check_type,
    is_traced,
)


def check_targets(targets: Tensor, like: Tensor, vocab_size: int, pad_id: int) -> None:
    """Refuse targets that are no token ids.

    The targets' values are looked at on the CPU only, and not where `is_traced`: on an accelerator
    the host would have to wait for them.

    Args:
        targets: token ids `[...]`.
        like: the tensor that the predictions come from, on the device where the targets must lie.
        vocab_size: number of tokens V.
        pad_id: the one id that need not be below V.

    Raises:
        TypeError: the targets are not `torch.long`, or `pad_id` is no `int`.
        ValueError: they lie on another device.
        IndexError: a target is neither in [0, V) nor `pad_id`.
    """
    check_type(Tensor, targets=targets)
    check_type(int, pad_id=pad_id)
    if targets.dtype != torch.long:
        raise TypeError(f"targets must be torch.long, not {targets.dtype}")
    check_place("targets", targets, like, "the logits")
    if is_traced(targets) or targets.device.type != "cpu":
        return
    outside = targets[((targets < 0) | (targets >= vocab_size)) & (targets != pad_id)]
    if outside.numel() > 0:
        raise IndexError(f"targets must lie in [0, {vocab_size}), but hold {int(outside[0])}")


def check_logits(logits: Tensor, targets: Tensor, pad_id: int) -> None:
    """Refuse logits and targets that do not belong together.

    Args:
        logits: `[..., V]`.
        targets: token ids `[...]`.
        pad_id: the one id that need not be below V.

    Raises:
        TypeError: the logits are not floating-point, or the targets not `torch.long`.
        ValueError: the logits are not `[..., V]` for targets `[...]`, V being at least 1, or lie on
            another device.
        IndexError: a target is neither in [0, V) nor `pad_id`.
    """
    check_features("logits", logits, None, rank=None)
    check_type(Tensor, targets=targets)
    if logits.shape[:-1] != targets.shape or logits.size(-1) == 0:
        raise ValueError(
            f"logits must be [..., V] for targets {list(targets.shape)}, not {list(logits.shape)}"
        )
    check_targets(targets, logits, logits.size(-1), pad_id)


def label_smoothed_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    smoothing: float = 0.1,
    pad_id: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """The cross-entropy of the predictions against targets that share out some of their mass.

    Args:
        logits: `[..., V]`.
        targets: token ids `[...]`.
        smoothing: ε in [0, 1); the true token gets 1 − ε + ε/V, every other one ε/V.
        pad_id: targets of this id do not count.
        reduction: `"mean"` over the real target tokens, or `"sum"`.

    Returns:
        a scalar, in nats; 0 where every target is padding. Under half precision it is computed in
        float32.

    Raises:
        TypeError: the logits are not floating-point, or the targets not `torch.long`.
        ValueError: shapes do not fit, `smoothing` is outside [0, 1), or `reduction` is unknown.
        IndexError: a target is not in the vocabulary.

    Source: Szegedy et al. (2016), section 7; Vaswani et al. (2017), section 5.4.
    """
    check_logits(logits, targets, pad_id)
    check_rate(smoothing=smoothing)
    check_choice(("mean", "sum"), reduction=reduction)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = F.cross_entropy(
        logits.reshape(-1, logits.size(-1)),
        targets.reshape(-1),
        ignore_index=pad_id,
        label_smoothing=smoothing,
        reduction="sum",
    )
    if reduction == "sum":
        return total
    return total / (targets != pad_id).sum().clamp(min=1)


# %% book/06-loss.ipynb · Accuracy and perplexity · [accuracy]
def token_accuracy(logits: Tensor, targets: Tensor, pad_id: int = 0) -> Tensor:
    """The share of real target tokens that got the highest logit.

    Args:
        logits: `[..., V]`.
        targets: token ids `[...]`.
        pad_id: targets of this id do not count.

    Returns:
        a scalar in [0, 1]; 0 where every target is padding.

    Raises:
        TypeError, ValueError, IndexError: as in `label_smoothed_cross_entropy`.
    """
    check_logits(logits, targets, pad_id)
    real = targets != pad_id
    return ((logits.argmax(-1) == targets) & real).sum() / real.sum().clamp(min=1)


def perplexity(loss: float) -> float:
    """Among how many equally likely tokens a model wavers.

    Args:
        loss: an unsmoothed cross-entropy, in nats per token.

    Returns:
        e to the power of `loss`; infinite where that is more than a float can hold.
    """
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


# %% book/06-loss.ipynb · The loss without the logits · [linear-cross-entropy]
_FEW_LOGITS = 2**20  # 4 MB in float32, which stay in a processor's cache
_AT_ONCE = {"cpu": _FEW_LOGITS}  # elsewhere more, so that launches are few


def _loss_and_slope(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int
) -> tuple[Tensor, Tensor]:
    # Of rows [n, V] and targets [n]: the summed loss, and its derivative P - Q by the logits.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    real = (targets != pad_id)[:, None]  # [n, 1]
    true = targets[:, None].where(real, 0)  # the padding may lie outside [0, V)
    log_p = z.log_softmax(-1)  # [n, V]
    wanted = (1 - smoothing) * log_p.gather(1, true) + smoothing * log_p.mean(-1, keepdim=True)
    loss = -wanted.masked_fill(~real, 0.0).sum()
    slope = log_p.exp_().sub_(smoothing / z.size(-1))
    slope.scatter_add_(1, true, torch.full_like(wanted, smoothing - 1))
    return loss, slope.masked_fill_(~real, 0.0).to(logits.dtype)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, loss_and_slope):
        device, d_weight = hidden.device.type, torch.zeros_like(weight)
        half = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if half else weight.dtype
        table, total, slopes = weight.to(dtype), 0.0, []  # cast once, not for every chunk
        fast = onednn_is_faster(hidden)
        multiply = linear_by_onednn if fast else F.linear
        columns = table.T.contiguous() if fast else table.T
        passes = hidden.dim() - 1  # of [n, d_model], or of two passes [2, n, d_model]
        n = max(1, _AT_ONCE.get(device, 2**26) // (len(table) * passes))
        for rows, y in zip(hidden.to(dtype).split(n, -2), targets.split(n)):
            loss, slope = loss_and_slope(multiply(rows, table), y)
            total = total + loss
            slopes.append(multiply(slope, columns))
            slope, rows = slope.flatten(0, -2), rows.flatten(0, -2)
            if dtype == d_weight.dtype:  # in place: a matrix of that size is dear to make
                d_weight.addmm_(slope.T, rows)
            else:
                d_weight += slope.T @ rows
        ctx.save_for_backward(torch.cat(slopes, -2).to(hidden.dtype), d_weight)
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_total):
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * d_total, d_weight * d_total, None, None


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, smoothing: float = 0.1, pad_id: int = 0
) -> Tensor:
    """The summed `label_smoothed_cross_entropy` of logits that never exist as a whole.

    Args:
        hidden: vectors `[..., d_model]`.
        weight: the output table `[V, d_model]`; the logits are hidden · weightᵀ.
        targets: token ids `[...]`.
        smoothing, pad_id: as in `label_smoothed_cross_entropy`.

    Returns:
        a scalar, in nats, that can be differentiated once; up to 2²⁰ logits, any number of times.

    Raises:
        TypeError: `hidden` is not floating-point or not of the table's dtype, or the targets are
            not `torch.long`.
        ValueError: a shape does not fit, or `smoothing` is outside [0, 1).
        IndexError: a target is not in the vocabulary.
    """
    check_type(Tensor, hidden=hidden, weight=weight)
    check_features("weight", weight, None, rank=2)
    check_features("hidden", hidden, weight.size(1), rank=None)
    check_place("hidden", hidden, weight)
    check_targets(targets, hidden, weight.size(0), pad_id)
    if hidden.shape[:-1] != targets.shape:
        raise ValueError(
            f"hidden must be [..., d_model] for targets {list(targets.shape)}, not {list(hidden.shape)}"
        )
    check_rate(smoothing=smoothing)
    whole = is_traced(hidden, weight) or not torch.is_grad_enabled()
    if whole or targets.numel() * len(weight) <= _FEW_LOGITS:
        logits = fast_linear(hidden, weight)
        return label_smoothed_cross_entropy(logits, targets, smoothing, pad_id, reduction="sum")
    rows = hidden.reshape(-1, hidden.size(-1))
    loss_and_slope = partial(_loss_and_slope, smoothing=smoothing, pad_id=pad_id)
    return _ChunkedLoss.apply(rows, weight, targets.reshape(-1), loss_and_slope)


# %% book/06-loss.ipynb · The loss of a batch · [teacher-forced-loss]
def check_batch(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Refuse what is no pair of source and target ids, before the target is cut in two.

    Args:
        model: the model that is to read them.
        batch: source ids `[B, S]` and target ids `[B, T + 1]`.

    Returns:
        the pair.

    Raises:
        TypeError: `model` is no module, `batch` no pair, or the target ids are not `torch.long`.
        ValueError: `batch` holds not two things, or the target ids do not have two axes.
        IndexError: a target id is not in the vocabulary.
    """
    check_type(nn.Module, model=model)
    check_type((tuple, list), batch=batch)
    if len(batch) != 2:
        raise ValueError(f"batch must be a pair of source and target ids, not {len(batch)} things")
    src, tgt = batch
    check_ids("tgt", tgt, model.config.tgt_vocab_size)
    return src, tgt


def teacher_forced_loss(
    model: Transformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch whose targets are read and predicted one token apart.

    Args:
        model: the model, in whichever mode it is; its logits are never computed as a whole.
        batch: source ids `[B, S]` and target ids `[B, T + 1]` that begin with the start token.
        smoothing: as in `label_smoothed_cross_entropy`.

    Returns:
        the summed loss in nats, and the number of real target tokens that it sums over.

    Raises:
        TypeError, ValueError, IndexError: as in `Transformer` and `label_smoothed_cross_entropy`.
    """
    src, tgt = check_batch(model, batch)
    hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
    targets, pad_id = tgt[:, 1:], model.config.pad_id
    loss = linear_cross_entropy(hidden, model.output.weight, targets, smoothing, pad_id)
    return loss, (targets != pad_id).sum()


# %% book/06-loss.ipynb · Two passes that should agree · [symmetric-kl]
def symmetric_kl(logits_p: Tensor, logits_q: Tensor, targets: Tensor, pad_id: int = 0) -> Tensor:
    """How much two predictions of the same targets differ: the mean of both Kullback–Leibler divergences.

    Args:
        logits_p, logits_q: `[..., V]`.
        targets: token ids `[...]`; they only say which positions count.
        pad_id: positions with this target do not count.

    Returns:
        a scalar, summed over the real target tokens, in nats; never negative but for rounding. Under
        half precision it is computed in float32.

    Raises:
        TypeError, ValueError, IndexError: as in `label_smoothed_cross_entropy`.
    """
    check_logits(logits_p, targets, pad_id)
    check_logits(logits_q, targets, pad_id)
    log_p, log_q = (
        z.to(torch.promote_types(z.dtype, torch.float32)).log_softmax(-1)
        for z in (logits_p, logits_q)
    )
    gap = (log_p - log_q).masked_fill(log_p == log_q, 0.0)  # also where both are -inf
    divergence = ((log_p.exp() - log_q.exp()) * gap).sum(-1) / 2
    return divergence.masked_fill(targets == pad_id, 0.0).sum()


# %% book/06-loss.ipynb · What is added to what · [r-drop]
def _r_drop_and_slope(
    logits: Tensor, targets: Tensor, smoothing: float, pad_id: int, alpha: float
) -> tuple[Tensor, Tensor]:
    # Of two passes [2, n, V] and targets [n]: the summed loss, and its derivative by the logits.
    z = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss, slope = _loss_and_slope(z.flatten(0, 1), targets.repeat(2), smoothing, pad_id)
    log_p = z.log_softmax(-1)
    p = log_p.exp()  # [2, n, V]
    gap, difference = log_p[0] - log_p[1], p[0] - p[1]
    padding = (targets == pad_id)[:, None]  # [n, 1]
    divergence = (difference * gap).masked_fill(padding, 0.0).sum() / 2
    pull = p.mul_(gap - (p * gap).sum(-1, keepdim=True)).add_(difference).masked_fill_(padding, 0.0)
    pull[1].neg_()
    slope = slope.view_as(z).add_(pull, alpha=alpha / 2).div_(2)
    return (loss + alpha * divergence) / 2, slope.to(logits.dtype)


def r_drop_loss(
    model: Transformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1, alpha: float = 5.0
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch that passes twice, with different dropout, and should come out the same.

    Args:
        model: the model, in training mode, or dropout drops nothing; its logits are never computed
            as a whole.
        batch: source ids `[B, S]` and target ids `[B, T + 1]` that begin with the start token.
        smoothing: as in `label_smoothed_cross_entropy`.
        alpha: weight of the divergence between the passes, beside the sum of their cross-entropies.

    Returns:
        half of (both cross-entropies + α · `symmetric_kl`), in nats, summed over the real target
        tokens; and their number, each counted once.

    Raises:
        TypeError, ValueError, IndexError: as in `teacher_forced_loss`, or `alpha` is negative or not
            finite.

    Source: Liang et al. (2021), section 2.1.
    """
    src, tgt = check_batch(model, batch)
    check_ids("src", src, model.config.src_vocab_size)
    if len(src) != len(tgt):
        raise ValueError(f"src and tgt must have the same batch size, not {len(src)} and {len(tgt)}")
    check_rate(smoothing=smoothing)
    check_number(alpha=alpha)
    targets, pad_id, weight = tgt[:, 1:], model.config.pad_id, model.output.weight
    src, tgt = torch.cat((src, src)), torch.cat((tgt, tgt))  # [2B, S], [2B, T + 1]
    hidden = model.decode(tgt[:, :-1], model.encode(src), model.src_mask(src))
    rows = hidden.reshape(2, targets.numel(), hidden.size(-1))
    options = {"smoothing": smoothing, "pad_id": pad_id}
    if is_traced(rows, weight) or not torch.is_grad_enabled() or targets.numel() == 0:
        p, q = fast_linear(rows, weight)
        y = targets.reshape(-1)
        loss = sum(label_smoothed_cross_entropy(z, y, **options, reduction="sum") for z in (p, q))
        loss = (loss + alpha * symmetric_kl(p, q, y, pad_id)) / 2
    else:
        loss_and_slope = partial(_r_drop_and_slope, **options, alpha=alpha)
        loss = _ChunkedLoss.apply(rows, weight, targets.reshape(-1), loss_and_slope)
    return loss, (targets != pad_id).sum()
