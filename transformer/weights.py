"""A model's weights: whether they are what its configuration says, and files of them."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple
import torch
from torch import Tensor, nn
from transformer.files import CheckpointError, atomic_file, regular_file
from transformer.model import Transformer, TransformerConfig
from transformer.validation import check_type, optional_import

__all__ = [
    "original",
    "plain_name",
    "is_compiled",
    "parts_of",
    "Difference",
    "differences",
    "configured",
    "parameter_owners",
    "place_all",
    "planned",
    "check_shapes",
    "by_parameter",
    "set_weights",
    "plain_state",
    "check_weights",
    "plain_transformer",
    "save_weights",
    "load_weights",
]


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
        if what in _TENSORS:
            names = [name for name in {**wanted, **given} if given.get(name) != wanted.get(name)]
            return f"{where} has other {what[1:]}: {', '.join(names)}"
        if what != "class":
            return f"{where} has another {what}"
        if given is None or wanted is None:
            return f"{where} is {'missing' if given is None else 'one more'}"
        return f"{where} is of {type(given).__name__}, not of {type(wanted).__name__}"


def differences(module: nn.Module, plan: nn.Module) -> Iterator[Difference]:
    """How a module differs from what it should be, apart from its numbers. Attributes besides, which
    no code of its class reads, are no difference, nor is `torch.compile`.

    Args:
        module: the module.
        plan: a new one, as the configuration makes it; the meta device will do.
    """
    parts, usual_parts = parts_of(module), parts_of(plan)
    for name in {**usual_parts, **parts}:
        part, own = parts.get(name), usual_parts.get(name)
        if type(part) is not type(own):
            yield Difference(name, "class", part, own)
            continue
        facts, usual = _facts(part), _facts(own)
        for what in {**usual, **facts}:
            given, wanted = facts.get(what), usual.get(what)
            if what not in usual and not hasattr(type(own), what):
                continue
            if type(given) is not type(wanted) or given != wanted:
                yield Difference(name, what, given, wanted)
    owners, wanted = parameter_owners(module), parameter_owners(plan)
    if not owners.items() >= wanted.items():
        yield Difference("", "sharing", owners, wanted)


def _facts(part: Any) -> dict[str, Any]:
    kinds = {
        key: {name: None if x is None else (type(x), x.shape) for name, x in vars(part)[key].items()}
        for key in _TENSORS
    }
    return {key: value for key, value in vars(part).items() if key not in _FREE} | kinds


def configured(model: Any, taker: str, kind: type[Transformer] = Transformer) -> Transformer:
    """What a model's configuration makes, on the meta device, if every part of the model is so.

    Args:
        model: of this `kind`; its output may have a bias, as published models have it.
        taker: who takes nothing else, for the message.

    Raises:
        TypeError: a part is of another class, has other settings, or has hooks; the message names it.
    """
    check_type(kind, model=(model := original(model)))
    with torch.device("meta"):
        plan = kind(model.config)
        if model.output.bias is not None:
            plan.output.bias = nn.Parameter(plan.output.weight.new_empty(plan.config.tgt_vocab_size))
    if (difference := next(differences(model, plan), None)) is not None:
        raise TypeError(f"{taker} takes only what a configuration makes, but {difference}")
    return plan


def parameter_owners(module: nn.Module) -> dict[str, str]:
    """For every parameter's name, the first name of the same parameter."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    return {plain_name(name): first.setdefault(id(x), plain_name(name)) for name, x in named}


def place_all(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a module on the meta device its weights, a shared one by any of its names."""
    owners = parameter_owners(module)
    module.load_state_dict(weights, strict=False, assign=True)
    for name, owner in owners.items():
        part, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(part), leaf, module.get_parameter(owner))


_FEWEST = 8  # tensors in a layer: four of its attention, two of its network, two of its norms


def planned(kind: Any, config: Any, n_layers: int, n_tensors: int) -> Any:
    """A model of this `kind` on the meta device, if a file's tensors can be so many layers (`ValueError`)."""
    if n_layers * _FEWEST > n_tensors:
        raise ValueError(f"{n_layers:,} layers have more than the {n_tensors:,} tensors that are there")
    with torch.device("meta"):
        return kind(config)


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


def set_weights(model: nn.Module, state: dict[str, Any], path: Path | str) -> None:
    """Give a model the weights of a checkpoint.

    Args:
        model: the model; it keeps its dtype and device.
        state: what `load_checkpoint` returned.
        path: the file that it came from, for the message.

    Raises:
        TypeError: `model` is not a module.
        CheckpointError: the weights are another model's, or there are none; the model stays as it was.
    """
    check_weights(model, state, path)
    _take(model, state["model"])


def _take(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    # The names of either side may be those of torch.compile, and a shared table has one of its own.
    places = {plain_name(name): name for name in model.state_dict()}
    model.load_state_dict({places[plain_name(name)]: x for name, x in weights.items()}, strict=False)


def plain_state(model: nn.Module) -> dict[str, Any]:
    """The `state_dict` of a model under the names that it has without `torch.compile`."""
    state = model.state_dict()
    for name in list(state):
        state[plain_name(name)] = state.pop(name)
    return state


def check_weights(model: nn.Module, state: dict[str, Any], path: Path | str) -> None:
    """Raise what `set_weights` would raise, and leave the model as it is."""
    check_type(nn.Module, model=model)
    weights = state.get("model") if isinstance(state, dict) else None
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path} holds no weights")
    try:
        _check_fit(model, weights)
    except ValueError as error:
        raise CheckpointError(f"{path} belongs to another model: {error}") from error


def _check_fit(model: nn.Module, weights: dict[str, Any]) -> None:
    own = {plain_name(name): x for name, x in model.state_dict(keep_vars=True).items()}
    weights, first = {plain_name(str(name)): x for name, x in weights.items()}, dict[int, str]()
    places = {name: first.setdefault(x.data_ptr(), name) for name, x in own.items()}
    wanted = {name: tuple(own[name].shape) for name in places.values()}
    check_shapes({name: getattr(x, "shape", ()) for name, x in weights.items()}, wanted, places)
    for name, x in weights.items():
        if not isinstance(x, Tensor) or x.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}, not {own[name].dtype}")
    by_parameter(weights, places)


