"""Files that are cut, foreign, hostile or cannot be written: refused by name, and nothing in them executed.

What is left out here stands in runs/test_trainer.py (runs that are cut off) and in language/test_corpora.py
(archives of corpora).
"""

from __future__ import annotations

import builtins
import errno
import json
import math
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import zipfile
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
import torch
from helpers import contents, summed

import transformer.files
import transformer.runs.checkpoints
import transformer.runs.folder
from transformer import (
    Trainer,
    TrainingConfig,
    Transformer,
    TransformerConfig,
    Translator,
    Vocabulary,
    load_record,
    teacher_forced_loss,
)
from transformer.commands.main import main
from transformer.files import CheckpointError, atomic_file, read_record, write_record
from transformer.runs.checkpoints import (
    CHECKPOINT_FORMAT,
    DamagedCheckpointError,
    load_checkpoint,
    save_checkpoint,
)
from transformer.runs.checkpoints import _seal as seal
from transformer.runs.folder import RunFolder, append_log, read_log, run_facts, write_log
from transformer.training import record_path
from transformer.weights import load_weights, save_weights, set_weights

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


# -------------------------------------------------------------------------------------------------
# Every reader, and everything that is not the file it expects
# -------------------------------------------------------------------------------------------------


def read_weights(path: Path) -> None:
    load_weights(make_model(), path)


def resume(path: Path) -> None:
    before = path.read_bytes()
    try:
        make_trainer(path.parent).fit()
    finally:  # nothing has begun anew
        assert contents(path.parent) == {path.name: before, "run.lock": b""}


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


@pytest.mark.skipif(os.name == "nt", reason="needs links and devices of Unix")
@pytest.mark.parametrize("reader", [name for name in READERS if name != "resume"])
def test_a_folder_and_a_device_are_no_files(tmp_path, reader):
    read, name = READERS[reader]
    (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=f"{re.escape(name)} is not a regular file"):
        read(tmp_path / name)
    (tmp_path / name).rmdir()
    (tmp_path / name).symlink_to("/dev/zero")  # without an end: to read it whole would fill the memory
    with pytest.raises(OSError, match=f"{re.escape(name)} is not a regular file"):
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
    with pytest.raises(CheckpointError, match=r"log\.jsonl is not the log of a run"):
        read_log(tmp_path)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ('"rate"', '"lr"', "'rate' is missing"),
        ('"loss"', '"Loss"', "'loss' is missing"),
        ('"tokens"', '"n"', "'tokens' is missing"),
        ('"norm": 1', '"norm": "1"', "norm must be a number, not str"),
        ('"step": 2', '"schritt": 2', "step must be an int, not NoneType"),
    ],
)
def test_a_log_with_other_names_is_refused_by_line(tmp_path, old, new, said):
    updates = dict(epoch=0, loss=2.5, rate=0.1, norm=1, tokens=9, seconds=0.5)
    first, second = (json.dumps({"step": step} | updates) for step in (1, 2))  # as logs without checksums are
    (tmp_path / "log.jsonl").write_text(first + "\n" + second.replace(old, new) + "\n")
    with pytest.raises(CheckpointError, match=rf"log\.jsonl is not the log of a run: line 2: {said}"):
        read_log(tmp_path)


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
    seal(tmp_path / "bomb.pt")
    with pytest.raises(CheckpointError, match=r"bomb\.pt is not a .* read \(ValueError: torch\.save compr"):
        load_checkpoint(tmp_path / "bomb.pt")


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def refuses(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=re.escape(f"{path} is not a whole checkpoint")):
        load_checkpoint(path)
    return True


@pytest.mark.slow
def test_no_bit_of_a_checkpoint_can_be_flipped(tmp_path):
    """Wherever it stands. Of one in a zip's table of contents torch made numbers that nobody had written."""
    make_trainer(tmp_path, average=0.5).fit()
    for path, n_bits in ((tmp_path / "checkpoint-00000002.pt", 1000), (tmp_path / "best.pt", 100)):
        if path.name == "best.pt":
            save_checkpoint(path, {"model": make_model().state_dict()})
        content, chance = path.read_bytes(), random.Random(0)
        last = 8 * len(content)
        for bit in [*chance.sample(range(last), n_bits), *chance.sample(range(last - 2400, last), n_bits)]:
            assert refuses(path, flipped(content, bit))
        for _ in range(100):
            place = chance.randrange(len(content) - 4096)
            assert refuses(path, content[:place] + bytes(4096) + content[place + 4096 :])
        path.write_bytes(content)
        load_checkpoint(path)


