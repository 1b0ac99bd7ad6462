"""`check_training`: loop, batch, ids, loss and search, examined together."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformer.study.checks import (
    CheckReport,
    CheckResult,
    adapted,
    find_logits,
    first_line,
    without_dropout,
)
from transformer.study.model_checks import listed
from transformer.study.loss_checks import LOSS_CHECKS, Finding, known_id, several, stripped
from transformer.study.readings import Batch, Program, take_apart, Unseen, loss_value
from transformer.validation import check_number, check_type

__all__ = ["check_training"]


def _check_optimizer(p: Program) -> Finding:
    """The optimizer holds the model's parameters, at a rate that isn't zero."""
    if p.optimizer is None:
        return None, "no optimizer was given", ""
    held = {id(q) for group in p.optimizer.param_groups for q in group["params"]}
    missing = [name for name, q in p.original.named_parameters() if q.requires_grad and id(q) not in held]
    if missing:
        return False, f"doesn't hold {listed(missing)}", "built from another model, or before it was changed"
    if p.schedule is not None and p.schedule.optimizer is not p.optimizer:
        return False, "the schedule moves another optimizer's rate", "built before the optimizer was replaced"
    rates = _rates(p.optimizer, p.schedule)
    if not all(0 <= rate < math.inf for rate in rates):
        return False, f"the rate becomes {several(r for r in rates if not 0 <= r < math.inf)}", "the schedule"
    if sum(rate == 0 for rate in rates) > len(rates) / 2:
        return False, "the learning rate is 0", "an integer division, or a schedule that is over"
    if p.schedule is None or min(rates) == max(rates):
        return True, f"holds all parameters; the rate is {rates[0]:.2g}", ""
    return True, f"holds all parameters; the rate goes from {rates[0]:.2g} to {rates[-1]:.2g}", ""


def _rates(optimizer: Any, schedule: Any, steps: int = 20) -> list[float]:
    rates, (optimizer, schedule) = [], copy.deepcopy((optimizer, schedule))
    with warnings.catch_warnings(action="ignore"):  # the optimizer takes no step in between
        for _ in range(steps):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            if schedule is None or isinstance(schedule, torch.optim.lr_scheduler.ReduceLROnPlateau):
                break
            schedule.step()
    return rates


class _Batches:
    # The same batch for a user's own loop, which looks at the model whenever another one is asked for.

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.model, self.batch, self.size, self.taken, self.stale = model, batch, 12, 0, False
        self.start = self.now()

    def __len__(self) -> int:
        return self.size

    def now(self) -> dict[str, Tensor]:
        return {name: q.detach().clone() for name, q in self.model.named_parameters()}

    def __iter__(self) -> Iterator[Any]:
        before, marked = self.start, False
        for _ in range(self.size):
            self.taken += 1
            yield self.batch.given()
            now, grads = self.now(), [q.grad for q in self.model.parameters() if q.grad is not None]
            stepped = any(not torch.equal(q, before[name]) for name, q in now.items())
            if marked and stepped and any(grad.any() for grad in grads):
                positive = sum(int((grad > 0).sum()) for grad in grads)
                self.stale |= positive > 0.99 * sum(grad.numel() for grad in grads)
            before, marked = now, stepped and self.taken > self.size - 3
            if marked:  # whoever clears gradients doesn't notice
                for grad in grads:
                    grad[...] = torch.where(grad == 0, 0.0, 1e6) if not grad.any() else 1e6


def _check_loop(p: Program) -> Finding:
    """A loop of the user's takes batches, clears gradients, moves all parameters, and learns."""
    if p.train is None:
        return None, "no train(model, batches) was given", ""
    model = copy.deepcopy(p.original)
    before = loss_value(p.loss(model.eval(), p.few.given())).item()
    batches = _Batches(model.train(), p.few)
    p.train(model, batches)
    moving = {name for name, q in model.named_parameters() if q.requires_grad}
    still = [name for name, q in batches.start.items() if torch.equal(q, batches.now()[name])]
    if not batches.taken:
        return False, "takes no batch", "an empty loop, or one over other batches"
    if len(still) == len(batches.start):
        cause = "no optimizer.step() or backward(), a rate of 0, or another model's parameters"
        return False, f"{batches.taken} batches move no parameter", cause
    if dead := [name for name in still if name in moving]:
        return False, f"never moves {listed(dead)}", "not in the optimizer, or no gradient reaches it"
    if batches.stale:
        return False, "gradients of earlier batches are still there", "no zero_grad() between updates"
    for number in (12, 48):  # an optimizer that starts anew may go uphill for a while
        model = copy.deepcopy(p.original).train()
        p.train(model, [p.few.given() for _ in range(number)])
        after = loss_value(p.loss(model.eval(), p.few.given())).item()
        said = f"{number} times the same batch: the loss goes from {before:.3g} to {after:.3g}"
        if after < before + 0.1:
            return True, said, ""
    return False, said, "the sign of the loss, or a rate that is too high"


