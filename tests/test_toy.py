"""The toy task: its rule against a loop, its data by seed, its score against an oracle."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import transformer.commands.recipes
import transformer.toy
from transformer import Transformer, greedy_search, load_toy_model, reversal_batch, toy_config
from transformer.toy import (
    crowd,
    exact_match,
    faultless,
    match_by_copies,
    reversal_batches,
    reverse_and_mark,
    with_copies,
)
from transformer.training import load_record


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


def most_copies(digits):
    return torch.tensor([max(row.count(digit) for digit in row) for row in digits.tolist()])


@pytest.mark.parametrize("copies", range(1, 11))
def test_sequences_have_as_many_copies_as_one_asks_for(copies):
    digits = with_copies(copies, 200, torch.Generator().manual_seed(copies))
    assert digits.shape == (200, 10) and digits.unique().tolist() == list(range(10))
    assert (most_copies(digits) == copies).all()
    if 5 < copies < 10:  # one digit is in the majority, and stands in any place
        assert (digits == digits.mode(dim=1, keepdim=True).values).any(0).all()
        assert (digits != digits.mode(dim=1, keepdim=True).values).any(0).all()
    assert digits.equal(with_copies(copies, 200, torch.Generator().manual_seed(copies)))


def test_one_pass_finds_the_faults_of_a_search():
    model, generator = load_toy_model(), torch.Generator().manual_seed(3)
    digits = torch.cat([with_copies(copies, 30, generator) for copies in (1, 3, 5, 6, 7, 8)])
    right = (greedy_search(model, digits, 10) == reverse_and_mark(digits, 10)).all(dim=1)
    assert right.any() and not right.all()
    assert faultless(model, digits).equal(right)


def test_scores_by_copies_are_of_sequences_with_so_many(monkeypatch):
    model = Transformer(toy_config()).eval()
    monkeypatch.setattr(transformer.toy, "faultless", lambda model, digits: most_copies(digits) > 4)
    assert match_by_copies(model, 20) == {copies: float(copies > 4) for copies in range(1, 11)}


@pytest.mark.slow
def test_crowd_copies_from_the_places_up_to_its_own():
    before = torch.arange(10).repeat(30_000, 1)
    after = crowd(before, torch.Generator().manual_seed(0))
    assert before.equal(torch.arange(10).repeat(30_000, 1))
    assert (after <= before).all() and (after[:, 0] == 0).all()
    for place in range(1, 10):  # its own place is as likely as each of those before it
        assert abs((after[:, place] == place).double().mean() - 1 / (place + 1)) < 0.01
    for copies in range(6, 11):  # the cycles of a random permutation
        assert abs((most_copies(after) == copies).double().mean() - 1 / copies) < 0.01


def test_crowded_batches_follow_the_rule_and_crowd_a_share():
    from experiments.toy import crowded_batches

    batches = list(crowded_batches(1, share=0.25, batch_size=40, per_epoch=50, seed=3))
    inputs, outputs = (torch.stack(part) for part in zip(*batches, strict=True))  # [50, 40, L]
    assert outputs[..., 1:].equal(reverse_and_mark(inputs.flatten(0, 1), 10).view(50, 40, 10))
    assert (outputs[..., 0] == 11).all()
    many = most_copies(inputs.flatten(0, 1)).view(50, 40) >= 5
    assert many[:, :10].double().mean() > 0.8 and many[:, 10:].double().mean() < 0.05


def test_crowded_stream_depends_on_seed_and_epoch():
    from experiments.toy import crowded_batches

    def first(epoch, seed):
        return next(crowded_batches(epoch, share=0.5, seed=seed))[0]

    assert first(2, 5).equal(first(2, 5))
    assert not first(2, 5).equal(first(3, 5)) and not first(3, 5).equal(first(2, 6))
    plain, _ = next(reversal_batches(2, seed=5))
    assert next(crowded_batches(2, share=0.0, seed=5))[0].equal(plain)


@pytest.mark.slow
def test_recorded_model_does_what_its_record_says():
    record = load_record("toy")
    assert record["recipe"]["training"]["steps"] <= 30_000 and record["recipe"]["data"]["batch_size"] == 32
    assert record["test"]["sequences"] >= 0.995
    assert record["commit"] and record["command"].startswith("python -m transformer train toy")
    inputs, outputs = reversal_batch(500, 10, generator=torch.Generator().manual_seed(99))
    right = (greedy_search(load_toy_model(), inputs, 10) == outputs[:, 1:]).all(dim=1)
    assert right.double().mean() > 0.98
