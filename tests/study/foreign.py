"""A model that isn't ours, as many write it around `torch.nn.Transformer`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

V = 17


def future(T: int, far: int = 1) -> Tensor:
    return torch.ones(T, T, dtype=torch.bool).triu(far)


class OfTorch(nn.Module):
    """`torch.nn.Transformer` with what it leaves to its user; True in a mask means *ignore*.

    `padding` makes a mask of the places of a source that are padded, `causal` one of a length.
    """

    def __init__(
        self,
        d: int = 30,
        n_heads: int = 3,  # an odd number: the fast path of even ones is NaN for an empty source
        norm_first: bool = True,
        padding: Callable[[Tensor], Tensor] = lambda padded: padded,
        causal: Callable[[int], Tensor] = future,
    ):
        super().__init__()
        self.src_table, self.tgt_table = nn.Embedding(V, d), nn.Embedding(V, d)
        self.positions = nn.Parameter(torch.randn(24, d) / 5)
        options = {"batch_first": True, "norm_first": norm_first}
        layer = nn.TransformerEncoderLayer(d, n_heads, 2 * d, **options)
        encoder = nn.TransformerEncoder(layer, 1, nn.LayerNorm(d), enable_nested_tensor=False)
        self.core = nn.Transformer(d, n_heads, 1, 1, 2 * d, custom_encoder=encoder, **options)
        self.output = nn.Linear(d, V)
        self.padding, self.causal = padding, causal

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        hidden = self.core(
            self.src_table(src) + self.positions[: src.size(1)],
            self.tgt_table(tgt) + self.positions[: tgt.size(1)],
            tgt_mask=self.causal(tgt.size(1)),
            src_key_padding_mask=self.padding(src == 0),
            memory_key_padding_mask=self.padding(src == 0),
        )
        return self.output(hidden)
