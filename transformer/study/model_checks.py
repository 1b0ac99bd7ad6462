"""`check_model`: what a right sequence-to-sequence model does, asked of any."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformer.study.checks import CHECKS, NEEDED, Finding, Probe, Skipped, seed_generators, sentences
from transformer.validation import check_choice, check_index, check_rate, check_size, check_type

__all__ = [
    "CheckResult", "CheckReport", "examine", "find_logits", "Adapted", "seq2seq", "decoder_only", "adapted",
    "inverted_mask", "config_value", "check_model",
]  # fmt: skip


# What is reported, and how one check is made after the other


class CheckResult(NamedTuple):
    """What one check found."""

    name: str
    verdict: str  # "pass", "FAIL" or "skipped"
    measured: str  # what was measured, what was raised, or why the check was skipped
    suspects: str  # where to look first; empty unless the check failed


@dataclass(frozen=True)
class CheckReport:
    """What the checks found; `print` shows it as a table.

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
            lines += [f"{'':8} {'suspects:':17} {result.suspects}"] if result.suspects else []
        return "\n".join(lines)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def examine(
    checks: Mapping[str, Callable[[Any], Finding]], asked: Any, needed: tuple[str, ...]
) -> tuple[CheckResult, ...]:
    """Make one check after the other; once one of those `needed` has failed, the rest is skipped."""
    results: list[CheckResult] = []
    for name, check in checks.items():
        failed = [result.name for result in results if result.verdict == "FAIL" and result.name in needed]
        seed_generators(0)
        try:
            if failed:
                raise Skipped(f"needs {failed[0]!r} to pass")
            passed, measured, suspects = check(asked)
            verdict = "pass" if passed else "FAIL"
        except Skipped as reason:
            verdict, measured, suspects = "skipped", str(reason), ""
        except Exception as error:
            verdict, measured, suspects = "FAIL", _first_line(error), "raised by what is examined"
        results.append(CheckResult(name, verdict, measured, suspects if verdict == "FAIL" else ""))
    return tuple(results)


# Any model as model(src, tgt), and the logits in what it returns


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
    named = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    logits = named.get("logits", getattr(output, "logits", None))
    if isinstance(logits, Tensor):
        return logits
    parts = named.values() or (output if isinstance(output, tuple | list) else ())
    tensors = [part for part in parts if isinstance(part, Tensor) and part.dim() == 3]
    candidates = [x for x in tensors if x.is_floating_point() and vocab_size in (None, x.size(-1))]
    if len(candidates) != 1:
        raise TypeError(f"which are the logits in {type(output).__name__}? {len(candidates)} tensors may be")
    return candidates[0]


