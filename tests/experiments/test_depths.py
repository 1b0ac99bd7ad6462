"""Speeds beside speeds: what is timed is a search of all sentences, and gains are within rounds."""

import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import depths, engines
from transformer import Transformer, TransformerConfig
from transformer.commands.recipes import RECIPES
from transformer.language.translator import Search
from transformer.training import load_record


class Recorder:
    """Stands for a translator: notes what it is asked."""

    def __init__(self):
        self.asked = []

    def translate_tokenized(self, sentences, search):
        self.asked.append((sentences, search))
        return [text.upper() for text in sentences]


def test_every_sentence_is_translated_in_batches_of_the_size():
    translator, search = Recorder(), Search(2)
    found = depths.work(translator, list("abcde"), 2, search)()
    assert found == [["A", "B"], ["C", "D"], ["E"]]
    assert translator.asked == [(["a", "b"], search), (["c", "d"], search), (["e"], search)]


def test_gains_are_medians_of_the_ratios_within_rounds():
    rates = {depths.BASE: [10.0, 100.0, 20.0], "other": [20.0, 110.0, 60.0]}
    assert depths.gains(rates) == {depths.BASE: 1.0, "other": pytest.approx(2.0)}


def test_all_searches_and_sizes_are_timed():
    models = {"one": Recorder(), "two": Recorder()}
    found = depths.timed(models, list("abc"), rounds=2)
    assert list(found) == [f"{name}, batch {size}" for name in depths.SEARCHES for size in depths.BATCHES]
    assert all(len(rates[name]) == 2 and min(rates[name]) > 0 for rates in found.values() for name in models)
    sizes = {len(sentences) for sentences, _ in models["one"].asked}
    assert sizes == {1, 3}


def test_engines_are_compared_within_rounds(monkeypatch):
    rates = {engines.OURS: [10.0, 100.0, 20.0], engines.THEIRS: [20.0, 110.0, 60.0]}
    monkeypatch.setattr(engines, "load_translator", lambda *named: Recorder())
    monkeypatch.setattr(engines, "timed", lambda models, sentences, rounds: {"greedy": rates})
    found = engines.compared(list("abc"), rounds=3)
    assert found["same"] == dict.fromkeys(depths.SEARCHES, 3)
    row = found["rows"]["greedy"]
    assert row["sentences a second"] == {engines.OURS: 20.0, engines.THEIRS: 60.0}
    assert row["times as fast"] == pytest.approx(2.0) and row["range"] == pytest.approx([1.1, 3.0])


def test_the_models_have_about_as_many_parameters():
    settings, sizes = asdict(RECIPES["phrases"].model), []
    for kind in depths.KINDS.values():
        config = TransformerConfig(1200, 1200, **settings | {"n_layers": kind["n_layers"]})
        sizes.append(sum(weight.numel() for weight in Transformer(config).parameters()))
    assert max(sizes) / min(sizes) < 1.15


def test_records_are_of_these_programs():
    record = load_record("engines")
    assert record["command"] == "python -m experiments.engines" and record["timed"] == engines.TIMED
    assert list(record["same"]) == list(depths.SEARCHES)
    for row in record["rows"].values():
        assert row["range"][0] <= row["times as fast"] <= row["range"][1]
    record = load_record("depths")
    assert record["command"].startswith("python -m experiments.depths measure")
    assert record["budget"] == depths.BUDGET and record["seeds"] == list(depths.SEEDS)
    assert list(record["rows"]) == list(depths.KINDS)
    for row in record["rows"].values():
        assert all(len(scores) == len(depths.SEEDS) for scores in row["BLEU-tok"].values())
