"""transformer.speed.configured, from book/C-kernels.ipynb, "Workshop C: Kernels".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "original",
    "plain_name",
    "is_compiled",
    "parts_of",
    "Difference",
    "differences",
    "parameter_owners",
    "LAYER",
    "copies",
    "planned_shapes",
    "check_shapes",
    "by_parameter",
]


# %% book/C-kernels.ipynb · Is it as configured? · [configured]
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_TENSORS = "_parameters", "_buffers"
# A hook that is gone leaves `_is_full_backward_hook`; `module.compile()` sets the last.
_FREE = {*_TENSORS, "_modules", "training", "_is_full_backward_hook", "_compiled_call_impl"}
_WRAPPED = "_orig_mod"  # the name that `torch.compile` gives to the module inside its wrapper


def original(module: Any) -> Any:
    """The module that was given to `torch.compile`; anything else as it is."""
    while isinstance(module, nn.Module) and _WRAPPED in module._modules:
        module = module._modules[_WRAPPED]
    return module


def plain_name(name: str) -> str:
    """A module's or a tensor's name, without what `torch.compile` has put in."""
    return ".".join(part for part in name.split(".") if part != _WRAPPED)


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` computes a module, or a part of it."""
    return any(
        part is not original(part) or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def parts_of(module: nn.Module) -> dict[str, Any]:
    """All modules inside a module by name, as they were before `torch.compile`; itself under `""`."""
    return {plain_name(name): part for name, part in module.named_modules(remove_duplicate=False)}


class Difference(NamedTuple):
    """How a part is not as planned: in `what`, which is "class", an attribute, or "sharing" of
    parameters; `None` stands for what is not there."""

    name: str
    what: str
    given: Any
    wanted: Any

    def __str__(self) -> str:
        where, what, given, wanted = self.name or "the model", *self[1:]
        if what == "sharing":
            return "its parameters are not shared as configured"
        if what != "class":
            return f"{where} has " + (f"other {what[1:]}" if what in _TENSORS else f"another {what}")
        if given is None or wanted is None:
            return f"{where} is {'missing' if given is None else 'one more'}"
        return f"{where} is of {type(given).__name__}, not of {type(wanted).__name__}"


def differences(
    module: nn.Module, plan: nn.Module, compared: Collection[str] | None = None
) -> Iterator[Difference]:
    """How a module differs from what it should be, apart from its numbers. Attributes besides, which
    no code of its class reads, are no difference, nor is `torch.compile`.

    Args:
        module: the module.
        plan: a new one, as the configuration makes it; the meta device will do.
        compared: attributes, and "sharing"; `None` for all. Classes are compared in any case.
    """
    parts, planned = parts_of(module), parts_of(plan)
    for name in {**planned, **parts}:
        part, own = parts.get(name), planned.get(name)
        if type(part) is not type(own):
            yield Difference(name, "class", part, own)
            continue
        facts, usual = _facts(part), _facts(own)
        for what in {**usual, **facts} if compared is None else compared:
            given, wanted = facts.get(what), usual.get(what)
            if what not in usual and not hasattr(type(own), what):
                continue
            if type(given) is not type(wanted) or given != wanted:
                yield Difference(name, what, given, wanted)
    owners, wanted = parameter_owners(module), parameter_owners(plan)
    if (compared is None or "sharing" in compared) and not owners.items() >= wanted.items():
        yield Difference("", "sharing", owners, wanted)


def _facts(part: Any) -> dict[str, Any]:
    kinds = {
        key: {name: None if x is None else (type(x), x.shape) for name, x in vars(part)[key].items()}
        for key in _TENSORS
    }
    return {key: value for key, value in vars(part).items() if key not in _FREE} | kinds


def parameter_owners(module: nn.Module) -> dict[str, str]:
    """For every parameter's name, the first name of the same parameter."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {plain_name(name): first.setdefault(id(x), plain_name(name)) for name, x in named}


# %% book/C-kernels.ipynb · Is it as configured? · [weights-fit]
LAYER = re.compile(r"(?<=layers\.)\d+")  # in a parameter's name


def copies(name: str, n_layers: int | tuple[int, int]) -> int:
    """How many parameters of a model one of a plan with a single layer in each stack stands for.

    Args:
        name: the parameter's.
        n_layers: how many layers a stack of the model has, or its encoder and its decoder.
    """
    if not LAYER.search(name):
        return 1
    if isinstance(n_layers, int):
        return n_layers
    return n_layers[1] if name.startswith("decoder.") else n_layers[0]


def planned_shapes(plan: nn.Module, n_layers: int | tuple[int, int]) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters, from a plan with one layer in each stack."""
    return {
        LAYER.sub(str(number), name): tuple(x.shape)
        for name, x in plan.named_parameters()
        for number in range(copies(name, n_layers))
    }


def check_shapes(
    shapes: Mapping[str, Iterable[int]], wanted: Mapping[str, tuple[int, ...]], places: Mapping[str, str]
) -> None:
    """Refuse tensors that are not a model's parameters, by their names and shapes.

    Args:
        shapes: of the tensors.
        wanted: of the parameters.
        places: for a tensor's name that of its parameter, where it has another.

    Raises:
        ValueError: a tensor is missing, is one too many, or has another shape than `wanted`.
    """
    for name, shape in shapes.items():
        if (own := wanted.get(places.get(name, name))) is None:
            raise ValueError(f"{name!s:.80} has no place in this model")
        if own != tuple(shape):
            raise ValueError(f"{name} must have shape {list(own)}, not {list(shape)}")
    for name in sorted(wanted.keys() - {places.get(name, name) for name in shapes}):
        raise ValueError(f"no tensor stands for {name} of ours")


def by_parameter(weights: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, Tensor]:
    """Each parameter's tensor, where `places` says which it is, as in `check_shapes`.

    Raises:
        ValueError: two tensors that are one parameter differ.
    """
    first: dict[str, str] = {}
    for name, x in weights.items():
        same = first.setdefault(places.get(name, name), name)
        if same != name and not torch.equal(weights[same], x):
            raise ValueError(f"{name} must equal {same}, as both are one parameter here")
    return {place: weights[name] for place, name in first.items()}
