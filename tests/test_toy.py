"""The toy task: its rule against a loop, its data by seed, its score against an oracle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import transformer.recipes
import transformer.toy
from transformer import (
    Transformer,
    greedy_search,
    load_record,
    load_toy_model,
    reversal_batch,
    reverse_and_mark,
    toy_config,
)
from transformer.toy import exact_match, reversal_batches


def by_loop(digits, mark):
    counts, result = {}, []
    for digit in digits:
        counts[digit] = counts.get(digit, 0) + 1
        result.append(mark if counts[digit] % 2 == 0 else digit)
    return result[::-1]


def test_rule_on_the_sequence_worked_by_hand():
    digits = torch.tensor([[0, 1, 5, 9, 0, 3, 5, 2, 5]])
    assert reverse_and_mark(digits, 10).tolist() == [[5, 2, 10, 3, 10, 9, 5, 1, 0]]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=13), st.integers(5, 50))
def test_rule_is_the_loop(digits, mark):
    assert reverse_and_mark(torch.tensor([digits]), mark)[0].tolist() == by_loop(digits, mark)


def test_batch_has_its_form():
    inputs, outputs = reversal_batch(3, 7, n_digits=5, generator=torch.Generator().manual_seed(1))
    assert inputs.shape == (3, 7) and outputs.shape == (3, 8)
    assert inputs.dtype == outputs.dtype == torch.long
    assert inputs.min() >= 0 and inputs.max() < 5
    assert (outputs[:, 0] == 6).all()
    assert outputs[:, 1:].equal(reverse_and_mark(inputs, 5))


@pytest.mark.parametrize("argument", ["batch_size", "length", "n_digits"])
def test_batch_refuses_sizes_below_one(argument):
    sizes = {"batch_size": 2, "length": 3, "n_digits": 4} | {argument: 0}
    with pytest.raises(ValueError, match=f"{argument} must be at least 1, but is 0"):
        reversal_batch(**sizes)


def test_stream_depends_on_seed_and_epoch_and_on_nothing_else():
    def first(epoch, seed):
        return torch.cat(next(reversal_batches(epoch, batch_size=8, length=9, seed=seed)), dim=1)

    torch.manual_seed(0)
    before = first(2, 5)
    torch.manual_seed(1)
    assert before.equal(first(2, 5))
    assert not before.equal(first(3, 5)) and not before.equal(first(2, 6))
    assert len(list(reversal_batches(0, batch_size=1, length=2, per_epoch=7))) == 7


def test_streams_of_two_seeds_do_not_overlap():
    def first(epoch, seed):
        return next(reversal_batches(epoch, batch_size=8, length=9, seed=seed))[0]

    assert not first(3, 5).equal(first(2, 6))  # as they would be if seed and epoch were added


def test_every_digit_is_drawn():
    inputs, _ = reversal_batch(50, 7, n_digits=5, generator=torch.Generator().manual_seed(1))
    assert inputs.unique().tolist() == [0, 1, 2, 3, 4]


def test_ids_follow_the_digits():
    config = toy_config(6, d_model=32)
    assert (config.bos_id, config.eos_id, config.pad_id) == (7, 8, 9)
    assert config.src_vocab_size == config.tgt_vocab_size == 10 and config.d_model == 32


def test_score_of_an_oracle_and_of_one_fault(monkeypatch):
    model = Transformer(toy_config()).eval()

    def oracle(model, src, length):
        return reverse_and_mark(src, 10)

    def one_fault(model, src, length):
        answer = oracle(model, src, length)
        answer[0, 0] = (answer[0, 0] + 1) % 10
        return answer

    monkeypatch.setattr(transformer.toy, "greedy_search", oracle)
    assert exact_match(model, 20, 5) == {"sequences": 1.0, "tokens": 1.0}
    monkeypatch.setattr(transformer.toy, "greedy_search", one_fault)
    assert exact_match(model, 20, 5) == {"sequences": 0.95, "tokens": 0.99}


def test_recorded_model_does_what_its_record_says():
    record = load_record("toy")
    assert record["recipe"]["training"]["steps"] <= 30_000 and record["recipe"]["data"]["batch_size"] == 32
    assert record["test"]["sequences"] >= 0.995
    assert record["commit"] and record["command"].startswith("python -m transformer train toy")
    inputs, outputs = reversal_batch(500, 10, generator=torch.Generator().manual_seed(99))
    right = (greedy_search(load_toy_model(), inputs, 10) == outputs[:, 1:]).all(dim=1)
    assert right.double().mean() > 0.98
