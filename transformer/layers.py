"""transformer.layers, from book/04-layers.ipynb, "Layers".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "LayerNorm",
    "ACTIVATIONS",
    "FeedForward",
    "Residual",
    "attend",
    "EncoderLayer",
    "LayerCache",
    "DecoderLayer",
]


# %% book/04-layers.ipynb · Its gradient · [layer-norm]
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import KeyValueCache, Linear, MultiHeadAttention
from transformer.embedding import Dropout
from transformer.validation import (
    check_choice,
    check_features,
    check_number,
    check_place,
    check_rate,
    check_size,
    check_type,
)


class LayerNorm(nn.Module):
    """Brings every vector to mean 0 and variance 1, then scales and shifts each feature.

    Args:
        d_model: number of features.
        eps: added to the variance, under the root.
        bias: whether features are shifted.

    Raises:
        TypeError: `d_model` is not an `int`, `eps` no number, or `bias` no `bool`.
        ValueError: `d_model` is below 1, or `eps` is negative or not finite.

    Source: Ba et al. (2016), section 3.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        check_size(d_model=d_model)
        check_number(eps=eps)
        check_type(bool, bias=bias)
        self.d_model, self.eps = d_model, eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` `[..., d_model]`; the result has the same shape.

        Raises:
            TypeError: `x` is not a floating-point tensor, or not of the weights' dtype.
            ValueError: the last axis of `x` is not `d_model`, or `x` lies on another device.
        """
        check_features("x", x, self.d_model, rank=None)
        check_place("x", x, self.weight)
        return F.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)


# %% book/04-layers.ipynb · The position-wise network · [feed-forward]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class FeedForward(nn.Module):
    """Two dense layers with an activation between them, applied to every position alone.

    Args:
        d_model: width of input and output.
        d_ff: width of the hidden layer.
        dropout: rate of the dropout after the activation.
        activation: `"relu"` as in the paper, or `"gelu"`.
        bias: whether the two layers have one.

    Raises:
        TypeError: a size or the rate is not a number of the right kind, or `bias` no `bool`.
        ValueError: a size or the rate is out of its range, or the activation is unknown.

    Source: Vaswani et al. (2017), equation 2.
    """

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        dropout: float = 0.0,
        activation: str = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_size(d_model=d_model, d_ff=d_ff)
        check_rate(dropout=dropout)
        check_choice(sorted(ACTIVATIONS), activation=activation)
        check_type(bool, bias=bias)
        self.d_model, self.activation = d_model, activation
        self.w_1 = Linear(d_model, d_ff, bias)
        self.w_2 = Linear(d_ff, d_model, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the result has the same shape.

        Raises:
            TypeError: `x` is not a floating-point tensor, or not of the weights' dtype.
            ValueError: `x` has another shape, or lies on another device.
        """
        check_features("x", x, self.d_model)
        check_place("x", x, self.w_1.weight)
        return self.w_2(self.dropout(ACTIVATIONS[self.activation](self.w_1(x))))


# %% book/04-layers.ipynb · Where the norm goes · [residual]
class Residual(nn.Module):
    """A sublayer's way around: LayerNorm(x + sublayer(x)), or x + sublayer(LayerNorm(x)).

    Args:
        d_model: width of the vectors.
        dropout: rate of the dropout on what the sublayer returns.
        norm_first: the second form (pre-norm) instead of the first (post-norm).
        bias: whether the norm shifts.

    Raises:
        TypeError: `d_model` or the rate is not a number of the right kind, or a choice no `bool`.
        ValueError: `d_model` or the rate is out of its range.

    Source: Vaswani et al. (2017), sections 3.1 and 5.4 (post-norm); Xiong et al. (2020) (pre-norm).
    """

    def __init__(self, d_model: int, dropout: float, norm_first: bool, bias: bool = True) -> None:
        super().__init__()
        check_rate(dropout=dropout)
        check_type(bool, norm_first=norm_first)
        self.norm = LayerNorm(d_model, bias=bias)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer` to `x` `[..., d_model]` and add the result; the shape stays."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %% book/04-layers.ipynb · The encoder layer · [attend]
def attend(
    attention: MultiHeadAttention,
    query: Tensor,
    memory: Tensor,
    mask: Tensor | None,
    maps: list[Tensor] | None = None,
    cache: KeyValueCache | None = None,
) -> Tensor:
    """Attention as a sublayer: keys and values from one `memory`, weights noted where asked for.

    Args:
        attention: the attention to apply.
        query: `[B, T, d_model]`.
        memory: `[B, S, d_model]`, the source of keys and values.
        mask: as in `MultiHeadAttention`.
        maps: a list that the weights `[B, H, T, S]` are appended to; `None` to leave them out.
        cache: as in `MultiHeadAttention`.

    Returns:
        `[B, T, d_model]`.

    Raises:
        TypeError: `maps` is no list; and as in `MultiHeadAttention`.
        ValueError: as in `MultiHeadAttention`.
    """
    wanted = maps is not None
    if wanted:
        check_type(list, maps=maps)
    output, weights = attention(query, memory, memory, mask, need_weights=wanted, cache=cache)
    if wanted:
        maps.append(weights)
    return output