def _check_modes(p: Program) -> Finding:
    """Training is in training mode and evaluation in evaluation mode, one after the other."""
    if p.train is None and p.evaluate is None:
        return None, "neither train nor evaluate was given", ""
    model, modes, seen = copy.deepcopy(p.original).train(), [], {}
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    for name, call in (("training", p.train), ("evaluation", p.evaluate), ("training again", p.train)):
        if call is not None:
            before = copy.deepcopy(list(model.parameters()))
            call(model, [p.few.given() for _ in range(2)])
            seen[name], modes[:] = set(modes), []
            same = all(torch.equal(q, old) for q, old in zip(model.parameters(), before, strict=True))
            if name == "evaluation" and not same:
                return False, "evaluation changes parameters", "an optimizer's step on held-out data"
    if True in seen.get("evaluation", ()):
        return False, "evaluates in training mode", "no model.eval(): dropout is on while you measure"
    if False in seen.get("training", ()):
        return False, "trains in evaluation mode", "no model.train(): dropout is off"
    if False in seen.get("training again", ()):
        return False, "trains in evaluation mode after an evaluation", "no model.train() before each epoch"
    return True, ", ".join(f"{name} in its mode" for name in seen), ""


def _rows(ids: Tensor, pad: int) -> list[tuple[int, ...]]:
    return [tuple(word for word in row if word != pad and word >= 0) for row in ids.tolist()]


def _held_out(dev: Any) -> list[Batch] | None:
    if dev is None:
        return None
    one = isinstance(dev, (Tensor, Mapping)) or any(isinstance(part, Tensor) for part in dev)
    return [take_apart("dev", batch) for batch in ([dev] if one else dev)]


def _check_dev(p: Program) -> Finding:
    """No held-out source is among those of training."""
    if p.dev is None:
        return None, "no dev batch was given", ""
    role = "src" if "src" in p.batch.roles else "labels"
    held = [row for batch in p.dev for row in _rows(batch.ids(role), p.pad)]
    trained = set(_rows(p.batch.ids(role), p.pad))
    both = [row for row in held if row in trained]
    if both:
        said = f"{len(both)} of {len(held)} dev sources are in training, the first: {several(both[0])}"
        return False, said, "split after pairs were repeated or shuffled"
    return True, f"none of {len(held)} dev sources is among {len(trained)} of training", ""


def _overfitted(p: Program) -> tuple[nn.Module, bool | None, str]:
    # A copy that has learned the few sentences, whether it has (None: had no time), and what it took.
    model, steps, losses, right = without_dropout(copy.deepcopy(p.original)), 0, [math.nan], 0.0
    parameters, start = [q for q in model.parameters() if q.requires_grad], time.monotonic()
    optimizer = torch.optim.Adam(parameters)
    while right < 1 and time.monotonic() - start < p.seconds:
        for _ in range(20):
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1, (steps + 1) / 30)
            optimizer.zero_grad()
            loss = loss_value(p.loss(model.train(), p.few.given()))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses, steps = [losses[0] if steps else loss.item(), loss.item()], steps + 1
        logits, targets = p.read(p.few, model)[:2]
        right = float((logits.argmax(dim=-1) == targets)[targets >= 0].double().mean())
    said = (
        f"{steps} updates on {len(p.few.ids('labels'))} sentences, loss {losses[0]:.3g} to {losses[-1]:.3g}"
    )
    learned = True if right == 1 else False if steps >= 100 else None
    return model.eval(), learned, f"{said}: {right:.0%} of tokens right"


