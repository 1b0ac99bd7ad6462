"""The ablation: what a score is computed from, and which weights are averaged."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

pytest.importorskip("sacrebleu")

from sacrebleu.metrics import BLEU

from experiments import ablation
from transformer.runs.folder import RunFolder
from transformer.runs.loop import save_checkpoint

REFERENCES = ["the cat sees the old house .", "i like this very much .", "it is late ."] * 5
GOOD = ["the cat sees the house .", "i like this very much .", "it is late ."] * 5
BAD = ["the dog saw a house .", "this i like much .", "is it late ?"] * 5


def test_the_counts_of_sentences_give_the_bleu_of_their_corpus():
    found = ablation.counts(GOOD, REFERENCES)
    assert found.shape == (15, 10)
    expected = BLEU(tokenize="none", force=True).corpus_score(GOOD, [REFERENCES]).score
    assert ablation.bleu(found.sum(0).tolist()) == pytest.approx(expected)


def test_a_row_that_equals_the_base_gains_nothing_and_a_better_one_surely_gains():
    good, bad = (ablation.counts(texts, REFERENCES) for texts in (GOOD, BAD))
    assert ablation.compared(bad, bad)["interval"] == [0.0, 0.0]
    found = ablation.compared(good, bad)
    assert 0 < found["interval"][0] <= found["gain"] <= found["interval"][1]


def test_a_moving_average_of_checkpoints_weighs_each_twice_as_much_as_the_one_before(tmp_path, monkeypatch):
    folder = RunFolder(tmp_path)
    model = torch.nn.Linear(1, 1)
    for step in range(1, 6):
        save_checkpoint(
            folder.checkpoint(step),
            {"model": {"weight": torch.full((1, 1), float(step)), "bias": torch.zeros(1)}},
        )
    monkeypatch.setattr(ablation.Translator, "load", lambda path, device: SimpleNamespace(model=model))
    for name, expected in (("moving average", (1 + 2 + 2 * 3 + 4 * 4 + 8 * 5) / 16), ("average of 2", 4.5)):
        assert ablation.averaged(tmp_path, ablation.AVERAGES[name]).model.weight.item() == expected
