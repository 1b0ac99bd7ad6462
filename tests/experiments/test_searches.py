"""The grid of searches behind Chapter 13: its best lies inside, and the brevity penalty is shown."""

import json
import math
import sys
from itertools import product
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import searches
from transformer import Translator, load_corpus
from transformer.language.translator import SEARCHES, Search
from transformer.training import load_record


def test_brevity_is_read_off_the_line_that_sacrebleu_prints():
    line = "BLEU|… = 33.55 68.3/42.0/27.9/18.8 (BP = 0.958 ratio = 0.959 hyp_len = 900 ref_len = 1000)"
    assert searches.brevity(line) == (0.9, pytest.approx(math.exp(1 - 1000 / 900)))
    assert searches.brevity("hyp_len = 1100 ref_len = 1000") == (1.1, 1.0)


def test_a_record_grows_by_what_it_lacks(tmp_path, monkeypatch):
    monkeypatch.setattr(searches, "RECORD", tmp_path / "searches.json")
    monkeypatch.setattr(searches, "load_corpus", lambda *of: load_corpus(*of)[:60])
    monkeypatch.setattr(searches, "GRID", [Search(1)])
    searches.add("phrases", "phrases", Translator.load("phrases"), {})
    (first,) = json.loads(searches.RECORD.read_text())["rows"]["phrases"]["grid"]
    monkeypatch.setattr(searches, "GRID", [Search(1), Search(2, 1.0)])
    searches.add("phrases", "phrases", Translator.load("phrases"), {})
    row = json.loads(searches.RECORD.read_text())["rows"]["phrases"]
    assert row["grid"][0] == first and len(row["grid"]) == 2 and row["pairs"] == 20
    assert row["versions"]["torch"]


def test_the_best_recorded_search_lies_inside_and_the_package_tries_penalties_as_large():
    rows = load_record("searches")["rows"]
    tried = {search.length_penalty for search in SEARCHES}
    for beam, (name, row) in product((4, 8), rows.items()):
        scores = {e["length_penalty"]: e["BLEU-detok"] for e in row["grid"] if e["beam_size"] == beam}
        best = max(scores, key=scores.__getitem__)
        assert min(scores) < best < max(scores), (name, beam)
        assert best < max(tried), (name, beam)
