"""What a loss reads of a batch, found by its gradient, and what changes with its words."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformer.study.checks import Skipped, seed_generators
from transformer.study.model_checks import adapted, find_logits

__all__ = [
    "Batch", "without_padding", "shift_of", "parse_batch", "Reading", "plain_loss", "loss_value", "differing",
    "Program",
]  # fmt: skip


_NAMES = {  # what programs call the parts of a batch that hold ids
    "src": ("src", "source", "input_ids"),
    "read": ("decoder_input_ids", "prev_output_tokens", "tgt_input"),
    "labels": ("labels", "tgt", "trg", "target", "targets"),
}
_ORDERS = {1: ("labels",), 2: ("src", "labels"), 3: ("src", "read", "labels")}  # in a tuple


@dataclass(frozen=True)
class Batch:
    """A batch; its roles are `labels`, `src`, which a language model lacks, and `read` by the decoder."""

    whole: Any
    parts: dict[Any, Any]
    roles: dict[str, Any]

    def ids(self, role: str) -> Tensor:
        """The ids of a role."""
        ids: Tensor = self.parts[self.roles[role]]
        return ids

    def given(self) -> Any:
        """A batch of the caller's form."""
        parts = {key: part.clone() if isinstance(part, Tensor) else part for key, part in self.parts.items()}
        if isinstance(self.whole, Tensor):
            return parts[0]
        if isinstance(self.whole, Mapping):
            new: Any = copy.copy(self.whole)
            new.update(parts)
            return new
        form = type(self.whole)
        return getattr(form, "_make", form)(parts.values())

    def rows(self, *index: int) -> "Batch":
        """Some of its rows."""
        size, parts = len(self.ids("labels")), dict(self.parts)
        for key, part in parts.items():
            if isinstance(part, Tensor) and part.shape[:1] == (size,):
                parts[key] = part[torch.tensor(index, device=part.device)]
        return replace(self, parts=parts)

    def put(self, **ids: Tensor) -> "Batch":
        """The same with other ids."""
        return replace(self, parts=self.parts | {self.roles[role]: part for role, part in ids.items()})

    def few(self, pad: int) -> "Batch":
        """At most four rows with different sources, the longest and the shortest target among them."""
        rows = without_padding(self.ids("src" if "src" in self.roles else "labels"), pad)
        firsts = [b for b, row in enumerate(rows[:64]) if row not in rows[:b]]
        lengths = [len(row) for row in without_padding(self.ids("labels"), pad)]
        order = sorted(firsts, key=lambda b: lengths[b])
        return self.rows(*sorted({order[0], order[-1], *firsts[:2]}))


def without_padding(ids: Tensor, pad: int) -> list[tuple[int, ...]]:
    """The rows of a batch without padding and ignored places."""
    return [tuple(word for word in row if word != pad and word >= 0) for row in ids.tolist()]


def shift_of(read: Tensor, labels: Tensor) -> int | None:
    """How many places what is read stands behind the targets, if it is the same sentences."""
    for shift in (1, 0, 2):
        later = read[:, shift:]
        width = min(later.size(1), labels.size(1))
        equal, real = labels[:, :width] == later[:, :width], labels[:, :width] >= 0
        if real.any() and (equal | ~real).double().mean() > 0.9:
            return shift
    return None


def _is_ids(part: Any) -> bool:
    return isinstance(part, Tensor) and part.dim() == 2 and part.dtype in (torch.long, torch.int)


def parse_batch(name: str, batch: Any) -> Batch:
    """A batch by its roles; refused if it has another form (`TypeError`, `ValueError`)."""
    if isinstance(batch, Mapping):
        parts = dict(batch)
        roles = {role: key for role, names in _NAMES.items() for key in names if _is_ids(parts.get(key))}
    else:
        parts = dict(enumerate(batch if isinstance(batch, (tuple, list)) else (batch,)))
        keys = [key for key, part in parts.items() if _is_ids(part)]
        roles = dict(zip(_ORDERS.get(len(keys), ()), keys, strict=False))
    if set(roles) == {"src"}:
        roles = {"labels": roles["src"]}
    if "labels" not in roles:
        forms = "(src, tgt), (src, decoder input, labels), ids, or a mapping with input_ids, labels or so"
        raise TypeError(f"{name} must be {forms}, with integer ids [B, T]")
    sizes = {role: len(parts[key]) for role, key in roles.items()}
    if len(set(sizes.values())) > 1 or not min(sizes.values()):
        raise ValueError(f"{name} must have the same number of rows, at least 1, but has {sizes}")
    if set(roles) == {"src", "labels"}:
        src, labels = parts[roles["src"]], parts[roles["labels"]]
        shifts = (0, 1) if isinstance(batch, Mapping) else (1,)  # a pair of equal ids is source and target
        if src.shape == labels.shape and shift_of(src, labels) in shifts:
            roles = {"read": roles["src"], "labels": roles["labels"]}  # of a language model
    return Batch(batch, parts, roles)


class Reading(NamedTuple):
    """What a loss computes of a batch: a row for each position that it looks at, in its own order."""

    logits: Tensor  # [R, V], the model's
    targets: Tensor  # [R], -1 where a position doesn't count
    weights: Tensor  # [R], how much a position counts
    looked_up: list[tuple[Tensor, int]]  # in tables, in order, with each table's number of rows

    @property
    def read(self) -> Tensor | None:
        """The ids that the decoder reads of a batch of one sentence, if they can be seen."""
        wanted = (1, len(self.targets)), self.logits.size(1)  # a table of positions has other rows
        words = [ids[0] for ids, rows in self.looked_up if (ids.shape, rows) == wanted]
        return words[-1] if words else None


