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
    scores_in_ranges,
    translate_surely,
)
from transformer import Translator, corpus_scores
from transformer.files import read_record, write_record
from transformer.language.corpora import Pair
from transformer.language.scores import sentence_scores
from transformer.language.translator import Alignment, Search, by_words, tune_search
from transformer.language.wording import detokenize, tokenize
from transformer.training import load_record

REFERENCES = ["the cat sees the old house .", "i like this very much .", "it is late ."] * 9
HYPOTHESES = ["the cat sees the house .", "i like this very much .", "is it late ?"] * 9


def test_ranges_are_scored_as_corpora_of_their_own():
    values = [len(text.split()) for text in REFERENCES]  # 7, 6, 4
    ranges = scores_in_ranges(values, (6, 7, 50), HYPOTHESES, REFERENCES)
    assert [(part["from"], part["below"], part["pairs"]) for part in ranges] == [
        (0, 6, 9),
        (6, 7, 9),
        (7, 50, 9),
        (50, None, 0),
    ]
    alone = corpus_scores(HYPOTHESES[::3], REFERENCES[::3])["BLEU-detok"]["score"]
    assert [part["score"] for part in ranges[1:]] == [100.0, alone, None]


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


def test_record_asks_our_own_sentences(examined):
    translator, kept = examined
    best = Search(kept["grid"][0]["beam_size"], kept["grid"][0]["length_penalty"])
    sources = [tokenize(sentence.source) for sentence in few_sentences()]
    written, sure = translate_surely(translator, sources, best)
    assert written == translator.translate_tokenized(sources, best)
    references = [tokenize(sentence.target) for sentence in few_sentences()]
    scores = sentence_scores(written, references)
    for i, (entry, sentence) in enumerate(zip(kept["sentences"], few_sentences(), strict=True)):
        added = {"translation": detokenize(written[i]), "chrF2": scores[i], "log-probability": sure[i]}
        assert entry == sentence._asdict() | added
    assert len(kept["swaps"]) == 3
    for entry, source in zip(kept["swaps"], SWAPS, strict=False):
        words = by_words(translator.align(f"isto é {source} .", best))
        assert (entry["source"], entry["target"]) == (words.source, words.target)
    adjectives = [
        text for text, s in zip(sources, few_sentences(), strict=True) if s.category == "adjectives"
    ]
    assert len(kept["reordered"]) == 3
    for found, source in zip(kept["reordered"], adjectives, strict=False):
        words = by_words(translator.align(source, best))
        assert (found["source"], found["target"]) == (words.source, words.target)
        weights = torch.tensor(found["weights"])  # [n_layers, T, S]
        torch.testing.assert_close(weights, words.weights.mean(dim=1), atol=6e-4, rtol=0)


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
