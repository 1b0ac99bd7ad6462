"""transformer.model, from book/05-model.ipynb, "The whole model".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "TransformerConfig",
    "Encoder",
    "Decoder",
    "DecoderCache",
    "initialize",
    "AttentionMaps",
    "Transformer",
]


# %% book/05-model.ipynb · What a model is told · [transformer-config]
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import causal_mask, fast_linear, padding_mask
from transformer.embedding import PositionalEncoding, TokenEmbedding
from transformer.layers import ACTIVATIONS, DecoderLayer, EncoderLayer, LayerCache, LayerNorm
from transformer.validation import (
    check_choice,
    check_features,
    check_ids,
    check_place,
    check_rate,
    check_size,
    check_type,
)


@dataclass(frozen=True)
class TransformerConfig:
    """Everything that determines a `Transformer` but its weights; by default, the base model.

    Args:
        src_vocab_size: number of source tokens.
        tgt_vocab_size: number of target tokens V.
        d_model: width of the vectors between layers.
        n_heads: number of attention heads; divides d_model.
        n_layers: number of encoder layers, and of decoder layers.
        d_ff: hidden width of the position-wise networks.
        dropout: rate of the dropout on embeddings and on what each sublayer returns.
        attention_dropout: rate of the dropout on attention weights; none in the paper.
        activation_dropout: rate of the dropout after the activation; none in the paper.
        activation: `"relu"` or `"gelu"`.
        bias: whether linear layers and norms have one.
        norm_first: pre-norm instead of post-norm.
        final_norm: whether each stack ends in a norm; `None`: as `norm_first`.
        tie_embeddings: whether source, target and output table are one parameter.
        pad_id, bos_id, eos_id: the tokens for padding, start and end.
        max_length: the longest sentence, source or target, in tokens.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of its range.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    activation: str = "relu"
    bias: bool = True
    norm_first: bool = False
    final_norm: bool | None = None
    tie_embeddings: bool = True
    pad_id: int = 0
    bos_id: int = 2
    eos_id: int = 3
    max_length: int = 512

    def __post_init__(self) -> None:
        def named(*names: str) -> dict[str, int | float | bool]:
            return {name: getattr(self, name) for name in names}

        check_size(**named("src_vocab_size", "tgt_vocab_size", "d_model", "n_heads", "n_layers"))
        check_size(**named("d_ff", "max_length"))
        check_size(minimum=0, **named("pad_id", "bos_id", "eos_id"))
        check_rate(**named("dropout", "attention_dropout", "activation_dropout"))
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads must divide d_model, but {self.n_heads} does not divide {self.d_model}"
            )
        check_choice(sorted(ACTIVATIONS), activation=self.activation)
        check_type(bool, **named("bias", "norm_first", "tie_embeddings"))
        check_type((bool, type(None)), final_norm=self.final_norm)
        if self.tie_embeddings and self.src_vocab_size != self.tgt_vocab_size:
            raise ValueError(
                "tie_embeddings needs equal vocabularies, but src_vocab_size is "
                f"{self.src_vocab_size} and tgt_vocab_size is {self.tgt_vocab_size}"
            )
        ends = {"pad_id": min(self.src_vocab_size, self.tgt_vocab_size)}
        for name in ("pad_id", "bos_id", "eos_id"):
            end, value = ends.get(name, self.tgt_vocab_size), getattr(self, name)
            if value >= end:
                raise ValueError(f"{name} must lie in [0, {end}), but is {value}")
        if self.eos_id == self.pad_id:
            raise ValueError(f"pad_id and eos_id must differ, but both are {self.eos_id}")

    @property
    def has_final_norm(self) -> bool:
        """Whether each stack ends in a norm."""
        return self.norm_first if self.final_norm is None else self.final_norm

    @property
    def layer_options(self) -> dict[str, int | float | str | bool]:
        """The arguments of `EncoderLayer` and `DecoderLayer`."""
        names = ("d_model", "n_heads", "d_ff", "dropout", "attention_dropout")
        names += ("activation_dropout", "activation", "bias", "norm_first")
        return {name: getattr(self, name) for name in names}


# %% book/05-model.ipynb · Two stacks · [stacks]
def _final_norm(config: TransformerConfig) -> nn.Module:
    # A stack without a norm on top has a module in its place that returns what it is given.
    return LayerNorm(config.d_model, bias=config.bias) if config.has_final_norm else nn.Identity()


