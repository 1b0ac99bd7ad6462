"""transformer.embedding, from book/02-embedding.ipynb, "Tokens and positions".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["TokenEmbedding", "sinusoidal_encoding", "PositionalEncoding"]


# %% book/02-embedding.ipynb · Why multiply by a square root · [token-embedding]
import math
from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """A table with one row per token, looked up and multiplied by √d_model.

    Args:
        vocab_size: number of tokens V.
        d_model: width of a row.
        pad_id: the padding token, whose row gets no gradient from being looked up.

    Source: Vaswani et al. (2017), section 3.4. Rows start as N(0, 1/d_model).
    """

    def __init__(
        self, vocab_size: int, d_model: int, pad_id: int | None = None
    ) -> None:
        super().__init__()
        self.d_model, self.pad_id = d_model, pad_id
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        if not self.weight.is_meta:  # torch would load its compiler to draw nothing
            nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up token ids `[B, T]` and return their vectors `[B, T, d_model]`."""
        return F.embedding(ids, self.weight, self.pad_id) * math.sqrt(self.d_model)


# %% book/02-embedding.ipynb · Which speeds · [sinusoidal-encoding]
def sinusoidal_encoding(
    length: int, d_model: int, dtype: torch.dtype | None = None
) -> Tensor:
    """The table of sinusoidal position vectors: sines in even columns, cosines in odd.

    Args:
        length, d_model: positions, from 0, and width; if odd, the last sine is alone.
        dtype: of the result, or torch's default; angles are computed in float64.

    Returns:
        `[length, d_model]`: (p, 2i) holds sin(p / 10000^(2i/d_model)), (p, 2i+1) cos.

    Source: Vaswani et al. (2017), section 3.5.

    Example:
        >>> sinusoidal_encoding(3, 4)[2]
        tensor([ 0.9093, -0.4161,  0.0200,  0.9998])
    """
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # one a pair
    position = torch.arange(length, dtype=torch.float64)[:, None]  # [length, 1]
    angle = position * 10000.0**-exponent  # [length, ceil(d_model / 2)]
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]
    return table.to(dtype or torch.get_default_dtype())


# %% book/02-embedding.ipynb · Adding positions · [positional-encoding]
class PositionalEncoding(nn.Module):
    """Adds the sinusoidal position vectors to a sequence of vectors, then applies dropout.

    Args:
        d_model: width of a vector.
        dropout: rate of the dropout on the sum.
        max_length: number of positions in the table.

    Source: Vaswani et al. (2017), sections 3.5 and 5.4.
    """

    table: Tensor  # [max_length, d_model]

    def __init__(self, d_model: int, dropout: float, max_length: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("table", self._compute(max_length, d_model), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add positions `offset`, `offset + 1`, … to `x` `[B, T, d_model]`; the shape stays."""
        end = offset + x.size(1)
        if offset < 0 or end > len(self.table):  # a slice would silently be shorter
            given = f"has positions {offset} to {end - 1}"
            raise ValueError(f"x must lie within max_length = {len(self.table)}, but {given}")
        return self.dropout(x + self.table[offset:end].to(x))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        # Computed anew rather than cast, so that a model in float64 has positions in float64.
        length, d_model = self.table.shape
        table = self._compute(length, d_model, self.table.dtype)
        self.table = table.to(self.table.device)
        return self

    @staticmethod
    def _compute(length: int, d_model: int, dtype: torch.dtype | None = None) -> Tensor:
        with torch.device("cpu"):  # so the table has numbers even while the weights are still on "meta"
            return sinusoidal_encoding(length, d_model, dtype)
