"""What `check_model` asks of a model: one function for each check."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Probe", "Check", "CHECKS", "NEEDED", "draw", "logits_of", "influence", "redrawn", "listed"]


_BATCH, _SOURCE, _TARGET = 3, 7, 5
_LONGEST = _SOURCE + 2  # the most tokens that a model is given
_Four = tuple[Tensor, Tensor, Tensor, Tensor]


class Probe(NamedTuple):
    """What a model is asked, and what its owner says about it."""

    src: Tensor  # [B, S]
    tgt: Tensor  # [B, T], starting with the start token
    other_src: Tensor  # another token in every place
    other_tgt: Tensor
    draw: Callable[[int], _Four]  # four more of these, from a seed
    pad_id: int
    tgt_vocab_size: int
    tolerance: float
    dropout: bool | None
    search: Callable[[Tensor, int], Tensor] | None
    positions: str | None
    reads_source: bool
    reads_target: bool

    def ragged(self, src: Tensor) -> Tensor:
        """Sources cut to different lengths: the first is whole, each further one a token shorter."""
        B, S = src.shape
        beyond = torch.arange(S) >= S - torch.arange(B)[:, None]  # [B, S]
        return src.masked_fill(beyond.to(src.device), self.pad_id)


def draw(sizes: tuple[int, int], pad_id: int, bos_id: int, seed: int, device: torch.device) -> _Four:
    """Source and target of random tokens, and the same with every token replaced."""
    generator, drawn = torch.Generator().manual_seed(seed), []
    for size, length in zip(sizes, (_SOURCE, _TARGET), strict=True):
        ordinary = torch.arange(size)
        ordinary = ordinary[~torch.isin(ordinary, torch.tensor(sorted({pad_id, bos_id})))]
        steps = torch.randint(1, len(ordinary), (_BATCH, length), generator=generator)
        index = steps.cumsum(dim=1) % len(ordinary)  # a step is never 0, so neighbors differ
        drawn.append([ordinary[index].to(device), ordinary[(index + 1) % len(ordinary)].to(device)])
    (src, other_src), (tgt, other_tgt) = drawn
    tgt[:, 0] = bos_id
    return src, tgt, other_src, other_tgt


def logits_of(model: nn.Module, src: Tensor, tgt: Tensor, training: bool = False, seed: int = 0) -> Tensor:
    """The logits `[B, T, V]` of a model in the given mode, without gradients."""
    torch.manual_seed(seed)
    with torch.no_grad():
        model.train(training)  # a model's own `train` need not return it
        return model(src.clone(), tgt.clone())


def _changes(one: Tensor, other: Tensor) -> Tensor:
    # How much logits differ at each position [T], as a share of the largest logit.
    scale = one.abs().max().clamp(min=torch.finfo(one.dtype).tiny)
    return (one - other).abs().amax(dim=(0, 2)) / scale


def influence(call: Callable[[Tensor], Tensor], ids: Tensor, other: Tensor) -> Tensor:
    """Row u: how much the logits at every position `[T]` change with token u of `ids`."""
    whole, places = call(ids), torch.arange(ids.size(1), device=ids.device)
    changed = (call(torch.where(places == u, other, ids)) for u in places)
    return torch.stack([_changes(whole, logits) for logits in changed])


# The checks

_Outcome = tuple[bool | None, str]  # passed (None: skipped), and what was measured


class Check(NamedTuple):
    """A check of a model."""

    run: Callable[[nn.Module, Probe], _Outcome]
    suspects: str  # where to look first
    of: str  # "source" or "target", if it needs one
    on_redrawn: bool  # whether it is asked of weights of ordinary size


CHECKS: dict[str, Check] = {}
NEEDED = "logits", "repeatable"  # where one of them fails, later ones would measure nothing


def _check(suspects: str, of: str = "", on_redrawn: bool = False) -> Callable[[Any], Any]:
    def register(run: Any) -> Any:
        CHECKS[run.__name__.removeprefix("_").replace("_", " ")] = Check(run, suspects, of, on_redrawn)
        return run

    return register


def _unchanged(probe: Probe, **changes: Tensor) -> _Outcome:
    largest = {mode: change.max().item() for mode, change in changes.items()}
    # "Not at most" rather than "more than", because a NaN is neither.
    moved = {mode: not change <= probe.tolerance for mode, change in largest.items()}
    said = (f"{mode} {f'{largest[mode]:.2g}' if moved[mode] else 'none'}" for mode in largest)
    return not any(moved.values()), "change: " + ", ".join(said)


def _changed(probe: Probe, changes: Tensor) -> _Outcome:
    least = changes.min().item()
    seen = least > probe.tolerance
    return seen, f"least change: {f'{least:.2g}' if seen else 'none'}"


@_check("more than one result, axes swapped, S taken for T, masks of -inf")
def _logits(model: nn.Module, probe: Probe) -> _Outcome:
    """The result is `[B, T, V]`, floating-point and finite, for S > T, S = T and S < T."""
    for length in (_TARGET, _TARGET - 2, _SOURCE):
        wanted = [_BATCH, _TARGET if probe.reads_target else length, probe.tgt_vocab_size]
        for training in (False, True):
            logits = logits_of(model, probe.src[:, :length], probe.tgt, training)
            if not logits.is_floating_point():
                return False, f"not logits: {logits.dtype}"
            if list(logits.shape) != wanted:
                return False, f"shape {list(logits.shape)}, not {wanted}"
            if not logits.isfinite().all():
                return False, f"shape {wanted}, not all finite"
    banned = getattr(model, "banned", None)
    number = 0 if banned is None else int(banned.sum())
    return True, f"shape {wanted}, finite" + (f" but for {number} banned tokens" if number else "")


@_check("dropout without the training flag, state between calls")
def _repeatable(model: nn.Module, probe: Probe) -> _Outcome:
    """In evaluation mode a call repeats itself, whatever was drawn and asked before."""
    first = logits_of(model, probe.src, probe.tgt)
    logits_of(model, probe.other_src, probe.other_tgt)
    return _unchanged(probe, evaluation=_changes(first, logits_of(model, probe.src, probe.tgt, seed=1)))


@_check("a softmax at the end; the loss applies its own")
def _scores(model: nn.Module, probe: Probe) -> _Outcome:
    """The result is not a probability distribution already."""
    logits = logits_of(model, probe.src, probe.tgt)
    if (logits >= 0).all() and (logits.sum(dim=-1) - 1).abs().max() <= probe.tolerance:
        return False, "not negative, and at every position the sum is 1"
    return True, f"from {logits.min().item():.2g} to {logits.max().item():.2g}"


def _is_random(model: nn.Module, probe: Probe) -> bool:
    one, other = (logits_of(model, probe.src, probe.tgt, True, seed) for seed in (0, 1))
    return _changes(one, other).max().item() > probe.tolerance


@_check("a rate that does not reach all its layers, or none of them")
def _dropout(model: nn.Module, probe: Probe) -> _Outcome:
    """Training mode is random where the model has dropout, and only there."""
    if probe.dropout is None:
        return None, "whether there is dropout was not said"
    random = _is_random(model, probe)
    return random == probe.dropout, f"training mode is {'' if random else 'not '}random"


_WORDS = "softmax or norm over words"


@_check(f"causal mask missing, in one mode only or after the softmax; {_WORDS}", "target", True)
def _future(model: nn.Module, probe: Probe) -> _Outcome:
    """Logits do not depend on what stands after their position, or whether anything does."""
    src, tgt, changes = probe.src, probe.tgt, {}
    for mode in ("evaluation", "training"):
        training = mode == "training"
        whole, moved = logits_of(model, src, tgt, training), []
        for t in range(1, _TARGET):
            rests = [probe.other_tgt[:, t:], torch.full_like(tgt[:, t:], probe.pad_id)]
            if t > 1 and not training:  # one token alone is for another check
                rests.append(tgt[:, :0])
            for rest in rests:
                logits = logits_of(model, src, torch.cat([tgt[:, :t], rest], dim=1), training)
                moved.append(_changes(whole[:, :t], logits[:, :t]))
        changes[mode] = torch.cat(moved)
    return _unchanged(probe, **changes)


@_check(f"no padding mask in encoder or cross-attention, or inverted; {_WORDS}", "source", True)
def _padding(model: nn.Module, probe: Probe) -> _Outcome:
    """Padding after the source changes nothing."""
    src = probe.ragged(probe.src)
    padded, changes = F.pad(src, (0, _LONGEST - _SOURCE), value=probe.pad_id), {}
    for mode in ("evaluation",) if _is_random(model, probe) else ("evaluation", "training"):
        short, long = (logits_of(model, ids, probe.tgt, mode == "training") for ids in (src, padded))
        changes[mode] = _changes(short, long[:, : short.size(1)])
    return _unchanged(probe, **changes)


@_check("mask, positions or norm along the batch axis, mask of one row for all", on_redrawn=True)
def _batch(model: nn.Module, probe: Probe) -> _Outcome:
    """A sentence's logits depend neither on the rest of its batch nor on its row."""
    src, tgt = probe.ragged(probe.src), probe.tgt
    other_src = torch.cat([src[:1], probe.ragged(probe.other_src)[1:]])
    other_tgt = torch.cat([tgt[:1], probe.other_tgt[1:]])
    reversed_ = logits_of(model, src.flip(0), tgt.flip(0)).flip(0)
    changes = {"rows reversed": _changes(logits_of(model, src, tgt), reversed_)}
    for mode in ("evaluation", "training"):
        whole = logits_of(model, src, tgt, mode == "training")
        mixed = logits_of(model, other_src, other_tgt, mode == "training")
        changes[mode] = _changes(whole[:1], mixed[:1])
    return _unchanged(probe, **changes)


