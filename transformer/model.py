"""transformer.model, from book/05-model.ipynb, "The whole model".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "TransformerConfig", "Encoder", "Decoder", "initialize", "Transformer", "attention_tap", "AttentionMaps",
]


# %% book/05-model.ipynb · The configuration · [model-imports]
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import KeyValueCache, MultiHeadAttention, causal_mask, padding_mask
from transformer.embedding import PositionalEncoding, TokenEmbedding
from transformer.layers import DecoderLayer, EncoderLayer, LayerConfig, LayerNorm
from transformer.validation import check_config, check_ids, check_memory, check_positions, check_type


# %% book/05-model.ipynb · The configuration · [transformer-config]
@dataclass(frozen=True)
class TransformerConfig(LayerConfig):
    """All that determines a `Transformer` but its weights; by default, the base model.

    The fields of `LayerConfig` are among its arguments.

    Args:
        src_vocab_size, tgt_vocab_size: number of source tokens; of target tokens V.
        n_layers: of either stack; or a pair, of the encoder and of the decoder.
        final_norm: whether each stack ends in a norm; `None`: as `norm_first`.
        tie_embeddings: whether source, target and output table are one parameter.
        pad_id, bos_id, eos_id: the tokens for padding, start and end.
        max_length: the longest sentence, source or target, in tokens.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of its range.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    _: KW_ONLY
    n_layers: int | tuple[int, int] = 6
    final_norm: bool | None = None
    tie_embeddings: bool = True
    pad_id: int = 0
    bos_id: int = 2
    eos_id: int = 3
    max_length: int = 512

    def __post_init__(self) -> None:
        check_config(self)
        encoder, decoder = self.depths  # equal models get equal settings, from JSON too
        depths = encoder if encoder == decoder else (encoder, decoder)
        object.__setattr__(self, "n_layers", depths)

    @property
    def depths(self) -> tuple[int, int]:
        """How many layers the encoder has, and how many the decoder."""
        N = self.n_layers
        return (N, N) if isinstance(N, int) else (N[0], N[1])

    @property
    def has_final_norm(self) -> bool:
        """Whether each stack ends in a norm."""
        return self.norm_first if self.final_norm is None else self.final_norm


# %% book/05-model.ipynb · Two stacks · [stacks]
class Encoder(nn.Module):
    """A stack of encoder layers, with a norm on top where `config.has_final_norm`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        depth, _ = config.depths
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(depth))
        self.norm = _final_norm(config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Transform `x` `[B, S, d_model]`; arguments as in `EncoderLayer`."""
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


# %% book/05-model.ipynb · Two stacks · [decoder-stack]
class Decoder(nn.Module):
    """A stack of decoder layers, with a norm on top where `config.has_final_norm`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        _, depth = config.depths
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(depth))
        self.norm = _final_norm(config)

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Transform `x` `[B, T, d_model]`; arguments as in `DecoderLayer`."""
        for layer in self.layers:
            x = layer(x, memory, self_mask, memory_mask, cache)
        return self.norm(x)


def _final_norm(config: TransformerConfig) -> nn.Module:
    if config.has_final_norm:
        return LayerNorm(config.d_model, bias=config.bias)
    return nn.Identity()


# %% book/05-model.ipynb · The Transformer · [visible]
def _visible(tgt: Tensor, offset: int) -> Tensor | None:
    # What T tokens may attend to, after `offset` others: [1, 1, T, offset + T], or all.
    if tgt.size(1) == 1:
        return None
    return F.pad(causal_mask(tgt.size(1), tgt.device), (offset, 0), value=True)


# %% book/05-model.ipynb · The Transformer · [initialize]
def initialize(module: nn.Module) -> None:
    """Start a linear layer's weights Xavier-uniform and its bias at 0.

    Source: Glorot and Bengio (2010), equation 16.
    """
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# %% book/05-model.ipynb · The Transformer · [tied-tables]
def _keep_tied(model: "Transformer", state_dict: dict[str, Any], prefix: str, how: Any, *_: Any) -> None:
    # Tied tables are one parameter: they take equal ones, and stay one even with `assign=True`.
    shared = getattr(model.src_embedding, "weight", None)
    tables = "src_embedding", "tgt_embedding", "output"
    tied = [name for name in tables if getattr(getattr(model, name), "weight", None) is shared]
    names = [f"{prefix}{name}.weight" for name in tied if shared is not None]
    first, *others = [name for name in names if name in state_dict] or [""]
    for name in others:
        if not (state_dict[first].is_meta or state_dict[first].equal(state_dict[name])):
            raise ValueError(f"{first} and {name} must be equal, being tied, but differ")
    if first and how.get("assign_to_params_buffers"):
        state_dict |= dict.fromkeys(names, nn.Parameter(state_dict[first], False))


