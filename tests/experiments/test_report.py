"""The report on a trained translator: by hand, by value, and on the records of the book."""

import sys
from pathlib import Path

from helpers import PAIRS, corpus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import experiments.report
from experiments.report import (
    analyse_translations,
    examine,
    load_sentences,
    main,
)
from transformer import Translator
from transformer.files import read_record, write_record
from transformer.language.corpora import Pair
from transformer.language.translator import Search, tune_search
from transformer.training import load_record


def test_analysis_counts_by_hand():
    train = [Pair("o gato vê o gato", "the cat sees the cat")] * 2 + [Pair("raro", "rare")]
    pairs = [Pair("o gato porto 1.974", "the cat porto 1,974"), Pair("raro gato", "rare cat")]
    found = analyse_translations(["the cat porto 1974", "cat"], pairs, train)
    assert found["recalled"] == {
        "numbers": (1, 1),
        "names": (1, 1),
        "from 0 below 1": (1, 2),  # porto, and 1,974 as it stands
        "from 1 below 10": (3, 4),  # the, cat and cat, but not rare
        "from 10 below 100": (0, 0),
        "from 100 below 1000": (0, 0),
        "from 1000": (0, 0),
    }


def test_a_run_is_examined_by_its_best_search(monkeypatch):
    few = load_sentences()[60:68]  # questions and adjectives: the fewer, the sooner
    monkeypatch.setattr(experiments.report, "load_sentences", lambda: few)
    translator = Translator.load("phrases")
    run = {"date": "then", "grid": tune_search(translator, PAIRS[:2], [Search(2, 1.0), Search(1)])}
    found = examine(translator, run, "ours", corpus)
    assert found["date"] == "then" and found["examined"]["date"] and set(found["analysis"]) == {"recalled"}
    assert [entry["source"] for entry in found["sentences"]] == [sentence.source for sentence in few]
    assert all(len(entry["weights"][0]) == len(entry["target"]) for entry in found["reordered"])
    assert len(found["alignments"]) == 2


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
