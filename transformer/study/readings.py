"""What a loss reads of a batch, found by its gradient, and what changes with which of its words."""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformer.study.checks import Skipped
from transformer.study.model_checks import adapted, find_logits, first_line

__all__ = [
    "Batch", "words_of", "take_apart", "plain_loss", "loss_value", "differing", "Program", "mixed",
    "Watched", "stripped", "searched",
]  # fmt: skip


_NAMES = {  # what programs call the parts of a batch that hold ids
    "src": ("src", "source", "input_ids"),
    "read": ("decoder_input_ids", "prev_output_tokens", "tgt_input"),
    "labels": ("labels", "tgt", "trg", "target", "targets"),
}
_ORDERS = {1: ("labels",), 2: ("src", "labels"), 3: ("src", "read", "labels")}  # in a tuple


@dataclass(frozen=True)
class Batch:
    """A batch taken apart: its roles are `src`, which a language model's lacks, `labels`, and often `read`.

    `labels` are the targets; `read`, the decoder's input, stands `lag` places behind them.
    """

    whole: Any
    parts: dict[Any, Any]
    roles: dict[str, Any]
    lag: int | None

    def ids(self, role: str) -> Tensor:
        ids: Tensor = self.parts[self.roles[role]]
        return ids

    def given(self) -> Any:
        # A batch of the caller's form.
        parts = {key: part.clone() if isinstance(part, Tensor) else part for key, part in self.parts.items()}
        if isinstance(self.whole, Mapping):
            new: Any = copy.copy(self.whole)
            for key, part in parts.items():
                new[key] = part
            return new
        if isinstance(self.whole, Tensor):
            return parts[0]
        form = type(self.whole)
        return form(*parts.values()) if hasattr(form, "_fields") else form(parts.values())

    def rows(self, *index: int) -> "Batch":
        size, parts = len(self.ids("labels")), dict(self.parts)
        for key, part in parts.items():
            if isinstance(part, Tensor) and part.shape[:1] == (size,):
                parts[key] = part[torch.tensor(index, device=part.device)]
        return replace(self, parts=parts)

    def few(self, pad: int) -> "Batch":
        # At most four rows with different sources, the longest and the shortest target among them.
        rows = words_of(self.ids("src" if "src" in self.roles else "labels"), pad)
        firsts = [b for b, row in enumerate(rows[:64]) if row not in rows[:b]]
        lengths = [len(row) for row in words_of(self.ids("labels"), pad)]
        order = sorted(firsts, key=lambda b: lengths[b])
        return self.rows(*sorted({order[0], order[-1], *firsts[:2]}))

    def put(self, **ids: Tensor) -> "Batch":
        named = {self.roles.get(role, role): part for role, part in ids.items()}
        return replace(self, parts=self.parts | named)

    def with_token(self, role: str, u: int, token: int) -> "Batch":
        # Another token at place u of the first row: of targets, also where the decoder reads it.
        labels = self.ids(role).clone()
        labels[0, u] = token
        if role == "src" or "read" not in self.roles or self.lag is None:
            return self.put(**{role: labels})
        read = self.ids("read").clone()
        read[0, u + self.lag : u + self.lag + 1] = token
        return self.put(labels=labels, read=read)


def words_of(ids: Tensor, pad: int) -> list[tuple[int, ...]]:
    """The rows of a batch without padding and ignored places."""
    return [tuple(word for word in row if word != pad and word >= 0) for row in ids.tolist()]


def _lag(read: Tensor, labels: Tensor) -> int | None:
    # How many places the decoder's input stands behind the targets, if it is the same sentences.
    for lag in (1, 0, 2):
        width = min(read.size(1) - lag, labels.size(1))
        ours, theirs = labels[:, :width], read[:, lag : lag + width]
        real = ours >= 0
        if real.any() and ((ours == theirs) | ~real).double().mean() > 0.9:
            return lag
    return None