# %% book/05-model.ipynb · The Transformer · [transformer]
class Transformer(nn.Module):
    """The encoder–decoder Transformer: token ids in, logits over target tokens out.

    Ids or vectors that don't fit its `config` raise TypeError, ValueError, IndexError.

    Source: Vaswani et al. (2017), figure 1.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        check_type(TransformerConfig, config=config)
        self.config = config
        c = config
        self.src_embedding = TokenEmbedding(c.src_vocab_size, c.d_model, c.pad_id)
        with torch.device("meta") if c.tie_embeddings else nullcontext():
            self.tgt_embedding = TokenEmbedding(c.tgt_vocab_size, c.d_model, c.pad_id)
            self.output = nn.Linear(c.d_model, c.tgt_vocab_size, bias=False)
        self.positions = PositionalEncoding(c.d_model, c.dropout, c.max_length)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.apply(initialize)
        if c.tie_embeddings:
            self.tgt_embedding.weight = self.src_embedding.weight
            self.output.weight = self.src_embedding.weight

    def src_mask(self, src: Tensor) -> Tensor:
        """Which source positions hold a token: `[B, 1, 1, S]` from ids `[B, S]`."""
        return padding_mask(src, self.config.pad_id)

    def encode(self, src: Tensor) -> Tensor:
        """Read source token ids `[B, S]`; return the memory `[B, S, d_model]`."""
        check_ids("src", src, self.config.src_vocab_size)
        check_positions("src", src.size(1), self.config.max_length)
        return self.encoder(self.positions(self.src_embedding(src)), self.src_mask(src))

    def decode(
        self, tgt: Tensor, memory: Tensor, src_mask: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Read target ids `[B, T]` and the memory; return vectors `[B, T, d_model]`.

        `src_mask` `[B, 1, 1, S]` hides padding; with a `cache`, `tgt` is what's new.
        """
        check_ids("tgt", tgt, self.config.tgt_vocab_size)
        check_memory(memory, tgt, self.config.d_model)
        offset = cache.length if cache else 0
        check_positions("tgt", offset + tgt.size(1), self.config.max_length)
        x = self.positions(self.tgt_embedding(tgt), offset)  # [B, T, d_model]
        return self.decoder(x, memory, _visible(tgt, offset), src_mask, cache)

    def project(self, hidden: Tensor) -> Tensor:
        """Turn hidden vectors `[..., d_model]` into logits `[..., V]`."""
        return self.output(hidden)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Read source ids `[B, S]` and target ids `[B, T]`, padded at their ends.

        From the start token and those up to t, predict token t + 1: logits `[B, T, V]`.
        """
        return self.project(self.decode(tgt, self.encode(src), self.src_mask(src)))

    def attention_maps(self, src: Tensor, tgt: Tensor) -> "AttentionMaps":
        """The attention weights of `forward(src, tgt)`, from a pass of its own."""
        with attention_tap(self) as maps:
            self(src, tgt)
        return _by_layer(maps, self.config.depths)

    def _load_from_state_dict(self, state_dict: dict[str, Any], *rest: Any) -> None:
        _keep_tied(self, state_dict, *rest)
        super()._load_from_state_dict(state_dict, *rest)


# %% book/05-model.ipynb · Attention maps · [attention-tap]
@contextmanager
def attention_tap(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the weights of every attention in a model while it runs.

    Yields:
        a dict that fills up: each attention's name, and its weights `[B, H, T, S]`.
    """

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "need_weights": True}

    def note(name: str, module: nn.Module, args: Any, output: Any) -> None:
        maps[name] = output[1]

    maps: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(partial(note, name)))
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


# %% book/05-model.ipynb · Attention maps · [attention-maps]
class AttentionMaps(NamedTuple):
    """The attention weights of a forward pass, by layer."""

    encoder: Tensor  # [n_layers, B, H, S, S]
    decoder: Tensor  # [n_layers, B, H, T, T]
    cross: Tensor  # [n_layers, B, H, T, S]


def _by_layer(maps: dict[str, Tensor], depths: tuple[int, int]) -> AttentionMaps:
    def stacked(side: str, kind: str, depth: int) -> Tensor:
        names = [f"{side}.layers.{i}.{kind}_attention" for i in range(depth)]
        return torch.stack([maps[name] for name in names])

    encoder, decoder = depths
    return AttentionMaps(
        stacked("encoder", "self", encoder),
        stacked("decoder", "self", decoder),
        stacked("decoder", "cross", decoder),
    )
