"""Translators by their name on the hub of Hugging Face, for which a folder stands here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import huggingface_hub
import pytest
from helpers import FILES
from huggingface_hub import errors

from transformer import Translator
from transformer.__main__ import main
from transformer.exchange.translators import load_translator
from transformer.files import CheckpointError
from transformer.language.folder import pretrained_folder

SENTENCE, GIRL = "A menina gosta do gato preto.", "the girl likes the black cat."


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """The folder from which what is fetched comes; the packaged translator lies there as someone/phrases."""
    store = tmp_path / "hub"

    def snapshot_download(repo_id, *, allow_patterns):
        if not (store / repo_id).is_dir():
            raise errors.LocalEntryNotFoundError("nothing here\n\nand no network")
        kept = tmp_path / "cache" / repo_id
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for pattern in allow_patterns:
            for path in (store / repo_id).glob(pattern):
                shutil.copy(path, kept)
        return str(kept)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    Translator.load("phrases").save(store / "someone" / "phrases")
    return store


@pytest.mark.slow
def test_a_name_is_fetched_and_translates_the_same_unless_it_is_a_folder(hub, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone" / "mine").mkdir(parents=True)
    assert pretrained_folder("someone/mine") == Path("someone/mine")
    assert load_translator("someone/phrases").translate([SENTENCE]) == [GIRL]
    assert main(["translate", "--model", "someone/phrases", SENTENCE]) == 0
    assert capsys.readouterr().out == f"{GIRL}\n"
    assert main(["info", "--model", "someone/phrases"]) == 0
    assert "d_model: 128" in capsys.readouterr().out


def test_only_what_executes_nothing_is_fetched_and_it_is_checked_like_any_folder(hub):
    folder = hub / "someone" / "phrases"
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "code.py").write_bytes(b"print()")
    assert {path.name for path in pretrained_folder("someone/phrases").iterdir()} == {*FILES, "SHA256SUMS"}
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"n_heads": 4', '"n_heads": 8'))
    with pytest.raises(CheckpointError, match="config.json cannot be used"):
        load_translator("someone/phrases")


def test_a_hub_that_does_not_answer_is_said_in_one_line(monkeypatch, capsys):
    def fail(*given, **named):
        raise errors.LocalEntryNotFoundError("no copy\nand no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert main(["translate", "--model", "someone/phrases", "a"]) == 2
    said = capsys.readouterr().err
    where = "no folder someone/phrases is here, and on the Hugging Face hub"
    assert said == f"error: {where}: no copy and no network\n"


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub, or the extra 'text'"):
        load_translator("someone/phrases")
