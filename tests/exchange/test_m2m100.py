"""A Transformer with the positions of M2M-100 and NLLB-200; `test_marian` compares it with the real class."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import close, refuses, scrambled
from torch import Tensor

from transformer import TransformerConfig, accelerate, check_model
from transformer.exchange.m2m100 import M2M100Positions, M2M100Transformer
from transformer.language.folder import savable

pytestmark = pytest.mark.usefixtures("float64")
SIZES = {"d_model": 12, "n_heads": 3, "n_layers": (3, 2), "d_ff": 20, "max_length": 24, "dropout": 0.0}
SPECIAL = {"pad_id": 1, "bos_id": 2, "eos_id": 2, "norm_first": True}


def ours_of(**changes) -> M2M100Transformer:
    torch.manual_seed(0)
    return scrambled(M2M100Transformer(TransformerConfig(29, 29, **SIZES | SPECIAL | changes))).eval()


def waves(length: int, d_model: int) -> Tensor:
    """Their table by its definition, entry by entry."""
    n = d_model // 2
    angle = lambda t, i: (t + 2) / 10000 ** (i / (n - 1))
    rows = [[f(angle(t, i)) for f in (math.sin, math.cos) for i in range(n)] for t in range(length)]
    return torch.tensor(rows)


@pytest.mark.parametrize("d_model", [4, 10, 64])
def test_positions_are_those_of_the_definition_and_stay_so_in_any_dtype(d_model):
    positions = M2M100Positions(d_model, 0.0, 1100)
    assert close(positions.table, waves(1100, d_model), atol=1e-12)
    x = torch.zeros(1, 7, d_model)
    assert close(positions(x, 5)[0], waves(12, d_model)[5:], atol=1e-12)
    assert torch.equal(positions.float().double().table, M2M100Positions(d_model, 0.0, 1100).table)
    with torch.device("meta"):
        assert not M2M100Positions(d_model, 0.0, 9).table.is_meta


@pytest.mark.parametrize("changes, said", [
    ({"d_model": 15}, r"d_model % 2 must be one of \[0\], not 1"),
    ({"d_model": 3}, "d_model must be at least 4, but is 3"),
    ({"pad_id": 0}, r"pad_id must be one of \[1\], not 0"),
    ({"bos_id": 1}, "pad_id and bos_id must differ here, but both are 1"),
], ids=str)  # fmt: skip
def test_what_m2m100_does_not_have_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        ours_of(**changes)


def test_it_is_a_transformer_that_sees_neither_future_nor_padding():
    assert check_model(ours_of()).passed
    positions = ours_of(dropout=0.5).positions.train()
    dropped = (positions(torch.ones(4, 24, 12)) == 0).double().mean()
    assert 0.4 < dropped < 0.6


def test_what_counts_on_the_papers_positions_refuses_it_in_one_line():
    with refuses(
        TypeError,
        "accelerate takes only what a configuration makes, but the model is of M2M100Transformer, "
        "not of Transformer",
    ):
        accelerate(ours_of())
    with pytest.raises(TypeError, match="no file could hold it, but positions.table is not as it makes it"):
        savable(ours_of(), torch.float32)
