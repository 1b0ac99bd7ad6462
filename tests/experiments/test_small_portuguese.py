"""The phrases grammar: it writes the corpus, and tells its own sentences from others."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from experiments.recognizer import accepts
from experiments.small_portuguese import SENTENCES, Dice, write_phrases
from transformer.training import record_path


@pytest.mark.slow
def test_the_grammar_writes_the_file_that_the_package_carries(tmp_path):
    """The text byte for byte; how it is compressed may differ between versions of the compressor."""
    path, carried = tmp_path / "phrases.tsv.gz", record_path("phrases.tsv.gz")
    write_phrases(path)
    written = path.read_bytes()
    assert gzip.decompress(written) == gzip.decompress(carried.read_bytes())
    assert written[:8] == carried.read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name, no date
    assert carried.stat().st_size < 2_000_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", dict.fromkeys(SENTENCES), ids=lambda kind: kind.__name__)
def test_what_is_drawn_is_accepted(kind):
    assert accepts(kind(Dice(1))[1])


@pytest.mark.parametrize(
    "sentence",
    ["havia algumas galinhas no mercado .", "elas perderam-na .", "o livro é novo , mas a ana não o lê ."],
)
def test_choices_that_are_not_said_do_not_hide_a_sentence(sentence):
    assert accepts(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "a menina gosta do gato preto",  # without its mark
        "a menina  gosta do gato preto .",
        "a menina gosto do gato preto .",
        "a menina gosta do gato preta .",
        "a menina gosta de o gato preto .",
        "aquele gato está sujo , e a joana bebeu-o .",
    ],
)
def test_what_the_grammar_cannot_draw_is_refused(sentence):
    assert not accepts(sentence)


def test_the_grammar_judges_the_speaker_as_chapter_15_does():
    """It accepts the first two sentences that the cell printed."""
    chapter = json.loads(
        (Path(__file__).parents[2] / "book" / "15-since-2017.ipynb").read_text(encoding="utf8")
    )
    printed = next(cell for cell in chapter["cells"] if cell["id"] == "speak")["outputs"][0]["text"]
    said = re.findall(r"^  (.+) \| (.+)$", "".join(printed), re.MULTILINE)
    assert [accepts(" ".join(parts)) for parts in said] == [True, True, False, False]