def _is_ids(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 2 and part.dtype in (torch.long, torch.int)


def take_apart(name: str, batch: Any) -> Batch:
    """The parts of a batch by their roles; `name` stands in the error if it has another form."""
    if isinstance(batch, Mapping):
        parts = dict(batch)
        roles = {role: key for role, names in _NAMES.items() for key in names if _is_ids(parts.get(key))}
    else:
        parts = dict(enumerate(batch if isinstance(batch, (tuple, list)) else (batch,)))
        found = [key for key, part in parts.items() if _is_ids(part)]
        roles = dict(zip(_ORDERS.get(len(found), ()), found, strict=False))
    if set(roles) == {"src"}:
        roles = {"labels": roles["src"]}
    if "labels" not in roles:
        forms = (
            "(src, tgt), (src, decoder input, labels), ids, or a mapping with input_ids, labels and the like"
        )
        raise TypeError(f"{name} must be {forms}, with integer ids [B, T]")
    sizes = {role: len(parts[key]) for role, key in roles.items()}
    if len(set(sizes.values())) > 1 or not min(sizes.values()):
        raise ValueError(f"{name} must have the same number of rows, at least 1, but has {sizes}")
    if set(roles) == {"src", "labels"}:  # a language model's input and targets?
        src, labels = parts[roles["src"]], parts[roles["labels"]]
        if src.shape == labels.shape and _lag(src, labels) in (
            (0, 1) if isinstance(batch, Mapping) else (1,)
        ):
            roles = {"read": roles["src"], "labels": roles["labels"]}
    lag = _lag(parts[roles["read"]], parts[roles["labels"]]) if "read" in roles else None
    return Batch(batch, parts, roles, lag)


class _Reading(NamedTuple):
    # What a loss computes of a batch: a row for each position that it looks at, in its own order.
    logits: Tensor  # [R, V], the model's
    targets: Tensor  # [R], -1 where a position doesn't count
    weights: Tensor  # [R], how much a position counts
    read: list[Tensor]  # ids that were looked up in tables, in order


class _Listener(TorchFunctionMode):
    # Keeps the logits that a loss gets, and gives it flat ones instead: what their gradient says of
    # targets and weights then doesn't depend on the model.

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, Tensor, Tensor, int]] = []
        self.read: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "embedding" and args:
            self.read.append(args[0])
        if name in ("cross_entropy", "log_softmax", "logsumexp"):
            logits, rest = (args[0], args[1:]) if args else (given.pop("input"), ())
            axis = 1 if name == "cross_entropy" and logits.dim() > 1 else -1
            leaf = torch.full_like(logits.detach(), 1 / logits.size(axis)).requires_grad_()
            self.found.append((name, logits.detach(), leaf, axis))
            args = leaf, *rest
        return func(*args, **given)


def plain_loss(pad: int) -> Callable[[Any, Any], Tensor]:
    """Teacher forcing as it is meant, with the model's own loss where it has one."""

    def loss(model: Any, batch: Any) -> Tensor:
        if isinstance(batch, Mapping):
            result: Tensor = model(**batch)["loss"]
            return result
        parts = (batch,) if isinstance(batch, Tensor) else tuple(batch)
        src, read, labels = parts if len(parts) == 3 else (parts[0], parts[-1][:, :-1], parts[-1][:, 1:])
        logits = find_logits(adapted(model, pad)(src, read))
        return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=pad)

    return loss