class Encoder(nn.Module):
    """A stack of encoder layers on vectors, with a norm on top where the configuration has one.

    Args:
        config: sizes and choices; vocabularies and special ids play no part.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_type(TransformerConfig, config=config)
        layers = (EncoderLayer(**config.layer_options) for _ in range(config.n_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = _final_norm(config)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, maps: list[Tensor] | None = None
    ) -> Tensor:
        """Transform `x` `[B, S, d_model]`; arguments and result as in `EncoderLayer`."""
        for layer in self.layers:
            x = layer(x, mask, maps)
        return self.norm(x)


class Decoder(nn.Module):
    """A stack of decoder layers on vectors, with a norm on top where the configuration has one.

    Args:
        config: sizes and choices; vocabularies and special ids play no part.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_type(TransformerConfig, config=config)
        layers = (DecoderLayer(**config.layer_options) for _ in range(config.n_layers))
        self.layers = nn.ModuleList(layers)
        self.norm = _final_norm(config)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: "DecoderCache | None" = None,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """Transform `x` `[B, T, d_model]`; arguments and result as in `DecoderLayer`."""
        if cache is not None:
            check_type(DecoderCache, cache=cache)
            if len(cache.layers) != len(self.layers):
                wanted, given = len(self.layers), len(cache.layers)
                raise ValueError(f"cache must have {wanted} layers, but has {given}")
        for number, layer in enumerate(self.layers):
            kept = None if cache is None else cache.layers[number]
            x = layer(x, memory, self_mask, memory_mask, kept, maps)
        return self.norm(x)