@_check("cross-attention not connected, or masks inverted", "source", True)
def _source_reach(model: nn.Module, probe: Probe) -> _Outcome:
    """Every source token matters at every target position."""
    call = lambda src: logits_of(model, src, probe.tgt)
    return _changed(probe, influence(call, probe.src, probe.other_src))


@_check("target shifted inside as well, decoder masks inverted", "target", True)
def _target_reach(model: nn.Module, probe: Probe) -> _Outcome:
    """Every target token matters at its own position and at all later ones."""
    changes = influence(lambda tgt: logits_of(model, probe.src, tgt), probe.tgt, probe.other_tgt)
    own_and_later = torch.ones_like(changes, dtype=torch.bool).triu()
    return _changed(probe, changes[own_and_later])


def _swapped(ids: Tensor, place: int) -> Tensor:
    # The tokens at `place` and after it have changed places.
    order = torch.arange(ids.size(1))
    order[[place, place + 1]] = order[[place + 1, place]]
    return ids[:, order]


_UNPLACED = None, "the model has no positions, as its owner says"


@_check("positions missing, or along the batch axis", "source", True)
def _source_positions(model: nn.Module, probe: Probe) -> _Outcome:
    """Two neighbors of the source cannot be swapped unnoticed."""
    if probe.positions == "none":
        return _UNPLACED
    whole, changes = logits_of(model, probe.src, probe.tgt), []
    for s in range(_SOURCE - 1):
        change = _changes(whole, logits_of(model, _swapped(probe.src, s), probe.tgt))
        if not probe.reads_target:  # an encoder's logits at both places follow their words
            change = torch.cat([change[:s], change[s + 2 :]])
        changes.append(change.max())
    return _changed(probe, torch.stack(changes))