class Adapted(nn.Module):
    """A model that is called as `model(src, tgt)` and returns logits, whatever its own form is.

    Args:
        model: any module.
        call: `call(model, src, tgt)` returns the logits, or what `find_logits` finds them in.
        pad_id: the padding token that the call masks; `None` if it masks none.
        reads_source: whether there is a source.
        vocab_size: V, by which logits are told from other vectors, if it is known.
    """

    def __init__(
        self, model: nn.Module, call: Callable[[Any, Tensor, Tensor], Any], pad_id: int | None = None,
        reads_source: bool = True, vocab_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.call, self.pad_id = model, call, pad_id
        self.reads_source, self.vocab_size = reads_source, vocab_size
        self.config = getattr(model, "config", None)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """The logits `[B, T, V]` for source ids `[B, S]` and target ids `[B, T]`."""
        return find_logits(self.call(self.model, src, tgt), self.vocab_size)


def seq2seq(model: Any, pad_id: int | None = None) -> Adapted:
    """Adapt an encoder–decoder of Hugging Face's library, which takes the mask of the source.

    Args:
        model: called as `model(input_ids=…, attention_mask=…, decoder_input_ids=…)`.
        pad_id: the padding token; `None`: as the model's configuration says.
    """
    pad = model.config.pad_token_id if pad_id is None else pad_id

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        return model(input_ids=src, attention_mask=(src != pad).long(), decoder_input_ids=tgt)

    return Adapted(model, call, pad)


def decoder_only(model: nn.Module) -> Adapted:
    """Adapt a language model, which answers at every position of its one sentence.

    Args:
        model: called as `model(ids)`, or as `model(ids, targets)` if it then returns more than the
            last position's logits, as in nanoGPT.
    """
    names = list(inspect.signature(model.forward).parameters)[1:]
    labels = next((name for name in names if name in ("targets", "labels")), None)

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        output = model(tgt)
        if labels is None or find_logits(output).shape[:2] == tgt.shape:
            return output
        return model(tgt, **{labels: tgt})

    return Adapted(model, call, reads_source=False)


def adapted(model: nn.Module, pad_id: int) -> Adapted:
    """The model with its adapter, where its signature says which; refused where it doesn't (`ValueError`)."""
    if isinstance(model, Adapted):
        return model
    taken = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in taken]
    if "decoder_input_ids" in names:
        return seq2seq(model, pad_id)
    if "targets" in names[1:]:
        return decoder_only(model)
    required = [p for p in taken if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    open_ended = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in taken)
    fits = names[:2] == ["src", "tgt"] and not isinstance(model, nn.Transformer)
    alone = names[:1] in (["input_ids"], ["ids"]) or (len(required) == 1 and not open_ended)
    if not fits and (alone or isinstance(model, nn.Transformer) or "mask" in "".join(names[1:2])):
        adapter = "decoder_only(model)" if alone else "Adapted(model, lambda model, src, tgt: …)"
        signature = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
        message = f"model takes ({signature}), not (src, tgt)"
        raise ValueError(f"{message}: pass {adapter} instead, from {__name__}")
    reads_source = getattr(model, "reads_source", True)
    return Adapted(model, lambda model, src, tgt: model(src, tgt), reads_source=reads_source)


# Masks that are inverted have a name


class _Masks(TorchFunctionMode):
    # Notes which keys [..., T, S] an attention hides, by its masks or by its scores.

    def __init__(self) -> None:
        super().__init__()
        self.hidden: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, name = dict(kwargs or {}), getattr(func, "__name__", "")
        seen = [given.get("key_padding_mask"), given.get("attn_mask")]
        if name == "softmax":
            x, dim = args[0] if args else given["input"], args[1] if len(args) > 1 else given.get("dim")
            seen = [x] if dim in (-1, x.dim() - 1) else []  # scores [..., T, S], and not another layout
        elif name == "scaled_dot_product_attention" and len(args) > 3:
            seen = [args[3]]
        for mask in seen:
            if isinstance(mask, Tensor) and mask.dim() >= 2:
                attends = name.startswith("scaled")  # of a boolean mask, what True means
                hides = (mask != attends) if mask.dtype == torch.bool else mask <= -1e4
                self.hidden.append(hides[:, None] if mask is given.get("key_padding_mask") else hides)
        return func(*args, **given)


def inverted_mask(call: Callable[[], object]) -> str:
    """Which mask of a call is inverted, if one is; no sentence of the call holds padding."""
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


# The entry


def config_value(model: nn.Module, given: int | None, *names: str) -> int | None:
    """A number as given, or as the model or its configuration says under one of these names."""
    places = (model, getattr(model, "config", None))
    values = (getattr(place, name, None) for place in places for name in names)
    return given if given is not None else next((value for value in values if isinstance(value, int)), None)


def _in_float64(own: Adapted, probe: Probe) -> tuple[Probe, str]:
    # The model in float64, if it can be computed there, and the precision that it is asked in.
    try:
        exact = copy.deepcopy(own).double()
        with torch.no_grad():
            trial = copy.deepcopy(exact).eval()
            trial.call(trial.model, probe.src.clone(), probe.tgt.clone())
        return replace(probe, model=exact), "float64"
    except Exception as error:
        return probe, f"the model's own precision; in float64, {_first_line(error)}"


_STARTS = "bos_id", "decoder_start_token_id", "bos_token_id"


