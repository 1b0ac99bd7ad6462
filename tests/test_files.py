"""Files that are cut, foreign, hostile or cannot be written: refused by name, and nothing in them executed.

What is left out here stands in test_training.py (checkpoints that are cut or foreign, crashes) and in
test_text.py (archives of corpora).
"""

from __future__ import annotations

import builtins
import errno
import json
import os
import pickle
import re
import struct
import zipfile
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
import torch

import transformer
from transformer import (
    CheckpointError,
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    atomic_file,
    load_checkpoint,
    load_record,
    load_weights,
    read_log,
    read_record,
    save_checkpoint,
    save_weights,
    set_weights,
    teacher_forced_loss,
    write_log,
    write_record,
)
from transformer.__main__ import main

VOCABULARY = Vocabulary.train(["o gato preto", "a casa branca"] * 3, 30)
SIZES = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16, max_length=6)
BATCH = torch.tensor([[4, 5, 3], [6, 3, 0]]), torch.tensor([[2, 5, 3], [2, 3, 0]])


def make_model(seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    size = len(VOCABULARY)
    return Transformer(TransformerConfig(size, size, **SIZES | changes)).eval()


@pytest.fixture
def folder(tmp_path) -> Path:
    """A saved translator."""
    Translator(make_model(), VOCABULARY).save(tmp_path / "kept")
    return tmp_path / "kept"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# -------------------------------------------------------------------------------------------------
# Every reader, and everything that is not the file it expects
# -------------------------------------------------------------------------------------------------


def read_weights(path: Path) -> None:
    load_weights(make_model(), path)


def resume(path: Path) -> None:
    path.rename(path.with_name("checkpoint-00000003.pt"))
    with pytest.warns(UserWarning, match=r"checkpoint-00000003\.pt is no .*trying an older one"):
        assert not make_trainer(path.parent).resume()
    raise CheckpointError("checkpoint-00000003.pt")  # refused, and the run begins anew


READERS = {
    "checkpoint": (load_checkpoint, "checkpoint.pt"),
    "resume": (resume, "checkpoint-00000003.pt"),
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
    "one byte": b"\x80",
    "not UTF-8": b'{"step": "\xff\xfe"}\n',
    "zeros": bytes(4096) + b"\n",
    "a list": as_lines("[1, 2, 3]"),
    "a number": as_lines("3"),
    "not a number": as_lines("NaN"),
    "deep": as_lines("[" * 200_000 + "]" * 200_000),
    "deep objects": as_lines('{"a":' * 100_000 + "1" + "}" * 100_000),
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


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("log", "resume")])
def test_an_empty_file_is_refused_by_name(tmp_path, reader):
    read, name = READERS[reader]
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=re.escape(name)):
        read(tmp_path / name)


def test_an_empty_log_is_the_log_of_nothing(tmp_path):
    (tmp_path / "log.jsonl").touch()
    assert read_log(tmp_path) == []


@pytest.mark.parametrize("reader", [name for name in READERS if name != "resume"])
def test_a_folder_and_a_device_are_no_files(tmp_path, reader):
    read, name = READERS[reader]
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=f"{re.escape(name)} is no regular file"):
        read(tmp_path / name)
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to("/dev/zero")  # without an end: to read it whole would fill the memory
    with pytest.raises(OSError, match=f"{re.escape(name)} is no regular file"):
        read(tmp_path / name)


@pytest.mark.parametrize("reader", [name for name in READERS if name not in ("log", "resume")])
def test_a_missing_file_is_named(tmp_path, reader):
    read, name = READERS[reader]
    with pytest.raises(FileNotFoundError, match=re.escape(name)):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "line", ["[]", "3", "null", "{}", '{"step": "3"}', '{"step": -1}', '{"step": 1.5}', "{"]
)
def test_a_log_holds_entries_with_steps(tmp_path, line):
    write_log(tmp_path, [{"step": 1}])
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write(line + "\n" + '{"step": 2}\n')
    with pytest.raises(CheckpointError, match=r"log\.jsonl is no log of a run"):
        read_log(tmp_path)


def test_no_name_of_a_record_leads_out_of_the_folder(tmp_path, monkeypatch):
    (tmp_path / "records").mkdir()
    (tmp_path / "secret.json").write_text("{}")
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    for name in ("../secret", str(tmp_path / "secret")):
        with pytest.raises(FileNotFoundError, match="there is no recorded file"):
            load_record(name)


# -------------------------------------------------------------------------------------------------
# Checkpoints
# -------------------------------------------------------------------------------------------------


def make_trainer(folder: Path | None, model: Transformer | None = None, **changes) -> Trainer:
    return Trainer(
        model or make_model(),
        loss=teacher_forced_loss,
        batches=lambda epoch: [BATCH] * 3,
        schedule=lambda step: 1e-3,
        config=TrainingConfig(**dict(steps=2, evaluate_every=1, log_every=1) | changes),
        directory=folder,
    )