def plain_transformer(model: Any, besides: Collection[str] = ()) -> Transformer:
    """The plain `Transformer` with a model's parameters, which is what a file can hold of the model.

    Hooks, attributes, what `torch.compile` made of it and what a subclass overrides are no part of it.

    Args:
        model: a `Transformer`, compiled or not.
        besides: names of parameters and buffers that may be other ones, or be there as well.

    Raises:
        TypeError: `model` is no `Transformer`; or its parameters are not those that its configuration
            makes, by name, shape and sharing, or its positions are others. The message names the first.
    """
    check_type(Transformer, model=(model := original(model)))
    check_type(TransformerConfig, **{"model.config": getattr(model, "config", None)})
    settings = {field.name: getattr(model.config, field.name) for field in fields(TransformerConfig)}
    with torch.device("meta"):
        plain = Transformer(TransformerConfig(**settings))
    named, owners = model.named_parameters(remove_duplicate=False), parameter_owners(plain)
    own = {plain_name(name): x.detach() for name, x in named}
    wanted = {name: tuple(plain.get_parameter(name).shape) for name in owners}
    buffers = {plain_name(name): x for name, x in model.named_buffers()}
    try:
        check_shapes({name: x.shape for name, x in own.items() if name not in besides}, wanted, {})
        if not parameter_owners(model).items() >= owners.items():
            raise ValueError("its parameters are not shared as configured")
        for name, x in plain.named_buffers():
            y = buffers.get(name, x[:0]).to("cpu", x.dtype)  # perhaps from half precision
            if name not in besides and not (y.shape == x.shape and torch.allclose(y, x, atol=0.01)):
                raise ValueError(f"{name} is not as it makes it")
    except ValueError as error:
        raise TypeError(
            f"model must have the parameters that its configuration makes, or no file could hold it, but "
            f"{error}: fit and the searches take it as it is, and torch.save keeps its state_dict"
        ) from error
    place_all(plain, {name: own[name] for name in owners.values()})  # once, because no NaN equals itself
    return plain.train(model.training)


def save_weights(
    model: nn.Module,
    path: Path | str,
    dtype: torch.dtype = torch.float32,
    facts: dict[str, str] | None = None,
) -> None:
    """Write a model's weights as safetensors with a checksum, a shared table once.

    Args:
        model: the model.
        path: of the file.
        dtype: to write in; `torch.float16` halves the file.
        facts: texts to be kept with the weights, under the same checksum.

    Raises:
        TypeError: `model` is not a module, or `dtype` not a `torch.dtype`.
        ValueError: `dtype` is not floating-point, or a weight is too large for it.
        OSError: the file cannot be written; the message names it.
        ImportError: safetensors is missing.
    """
    check_type(nn.Module, model=model)
    check_type(torch.dtype, dtype=dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be floating-point, but is {dtype}")
    safetensors = optional_import("safetensors.torch")
    weights: dict[str, Tensor] = {}
    seen, largest = set[int](), torch.finfo(dtype).max
    for name, x in sorted(plain_state(model).items()):
        if x.data_ptr() not in seen:
            seen.add(x.data_ptr())
            if x.is_floating_point() and bool((x.isfinite() & (x.double().abs() > largest)).any()):
                raise ValueError(f"{name} holds a number above {largest:.4g}, the largest of {dtype}")
            x = x.to(dtype) if x.is_floating_point() else x
            weights[name] = x.cpu().clone(memory_format=torch.contiguous_format)
    kept = {"sha256": _weights_sum(weights, facts or {})}
    if facts:  # in a single text, since safetensors puts several into any order
        kept = {"facts": json.dumps(facts | kept)}
    with atomic_file(path) as part:
        part.write_bytes(safetensors.save(weights, kept))


def _weights_sum(weights: dict[str, Tensor], facts: dict[str, str]) -> str:
    # A checksum of facts, and of names, types, shapes and numbers.
    total = hashlib.sha256()
    for name, text in sorted(facts.items()):
        total.update(f"{name} {text}\n".encode())
    for name, x in sorted(weights.items()):
        total.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        total.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Read what `save_weights` wrote into a model of the same configuration.

    Args:
        model: the model; it keeps its dtype and device.
        path: of the file.

    Raises:
        TypeError: `model` is not a module.
        OSError: the file cannot be opened; `FileNotFoundError` where there is none.
        CheckpointError: the file is damaged, or does not fit the model, which then stays as it was;
            the message names the file. One without a checksum, from another program, is trusted.
        ImportError: safetensors is missing.
    """
    check_type(nn.Module, model=model)
    safetensors, content = optional_import("safetensors.torch"), regular_file(path).read_bytes()
    try:
        weights = safetensors.load(content)
        length = 8 + int.from_bytes(content[:8], "little")
        facts = json.loads(content[8:length]).get("__metadata__", {})
        facts = json.loads(facts["facts"]) if "facts" in facts else facts
        if facts.pop("sha256", None) not in (None, _weights_sum(weights, facts)):
            raise ValueError("its checksum is wrong")
        _check_fit(model, weights)
    except MemoryError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} does not hold this model's weights: {error}") from error
    _take(model, weights)