def _described(model: nn.Module, *given: int | None) -> tuple[tuple[int, int], int, int]:
    # Sizes, padding and start token: as given, as the model or its configuration says, or by default.
    src_size = config_value(model, given[0], "src_vocab_size", "vocab_size")
    if src_size is None:
        raise ValueError("src_vocab_size must be given: the model has no configuration that says it")
    tgt_size = config_value(model, given[1], "tgt_vocab_size", "decoder_vocab_size", "vocab_size")
    pad = config_value(model, given[2], "pad_id", "pad_token_id")
    bos = config_value(model, given[3], *_STARTS)
    sizes = src_size, src_size if tgt_size is None else tgt_size
    pad, bos = 0 if pad is None else pad, 2 if bos is None else bos
    check_size(minimum=2 + len({pad, bos}), src_vocab_size=sizes[0], tgt_vocab_size=sizes[1])
    check_index(min(sizes), pad_id=pad, bos_id=bos)
    return sizes, pad, bos


def check_model(
    model: nn.Module, src_vocab_size: int | None = None, tgt_vocab_size: int | None = None,
    pad_id: int | None = None, bos_id: int | None = None, dropout: bool | None = None,
    search: Callable[[Any, Tensor, int], Tensor] | None = None, tolerance: float = 1e-5, seed: int = 0,
    positions: str | None = None,
) -> CheckReport:  # fmt: skip
    """Look for faults in a Transformer from outside, by the logits it returns.

    The model, its mode, its gradients and the state of the generators are left as they are.

    Args:
        model: called as `model(src, tgt)` with source ids `[B, S]` and target ids `[B, T]` that
            begin with the start token, it returns logits `[B, T, V]`; S and T are at most 9. It
            makes its masks itself, and can be copied. `find_logits` looks for them in a tuple, a
            dictionary or a dataclass. `model(input_ids, …, decoder_input_ids)` and `model(idx, targets)`
            are called as they are meant. Other models need an adapter: `seq2seq`, `decoder_only` or
            `Adapted`.
        src_vocab_size: number of source tokens. This and the next three are
            read from the model or its configuration where they are `None`.
        tgt_vocab_size: number of target tokens V, likewise; without a configuration, as many as source.
        pad_id: the padding token; without a configuration, 0.
        bos_id: the token that a target begins with; without a configuration, 2.
        dropout: whether the model is meant to be random in training mode; `None` to skip the check.
        search: greedy search, called as `search(model, src, max_length)` on padded sources;
            returns ids `[B, L]`, L ≤ max_length, without the start token and with only padding
            after the end token. `None` to skip the check.
        tolerance: the largest change that counts as none, as a share of the largest logit.
        seed: of the random sentences.
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
    check_type(nn.Module, model=model)
    check_choice((True, False, None), dropout=dropout)
    if search is not None and not callable(search):
        raise TypeError(f"search must be callable, not {type(search).__name__}")
    check_choice(("absolute", "relative", "none", None), positions=positions)
    check_rate(tolerance=tolerance)
    check_size(minimum=0, seed=seed)
    sizes, pad, bos = _described(model, src_vocab_size, tgt_vocab_size, pad_id, bos_id)
    own = adapted(model, pad)
    if own.pad_id not in (None, pad):
        raise ValueError(f"pad_id is {pad}, but the adapter masks {own.pad_id}")
    own = Adapted(own.model, own.call, pad, own.reads_source, sizes[1])
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    draw = lambda seed: tuple(ids.to(device) for ids in sentences(sizes, pad, bos, seed))
    src, tgt, other_src, other_tgt = draw(seed)
    written = search and partial(search, model)
    probe = Probe(
        own, own, src, tgt, other_src, other_tgt, sizes[1], draw, pad, tolerance, dropout, written, positions
    )
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        probe, arithmetic = _in_float64(own, probe)
        results = examine(CHECKS, probe, NEEDED)
        failed = any(result.verdict == "FAIL" for result in results)
        copied = lambda: replace(probe, model=copy.deepcopy(probe.model)).logits()
        masks = inverted_mask(copied) if failed else ""
    named = lambda result: masks or CHECKS[result.name].suspects if result.verdict == "FAIL" else ""
    return CheckReport(arithmetic, tuple(result._replace(suspects=named(result)) for result in results))
