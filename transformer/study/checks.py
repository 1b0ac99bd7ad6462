"""`check_model`: what a right sequence-to-sequence model does, asked of any."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformer.attention import causal_mask
from transformer.validation import check_choice, check_rate, check_size

__all__ = [
    "CheckResult",
    "CheckReport",
    "find_logits",
    "Adapted",
    "seq2seq",
    "encoder_only",
    "decoder_only",
    "torch_transformer",
    "check_model",
]


class CheckResult(NamedTuple):
    """What one check found."""

    name: str
    verdict: str  # "pass", "FAIL" or "skipped"
    measured: str  # what was measured, what was raised, or why the check was skipped
    suspects: str  # where to look first; empty unless the check failed


@dataclass(frozen=True)
class CheckReport:
    """What the checks of a model found; `print` shows it as a table.

    Args:
        arithmetic: the precision that the checks computed in.
        results: one for each check.
    """

    arithmetic: str
    results: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(result.name for result in self.results if result.verdict == "FAIL")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    def __str__(self) -> str:
        verdicts = [result.verdict for result in self.results]
        counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("pass", "FAIL", "skipped"))
        lines = [f"{counts}; computed in {self.arithmetic}"]
        for result in self.results:
            lines.append(f"{result.verdict:8} {result.name:17} {result.measured}")
            if result.suspects:
                lines.append(f"{'':8} {'suspects:':17} {result.suspects}")
        return "\n".join(lines)


_BATCH, _SOURCE, _TARGET = 3, 7, 5
_LONGEST = _SOURCE + 2  # the most tokens that a model is given
_MOST_TOKENS = 2**22  # of a vocabulary: far more than any has, and few enough to be listed


class _Probe(NamedTuple):
    # What a model is asked, and what its owner says about it.
    src: Tensor  # [B, S]
    tgt: Tensor  # [B, T], starting with the start token
    other_src: Tensor  # another token in every place
    other_tgt: Tensor
    draw: Callable[[int], tuple[Tensor, Tensor, Tensor, Tensor]]  # four more of these, from a seed
    pad_id: int
    tgt_vocab_size: int
    tolerance: float
    dropout: bool | None
    search: Callable[[Tensor, int], Tensor] | None
    positions: str | None
    reads_source: bool
    reads_target: bool

    def ragged(self, src: Tensor) -> Tensor:
        # Sources cut to different lengths: the first is whole, each further one a token shorter.
        B, S = src.shape
        beyond = torch.arange(S) >= S - torch.arange(B)[:, None]  # [B, S]
        return src.masked_fill(beyond.to(src.device), self.pad_id)


def _sentences(
    vocab_size: int, length: int, special: set[int], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    # Random tokens [B, length], and another one in place of each.
    ordinary = torch.arange(vocab_size)
    ordinary = ordinary[~torch.isin(ordinary, torch.tensor(sorted(special)))]
    steps = torch.randint(1, len(ordinary), (_BATCH, length), generator=generator)
    index = steps.cumsum(dim=1) % len(ordinary)  # a step is never 0, so neighbors differ
    return ordinary[index], ordinary[(index + 1) % len(ordinary)]


def _draw(
    src_size: int, tgt_size: int, pad_id: int, bos_id: int, seed: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # Source and target, and the same with every token replaced.
    generator, special = torch.Generator().manual_seed(seed), {pad_id, bos_id}
    src, other_src = _sentences(src_size, _SOURCE, special, generator)
    tgt, other_tgt = _sentences(tgt_size, _TARGET, special, generator)
    tgt[:, 0] = bos_id
    return src.to(device), tgt.to(device), other_src.to(device), other_tgt.to(device)


def _logits(
    model: nn.Module, src: Tensor, tgt: Tensor, training: bool = False, seed: int = 0
) -> Tensor:
    torch.manual_seed(seed)
    with torch.no_grad():
        model.train(training)  # a model's own `train` need not return it
        return model(src.clone(), tgt.clone())


def _changes(one: Tensor, other: Tensor) -> Tensor:
    # How much logits differ at each position [T], as a share of the largest logit.
    scale = one.abs().max().clamp(min=torch.finfo(one.dtype).tiny)
    return (one - other).abs().amax(dim=(0, 2)) / scale


def _influence(call: Callable[[Tensor], Tensor], ids: Tensor, other: Tensor) -> Tensor:
    # Row u: how much the logits at every position [T] change with token u of `ids`.
    whole, places = call(ids), torch.arange(ids.size(1), device=ids.device)
    changed = (call(torch.where(places == u, other, ids)) for u in places)
    return torch.stack([_changes(whole, logits) for logits in changed])


_Outcome = tuple[bool | None, str]  # passed (None: skipped), and what was measured


def _unchanged(probe: _Probe, **changes: Tensor) -> _Outcome:
    largest = {mode: change.max().item() for mode, change in changes.items()}
    # "Not at most" rather than "more than", because a NaN is neither.
    moved = {mode: not change <= probe.tolerance for mode, change in largest.items()}
    said = (f"{mode} {f'{largest[mode]:.2g}' if moved[mode] else 'none'}" for mode in largest)
    return not any(moved.values()), "change: " + ", ".join(said)


def _changed(probe: _Probe, changes: Tensor) -> _Outcome:
    least = changes.min().item()
    seen = least > probe.tolerance
    return seen, f"least change: {f'{least:.2g}' if seen else 'none'}"


def _check_logits(model: nn.Module, probe: _Probe) -> _Outcome:
    """The result is `[B, T, V]`, floating-point and finite, for S > T, S = T and S < T."""
    for length in (_TARGET, _TARGET - 2, _SOURCE):
        wanted = [_BATCH, _TARGET if probe.reads_target else length, probe.tgt_vocab_size]
        for training in (False, True):
            logits = _logits(model, probe.src[:, :length], probe.tgt, training)
            if not logits.is_floating_point():
                return False, f"not logits: {logits.dtype}"
            if list(logits.shape) != wanted:
                return False, f"shape {list(logits.shape)}, not {wanted}"
            if not logits.isfinite().all():
                return False, f"shape {wanted}, not all finite"
    banned = getattr(model, "banned", None)
    number = 0 if banned is None else int(banned.sum())
    return True, f"shape {wanted}, finite" + (f" but for {number} banned tokens" if number else "")


def _check_repeatable(model: nn.Module, probe: _Probe) -> _Outcome:
    """In evaluation mode a call repeats itself, whatever was drawn and asked before."""
    first = _logits(model, probe.src, probe.tgt)
    _logits(model, probe.other_src, probe.other_tgt)
    return _unchanged(
        probe, evaluation=_changes(first, _logits(model, probe.src, probe.tgt, seed=1))
    )


def _check_scores(model: nn.Module, probe: _Probe) -> _Outcome:
    """The result is not a probability distribution already."""
    logits = _logits(model, probe.src, probe.tgt)
    sums = logits.sum(dim=-1)
    if (logits >= 0).all() and (sums - 1).abs().max() <= probe.tolerance:
        return False, "not negative, and at every position the sum is 1"
    return True, f"from {logits.min().item():.2g} to {logits.max().item():.2g}"


def _is_random(model: nn.Module, probe: _Probe) -> bool:
    one, other = (_logits(model, probe.src, probe.tgt, True, seed) for seed in (0, 1))
    return _changes(one, other).max().item() > probe.tolerance


def _check_dropout(model: nn.Module, probe: _Probe) -> _Outcome:
    """Training mode is random where the model has dropout, and only there."""
    if probe.dropout is None:
        return None, "whether there is dropout was not said"
    random = _is_random(model, probe)
    return random == probe.dropout, f"training mode is {'' if random else 'not '}random"


def _check_future(model: nn.Module, probe: _Probe) -> _Outcome:
    """Logits do not depend on what stands after their position, or whether anything does."""
    src, tgt, changes = probe.src, probe.tgt, {}
    for mode in ("evaluation", "training"):
        training = mode == "training"
        whole, moved = _logits(model, src, tgt, training), []
        for t in range(1, _TARGET):
            rests = [probe.other_tgt[:, t:], torch.full_like(tgt[:, t:], probe.pad_id)]
            if t > 1 and not training:  # one token alone is for another check
                rests.append(tgt[:, :0])
            for rest in rests:
                logits = _logits(model, src, torch.cat([tgt[:, :t], rest], dim=1), training)
                moved.append(_changes(whole[:, :t], logits[:, :t]))
        changes[mode] = torch.cat(moved)
    return _unchanged(probe, **changes)


def _check_padding(model: nn.Module, probe: _Probe) -> _Outcome:
    """Padding after the source changes nothing."""
    src = probe.ragged(probe.src)
    padded, changes = F.pad(src, (0, _LONGEST - _SOURCE), value=probe.pad_id), {}
    for mode in ("evaluation",) if _is_random(model, probe) else ("evaluation", "training"):
        short, long = (_logits(model, ids, probe.tgt, mode == "training") for ids in (src, padded))
        changes[mode] = _changes(short, long[:, : short.size(1)])
    return _unchanged(probe, **changes)


def _check_batch(model: nn.Module, probe: _Probe) -> _Outcome:
    """A sentence's logits depend neither on the rest of its batch nor on its row."""
    src, tgt, changes = probe.ragged(probe.src), probe.tgt, {}
    other_src = torch.cat([src[:1], probe.ragged(probe.other_src)[1:]])
    other_tgt = torch.cat([tgt[:1], probe.other_tgt[1:]])
    whole = _logits(model, src, tgt)
    changes["rows reversed"] = _changes(whole, _logits(model, src.flip(0), tgt.flip(0)).flip(0))
    for mode in ("evaluation", "training"):
        whole = _logits(model, src, tgt, mode == "training")
        mixed = _logits(model, other_src, other_tgt, mode == "training")
        changes[mode] = _changes(whole[:1], mixed[:1])
    return _unchanged(probe, **changes)


