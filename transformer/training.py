"""transformer.training, from book/07-training.ipynb, "Training".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "best_device", "check_device", "adamw", "noam_rate", "cooldown", "evaluating", "to_device",
    "evaluate_loss", "as_epochs", "check_loss", "fit", "record_path", "load_record",
]


# %% book/07-training.ipynb · First runs · [imports]
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.loss import label_smoothed_cross_entropy, token_accuracy
from transformer.validation import check_batch, check_number, check_size, check_type


# %% book/07-training.ipynb · First runs · [best-device]
def best_device(dtype: torch.dtype = torch.float32) -> torch.device:
    """Where to train: on the GPU if there is one, NVIDIA's or Apple's, and else on the CPU.

    `dtype` is what to train in; Apple's GPUs have no float64.
    """
    check_type(torch.dtype, dtype=dtype)
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available() and dtype != torch.float64:
        return torch.device("mps")
    return torch.device("cpu")


def check_device(device: torch.device | str) -> torch.device:
    """The device of this name; one that torch or this machine lacks is refused (`ValueError`)."""
    try:
        return torch.empty(0, device=device).device
    except Exception as error:  # of four types
        message = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used here: {message}") from error


# %% book/07-training.ipynb · Weight decay (AdamW) · [adamw]
def adamw(
    parameters: Iterable[nn.Parameter], weight_decay: float = 0.0
) -> torch.optim.AdamW:
    """Adam with the paper's constants, and a separate decay of the matrices.

    Args:
        parameters: what to optimize; set the optimizer's rate before each update.
        weight_decay: λ; an update of rate η multiplies matrices, but not vectors, by 1 − ηλ.

    Source: Kingma and Ba (2015); Loshchilov and Hutter (2019).
    """
    check_number(weight_decay=weight_decay)
    parameters = list(parameters)
    matrices = [p for p in parameters if p.dim() > 1]
    vectors = [p for p in parameters if p.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=True)


# %% book/07-training.ipynb · The formula · [noam-rate]
def noam_rate(step: int, d_model: int, warmup_steps: int, factor: float = 1.0) -> float:
    """The paper's learning rate: linear up to `warmup_steps`, then falling as 1/√step.

    Args:
        step: number of the update, counted from 1.
        d_model: width of the model.
        warmup_steps: the step at which the rate is highest.
        factor: multiplies the whole curve.

    Returns:
        factor · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    Raises:
        TypeError, ValueError: a number is of the wrong type or out of its range.

    Source: Vaswani et al. (2017), equation 3.
    """
    check_size(step=step, d_model=d_model, warmup_steps=warmup_steps)
    check_number(factor=factor)
    rate: float = factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)
    return rate


# %% book/07-training.ipynb · Ending low · [cooldown]
def cooldown(step: int, steps: int, fraction: float) -> float:
    """A factor for the rate that falls linearly to 0 over the last part of a run.

    Args:
        step: number of the update, counted from 1 to `steps`.
        fraction: the share of the run over which it falls; 0 for a factor of 1.

    Returns:
        1 before the last part; then (steps - step + 1) / (fraction · steps).

    Raises:
        TypeError, ValueError: a number is of the wrong type or out of its range.
    """
    check_size(step=step, steps=steps)
    if step > steps:
        raise ValueError(f"step must be at most steps, which is {steps}, but is {step}")
    check_type((int, float), fraction=fraction)
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must lie in [0, 1], but is {fraction}")
    return min(1.0, (steps - step + 1) / (fraction * steps)) if fraction else 1.0


# %% book/07-training.ipynb · Evaluation · [evaluating]
@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch dropout and gradients off, and put every module back into its mode afterward.

    A model that several threads share should be in evaluation mode before they begin.
    """
    check_type(nn.Module, model=model)
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


# %% book/07-training.ipynb · Evaluation · [evaluate-loss]
def to_device(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: what can move, also in mappings and tuples, and in lists, made tuples."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")  # a CPU would read too early
    if hasattr(batch, "to"):  # another library's
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: to_device(part, device) for name, part in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [to_device(part, device) for part in batch]
        return batch._make(parts) if hasattr(batch, "_make") else tuple(parts)
    return batch


