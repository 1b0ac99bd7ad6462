"""`check_model`: what a right sequence-to-sequence model does, asked of any."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformer.study.model_checks import CHECKS, NEEDED, Probe, draw, logits_of, redrawn
from transformer.validation import check_choice, check_rate, check_size

__all__ = [
    "CheckResult", "CheckReport", "find_logits", "Adapted", "seq2seq", "encoder_only", "decoder_only",
    "adapted", "without_dropout", "first_line", "inverted_mask", "check_model",
]  # fmt: skip


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
            lines += [f"{'':8} {'suspects:':17} {result.suspects}"] if result.suspects else []
        return "\n".join(lines)


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
    if isinstance(output, Mapping):
        parts = {str(name): part for name, part in output.items()}
    elif isinstance(output, (tuple, list)) and not hasattr(output, "_fields"):
        parts = {f"item {place}": part for place, part in enumerate(output)}
    else:
        kinds = ("_fields", "__dataclass_fields__", "__dict__")  # a named tuple, a dataclass, any other
        names = next((getattr(output, kind) for kind in kinds if hasattr(output, kind)), ())
        parts = {name: getattr(output, name) for name in names}
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    if "logits" in tensors:
        return tensors["logits"]
    fitting = lambda part: (
        part.dim() == 3 and part.is_floating_point() and vocab_size in (None, part.size(-1))
    )
    found = [part for part in tensors.values() if fitting(part)]
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
    config: Any

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
        self.config = getattr(model, "config", None)

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
    pad = model.config.pad_token_id if pad_id is None else pad_id

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        return model(input_ids=src, attention_mask=(src != pad).long(), decoder_input_ids=tgt)

    return Adapted(model, call, pad)


def encoder_only(model: Any, pad_id: int | None = None) -> Adapted:
    """Adapt a model such as BERT, which answers at every position of its one sentence.

    Args:
        model: called as `model(ids)`, or as `model(ids, attention_mask=…)` where it takes such a mask.
        pad_id: the padding token; `None`: as the model's configuration says, or 0.
    """
    said = getattr(getattr(model, "config", None), "pad_token_id", None) or 0
    pad = said if pad_id is None else pad_id
    masked = "attention_mask" in inspect.signature(model.forward).parameters

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        return model(src, attention_mask=(src != pad).long()) if masked else model(src)

    return Adapted(model, call, pad, reads_target=False)


def decoder_only(model: nn.Module) -> Adapted:
    """Adapt a language model, which answers at every position of its one sentence.

    Args:
        model: called as `model(ids)`. If that returns the last position's logits alone, as in
            nanoGPT, the labels of its loss are given too, and in evaluation mode the logits of
            both calls are put together, so that the checks examine both.
    """
    names = list(inspect.signature(model.forward).parameters)[1:]
    labels = next((name for name in names if name in ("targets", "labels")), None)

    def call(model: Any, src: Tensor, tgt: Tensor) -> Any:
        output = model(tgt)
        if labels is None or (last := find_logits(output)).shape[:2] == tgt.shape:
            return output
        whole = find_logits(model(tgt, **{labels: tgt}))
        return whole if model.training else torch.cat([whole[:, :-1], last], dim=1)

    return Adapted(model, call, reads_source=False)


def adapted(model: nn.Module, pad_id: int) -> nn.Module:
    """The model with its adapter, where its signature says which; refused where it doesn't (`ValueError`)."""
    taken = inspect.signature(model.forward).parameters.values()
    names = [parameter.name for parameter in taken]
    open_ended = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in taken)
    required = [p for p in taken if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if isinstance(model, nn.Transformer):
        adapter = "Adapted(model, lambda model, src, tgt: …)"
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
    raise ValueError(f"model takes ({shown}), not (src, tgt): pass {adapter} instead, from {__name__}")


# Masks that are inverted have a name

_HIDDEN = -1e4  # a score at or below this hides its key; a token whose logits all are is never to be written


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
                hides = (mask != attends) if mask.dtype == torch.bool else mask <= _HIDDEN
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


# The run


def first_line(error: Exception) -> str:
    """An exception's type and the beginning of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with dropout of rate 0: inside an expert, it draws by how many tokens the expert gets."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


class _Read(nn.Module):
    # A model whose result is read: found, and freed from what must not be compared.

    banned: Tensor | None = None  # [V], True for a token that is banned at every position of a first call

    def __init__(self, model: nn.Module, probe: Probe) -> None:
        super().__init__()
        self.model, self.vocab_size, self.pad_id = model, probe.tgt_vocab_size, probe.pad_id
        self.reads_target = probe.reads_target
        try:
            logits = logits_of(copy.deepcopy(self), probe.src, probe.tgt)
            banned = (logits < _HIDDEN).all(dim=1).all(dim=0)
            self.banned = banned if banned.any() and not banned.all() else None
        except Exception:  # the first check will say it
            pass

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        logits = find_logits(self.model(src, tgt), self.vocab_size)
        if not self.reads_target and logits.shape[:2] == src.shape:  # padding has no answer
            logits = logits.masked_fill((src == self.pad_id)[:, :, None], 0)
        if self.banned is not None and logits.size(-1) == self.vocab_size:
            lifted = self.banned & ~(logits < _HIDDEN)  # a ban that comes and goes is a fault
            logits = logits.masked_fill(self.banned, 0).masked_fill(lifted, torch.nan)
        return logits


def _run_check(name: str, model: nn.Module, probe: Probe) -> CheckResult:
    run, suspects, _, on_redrawn = CHECKS[name]
    if name == "source reach" and not probe.reads_target:
        suspects = "a causal mask, or masks inverted"
    try:
        copied = copy.deepcopy(model)
        passed, measured = run(redrawn(copied) if on_redrawn else copied, probe)
        if passed is False and name in ("future", "batch"):
            passed, measured = run(redrawn(without_dropout(copy.deepcopy(model))), probe)
    except Exception as error:  # a failure of this check; the others are still tried
        passed, measured = False, first_line(error)
    if passed is not False:
        return CheckResult(name, "skipped" if passed is None else "pass", measured, "")
    masks = inverted_mask(lambda: logits_of(copy.deepcopy(model), probe.src, probe.tgt))
    return CheckResult(name, "FAIL", measured, masks or suspects)


def _run_checks(given: nn.Module, exact: nn.Module, probe: Probe) -> tuple[CheckResult, ...]:
    results: list[CheckResult] = []
    for name, (_, _, of, _) in CHECKS.items():
        failed = [r.name for r in results if r.verdict == "FAIL" and r.name in NEEDED]
        if failed:
            results.append(CheckResult(name, "skipped", f"needs {failed[0]!r} to pass", ""))
        elif of == "source" and not probe.reads_source:
            results.append(CheckResult(name, "skipped", "a decoder-only model has no source", ""))
        elif of == "target" and not probe.reads_target:
            results.append(CheckResult(name, "skipped", "an encoder-only model has no target", ""))
        else:
            model = given if name == "empty source" else exact  # what overflows depends on the dtype
            results.append(_run_check(name, model, probe))
    return tuple(results)


_MOST_TOKENS = 2**22  # of a vocabulary: far more than any has, and few enough to be listed
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


def _check_vocabularies(src_size: int, tgt_size: int, pad_id: int, bos_id: int) -> None:
    check_size(src_vocab_size=src_size, tgt_vocab_size=tgt_size)
    check_size(minimum=0, pad_id=pad_id, bos_id=bos_id)
    for name, value, end in (("pad_id", pad_id, min(src_size, tgt_size)), ("bos_id", bos_id, tgt_size)):
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
            `encoder_only` or `Adapted`.
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
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    check_choice((True, False, None), dropout=dropout)
    if search is not None and not callable(search):
        raise TypeError(f"search must be callable, not {type(search).__name__}")
    check_choice(("absolute", "relative", "none", None), positions=positions)
    check_rate(tolerance=tolerance)
    check_size(minimum=0, seed=seed)
    src_size, tgt_size, pad, start = _described(model, src_vocab_size, tgt_vocab_size, pad_id, bos_id)
    model = adapted(model, pad) if call is None else Adapted(model, call)
    reads = getattr(model, "reads_source", True), getattr(model, "reads_target", True)
    written = tgt_size if reads[1] else src_size  # the labels of an encoder are not read
    _check_vocabularies(src_size, written, pad, start)
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    drawn = partial(draw, (src_size, written), pad, start, device=device)
    probe = Probe(*drawn(seed), drawn, pad, tgt_size, tolerance, dropout, search, positions, *reads)
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        read = exact = _Read(model, probe)
        try:
            logits_of(copy.deepcopy(model).double(), probe.src, probe.tgt)
            exact, arithmetic = copy.deepcopy(read).double(), "float64"
        except Exception as error:
            arithmetic = f"the model's own precision; in float64, {first_line(error)}"
        return CheckReport(arithmetic, _run_checks(read, exact, probe))
