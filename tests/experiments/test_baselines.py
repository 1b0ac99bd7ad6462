"""What translators are compared with: the recurrent net, word-by-word translation, alignments by hand."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.baselines import chapter
from experiments.recurrent import Recurrent, RecurrentConfig
from experiments.report import OFTEN
from experiments.words import spread, word_facts
from transformer import beam_search, greedy_search
from transformer.language.corpora import Pair

PAIRS = [
    Pair("o gato dorme", "the cat sleeps"),
    Pair("o gato come", "the cat eats"),
    Pair("o homem come", "the man eats"),
    Pair("homem", "man"),
] * 3


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Recurrent(RecurrentConfig(20, d_embedding=12, d_state=16)).double().eval()


@pytest.fixture(scope="module")
def names():
    return chapter()


SRC = torch.tensor([[4, 9, 5, 3, 0, 0], [7, 8, 9, 10, 11, 3]])
TGT = torch.tensor([[2, 5, 6, 7], [2, 9, 4, 4]])


def test_recurrent_net_writes_as_it_was_trained(net):
    whole, memory = net(SRC, TGT), net.encode(SRC)
    states, mask, keys = (None, None), net.src_mask(SRC), net.key(memory)
    for t in range(TGT.size(1)):
        logits, states, weights = net.decode(TGT[:, t : t + 1], memory, mask, keys, states)
        torch.testing.assert_close(logits[:, 0], whole[:, t])
        assert weights[0, 0, 4:].eq(0).all() and weights.sum(-1).allclose(torch.ones(2, 1).double())


def test_recurrent_net_sees_neither_padding_nor_what_comes_later(net):
    torch.testing.assert_close(net(SRC[:1, :4], TGT[:1]), net(SRC, TGT)[:1])
    later = TGT.clone()
    later[:, 2:] = 11
    torch.testing.assert_close(net(SRC, later)[:, :2], net(SRC, TGT)[:, :2])
    assert not torch.allclose(net(SRC, later)[:, 2:], net(SRC, TGT)[:, 2:])


def test_searches_know_the_recurrent_net(net):
    greedy = greedy_search(net, SRC, max_length=8)
    beam = beam_search(net, SRC, beam_size=1, max_length=8).tokens[:, 0]
    width = min(greedy.size(1), beam.size(1))
    assert torch.equal(greedy[:, :width], beam[:, :width])
    both = beam_search(net, SRC, beam_size=4, max_length=8)
    alone = beam_search(net, SRC[1:], beam_size=4, max_length=8)
    torch.testing.assert_close(both.scores[1:], alone.scores)


def test_words_are_learned_from_pairs_and_replaced_in_order(names):
    table = names["ibm_model_1"](PAIRS, rounds=20)
    assert names["word_by_word"](table, "homem dorme zzz gato") == "man sleeps zzz cat"
    for word, likely in table.items():
        assert sum(likely.values()) == pytest.approx(1, abs=0.02), word
    assert names["ibm_links"](table, "gato o", "the cat") >= {(0, 1)}


def test_one_round_by_hand(names):
    table = names["ibm_model_1"]([Pair("a b", "x"), Pair("a", "y")], rounds=1)
    # x is explained by the empty word, a and b in equal shares, y by the empty word and a.
    assert table[""] == pytest.approx({"x": 2 / 5, "y": 3 / 5})
    assert table["a"] == pytest.approx({"x": 2 / 5, "y": 3 / 5})
    assert table["b"] == pytest.approx({"x": 1.0})


def test_alignment_error_by_hand(names):
    sure, every = {(0, 0), (1, 1)}, {(0, 0), (1, 1), (2, 1)}
    aligned = [(("a b c", "x y"), (sure, every))]
    error = names["alignment_error"]
    assert error([sure], aligned) == error([every], aligned) == 0
    assert error([{(2, 0)}], aligned) == 1
    assert error([{(0, 0), (2, 0)}], aligned) == pytest.approx(1 - 2 / 4)


def test_words_are_counted_by_hand():
    train = [Pair("o gato o", "x")] * OFTEN + [Pair("raro", "y")]
    facts = word_facts(train, [Pair("o raro !", "z")], [Pair("gato novo-o novo", "w")], ["raro 9 , gato ."])
    assert facts["ours"] == [[("raro", 1), ("gato", OFTEN)]]
    assert facts["talks"] == {"words": [2], "known": [1]}
    assert facts["never seen"] == ["novo"]
    assert facts["spread"]["everyday"] == [2, 0, 1, 0, 0]
    assert spread([0, 1, 9, 10, 5000]) == [1, 2, 1, 0, 1]
