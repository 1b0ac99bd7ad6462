"""transformer.study.checks, from book/16-clinic.ipynb, "The clinic".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "changes", "influence", "B", "S", "T", "LONGEST", "seed_generators", "sentences", "Finding", "Skipped",
    "listed", "Probe", "without_dropout", "redrawn", "Check", "CHECKS", "NEEDED", "check", "result_is_logits",
    "calls_repeat", "result_is_no_softmax", "is_random", "dropout_matches", "OVER_WORDS", "NO_MASK",
    "future_is_hidden", "padding_is_ignored", "batch_is_no_context", "source_is_read", "past_is_read",
    "swapped", "NO_POSITIONS", "source_order_counts", "target_order_counts", "gradients_of", "not_finite",
    "without_gradient", "empty_source_is_finite", "one_token_is_enough", "parameters_are_trained",
    "search_takes_the_best",
]


# %% book/16-clinic.ipynb · A model to check by hand · [checks-imports]
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


# %% book/16-clinic.ipynb · A model to check by hand · [influence]
def changes(one: Tensor, other: Tensor) -> Tensor:
    """How much logits differ at each position `[T]`, as a share of the largest."""
    scale = one.abs().max().clamp(min=torch.finfo(one.dtype).tiny)
    return (one - other).abs().amax(dim=(0, 2)) / scale


@torch.no_grad()
def influence(call: Callable[[Tensor], Tensor], ids: Tensor, other: Tensor) -> Tensor:
    """Row u: how much the logits at every position change with token u of `ids`."""
    whole, rows = call(ids), []  # [B, T, V]
    for u in range(ids.size(1)):
        replaced = ids.clone()
        replaced[:, u] = other[:, u]
        rows.append(changes(whole, call(replaced)))
    return torch.stack(rows)


# %% book/16-clinic.ipynb · How each kind of check works · [probe]
B, S, T = 3, 7, 5  # sentences, and how long source and target are
LONGEST = S + 2  # the most tokens that a model is given


def seed_generators(seed: int) -> None:
    """`torch.manual_seed`, without the stack traces that it notes for GPUs where there are none."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def sentences(sizes: tuple[int, int], pad_id: int, bos_id: int, seed: int) -> tuple[Tensor, ...]:
    """Random source `[B, S]` and target `[B, T]`, and the same with another token in every place."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for size, length in zip(sizes, (S, T), strict=True):
        ordinary = torch.tensor([token for token in range(size) if token not in (pad_id, bos_id)])
        steps = torch.randint(1, len(ordinary), (B, length), generator=generator)
        index = steps.cumsum(dim=1) % len(ordinary)  # a step is never 0, so neighbors differ
        drawn += [ordinary[index], ordinary[(index + 1) % len(ordinary)]]
    src, other_src, tgt, other_tgt = drawn
    tgt[:, 0] = bos_id
    return src, tgt, other_src, other_tgt


class Finding(NamedTuple):
    """What a check returns."""

    passed: bool
    measured: str
    suspects: str = ""  # where to look first, if the check itself can tell


class Skipped(Exception):
    """A check that cannot be made, and why."""


def listed(names: Iterable[object]) -> str:
    """The first two names, and how many more there are."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - 2} more" if len(texts) > 2 else ""
    return ", ".join(texts[:2]) + more


@dataclass(frozen=True)
class Probe:
    """A model, what it is asked, and what its owner says of it."""

    model: nn.Module  # in float64 if it can be, called as model(src, tgt)
    given: nn.Module  # in its own precision
    src: Tensor  # [B, S]
    tgt: Tensor  # [B, T], beginning with the start token
    other_src: Tensor  # another token in every place
    other_tgt: Tensor
    vocab_size: int  # of the target
    draw: Callable[[int], tuple[Tensor, ...]]  # four more of these, from a seed
    pad_id: int = 0
    tolerance: float = 1e-5
    dropout: bool | None = None
    search: Callable[[Tensor, int], Tensor] | None = None
    positions: str | None = None

    def logits(
        self, src: Tensor | None = None, tgt: Tensor | None = None, training: bool = False, seed: int = 0
    ) -> Tensor:
        """The logits `[B, T, V]` in either mode, of the probe's own sentences or of others."""
        seed_generators(seed)
        self.model.train(training)  # a model's own `train` need not return it
        src, tgt = self.src if src is None else src, self.tgt if tgt is None else tgt
        with torch.no_grad():
            return self.model(src.clone(), tgt.clone())

    def ragged(self, src: Tensor) -> Tensor:
        """Sources cut to different lengths: the first is whole, each further one a token shorter."""
        beyond = torch.arange(S) >= S - torch.arange(len(src))[:, None]  # [B, S]
        return src.masked_fill(beyond.to(src.device), self.pad_id)

    def unchanged(self, **moved: Tensor) -> Finding:
        """That some changes are none."""
        largest = {what: change.max().item() for what, change in moved.items()}
        # "Not at most" rather than "more than", because a NaN is neither.
        wrong = {what: not change <= self.tolerance for what, change in largest.items()}
        parts = (f"{what} {f'{largest[what]:.2g}' if wrong[what] else 'none'}" for what in largest)
        return Finding(not any(wrong.values()), "change: " + ", ".join(parts))

    def changed(self, moved: Tensor) -> Finding:
        """That all changes can be seen."""
        least = moved.min().item()
        seen = least > self.tolerance
        return Finding(seen, f"least change: {f'{least:.2g}' if seen else 'none'}")


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with dropout of rate 0: inside an expert, it draws by how many tokens the expert gets."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def redrawn(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draw matrices and gates of ordinary size, in place, so that every influence can be seen."""
    seed_generators(seed)
    for parameter in model.parameters():
        if parameter.requires_grad and (parameter.dim() > 1 or parameter.numel() == 1):
            nn.init.normal_(parameter, std=parameter.shape[-1:].numel() ** -0.5)
    return without_dropout(model)


