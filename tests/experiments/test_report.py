"""The report on a trained translator: by hand, by value, and on the records of the book."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import PAIRS, corpus

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import experiments.report
from experiments.report import (
    SWAPS,
    analyse_translations,
    calibration,
    crosses_over,
    examine,
    known_share,
    load_sentences,
    log_probabilities,
    main,
    recalled,
    scores_in_ranges,
    translate_surely,
    words_of,
)
from transformer import Translator, beam_search, corpus_scores, load_corpus
from transformer.decoding import length_norm
from transformer.files import read_record, write_record
from transformer.language.corpora import Pair
from transformer.language.scores import sentence_scores
from transformer.language.translator import SEARCHES, Alignment, Search, by_words, tune_search
from transformer.language.vocabulary import EOS_ID
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


def test_a_word_that_is_wanted_twice_must_be_there_twice():
    assert recalled(["2 and 3", "x"], [["2", "2", "3"], []]) == (2, 3)
    assert recalled(["2 and 2 and 2"], [["2", "2"]]) == (2, 2)


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


def test_a_word_is_known_that_training_showed_often():
    assert words_of("o gato , 1974 d'ouro !") == ["o", "gato", "d'ouro"]
    seen = Counter({"o": 20, "gato": 9})
    assert known_share("o gato .", seen) == 0.5 and known_share("o , o", seen) == known_share("!", seen) == 1
    assert known_share("o gato .", seen, often=9) == 1


def test_log_probabilities_are_those_of_the_search():
    translator = Translator.load("phrases")
    sentences = ["gosto disto .", "a menina gosta do gato preto .", ""]
    texts, means = translate_surely(translator, sentences, Search(4, 0.6))
    assert texts == translator.translate_tokenized(sentences) and means[2] == 0
    for sentence, mean in zip(sentences[:2], means):
        src = torch.tensor([[*translator.vocabulary.encode(sentence), EOS_ID]])
        best = beam_search(translator.model, src)
        length = int((best.tokens[0, 0] != 0).sum())
        total = best.scores[0, 0].item() * length_norm(length, 0.6)
        assert mean == pytest.approx(total / length, abs=1e-4)
    worse = log_probabilities(translator, [[*src[0].tolist()]], [[9, 9, 9, EOS_ID]])
    assert worse[0] < means[1] - 1


def test_calibration_counts_every_token_once():
    translator, pairs = Translator.load("phrases"), load_corpus("phrases", "test")[:40]
    bins = calibration(translator, pairs)
    targets = translator.vocabulary.encode_batch([pair.target for pair in pairs])
    assert sum(part["tokens"] for part in bins) == sum(len(ids) + 1 for ids in targets)
    assert all(0 <= part["right"] <= 1 and 0 < part["probability"] <= 1 for part in bins)
    assert bins[-1]["probability"] > 0.9 and bins[-1]["right"] > 0.9
    (whole,) = calibration(translator, pairs, n_bins=1)
    for name in ("probability", "right"):
        mean = sum(part["tokens"] * part[name] for part in bins) / whole["tokens"]
        assert whole[name] == pytest.approx(mean)


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


def test_heads_are_averaged_before_attention_is_compared():
    strong, weak = [[0.0, 1.0], [1.0, 0.0]], [[0.6, 0.4], [0.4, 0.6]]
    found = Alignment(["a", "b"], ["x", "y"], torch.tensor([[strong, weak]]))
    assert crosses_over(found, ("a", "b"), ("x", "y")) == [True]


def test_the_hundred_sentences_are_whole_and_ours():
    sentences = load_sentences()
    assert len(sentences) == len({sentence.source for sentence in sentences}) == 100
    counts = Counter(sentence.category for sentence in sentences)
    assert len(counts) == 11 and min(counts.values()) >= 8
    for sentence in sentences:
        assert sentence.source.strip() == sentence.source and sentence.target.strip() == sentence.target
        assert tokenize(sentence.source) and tokenize(sentence.target)
    phrases = {text for split in ("train", "dev", "test") for text, _ in load_corpus("phrases", split)}
    assert not phrases & {tokenize(sentence.source) for sentence in sentences}
    capitals = [sentence for sentence in sentences if sentence.category == "capitals"]
    assert all(sum(map(str.isupper, sentence.source)) >= 5 for sentence in capitals)


def test_swaps_change_places():
    for source, target in SWAPS.items():
        assert len(source.split()) == len(target.split()) == 3
    assert len(SWAPS) == 20


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


@pytest.mark.slow
def test_record_says_which_words_changed_places():
    search = {"beam_size": 4, "length_penalty": 0.6}
    kept = examine(Translator.load("phrases"), {"grid": [search]}, "ours", corpus)
    for entry, (source, target) in zip(kept["swaps"], SWAPS.items(), strict=True):
        as_said = set(target.split()[1:]) <= set(entry["target"])
        assert (entry["crossed"] is not None) == as_said, (source, entry)
    best = Search(kept["grid"][0]["beam_size"], kept["grid"][0]["length_penalty"])
    words = by_words(Translator.load("phrases").align("isto é um gato preto .", best))
    assert kept["swaps"][0]["crossed"] == crosses_over(words, ("gato", "preto"), ("black", "cat"))


def test_what_training_recorded_stays_and_the_test_split_is_analyzed(examined):
    translator, kept = examined
    best = Search(kept["grid"][0]["beam_size"], kept["grid"][0]["length_penalty"])
    test = corpus("", "test")
    written = translator.translate_tokenized([pair.source for pair in test], best)
    assert kept["date"] == "then" and kept["analysis"] == analyse_translations(written, test, PAIRS)
    assert kept["examined"]["versions"]["torch"] and json.loads(json.dumps(kept))["grid"] == kept["grid"]


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recipe": None}, "it has no 'recipe'"),
        ({"grid": None}, "it has no 'grid'"),
        ({"parameters": 3}, "is of another model than"),
        ({"recipe": load_record("toy")["recipe"]}, "is of another model than"),
    ],
)
def test_a_record_of_another_model_is_left_alone(changes, message, tmp_path):
    path = a_run(tmp_path, **changes)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        main([str(tmp_path)])
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["phrases", "ted-small", "ted-base"])
def test_examined_record_is_whole_and_agrees_with_itself(name):
    record = load_record(name)
    best, test = record["grid"][0], record["scores"]["test"]["tuned"]
    assert record["scores"]["dev"]["tuned"] == best["scores"]
    assert 6 <= len(record["grid"]) <= len(SEARCHES)  # the older records tried fewer
    assert all(score["margin"] > 0 and "bs:1000" in score["signature"] for score in test.values())
    assert len(record["analysis"]["sentences"]) == record["scores"]["test"]["pairs"]
    parts = {"by length", "by rarest word", "by known words"} & record["analysis"].keys()
    assert len(parts) == (3 if "confidence" in record else 2)  # the older records have no known words
    for part in parts:
        pairs = sum(entry["pairs"] for entry in record["analysis"][part])
        assert pairs == record["scores"]["test"]["pairs"]
    assert all(found <= wanted for found, wanted in record["analysis"]["recalled"].values())
    if confidence := record.get("confidence"):
        assert len(confidence["sentences"]) == record["scores"]["test"]["pairs"]
        assert max(confidence["sentences"]) <= 0
    asked = [(s.category, s.source, s.target) for s in load_sentences()]
    assert [(e["category"], e["source"], e["target"]) for e in record["sentences"]] == asked
    scores = sentence_scores(
        [tokenize(entry["translation"]) for entry in record["sentences"]],
        [tokenize(entry["target"]) for entry in record["sentences"]],
    )
    assert [entry["chrF2"] for entry in record["sentences"]] == pytest.approx(scores, abs=3)
    assert len(record["swaps"]) == len(SWAPS) and len(record["reordered"]) == 3
