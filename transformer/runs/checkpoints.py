"""Checkpoints: whole or not there, and read without executing anything."""

import hashlib
import math
import os
import warnings
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO
import torch
from torch import Tensor
from transformer.files import CheckpointError, atomic_file, naming_errors, regular_file
from transformer.runs.distributed import rank_and_world_size
from transformer.validation import check_type

__all__ = [
    "CHECKPOINT_FORMAT",
    "DamagedCheckpointError",
    "save_checkpoint",
    "load_checkpoint",
    "newest_whole",
    "whole",
]


CHECKPOINT_FORMAT = "transformer-checkpoint-3"


class DamagedCheckpointError(CheckpointError):
    """A file that has changed, of which a part is missing, or that never was a checkpoint."""


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