@dataclass(frozen=True)
class Check:
    """A check of a model; it is called with a probe, and asks a copy of its model."""

    run: Callable[[Probe], Finding]
    suspects: str  # where to look first
    of_source: bool = False  # whether it is for models that have a source
    redraw: bool = False  # whether it is asked of weights of ordinary size, without dropout
    exact: bool = True  # whether it is asked in float64; what overflows depends on the dtype

    def __call__(self, probe: Probe) -> Finding:
        if self.of_source and not getattr(probe.model, "reads_source", True):
            raise Skipped("a decoder-only model has no source")
        model = copy.deepcopy(probe.model if self.exact else probe.given)
        return self.run(replace(probe, model=redrawn(model) if self.redraw else model))


CHECKS: dict[str, Check] = {}
NEEDED = "logits", "repeatable"  # where one of them fails, later ones would measure nothing


def check(name: str, suspects: str, **kind: bool) -> Callable[[Any], Any]:
    """Put a function among the checks; `kind` is of `Check`."""

    def register(run: Callable[[Probe], Finding]) -> Callable[[Probe], Finding]:
        CHECKS[name] = Check(run, suspects, **kind)
        return run

    return register


# %% book/16-clinic.ipynb · How each kind of check works · [shapes]
@check("logits", "more than one result, axes swapped, S taken for T, masks of -inf")
def result_is_logits(probe: Probe) -> Finding:
    """The result is `[B, T, V]`, floating-point and finite, for S > T, S = T and S < T."""
    wanted = [B, T, probe.vocab_size]
    for length in (T, T - 2, S):
        for training in (False, True):
            logits = probe.logits(probe.src[:, :length], training=training)
            if not logits.is_floating_point():
                return Finding(False, f"not logits: {logits.dtype}")
            if list(logits.shape) != wanted:
                return Finding(False, f"shape {list(logits.shape)}, not {wanted}")
            if not logits.isfinite().all():
                return Finding(False, f"shape {wanted}, not all finite")
    return Finding(True, f"shape {wanted}, finite")


@check("repeatable", "dropout without the training flag, state between calls")
def calls_repeat(probe: Probe) -> Finding:
    """In evaluation mode a call repeats itself, whatever was drawn and asked before."""
    first = probe.logits()
    probe.logits(probe.other_src, probe.other_tgt)
    return probe.unchanged(evaluation=changes(first, probe.logits(seed=1)))


@check("scores", "a softmax at the end; the loss applies its own")
def result_is_no_softmax(probe: Probe) -> Finding:
    """The result is not a probability distribution already."""
    logits = probe.logits()
    if (logits >= 0).all() and (logits.sum(dim=-1) - 1).abs().max() <= probe.tolerance:
        return Finding(False, "not negative, and at every position the sum is 1")
    return Finding(True, f"from {logits.min().item():.2g} to {logits.max().item():.2g}")


def is_random(probe: Probe) -> bool:
    """Whether two calls in training mode differ."""
    one, other = (probe.logits(training=True, seed=seed) for seed in (0, 1))
    return changes(one, other).max().item() > probe.tolerance


@check("dropout", "a rate that does not reach all its layers, or none of them")
def dropout_matches(probe: Probe) -> Finding:
    """Training mode is random where the model has dropout, and only there."""
    if probe.dropout is None:
        raise Skipped("whether there is dropout was not said")
    random = is_random(probe)
    return Finding(random == probe.dropout, f"training mode is {'' if random else 'not '}random")