@_check("positions missing, or along the batch axis", "target", True)
def _target_positions(model: nn.Module, probe: Probe) -> _Outcome:
    """The order of earlier target tokens matters and, with absolute positions, their places."""
    if probe.positions == "none":
        return _UNPLACED
    whole, changes = logits_of(model, probe.src, probe.tgt), []
    for t in range(1, _TARGET - 2):
        moved = logits_of(model, probe.src, _swapped(probe.tgt, t))
        changes.append(_changes(whole, moved)[t + 2 :].max())  # where both have been read
    ordered, measured = _changed(probe, torch.stack(changes))
    if not ordered or probe.positions == "relative":
        return ordered, measured
    same = logits_of(model, probe.src, probe.tgt[:, 1:2].expand(-1, _TARGET))
    placed, measured = _changed(probe, _changes(same[:, 1:], same[:, :-1]))
    if placed or probe.positions == "absolute":
        return placed, f"one token in every place, {measured}"
    return None, "only the order is seen: positions are relative, or there are none"


def _gradients_of(model: nn.Module, src: Tensor, probe: Probe) -> dict[str, Tensor | None]:
    # Of every parameter that is to be trained, added to what an earlier call has left; where one holds the
    # matrices of all experts, of each.
    torch.manual_seed(0)
    model.train()
    found: dict[str, Tensor | None] = {}
    logits = model(src.clone(), probe.tgt.clone())  # [B, T, V]
    labels = probe.other_tgt if probe.reads_target else probe.other_src % probe.tgt_vocab_size
    F.cross_entropy(logits.transpose(1, 2), labels).backward()
    for name, p in model.named_parameters():
        name, gradient = name.removeprefix("model."), p.grad
        if p.requires_grad and gradient is not None and gradient.dim() > 2 and "expert" in name:
            found |= {f"{name}[{expert}]": part for expert, part in enumerate(gradient)}
        elif p.requires_grad:
            found[name] = gradient
    return found


