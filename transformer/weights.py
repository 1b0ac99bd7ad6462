"""A model's weights: whether they are what its configuration says, and files of them."""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.files import CheckpointError, atomic_file, refusing_damage, regular_file
from transformer.model import Transformer, TransformerConfig
from transformer.validation import check_choice, check_type, optional_import

__all__ = [
    "original", "plain_name", "is_compiled", "parts_of", "differences", "configured", "parameter_owners",
    "place_all", "planned", "check_finite", "check_shapes", "by_parameter", "check_fit", "set_weights",
    "plain_state", "plain_transformer", "save_weights", "read_weights", "load_weights",
]  # fmt: skip


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
    parts = module.modules()
    return any(part is not original(part) or getattr(part, "_compiled_call_impl", None) for part in parts)


def parts_of(module: nn.Module) -> dict[str, Any]:
    """All modules inside a module by name, as they were before `torch.compile`; itself under `""`."""
    return {plain_name(name): part for name, part in module.named_modules(remove_duplicate=False)}


def differences(module: nn.Module, plan: nn.Module) -> Iterator[tuple[str, str, str]]:
    """How a module differs from a new one, apart from its numbers, `torch.compile`, and attributes that no
    code of its class reads: a part's name; "class", an attribute, or "sharing" of parameters; a sentence."""
    parts, planned_parts = parts_of(module), parts_of(plan)
    for name in {**planned_parts, **parts}:
        part, own, where = parts.get(name), planned_parts.get(name), name or "the model"
        if type(part) is not type(own):
            kinds = f"{type(part).__name__}, not of {type(own).__name__}"
            yield name, "class", f"{where} is of {kinds}"
            continue
        facts, usual = _facts(part), _facts(own)
        for what in {**usual, **facts}:
            given, wanted = facts.get(what), usual.get(what)
            is_read = what in usual or hasattr(type(own), what)
            if is_read and (type(given) is not type(wanted) or given != wanted):
                difference = f"another {what}"
                if what in _TENSORS:
                    names = {name for name, _ in facts[what].items() ^ usual[what].items()}
                    difference = f"other {what[1:]}: {', '.join(sorted(names))}"
                yield name, what, f"{where} has {difference}"
    if not parameter_owners(module).items() >= parameter_owners(plan).items():
        yield "", "sharing", "its parameters are not shared as configured"


def _facts(part: Any) -> dict[str, Any]:
    kinds = {
        key: {name: None if x is None else (type(x), x.shape) for name, x in vars(part)[key].items()}
        for key in _TENSORS
    }
    return {key: value for key, value in vars(part).items() if key not in _FREE} | kinds


def configured(model: Any, taker: str, kind: type[Transformer] = Transformer) -> Transformer:
    """What a model's configuration makes, on the meta device, if every part is so; only the output may have a
    bias, as in published models. The `TypeError` names the part, and the `taker`."""
    check_type(kind, model=(model := original(model)))
    with torch.device("meta"):
        plan = kind(model.config)
        if model.output.bias is not None:
            plan.output.bias = nn.Parameter(plan.output.weight.new_empty(plan.config.tgt_vocab_size))
    for _, _, message in differences(model, plan):
        raise TypeError(f"{taker} takes only what a configuration makes, but {message}")
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


def planned(kind: Any, config: Any, n_layers: int, n_tensors: int) -> Any:
    """A model of this `kind` on the meta device, if a file has tensors for its layers (`ValueError`)."""
    if n_layers * 8 > n_tensors:  # four of a layer's attention, two of its network, two of its norms
        raise ValueError(f"{n_layers:,} layers have more than the {n_tensors:,} tensors that are there")
    with torch.device("meta"):
        return kind(config)