# %% book/07-training.ipynb · Evaluation · [evaluate-loss-code]
def evaluate_loss(
    model: Any,
    batches: Iterable[tuple[Tensor, Tensor]] | Callable[[int], Iterable[tuple[Tensor, Tensor]]],
) -> dict[str, float]:
    """The unsmoothed loss and the accuracy of next-token prediction over all tokens.

    Args:
        model: a `Transformer`; dropout is off while it is evaluated.
        batches: pairs of source ids `[B, S]` and target ids `[B, T + 1]`; or `batches(epoch)`,
            as in `fit`, for those of epoch 0.

    Returns:
        `"loss"` in nats per target token, and `"accuracy"` in [0, 1].

    Raises:
        TypeError, ValueError, IndexError: as in `Transformer`; no target token at all.
    """
    check_type(nn.Module, model=model)
    check_type(Iterable, batches=(given := batches(0) if callable(batches) else batches))
    device, sums = next(model.parameters()).device, torch.zeros(3, dtype=torch.float64)
    with evaluating(model):
        for batch in given:
            src, tgt = to_device(check_batch(batch, model), device)  # checked where it lies
            targets, pad_id = tgt[:, 1:], model.config.pad_id
            logits = model(src, tgt[:, :-1])
            n_tokens = (targets != pad_id).sum()
            loss = label_smoothed_cross_entropy(logits, targets, 0.0, pad_id, "sum")
            correct = token_accuracy(logits, targets, pad_id) * n_tokens
            sums += torch.stack([loss, correct, n_tokens]).cpu()
    loss, correct, n_tokens = sums.tolist()
    if not n_tokens:
        raise ValueError("batches must hold at least one target token, but hold none")
    return {"loss": loss / n_tokens, "accuracy": correct / n_tokens}


# %% book/07-training.ipynb · fit · [what-fit-takes]
def as_epochs(batches: Callable[[int], Iterable[Any]] | Iterable[Any]) -> Callable[[int], Iterable[Any]]:
    """A function from an epoch's number to its batches: `batches` itself, or one that returns what can be
    iterated again in every epoch, as a list or a `DataLoader` can (`TypeError` for an iterator).
    """
    if callable(batches):
        return batches
    if not isinstance(batches, Iterable) or isinstance(batches, Iterator):
        wanted = "Callable that takes the epoch, or an iterable for every epoch such as a list"
        raise TypeError(f"batches must be a {wanted}, not {type(batches).__name__}")
    return lambda epoch: batches


def check_loss(result: Any) -> tuple[Tensor, Tensor | int]:
    """The summed loss and the number of target tokens, if that is what a loss returned (`TypeError`)."""
    match result:
        case [Tensor(ndim=0) as total, Tensor(ndim=0) | int() as n_tokens]:
            return total, n_tokens
    wanted = "two scalars, a sum and the number of its target tokens, and not a mean alone"
    raise TypeError(f"loss must return {wanted}, but returned a {type(result).__name__}")