# %% book/16-clinic.ipynb · What must not matter, and what must · [unchanged]
OVER_WORDS = "softmax or norm over words"
NO_MASK = "no padding mask in encoder or cross-attention, or inverted"


@check("future", f"causal mask missing, in one mode only or after the softmax; {OVER_WORDS}", redraw=True)
def future_is_hidden(probe: Probe) -> Finding:
    """Logits do not depend on what stands after their position, or whether anything does."""
    tgt, moved = probe.tgt, {}
    for mode in ("evaluation", "training"):
        training, differences = mode == "training", []
        whole = probe.logits(training=training)
        for t in range(1, T):
            rests = [probe.other_tgt[:, t:], torch.full_like(tgt[:, t:], probe.pad_id)]
            if t > 1 and not training:  # one token alone is for another check
                rests.append(tgt[:, :0])
            for rest in rests:
                logits = probe.logits(tgt=torch.cat([tgt[:, :t], rest], dim=1), training=training)
                differences.append(changes(whole[:, :t], logits[:, :t]))
        moved[mode] = torch.cat(differences)
    return probe.unchanged(**moved)


@check("padding", f"{NO_MASK}; {OVER_WORDS}", of_source=True, redraw=True)
def padding_is_ignored(probe: Probe) -> Finding:
    """Padding after the source changes nothing."""
    src, moved = probe.ragged(probe.src), {}
    padded = F.pad(src, (0, LONGEST - S), value=probe.pad_id)
    for mode in ("evaluation",) if is_random(probe) else ("evaluation", "training"):
        short, long = (probe.logits(ids, training=mode == "training") for ids in (src, padded))
        moved[mode] = changes(short, long)
    return probe.unchanged(**moved)


@check("batch", "mask, positions or norm along the batch axis, mask of one row for all", redraw=True)
def batch_is_no_context(probe: Probe) -> Finding:
    """A sentence's logits depend neither on the rest of its batch nor on its row."""
    src, tgt = probe.ragged(probe.src), probe.tgt
    other_src = torch.cat([src[:1], probe.ragged(probe.other_src)[1:]])
    other_tgt = torch.cat([tgt[:1], probe.other_tgt[1:]])
    reversed_ = probe.logits(src.flip(0), tgt.flip(0)).flip(0)
    moved = {"rows reversed": changes(probe.logits(src, tgt), reversed_)}
    for mode in ("evaluation", "training"):
        training = mode == "training"
        whole, mixed = probe.logits(src, tgt, training), probe.logits(other_src, other_tgt, training)
        moved[mode] = changes(whole[:1], mixed[:1])
    return probe.unchanged(**moved)


@check("source reach", "cross-attention not connected, or masks inverted", of_source=True, redraw=True)
def source_is_read(probe: Probe) -> Finding:
    """Every source token matters at every target position."""
    return probe.changed(influence(probe.logits, probe.src, probe.other_src))


@check("target reach", "target shifted inside as well, decoder masks inverted", redraw=True)
def past_is_read(probe: Probe) -> Finding:
    """Every target token matters at its own position and at all later ones."""
    reached = influence(lambda tgt: probe.logits(tgt=tgt), probe.tgt, probe.other_tgt)
    return probe.changed(reached[torch.ones_like(reached, dtype=torch.bool).triu()])


# %% book/16-clinic.ipynb · Order without positions · [order]
def swapped(ids: Tensor, place: int) -> Tensor:
    """The tokens at `place` and after it have changed places."""
    order = torch.arange(ids.size(1))
    order[[place, place + 1]] = order[[place + 1, place]]
    return ids[:, order]


NO_POSITIONS = "the model has no positions, as its owner says"


@check("source positions", "positions missing, or along the batch axis", of_source=True, redraw=True)
def source_order_counts(probe: Probe) -> Finding:
    """Two neighbors of the source cannot be swapped unnoticed."""
    if probe.positions == "none":
        raise Skipped(NO_POSITIONS)
    moved = (changes(probe.logits(), probe.logits(swapped(probe.src, s))) for s in range(S - 1))
    return probe.changed(torch.stack([change.max() for change in moved]))


@check("target positions", "positions missing, or along the batch axis", redraw=True)
def target_order_counts(probe: Probe) -> Finding:
    """The order of earlier target tokens matters and, with absolute positions, their places."""
    if probe.positions == "none":
        raise Skipped(NO_POSITIONS)
    whole, later = probe.logits(), []
    for t in range(1, T - 2):
        moved = changes(whole, probe.logits(tgt=swapped(probe.tgt, t)))
        later.append(moved[t + 2 :].max())  # where both have been read
    order = probe.changed(torch.stack(later))
    if not order.passed or probe.positions == "relative":
        return order
    same = probe.logits(tgt=probe.tgt[:, 1:2].expand(-1, T))
    place = probe.changed(changes(same[:, 1:], same[:, :-1]))
    if not place.passed and probe.positions is None:
        raise Skipped("only the order is seen: positions are relative, or there are none")
    return Finding(place.passed, f"one token in every place, {place.measured}")


