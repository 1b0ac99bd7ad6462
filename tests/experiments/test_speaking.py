"""The record behind the Llama of Chapter 15 that speaks, and how its sentences are judged."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import speaking
from transformer import Vocabulary


def test_sentences_are_judged_by_the_grammar_and_known_ones_are_not_new():
    known = speaking.sentences("train")[0]
    found = speaking.judged([known, "a menina gosta do gato preto .", "gato o ."])
    assert (found["drawn"], found["accepted"]) == (3, 2) and found["refused"] == ["gato o ."]
    assert found["accepted and new"] == ("a menina gosta do gato preto ." not in speaking.sentences("train"))


def test_the_table_follows_pairs_that_occur_and_no_others():
    vocabulary = Vocabulary.train(speaking.sentences("train"), 100)
    table = speaking.table_of_pairs(vocabulary)
    rows = speaking.drawn_by_table(table)(torch.Generator().manual_seed(0))
    pairs = {pair for row in rows for pair in zip([2, *row], row, strict=False)}
    assert all(table[first, second] > -torch.inf for first, second in pairs)