def test_a_compressed_checkpoint_is_not_unpacked(tmp_path):
    """torch.save compresses nothing, so a megabyte that claims to be a gigabyte is not ours."""
    save_checkpoint(tmp_path / "small.pt", {"model": {"weight": torch.zeros(1 << 20)}})
    with (
        zipfile.ZipFile(tmp_path / "small.pt") as small,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for entry in small.namelist():
            bomb.writestr(entry, small.read(entry))
    assert (tmp_path / "bomb.pt").stat().st_size < (tmp_path / "small.pt").stat().st_size / 100
    load_checkpoint(tmp_path / "small.pt")
    with pytest.raises(CheckpointError, match=r"bomb\.pt is no whole checkpoint \(ValueError\)"):
        load_checkpoint(tmp_path / "bomb.pt")


def spoil(state: dict, *path: str, value=None, remove: bool = False) -> dict:
    *way, last = path
    inner = state
    for name in way:
        inner = inner[name]
    if remove:
        del inner[last]
    else:
        inner[last] = value
    return state


@pytest.mark.parametrize(
    "change",
    [
        partial(spoil, remove=True, path=("optimizer",)),
        partial(spoil, remove=True, path=("scaler",)),
        partial(spoil, remove=True, path=("progress", "best")),
        partial(spoil, remove=True, path=("random",)),
        partial(spoil, value="three", path=("progress", "step")),
        partial(spoil, value=-3, path=("progress", "position")),
        partial(spoil, value=[], path=("progress",)),
        partial(spoil, value={}, path=("optimizer",)),
        partial(spoil, value=torch.zeros(3), path=("random",)),
    ],
    ids=lambda change: " ".join(map(str, change.keywords.values())),
)
def test_a_checkpoint_without_what_a_run_needs_is_named(tmp_path, change):
    make_trainer(tmp_path).fit()
    path = tmp_path / "checkpoint-00000002.pt"
    state = load_checkpoint(path)
    options = dict(change.keywords)
    spoil(state, *options.pop("path"), **options)
    del state["format"]
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=r"checkpoint-00000002\.pt cannot be resumed from"):
        make_trainer(tmp_path).resume()


def test_progress_in_a_checkpoint_sets_nothing_else(tmp_path):
    make_trainer(tmp_path).fit()
    path = tmp_path / "checkpoint-00000002.pt"
    state = load_checkpoint(path)
    state["progress"]["directory"] = "/elsewhere"
    save_checkpoint(path, {name: value for name, value in state.items() if name != "format"})
    trainer = make_trainer(tmp_path)
    assert trainer.resume() and trainer.step == 2 and trainer.directory == tmp_path


WRONG_WEIGHTS = {
    "none": None,
    "a number": 3,
    "a number for a weight": {"src_embedding.weight": 3},
    "a strange name": {"nobody.weight": torch.zeros(1)},
    "a name that is none": {3: torch.zeros(1)},
    "another shape": {"src_embedding.weight": torch.zeros(2, 2)},
    "whole numbers": {"src_embedding.weight": torch.zeros(len(VOCABULARY), 8, dtype=torch.long)},
}


@pytest.mark.parametrize("wrong", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_weights_that_do_not_fit_change_nothing(tmp_path, wrong):
    """Not even those that would fit: half of another model is worse than none of it."""
    model = make_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    weights = {**make_model(seed=1).state_dict(), **wrong} if isinstance(wrong, dict) else wrong
    with pytest.raises(CheckpointError, match=r"a\.pt (holds no weights|belongs to another model)"):
        set_weights(model, {"model": weights}, tmp_path / "a.pt")
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    "changes", [{"d_ff": 17}, {"n_layers": 2}, {"tie_embeddings": False}, {"bias": False}], ids=str
)
def test_another_models_file_changes_nothing(tmp_path, changes):
    save_weights(make_model(seed=1, **changes), tmp_path / "model.safetensors")
    model = make_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"model\.safetensors does not hold this model's weights: "):
        load_weights(model, tmp_path / "model.safetensors")
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


# -------------------------------------------------------------------------------------------------
# Saved translators
# -------------------------------------------------------------------------------------------------


def config_with(**changes) -> str:
    return json.dumps(asdict(make_model().config) | changes)


