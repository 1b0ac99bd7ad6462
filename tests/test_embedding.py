"""Tokens and positions: lookups equal to torch's and to one-hot products, positions that rotate."""

from __future__ import annotations

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from transformer import Dropout, PositionalEncoding, TokenEmbedding, fast_dropout, sinusoidal_encoding

IDS = torch.tensor([[1, 5, 5, 0, 2], [6, 1, 0, 0, 0], [3, 3, 3, 4, 6]])  # [B=3, T=5]


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-10) -> bool:
    return a.shape == b.shape and torch.allclose(a, b.to(a.dtype), rtol=0, atol=atol)


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


# -------------------------------------------------------------------------------------------------
# Token embedding
# -------------------------------------------------------------------------------------------------


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


@given(st.data())
def test_lookup_is_a_product_with_one_hot_rows(data):
    vocab_size, d_model, batch, length = (data.draw(st.integers(1, 9)) for _ in range(4))
    ids = torch.randint(vocab_size, (batch, length))
    embedding = TokenEmbedding(vocab_size, d_model).double()
    one_hot = F.one_hot(ids, vocab_size).double()  # [B, T, V]

    x = embedding(ids)
    assert close(x, one_hot @ embedding.weight * math.sqrt(d_model))
    arriving = torch.randn(batch, length, d_model, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(x, embedding.weight, arriving)
    assert close(gradient, math.sqrt(d_model) * torch.einsum("btv,btd->vd", one_hot, arriving))


def test_looked_up_vectors_start_with_variance_one():
    embedding = TokenEmbedding(vocab_size=3000, d_model=48)
    x = embedding(torch.arange(3000)[None])
    assert abs(x.mean()) < 0.02 and abs(x.var() - 1) < 0.02


def test_the_table_is_the_only_parameter_and_starts_at_random():
    assert list(TokenEmbedding(7, 4, pad_id=0).state_dict()) == ["weight"]
    assert not torch.equal(TokenEmbedding(7, 4).weight, TokenEmbedding(7, 4).weight)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)], ids=str)
def test_no_ids_give_no_vectors(shape):
    assert TokenEmbedding(7, 4)(torch.zeros(shape, dtype=torch.long)).shape == (*shape, 4)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0, 4), ValueError, "vocab_size must be at least 1, but is 0"),
        ((7, -4), ValueError, "d_model must be at least 1, but is -4"),
        ((7.0, 4), TypeError, "vocab_size must be an int, not float (7.0)"),
        ((7, 4, 7), ValueError, "pad_id must be below vocab_size 7, but is 7"),
        ((7, 4, -1), ValueError, "pad_id must be at least 0, but is -1"),
        ((7, 4, "0"), TypeError, "pad_id must be an int, not str ('0')"),
    ],
)
def test_token_embedding_refuses(arguments, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        TokenEmbedding(*arguments)


@pytest.mark.parametrize(
    ("ids", "error", "said"),
    [
        (IDS + 1, IndexError, "ids must lie in [0, 7), but holds 7"),
        (IDS - 1, IndexError, "ids must lie in [0, 7), but holds -1"),
        (IDS.int(), TypeError, "ids must be a torch.long tensor, not torch.int32"),
        (IDS[0], ValueError, "ids must have shape [batch, length], not [5]"),
    ],
    ids=["too large", "negative", "int32", "one axis"],
)
def test_token_embedding_refuses_ids(ids, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        TokenEmbedding(7, 4)(ids)


# -------------------------------------------------------------------------------------------------
# Sinusoidal table
# -------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(1, 33))
def test_table_is_the_papers_formula(length, d_model):
    table = sinusoidal_encoding(length, d_model, torch.float64)
    assert close(table, written_out(length, d_model), atol=1e-12)


@given(st.integers(-60, 60), st.integers(1, 20))
def test_a_shift_is_a_rotation(k, pairs):
    table = sinusoidal_encoding(120, 2 * pairs, torch.float64)
    here, there = table[max(0, -k) : 120 - max(0, k)], table[max(0, k) : 120 + min(0, k)]
    assert close(here @ rotation(k, 2 * pairs).T, there)


@given(st.integers(1, 20))
def test_dot_products_depend_on_the_distance_alone(pairs):
    table = sinusoidal_encoding(50, 2 * pairs, torch.float64)
    omega = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    distance = torch.arange(50)[:, None] - torch.arange(50)
    assert close(table @ table.T, torch.cos(distance[..., None] * omega).sum(-1))


def test_positions_are_all_different():
    table = sinusoidal_encoding(2000, 64, torch.float64)
    apart = torch.cdist(table, table) + 100 * torch.eye(2000)
    assert apart.min() > 1


def test_a_longer_table_begins_with_the_shorter():
    assert torch.equal(sinusoidal_encoding(30, 7)[:12], sinusoidal_encoding(12, 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_only_the_result_is_rounded(dtype):
    far = sinusoidal_encoding(6000, 12, dtype)
    assert far.dtype == dtype
    assert torch.equal(far, sinusoidal_encoding(6000, 12, torch.float64).to(dtype))


def test_dtype_is_torchs_default_where_none_is_given():
    assert sinusoidal_encoding(2, 4).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((-1, 4), ValueError, "length must be at least 0, but is -1"),
        ((3, 0), ValueError, "d_model must be at least 1, but is 0"),
        ((3.0, 4), TypeError, "length must be an int, not float (3.0)"),
    ],
)
def test_table_refuses(arguments, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        sinusoidal_encoding(*arguments)


# -------------------------------------------------------------------------------------------------
# Adding positions
# -------------------------------------------------------------------------------------------------


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


def test_gradient_passes_unchanged():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=5).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    arriving = torch.randn(3, 5, 6, dtype=torch.float64)
    assert torch.equal(torch.autograd.grad(encode(x), x, arriving)[0], arriving)


def test_the_table_is_neither_trained_nor_stored():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=5)
    assert list(encode.parameters()) == [] and encode.state_dict() == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_a_cast_module_has_the_table_of_that_dtype(dtype):
    model = nn.Sequential(PositionalEncoding(d_model=7, dropout=0.0, max_length=300)).to(dtype)
    assert torch.equal(model[0].table, sinusoidal_encoding(300, 7, dtype))
    assert model(torch.zeros(1, 3, 7, dtype=dtype)).dtype == dtype


def test_casting_there_and_back_loses_nothing():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=300)
    assert torch.equal(encode.half().float().table, sinusoidal_encoding(300, 6))