def _check_source_reach(model: nn.Module, probe: _Probe) -> _Outcome:
    """Every source token matters at every target position."""
    return _changed(
        probe,
        _influence(lambda src: _logits(model, src, probe.tgt), probe.src, probe.other_src),
    )


def _check_target_reach(model: nn.Module, probe: _Probe) -> _Outcome:
    """Every target token matters at its own position and at all later ones."""
    influence = _influence(lambda tgt: _logits(model, probe.src, tgt), probe.tgt, probe.other_tgt)
    own_and_later = torch.ones_like(influence, dtype=torch.bool).triu()
    return _changed(probe, influence[own_and_later])


def _swapped(ids: Tensor, place: int) -> Tensor:
    # The tokens at `place` and after it have changed places.
    order = torch.arange(ids.size(1))
    order[[place, place + 1]] = order[[place + 1, place]]
    return ids[:, order]


def _check_source_positions(model: nn.Module, probe: _Probe) -> _Outcome:
    """Two neighbors of the source cannot be swapped unnoticed."""
    if probe.positions == "none":
        return None, "the model has no positions, as its owner says"
    whole, changes = _logits(model, probe.src, probe.tgt), []
    for s in range(_SOURCE - 1):
        change = _changes(whole, _logits(model, _swapped(probe.src, s), probe.tgt))
        if not probe.reads_target:  # an encoder's logits at both places follow their words
            change = torch.cat([change[:s], change[s + 2 :]])
        changes.append(change.max())
    return _changed(probe, torch.stack(changes))