BAD_CONFIGS = {
    "an unknown key": config_with(colour="red"),
    "a missing key": json.dumps({"src_vocab_size": 20}),
    "a list": "[]",
    "a size as text": config_with(d_model="8"),
    "a flag as text": config_with(tie_embeddings="false"),
    "a size that is none": config_with(d_model=None),
    "a rate that is not a number": config_with(dropout=float("nan")),
    "an end that is padding": config_with(eos_id=0),
    "an unknown activation": config_with(activation="import os"),
    "deep": "[" * 100_000,
    "a number too large for Python to print": '{"d_model": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("text", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_configuration_is_named(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json is no "):
        Translator.load(folder)


@pytest.mark.parametrize(
    "claim", [{"d_model": 2**40}, {"n_layers": 10**12}, {"d_ff": 2**50}, {"max_length": 10**15}], ids=str
)
def test_a_configuration_cannot_ask_for_more_than_the_file_holds(folder, claim):
    """It is refused before the memory is taken; were it not, this test would not come back."""
    (folder / "config.json").write_text(config_with(**claim))
    with pytest.raises(
        CheckpointError, match=r"model\.safetensors is too small for the model of .*config\.json"
    ):
        Translator.load(folder)


def test_a_vocabulary_of_another_size_is_named(folder):
    Vocabulary.train(["o gato preto", "a casa"] * 3, 25).save(folder / "vocabulary.json")
    with pytest.raises(CheckpointError, match=r"vocabulary\.json does not fit: the model has"):
        Translator.load(folder)


def test_a_vocabulary_with_gaps_is_named(folder):
    content = json.loads((folder / "vocabulary.json").read_text())
    words = content["model"]["vocab"]
    words[max(words, key=words.get)] = 10**6  # the model has no such row
    (folder / "vocabulary.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"vocabulary\.json .*must be number \d+, not 1000000"):
        Translator.load(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocabulary.json"])
def test_a_translator_is_written_over_a_link_and_not_through_it(folder, tmp_path, name):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (folder / name).unlink()
    (folder / name).symlink_to(precious)
    Translator(make_model(), VOCABULARY).save(folder)
    assert precious.read_text() == "mine" and not (folder / name).is_symlink()
    Translator.load(folder)


@pytest.mark.parametrize("command", [["info"], ["translate", "o gato"]])
def test_the_command_line_says_in_one_line_which_file_is_bad(folder, capsys, command):
    (folder / "model.safetensors").write_bytes(b"cut" * 10_000)
    assert main([command[0], "--model", str(folder), *command[1:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"error: .*model\.safetensors does not hold .*\n", err)


# -------------------------------------------------------------------------------------------------
# Disks that are full, folders that cannot be written to
# -------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(Path, "write_text", lambda self, text, **names: open_(self, "w").write(text))

        def serialize_file(tensors, path, metadata=None):
            import safetensors

            Path(path).write_bytes(b"{")
            raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr("safetensors.torch.serialize_file", serialize_file)

    return fill


WRITERS = {
    "checkpoint": ("a.pt", lambda path: save_checkpoint(path, {"model": make_model().state_dict()})),
    "weights": ("a.safetensors", lambda path: save_weights(make_model(), path)),
    "record": ("a.json", lambda path: write_record(path, {"entry": "x" * 1000})),
    "log": ("log.jsonl", lambda path: write_log(path.parent, [{"step": n} for n in range(100)])),
    "vocabulary": ("vocabulary.json", VOCABULARY.save),
}


@pytest.mark.parametrize("before", [True, False], ids=["over a file", "a new file"])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_full_disk_is_told_with_the_files_name_and_leaves_the_old_file(tmp_path, full_disk, writer, before):
    name, write = WRITERS[writer]
    if before:
        write(tmp_path / name)
    kept = contents(tmp_path)
    full_disk()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / name))):
        write(tmp_path / name)
    assert contents(tmp_path) == kept


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_that_is_none_is_told_with_its_name(tmp_path, writer):
    name, write = WRITERS[writer]
    (tmp_path / "file").write_text("mine")
    for folder in ("file", "missing"):
        with pytest.raises(OSError, match=rf"{folder}.*{re.escape(name)}"):
            write(tmp_path / folder / name)
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "log"])
def test_a_folder_is_not_replaced_by_a_file(tmp_path, writer):
    name, write = WRITERS[writer]
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=re.escape(name)):
        write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).is_dir()


def test_a_write_that_fails_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*a\.txt'") as refusal:
        with atomic_file(tmp_path / "a.txt"):
            raise OSError(errno.ENOSPC, "No space left on device")
    assert refusal.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []


def test_a_translator_is_saved_whole_or_not_at_all(folder, monkeypatch):
    kept = contents(folder)

    def fail(self, path):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Vocabulary, "save", fail)  # the last of the three
    with pytest.raises(OSError, match=r"vocabulary\.json"):
        Translator(make_model(seed=1), VOCABULARY).save(folder)
    assert contents(folder) == kept


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    trainer = make_trainer(tmp_path)
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*log\.jsonl'"):
        trainer._log({"step": 1})


def test_a_run_goes_on_after_the_disk_was_full(tmp_path, monkeypatch):
    """The checkpoint that did not fit is not there, the one before it is whole, and nothing lies about."""
    whole = make_trainer(None, steps=4).fit()
    save, saved = torch.save, []

    def fail_at_the_third(state, file):
        saved.append(state)
        if len(saved) == 3:
            file.write(b"half a checkpoint")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    monkeypatch.setattr(transformer.training.torch, "save", fail_at_the_third)
    with pytest.raises(OSError, match=r"checkpoint-00000003\.pt"):
        make_trainer(tmp_path, steps=4).fit()
    monkeypatch.undo()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint-00000001.pt", "checkpoint-00000002.pt", "log.jsonl"}
    again = make_trainer(tmp_path, steps=4).fit()
    pairs = zip(again.model.parameters(), whole.model.parameters(), strict=True)
    assert again.step == 4 and all(torch.equal(a, b) for a, b in pairs)
