"""transformer.layers, from book/04-layers.ipynb, "Layers".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "LayerNorm", "ACTIVATIONS", "FeedForward", "LayerConfig", "Residual", "EncoderLayer", "DecoderLayer",
]


# %% book/04-layers.ipynb · Its gradient · [layer-norm]
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import KeyValueCache, MultiHeadAttention


class LayerNorm(nn.Module):
    """Brings each vector to mean 0 and variance 1, then scales and shifts its features.

    Args:
        d_model: number of features.
        eps: added to the variance, under the root.
        bias: whether features are shifted.

    Source: Ba et al. (2016), section 3.
    """

    def __init__(self, d_model: int, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.d_model, self.eps = d_model, eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` `[..., d_model]`; the shape stays."""
        return F.layer_norm(x, (self.d_model,), self.weight, self.bias, self.eps)


# %% book/04-layers.ipynb · The position-wise feed-forward network · [feed-forward]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}


# %% book/04-layers.ipynb · The position-wise feed-forward network · [feed-forward-class]
class FeedForward(nn.Module):
    """Two dense layers with an activation between them, applied to each position alone.

    Args:
        d_model, d_ff: width of input and output, and of the hidden layer.
        dropout: rate of the dropout after the activation.
        activation: `"relu"` as in the paper, `"gelu"` or `"silu"`.
        bias: whether the two layers have one.

    Source: Vaswani et al. (2017), equation 2.
    """

    def __init__(
        self, d_model: int, d_ff: int, dropout: float = 0.0, activation: str = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        known = [*ACTIVATIONS]
        if activation not in known:
            raise ValueError(f"activation must be one of {known}, not {activation!r}")
        self.activation = activation
        self.w_1 = nn.Linear(d_model, d_ff, bias)
        self.w_2 = nn.Linear(d_ff, d_model, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the shape stays."""
        return self.w_2(self.dropout(ACTIVATIONS[self.activation](self.w_1(x))))


# %% book/04-layers.ipynb · The encoder layer · [layer-config]
@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The settings of an encoder or decoder layer; by default, the base model's.

    Args:
        d_model, d_ff: width of the vectors, and of the network's hidden layer.
        n_heads: number of attention heads; divides d_model.
        dropout: rate of the dropout on what each sublayer returns.
        attention_dropout, activation_dropout: of attention weights, of activations.
        activation: of the position-wise network, `"relu"`, `"gelu"` or `"silu"`.
        bias: whether linear layers and norms have one.
        norm_first: pre-norm instead of post-norm.
    """

    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    bias: bool = True
    norm_first: bool = False


# %% book/04-layers.ipynb · The encoder layer · [residual]
class Residual(nn.Module):
    """A sublayer with its residual: LayerNorm(x + f(x)), or x + f(LayerNorm(x)).

    Source: Vaswani et al. (2017), sections 3.1, 5.4; pre-norm: Xiong et al. (2020).
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.norm_first = config.norm_first
        self.norm = LayerNorm(config.d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer` to `x` `[..., d_model]` and add it; the shape stays."""
        if self.norm_first:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


# %% book/04-layers.ipynb · The encoder layer · [layer-parts]
def _attention(config: LayerConfig) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model, config.n_heads, config.attention_dropout, config.bias
    )


def _feed_forward(config: LayerConfig) -> FeedForward:
    return FeedForward(
        config.d_model, config.d_ff, config.activation_dropout, config.activation,
        config.bias,
    )


# %% book/04-layers.ipynb · The encoder layer · [encoder-layer]
class EncoderLayer(nn.Module):
    """Self-attention, then the position-wise network, each with its residual.

    Source: Vaswani et al. (2017), section 3.1.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.self_residual = Residual(config)
        self.feed_residual = Residual(config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform `x` `[B, S, d_model]`; the shape stays.

        `mask` is `torch.bool`, broadcastable to `[B, H, S, S]`, True = may attend.
        """
        x = self.self_residual(x, lambda y: self.self_attention(y, y, y, mask)[0])
        return self.feed_residual(x, self.feed_forward)


# %% book/04-layers.ipynb · The decoder layer · [decoder-layer]
class DecoderLayer(nn.Module):
    """Self-attention, attention to the memory, and the network, each with its residual.

    Source: Vaswani et al. (2017), section 3.1.
    """

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.self_residual = Residual(config)
        self.cross_residual = Residual(config)
        self.feed_residual = Residual(config)

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the shape stays.

        Args:
            x: the target positions; with a cache of earlier ones, only the new.
            memory: what the encoder returned, `[B, S, d_model]`.
            self_mask: `torch.bool`, to `[B, H, T, positions so far]`; not made causal.
            memory_mask: `torch.bool`, broadcastable to `[B, H, T, S]`.
        """
        append, hold = (cache.append, cache.hold) if cache else (None, None)

        def attend(y: Tensor) -> Tensor:
            return self.self_attention(y, y, y, self_mask, cache=append)[0]

        def read(y: Tensor) -> Tensor:
            return self.cross_attention(y, memory, memory, memory_mask, cache=hold)[0]

        x = self.self_residual(x, attend)
        x = self.cross_residual(x, read)
        return self.feed_residual(x, self.feed_forward)