def listed(names: list[str]) -> str:
    """The first two names, and how many more there are."""
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _not_finite(gradients: Mapping[str, Tensor | None]) -> str:
    return listed([n for n, g in gradients.items() if g is not None and not g.isfinite().all()])


@_check("-inf in every score of a row, NaN replaced too late", "source")
def _empty_source(model: nn.Module, probe: Probe) -> _Outcome:
    """A source of padding alone leaves logits and gradients finite."""
    src = probe.src.clone()
    src[-1] = probe.pad_id
    for mode in ("evaluation", "training"):
        if not logits_of(model, src, probe.tgt, mode == "training").isfinite().all():
            return False, f"logits not finite in {mode} mode"
    if wrong := _not_finite(_gradients_of(model, src, probe)):
        return False, f"logits finite, gradients not: {wrong}"
    return True, "logits and gradients finite"


@_check("squeeze() without an axis")
def _one_token(model: nn.Module, probe: Probe) -> _Outcome:
    """One sentence of one token, source and target, is handled like any other."""
    for training in (False, True):
        logits = logits_of(model, probe.src[:1, :1], probe.tgt[:1, :1], training)
        if logits.shape != (1, 1, probe.tgt_vocab_size) or not logits.isfinite().all():
            return False, f"shape {list(logits.shape)}, finite: {bool(logits.isfinite().all())}"
    return True, f"shape {list(logits.shape)}, finite"


def redrawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw matrices and gates of ordinary size, in place, so that every influence can be seen."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        drawn = (parameter.dim() > 1 or parameter.numel() == 1) and parameter.requires_grad
        if drawn and parameter.isfinite().all():  # minus infinity bans a token, and stays
            nn.init.normal_(parameter, std=parameter.shape[-1:].numel() ** -0.5)
    return model


_DRAWS = 20  # batches and weights, without a new gradient, before a parameter is called dead


@_check("detach or no_grad, a layer that is built and not used")
def _gradients(model: nn.Module, probe: Probe) -> _Outcome:
    """Every parameter that is to be trained can get a gradient, a finite one."""
    gradients = _gradients_of(model, probe.src, probe)
    if wrong := _not_finite(gradients):
        return False, f"not finite: {wrong}"
    dead = [name for name, gradient in gradients.items() if gradient is None or not gradient.any()]
    seed = fruitless = 0
    while dead and fruitless < _DRAWS:
        src, tgt, other_src, other_tgt = probe.draw(seed + 1)
        batch = probe._replace(src=src, tgt=tgt, other_src=other_src, other_tgt=other_tgt)
        again = _gradients_of(redrawn(model, seed), batch.src, batch)
        left = [name for name, gradient in again.items() if gradient is None or not gradient.any()]
        dead, seed, fruitless = left, seed + 1, fruitless + 1 if left == dead else 0
    if dead:
        return False, f"none for {listed(dead)}"
    return True, f"all of {len(gradients)} parameters have one"


@_check("cache positions, start token, masks or dropout while searching", "target")
def _search(model: nn.Module, probe: Probe) -> _Outcome:
    """Greedy search finds what the model, read in one pass and without a cache, says is best."""
    if probe.search is None:
        return None, "no search was given"
    src = probe.ragged(probe.src)
    found = probe.search(src.clone(), _LONGEST)  # [B, L]
    if found.dim() != 2 or len(found) != _BATCH or not 1 <= found.size(1) <= _LONGEST:
        return False, f"shape {list(found.shape)}, not [{_BATCH}, 1 to {_LONGEST}]"
    logits = logits_of(model, src, torch.cat([probe.tgt[:, :1], found[:, :-1]], dim=1))
    scale = logits.abs().max()
    if (banned := getattr(model, "banned", None)) is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    taken = logits.gather(2, found[:, :, None])[:, :, 0]
    behind = (logits.amax(dim=2) - taken) / scale  # [B, L]
    real = found != probe.pad_id
    real[:, 0] = True
    wrong = (real & ~(behind <= probe.tolerance)).sum().item()
    return wrong == 0, f"{wrong} of {real.sum().item()} tokens are not the model's best"
