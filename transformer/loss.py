"""transformer.loss, from book/06-loss.ipynb, "Loss".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "label_smoothed_cross_entropy", "token_accuracy", "perplexity", "teacher_forced_loss", "symmetric_kl",
    "r_drop_loss",
]


# %% book/06-loss.ipynb · Which mean · [loss-imports]
import math
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.model import Transformer
from transformer.validation import check_batch, check_choice, check_number, check_rate


# %% book/06-loss.ipynb · Which mean · [label-smoothed-cross-entropy]
def label_smoothed_cross_entropy(
    logits: Tensor, targets: Tensor, smoothing: float = 0.1, pad_id: int = 0,
    reduction: str = "mean",
) -> Tensor:
    """The cross-entropy of predictions against smoothed targets.

    Args:
        logits, targets: `[..., V]` and token ids `[...]`; `pad_id` does not count.
        smoothing: ε_ls in [0, 1), taken from the true token and shared out among all V.
        reduction: `"mean"` over the real target tokens, or `"sum"`.

    Returns:
        a scalar in nats, in float32 at least; 0 where every target is padding.

    Raises:
        TypeError, ValueError: shapes do not fit, or an option is out of its range.

    Source: Szegedy et al. (2016), section 7; Vaswani et al. (2017), section 5.4.
    """
    _check_shapes(logits, targets)
    check_choice(("mean", "sum"), reduction=reduction)
    check_rate(smoothing=smoothing)  # torch takes a negative one for 0
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


# %% book/06-loss.ipynb · Which mean · [check-shapes]
def _check_shapes(logits: Tensor, targets: Tensor) -> None:
    if logits.shape[:-1] != targets.shape:
        given = f"{list(logits.shape)} and {list(targets.shape)}"
        raise ValueError(f"logits and targets must be [..., V] and [...], not {given}")


# %% book/06-loss.ipynb · Accuracy and perplexity · [accuracy]
def token_accuracy(logits: Tensor, targets: Tensor, pad_id: int = 0) -> Tensor:
    """The share of real `targets` `[...]`, those that aren't `pad_id`, to which
    `logits` `[..., V]` give the most, in [0, 1]; 0 where every target is padding.
    """
    _check_shapes(logits, targets)
    real = targets != pad_id
    return ((logits.argmax(-1) == targets) & real).sum() / real.sum().clamp(min=1)


def perplexity(loss: float) -> float:
    """The number of equally likely tokens that a model is choosing among, on average:
    e to the power of its unsmoothed loss, in nats per token.
    """
    return math.inf if loss > 709 else math.exp(loss)  # beyond, no float suffices


# %% book/06-loss.ipynb · The loss of a batch · [teacher-forced-loss]
@singledispatch
def teacher_forced_loss(
    model: Transformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch, each target token predicted from those before it.

    Args:
        model: the model, in whichever mode it is.
        batch: source ids `[B, S]` and target ids `[B, T + 1]`, the start token first.
        smoothing: as in `label_smoothed_cross_entropy`.

    Returns:
        the summed loss in nats, and the number of real target tokens that it sums over.
    """
    src, tgt = check_batch(batch, model)
    pad_id, targets = model.config.pad_id, tgt[:, 1:]
    logits = model(src, tgt[:, :-1])  # [B, T, V]
    loss = label_smoothed_cross_entropy(logits, targets, smoothing, pad_id, "sum")
    return loss, (targets != pad_id).sum()


# %% book/06-loss.ipynb · R-Drop · [symmetric-kl]
def symmetric_kl(logits_p: Tensor, logits_q: Tensor, targets: Tensor, pad_id: int = 0) -> Tensor:
    """The mean of both Kullback–Leibler divergences between two predictions.

    Args:
        logits_p, logits_q: `[..., V]`, both of the same targets.
        targets: token ids `[...]`; positions with `pad_id` do not count.

    Returns:
        a scalar, summed over the real target tokens, in nats.
    """
    for logits in (logits_p, logits_q):
        _check_shapes(logits, targets)
    dtype = torch.promote_types(logits_p.dtype, torch.float32)
    log_p, log_q = (z.log_softmax(-1, dtype=dtype) for z in (logits_p, logits_q))
    gap = (log_p - log_q).masked_fill(log_p == log_q, 0.0)  # also where both are -inf
    divergence = ((log_p.exp() - log_q.exp()) * gap).sum(-1) / 2
    return divergence.masked_fill(targets == pad_id, 0.0).sum()


# %% book/06-loss.ipynb · R-Drop · [r-drop]
def r_drop_loss(
    model: Transformer, batch: tuple[Tensor, Tensor], smoothing: float = 0.1,
    alpha: float = 5.0,
) -> tuple[Tensor, Tensor]:
    """The summed loss of a batch run twice, with a penalty where the two predictions differ.

    Args:
        model, batch, smoothing: as in `teacher_forced_loss`; the model in training mode.
        alpha: weight of the divergence against the sum of both cross-entropies.

    Returns:
        half of (both cross-entropies + α · `symmetric_kl`), in nats, summed over the real
        target tokens; and their number, each counted once.

    Source: Liang et al. (2021), section 2.1.
    """
    check_number(alpha=alpha)  # below 0, passes that differ would be a gain
    src, tgt = check_batch(batch, model)
    pad_id, targets = model.config.pad_id, tgt[:, 1:]
    logits = model(torch.cat((src, src)), torch.cat((tgt, tgt))[:, :-1])  # [2B, T, V]
    both = torch.cat((targets, targets))
    loss = label_smoothed_cross_entropy(logits, both, smoothing, pad_id, "sum")
    p, q = logits.chunk(2)
    divergence = symmetric_kl(p, q, targets, pad_id)
    return (loss + alpha * divergence) / 2, (targets != pad_id).sum()
