"""Files that are cut, foreign or hostile, and full disks: every reader and every writer."""

from __future__ import annotations

import builtins
import errno
import os
import pickle
import random
import re
import struct
from pathlib import Path

import pytest
import torch
from helpers import contents
from small import VOCABULARY, make_model

import transformer.files
from transformer import Vocabulary
from transformer.files import CheckpointError, atomic_file, read_record, write_record
from transformer.runs.folder import RunFolder, read_log
from transformer.runs.loop import (
    load_checkpoint,
    save_checkpoint,
)
from transformer.training import load_record, record_path
from transformer.weights import load_weights, save_weights


def read_weights(path: Path) -> None:
    load_weights(make_model(), path)


READERS = {
    "checkpoint": (load_checkpoint, "checkpoint.pt"),
    "weights": (read_weights, "model.safetensors"),
    "vocabulary": (Vocabulary.load, "vocabulary.json"),
    "record": (read_record, "record.json"),
    "log": (lambda path: read_log(path.parent), "log.jsonl"),
}


class Malice:
    """What would make a folder named "executed" if it were unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


def as_lines(text: str) -> bytes:
    return text.encode() + b"\n"


HEADER = struct.Struct("<Q")
FOREIGN = {
    "not UTF-8": b'{"step": "\xff\xfe"}\n',
    "zeros": bytes(4096) + b"\n",
    "a list": as_lines("[1, 2, 3]"),
    "not a number": as_lines("NaN"),
    "deep": as_lines("[" * 200_000 + "]" * 200_000),
    "half a file": as_lines('{"step": 3, "loss": '),
    "a pickle that would execute": pickle.dumps(Malice()) + b"\n",
    "a header of 2^63 bytes": HEADER.pack(2**63) + b"{}\n",
    "a header longer than the file": HEADER.pack(10**6) + b"{}\n",
    "a tensor beyond the end": HEADER.pack(63)
    + b'{"w":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4]}}'[:63]
    + b"\0\0\0\0\n",
    "a zip of nothing": b"PK\x05\x06" + bytes(18) + b"\n",
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("reader", READERS)
def test_a_foreign_file_is_refused_by_name(tmp_path, monkeypatch, reader, content):
    monkeypatch.chdir(tmp_path)
    read, name = READERS[reader]
    (tmp_path / name).write_bytes(content)
    with pytest.raises((CheckpointError, ValueError), match=re.escape(name)):
        read(tmp_path / name)
    assert not (tmp_path / "executed").exists()


@pytest.mark.skipif(os.name == "nt", reason="needs links and devices of Unix")
@pytest.mark.parametrize("reader", READERS)
def test_a_folder_and_a_device_are_no_files(tmp_path, reader):
    read, name = READERS[reader]
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=f"{re.escape(name)} is not a regular file"):
        read(tmp_path / name)
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to("/dev/zero")  # without an end: to read it whole would fill the memory
    with pytest.raises(OSError, match=f"{re.escape(name)} is not a regular file"):
        read(tmp_path / name)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


UPDATES = {"step": 2, "epoch": 0, "loss": 2.5, "rate": 1e-3, "norm": 1.25, "tokens": 90, "seconds": 0.5}
WRITTEN = {
    "weights": ("a.safetensors", lambda path: save_weights(make_model(), path, torch.float16)),
    "record": ("a.json", lambda path: write_record(path, {"recipe": {"seed": 3}, "scores": [27.5, "pão"]})),
    "log": ("log.jsonl", lambda path: RunFolder(path.parent).write_log([UPDATES, {"step": 2, "loss": 2.0}])),
}


def read_again(path: Path):
    """What one of them tells, in a form that can be compared."""
    if path.suffix == ".safetensors":
        load_weights(model := make_model(seed=1), path)
        return [p.tolist() for p in model.parameters()]
    return read_log(path.parent) if path.suffix == ".jsonl" else read_record(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITTEN)
def test_no_bit_of_weights_records_and_logs_can_be_flipped_unnoticed(tmp_path, kind):
    """Refused by name; or, as in spaces and in the name of the checksum, of no consequence."""
    name, write = WRITTEN[kind]
    path = tmp_path / name
    write(path)
    content, whole, refused = path.read_bytes(), read_again(path), 0
    bits = range(8 * len(content))
    chosen = random.Random(0).sample(bits, 120)
    for bit in chosen:
        path.write_bytes(flipped(content, bit))
        try:
            told = read_again(path)
        except CheckpointError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            if kind == "record":  # the checksum's name
                told = {key: value for key, value in told.items() if key in whole}
            assert told == whole, (bit, flipped(content, bit))
    assert refused > 0.7 * len(chosen)


def test_files_without_checksums_are_read_as_they_are(tmp_path):
    """Those that other programs wrote, or this one before it had any; records are changed by hand, too."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = make_model()
    weights = {id(x): name for name, x in reversed(model.state_dict(keep_vars=True).items())}
    save_file({name: model.state_dict()[name] for name in weights.values()}, tmp_path / "a")
    load_weights(other := make_model(seed=1), tmp_path / "a")
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    assert read_log(tmp_path) == [{"step": 1, "loss": 0.5}]
    write_record(tmp_path / "a.json", {"seed": 3})
    text = (tmp_path / "a.json").read_text().replace("3,", "4,")
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(CheckpointError, match='if you have changed it yourself, delete "sha256"'):
        read_record(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(re.sub(r",\s*\"sha256.*", "}", text, flags=re.DOTALL))
    assert read_record(tmp_path / "a.json") == {"seed": 4}
    assert "sha256" not in load_record("toy") and read_record(record_path("toy.json")) == load_record("toy")


class FullDisk:
    """A file of which the disk takes so many bytes and no more."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content) -> int:
        if len(content) > self.room:
            self.file.write(content[: self.room])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(content)
        return self.file.write(content)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()


@pytest.fixture
def full_disk(monkeypatch):
    """From now on, what is opened to be written takes 100 bytes."""
    opened = builtins.open

    def fill() -> None:
        def open_(path, mode="r", *options, **names):
            file = opened(path, mode, *options, **names)
            return FullDisk(file, 100) if mode[0] in "wa" else file

        monkeypatch.setattr(builtins, "open", open_)
        monkeypatch.setattr(Path, "open", lambda self, *options, **names: open_(self, *options, **names))

    return fill


WRITERS = {
    "checkpoint": ("a.pt", lambda path: save_checkpoint(path, {"model": make_model().state_dict()})),
    "weights": ("a.safetensors", lambda path: save_weights(make_model(), path)),
    "record": ("a.json", lambda path: write_record(path, {"entry": "x" * 1000})),
    "log": ("log.jsonl", lambda path: RunFolder(path.parent).write_log([{"step": n} for n in range(100)])),
    "vocabulary": ("vocabulary.json", VOCABULARY.save),
}


@pytest.mark.parametrize("before", [True, False], ids=["over a file", "a new file"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_told_with_the_files_name_and_leaves_the_old_file(tmp_path, full_disk, writer, before):
    name, write = WRITERS[writer]
    if before:
        write(tmp_path / name)
    kept = contents(tmp_path)
    full_disk()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / name))):
        write(tmp_path / name)
    assert contents(tmp_path) == kept


class Cut(Exception):
    """The power is gone."""


@pytest.mark.parametrize("before", [None, "old"])
def test_atomic_file_replaces_all_or_nothing(tmp_path, before):
    path = tmp_path / "file.txt"
    if before:
        path.write_text(before)
    with pytest.raises(Cut), atomic_file(path) as part:
        part.write_text("half")
        raise Cut
    assert [p.read_text() for p in tmp_path.iterdir()] == ([before] if before else [])

    with atomic_file(path) as part:
        assert part.read_text() == ""
        part.write_text("new")
        assert not before or path.read_text() == before  # until the end
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"] and path.read_text() == "new"
    for place, said in (("", "is a folder"), ("no/x", "there is no folder ")):
        with pytest.raises(OSError, match=said), atomic_file(tmp_path / place):
            pass


def test_atomic_file_reaches_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        call = getattr(os, name)
        note = lambda *given, name=name, call=call: (done.append(name), call(*given))
        monkeypatch.setattr(transformer.files.os, name, note)
    with atomic_file(tmp_path / "file") as part:
        part.write_text("whole")
    # The new name is an entry of the directory, which Windows does not open.
    assert done == ["fsync", "replace", *(["fsync"] if os.name == "posix" else [])]


@pytest.mark.skipif(os.name == "nt", reason="needs links and devices of Unix")
@pytest.mark.parametrize("name", [".config.json.part", ".config.json.0123456789abcdef.part"])
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path, monkeypatch, name):
    """Not even if its name has been guessed."""
    monkeypatch.setattr(transformer.files.secrets, "token_hex", lambda n: "0123456789abcdef"[: 2 * n])
    precious, path = tmp_path / "precious", tmp_path / "config.json"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    try:
        write_record(path, {"theirs": 1})
        assert read_record(path) == {"theirs": 1}
    except FileExistsError:
        assert not path.exists()
    assert precious.read_text() == "mine"