def loss_value(result: Any) -> Tensor:
    """The loss in what a user's function returns: a scalar, or a sum and the number of tokens."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        total: Tensor = result[0] / max(float(result[1]), 1.0)
        return total
    if not isinstance(result, Tensor) or result.numel() != 1:
        shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(f"loss must return a scalar, or a sum and the number of tokens, not {shape}")
    return result.reshape(())


def _read_loss(loss: Callable[[Any, Any], Any], model: nn.Module, batch: Batch) -> _Reading:
    torch.manual_seed(0)
    with torch.enable_grad(), _Listener() as listener:
        value = loss_value(loss(model, batch.given()))
    best = [found for found in listener.found if found[0] == "cross_entropy"] or listener.found
    if not best or not value.requires_grad:
        raise Skipped("the loss computes no cross-entropy that can be watched")
    gradients = torch.autograd.grad(value, [leaf for _, _, leaf, _ in best], allow_unused=True)
    V = max(leaf.size(axis) for _, _, leaf, axis in best)
    pairs = [
        [part.movedim(axis, -1).reshape(-1, V).float() for part in (logits, slope)]
        for (_, logits, leaf, axis), slope in zip(best, gradients, strict=True)
        if leaf.size(axis) == V and slope is not None
    ]
    if not pairs:
        raise Skipped("the loss has no gradient with respect to its logits")
    logits, slope = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    weights = -slope.amin(dim=-1) / (1 - 1 / V)  # of -log p at p = 1/V it is 1
    if not weights.max() > 0:
        raise Skipped("the loss computes no cross-entropy that can be watched")
    counts = weights > 1e-6 * weights.max()
    targets = slope.argmin(dim=-1).masked_fill(~counts, -1)
    return _Reading(logits, targets, weights * counts, listener.read)


def differing(one: Tensor, other: Tensor) -> Tensor:
    """Which rows of logits `[R, V]` differ by more than rounding."""
    finite = other.masked_fill(~other.isfinite(), 0.0)
    difference = torch.where(one == other, 0.0, (one - other).abs()).amax(dim=-1)
    return ~(difference <= 1e-5 * finite.abs().max().clamp(min=1e-6))


class _Trace(NamedTuple):
    # What another target token at place u changes: the target at position r, the logits from f on.
    u: int
    r: int | None
    f: int | None


@dataclass
class Program:
    """What the checks look at. Only `original` is the caller's own."""

    original: nn.Module
    model: nn.Module  # a copy without dropout
    loss: Callable[[Any, Any], Any]
    batch: Batch  # as given
    few: Batch  # at most four rows of it, with different sources
    pad: int
    bos: int | None
    eos: int | None
    seconds: float
    search: Any = None
    dev: Any = None
    train: Any = None
    evaluate: Any = None
    optimizer: Any = None
    schedule: Any = None

    def read(self, batch: Batch, model: nn.Module | None = None) -> _Reading:
        return _read_loss(self.loss, (model or self.model).eval(), batch)

    @cached_property
    def refused(self) -> str:
        # What a loss says of targets that it takes with a start token in front, and not without.
        try:
            self.read(self.few)
        except Exception as error:
            with suppress(Exception):
                self.read(self.few.put(labels=F.pad(self.few.ids("labels"), (1, 0), value=self.bos)))
                return first_line(error)
        return ""

    @cached_property
    def each(self) -> list[_Reading]:
        return [self.read(self.few.rows(b)) for b in range(len(self.few.ids("labels")))]

    @cached_property
    def sentences(self) -> list[list[int]]:
        # What the loss asks for, sentence by sentence.
        return [[y for y in reading.targets.tolist() if y >= 0] for reading in self.each]

    @cached_property
    def longest(self) -> int:
        labels = self.few.ids("labels")
        return int(((labels != self.pad) & (labels >= 0)).sum(dim=1).argmax())

    @cached_property
    def reads(self) -> list[Tensor | None]:
        # What the decoder reads at each position that the loss looks at, if that can be seen.
        found = []
        for reading in self.each:
            wanted = (1, len(reading.targets))
            fitting = [ids[0] for ids in reversed(reading.read) if ids.shape == wanted]
            words = (ids for ids in fitting if not (ids.diff() == 1).all())  # and no positions
            found.append(next(words, None))
        return found

    @cached_property
    def first(self) -> list[int]:
        # What the decoder reads first, sentence by sentence; nothing if that can't be seen.
        if "read" in self.few.roles:
            return self.few.ids("read")[:, 0].tolist()
        seen = [int(ids[0]) for ids in self.reads if ids is not None]
        labels = self.few.ids("labels")
        if len(seen) < len(self.each):
            return labels[:, 0].tolist() if self.each[0].targets[0] != labels[0, 0] else []
        return seen

    @cached_property
    def traces(self) -> list[_Trace]:
        return self.moved("labels")

    def moved(self, role: str) -> list[_Trace]:
        # What other words of the longest sentence change, one after the other.
        if role not in self.few.roles:
            return []
        batch, base, traces = self.few.rows(self.longest), self.each[self.longest], []
        special = {self.pad, self.bos, self.eos, *self.sentences[self.longest][-1:]}
        words = sorted({w for row in words_of(self.few.ids(role), self.pad) for w in row} - special)
        for u, word in enumerate(batch.ids(role)[0, :10].tolist()):
            other = next((w for w in words if w != word), None)
            if word in {self.pad, self.bos, self.eos, -100} or other is None:
                continue
            new = self.read(batch.with_token(role, u, other))
            if new.logits.shape != base.logits.shape:
                raise Skipped("how much is predicted depends on the words")
            moved = (new.targets != base.targets).nonzero()[:, 0].tolist()
            changed = differing(new.logits, base.logits).nonzero()[:, 0].tolist()
            traces.append(_Trace(u, (moved or [None])[0], (changed or [None])[0]))
        return traces

    @cached_property
    def unpadded(self) -> Batch:
        # The longest sentence, cut to its own length.
        batch, cut = self.few.rows(self.longest), {}
        for role in batch.roles:
            ids = batch.ids(role)
            real = ((ids[0] != self.pad) & (ids[0] >= 0)).nonzero()[:, 0]
            cut[role] = ids[:, : int(real[-1]) + 1 if len(real) else 1]
        mask = batch.parts.get("attention_mask")
        more = {"attention_mask": mask[:, : cut["src"].size(1)]} if mask is not None and "src" in cut else {}
        return batch.put(**cut, **more)