UPDATES = {"step": 2, "epoch": 0, "loss": 2.5, "rate": 1e-3, "norm": 1.25, "tokens": 90, "seconds": 0.5}
WRITTEN = {
    "weights": ("a.safetensors", lambda path: save_weights(make_model(), path, torch.float16)),
    "record": ("a.json", lambda path: write_record(path, {"recipe": {"seed": 3}, "scores": [27.5, "pão"]})),
    "log": ("log.jsonl", lambda path: write_log(path.parent, [UPDATES, {"step": 2, "loss": 2.0}])),
}


def read_again(path: Path):
    """What one of them tells, in a form that can be compared."""
    if path.suffix == ".safetensors":
        load_weights(model := make_model(seed=1), path)
        return [p.tolist() for p in model.parameters()]
    return read_log(path.parent) if path.suffix == ".jsonl" else read_record(path)


@pytest.mark.parametrize("kind", WRITTEN)
def test_no_bit_of_weights_records_and_logs_can_be_flipped_unnoticed(tmp_path, kind):
    """Refused by name; or, as in spaces and in the name of the checksum, of no consequence."""
    name, write = WRITTEN[kind]
    path = tmp_path / name
    write(path)
    content, whole, refused = path.read_bytes(), read_again(path), 0
    bits = range(8 * len(content))
    for bit in bits if len(bits) < 10_000 else random.Random(0).sample(bits, 2000):
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
    assert refused > 0.7 * min(len(bits), 2000)


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
    with pytest.raises(CheckpointError, match='if you have changed it yourself, delete the entry "sha256"'):
        read_record(tmp_path / "a.json")
    (tmp_path / "a.json").write_text(re.sub(r",\s*\"sha256.*", "}", text, flags=re.DOTALL))
    assert read_record(tmp_path / "a.json") == {"seed": 4}
    assert "sha256" not in load_record("toy") and read_record(record_path("toy.json")) == load_record("toy")


def test_a_log_has_no_other_lines_than_those_that_end_in_a_line_feed(tmp_path):
    append_log(tmp_path, {"step": 1})
    append_log(tmp_path, {"step": 2})
    one, two = (tmp_path / "log.jsonl").read_bytes().split(b"\n")[:2]
    for end in (b"\x0b", b"\x0c", b"\x1c", "\u2028".encode(), b"J"):  # what else text may be split at
        (tmp_path / "log.jsonl").write_bytes(one + end + two + b"\n")
        with pytest.raises(CheckpointError, match="line 1: "):
            read_log(tmp_path)
        (tmp_path / "log.jsonl").write_bytes(one + b"\n" + two + end)
        with pytest.raises(CheckpointError, match="line 2 has no end"):
            read_log(tmp_path)
    (tmp_path / "log.jsonl").write_bytes(one + b"\n" + two)  # cut off exactly there
    assert read_log(tmp_path) == [{"step": 1}]


def test_a_checkpoint_is_a_file_that_torch_itself_can_read(tmp_path):
    save_checkpoint(tmp_path / "a.pt", {"x": torch.arange(3)})
    assert torch.equal(torch.load(tmp_path / "a.pt", weights_only=True)["x"], torch.arange(3))
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None


def test_a_flipped_bit_is_told_of_and_the_checkpoint_before_is_taken(tmp_path):
    whole = make_trainer(None, steps=3).fit()
    make_trainer(tmp_path).fit()
    newest, best = tmp_path / "checkpoint-00000002.pt", tmp_path / "best.pt"
    newest.write_bytes(flipped(newest.read_bytes(), 8 * newest.read_bytes().index(b"PK\x05\x06") // 3))
    with pytest.warns(UserWarning, match=r"00000002\.pt is not a whole .*; going on from .*00000001\.pt"):
        again = make_trainer(tmp_path, steps=3).fit()
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
    save_checkpoint(best, {"model": make_model(seed=5).state_dict()})
    place = best.read_bytes().index(make_model(seed=5).output.weight.detach().numpy().tobytes())
    best.write_bytes(flipped(best.read_bytes(), 8 * place + 30))
    with pytest.raises(CheckpointError, match=r"best\.pt is not a whole checkpoint: its checksum is wrong"):
        again.keeper.load_best()
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))


