"""Checks of arguments: errors that name argument, value and bound."""

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any
import torch
from torch import Tensor
from transformer.layers import ACTIVATIONS

__all__ = [
    "check_config", "check_type", "check_choice", "check_size", "check_index", "check_rate", "check_number",
    "check_searched", "is_traced", "check_ids", "check_range", "check_positions", "check_batch",
    "check_memory", "optional_import",
]  # fmt: skip


def check_config(config: Any) -> None:
    """Refuse a `TransformerConfig` that no model can be built from (`TypeError`, `ValueError`)."""
    named = lambda names: {name: getattr(config, name) for name in names.split()}
    src, tgt, given = config.src_vocab_size, config.tgt_vocab_size, config.n_layers
    check_size(**named("src_vocab_size tgt_vocab_size d_model n_heads d_ff max_length"))
    if isinstance(given, tuple | list) and len(given) != 2:
        raise ValueError(f"n_layers must be a number or a pair, encoder and decoder, not {given!r:.60}")
    for depth in given if isinstance(given, tuple | list) else [given]:
        check_size(n_layers=depth)
    check_rate(**named("dropout attention_dropout activation_dropout"))
    check_choice(sorted(ACTIVATIONS), activation=config.activation)
    check_type(bool, **named("bias norm_first tie_embeddings"))
    check_type((bool, type(None)), final_norm=config.final_norm)
    if config.d_model % config.n_heads:
        message = f"{config.n_heads} does not divide {config.d_model}"
        raise ValueError(f"n_heads must divide d_model, but {message}")
    if config.tie_embeddings and src != tgt:
        raise ValueError(f"tie_embeddings needs src_vocab_size = tgt_vocab_size, but {src} is not {tgt}")
    check_index(min(src, tgt), pad_id=config.pad_id)
    check_index(tgt, bos_id=config.bos_id, eos_id=config.eos_id)
    if config.eos_id == config.pad_id:
        raise ValueError(f"pad_id and eos_id must differ, but both are {config.eos_id}")


def check_type(kind: Any, /, **values: Any) -> None:
    """Refuse values not of a class, or of one among several (`TypeError`); a `bool` is no `int` here."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for name, value in values.items():
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = "number" if kinds == (int, float) else " or ".join(kind.__name__ for kind in kinds)
            given = f"{type(value).__name__} ({' '.join(repr(value).split()):.60})"  # on one line
            raise TypeError(f"{name} must be {'an' if wanted[0] in 'AEIaeio' else 'a'} {wanted}, not {given}")


def check_choice(choices: Collection[Any], **values: Any) -> None:
    """Refuse values that are not among `choices` (`ValueError`)."""
    for name, value in values.items():
        if value not in list(choices):  # `in` takes any value for a list, but not for a set or a dict
            raise ValueError(f"{name} must be one of {list(choices)}, not {value!r}")


def _check_bound(kind: Any, bound: str, holds: Callable[[Any], bool], numbers: Mapping[str, float]) -> None:
    check_type(kind, **numbers)
    for name, number in numbers.items():
        if not holds(number):
            raise ValueError(f"{name} must {bound}, but is {number}")


def check_size(minimum: int = 1, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers (`TypeError`) or below `minimum` (`ValueError`)."""
    _check_bound(int, f"be at least {minimum}", lambda size: size >= minimum, sizes)


def check_index(end: int, **numbers: int) -> None:
    """Refuse numbers that are not whole (`TypeError`), or not tokens or places below `end` (`ValueError`)."""
    _check_bound(int, f"lie in [0, {end})", lambda number: 0 <= number < end, numbers)


def check_rate(**rates: float) -> None:
    """Refuse rates that are not numbers (`TypeError`) or outside [0, 1), such as 1 (`ValueError`)."""
    _check_bound((int, float), "lie in [0, 1)", lambda rate: 0 <= rate < 1, rates)


def check_number(**numbers: float) -> None:
    """Refuse what is not a number (`TypeError`), or negative, infinite or NaN (`ValueError`)."""
    _check_bound((int, float), "be finite and at least 0", lambda number: 0 <= number < torch.inf, numbers)