# %% book/16-clinic.ipynb · Edge cases and gradients · [gradients]
def gradients_of(model: nn.Module, src: Tensor, tgt: Tensor, labels: Tensor) -> dict[str, Tensor | None]:
    """Of every parameter that is to be trained, added to what an earlier call has left."""
    seed_generators(0)
    model.train()
    F.cross_entropy(model(src.clone(), tgt.clone()).transpose(1, 2), labels).backward()
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {name.removeprefix("model."): p.grad for name, p in trained}


def not_finite(gradients: Mapping[str, Tensor | None]) -> list[str]:
    """The names of gradients that hold infinity or NaN."""
    return [name for name, grad in gradients.items() if grad is not None and not grad.isfinite().all()]


def without_gradient(gradients: Mapping[str, Tensor | None]) -> list[str]:
    """The names of parameters that nothing has reached."""
    return [name for name, grad in gradients.items() if grad is None or not grad.any()]


@check("empty source", "-inf in every score of a row, NaN replaced too late", of_source=True, exact=False)
def empty_source_is_finite(probe: Probe) -> Finding:
    """A source of padding alone leaves logits and gradients finite."""
    src = probe.src.clone()
    src[-1] = probe.pad_id
    for mode in ("evaluation", "training"):
        if not probe.logits(src, training=mode == "training").isfinite().all():
            return Finding(False, f"logits not finite in {mode} mode")
    if wrong := not_finite(gradients_of(probe.model, src, probe.tgt, probe.other_tgt)):
        return Finding(False, f"logits finite, gradients not: {listed(wrong)}")
    return Finding(True, "logits and gradients finite")


@check("one token", "squeeze() without an axis")
def one_token_is_enough(probe: Probe) -> Finding:
    """One sentence of one token, source and target, is handled like any other."""
    for training in (False, True):
        logits = probe.logits(probe.src[:1, :1], probe.tgt[:1, :1], training)
        finite = bool(logits.isfinite().all())
        if logits.shape != (1, 1, probe.vocab_size) or not finite:
            return Finding(False, f"shape {list(logits.shape)}, finite: {finite}")
    return Finding(True, f"shape {list(logits.shape)}, finite")


@check("gradients", "detach or no_grad, a layer that is built and not used")
def parameters_are_trained(probe: Probe, patience: int = 20) -> Finding:
    """Every parameter that is to be trained can get a gradient, a finite one."""
    gradients = gradients_of(probe.model, probe.src, probe.tgt, probe.other_tgt)
    if wrong := not_finite(gradients):
        return Finding(False, f"not finite: {listed(wrong)}")
    dead, seed, fruitless = without_gradient(gradients), 0, 0
    while dead and fruitless < patience:  # other batches and weights, until nothing new is reached
        seed += 1
        src, tgt, _, labels = probe.draw(seed)
        missing = without_gradient(gradients_of(redrawn(probe.model, seed), src, tgt, labels))
        dead, fruitless = missing, fruitless + 1 if missing == dead else 0
    if dead:
        return Finding(False, f"none for {listed(dead)}")
    return Finding(True, f"all of {len(gradients)} parameters have one")


# %% book/16-clinic.ipynb · Does the search do what the model says? · [search-check]
@check("search", "cache positions, start token, masks or dropout while searching")
def search_takes_the_best(probe: Probe) -> Finding:
    """Greedy search finds what the model, read in one pass and without a cache, says is best."""
    if probe.search is None:
        raise Skipped("no search was given")
    src = probe.ragged(probe.src)
    written = probe.search(src.clone(), LONGEST)  # [B, L]
    if written.dim() != 2 or len(written) != B or not 1 <= written.size(1) <= LONGEST:
        return Finding(False, f"shape {list(written.shape)}, not [{B}, 1 to {LONGEST}]")
    logits = probe.logits(src, torch.cat([probe.tgt[:, :1], written[:, :-1]], dim=1))
    taken = logits.gather(2, written[:, :, None])[:, :, 0]
    behind = (logits.amax(dim=2) - taken) / logits.abs().max()  # [B, L]
    real = written != probe.pad_id
    real[:, 0] = True
    wrong = int((real & ~(behind <= probe.tolerance)).sum())
    return Finding(wrong == 0, f"{wrong} of {int(real.sum())} tokens are not the model's best")