def folded(depth: int) -> list:
    """Ten to the power of `depth` lists, in some hundred bytes."""
    value: list = []
    for _ in range(depth):
        value = [value] * 10
    return value


def looped() -> list:
    value: list = []
    value.append(value)
    return value


HOSTILE = {
    "folded": folded(40),
    "a loop": looped(),
    "a dictionary": {"a": {"b": folded(40)}},
    "numbers that are not there": {"x": torch.zeros(1).expand(10**12)},
    "numbers that are nowhere": {"x": torch.empty(10**12, device="meta")},
}


@pytest.mark.parametrize("name", ["format", "model", "settings", "updater", "random", "journal", "scores"])
@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_small_checkpoint_that_unfolds_without_an_end_is_refused(tmp_path, name, hostile):
    """At once: were it printed or copied, this test would not come back."""
    path = tmp_path / "checkpoint-00000002.pt"
    torch.save({"format": CHECKPOINT_FORMAT, name: hostile}, path)
    seal(path)
    assert path.stat().st_size < 10_000
    for read in (load_checkpoint, lambda path: make_trainer(path.parent, average=0.5).fit()):
        with pytest.raises(CheckpointError, match=r"00000002\.pt is not a .* that can be read") as refused:
            read(path)
        assert len(str(refused.value)) < 600


def repacked(path: Path, changes: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as old:
        parts = {entry.filename: old.read(entry) for entry in old.infolist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in parts.items():
            new.writestr(name, changes.get(name.partition("/")[2], content))
    seal(path)


def test_a_checkpoint_of_lists_in_lists_is_refused(tmp_path):
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"model": {}})
    repacked(path, {})
    assert load_checkpoint(path)["model"] == {}
    repacked(path, {"data.pkl": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."})
    with pytest.raises(CheckpointError, match=r"a\.pt is not a checkpoint that can be read \(RecursionError"):
        load_checkpoint(path)


def test_entries_that_overlap_are_not_unpacked(tmp_path):
    """One megabyte, and a table of contents that names it sixty times."""
    path = tmp_path / "a.pt"
    save_checkpoint(path, {"model": {"weight": torch.rand(1 << 18)}})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    table = content[start : content.index(b"PK\x06\x06")]
    records = [b"PK\x01\x02" + record for record in table.split(b"PK\x01\x02")[1:]]
    (large,) = [record for record in records if b"data/0" in record]
    records += [large.replace(b"data/0", b"data/" + bytes([n])) for n in range(49, 112)]
    table = b"".join(records)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, len(records), len(records), len(table), start, 0)
    path.write_bytes(content[:start] + table + end)
    seal(path)
    assert path.stat().st_size < 1.1 * len(content)
    with pytest.raises(CheckpointError, match=r"a\.pt is not a .* \(ValueError: its entries claim more than"):
        load_checkpoint(path)


def spoil(state: dict, path: tuple[str, ...], value=None, remove: bool = False) -> dict:
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
        partial(spoil, remove=True, path=("updater", "optimizer")),
        partial(spoil, remove=True, path=("updater", "scaler")),
        partial(spoil, remove=True, path=("scores", "best")),
        partial(spoil, remove=True, path=("random",)),
        partial(spoil, value="three", path=("updater", "step")),
        partial(spoil, value=-3, path=("stream", "position")),
        partial(spoil, value=[], path=("journal",)),
        partial(spoil, value={}, path=("updater", "optimizer")),
        partial(spoil, value=torch.zeros(3), path=("random",)),
    ],
    ids=lambda change: " ".join(map(str, change.keywords.values())),
)
def test_a_checkpoint_without_what_a_run_needs_is_named(tmp_path, change):
    make_trainer(tmp_path).fit()
    path = tmp_path / "checkpoint-00000002.pt"
    state = load_checkpoint(path)
    change(state)
    del state["format"]
    save_checkpoint(path, state)
    with pytest.raises(CheckpointError, match=r"checkpoint-00000002\.pt cannot be resumed from"):
        make_trainer(tmp_path).keeper.resume()