# %% book/04-layers.ipynb · The encoder layer · [encoder-layer]
class EncoderLayer(nn.Module):
    """Self-attention, then the position-wise network, each with its residual.

    Args:
        d_model: width of the vectors.
        n_heads: number of heads; divides d_model.
        d_ff: hidden width of the position-wise network.
        dropout: rate of the dropout on what each sublayer returns.
        attention_dropout: rate of the dropout on attention weights; none in the paper.
        activation_dropout: rate of the dropout after the activation; none in the paper.
        activation: of the position-wise network, `"relu"` or `"gelu"`.
        bias: whether linear layers and norms have one.
        norm_first: pre-norm instead of post-norm.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.

    Source: Vaswani et al. (2017), section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str = "relu",
        bias: bool = True,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        rates = {"attention_dropout": attention_dropout, "activation_dropout": activation_dropout}
        check_rate(dropout=dropout, **rates)
        self.d_model = d_model
        self.self_attention = MultiHeadAttention(d_model, n_heads, attention_dropout, bias)
        self.feed_forward = FeedForward(d_model, d_ff, activation_dropout, activation, bias)
        self.self_residual = Residual(d_model, dropout, norm_first, bias)
        self.feed_residual = Residual(d_model, dropout, norm_first, bias)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, maps: list[Tensor] | None = None
    ) -> Tensor:
        """Transform `x` `[B, S, d_model]`; the result has the same shape.

        Args:
            x: the vectors of the source positions.
            mask: `torch.bool`, broadcastable to `[B, H, S, S]`, True where a position may attend.
            maps: a list that the attention weights `[B, H, S, S]` are appended to.

        Raises:
            TypeError: `x` is not floating-point, or the mask is not boolean.
            ValueError: a shape does not fit.
        """
        check_features("x", x, self.d_model)
        x = self.self_residual(x, lambda y: attend(self.self_attention, y, y, mask, maps))
        return self.feed_residual(x, self.feed_forward)


# %% book/04-layers.ipynb · The decoder layer · [layer-cache]
class LayerCache:
    """What a decoder layer keeps between steps: its own keys and values, and the memory's."""

    def __init__(self) -> None:
        self.own = KeyValueCache()
        self.memory = KeyValueCache(growing=False)

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` (`torch.long`) in that order; K in sequence share a memory."""
        sharing = self.own.batch_size // max(self.memory.batch_size, 1)  # K
        self.own.reorder(rows)
        if sharing:
            self.memory.reorder(rows[::sharing] // sharing)


# %% book/04-layers.ipynb · The decoder layer · [decoder-layer]
class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the memory, then the position-wise network.

    Each of the three has its residual.

    Args:
        d_model: width of the vectors.
        n_heads, d_ff, dropout, bias, norm_first: as in `EncoderLayer`.
        attention_dropout, activation_dropout, activation: as in `EncoderLayer`.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: an argument is out of its range.

    Source: Vaswani et al. (2017), section 3.1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
        activation: str = "relu",
        bias: bool = True,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        rates = {"attention_dropout": attention_dropout, "activation_dropout": activation_dropout}
        check_rate(dropout=dropout, **rates)
        self.d_model = d_model
        self.self_attention = MultiHeadAttention(d_model, n_heads, attention_dropout, bias)
        self.cross_attention = MultiHeadAttention(d_model, n_heads, attention_dropout, bias)
        self.feed_forward = FeedForward(d_model, d_ff, activation_dropout, activation, bias)
        self.self_residual = Residual(d_model, dropout, norm_first, bias)
        self.cross_residual = Residual(d_model, dropout, norm_first, bias)
        self.feed_residual = Residual(d_model, dropout, norm_first, bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: LayerCache | None = None,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the result has the same shape.

        Args:
            x: the vectors of the target positions; with a cache, of the new ones only.
            memory: what the encoder returned, `[B, S, d_model]`.
            self_mask: `torch.bool`, broadcastable to `[B, H, T, T]`; with a cache, to
                `[B, H, T, positions so far]`. The layer itself adds no causal mask.
            memory_mask: `torch.bool`, broadcastable to `[B, H, T, S]`.
            cache: what this layer kept from earlier steps.
            maps: a list that the weights of both attentions are appended to, its own first.

        Raises:
            TypeError: `x` or `memory` is not floating-point, or a mask is not boolean.
            ValueError: a shape does not fit.
        """
        check_features("x", x, self.d_model)
        check_features("memory", memory, self.d_model)
        if cache is not None:
            check_type(LayerCache, cache=cache)
        own, kept = (cache.own, cache.memory) if cache is not None else (None, None)
        x = self.self_residual(x, lambda y: attend(self.self_attention, y, y, self_mask, maps, own))
        x = self.cross_residual(
            x, lambda y: attend(self.cross_attention, y, memory, memory_mask, maps, kept)
        )
        return self.feed_residual(x, self.feed_forward)