# %% book/07-training.ipynb · fit · [fit]
def fit(
    model: nn.Module, loss: Callable[[Any, Any], tuple[Tensor, Tensor | int]],
    batches: Callable[[int], Iterable[Any]] | Iterable[Any],
    schedule: Callable[[int], float], steps: int, *, clip_norm: float = 1.0,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    evaluate_every: int = 100, seed: int = 0,
) -> list[dict[str, float]]:
    """Train a model with AdamW, in a plain loop; return a log of its updates and evaluations.

    Args:
        model: what to train; its batches are brought to its device.
        loss: `loss(model, batch)` returns the summed loss and its number of tokens.
        batches: `batches(epoch)`, from 0 on; or a list or `DataLoader` for all epochs.
        schedule: `schedule(step)` is the rate of update `step`, from 1 to `steps`.
        clip_norm: the longest gradient, over all parameters; `inf` for no limit.
        evaluate: what returns metrics every `evaluate_every` updates and at the end.
        seed: of torch's own generator, for dropout and batches that are drawn by it.

    Raises:
        TypeError, ValueError: an argument is wrong, or the loss is a mean alone.
        FloatingPointError: loss or gradient is not finite; the weights stay.
    """
    called = loss, schedule, evaluate
    parameters = _check_run(model, steps, clip_norm, evaluate_every, seed, called)
    torch.manual_seed(seed)
    optimizer, device = adamw(parameters), parameters[0].device
    history: list[dict[str, float]] = []
    model.train()
    for step, epoch, rate, batch in _updates(as_epochs(batches), schedule, steps):
        total, n_tokens = check_loss(loss(model, to_device(batch, device)))
        mean = total / max(int(n_tokens), 1)
        optimizer.zero_grad()
        mean.backward()
        norm = nn.utils.clip_grad_norm_(parameters, clip_norm).item()
        log = dict(step=step, epoch=epoch, loss=mean.item(), rate=rate, norm=norm)
        if not all(map(math.isfinite, log.values())):
            raise FloatingPointError(f"the loss or its gradient is not finite: {log}")
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        history.append(log | {"tokens": int(n_tokens)})
        if evaluate is not None and (step % evaluate_every == 0 or step == steps):
            with evaluating(model):
                history.append(_logged(step, evaluate(model)))
    return history


# %% book/07-training.ipynb · fit · [fit-parts]
def _logged(step: int, scores: Any) -> dict[str, float]:
    check_type(Mapping, **{"evaluate(model)": scores})
    if "step" in scores:
        raise ValueError("evaluate(model) must not name a metric 'step': the log does")
    return {"step": step, **scores}


def _updates(
    batches: Callable[[int], Iterable[Any]], schedule: Callable[[int], float], steps: int
) -> Iterator[tuple[int, int, float, Any]]:
    # Of each update its number, its epoch, its rate and its batch, from all epochs in turn.
    step = 0
    for epoch in itertools.count():
        before, given = step, batches(epoch)
        check_type(Iterable, **{f"batches({epoch})": given})
        for batch in given:
            step += 1
            rate = schedule(step)
            check_number(**{f"schedule({step})": rate})
            yield step, epoch, rate, batch
            if step == steps:
                return
        if step == before:
            raise ValueError(f"batches({epoch}) gave no batch")


def _check_run(
    model: nn.Module, steps: int, clip_norm: float, evaluate_every: int, seed: int, called: tuple[Any, ...]
) -> list[nn.Parameter]:
    # The parameters that can be trained.
    loss, schedule, evaluate = called
    check_type(Callable, loss=loss, schedule=schedule)
    check_type((Callable, type(None)), evaluate=evaluate)
    check_type(nn.Module, model=model)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("model must have a parameter that can be trained, but has none")
    check_size(steps=steps, evaluate_every=evaluate_every)
    check_size(minimum=0, seed=seed)
    check_type((int, float), clip_norm=clip_norm)
    if not clip_norm > 0:
        raise ValueError(f"clip_norm must be greater than 0, but is {clip_norm}")
    return parameters


# %% book/07-training.ipynb · fit · [record-files]
def record_path(name: str) -> Path:
    """The path of a file of the recorded runs in the installed package; `FileNotFoundError` names all.

    What only the book's chapters read lies in a folder of its own, `book`.
    """
    check_type(str, name=name)
    folder = Path(str(resources.files("transformer"))) / "records"
    known = {path.name: path for place in (folder / "book", folder) for path in place.glob("*")}
    if name not in known:  # a path that leads out of the folder is not known either
        raise FileNotFoundError(f"there is no recorded file {name!r}, but there are {sorted(known)}")
    return known[name]


# %% book/07-training.ipynb · fit · [load-record]
def load_record(name: str) -> dict[str, Any]:
    """Read the record `name` of a run; `FileNotFoundError` if there is none."""
    path = record_path(f"{name}.json")
    return dict(json.loads(path.read_text(encoding="utf8")))