@pytest.mark.parametrize("part", ["updater", "stream", "scores", "journal", "keeper"])
def test_what_a_part_of_a_checkpoint_does_not_know_sets_nothing(tmp_path, part):
    make_trainer(tmp_path).fit()
    path = tmp_path / "checkpoint-00000002.pt"
    state = load_checkpoint(path)
    others = {"folder": "/elsewhere", "schedule": 3, "config": None, "updater": None}
    state[part] |= others
    save_checkpoint(path, {name: value for name, value in state.items() if name != "format"})
    trainer = make_trainer(tmp_path)
    attributes = vars(getattr(trainer, part))
    before = {name: attributes.get(name) for name in others}
    assert trainer.keeper.resume()
    assert all(attributes.get(name) is before[name] for name in others)
    assert trainer.keeper.folder.path == tmp_path


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
    "an unknown key": config_with(color="red"),
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
    with pytest.raises(CheckpointError, match=r"config\.json is not a "):
        Translator.load(summed(folder))


@pytest.mark.parametrize(
    "claim", [{"d_model": 2**40}, {"n_layers": 10**12}, {"d_ff": 2**50}, {"max_length": 10**15}], ids=str
)
def test_a_configuration_cannot_ask_for_more_than_the_file_holds(folder, claim):
    """It is refused before the memory is taken; were it not, this test would not come back."""
    (folder / "config.json").write_text(config_with(**claim))
    refused = r"does not hold this model's weights: it has [\d,]+ |asks for [\d,]+ numbers of positions, more"
    with pytest.raises(CheckpointError, match=refused):
        Translator.load(summed(folder))


def test_a_vocabulary_of_another_size_is_named(folder):
    Vocabulary.train(["o gato preto", "a casa"] * 3, 25).save(folder / "vocabulary.json")
    with pytest.raises(CheckpointError, match=r"vocabulary\.json does not fit: the model has"):
        Translator.load(summed(folder))