def test_a_module_built_without_memory_gets_its_table_with_it():
    with torch.device("meta"):
        model = nn.Sequential(PositionalEncoding(d_model=6, dropout=0.0, max_length=9))
    assert model[0].table.is_meta
    assert torch.equal(model.to_empty(device="cpu")[0].table, sinusoidal_encoding(9, 6))


def test_result_has_the_dtype_of_the_vectors():
    encode = PositionalEncoding(d_model=6, dropout=0.0, max_length=5)
    x = torch.zeros(1, 5, 6, dtype=torch.bfloat16)
    assert torch.equal(encode(x)[0], sinusoidal_encoding(5, 6, torch.bfloat16))


def test_embedding_and_positions_compile_into_one_graph():
    model = nn.Sequential(TokenEmbedding(7, 4, pad_id=0), PositionalEncoding(4, 0.0, 20)).double()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(IDS), model(IDS))


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((0, 0.1, 9), ValueError, "d_model must be at least 1, but is 0"),
        ((4, 1.0, 9), ValueError, "dropout must lie in [0, 1), but is 1.0"),
        ((4, "no", 9), TypeError, "dropout must be a number, not str ('no')"),
        ((4, 0.1, 0), ValueError, "max_length must be at least 1, but is 0"),
    ],
)
def test_positional_encoding_refuses(arguments, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        PositionalEncoding(*arguments)


@pytest.mark.parametrize(
    ("x", "offset", "error", "said"),
    [
        (torch.zeros(2, 10, 4), 0, ValueError, "positions 0 to 9 do not fit into max_length 9"),
        (torch.zeros(2, 3, 4), 7, ValueError, "positions 7 to 9 do not fit into max_length 9"),
        (torch.zeros(2, 3, 4), -1, ValueError, "positions -1 to 1 do not fit into max_length 9"),
        (
            torch.zeros(2, 3, 5),
            0,
            ValueError,
            "x must have 3 axes, the last of size 4, not shape [2, 3, 5]",
        ),
        (IDS, 0, TypeError, "x must be a floating-point tensor, not torch.int64"),
    ],
    ids=["too long", "too far", "before the first", "too wide", "ids"],
)
def test_positional_encoding_refuses_vectors(x, offset, error, said):
    with pytest.raises(error, match=f"^{re.escape(said)}$"):
        PositionalEncoding(4, 0.1, 9)(x, offset)


# Dropout with cheap random numbers --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.97])
def test_dropout_drops_its_share_and_scales_the_rest(rate, dtype):
    torch.manual_seed(0)
    x = torch.randn(401, 503, dtype=torch.float64).abs().add(1).to(dtype)  # nothing is 0 by itself
    y = fast_dropout(x, rate)
    assert y.dtype == dtype and y.shape == x.shape
    lost = y == 0
    sigma = math.sqrt(rate * (1 - rate) / x.numel())
    assert abs(lost.double().mean() - rate) < 4 * sigma
    factor = 2**16 / (2**16 - round(rate * 2**16))
    torch.testing.assert_close(y[~lost], x[~lost] * factor)
    for axis in (0, 1):  # rows and columns lose alike
        shares = lost.double().mean(axis)
        assert abs(shares - rate).max() < 6 * sigma * math.sqrt(x.size(1 - axis))


def test_dropout_draws_from_torch_s_generator_and_anew_each_time():
    x = torch.ones(7, 9)
    torch.manual_seed(3)
    first, second = fast_dropout(x, 0.5), fast_dropout(x, 0.5)
    torch.manual_seed(3)
    assert torch.equal(fast_dropout(x, 0.5), first) and not torch.equal(first, second)


def test_the_gradient_of_dropout_goes_the_way_of_what_was_kept():
    x = torch.randn(50, 20, dtype=torch.float64, requires_grad=True)
    y = fast_dropout(x, 0.3)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(slope * x, y)
    assert set(slope.unique().tolist()) == {0.0, 2**16 / (2**16 - 19661)}


@pytest.mark.parametrize("rate", [0.0, 1e-6, 0.999999])
def test_extreme_rates_of_dropout(rate):
    torch.manual_seed(0)
    y = fast_dropout(torch.ones(3, 5), rate)
    assert torch.isfinite(y).all() and torch.equal(y, torch.full((3, 5), float(rate < 0.5)))


def test_dropout_is_nothing_outside_of_training_and_torch_s_own_when_captured():
    x = torch.ones(40, 50)
    layer = Dropout(0.5)
    assert layer.eval()(x) is x
    compiled = torch.compile(layer.train(), fullgraph=True, backend="eager")
    torch.manual_seed(0)
    found = compiled(x)
    torch.manual_seed(0)
    assert torch.equal(found, F.dropout(x, 0.5))
    assert fast_dropout(x.to("meta"), 0.5).is_meta


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_impossible_rates_of_dropout_are_refused(rate):
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\)"):
        fast_dropout(torch.ones(3), rate)
