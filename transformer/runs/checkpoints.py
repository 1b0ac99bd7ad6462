"""transformer.runs.checkpoints, from book/D-runs.ipynb, "Workshop D: Runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "atomic_file",
    "sync_names",
    "naming_errors",
    "CHECKPOINT_FORMAT",
    "CheckpointError",
    "DamagedCheckpointError",
    "regular_file",
    "save_checkpoint",
    "load_checkpoint",
    "newest_whole",
    "set_weights",
    "plain_state",
    "whole",
    "placed_like",
    "check_weights",
    "plain_transformer",
    "save_weights",
    "load_weights",
]


# %% book/D-runs.ipynb · Files that are whole · [files-imports]
import hashlib
import json
import math
import os
import secrets
import warnings
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from transformer.model import Transformer, TransformerConfig
from transformer.runs.distributed import rank_and_world_size
from transformer.speed.configured import by_parameter, check_shapes, original, parameter_owners, plain_name
from transformer.validation import check_type, optional_import


# %% book/D-runs.ipynb · Files that are whole · [atomic-files]
@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """An empty file to write to, which replaces `path` at the end in a single step.

    Args:
        path: the file to write or replace. If the writing fails, it stays as it was.

    Raises:
        OSError: the file cannot be written, as on a full disk; the message names it.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with naming_errors(path):
            part.touch(exist_ok=False)  # fails if anything has that name, even a link
            yield part
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
            sync_names(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_names(directory: Path) -> None:
    # A name is an entry in its directory, which is written to disk separately from the file's content.
    if os.name != "posix":  # Windows cannot open a directory
        return
    entries = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems, such as those of networks, cannot do it
            os.fsync(entries)
    finally:
        os.close(entries)


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    # An error in opening a file names the file; one in writing to it, as on a full disk, does not.
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


# %% book/D-runs.ipynb · A container for checkpoints · [checkpoint-errors]
CHECKPOINT_FORMAT = "transformer-checkpoint-3"


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint of this package, or not one of this model."""


class DamagedCheckpointError(CheckpointError):
    """A file that has changed, of which a part is missing, or that never was a checkpoint."""


def regular_file(path: Path | str) -> Path:
    """Check that a path to read from is a file, and neither a folder nor a device.

    Raises:
        OSError: it is not a regular file; a missing one is left for `open` to report.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path


# %% book/D-runs.ipynb · A container for checkpoints · [checkpoint-files]
def save_checkpoint(path: Path | str, state: dict[str, Any]) -> None:
    """Write tensors, numbers and dictionaries of them, and a checksum; whole or not at all.

    Raises:
        TypeError: `state` is not a dictionary.
        OSError: the file cannot be written; the message names it.
    """
    check_type(dict, state=state)
    with atomic_file(path) as part:
        try:
            with open(part, "wb") as file:
                torch.save({"format": CHECKPOINT_FORMAT, **state}, file)
        except RuntimeError as error:  # torch's own words for the error that `file` raised
            said = error.__context__
            raise said if isinstance(said, OSError) else OSError(f"{path}: {error}") from error
        _seal(part)


def _seal(path: Path) -> None:
    # A zip archive may end with a comment, which is preceded by its length in two bytes.
    with open(path, "rb+") as file:
        end = file.seek(-2, os.SEEK_END) + 2
        file.write(hashlib.sha256().digest_size.to_bytes(2, "little"))
        check_sum = _check_sum(file, end)
        file.seek(end)
        file.write(check_sum)


def _is_whole(file: BinaryIO) -> bool:
    end = os.fstat(file.fileno()).st_size - hashlib.sha256().digest_size
    return end > 0 and _check_sum(file, end) == file.read()


def _check_sum(file: BinaryIO, end: int) -> bytes:
    # The checksum of all bytes before `end`, which is the file's position afterward.
    check_sum, left = hashlib.sha256(), end
    file.seek(0)
    while left and (content := file.read(min(left, 1 << 20))):
        check_sum.update(content)
        left -= len(content)
    return check_sum.digest()


# %% book/D-runs.ipynb · A container for checkpoints · [load-checkpoint]
def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read onto the CPU what `save_checkpoint` wrote, executing nothing.

    Args:
        path: of the file.

    Returns:
        the state.

    Raises:
        OSError: the file cannot be read; `FileNotFoundError` where there is none.
        DamagedCheckpointError: a bit of it has changed, a part is missing, or it never was a
            checkpoint; the message names it.
        CheckpointError: it is whole, but in another format.
    """
    path = regular_file(path)
    with naming_errors(path), path.open("rb") as file:
        if not _is_whole(file):
            raise DamagedCheckpointError(f"{path} is not a whole checkpoint: its checksum is wrong")
        try:
            _check_archive(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
            if _unfolded(state, {}) > os.fstat(file.fileno()).st_size:
                raise ValueError("unfolded, it is larger than the file")
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a stranger's file can raise half a dozen types of error
            if "DefaultCPUAllocator" in str(error):  # too little memory, which torch calls a RuntimeError
                raise MemoryError(f"{path}: {error}") from error
            said = f"{type(error).__name__}: {str(error).strip():.200}"
            raise CheckpointError(f"{path} is not a checkpoint that can be read ({said})") from error
    given = state.get("format") if isinstance(state, dict) else None
    if given != CHECKPOINT_FORMAT:
        message = f"{path} is not a checkpoint in the format {CHECKPOINT_FORMAT!r}"
        raise CheckpointError(f"{message}, but says {given!r:.60}" if given else message)
    return dict(state)


# %% book/D-runs.ipynb · A container for checkpoints · [checkpoint-malice]
def _check_archive(file: BinaryIO) -> None:
    # A small archive can hold something large once unpacked, and torch unpacks it all.
    entries = zipfile.ZipFile(file).infolist()
    if any(entry.compress_type for entry in entries):
        raise ValueError("torch.save compresses nothing")
    if sum(entry.file_size for entry in entries) > os.fstat(file.fileno()).st_size:
        raise ValueError("its entries claim more than the file holds")
    file.seek(0)


def _unfolded(value: Any, known: dict[int, float]) -> float:
    # The number of values inside, each counted as often as it is reached.
    if id(value) not in known:
        known[id(value)] = math.inf  # so something that holds itself would have no end
        inner: Iterable[Any] = value if isinstance(value, list | tuple | set) else ()
        if isinstance(value, dict):
            inner = [*value, *value.values()]
        n_inner = sum(_unfolded(item, known) for item in inner)
        hollow = isinstance(value, Tensor) and _is_hollow(value)
        known[id(value)] = math.inf if hollow else 1 + n_inner
    return known[id(value)]


def _is_hollow(x: Tensor) -> bool:
    # Whether a tensor claims more numbers than its storage has.
    return x.is_meta or x.layout != torch.strided or x.nbytes > x.untyped_storage().nbytes()


# %% book/D-runs.ipynb · A container for checkpoints · [newest-whole]
def newest_whole(paths: list[Path]) -> tuple[Path, dict[str, Any]] | tuple[None, None]:
    """The last whole one of some checkpoints, and its state; `None` twice for no checkpoints.

    Raises:
        CheckpointError: there are checkpoints, and none is whole; or one is in another format.
    """
    damaged: list[DamagedCheckpointError] = []
    for path in reversed(paths):
        try:
            state = load_checkpoint(path)
        except DamagedCheckpointError as error:
            damaged.append(error)
            continue
        for damage in damaged:
            warnings.warn(f"{damage}; going on from {path.name}", stacklevel=4)
        return path, state
    if damaged:
        raise CheckpointError(
            f"{paths[0].parent} holds a run, but no checkpoint of it is whole: "
            f"{'; '.join(map(str, damaged))}. Put a whole one there, or begin in another folder"
        )
    return None, None


# %% book/D-runs.ipynb · Weights that fit · [set-weights]
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
    own, weights = model.state_dict(), copy(state["model"])  # with what torch notes beside them
    for name, place in _places(own, weights).items():
        weights[place] = placed_like(own[place], weights.pop(name))
    model.load_state_dict(weights, strict=False)  # a shared table may come under one of its names


def plain_state(model: nn.Module) -> dict[str, Any]:
    """The `state_dict` of a model under the names that it has without `torch.compile`."""
    state = model.state_dict()
    for name in list(state):
        state[plain_name(name)] = state.pop(name)
    return state


def _places(own: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    # For names of tensors those among a model's own, either side with or without torch.compile.
    places = {plain_name(name): name for name in own}
    return {name: places[plain_name(name)] for name in names}


def whole(value: Any) -> Any:
    """The same on the CPU, with all numbers of tensors that are shared out among processes.

    Args:
        value: tensors in dictionaries, lists and tuples; all processes ask at once. The first of
            them gets the tensors, and the others `None` in their place.
    """
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item) for item in value)
    if not hasattr(value, "full_tensor"):
        return value
    gathered = value.full_tensor()
    return gathered.cpu() if rank_and_world_size()[0] == 0 else None


def placed_like(own: Any, x: Any) -> Any:
    """The part of `x` that this process has of `own`, if that is shared out among processes."""
    if not hasattr(own, "device_mesh") or x.shape != own.shape:
        return x
    share_out: Any = optional_import("torch.distributed.tensor").distribute_tensor
    # All processes have x; of a part of it that is not copied, they would go on to hold the whole.
    return share_out(x.to(own.device), own.device_mesh, own.placements, src_data_rank=None).clone()


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
    # A shard does not say where it is.
    marks = {name: id(x) if hasattr(x, "to_local") else x.data_ptr() for name, x in own.items()}
    places = {name: first.setdefault(mark, name) for name, mark in marks.items()}
    wanted = {name: tuple(own[name].shape) for name in places.values()}
    check_shapes({name: getattr(x, "shape", ()) for name, x in weights.items()}, wanted, places)
    for name, x in weights.items():
        if not isinstance(x, Tensor) or x.is_floating_point() != own[name].is_floating_point():
            raise ValueError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}, not {own[name].dtype}")
    by_parameter(weights, places)


# %% book/D-runs.ipynb · What can be kept · [plain-transformer]
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
    own, owners = _parameters(model), parameter_owners(plain)
    misfit = _misfit(own, _parameters(plain), owners, besides) or _other_buffer(model, plain, besides)
    if misfit is not None:
        raise TypeError(
            f"model must have the parameters that its configuration makes, or no file could hold it, but "
            f"{misfit}: fit and the searches take it as it is, and torch.save keeps its state_dict"
        )
    once = {name: own[name].detach() for name in owners.values()}  # because no NaN equals itself
    plain.load_state_dict(once, strict=False, assign=True)
    return plain.train(model.training)


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {plain_name(name): x for name, x in model.named_parameters(remove_duplicate=False)}


def _misfit(
    own: dict[str, Tensor], wanted: dict[str, Tensor], owners: dict[str, str], besides: Collection[str]
) -> str | None:
    for name in {**wanted, **own}:
        if name not in own or name not in wanted:
            if name not in besides:
                return f"{name} is {'one more' if name in own else 'missing'}"
        elif own[name].shape != wanted[name].shape:
            return f"{name} has shape {list(own[name].shape)}, not {list(wanted[name].shape)}"
    first: dict[int, str] = {}
    for name, owner in owners.items():
        found = first.setdefault(id(own[name]), name)
        if found != owner:
            numbers = "one parameter, not two" if owner == name else "two parameters, not one"
            return f"{name} and {found if owner == name else owner} are {numbers}"
    return None


def _other_buffer(model: nn.Module, plain: nn.Module, besides: Collection[str]) -> str | None:
    own = {plain_name(name): x for name, x in model.named_buffers()}
    for name, x in plain.named_buffers():
        y = own.get(name, x[:0]).to("cpu", x.dtype)  # perhaps from half precision
        if name not in besides and not (y.shape == x.shape and torch.allclose(y, x, atol=0.01)):
            return f"{name} is not as it makes it"
    return None


# %% book/D-runs.ipynb · Weights to keep · [save-weights]
def _in_dtype(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    wide, bound = x.double(), torch.finfo(dtype).max
    lost = wide[wide.isfinite() & (wide.abs() > bound)]  # what would become infinite
    if lost.numel():
        raise ValueError(f"{name} holds {lost[0]:.4g}, and the largest number of {dtype} is {bound:.4g}")
    return x.to(dtype)


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
    seen: set[int] = set()
    for name, x in sorted(plain_state(model).items()):
        if x.data_ptr() not in seen:
            seen.add(x.data_ptr())
            x = _in_dtype(name, x, dtype) if x.is_floating_point() else x
            weights[name] = x.cpu().clone(memory_format=torch.contiguous_format)
    kept = {"sha256": _weights_sum(weights, facts or {})}
    if facts:  # in a single text, since safetensors puts several into any order
        kept = {"facts": json.dumps(facts | kept)}
    with atomic_file(path) as part:
        part.write_bytes(safetensors.save(weights, kept))


def _kept_facts(metadata: dict[str, str]) -> dict[str, str]:
    facts: dict[str, str] = json.loads(metadata["facts"]) if "facts" in metadata else dict(metadata)
    return facts


def _weights_sum(weights: dict[str, Tensor], facts: dict[str, str]) -> str:
    # A checksum of facts, and of names, types, shapes and numbers.
    total = hashlib.sha256()
    for name, text in sorted(facts.items()):
        total.update(f"{name} {text}\n".encode())
    for name, x in sorted(weights.items()):
        total.update(f"{name} {x.dtype} {list(x.shape)}\n".encode())
        total.update(x.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


# %% book/D-runs.ipynb · Weights to keep · [load-weights]
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
        facts = _kept_facts(json.loads(content[8:length]).get("__metadata__", {}))
        if facts.pop("sha256", None) not in (None, _weights_sum(weights, facts)):
            raise ValueError("its checksum is wrong")
        _check_fit(model, weights)
    except MemoryError:
        raise
    except Exception as error:
        raise CheckpointError(f"{path} does not hold this model's weights: {error}") from error
    placed = {place: weights[name] for name, place in _places(model.state_dict(), weights).items()}
    model.load_state_dict(placed, strict=False)  # a shared table is in the file once