def test_a_vocabulary_with_gaps_is_named(folder):
    content = json.loads((folder / "vocabulary.json").read_text())
    words = content["model"]["vocab"]
    words[max(words, key=words.get)] = 10**6  # the model has no such row
    (folder / "vocabulary.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"vocabulary\.json .*entry \d+ is .* with number 1000000"):
        Translator.load(summed(folder))


@pytest.mark.skipif(os.name == "nt", reason="needs links and devices of Unix")
@pytest.mark.parametrize("name", [".config.json.part", ".config.json.0123456789abcdef.part"])
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(tmp_path, monkeypatch, name):
    """Not even if its name has been guessed."""
    monkeypatch.setattr(
        transformer.files.secrets, "token_hex", lambda n: "0123456789abcdef"[: 2 * n]
    )
    precious, path = tmp_path / "precious", tmp_path / "config.json"
    precious.write_text("mine")
    (tmp_path / name).symlink_to(precious)
    try:
        write_record(path, {"theirs": 1})
        assert read_record(path) == {"theirs": 1}
    except FileExistsError:
        assert not path.exists()
    assert precious.read_text() == "mine"


def test_no_two_unfinished_files_have_the_same_name(tmp_path):
    with atomic_file(tmp_path / "a") as one, atomic_file(tmp_path / "a") as two:
        assert one != two and one.parent == two.parent == tmp_path


@pytest.mark.skipif(os.name == "nt", reason="needs links and devices of Unix")
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
    assert main([command[0], "--model", str(summed(folder)), *command[1:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.fullmatch(r"error: .*model\.safetensors is not a file of weights .*\n", err)


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
def test_a_full_disk_is_told_with_the_files_name_and_leaves_the_old_file(tmp_path, full_disk, writer, before):
    name, write = WRITERS[writer]
    if before:
        write(tmp_path / name)
    kept = contents(tmp_path)
    full_disk()
    with pytest.raises(OSError, match=re.escape(str(tmp_path / name))):
        write(tmp_path / name)
    assert contents(tmp_path) == kept


@pytest.mark.skipif(os.name == "nt", reason="such modes are those of Unix")
@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007], ids=oct)
@pytest.mark.parametrize("writer", WRITERS)
def test_who_may_read_a_file_is_for_the_umask_to_say(tmp_path, writer, umask):
    name, write = WRITERS[writer]
    before = os.umask(umask)
    try:
        write(tmp_path / name)
    finally:
        os.umask(before)
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


LIMITED = """
import resource, sys, torch
from transformer.runs.checkpoints import save_checkpoint
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    save_checkpoint(sys.argv[1], {"x": torch.zeros(10_000)})
except OSError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="such limits are those of Unix")
def test_a_file_that_the_system_does_not_take_is_told_in_the_systems_words(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "a.pt")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=120)
    assert f"{os.strerror(errno.EFBIG)}: '{tmp_path / 'a.pt'}'" in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_was_writing_is_removed_and_nothing_else(tmp_path):
    make_trainer(tmp_path).fit()
    for name in ("checkpoint-00000002.pt", "best.pt", "log.jsonl", "config.json"):
        (tmp_path / f".{name}.0123.part").write_text("half")
    make_trainer(tmp_path, steps=3).fit()
    assert [path.name for path in tmp_path.glob(".*")] == [".config.json.0123.part"]


@pytest.mark.slow
def test_equal_weights_make_equal_files(tmp_path):
    """In processes of their own: a table in another order would differ only there."""
    code = "import sys, torch; from torch import nn; from transformer.weights import save_weights\n"
    code += "torch.manual_seed(0); m = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))\n"
    code += "m[1].weight = m[2].weight = m[0].weight; m[3].bias = m[0].bias\n"
    code += "save_weights(m, sys.argv[1])"
    for name in "abc":
        command = [sys.executable, "-c", code, str(tmp_path / name)]
        subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=120)
    assert len(set(contents(tmp_path).values())) == 1


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_log_that_cannot_be_written_is_named(tmp_path):
    trainer = make_trainer(tmp_path)
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*log\.jsonl'"):
        trainer.journal.write({"step": 1})


def test_a_run_goes_on_after_the_disk_was_full(tmp_path, monkeypatch):
    """The checkpoint that did not fit is not there, the one before it is whole, and nothing lies about."""
    whole = make_trainer(None, steps=4).fit()
    save, saved = torch.save, []

    def fail_from_the_fourth_on(state, file):
        saved.append(state)
        if len(saved) >= 4:  # the first is that of step 0
            file.write(b"half a checkpoint")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    monkeypatch.setattr(transformer.runs.checkpoints.torch, "save", fail_from_the_fourth_on)
    with pytest.raises(OSError, match=r"checkpoint-00000003\.pt"):
        make_trainer(tmp_path, steps=4).fit()
    monkeypatch.undo()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"checkpoint-00000001.pt", "checkpoint-00000002.pt", "log.jsonl", "run.lock"}
    again = make_trainer(tmp_path, steps=4).fit()
    pairs = zip(again.model.parameters(), whole.model.parameters(), strict=True)
    assert again.step == 4 and all(torch.equal(a, b) for a, b in pairs)


# -------------------------------------------------------------------------------------------------
# What comes back
# -------------------------------------------------------------------------------------------------


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


def test_checkpoint_comes_back(tmp_path):
    weights = make_model().state_dict()
    state = {"model": weights, "n": 3, "best": -math.inf, "deep": {"a": [1.5]}}
    save_checkpoint(tmp_path / "a.pt", state)
    loaded = load_checkpoint(str(tmp_path / "a.pt"))
    assert (loaded["n"], loaded["best"], loaded["deep"]) == (3, -math.inf, {"a": [1.5]})
    assert all(torch.equal(loaded["model"][name], t) for name, t in weights.items())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9, 0.99, 0.9999])
def test_truncated_checkpoint_is_named(tmp_path, share):
    path = tmp_path / "cut.pt"
    save_checkpoint(path, {"model": make_model().state_dict()})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(CheckpointError, match=r"cut\.pt is not a whole checkpoint: its checksum is wrong$"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("a text"),
        lambda path: torch.save({"format": "another", "model": {}}, path),
        lambda path: torch.save(torch.zeros(3), path),
        lambda path: path.write_bytes(pickle.dumps({"format": "transformer-checkpoint-1"})),
        lambda path: path.write_bytes(pickle.dumps(Malice())),
        lambda path: torch.save({"format": "transformer-checkpoint-1", "x": Malice()}, path),
        lambda path: save_checkpoint(path, {"x": Malice()}),  # with a checksum that is right
    ],
)
def test_foreign_file_is_refused_and_never_executed(tmp_path, monkeypatch, write):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "foreign.pt")
    with pytest.raises(CheckpointError, match="foreign.pt is not a (whole )?checkpoint"):
        load_checkpoint(tmp_path / "foreign.pt")
    assert not (tmp_path / "executed").exists()


def test_missing_checkpoint_and_another_model_s(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.pt"):
        load_checkpoint(tmp_path / "none.pt")
    state = {"model": make_model(d_model=4).state_dict()}
    with pytest.raises(CheckpointError, match="wide.pt belongs to another model"):
        set_weights(make_model(), state, tmp_path / "wide.pt")


def test_log_comes_back_without_a_line_that_was_cut_off(tmp_path):
    assert read_log(tmp_path) == []
    entries = [{"step": 1, "loss": 2.5}, {"step": 2, "loss": math.inf}]
    write_log(tmp_path, entries)
    with open(tmp_path / "log.jsonl", "a", encoding="utf8") as file:
        file.write('{"step": 3, "lo')
    assert read_log(str(tmp_path)) == entries


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 0.0), (torch.float16, 1e-3)])
@pytest.mark.parametrize("tie", [True, False])
def test_weights_come_back_in_any_dtype_with_shared_tables_once(tmp_path, dtype, atol, tie):
    path = tmp_path / "model.safetensors"
    model = make_model(tie_embeddings=tie)
    save_weights(model, path, dtype)
    for p, q in zip(model.parameters(), make_model(tie_embeddings=tie).parameters()):
        assert p.dtype == torch.float32 and torch.equal(p, q)  # the model itself was not touched

    n_bytes = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    assert n_bytes < path.stat().st_size < n_bytes + 8000

    other = make_model(seed=1, tie_embeddings=tie).double()
    load_weights(other, path)
    assert (other.output.weight is other.src_embedding.weight) == tie
    for p, q in zip(model.parameters(), other.parameters()):
        assert q.dtype == torch.float64 and torch.allclose(p.double(), q, rtol=0, atol=atol)


def test_weights_that_are_no_numbers_come_back_as_well(tmp_path):
    """They are a run's own: that a number differs from itself is not taken for another model."""
    model, other = make_model(), make_model(seed=1)
    with torch.no_grad():
        model.src_embedding.weight[3, 2] = math.nan
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert torch.equal(other.output.weight.isnan(), model.output.weight.isnan())
    assert other.output.weight.isnan().sum() == 1


def test_weights_that_do_not_fit_are_named(tmp_path):
    path = tmp_path / "model.safetensors"
    save_weights(make_model(), path)
    with pytest.raises(CheckpointError, match="model.safetensors does not hold this model's"):
        load_weights(make_model(d_ff=20), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="model.safetensors does not hold this model's"):
        load_weights(make_model(), path)
    with pytest.raises(FileNotFoundError, match="none.safetensors"):
        load_weights(make_model(), tmp_path / "none.safetensors")


# -------------------------------------------------------------------------------------------------
# Records of runs
# -------------------------------------------------------------------------------------------------


def test_run_facts_say_what_is_needed_to_repeat_a_run(monkeypatch):
    command = ["/somewhere/bin/python3", "-m", "transformer", "train", "a b"]
    monkeypatch.setattr(sys, "orig_argv", command)
    facts = run_facts(torch.device("cpu"))
    assert facts["command"] == "python -m transformer train 'a b'"
    assert facts["versions"]["torch"] == metadata.version("torch")
    assert facts["device"].startswith("cpu: ") and "threads" in facts["device"]
    assert facts["date"].endswith("+00:00")
    assert facts["processor"]["kernels"] == torch.backends.cpu.get_cpu_capability()
    assert facts["processor"]["model"] and facts["processor"]["architecture"]
    assert facts == json.loads(json.dumps(facts))
    command = ["/x/python", "-m", "ipykernel_launcher", "-f", "/x/kernel.json"]
    monkeypatch.setattr(sys, "orig_argv", command)
    assert run_facts("cpu")["command"] == "a cell of a notebook"


def test_the_commit_is_the_package_s_own_or_none(monkeypatch, tmp_path):
    package = tmp_path / "transformer"
    package.mkdir()
    monkeypatch.setattr(transformer.runs.folder.resources, "files", lambda name: package)
    git = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]

    assert run_facts("cpu")["commit"] == ""  # no repository at all
    git(["git", "init", "-q"])
    git(["git", *identity, "commit", "-q", "--allow-empty", "-m", "another's"])
    (package / "a.py").write_text("1\n")
    assert run_facts("cpu")["commit"] == ""  # a repository that does not hold the package
    git(["git", "add", "."])
    git(["git", *identity, "commit", "-q", "-m", "ours"])
    head = git(["git", "rev-parse", "HEAD"]).stdout.strip()
    assert run_facts("cpu")["commit"] == head
    (package / "a.py").write_text("2\n")
    assert run_facts("cpu")["commit"] == head + "+"


def test_a_record_comes_back(tmp_path):
    record = {"score": 0.5, "words": ["pão"]}
    write_record(tmp_path / "toy.json", record)
    assert read_record(tmp_path / "toy.json") == record


def test_weights_too_large_for_their_format_are_refused(tmp_path):
    model, path = torch.nn.Linear(2, 2), tmp_path / "model.safetensors"
    torch.nn.init.constant_(model.weight, 1e6)
    with pytest.raises(ValueError, match=r"weight holds 1e\+06, and .* of torch.float16 is 6.55e\+04"):
        save_weights(model, path, torch.float16)
    assert not path.exists()
    with pytest.raises(ValueError, match="the largest number of torch.float8_e4m3fn is 448"):
        save_weights(model, path, torch.float8_e4m3fn)
    model.register_buffer("nothing", torch.zeros(0))
    save_weights(model, path, torch.bfloat16)


# -------------------------------------------------------------------------------------------------
# The folder of a run
# -------------------------------------------------------------------------------------------------


def test_a_folder_keeps_the_newest_checkpoints_up_to_a_step(tmp_path):
    folder = RunFolder(tmp_path)
    for step in (0, 4, 8, 12):
        folder.checkpoint(step).write_text("a checkpoint")
    folder.tidy(8, keep=2)
    assert [int(path.stem[-8:]) for path in folder.checkpoints()] == [4, 8, 12]


def test_a_copy_of_a_checkpoint_under_another_name_is_not_one_of_them(tmp_path):
    folder = RunFolder(tmp_path)
    folder.checkpoint(4).write_text("a checkpoint")
    for name in ("checkpoint-backup.pt", "checkpoint-00000002 (copy).pt", "checkpoint-best.pt"):
        (tmp_path / name).write_text("a copy")
    assert folder.checkpoints() == [folder.checkpoint(4)]
    folder.tidy(4, keep=1)
    assert (tmp_path / "checkpoint-backup.pt").exists()


def test_a_folder_is_held_by_one_and_may_be_held_twice_by_it(tmp_path):
    folder = RunFolder(tmp_path / "new")
    with folder.locked(), folder.locked():
        with pytest.raises(BlockingIOError, match="new is in use: another process is training there"):
            with RunFolder(tmp_path / "new").locked():
                pass
    with RunFolder(tmp_path / "new").locked():
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.skipif(os.name == "nt", reason="its locks are of another kind")
def test_a_file_system_without_locks_is_refused_in_one_sentence(tmp_path, monkeypatch, code):
    def flock(*given):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", flock)
    folder = tmp_path / "runs" / "mine"
    for go_on in (Trainer.fit, lambda trainer: trainer.keeper.resume()):
        with pytest.raises(OSError, match="and without a lock two runs could meet there: choose another"):
            go_on(make_trainer(folder))
        with pytest.raises(OSError, match=re.escape(f"{folder} cannot be locked ({os.strerror(code)}), ")):
            go_on(make_trainer(folder))
        assert list(tmp_path.iterdir()) == []


def test_a_folder_made_for_a_lock_goes_with_it_unless_something_is_in_it(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "mine")
    with folder.locked():
        with folder.locked():
            assert (folder.path / "run.lock").exists()
        assert (folder.path / "run.lock").exists()
    assert list(tmp_path.iterdir()) == []
    with folder.locked():
        (folder.path / "notes.txt").write_text("mine")
    assert contents(folder.path) == {"notes.txt": b"mine"}
    with pytest.raises(KeyError), folder.locked():
        save_checkpoint(folder.checkpoint(0), {})
        raise KeyError
    assert contents(folder.path).keys() == {"notes.txt", "run.lock", "checkpoint-00000000.pt"}


def test_a_line_is_added_to_a_log(tmp_path):
    append_log(tmp_path, {"step": 1})
    append_log(str(tmp_path), {"step": 2, "loss": 0.5})
    assert read_log(tmp_path) == [{"step": 1}, {"step": 2, "loss": 0.5}]


@pytest.mark.parametrize(
    "raised, lack",
    [
        (MemoryError(), MemoryError),
        (OSError(), OSError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError),  # torch's own
    ],
    ids=str,
)
def test_a_full_memory_or_a_failing_disk_is_no_damage(tmp_path, monkeypatch, raised, lack):
    def fail(*arguments, **options):
        raise raised

    save_checkpoint(tmp_path / "state.pt", {"step": 1})
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(lack):
        load_checkpoint(tmp_path / "state.pt")
