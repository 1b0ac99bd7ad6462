"""The report on a trained translator: by hand, by value, and on the records of the book."""

import sys
from pathlib import Path

import pytest
import torch
from helpers import PAIRS, corpus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import experiments.report
from experiments.report import (
    SWAPS,
    analyse_translations,
    crosses_over,
    examine,
    load_sentences,
    main,
)
from transformer import Translator
from transformer.files import read_record, write_record
from transformer.language.corpora import Pair
from transformer.language.scores import sentence_scores
from transformer.language.translator import Alignment, Search, tune_search
from transformer.training import load_record


def test_analysis_counts_by_hand():
    train = [Pair("o gato vê o gato", "the cat sees the cat")] * 2 + [Pair("raro", "rare")]
    pairs = [Pair("o gato porto 1.974", "the cat porto 1,974"), Pair("raro gato", "rare cat")]
    found = analyse_translations(["the cat porto 1974", "cat"], pairs, train)
    assert found["sentences"] == sentence_scores(["the cat porto 1974", "cat"], [p.target for p in pairs])
    assert [part["pairs"] for part in found["by length"]] == [2, 0, 0, 0, 0, 0]
    assert [part["pairs"] for part in found["by rarest word"]] == [1, 1, 0, 0, 0]
    assert found["recalled"] == {
        "numbers": (1, 1),
        "names": (1, 1),
        "from 0 below 1": (1, 2),  # porto, and 1,974 as it stands
        "from 1 below 10": (3, 4),  # the, cat and cat, but not rare
        "from 10 below 100": (0, 0),
        "from 100 below 1000": (0, 0),
        "from 1000": (0, 0),
    }


def test_attention_crosses_over_where_both_words_look_across():
    words = ["a", "b", "</s>"], ["x", "y", "</s>"]
    across, along = [[0.2, 0.8, 0.0], [0.7, 0.3, 0.0]], [[0.8, 0.2, 0.0], [0.3, 0.7, 0.0]]
    end = [[0.0, 0.0, 1.0]]
    half = [across[0], along[1]]
    other = [along[0], across[1]]
    layers = torch.tensor([[table + end] for table in (across, along, half, other)])
    found = Alignment(*words, layers)
    assert crosses_over(found, ("a", "b"), ("x", "y")) == [True, False, False, False]
    assert crosses_over(found, ("b", "a"), ("x", "y")) == [False, True, False, False]


def few_sentences():
    return load_sentences()[60:68]  # questions and adjectives


@pytest.fixture(scope="module")
def examined():
    translator = Translator.load("phrases")
    run = {"date": "then", "grid": tune_search(translator, PAIRS[:2], [Search(2, 1.0), Search(1)])}
    with pytest.MonkeyPatch.context() as patch:  # the fewer, the sooner
        patch.setattr(experiments.report, "load_sentences", few_sentences)
        patch.setattr(experiments.report, "SWAPS", dict(list(SWAPS.items())[:3]))
        return translator, examine(translator, run, "ours", corpus)


def a_run(folder, **changes):
    Translator.load("phrases").save(folder / "translator")
    record = {**load_record("phrases"), **changes}
    write_record(folder / "record.json", {name: value for name, value in record.items() if value is not None})
    return folder / "record.json"


def test_a_run_is_examined_from_its_folder(tmp_path, monkeypatch):
    path, seen = a_run(tmp_path), []
    monkeypatch.setattr(
        experiments.report, "examine", lambda *given: seen.append(given[1:]) or given[1] | {"examined": "now"}
    )
    before = read_record(path)
    main([str(tmp_path)])
    assert seen == [(before, "phrases")]
    assert read_record(path) == before | {"examined": "now"}
