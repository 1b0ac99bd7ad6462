"""Numbers that others have published, printed or expect in their tests: ours are the same."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from helpers import assert_close
from torch import Tensor, nn

from transformer import Transformer, TransformerConfig, beam_search, sinusoidal_encoding
from transformer.attention import KeyValueCache
from transformer.language.vocabulary import EOS_ID, PAD_ID


def test_sinusoids_are_those_that_roformers_tests_print():
    """Hugging Face transformers, tests/models/roformer/test_modeling_roformer.py.

    There all sines come first, then all cosines: column i is our column 2i, column d/2 + i our column 2i + 1.
    """
    narrow = [[0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.8415, 0.0464, 0.0022, 0.5403, 0.9989, 1.0]]
    wide = [[0.0] * 5, [0.8415, 0.8219, 0.8020, 0.7819, 0.7617], [0.9093, 0.9364, 0.9581, 0.9749, 0.9870]]
    table = sinusoidal_encoding(2, 6, torch.float64)
    assert_close(torch.cat([table[:, 0::2], table[:, 1::2]], dim=1), torch.tensor(narrow).double(), 6e-5)
    table = sinusoidal_encoding(3, 512, torch.float64)
    assert_close(table[:, 0:10:2], torch.tensor(wide).double(), 6e-5)


# Vaswani et al. (2017), table 3: millions of parameters, where they are printed.
TABLE_3 = {
    "base": ({}, 65),
    "C, two layers": ({"n_layers": 2}, 36),
    "C, four layers": ({"n_layers": 4}, 50),
    "C, eight layers": ({"n_layers": 8}, 80),
    "C, d_model 256": ({"d_model": 256}, 28),
    "C, d_model 1024": ({"d_model": 1024}, 168),
    "C, d_ff 1024": ({"d_ff": 1024}, 53),
    "C, d_ff 4096": ({"d_ff": 4096}, 90),
    "big": ({"d_model": 1024, "d_ff": 4096, "n_heads": 16}, 213),
}


@cache
def millions(**changes) -> float:
    with torch.device("meta"):
        model = Transformer(TransformerConfig(37_000, 37_000, **changes))
    return sum(parameter.numel() for parameter in model.parameters()) / 1e6


@pytest.mark.slow
@pytest.mark.parametrize("changes, printed", TABLE_3.values(), ids=TABLE_3)
def test_parameters_are_as_many_as_the_paper_prints(changes, printed):
    """The vocabulary's size is "about 37,000". Where the width is the base's, it cancels out."""
    found = millions(**changes)
    assert found == pytest.approx(printed, rel=0.07)
    if "d_model" not in changes:
        assert found - millions() == pytest.approx(printed - 65, abs=1.0)


class PrefixModel(nn.Module):
    """A model whose next token depends on sentence and beginning, by tables of probabilities.

    The beginning is kept where a model keeps it, in the cache, so that the search has to reorder it.
    """

    def __init__(self, tables: list[dict[tuple, dict[int, float]]], vocab_size: int = 7):
        super().__init__()
        self.config = TransformerConfig(
            vocab_size, vocab_size, d_model=1, n_heads=1, n_layers=1, max_length=20
        )
        self.tables = tables

    def encode(self, src: Tensor) -> Tensor:
        return src[:, :1, None].double()

    def src_mask(self, src: Tensor) -> Tensor:
        return torch.ones(len(src), 1, 1, 1, dtype=torch.bool)

    def decode(self, tgt: Tensor, memory: Tensor, src_mask: Tensor, cache: KeyValueCache) -> Tensor:
        last = tgt[:, None, :, None].double()
        beginnings, _ = cache.append(self, lambda: (last, last))
        rows = []
        for sentence, beginning in zip(
            memory[:, 0, 0].long().tolist(), beginnings[:, 0, 1:, 0].long().tolist()
        ):
            row = self.tables[sentence].get(tuple(beginning), {self.config.eos_id: 1.0})
            rows.append([row.get(token, 0.0) for token in range(self.config.tgt_vocab_size)])
        return torch.tensor(rows, dtype=torch.float64)[:, None]

    def project(self, hidden: Tensor) -> Tensor:
        return hidden.log()


E, W1, W2 = EOS_ID, 4, 5

# facebookresearch/fairseq, tests/utils.py, sequence_generator_setup: two sentences, a beam of two.
FAIRSEQ = [
    {
        (): {W1: 0.9, W2: 0.1},
        (W1,): {E: 1.0},
        (W2,): {W1: 0.9, W2: 0.1},
        (W2, W1): {W1: 0.1, W2: 0.9},
        (W2, W2): {E: 0.6, W1: 0.2, W2: 0.2},
    },
    {
        (): {W1: 0.7, W2: 0.3},
        (W1,): {E: 0.25, W1: 0.35, W2: 0.4},
        (W2,): {W1: 0.1, W2: 0.9},
        (W1, W2): {E: 0.6, W1: 0.4},
        (W2, W2): {E: 0.01, W2: 0.99},
        (W2, W2, W2): {E: 0.1, W1: 0.5, W2: 0.4},
    },
]


@pytest.mark.parametrize("alpha, swapped", [(0.0, []), (0.6, []), (3.0, [1]), (10.0, [1])])
def test_beam_search_finds_what_fairseqs_tests_expect(alpha, swapped):
    """tests/test_sequence_generator.py: without normalization, and with penalties that favor short and long.

    Its penalty is another (the length to the power of α): the same order needs a larger exponent here.
    """
    expected = [
        [((W1, E), [0.9, 1.0]), ((W2, W1, W2, E), [0.1, 0.9, 0.9, 1.0])],
        [((W1, W2, E), [0.7, 0.4, 0.6]), ((W1, W2, W1, E), [0.7, 0.4, 0.4, 1.0])],
    ]
    tokens, scores = beam_search(PrefixModel(FAIRSEQ), torch.tensor([[0], [1]]), 2, alpha, max_length=8)
    for sentence, hypotheses in enumerate(expected):
        if sentence in swapped:
            hypotheses = hypotheses[::-1]
        for rank, (hypothesis, probabilities) in enumerate(hypotheses):
            row = tokens[sentence, rank].tolist()
            assert tuple(row[: len(hypothesis)]) == hypothesis and set(row[len(hypothesis) :]) <= {PAD_ID}
            score = sum(map(math.log, probabilities)) / ((5 + len(hypothesis)) / 6) ** alpha
            assert scores[sentence, rank].item() == pytest.approx(score)