def check_searched(model: Any) -> None:
    """Refuse a model whose configuration lacks what searches and losses read of it (`TypeError`)."""
    for name in ("src_vocab_size", "tgt_vocab_size", "max_length", "pad_id", "bos_id", "eos_id"):
        if not hasattr(getattr(model, "config", None), name):
            raise TypeError(f"model must be a Transformer, but {type(model).__name__} has no config.{name}")


def is_traced(*tensors: Tensor) -> bool:
    """Whether tensors have no values yet: in `torch.compile`, `export`, `func.vmap` and `func.grad`."""
    return torch.compiler.is_compiling() or any(torch.func.debug_unwrap(x) is not x for x in tensors)


def check_ids(name: str, ids: Tensor, vocab_size: int, always: bool = False) -> None:
    """Refuse what is no `torch.long` tensor (`TypeError`) `[B, T]` (`ValueError`); ids as `check_range`."""
    if not isinstance(ids, Tensor) or ids.dtype != torch.long:
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{name} must be a torch.long tensor, not {kind}")
    if ids.dim() != 2:
        raise ValueError(f"{name} must have shape [batch, length], not {list(ids.shape)}")
    check_range(name, ids, vocab_size, always)


def check_range(name: str, ids: Tensor, end: int, always: bool = False) -> None:
    """Refuse whole numbers outside [0, end) (`IndexError`): on the CPU where not `is_traced`, or `always`."""
    if is_traced(ids) or not (always or ids.device.type == "cpu"):
        return
    low, high = map(int, torch.aminmax(ids)) if ids.numel() else (0, -1)
    if low < 0 or high >= end:
        raise IndexError(f"{name} must lie in [0, {end}), but holds {low if low < 0 else high}")


def check_positions(name: str, length: int, max_length: int) -> None:
    """Refuse ids (`name`) whose `length`, with those before them, is above `max_length` (`ValueError`)."""
    if length > max_length:
        raise ValueError(f"{name} must have at most max_length = {max_length} tokens, but has {length}")


def check_batch(batch: Any, model: Any) -> tuple[Tensor, Tensor]:
    """Source and target ids, `[B, S]` and `[B, T + 1]`, if `batch` is such a pair; on the CPU, a target row
    without a start token is refused as well."""
    listed = isinstance(batch, tuple | list)
    if not listed or [isinstance(part, Tensor) for part in batch] != [True, True]:
        given = f"({', '.join(type(x).__name__ for x in batch):.60})" if listed else type(batch).__name__
        raise TypeError(f"batch must be a pair of tensors, source and target, not {given}")
    src, tgt = batch
    if not torch.compiler.is_compiling():
        check_searched(model)
    config = model.config
    check_ids("tgt", tgt, config.tgt_vocab_size)
    readable = not is_traced(tgt) and tgt.device.type == "cpu"
    if readable and ((tgt[:, :1] != config.bos_id).any(1) & (tgt != config.pad_id).any(1)).any():
        raise ValueError(f"tgt must begin with the start token, bos_id = {config.bos_id}, in every row")
    return src, tgt


def check_memory(memory: Tensor, tgt: Tensor, d_model: int) -> None:
    """Refuse a memory that is not `[B, S, d_model]` for target ids `[B, T]` (`TypeError`, `ValueError`)."""
    if not isinstance(memory, Tensor) or not memory.is_floating_point():
        kind = getattr(memory, "dtype", type(memory).__name__)
        raise TypeError(f"memory must be a floating-point tensor, not {kind}")
    if memory.dim() != 3 or memory.size(0) != tgt.size(0) or memory.size(2) != d_model:
        wanted = f"have shape [batch, length, {d_model}] with the batch of tgt, {tgt.size(0)}"
        raise ValueError(f"memory must {wanted}, not {list(memory.shape)}")


_EXTRAS = {"matplotlib": "plots", "starlette": "serve", "uvicorn": "serve"}
_EXTRAS |= dict.fromkeys(("transformers", "sentencepiece", "sacremoses", "ctranslate2"), "interchange")


def optional_import(name: str) -> Any:
    """Import a library that only a part of the package needs, or say how to get it (`ImportError`)."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        extra = f"the extra {_EXTRAS.get(library, 'text')!r} of transformer-book"
        raise ImportError(f"this needs the library {library}: pip install {library}, or {extra}") from error
