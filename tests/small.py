"""A small model and its vocabulary, for tests of what is written and read."""

from __future__ import annotations

import torch

from transformer import Transformer, TransformerConfig, Vocabulary

VOCABULARY = Vocabulary.train(["o gato preto", "a casa branca"] * 3, 30)
SIZES = dict(d_model=8, n_heads=2, n_layers=1, d_ff=16, max_length=6)


def make_model(seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    size = len(VOCABULARY)
    return Transformer(TransformerConfig(size, size, **SIZES | changes)).eval()
