"""What translators are compared with: the recurrent net, word-by-word translation, alignments by hand."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.baselines import BASE, chapter, checkpoints, models, recurrent_recipe
from experiments.recurrent import Recurrent, RecurrentConfig
from experiments.report import OFTEN, load_sentences, words_of
from experiments.words import spread, word_facts
from transformer import beam_search, greedy_search, load_corpus
from transformer.language.corpora import Pair
from transformer.language.wording import tokenize
from transformer.runs.checkpoints import save_checkpoint
from transformer.training import load_record

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


def test_every_weight_of_the_recurrent_net_learns(net):
    net.zero_grad()
    net(SRC, TGT).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())


def test_searches_know_the_recurrent_net(net):
    greedy = greedy_search(net, SRC, max_length=8)
    beam = beam_search(net, SRC, beam_size=1, max_length=8).tokens[:, 0]
    width = min(greedy.size(1), beam.size(1))
    assert torch.equal(greedy[:, :width], beam[:, :width])
    both = beam_search(net, SRC, beam_size=4, max_length=8)
    alone = beam_search(net, SRC[1:], beam_size=4, max_length=8)
    torch.testing.assert_close(both.scores[1:], alone.scores)


def test_the_nets_are_of_one_size_and_time():
    class Four(list):
        def __len__(self):
            return 4000

    sizes = {n: sum(p.numel() for p in model.parameters()) for n, model in models(Four()).items()}
    assert abs(sizes["recurrent"] / sizes["transformer"] - 1) < 0.03
    recipe = recurrent_recipe(2300)
    assert recipe.training.steps == 2300 and recipe.schedule.warmup_steps == 460
    assert recipe.loss == BASE.loss and recipe.data == BASE.data


def test_checkpoints_come_in_order_without_the_first(tmp_path):
    for step in (0, 400, 200):
        save_checkpoint(tmp_path / f"checkpoint-{step:08d}.pt", {"model": {"w": torch.tensor([step])}})
    assert [(step, int(state["w"])) for step, state in checkpoints(tmp_path)] == [(200, 200), (400, 400)]


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


@pytest.mark.parametrize("corpus", ["phrases", "sentences"])
def test_alignments_are_of_our_sentences(names, corpus):
    aligned = names["load_alignments"](corpus)
    ours = {(tokenize(s.source), tokenize(s.target)) for s in load_sentences()}
    known = ours if corpus == "sentences" else {tuple(pair) for pair in load_corpus("phrases", "test")}
    assert len(aligned) == len({pair for pair, _ in aligned}) == 30
    for (source, target), (sure, every) in aligned:
        assert (source, target) in known and sure <= every
        words = source.split(), target.split()
        assert all(i < len(words[0]) and j < len(words[1]) for i, j in every)
        assert {j for _, j in every} == set(range(len(words[1])))  # every English word has a link
        last = len(words[0]) - 1, len(words[1]) - 1
        assert last in sure  # the closing signs


def test_words_are_counted_by_hand():
    train = [Pair("o gato o", "x")] * OFTEN + [Pair("raro", "y")]
    facts = word_facts(train, [Pair("o raro !", "z")], [Pair("gato novo-o novo", "w")], ["raro 9 , gato ."])
    assert facts["ours"] == [[("raro", 1), ("gato", OFTEN)]]
    assert facts["talks"] == {"words": [2], "known": [1]}
    assert facts["never seen"] == ["novo"]
    assert facts["spread"]["everyday"] == [2, 0, 1, 0, 0]
    assert spread([0, 1, 9, 10, 5000]) == [1, 2, 1, 0, 1]


def test_recorded_counts_are_of_our_sentences():
    record = load_record("words")
    assert [[word for word, _ in found] for found in record["ours"]] == [
        words_of(tokenize(sentence.source)) for sentence in load_sentences()
    ]
    assert len(record["talks"]["words"]) == load_record("ted-small")["scores"]["test"]["pairs"]
    assert all(a >= b for a, b in zip(record["talks"]["words"], record["talks"]["known"], strict=True))


def test_recorded_baselines_are_in_order():
    rows = load_record("baselines")["rows"]
    scores = {name: row["scores"]["test"]["BLEU-tok"]["score"] for name, row in rows.items()}
    assert scores["copy"] < scores["ibm1"] < scores["transformer"]
    assert all(row["scores"]["test"]["BLEU-tok"]["margin"] > 0 for row in rows.values())
