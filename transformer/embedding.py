"""transformer.embedding, from book/02-embedding.ipynb, "Tokens and positions".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["TokenEmbedding", "sinusoidal_encoding", "fast_dropout", "Dropout", "PositionalEncoding"]


# %% book/02-embedding.ipynb · Why √d_model · [token-embedding]
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.validation import (
    check_features,
    check_ids,
    check_place,
    check_rate,
    check_size,
    check_type,
    is_traced,
)


class TokenEmbedding(nn.Module):
    """A table with one row per token, looked up and multiplied by √d_model.

    Args:
        vocab_size: number of tokens V.
        d_model: width of a row.
        pad_id: the padding token, whose row gets no gradient from being looked up; `None` for no
            such token.

    Raises:
        TypeError: a size or `pad_id` is not an `int`.
        ValueError: a size is below 1, or `pad_id` is not in the vocabulary.

    Source: Vaswani et al. (2017), section 3.4. Rows start as N(0, 1/d_model), so that a looked-up
    vector has entries of variance 1.
    """

    def __init__(self, vocab_size: int, d_model: int, pad_id: int | None = None) -> None:
        super().__init__()
        check_size(vocab_size=vocab_size, d_model=d_model)
        if pad_id is not None:
            check_size(minimum=0, pad_id=pad_id)
            if pad_id >= vocab_size:
                raise ValueError(f"pad_id must be below vocab_size {vocab_size}, but is {pad_id}")
        self.vocab_size, self.d_model, self.pad_id = vocab_size, d_model, pad_id
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up token ids `[B, T]` (`torch.long`) and return their vectors `[B, T, d_model]`.

        Raises:
            TypeError: the ids are not `torch.long`.
            ValueError: they do not have two axes, or lie on another device than the table.
            IndexError: an id is not in the vocabulary; seen on the CPU, outside of tracing.
        """
        check_ids("ids", ids, self.vocab_size)
        check_place("ids", ids, self.weight)
        return F.embedding(ids, self.weight, self.pad_id) * math.sqrt(self.d_model)


# %% book/02-embedding.ipynb · Which speeds · [sinusoidal-encoding]
def sinusoidal_encoding(length: int, d_model: int, dtype: torch.dtype | None = None) -> Tensor:
    """The table of sinusoidal position vectors: sines in even columns, cosines in odd ones.

    Args:
        length: number of positions, counted from 0.
        d_model: width of a vector; where it is odd, the last column is a sine without its cosine.
        dtype: of the result; `None` for torch's default. Angles are always computed in float64.

    Returns:
        `[length, d_model]`, entry (p, 2i) = sin(p / 10000^(2i/d_model)), entry (p, 2i+1) the cosine
        of the same.

    Raises:
        TypeError: a size is not an `int`, or `dtype` no `torch.dtype`.
        ValueError: `length` is negative, `d_model` is below 1, or `dtype` not floating-point.

    Source: Vaswani et al. (2017), section 3.5.
    """
    check_size(minimum=0, length=length)
    check_size(d_model=d_model)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    check_type(torch.dtype, dtype=dtype)
    if not dtype.is_floating_point:
        raise ValueError(f"dtype must be floating-point, but is {dtype}")
    exponent = torch.arange(0, d_model, 2, dtype=torch.float64) / d_model  # [ceil(d_model / 2)]
    position = torch.arange(length, dtype=torch.float64)[:, None]  # [length, 1]
    angle = position * 10000.0**-exponent  # [length, ceil(d_model / 2)]
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :d_model]  # interleaved
    return table.to(dtype)


# %% book/02-embedding.ipynb · Dropout on the sum · [fast-dropout]
def fast_dropout(x: Tensor, rate: float) -> Tensor:
    """Compute `torch.nn.functional.dropout`, with cheaper random numbers on a processor.

    Args:
        x: any floating-point tensor.
        rate: the probability with which an entry becomes zero, in [0, 1); on a processor to the
            nearest multiple of 2⁻¹⁶.

    Returns:
        `x` with entries dropped and the others divided by the probability to be kept.

    Raises:
        TypeError: `rate` is no number.
        ValueError: `rate` lies outside [0, 1).

    Source: Srivastava et al. (2014).
    """
    check_rate(rate=rate)
    if rate == 0 or x.device.type != "cpu" or is_traced(x):
        return F.dropout(x, rate)
    dropped = min(round(rate * 2**16), 2**16 - 1)  # of 2¹⁶ equally likely numbers
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[: x.numel()].view(x.shape)  # from -2¹⁵ to 2¹⁵ - 1
    keep = torch.empty(x.shape, dtype=torch.uint8)  # truth values are slower to multiply with
    torch.ge(numbers, dropped - 2**15, out=keep)
    return (x * keep).mul_(2**16 / (2**16 - dropped))


class Dropout(nn.Dropout):
    """`torch.nn.Dropout`, computed by `fast_dropout`: it drops in training and nowhere else.

    Args:
        p: the rate.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of `x` in training; the shape stays."""
        return fast_dropout(x, self.p) if self.training else x


# %% book/02-embedding.ipynb · Dropout on the sum · [positional-encoding]
class PositionalEncoding(nn.Module):
    """Adds the sinusoidal position vectors to a sequence of vectors, then applies dropout.

    Args:
        d_model: width of a vector.
        dropout: rate of the dropout on the sum.
        max_length: number of positions in the table.

    Raises:
        TypeError: an argument is not a number of the right kind.
        ValueError: a size is below 1, or the rate is outside [0, 1).

    Source: Vaswani et al. (2017), sections 3.5 and 5.4.
    """

    def __init__(self, d_model: int, dropout: float, max_length: int) -> None:
        super().__init__()
        check_size(d_model=d_model, max_length=max_length)
        check_rate(dropout=dropout)
        self.d_model, self.max_length = d_model, max_length
        self.dropout = Dropout(dropout)
        self.register_buffer("table", sinusoidal_encoding(max_length, d_model), persistent=False)

    def forward(self, x: Tensor, offset: int = 0) -> Tensor:
        """Add positions `offset`, `offset + 1`, … to `x` `[B, T, d_model]`; the shape stays.

        Raises:
            TypeError: `x` is not a floating-point tensor, or `offset` no `int`.
            ValueError: `x` has another shape or lies on another device than the table, `offset` is
                negative, or a position lies beyond `max_length`.
        """
        check_features("x", x, self.d_model)
        if not torch.compiler.is_compiling():  # a traced offset is a symbol, not an int
            check_type(int, offset=offset)
        end = offset + x.size(1)
        if offset < 0 or end > self.max_length:
            raise ValueError(
                f"positions {offset} to {end - 1} do not fit into max_length {self.max_length}"
            )
        if self.table.is_meta and not x.is_meta:  # the weights came by load_state_dict(assign=True)
            self._fill(x)
        table = self.table[offset:end].to(x.dtype)
        check_place("x", x, table, "the table")
        return self.dropout(x + table)

    def _apply(self, fn, recurse=True):
        # Moved or cast, the table is computed anew: double() then gains digits, and a model built
        # on the meta device gets numbers together with its memory.
        super()._apply(fn, recurse)
        self._fill(self.table)
        return self

    def _fill(self, like: Tensor) -> None:
        table = sinusoidal_encoding(self.max_length, self.d_model, like.dtype)
        self.table = table.to(like.device)
