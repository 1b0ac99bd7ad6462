"""transformer.loss, from book/06-loss.ipynb, "Loss".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "check_logits",
    "label_smoothed_cross_entropy",
    "token_accuracy",
    "perplexity",
    "check_batch",
    "teacher_forced_loss",
]


# %% book/06-loss.ipynb · Which mean · [label-smoothed-cross-entropy]
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.model import Transformer
from transformer.validation import (
    check_choice,
    check_features,
    check_ids,
    check_place,
    check_rate,
    check_type,
)


def check_logits(logits: Tensor, targets: Tensor, pad_id: int) -> None:
    """Refuse logits and targets that do not belong together.

    The targets' values are looked at on the CPU only, and not while `torch.compile` or
    `torch.export` traces: on an accelerator the host would have to wait for them.

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
    check_type(int, pad_id=pad_id)
    if targets.dtype != torch.long:
        raise TypeError(f"targets must be torch.long, not {targets.dtype}")
    check_place("targets", targets, logits, "the logits")
    if logits.shape[:-1] != targets.shape or logits.size(-1) == 0:
        raise ValueError(
            f"logits must be [..., V] for targets {list(targets.shape)}, not {list(logits.shape)}"
        )
    if torch.compiler.is_compiling() or targets.device.type != "cpu":
        return
    vocab_size = logits.size(-1)
    outside = targets[((targets < 0) | (targets >= vocab_size)) & (targets != pad_id)]
    if outside.numel() > 0:
        raise IndexError(f"targets must lie in [0, {vocab_size}), but hold {int(outside[0])}")


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
        model: the model, in whichever mode it is.
        batch: source ids `[B, S]` and target ids `[B, T + 1]` that begin with the start token.
        smoothing: as in `label_smoothed_cross_entropy`.

    Returns:
        the summed loss in nats, and the number of real target tokens that it sums over.

    Raises:
        TypeError, ValueError, IndexError: as in `Transformer` and `label_smoothed_cross_entropy`.
    """
    src, tgt = check_batch(model, batch)
    logits, targets, pad_id = model(src, tgt[:, :-1]), tgt[:, 1:], model.config.pad_id
    loss = label_smoothed_cross_entropy(logits, targets, smoothing, pad_id, reduction="sum")
    return loss, (targets != pad_id).sum()