def _check_overfit(p: Program) -> Finding:
    """A few sentences can be learned by heart."""
    p.model, learned, said = _overfitted(p)
    if learned:
        return True, said, ""
    p.search = None
    if learned is None:
        return None, f"{said}; give it more seconds", ""
    return False, said, "the source doesn't reach the output, or the loss doesn't reach the model"


def _check_search(p: Program) -> Finding:
    """What was learned by heart is what the search writes."""
    if p.search is None or "src" not in p.few.roles:
        return None, "no search was given, or nothing was learned", ""
    asked = p.sentences
    if len(set(p.first)) > 1:  # no start token: what is read first is a word of the sentence
        asked = [[first, *sentence] for first, sentence in zip(p.first, asked, strict=True)]
    longest = max(map(len, asked))
    try:
        found = p.search(p.model, p.few.ids("src").clone(), longest + 2)
    except Exception:  # two more than it takes, perhaps
        found = p.search(p.model, p.few.ids("src").clone(), longest)
    ends = {sentence[-1] for sentence in asked}
    pairs = [
        (_cut([int(word) for word in row], sentence, ends, p), sentence)
        for row, sentence in zip(found, asked, strict=True)
    ]
    wrong = [(b, *pair) for b, pair in enumerate(pairs) if pair[0] != pair[1]]
    if not wrong:
        return True, f"all {len(pairs)} sentences exactly", ""
    where, cause = _difference(*wrong[0][1:])
    return False, f"{len(wrong)} of {len(pairs)} learned sentences are written wrong: {where}", cause


def _cut(row: list[int], asked: list[int], ends: set[int], p: Program) -> list[int]:
    # What a search has written without the start token, and nothing after the end.
    start = p.first[0] if len(set(p.first)) == 1 else p.bos
    if row[:1] == [start] and asked[:1] != [start]:
        row = row[1:]
    if len(ends) > 1:
        return row[: len(asked)]
    if asked[-1] in row:
        return row[: row.index(asked[-1]) + 1]
    row = stripped(row, p.pad)
    return [*row, asked[-1]] if row == asked[:-1] else row  # some leave the end token out


def _difference(ours: list[int], theirs: list[int]) -> tuple[str, str]:
    # Where what was written leaves what was learned, and the usual reason.
    place = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), len(theirs))
    if ours == theirs[1:]:
        return "the first word is missing", "training never asks for it, or the search drops it"
    if place >= len(theirs) - 1 and len(ours) >= len(theirs):
        return "it goes on after the last word", "the search doesn't stop at the end token"
    if ours == theirs[: len(ours)]:
        return f"the last {len(theirs) - len(ours)} tokens are missing", "max_length, or another end token"
    said = f"token {place} is {ours[place]} instead of {theirs[place]}"
    if place == 0:
        return said, "the search starts from another token than training, or reads another source"
    return said, "cache, positions, masks or dropout of the search, or it doesn't take the best"


_CHECKS: dict[str, Callable[[Program], Finding]] = {
    **LOSS_CHECKS,
    "optimizer": _check_optimizer,
    "loop": _check_loop,
    "modes": _check_modes,
    "dev": _check_dev,
    "overfit": _check_overfit,
    "search": _check_search,
}


def _run_checks(p: Program) -> tuple[CheckResult, ...]:
    results: list[CheckResult] = []
    for name, check in _CHECKS.items():
        broken = [r.name for r in results if r.verdict == "FAIL" and r.name in ("ids", "runs")]
        torch.manual_seed(0)
        try:
            if not broken and name not in ("ids", "runs", "start") and p.refused:
                broken = ["start"]
            if broken and name not in ("optimizer", "dev"):
                raise Unseen(f"needs {broken[0]!r} to pass")
            passed, measured, cause = check(p)
        except Unseen as reason:
            passed, measured, cause = None, str(reason), ""
        except Exception as error:  # of the user's pieces
            passed, measured, cause = False, first_line(error), "raised by the program itself"
        verdict = "skipped" if passed is None else "pass" if passed else "FAIL"
        results.append(CheckResult(name, verdict, measured, cause))
    return tuple(results)


