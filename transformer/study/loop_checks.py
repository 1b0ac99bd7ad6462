"""What moves in a training: optimizer, loop and modes; what is learned by heart, and what a search writes."""

import copy
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any
import torch
from torch import Tensor, nn
from transformer.study.checks import without_dropout
from transformer.study.readings import Batch, Program, loss_value
from transformer.study.report import Finding, Skipped, listed

__all__ = ["LOOP_CHECKS", "stripped"]


def _check_optimizer(p: Program) -> Finding:
    """The optimizer holds the model's parameters, at a rate that isn't zero."""
    if p.optimizer is None:
        raise Skipped("no optimizer was given")
    held = {id(q) for group in p.optimizer.param_groups for q in group["params"]}
    missing = [name for name, q in p.original.named_parameters() if q.requires_grad and id(q) not in held]
    if missing:
        return Finding(
            False, f"doesn't hold {listed(missing)}", "built from another model, or before it was changed"
        )
    if p.schedule is not None and p.schedule.optimizer is not p.optimizer:
        return Finding(
            False, "the schedule moves another optimizer's rate", "built before the optimizer was replaced"
        )
    rates = _rates(p.optimizer, p.schedule)
    if not all(0 <= rate < math.inf for rate in rates):
        return Finding(
            False, f"the rate becomes {listed(r for r in rates if not 0 <= r < math.inf)}", "the schedule"
        )
    if sum(rate == 0 for rate in rates) > len(rates) / 2:
        return Finding(False, "the learning rate is 0", "an integer division, or a schedule that is over")
    if p.schedule is None or min(rates) == max(rates):
        return Finding(True, f"holds all parameters; the rate is {rates[0]:.2g}")
    return Finding(True, f"holds all parameters; the rate goes from {rates[0]:.2g} to {rates[-1]:.2g}")


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
        raise Skipped("no train(model, batches) was given")
    model = copy.deepcopy(p.original)
    before = loss_value(p.loss(model.eval(), p.few.given())).item()
    batches = _Batches(model.train(), p.few)
    p.train(model, batches)
    moving = {name for name, q in model.named_parameters() if q.requires_grad}
    still = [name for name, q in batches.start.items() if torch.equal(q, batches.now()[name])]
    if not batches.taken:
        return Finding(False, "takes no batch", "an empty loop, or one over other batches")
    if len(still) == len(batches.start):
        cause = "no optimizer.step() or backward(), a rate of 0, or another model's parameters"
        return Finding(False, f"{batches.taken} batches move no parameter", cause)
    if dead := [name for name in still if name in moving]:
        return Finding(
            False, f"never moves {listed(dead)}", "not in the optimizer, or no gradient reaches it"
        )
    if batches.stale:
        return Finding(
            False, "gradients of earlier batches are still there", "no zero_grad() between updates"
        )
    for number in (12, 48):  # an optimizer that starts anew may go uphill for a while
        model = copy.deepcopy(p.original).train()
        p.train(model, [p.few.given() for _ in range(number)])
        after = loss_value(p.loss(model.eval(), p.few.given())).item()
        said = f"{number} times the same batch: the loss goes from {before:.3g} to {after:.3g}"
        if after < before + 0.1:
            return Finding(True, said)
    return Finding(False, said, "the sign of the loss, or a rate that is too high")


def _check_modes(p: Program) -> Finding:
    """Training is in training mode and evaluation in evaluation mode, one after the other."""
    if p.train is None and p.evaluate is None:
        raise Skipped("neither train nor evaluate was given")
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
                return Finding(False, "evaluation changes parameters", "an optimizer's step on held-out data")
    if True in seen.get("evaluation", ()):
        return Finding(
            False, "evaluates in training mode", "no model.eval(): dropout is on while you measure"
        )
    if False in seen.get("training", ()):
        return Finding(False, "trains in evaluation mode", "no model.train(): dropout is off")
    if False in seen.get("training again", ()):
        return Finding(
            False, "trains in evaluation mode after an evaluation", "no model.train() before each epoch"
        )
    return Finding(True, ", ".join(f"{name} in its mode" for name in seen))


def _check_overfit(p: Program) -> Finding:
    """A few sentences can be learned by heart."""
    model = p.model = without_dropout(copy.deepcopy(p.original))
    parameters = [q for q in model.parameters() if q.requires_grad]
    optimizer, start = torch.optim.Adam(parameters), time.monotonic()
    losses, right = [math.nan], 0.0
    while right < 1 and time.monotonic() - start < p.seconds:
        for _ in range(20):
            optimizer.param_groups[0]["lr"] = 3e-3 * min(1, len(losses) / 30)
            optimizer.zero_grad()
            loss = loss_value(p.loss(model.train(), p.few.given()))
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            losses.append(loss.item())
        logits, targets = p.read(p.few, model)[:2]
        right = float((logits.argmax(dim=-1) == targets)[targets >= 0].double().mean())
    steps = len(losses) - 1
    learned = f"{steps} updates on {len(p.few.ids('labels'))} sentences: {right:.0%} of tokens right"
    if right == 1:
        return Finding(True, f"{learned}, loss {losses[1]:.3g} to {losses[-1]:.3g}")
    p.search = None
    if steps < 100:
        raise Skipped(f"{learned}; give it more seconds")
    return Finding(False, learned, "the source doesn't reach the output, or the loss doesn't reach the model")


def _check_search(p: Program) -> Finding:
    """What was learned by heart is what the search writes."""
    if p.search is None or "src" not in p.few.roles:
        raise Skipped("no search was given, or nothing was learned")
    asked = p.sentences
    if len(set(p.first)) > 1:  # no start token: what is read first is a word of the sentence
        asked = [[first, *sentence] for first, sentence in zip(p.first, asked, strict=True)]
    longest = max(map(len, asked))
    try:
        found = p.search(p.model.eval(), p.few.ids("src").clone(), longest + 2)
    except Exception:  # two more than it takes, perhaps
        found = p.search(p.model.eval(), p.few.ids("src").clone(), longest)
    ends = {sentence[-1] for sentence in asked}
    written = [
        _cut([int(word) for word in row], sentence, ends, p)
        for row, sentence in zip(found, asked, strict=True)
    ]
    wrong = [pair for pair in zip(written, asked, strict=True) if pair[0] != pair[1]]
    if not wrong:
        return Finding(True, f"all {len(asked)} sentences exactly")
    where, cause = _difference(*wrong[0])
    return Finding(False, f"{len(wrong)} of {len(asked)} learned sentences are written wrong: {where}", cause)


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


def stripped(sentence: list[int], *padding: int | None) -> list[int]:
    """A sentence without the padding behind it."""
    while sentence and sentence[-1] in padding:
        sentence = sentence[:-1]
    return sentence


LOOP_CHECKS: dict[str, Callable[[Program], Finding]] = {
    "optimizer": _check_optimizer,
    "loop": _check_loop,
    "modes": _check_modes,
    "overfit": _check_overfit,
    "search": _check_search,
}
