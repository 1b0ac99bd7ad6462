"""Tokens and positions: lookups equal to torch's and to one-hot products, positions that rotate."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import close
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer import PositionalEncoding, TokenEmbedding, sinusoidal_encoding

IDS = torch.tensor([[1, 5, 5, 0, 2], [6, 1, 0, 0, 0], [3, 3, 3, 4, 6]])  # [B=3, T=5]


def written_out(length: int, d_model: int) -> torch.Tensor:
    """The table of positions by the paper's formula, entry by entry, in Python's own floats."""

    def entry(p: int, column: int) -> float:
        angle = p / 10000 ** (2 * (column // 2) / d_model)
        return math.cos(angle) if column % 2 else math.sin(angle)

    rows = [[entry(p, column) for column in range(d_model)] for p in range(length)]
    return torch.tensor(rows, dtype=torch.float64).view(length, d_model)


def rotation(k: int, d_model: int) -> torch.Tensor:
    """R(k) of chapter 2, for an even width."""
    angles = [k * 10000 ** (-i / d_model) for i in range(0, d_model, 2)]
    blocks = [[[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]] for a in angles]
    return torch.block_diag(*torch.tensor(blocks, dtype=torch.float64))


# ---------- Token embedding


@pytest.mark.parametrize("pad_id", [None, 0, 6])
def test_lookup_and_gradient_equal_torchs(pad_id):
    ours = TokenEmbedding(vocab_size=7, d_model=4, pad_id=pad_id).double()
    theirs = nn.Embedding.from_pretrained(ours.weight.detach(), freeze=False, padding_idx=pad_id)
    arriving = torch.randn(3, 5, 4, dtype=torch.float64)

    x, expected = ours(IDS), 2.0 * theirs(IDS)  # √4
    x.backward(arriving)
    expected.backward(arriving)
    assert close(x, expected)
    assert close(ours.weight.grad, theirs.weight.grad)
    assert pad_id is None or ours.weight.grad[pad_id].abs().max() == 0


def test_looked_up_vectors_start_with_variance_one():
    embedding = TokenEmbedding(vocab_size=3000, d_model=48)
    x = embedding(torch.arange(3000)[None])
    assert abs(x.mean()) < 0.02 and abs(x.var() - 1) < 0.02


@pytest.mark.parametrize("wrong", [IDS + 1, IDS - 1], ids=["too large", "negative"])
def test_ids_outside_of_the_table_are_refused_by_torch(wrong):
    with pytest.raises(IndexError):
        TokenEmbedding(7, 4)(wrong)


# ---------- Sinusoidal table


@given(st.integers(0, 40), st.integers(1, 33))
def test_table_is_the_papers_formula(length, d_model):
    table = sinusoidal_encoding(length, d_model, torch.float64)
    assert close(table, written_out(length, d_model), atol=1e-12)


@given(st.integers(-60, 60), st.integers(1, 20))
def test_a_shift_is_a_rotation(k, pairs):
    table = sinusoidal_encoding(120, 2 * pairs, torch.float64)
    here, there = table[max(0, -k) : 120 - max(0, k)], table[max(0, k) : 120 + min(0, k)]
    assert close(here @ rotation(k, 2 * pairs).T, there)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_only_the_result_is_rounded(dtype):
    far = sinusoidal_encoding(6000, 12, dtype)
    assert far.dtype == dtype
    assert torch.equal(far, sinusoidal_encoding(6000, 12, torch.float64).to(dtype))


def test_dtype_is_torchs_default_where_none_is_given():
    assert sinusoidal_encoding(2, 4).dtype == torch.float32


# ---------- Adding positions


@given(st.integers(1, 4), st.integers(0, 9), st.integers(1, 11), st.integers(0, 9))
def test_positions_are_added_from_the_offset_on(batch, length, d_model, offset):
    encode = PositionalEncoding(d_model, dropout=0.5, max_length=18).double().eval()
    x = torch.randn(batch, length, d_model, dtype=torch.float64)
    expected = x + written_out(offset + length, d_model)[offset:]
    assert close(encode(x, offset), expected, atol=1e-12)


def test_dropout_acts_on_the_sum_and_in_training_only():
    encode = PositionalEncoding(d_model=64, dropout=0.25, max_length=50)
    x = torch.randn(40, 50, 64)
    whole = encode.eval()(x)
    dropped = encode.train()(x)
    zero = dropped == 0
    assert abs(zero.float().mean() - 0.25) < 0.01
    assert torch.allclose(dropped[~zero], whole[~zero] / 0.75, rtol=1e-5, atol=0)


def test_the_table_is_neither_trained_nor_stored():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=5)
    assert list(encode.parameters()) == [] and encode.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_cast_module_has_the_table_of_that_dtype(dtype):
    model = nn.Sequential(PositionalEncoding(d_model=7, dropout=0.0, max_length=300)).to(dtype)
    assert torch.equal(model[0].table, sinusoidal_encoding(300, 7, dtype))
    assert model(torch.zeros(1, 3, 7, dtype=dtype)).dtype == dtype


def test_a_module_built_on_the_meta_device_has_its_table_at_once():
    with torch.device("meta"):
        model = nn.Sequential(TokenEmbedding(7, 6), PositionalEncoding(6, 0.0, max_length=9)).double()
    exact = sinusoidal_encoding(9, 6, torch.float64)
    assert model[0].weight.is_meta and torch.equal(model[1].table, exact)
    trained = TokenEmbedding(7, 6).double()
    model.load_state_dict(trained.state_dict(prefix="0."), assign=True)
    assert close(model(IDS), trained(IDS) + exact[:5])


def test_the_table_follows_the_vectors_to_their_device():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=9)
    assert encode(torch.zeros(1, 3, 6, device="meta")).is_meta


def test_result_has_the_dtype_of_the_vectors():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=5)
    x = torch.zeros(1, 5, 6, dtype=torch.bfloat16)
    assert torch.equal(encode(x)[0], sinusoidal_encoding(5, 6, torch.bfloat16))


@pytest.mark.parametrize(
    ("length", "offset", "said"),
    [
        (10, 0, "positions 0 to 9"),
        (3, 7, "positions 7 to 9"),
        (3, 8, "positions 8 to 10"),
        (3, -1, "positions -1 to 1"),
    ],
    ids=["too long", "too far", "one row that would be broadcast", "before the first"],
)
def test_positions_beyond_the_table_are_refused(length, offset, said):
    with pytest.raises(ValueError, match=f"x must lie within max_length = 9, but has {said}$"):
        PositionalEncoding(4, 0.1, 9)(torch.zeros(2, length, 4), offset)


def test_the_whole_table_can_be_used_and_no_position_needs_none():
    encode = PositionalEncoding(4, 0.0, 9)
    assert torch.equal(encode(torch.zeros(2, 9, 4))[0], sinusoidal_encoding(9, 4))
    assert torch.equal(encode(torch.zeros(2, 1, 4), 8)[1], sinusoidal_encoding(9, 4)[8:])
    assert encode(torch.zeros(2, 0, 4), 9).shape == (2, 0, 4)