def _check_target_positions(model: nn.Module, probe: _Probe) -> _Outcome:
    """The order of earlier target tokens matters and, with absolute positions, their places."""
    if probe.positions == "none":
        return None, "the model has no positions, as its owner says"
    whole, changes = _logits(model, probe.src, probe.tgt), []
    for t in range(1, _TARGET - 2):
        moved = _logits(model, probe.src, _swapped(probe.tgt, t))
        changes.append(_changes(whole, moved)[t + 2 :].max())  # where both have been read
    ordered, measured = _changed(probe, torch.stack(changes))
    if not ordered or probe.positions == "relative":
        return ordered, measured
    same = _logits(model, probe.src, probe.tgt[:, 1:2].expand(-1, _TARGET))
    placed, measured = _changed(probe, _changes(same[:, 1:], same[:, :-1]))
    if placed or probe.positions == "absolute":
        return placed, f"one token in every place, {measured}"
    return None, "only the order is seen: positions are relative, or there are none"


def _by_expert(name: str, parameter: nn.Parameter) -> dict[str, Tensor | None]:
    # The gradient of a parameter; of each matrix in it, where it holds those of all experts.
    gradient, name = parameter.grad, name.removeprefix("model.")
    if gradient is None or gradient.dim() < 3 or "expert" not in name:
        return {name: gradient}
    return {f"{name}[{expert}]": part for expert, part in enumerate(gradient)}