def mixed(p: Program) -> str:
    """In batches of which size a sentence gets logits that it doesn't get alone, if in any."""
    alone = [reading.logits.masked_fill(~reading.logits.isfinite(), 0.0) for reading in p.each]
    for size in range(2, 9):
        index = [b % len(alone) for b in range(size)]
        try:
            whole = p.read(p.few.rows(*index)).logits
        except Exception as error:
            return f"a batch of {size} raises {first_line(error)}"
        wanted, whole = torch.cat([alone[b] for b in index]), whole.masked_fill(~whole.isfinite(), 0.0)
        apart = torch.cdist(wanted, whole, p=torch.inf).amin(dim=1)  # from the nearest, in any order
        if not apart.max() <= 1e-5 * wanted.abs().max():
            return f"in a batch of {size}, a sentence's logits depend on the others"
    return ""


class Watched:
    """The same batch for a user's own loop; whenever another one is asked for, it looks at the model."""

    def __init__(self, model: nn.Module, batch: Batch, size: int = 48) -> None:
        self.model, self.batch, self.size, self.taken, self.stale = model, batch, size, 0, False
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
            for grad in grads if marked else ():  # whoever clears gradients doesn't notice
                if grad.any():
                    grad.fill_(1e6)


def stripped(sentence: list[int], padding: int | None) -> list[int]:
    """A sentence without the padding behind it."""
    while sentence and sentence[-1] == padding:
        sentence = sentence[:-1]
    return sentence


def searched(p: Program) -> list[tuple[list[int], list[int]]]:
    """What the search writes for each sentence, and what was learned."""
    asked = p.sentences
    if len(set(p.first)) > 1:  # no start token: what is read first is a word of the sentence
        asked = [[first, *sentence] for first, sentence in zip(p.first, asked, strict=True)]
    longest, ends = max(map(len, asked)), {sentence[-1] for sentence in asked}
    try:
        found = p.search(p.model.eval(), p.few.ids("src").clone(), longest + 2)
    except Exception:  # two more than it takes, perhaps
        found = p.search(p.model.eval(), p.few.ids("src").clone(), longest)
    rows = ([int(word) for word in row] for row in found)
    return [(_cut(row, sentence, ends, p), sentence) for row, sentence in zip(rows, asked, strict=True)]


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
