"""Files that are whole or not there, and records: JSON with a checksum."""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = [
    "CheckpointError", "refusing_damage", "atomic_file", "naming_errors", "regular_file", "file_sha256",
    "write_record", "read_record",
]  # fmt: skip


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint of this package, or not one of this model."""


@contextmanager
def refusing_damage(path: Path | str) -> Iterator[None]:
    """Turn whatever a stranger's file makes a program raise into a `CheckpointError` of one line."""
    try:
        yield
    except (CheckpointError, OSError, ImportError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # some twenty types, by the library that meets the damage, or its panic
        message = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if not isinstance(error, ValueError | TypeError | KeyError):
            message = f"{type(error).__name__}: {message}"
        raise CheckpointError(f"{path} cannot be used: {' '.join(message.split()):.300}") from error


@contextmanager
def atomic_file(path: Path | str) -> Iterator[Path]:
    """An empty file to write to, which replaces `path` at the end in a single step, unless writing fails."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, and not a file to write")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} can't be written: there is no folder {path.parent}")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with naming_errors(path):
            part.touch(exist_ok=False)  # fails if anything has that name, even a link
            yield part
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
            _sync_names(path.parent)
    finally:
        part.unlink(missing_ok=True)


def _sync_names(directory: Path) -> None:
    # A name is an entry in its directory, which is written to disk separately from the file's content.
    with suppress(OSError):  # Windows, and some file systems, such as those of networks, cannot do it
        entries = os.open(directory, os.O_RDONLY)
        try:
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


def regular_file(path: Path | str) -> Path:
    """The path of a file to read, neither a folder nor a device (`OSError`); `open` reports a missing one."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a regular file")
    return path


def file_sha256(path: Path | str) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_record(path: Path | str, record: dict[str, Any]) -> None:
    """Write a record as JSON with a checksum under `"sha256"`, whole or not at all."""
    record = {name: value for name, value in record.items() if name != "sha256"}
    with atomic_file(path) as part:
        text = json.dumps(record | {"sha256": _record_sum(record)}, indent=1, ensure_ascii=False)
        part.write_text(text + "\n", encoding="utf8")


def _record_sum(record: dict[str, Any]) -> str:
    content = json.loads(json.dumps(record))  # as it will be read, with lists for tuples
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _int64(digits: str) -> int:
    if not -(2**63) <= (number := int(digits)) < 2**63:  # which no tensor could hold
        raise ValueError(f"{digits:.30} does not fit into 64 bits")
    return number


def read_record(path: Path | str) -> dict[str, Any]:
    """Read what `write_record` wrote, or a record without a checksum; what is none, or has changed, is a
    `CheckpointError`, which names the file."""
    with refusing_damage(path):
        text = regular_file(path).read_text(encoding="utf8")
        record: dict[str, Any] = json.loads(text, parse_int=_int64)
        if not isinstance(record, dict):
            raise TypeError(f"it holds a {type(record).__name__}, not an object of names and values")
        if record.pop("sha256", None) not in (None, _record_sum(record)):
            raise ValueError('its checksum is wrong; if you have changed it yourself, delete "sha256"')
    return record