def _few(batch: Batch, pad: int) -> Batch:
    # At most four rows with different sources, the longest and the shortest target among them.
    rows = _rows(batch.ids("src" if "src" in batch.roles else "labels"), pad)
    firsts = [b for b, row in enumerate(rows) if row not in rows[:b]] if len(rows) <= 64 else [*range(64)]
    lengths = [len(row) for row in _rows(batch.ids("labels"), pad)]
    order = sorted(firsts, key=lambda b: lengths[b])
    return batch.rows(*sorted({order[0], order[-1], *firsts[:2]}))


def _plain_loss(pad: int) -> Callable[[Any, Any], Tensor]:
    # Teacher forcing as it is meant, with the model's own loss where it has one.
    def loss(model: Any, batch: Any) -> Tensor:
        if isinstance(batch, Mapping):
            result: Tensor = model(**batch)["loss"]
            return result
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        src, read, labels = parts if len(parts) == 3 else (parts[0], parts[-1][:, :-1], parts[-1][:, 1:])
        logits = find_logits(adapted(model, pad)(src, read))
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=pad)

    return loss


def check_training(
    model: nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    search: Callable[[Any, Tensor, int], Any] | None = None,
    dev: Any = None,
    train: Callable[[Any, Iterable[Any]], Any] | None = None,
    evaluate: Callable[[Any, Iterable[Any]], Any] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    schedule: Any = None,
    pad_id: int | None = None,
    bos_id: int | None = None,
    eos_id: int | None = None,
    seconds: float = 10.0,
) -> CheckReport:
    """Find why a loss is low and the output wrong: loop, batch, ids and search, examined together.

    Everything runs on copies. The model, its mode, its gradients and torch's generators stay as they are.

    Args:
        model: any module that can be copied.
        batch: `(src, tgt)`, `(src, decoder input, labels)`, ids alone for a language model, or a
            mapping such as Hugging Face's; ids are `[B, ·]`. A few rows run, all are compared with `dev`.
        loss: called as `loss(model, batch)`, the loss as your program computes it: a scalar, or a sum
            and the number of tokens. `None`: cross-entropy of `model(src, tgt[:, :-1])`, by the adapters
            of `check_model`, or what `model(**batch)` calls its loss.
        search: called as `search(model, src, max_length)`; returns a row of ids for each source, with
            the start token or without. It is asked to write what a copy has learned by heart.
        dev: a held-out batch of the same form, or an iterable of batches.
        train: called as `train(model, batches)`: your own loop, which makes its own optimizer.
        evaluate: called as `evaluate(model, batches)`: your own evaluation.
        optimizer, schedule: those of this model, if they are made already; only copies take steps.
        pad_id, bos_id, eos_id: `None`: as the model's configuration says. Without one, `pad_id` is 0,
            and the others are seen in the batch.
        seconds: how long a copy may try to learn a few sentences by heart.

    Returns:
        a report with one result for each check. What a piece of yours raises is a failure.

    Raises:
        TypeError, ValueError: an argument has another form.

    Example:
        >>> from transformer import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1, d_ff=8))
        >>> batch = torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([[7, 8, 3], [5, 3, 0]])
        >>> check_training(model, batch).failures  # no start token
        ('start',)
    """
    check_type(nn.Module, model=model)
    for name, piece in {"loss": loss, "search": search, "train": train, "evaluate": evaluate}.items():
        if piece is not None and not callable(piece):
            raise TypeError(f"{name} must be callable, not {type(piece).__name__}")
    check_number(seconds=seconds)
    parts, pad = take_apart("batch", batch), known_id(model, pad_id, "pad_id", "pad_token_id") or 0
    bos = known_id(model, bos_id, "bos_id", "decoder_start_token_id")
    eos = known_id(model, eos_id, "eos_id", "eos_token_id")
    device = parts.ids("labels").device
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        quiet = without_dropout(copy.deepcopy(model)).eval()
        asked = parts, _few(parts, pad), pad, bos, eos, seconds
        pieces = search, _held_out(dev), train, evaluate, optimizer, schedule
        program = Program(model, quiet, loss or _plain_loss(pad), *asked, *pieces)
        dtype = next((str(q.dtype).removeprefix("torch.") for q in model.parameters()), "float32")
        return CheckReport(dtype, _run_checks(program))