# %% book/05-model.ipynb · What a decoder keeps · [decoder-cache]
class DecoderCache:
    """What a decoder keeps between the steps of a search, one `LayerCache` per layer.

    Args:
        n_layers: number of decoder layers.
    """

    def __init__(self, n_layers: int) -> None:
        check_size(n_layers=n_layers)
        self.layers = [LayerCache() for _ in range(n_layers)]

    @property
    def length(self) -> int:
        """Number of target positions kept so far."""
        return self.layers[0].own.length

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` in that order; one may be kept many times or not at all.

        Args:
            rows: `torch.long` `[B']`, numbers of batch rows.
        """
        for layer in self.layers:
            layer.reorder(rows)


# %% book/05-model.ipynb · Xavier's argument · [initialize]
def initialize(module: nn.Module) -> None:
    """Start a linear layer's weights Xavier-uniform and its bias at 0; leave other modules alone.

    Args:
        module: for `nn.Module.apply`, which calls this for every module inside another.

    Source: Glorot and Bengio (2010), equation 16.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# %% book/05-model.ipynb · The Transformer · [transformer]
class AttentionMaps(NamedTuple):
    """The attention weights of a forward pass, by layer."""

    encoder: Tensor  # [n_layers, B, H, S, S]
    decoder: Tensor  # [n_layers, B, H, T, T]
    cross: Tensor  # [n_layers, B, H, T, S]


class Transformer(nn.Module):
    """The encoder–decoder Transformer: token ids in, logits over the target vocabulary out.

    Args:
        config: sizes and choices.

    Source: Vaswani et al. (2017), figure 1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_type(TransformerConfig, config=config)
        self.config = config
        self.src_embedding = TokenEmbedding(config.src_vocab_size, config.d_model, config.pad_id)
        # A tied table needs neither memory nor random numbers of its own.
        with torch.device("meta") if config.tie_embeddings else nullcontext():
            V = config.tgt_vocab_size
            self.tgt_embedding = TokenEmbedding(V, config.d_model, config.pad_id)
            self.output = nn.Linear(config.d_model, V, bias=False)
        self.positions = PositionalEncoding(config.d_model, config.dropout, config.max_length)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.apply(initialize)
        if config.tie_embeddings:
            self.tgt_embedding.weight = self.output.weight = self.src_embedding.weight

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Predict every target token from the ones before it.

        Args:
            src: source token ids `[B, S]`, padded at the end.
            tgt: target token ids `[B, T]` that begin with the start token, padded at the end.

        Returns:
            logits `[B, T, V]`; those at position t are for target token t + 1.

        Raises:
            TypeError: ids are not `torch.long`.
            ValueError: a shape does not fit, or a sentence is longer than `max_length`.
            IndexError: an id is not in the vocabulary.
        """
        return self.project(self.decode(tgt, self.encode(src), self.src_mask(src)))

    def src_mask(self, src: Tensor) -> Tensor:
        """Which source positions hold a token: `[B, 1, 1, S]` from source token ids `[B, S]`."""
        return padding_mask(src, self.config.pad_id)

    def encode(self, src: Tensor, maps: list[Tensor] | None = None) -> Tensor:
        """Read the source.

        Args:
            src: source token ids `[B, S]`, padded at the end.
            maps: a list that every layer's attention weights `[B, H, S, S]` are appended to.

        Returns:
            the memory `[B, S, d_model]`.

        Raises:
            TypeError, ValueError, IndexError: as in `forward`.
        """
        check_ids("src", src, self.config.src_vocab_size)
        x = self.positions(self.src_embedding(src))                         # [B, S, d_model]
        return self.encoder(x, self.src_mask(src), maps)

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_mask: Tensor | None,
        cache: DecoderCache | None = None,
        maps: list[Tensor] | None = None,
    ) -> Tensor:
        """Read target tokens beside the memory.

        Args:
            tgt: target token ids `[B, T]`; with a cache, the ones that it has not seen, and possibly
                `[K·B, T]`, K rows in sequence for each row of the memory.
            memory: what `encode` returned, `[B, S, d_model]`.
            src_mask: which source positions hold a token, `[B, 1, 1, S]`; `None`: all do.
            cache: what earlier calls kept; it grows by T positions.
            maps: a list that every layer's attention weights are appended to, first those for
                its own positions, then those for the memory.

        Returns:
            hidden vectors `[B, T, d_model]`.

        Raises:
            TypeError, ValueError, IndexError: as in `forward`.
        """
        check_ids("tgt", tgt, self.config.tgt_vocab_size)
        check_features("memory", memory, self.config.d_model)
        if cache is not None:
            check_type(DecoderCache, cache=cache)
        if tgt.size(0) != memory.size(0) and (
            cache is None or tgt.size(0) % max(memory.size(0), 1)
        ):
            raise ValueError(
                "tgt and memory must have the same batch size, "
                f"not {tgt.size(0)} and {memory.size(0)}"
            )
        offset = 0 if cache is None else cache.length
        # Padding stands at the target's end, where causality already hides it from every token.
        self_mask = None
        if tgt.size(1) != 1:  # one may see all before it
            self_mask = F.pad(causal_mask(tgt.size(1), tgt.device), (offset, 0), value=True)
        x = self.positions(self.tgt_embedding(tgt), offset)                 # [B, T, d_model]
        return self.decoder(x, memory, self_mask, src_mask, cache, maps)

    def project(self, hidden: Tensor) -> Tensor:
        """Turn hidden vectors `[..., d_model]` into logits `[..., V]`.

        Raises:
            TypeError, ValueError: as in `LayerNorm`.
        """
        check_features("hidden", hidden, self.config.d_model, rank=None)
        check_place("hidden", hidden, self.output.weight)
        return fast_linear(hidden, self.output.weight)

    def attention_maps(self, src: Tensor, tgt: Tensor) -> AttentionMaps:
        """The attention weights of `forward(src, tgt)`, of every layer and head.

        Args:
            src: source token ids `[B, S]`.
            tgt: target token ids `[B, T]`.

        Returns:
            the weights of the encoder, of the decoder, and of the decoder for the memory. In
            training mode with attention dropout they are those of a pass of their own.
        """
        encoder: list[Tensor] = []
        decoder: list[Tensor] = []
        memory = self.encode(src, encoder)
        self.decode(tgt, memory, self.src_mask(src), maps=decoder)
        stacked = (torch.stack(maps) for maps in (encoder, decoder[0::2], decoder[1::2]))
        return AttentionMaps(*stacked)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> NamedTuple:
        """As in `torch.nn.Module`; a tied table stays one parameter also with `assign`."""
        with _staying_tied(self):
            return super().load_state_dict(state_dict, strict, assign)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        with _staying_tied(self):  # to_empty makes new parameters, module by module
            return super()._apply(fn, recurse)


@contextmanager
def _staying_tied(model: Transformer) -> Iterator[None]:
    # Whatever replaces a shared table in one module replaces it in all that share it.
    old = getattr(model.src_embedding, "weight", None)
    parts = (model.src_embedding, model.tgt_embedding, model.output)
    sharing = [part for part in parts if getattr(part, "weight", None) is old is not None]
    try:
        yield
    finally:
        new = [part.weight for part in sharing if part.weight is not old]
        for part in sharing if new else ():
            part.weight = new[-1]