def _gradients(model: nn.Module, src: Tensor, probe: _Probe) -> dict[str, Tensor | None]:
    # Of every parameter that is to be trained, added to what an earlier call has left.
    torch.manual_seed(0)
    model.train()
    logits = model(src.clone(), probe.tgt.clone())  # [B, T, V]
    labels = probe.other_tgt if probe.reads_target else probe.other_src % probe.tgt_vocab_size
    F.cross_entropy(logits.transpose(1, 2), labels).backward()
    trained = ((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return {key: part for name, p in trained for key, part in _by_expert(name, p).items()}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def _check_empty_source(model: nn.Module, probe: _Probe) -> _Outcome:
    """A source of padding alone leaves logits and gradients finite."""
    src = probe.src.clone()
    src[-1] = probe.pad_id
    for mode in ("evaluation", "training"):
        if not _logits(model, src, probe.tgt, mode == "training").isfinite().all():
            return False, f"logits not finite in {mode} mode"
    gradients = _gradients(model, src, probe)
    wrong = [n for n, g in gradients.items() if g is not None and not g.isfinite().all()]
    if wrong:
        return False, f"logits finite, gradients not: {_listed(wrong)}"
    return True, "logits and gradients finite"


def _check_one_token(model: nn.Module, probe: _Probe) -> _Outcome:
    """One sentence of one token, source and target, is handled like any other."""
    for training in (False, True):
        logits = _logits(model, probe.src[:1, :1], probe.tgt[:1, :1], training)
        if logits.shape != (1, 1, probe.tgt_vocab_size) or not logits.isfinite().all():
            return False, f"shape {list(logits.shape)}, finite: {bool(logits.isfinite().all())}"
    return True, f"shape {list(logits.shape)}, finite"


_DRAWS = 20  # batches and weights, without a new gradient, before a parameter is called dead


def _redrawn(model: nn.Module, seed: int = 0) -> nn.Module:
    # Matrices and gates of ordinary size, in place, so that every influence is large enough to be seen.
    torch.manual_seed(seed)
    for parameter in model.parameters():
        drawn = (parameter.dim() > 1 or parameter.numel() == 1) and parameter.requires_grad
        if drawn and parameter.isfinite().all():  # minus infinity bans a token, and stays
            nn.init.normal_(parameter, std=parameter.shape[-1:].numel() ** -0.5)
    return model


def _without(gradients: dict[str, Tensor | None]) -> list[str]:
    return [name for name, gradient in gradients.items() if gradient is None or not gradient.any()]


def _check_gradients(model: nn.Module, probe: _Probe) -> _Outcome:
    """Every parameter that is to be trained can get a gradient, a finite one."""
    gradients = _gradients(model, probe.src, probe)
    wrong = [n for n, g in gradients.items() if g is not None and not g.isfinite().all()]
    if wrong:
        return False, f"not finite: {_listed(wrong)}"
    dead, seed, fruitless = _without(gradients), 0, 0
    while dead and fruitless < _DRAWS:
        src, tgt, other_src, other_tgt = probe.draw(seed + 1)
        batch = probe._replace(src=src, tgt=tgt, other_src=other_src, other_tgt=other_tgt)
        left = _without(_gradients(_redrawn(model, seed), batch.src, batch))
        dead, seed, fruitless = left, seed + 1, fruitless + 1 if left == dead else 0
    if dead:
        return False, f"none for {_listed(dead)}"
    return True, f"all of {len(gradients)} parameters have one"


def _check_search(model: nn.Module, probe: _Probe) -> _Outcome:
    """Greedy search finds what the model, read in one pass and without a cache, says is best."""
    if probe.search is None:
        return None, "no search was given"
    src = probe.ragged(probe.src)
    found = probe.search(src.clone(), _LONGEST)  # [B, L]
    if found.dim() != 2 or len(found) != _BATCH or not 1 <= found.size(1) <= _LONGEST:
        return False, f"shape {list(found.shape)}, not [{_BATCH}, 1 to {_LONGEST}]"
    read = torch.cat([probe.tgt[:, :1], found[:, :-1]], dim=1)  # [B, L]
    logits = _logits(model, src, read)
    scale = logits.abs().max()
    if (banned := getattr(model, "banned", None)) is not None:
        logits = logits.masked_fill(banned, -torch.inf)
    taken = logits.gather(2, found[:, :, None])[:, :, 0]
    behind = (logits.amax(dim=2) - taken) / scale  # [B, L]
    real = found != probe.pad_id
    real[:, 0] = True
    wrong = (real & ~(behind <= probe.tolerance)).sum().item()
    return wrong == 0, f"{wrong} of {real.sum().item()} tokens are not the model's best"


_CHECKS: dict[str, tuple[Callable[[nn.Module, _Probe], _Outcome], str]] = {
    "logits": (_check_logits, "more than one result, axes swapped, S taken for T, masks of -inf"),
    "repeatable": (_check_repeatable, "dropout without the training flag, state between calls"),
    "scores": (_check_scores, "a softmax at the end; the loss applies its own"),
    "dropout": (_check_dropout, "a rate that does not reach all its layers, or none of them"),
    "future": (
        _check_future,
        "causal mask missing, in one mode only or after the softmax; softmax or norm over words",
    ),
    "padding": (
        _check_padding,
        "no padding mask in encoder or cross-attention, or inverted; softmax or norm over words",
    ),
    "batch": (
        _check_batch,
        "mask, positions or norm along the batch axis, mask of one row for all",
    ),
    "source reach": (_check_source_reach, "cross-attention not connected, or masks inverted"),
    "target reach": (_check_target_reach, "target shifted inside as well, decoder masks inverted"),
    "source positions": (_check_source_positions, "positions missing, or along the batch axis"),
    "target positions": (_check_target_positions, "positions missing, or along the batch axis"),
    "empty source": (_check_empty_source, "-inf in every score of a row, NaN replaced too late"),
    "one token": (_check_one_token, "squeeze() without an axis"),
    "gradients": (_check_gradients, "detach or no_grad, a layer that is built and not used"),
    "search": (_check_search, "cache positions, start token, masks or dropout while searching"),
}
_OF_ENCODERS = {"source reach": "a causal mask, or masks inverted"}  # without a decoder


_HIDDEN = -1e4  # a score at or below this hides its key


class _Masks(TorchFunctionMode):
    # Notes which keys [..., T, S] an attention hides, by its masks or by its scores.

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        seen = [given.get("key_padding_mask"), given.get("attn_mask")]
        if name == "softmax":
            seen = [args[0] if args else given["input"]]
        elif name == "scaled_dot_product_attention" and len(args) > 3:
            seen = [args[3]]
        for mask in seen:
            if isinstance(mask, Tensor) and mask.dim() >= 2:
                attends = name.startswith("scaled")  # of a boolean mask, what True means
                hides = (mask != attends) if mask.dtype == torch.bool else mask <= _HIDDEN
                self.hidden.append(hides[:, None] if mask is given.get("key_padding_mask") else hides)
        return func(*args, **given)


def _inverted(call: Callable[[], object]) -> str:
    # Which mask of a call is inverted, if one is. Nothing in the sentences of the call is padding.
    with torch.no_grad(), _Masks() as masks:
        try:
            call()
        except Exception:  # a check has said it; the masks before it still count
            pass
    for hidden in masks.hidden:
        square = torch.ones(hidden.shape[-2:], dtype=torch.bool, device=hidden.device)
        past, future = hidden[..., square.tril(-1)], hidden[..., square.triu(1)]
        causal = square.size(0) == square.size(1) > 1
        if causal and future.all() and not past.any():
            continue
        if (causal and past.all() and not future.all()) or hidden.all(dim=-1).any():
            kind = "causal" if causal and not hidden.all() else "padding"
            return (
                f"the {kind} mask's polarity is inverted: True means *ignore* in torch.nn and in "
                "masked_fill, *attend* in scaled_dot_product_attention and here"
            )
    return ""


_INFLUENCES = (
    *("future", "padding", "batch"),
    *("source reach", "target reach", "source positions", "target positions"),
)


_NEEDED = ("logits", "repeatable")  # where one of them fails, later ones would measure nothing
_OF_SOURCE = ("padding", "source reach", "source positions", "empty source")
_OF_TARGET = ("future", "target reach", "target positions", "search")


def _said(error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line[:80]}"


def _quiet(model: nn.Module) -> nn.Module:
    # Dropout of rate 0. Inside an expert, it draws by how many tokens the expert gets.
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def _run_check(name: str, model: nn.Module, probe: _Probe) -> CheckResult:
    check, suspects = _CHECKS[name]
    if not probe.reads_target:
        suspects = _OF_ENCODERS.get(name, suspects)
    try:
        copied = copy.deepcopy(model)
        passed, measured = check(_redrawn(copied) if name in _INFLUENCES else copied, probe)
        if passed is False and name in ("future", "batch"):
            passed, measured = check(_redrawn(_quiet(copy.deepcopy(model))), probe)
    except Exception as error:  # a failure of this check; the others are still tried
        passed, measured = False, _said(error)
    if passed is False:
        asked = probe.src, probe.tgt
        suspects = _inverted(lambda: _logits(copy.deepcopy(model), *asked)) or suspects
    verdict = "skipped" if passed is None else "pass" if passed else "FAIL"
    return CheckResult(name, verdict, measured, suspects if passed is False else "")


def _run_checks(given: nn.Module, exact: nn.Module, probe: _Probe) -> tuple[CheckResult, ...]:
    results: list[CheckResult] = []
    for name in _CHECKS:
        missing = [r.name for r in results if r.name in _NEEDED and r.verdict == "FAIL"]
        if missing:
            results.append(CheckResult(name, "skipped", f"needs {missing[0]!r} to pass", ""))
        elif name in _OF_SOURCE and not probe.reads_source:
            results.append(CheckResult(name, "skipped", "a decoder-only model has no source", ""))
        elif name in _OF_TARGET and not probe.reads_target:
            results.append(CheckResult(name, "skipped", "an encoder-only model has no target", ""))
        else:
            model = given if name == "empty source" else exact  # what overflows depends on the dtype
            results.append(_run_check(name, model, probe))
    return tuple(results)


def _parts(output: Any) -> dict[str, Any]:
    # What a result consists of, by name.
    if isinstance(output, Mapping):
        return {str(name): part for name, part in output.items()}
    if isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        return {f"item {place}": part for place, part in enumerate(output)}
    kinds = ("_fields", "__dataclass_fields__", "__dict__")  # a named tuple, a dataclass, any other
    names = next((getattr(output, kind) for kind in kinds if hasattr(output, kind)), ())
    return {name: getattr(output, name) for name in names}


def find_logits(output: Any, vocab_size: int | None = None) -> Tensor:
    """The logits in what a model returns.

    Args:
        output: the logits; or a dictionary, dataclass or tuple that calls them `logits`, or in which
            one tensor alone may be `[B, T, V]`.
        vocab_size: V, by which logits are told from other vectors, if it is known.

    Raises:
        TypeError: nothing in the result, or more than one thing, may be the logits.
    """
    if isinstance(output, Tensor):
        return output
    parts = _parts(output)
    if isinstance(parts.get("logits"), Tensor):
        return parts["logits"]
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    found = [
        part
        for part in tensors.values()
        if part.dim() == 3 and part.is_floating_point() and vocab_size in (None, part.size(-1))
    ]
    if len(found) == 1:
        return found[0]
    shapes = ", ".join(f"{name} {list(part.shape)}" for name, part in tensors.items())
    which = "which are the logits?" if found else "no logits in"
    raise TypeError(f"{which} {type(output).__name__}" + (f" of {shapes}" if shapes else ""))


class Adapted(nn.Module):
    """A model that is called as `model(src, tgt)`, whatever its own arguments are.

    Args:
        model: any module.
        call: `call(model, src, tgt)` returns the logits, or what `find_logits` finds them in.
        pad_id: the padding token that the call masks; `None` if it masks none.
        reads_source: whether there is a source.
        reads_target: whether there is a target. Without one, the logits are `[B, S, V]`.
    """

    model: nn.Module
    call: Callable[[Any, Tensor, Tensor], Any]
    pad_id: int | None
    reads_source: bool
    reads_target: bool

    def __init__(
        self,
        model: nn.Module,
        call: Callable[[Any, Tensor, Tensor], Any],
        pad_id: int | None = None,
        reads_source: bool = True,
        reads_target: bool = True,
    ) -> None:
        super().__init__()
        self.model, self.call, self.pad_id = model, call, pad_id
        self.reads_source, self.reads_target = reads_source, reads_target

    @property
    def config(self) -> Any:
        """The model's configuration, if it has one."""
        return getattr(self.model, "config", None)

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        """The logits `[B, T, V]` for source ids `[B, S]` and target ids `[B, T]`."""
        output = self.call(self.model, src, tgt)
        return getattr(output, "logits", output)


def seq2seq(model: Any, pad_id: int | None = None) -> Adapted:
    """Adapt an encoder–decoder of Hugging Face's library, which takes the mask of the source.

    Args:
        model: called as `model(input_ids=…, attention_mask=…, decoder_input_ids=…)`.
        pad_id: the padding token; `None`: as the model's configuration says.
    """
    pad_id = model.config.pad_token_id if pad_id is None else pad_id

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        mask = (src != pad_id).long()
        return model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt)

    return Adapted(model, call, pad_id)


def _taken(model: nn.Module) -> list[str]:
    # The names of a model's arguments.
    return list(inspect.signature(model.forward).parameters)


def encoder_only(model: Any, pad_id: int | None = None) -> Adapted:
    """Adapt a model such as BERT, which answers at every position of its one sentence.

    Args:
        model: called as `model(ids)`, or as `model(ids, attention_mask=…)` where it takes such a
            mask, 1 for words.
        pad_id: the padding token; `None`: as the model's configuration says, or 0.
    """
    if pad_id is None:
        pad_id = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
    masked = "attention_mask" in _taken(model)

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        return model(src, attention_mask=(src != pad_id).long()) if masked else model(src)

    return Adapted(model, call, pad_id, reads_target=False)


def decoder_only(model: nn.Module) -> Adapted:
    """Adapt a language model, which answers at every position of its one sentence.

    Args:
        model: called as `model(ids)`. If that returns the last position's logits alone, as in
            nanoGPT, the labels of its loss are given too, and in evaluation mode the logits of
            both calls are put together, so that the checks examine both.
    """
    labels = next((name for name in _taken(model)[1:] if name in ("targets", "labels")), None)

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        output = model(tgt)
        if labels is None or (last := find_logits(output)).shape[:2] == tgt.shape:
            return output
        whole = find_logits(model(tgt, **{labels: tgt}))
        return whole if model.training else torch.cat([whole[:, :-1], last], dim=1)

    return Adapted(model, call, reads_source=False)


def torch_transformer(
    model: nn.Transformer,
    src_embedding: nn.Module,
    tgt_embedding: nn.Module,
    output: nn.Module,
    pad_id: int = 0,
) -> Adapted:
    """Put `torch.nn.Transformer` between two tables and a projection, with the masks that it needs.

    Args:
        model: batch first or not.
        src_embedding: from source ids `[B, S]` to vectors `[B, S, d_model]`, with their positions.
        tgt_embedding: from target ids `[B, T]` to vectors `[B, T, d_model]`, likewise.
        output: from vectors to logits.
        pad_id: the padding token.
    """
    batch_first = model.batch_first
    parts = {"core": model, "src": src_embedding, "tgt": tgt_embedding, "output": output}

    def call(parts: Any, src: Tensor, tgt: Tensor) -> Tensor:
        x, y = parts["src"](src), parts["tgt"](tgt)
        if not batch_first:
            x, y = x.transpose(0, 1), y.transpose(0, 1)
        hidden = parts["core"](
            x,
            y,
            tgt_mask=~causal_mask(tgt.size(1), device=tgt.device)[0, 0],  # True = may not attend
            src_key_padding_mask=src == pad_id,
            memory_key_padding_mask=src == pad_id,
        )
        logits: Tensor = parts["output"](hidden if batch_first else hidden.transpose(0, 1))
        return logits

    return Adapted(nn.ModuleDict(parts), call, pad_id)


def _understood(model: nn.Module, pad_id: int) -> nn.Module:
    # The model with its adapter, where the signature says which; refused where it does not.
    taken = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in taken]
    open_ended = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in taken)
    required = [p for p in taken if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if isinstance(model, nn.Transformer):
        adapter = "torch_transformer(model, src_embedding, tgt_embedding, output)"
    elif names[:2] == ["src", "tgt"]:
        return model
    elif "decoder_input_ids" in names:
        return seq2seq(model, pad_id)
    elif "targets" in names[1:]:
        return decoder_only(model)
    elif names[:1] in (["input_ids"], ["ids"]) or (len(required) == 1 and not open_ended):
        adapter = "decoder_only(model) or encoder_only(model)"
    elif "mask" in "".join(names[1:2]):
        adapter = "Adapted(model, lambda model, src, tgt: …)"
    else:
        return model
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    raise ValueError(
        f"model takes ({shown}), not (src, tgt): pass {adapter} instead, from transformer.study.checks"
    )


_BANNED = -1e4  # a token whose logits are all below this, or minus infinity, is never to be written


class _Read(nn.Module):
    # A model whose result is read: found, and freed from what must not be compared.

    banned: Tensor | None = None  # [V], True for a banned token

    def __init__(self, model: nn.Module, vocab_size: int, pad_id: int) -> None:
        super().__init__()
        self.model, self.vocab_size, self.pad_id = model, vocab_size, pad_id
        self.reads_target = getattr(model, "reads_target", True)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = find_logits(self.model(src, tgt), self.vocab_size)
        if not self.reads_target and logits.shape[:2] == src.shape:  # padding has no answer
            logits = logits.masked_fill((src == self.pad_id)[:, :, None], 0)
        if self.banned is not None and logits.size(-1) == self.vocab_size:
            lifted = self.banned & ~(logits < _BANNED)  # a ban that comes and goes is a fault
            logits = logits.masked_fill(self.banned, 0).masked_fill(lifted, torch.nan)
        return logits

    def see_bans(self, src: Tensor, tgt: Tensor) -> None:
        # A token is banned if it is so at every position of a first call.
        try:
            logits = _logits(copy.deepcopy(self), src, tgt)
            banned = (logits < _BANNED).all(dim=1).all(dim=0)
        except Exception:  # the first check will say it
            return
        if banned.any() and not banned.all():
            self.banned = banned


def _in_float64(model: _Read, probe: _Probe) -> tuple[nn.Module, str]:
    try:
        _logits(copy.deepcopy(model.model).double(), probe.src, probe.tgt)
    except Exception as error:
        return model, f"the model's own precision; in float64, {_said(error)}"
    return copy.deepcopy(model).double(), "float64"


_SAID = {  # the names of what a model or its configuration says: ours, then Hugging Face's
    "src_vocab_size": ("src_vocab_size", "vocab_size"),
    "tgt_vocab_size": ("tgt_vocab_size", "decoder_vocab_size", "vocab_size"),
    "pad_id": ("pad_id", "pad_token_id"),
    "bos_id": ("bos_id", "decoder_start_token_id", "bos_token_id"),
}


def _described(model: nn.Module, *given: int | None) -> tuple[int, ...]:
    # Sizes, padding and start token: as given, as the model or its configuration says, or by default.
    places, known = (model, getattr(model, "config", None)), []
    defaults = None, given[0], 0, 2
    for (name, names), value, default in zip(_SAID.items(), given, defaults, strict=True):
        said = [getattr(place, other, None) for place in places for other in names]
        found = [value for value in (value, *said, default) if value is not None]
        if not found:
            raise ValueError(f"{name} must be given: the model has no configuration that says it")
        known.append(found[0])
    if isinstance(model, Adapted) and model.pad_id not in (None, known[2]):
        raise ValueError(f"pad_id is {known[2]}, but the adapter masks {model.pad_id}")
    return tuple(known)


def _check_arguments(
    model: object, dropout: object, search: object, tolerance: float, seed: int, positions: object
) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if dropout is not None and not isinstance(dropout, bool):
        raise TypeError(f"dropout must be True, False or None, not {dropout!r}")
    if search is not None and not callable(search):
        raise TypeError(f"search must be callable, not {type(search).__name__}")
    check_choice(("absolute", "relative", "none", None), positions=positions)
    check_rate(tolerance=tolerance)
    check_size(minimum=0, seed=seed)


def _check_vocabularies(src_size: int, tgt_size: int, pad_id: int, bos_id: int) -> None:
    check_size(src_vocab_size=src_size, tgt_vocab_size=tgt_size)
    check_size(minimum=0, pad_id=pad_id, bos_id=bos_id)
    ends = {"pad_id": (pad_id, min(src_size, tgt_size)), "bos_id": (bos_id, tgt_size)}
    for name, (value, end) in ends.items():
        if value >= end:
            raise ValueError(f"{name} must lie in [0, {end}), but is {value}")
    for name, size in (("src_vocab_size", src_size), ("tgt_vocab_size", tgt_size)):
        if size > _MOST_TOKENS:
            raise ValueError(f"{name} must be at most {_MOST_TOKENS}, but is {size}")
        if size - len({token for token in (pad_id, bos_id) if token < size}) < 2:
            raise ValueError(f"{name} must leave 2 tokens besides pad_id and bos_id, but is {size}")


def check_model(
    model: nn.Module,
    src_vocab_size: int | None = None,
    tgt_vocab_size: int | None = None,
    pad_id: int | None = None,
    bos_id: int | None = None,
    dropout: bool | None = None,
    search: Callable[[Tensor, int], Tensor] | None = None,
    tolerance: float = 1e-5,
    seed: int = 0,
    call: Callable[[Any, Tensor, Tensor], Any] | None = None,
    positions: str | None = None,
) -> CheckReport:
    """Look for faults in a Transformer from outside, by the logits it returns.

    The model, its mode, its gradients and the state of the generators are left as they are.

    Args:
        model: called as `model(src, tgt)` with source ids `[B, S]` and target ids `[B, T]` that
            begin with the start token, it returns logits `[B, T, V]`; S and T are at most 9. It
            makes its masks itself, and can be copied. `find_logits` looks for them in a tuple, a
            dictionary or a dataclass. `model(input_ids, …, decoder_input_ids)` and `model(idx, targets)`
            are called as they are meant. Other models need an adapter: `seq2seq`, `decoder_only`,
            `encoder_only`, `torch_transformer` or `Adapted`.
        src_vocab_size: number of source tokens, at most 4,194,304. This and the next three are
            read from the model or its configuration where they are `None`.
        tgt_vocab_size: number of target tokens V, likewise; without a configuration, as many as source.
        pad_id: the padding token; without a configuration, 0.
        bos_id: the token that a target begins with; without a configuration, 2.
        dropout: whether the model is meant to be random in training mode; `None` to skip the check.
        search: greedy search with the model, called as `search(src, max_length)` on padded sources;
            returns ids `[B, L]`, L ≤ max_length, without the start token and with only padding
            after the end token. `None` to skip the check.
        tolerance: the largest change that counts as none, as a share of the largest logit.
        seed: of the random sentences.
        call: for a model that is called in another way: `call(model, src, tgt)` returns the logits.
        positions: what the model is meant to have, `"absolute"`, `"relative"` (rotary ones as well)
            or `"none"`; `None`: not said, and a decoder may have either or none.

    Returns:
        a report with one result for each check. A check that raises has failed.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range, a vocabulary has fewer than two tokens besides
            padding and start, or the model is not called as `model(src, tgt)`.

    Example:
        >>> from transformer import Transformer, TransformerConfig
        >>> model = Transformer(TransformerConfig(20, 20, d_model=16, n_heads=2, n_layers=1))
        >>> check_model(model).passed
        True
    """
    _check_arguments(model, dropout, search, tolerance, seed, positions)
    given = src_vocab_size, tgt_vocab_size, pad_id, bos_id
    src_size, tgt_size, pad, start = _described(model, *given)
    model = _understood(model, pad) if call is None else Adapted(model, call)
    reads_source: bool = getattr(model, "reads_source", True)
    reads_target: bool = getattr(model, "reads_target", True)
    written = tgt_size if reads_target else src_size  # the labels of an encoder are not read
    _check_vocabularies(src_size, written, pad, start)
    read = _Read(model, tgt_size, pad)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    draw = partial(_draw, src_size, written, pad, start, device=device)
    said = tolerance, dropout, search, positions
    probe = _Probe(*draw(seed), draw, pad, tgt_size, *said, reads_source, reads_target)
    forked = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(forked, device_type=device.type):
        read.see_bans(probe.src, probe.tgt)
        exact, arithmetic = _in_float64(read, probe)
        return CheckReport(arithmetic, _run_checks(read, exact, probe))
