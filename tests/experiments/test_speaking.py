"""The record behind the Llama of Chapter 16 that speaks, and how its sentences are judged."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import speaking
from transformer import Vocabulary
from transformer.exchange.llama import Speaker
from transformer.training import load_record, record_path


def test_the_packed_model_is_of_the_form_that_is_trained():
    speaker = Speaker(record_path("speaker"))
    config = speaker.model.config
    assert {name: getattr(config, name) for name in speaking.SIZES} == speaking.SIZES
    assert config.vocab_size == speaking.SUBWORDS and config.kv_heads < config.n_heads
    size = sum(path.stat().st_size for path in record_path("speaker").iterdir())
    assert size < 2_000_000


def test_the_record_has_three_seeds_with_their_controls():
    runs = load_record("speaking")["runs"]
    assert [run["seed"] for run in runs] == [0, 1, 2]
    for run in runs:
        assert set(run["said"]) == {"trained", "untrained", "table of pairs", "test split"}
        assert run["training"]["seed"] == run["seed"] and run["training"]["steps"] == speaking.STEPS
        assert not run["commit"].endswith("+") and not run["training"]["commit"].endswith("+")


def test_sentences_are_judged_by_the_grammar_and_known_ones_are_not_new():
    known = speaking.sentences("train")[0]
    found = speaking.judged([known, "a menina gosta do gato preto .", "gato o ."])
    assert (found["drawn"], found["accepted"]) == (3, 2) and found["refused"] == ["gato o ."]
    assert found["accepted and new"] == ("a menina gosta do gato preto ." not in speaking.sentences("train"))


def test_the_loss_leaves_padding_out():
    vocabulary = Vocabulary.train(["o gato come", "a gata bebe"], 20, min_frequency=1)
    torch.manual_seed(0)
    model = speaking.built(vocabulary)
    short, long = torch.tensor([[2, 5, 3]]), torch.tensor([[2, 5, 3, 0, 0]])
    (one, n_one), (other, n_other) = speaking.sentence_loss(model, short), speaking.sentence_loss(model, long)
    assert n_one == n_other == 2 and torch.allclose(one, other)


def test_the_table_follows_pairs_that_occur_and_no_others():
    vocabulary = Vocabulary.train(speaking.sentences("train"), 100)
    table = speaking.table_of_pairs(vocabulary)
    rows = speaking.drawn_by_table(table)(torch.Generator().manual_seed(0))
    pairs = {pair for row in rows for pair in zip([2, *row], row, strict=False)}
    assert all(table[first, second] > -torch.inf for first, second in pairs)
