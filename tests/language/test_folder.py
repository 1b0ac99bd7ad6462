"""Saved translators that are cut, foreign or hostile are refused by the file."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers import contents, summed
from small import VOCABULARY, make_model

from transformer import (
    Translator,
    Vocabulary,
)
from transformer.files import CheckpointError


@pytest.fixture
def folder(tmp_path) -> Path:
    """A saved translator."""
    Translator(make_model(), VOCABULARY).save(tmp_path / "kept")
    return tmp_path / "kept"


def config_with(**changes) -> str:
    return json.dumps(asdict(make_model().config) | changes)


BAD_CONFIGS = {
    "an unknown key": config_with(color="red"),
    "a missing key": json.dumps({"src_vocab_size": 20}),
    "a list": "[]",
    "a size as text": config_with(d_model="8"),
    "an unknown activation": config_with(activation="import os"),
    "deep": "[" * 100_000,
    "a number too large for Python to print": '{"d_model": ' + "9" * 5000 + "}",
}


@pytest.mark.slow
@pytest.mark.parametrize("text", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_configuration_is_named(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json cannot be used: "):
        Translator.load(summed(folder))


def test_a_vocabulary_of_another_size_is_named(folder):
    Vocabulary.train(["o gato preto", "a casa"] * 3, 25).save(folder / "vocabulary.json")
    with pytest.raises(CheckpointError, match=r"vocabulary\.json cannot be used: the model has"):
        Translator.load(summed(folder))


@pytest.mark.slow
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


def test_a_translator_is_saved_whole_or_not_at_all(folder, monkeypatch):
    kept = contents(folder)

    def fail(self, path):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Vocabulary, "save", fail)  # the last of the three
    with pytest.raises(OSError, match=r"vocabulary\.json"):
        Translator(make_model(seed=1), VOCABULARY).save(folder)
    assert contents(folder) == kept