class _Listener(TorchFunctionMode):
    # Keeps the logits that a loss gets, and gives it flat ones instead: what their gradient says of
    # targets and weights then doesn't depend on the model.

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[tuple[str, Tensor, Tensor, int]] = []
        self.looked_up: list[tuple[Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name == "embedding" and len(args) > 1:
            self.looked_up.append((args[0], len(args[1])))
        if name in ("cross_entropy", "log_softmax", "logsumexp"):
            logits, rest = (args[0], args[1:]) if args else (given.pop("input"), ())
            axis = 1 if name == "cross_entropy" and logits.dim() > 1 else -1
            leaf = torch.full_like(logits.detach(), 1 / logits.size(axis)).requires_grad_()
            self.captured.append((name, logits.detach(), leaf, axis))
            args = leaf, *rest
        return func(*args, **given)


def _read_loss(loss: Callable[[Any, Any], Any], model: nn.Module, batch: Batch) -> Reading:
    seed_generators(0)
    with torch.enable_grad(), _Listener() as listener:
        value = loss_value(loss(model.eval(), batch.given()))
    best = [each for each in listener.captured if each[0] == "cross_entropy"] or listener.captured
    if not best or not value.requires_grad:
        raise Skipped("the loss computes no cross-entropy that can be watched")
    slopes = torch.autograd.grad(value, [leaf for _, _, leaf, _ in best], materialize_grads=True)
    V = max(leaf.size(axis) for _, _, leaf, axis in best)
    flat = lambda x, axis: x.movedim(axis, -1).reshape(-1, V).float()
    pairs = [(flat(x, axis), flat(slope, axis)) for (_, x, _, axis), slope in zip(best, slopes, strict=True)]
    logits, slope = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    weights = -slope.amin(dim=-1) / (1 - 1 / V)  # of -log p at p = 1/V it is 1
    if not weights.max() > 0:
        raise Skipped("the loss computes no cross-entropy that can be watched")
    counts = weights > 1e-6 * weights.max()
    targets = slope.argmin(dim=-1).masked_fill(~counts, -1)
    return Reading(logits, targets, weights * counts, listener.looked_up)


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
    """The loss in what a user's function returns."""
    if isinstance(result, (tuple, list)) and len(result) == 2:
        total: Tensor = result[0] / max(float(result[1]), 1.0)
        return total
    if not isinstance(result, Tensor) or result.numel() != 1:
        shape = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
        raise TypeError(f"loss must return a scalar, or a sum and the number of tokens, not {shape}")
    return result.reshape(())


def differing(one: Tensor, other: Tensor) -> Tensor:
    """Which rows of logits `[R, V]` differ by more than rounding."""
    finite = other.masked_fill(~other.isfinite(), 0.0)
    difference = torch.where(one == other, 0.0, (one - other).abs()).amax(dim=-1)
    return ~(difference <= 1e-5 * finite.abs().max().clamp(min=1e-6))


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
    more: dict[str, Any]  # what else was given, by its name

    def read(self, batch: Batch) -> Reading:
        """What the loss computes of a batch."""
        return _read_loss(self.loss, self.model, batch)

    @cached_property
    def each(self) -> list[Reading]:
        return [self.read(self.few.rows(b)) for b in range(len(self.few.ids("labels")))]

    @cached_property
    def sentences(self) -> list[list[int]]:
        """What the loss asks for, sentence by sentence; once, if it reads each twice, as R-Drop does."""
        asked = [[y for y in reading.targets.tolist() if y >= 0] for reading in self.each]
        more = len(self.each[0].targets) > self.few.ids("labels").size(1)
        twice = more and all(ids == 2 * ids[: len(ids) // 2] for ids in asked)
        return [ids[: len(ids) // 2] for ids in asked] if twice else asked

    @cached_property
    def first(self) -> list[int]:
        """What the decoder reads first, sentence by sentence; nothing if that can't be seen."""
        seen = [int(reading.read[0]) for reading in self.each if reading.read is not None]
        return seen if len(seen) == len(self.each) else []

    @cached_property
    def longest(self) -> int:
        lengths = [len(row) for row in without_padding(self.few.ids("labels"), self.pad)]
        return lengths.index(max(lengths))

    def unpadded(self) -> Any:
        """The longest sentence, cut to its own length."""
        batch = self.few.rows(self.longest)
        lengths = {role: len(without_padding(batch.ids(role), self.pad)[0]) for role in batch.roles}
        return batch.put(**{role: batch.ids(role)[:, :length] for role, length in lengths.items()}).given()

    def reworded(self, role: str) -> Reading:
        """The longest sentence with other words: of a source all, of targets those of the second half."""
        batch, special = self.few.rows(self.longest), {self.pad, self.bos, self.eos}
        words = sorted({w for row in without_padding(self.few.ids(role), self.pad) for w in row} - special)
        if len(words) < 2:
            raise Skipped("there is one word alone")
        others, changed = dict(zip(words, words[1:] + words[:1], strict=True)), {}
        for name in {role} if role == "src" else {role, "read"} & batch.roles.keys():
            ids = batch.ids(name).clone()
            for u in range(0 if name == "src" else ids.size(1) // 2 + (name == "read"), ids.size(1)):
                ids[0, u] = others.get(int(ids[0, u]), ids[0, u])
            changed[name] = ids
        return self.read(batch.put(**changed))