def check_finite(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of which one is infinite or not a number, by its name (`ValueError`)."""
    for name, x in weights.items():
        if not x.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")


def check_shapes(
    shapes: Mapping[str, Iterable[int]], wanted: Mapping[str, tuple[int, ...]], places: Mapping[str, str]
) -> None:
    """Refuse tensors that are not a model's parameters, by name and shape; `places` renames them."""
    for name, shape in shapes.items():
        if (own := wanted.get(places.get(name, name))) is None:
            raise ValueError(f"{name!s:.80} has no place in this model")
        if own != tuple(shape):
            raise ValueError(f"{name} must have shape {list(own)}, not {list(shape)}")
    for name in sorted(wanted.keys() - {places.get(name, name) for name in shapes}):
        raise ValueError(f"no tensor stands for {name} of ours")


def by_parameter(weights: Mapping[str, Tensor], places: Mapping[str, str]) -> dict[str, Tensor]:
    """Each parameter's tensor, by `places` as in `check_shapes`; two of one parameter must be equal."""
    first: dict[str, str] = {}
    for name, x in weights.items():
        same = first.setdefault(places.get(name, name), name)
        if same != name and not torch.equal(weights[same], x):
            raise ValueError(f"{name} must equal {same}, as both are one parameter here")
    return {place: weights[name] for place, name in first.items()}


def check_fit(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Refuse weights of another model, by name, shape, kind of number or sharing (`ValueError`)."""
    own = plain_state(model, keep_vars=True)
    weights, first = {plain_name(str(name)): x for name, x in weights.items()}, dict[int, str]()
    places = {name: first.setdefault(id(x), name) for name, x in own.items()}
    wanted = {name: tuple(own[name].shape) for name in places.values()}
    check_shapes({name: getattr(x, "shape", ()) for name, x in weights.items()}, wanted, places)
    for name, x in weights.items():
        if not isinstance(x, Tensor) or x.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}, not {own[name].dtype}")
    by_parameter(weights, places)


def set_weights(model: nn.Module, state: Any, path: Path | str) -> None:
    """Give a model, which keeps its dtype and device, the weights of what `load_checkpoint` read; those of
    another model (`CheckpointError`) leave it as it was."""
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise CheckpointError(f"{path} holds no weights")
    try:
        check_fit(model, state["model"])
    except ValueError as error:
        raise CheckpointError(f"{path} belongs to another model: {error}") from error
    # The names of either side may be those of torch.compile, and a shared table has one of its own.
    places = {plain_name(name): name for name in model.state_dict()}
    weights = {places[plain_name(name)]: x for name, x in state["model"].items()}
    model.load_state_dict(weights, strict=False)


def plain_state(model: nn.Module, keep_vars: bool = False) -> dict[str, Any]:
    """The `state_dict` of a model under the names that it has without `torch.compile`."""
    return {plain_name(name): x for name, x in model.state_dict(keep_vars=keep_vars).items()}


def plain_transformer(model: Any, besides: Collection[str] = ()) -> Transformer:
    """The plain `Transformer` with a model's parameters, which is what a file can hold of the model.

    Hooks, attributes, what `torch.compile` made of it and what a subclass overrides are no part of it. What
    `besides` names may be other than the configuration makes it; the `TypeError` names what else is.
    """
    check_type(Transformer, model=(model := original(model)))
    check_type(TransformerConfig, **{"model.config": getattr(model, "config", None)})
    settings = {field.name: getattr(model.config, field.name) for field in fields(TransformerConfig)}
    with torch.device("meta"):
        plain = Transformer(TransformerConfig(**settings))
    named, owners = model.named_parameters(remove_duplicate=False), parameter_owners(plain)
    own = {plain_name(name): x.detach() for name, x in named}
    wanted = {name: tuple(plain.get_parameter(name).shape) for name in owners}
    try:
        check_shapes({name: x.shape for name, x in own.items() if name not in besides}, wanted, {})
        if not parameter_owners(model).items() >= owners.items():
            raise ValueError("its parameters are not shared as configured")
        table = plain.positions.table
        y = getattr(model.positions, "table", table[:0]).to(table)  # perhaps from half
        if "positions.table" not in besides and not (y.shape == table.shape and y.allclose(table, atol=0.01)):
            raise ValueError("positions.table is not as it makes it")
    except ValueError as error:
        raise TypeError(
            f"model must have the parameters that its configuration makes, or no file could hold it, but "
            f"{error}: fit and the searches take it as it is, and torch.save keeps its state_dict"
        ) from error
    place_all(plain, {name: own[name] for name in owners.values()})  # once, because no NaN equals itself
    return plain.train(model.training)


def save_weights(
    model: nn.Module, path: Path | str, dtype: torch.dtype = torch.float32, facts: Mapping[str, str] = {}
) -> None:
    """Write a model's weights in a `dtype` as safetensors, a shared table once, with `facts` and a checksum
    over all; a weight that is too large for the `dtype` is refused (`ValueError`)."""
    check_type(nn.Module, model=model)
    check_choice((torch.float64, torch.float32, torch.float16, torch.bfloat16), dtype=dtype)
    weights, seen = dict[str, Tensor](), set[int]()
    for name, own in sorted(plain_state(model, keep_vars=True).items()):
        if id(own) not in seen:  # two may share their memory, and be no shared parameter
            seen.add(id(own))
            x = own.detach()
            written = x.to(dtype) if x.is_floating_point() else x
            if (x.isfinite() & ~written.isfinite()).any():
                raise ValueError(f"{name} holds a number that is too large for {dtype}")
            weights[name] = written.cpu().clone(memory_format=torch.contiguous_format)
    kept = {"sha256": _weights_sum(weights, facts)}
    if facts:  # in a single text, since safetensors puts several into any order
        kept = {"facts": json.dumps({**facts, **kept})}
    with atomic_file(path) as part:
        part.write_bytes(optional_import("safetensors.torch").save(weights, kept))


def _weights_sum(weights: Mapping[str, Tensor], facts: Mapping[str, str]) -> str:
    # A checksum of facts, and of names, types, shapes and numbers.
    total = hashlib.sha256()
    for name, text in sorted(facts.items()):
        total.update(f"{name} {text}\n".encode())
    for name, x in sorted(weights.items()):
        total.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        total.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def read_weights(path: Path | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the facts in what `save_weights` wrote; another program's file, without a checksum, is
    trusted."""
    safetensors, content = optional_import("safetensors.torch"), regular_file(path).read_bytes()
    with refusing_damage(path):
        weights = safetensors.load(content)
        length = 8 + int.from_bytes(content[:8], "little")
        facts = json.loads(content[8:length]).get("__metadata__", {})
        facts = json.loads(facts["facts"]) if "facts" in facts else facts
        if facts.pop("sha256", None) not in (None, _weights_sum(weights, facts)):
            raise ValueError("its checksum is wrong")
    return weights, facts


def load_weights(model: nn.Module, path: Path | str) -> None:
    """Read what `save_weights` wrote into a model of the same configuration, which keeps dtype and device; a
    damaged file, and another model's (`CheckpointError`), leave it as it was."""
    set_weights(model, {"model": read_weights(path)[0]}, path)
