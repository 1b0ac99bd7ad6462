"""transformer.modern, from book/16-since-2017.ipynb, "Since 2017".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "RMSNorm",
    "GATES",
    "GatedFeedForward",
    "route",
    "RoutedFeedForward",
    "balance_loss",
    "rotary_table",
    "rotate",
    "RotaryStretch",
    "alibi",
    "LanguageModelConfig",
    "GroupedQueryAttention",
    "cache_bytes",
    "sliding_mask",
    "prefix_mask",
    "LanguageModelLayer",
    "LanguageModel",
    "most_probable",
    "generate",
    "from_llama",
    "next_token_loss",
    "probabilities",
    "Draw",
    "random_draw",
    "accept",
    "RewindableCache",
    "speculative_decoding",
    "wsd_rate",
    "orthogonalize",
]


# %% book/16-since-2017.ipynb · A norm without the mean · [rms-norm]
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import KeysAndValues, KeyValueCache, Projection, causal_mask, fused_attention
from transformer.interop import ForeignFolder, fitted_weights, refusing_damage
from transformer.layers import ACTIVATIONS
from transformer.model import initialize
from transformer.training import cooldown, evaluating
from transformer.validation import (
    check_choice,
    check_ids,
    check_number,
    check_size,
    check_type,
)


class RMSNorm(nn.Module):
    """Brings every vector to mean square 1, then scales each feature.

    Args:
        d_model: number of features.
        eps: added to the mean square, under the root.

    Source: Zhang and Sennrich (2019), equation 4.
    """

    weight: nn.Parameter

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` `[..., d_model]`; the shape stays."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)  # [..., 1]
        normalized = wide * torch.rsqrt(mean_square + self.eps)
        # Weights that are more precise than x, as Gemma's are, multiply before the result is rounded.
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        return (normalized.to(dtype) * self.weight).to(x.dtype)


# %% book/16-since-2017.ipynb · A network with a gate · [gated-feed-forward]
GATES = ACTIVATIONS | {"gelu_tanh": partial(F.gelu, approximate="tanh")}


class GatedFeedForward(nn.Module):
    """The position-wise network with a gate: what one layer lets through is decided by another.

    Args:
        d_model: width of input and output.
        d_ff: width of the hidden layer.
        activation: of the gate, a name in `GATES`.

    Source: Shazeer (2020), equation 6; with `"silu"` it is SwiGLU.
    """

    w_gate: nn.Linear
    w_1: nn.Linear
    w_2: nn.Linear

    def __init__(self, d_model: int, d_ff: int, activation: str = "silu") -> None:
        super().__init__()
        self.activation = activation
        self.w_gate = nn.Linear(d_model, d_ff, bias=False)
        self.w_1 = nn.Linear(d_model, d_ff, bias=False)
        self.w_2 = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the shape stays."""
        return self.w_2(GATES[self.activation](self.w_gate(x)) * self.w_1(x))


# %% book/16-since-2017.ipynb · Many networks, few used · [routed-feed-forward]
def route(scores: Tensor, n_chosen: int) -> tuple[Tensor, Tensor]:
    """The experts with the highest of the scores `[..., E]`, and their gates, both `[..., n_chosen]`."""
    highest, chosen = scores.topk(n_chosen, dim=-1)
    wide = torch.promote_types(scores.dtype, torch.float32)
    return chosen, highest.softmax(-1, dtype=wide).to(scores.dtype)


class RoutedFeedForward(nn.Module):
    """Several gated networks, of which each token uses the few that a router chooses.

    Args:
        d_model: width of input and output.
        d_ff: width of the hidden layer of each network.
        n_experts: number of networks E.
        n_chosen: how many of them a token uses.
        activation: of the gates inside the networks, a name in `GATES`.

    Source: Jiang et al. (2024), section 2.1.
    """

    router: nn.Linear
    experts: nn.ModuleList

    def __init__(
        self, d_model: int, d_ff: int, n_experts: int = 8, n_chosen: int = 2, activation: str = "silu"
    ) -> None:
        super().__init__()
        check_size(n_experts=n_experts, n_chosen=n_chosen)
        check_choice(range(1, n_experts + 1), n_chosen=n_chosen)
        self.n_chosen = n_chosen
        self.router = nn.Linear(d_model, n_experts, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(d_model, d_ff, activation) for _ in range(n_experts))

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the shape stays."""
        tokens = x.flatten(0, -2)  # [N, d_model]
        chosen, gates = route(self.router(tokens), self.n_chosen)  # [N, n_chosen]
        result = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, rank = (chosen == index).nonzero(as_tuple=True)  # the tokens that chose it
            result.index_add_(0, rows, gates[rows, rank, None] * expert(tokens[rows]))
        return result.view_as(x)


# %% book/16-since-2017.ipynb · Many networks, few used · [balance-loss]
def balance_loss(scores: Tensor, n_chosen: int) -> Tensor:
    """How unevenly a router uses its experts: 1 if evenly, E if it always uses the same one alone.

    Args:
        scores: of a router, `[..., E]`.
        n_chosen: how many experts a token uses.

    Returns:
        the loss, a scalar, to be added to the others with a small factor.

    Source: Fedus et al. (2022), equations 4 to 6.
    """
    n_experts = scores.size(-1)
    chosen, _ = route(scores, n_chosen)
    share = F.one_hot(chosen, n_experts).to(scores).flatten(0, -2).mean(0)  # [E]
    return n_experts * share @ scores.softmax(-1).flatten(0, -2).mean(0)


# %% book/16-since-2017.ipynb · Positions that turn · [rotary-table]
def rotary_table(
    length: int,
    d_k: int,
    base: float = 10_000.0,
    offset: int = 0,
    stretch: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Cosine and sine of the angles by which the pairs of features turn at each position.

    Args:
        length: number of positions.
        d_k: width of a head, even.
        base: of the wavelengths; pair i turns by base^(-2i / d_k) per position.
        offset: the first position.
        stretch: a function that changes the speeds `[d_k / 2]`; `None` changes nothing.

    Returns:
        `[2, length, d_k / 2]` in float64: cosines, sines.

    Source: Su et al. (2024), section 3.2.2.
    """
    speeds = base ** (-torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)  # [d_k / 2]
    if stretch is not None:
        speeds = stretch(speeds)
    positions = torch.arange(offset, offset + length, dtype=torch.float64)
    angles = torch.outer(positions, speeds)  # [T, d_k / 2]
    return torch.stack([angles.cos(), angles.sin()])


# %% book/16-since-2017.ipynb · Positions that turn · [rotate]
def rotate(x: Tensor, table: Tensor, interleaved: bool = False) -> Tensor:
    """Turn the pairs of features of queries or keys by the angles of their positions.

    Args:
        x: `[..., T, d_k]`.
        table: what `rotary_table` returned, `[2, T, d_k / 2]`, of the dtype and device of `x`.
        interleaved: whether features 2i and 2i + 1 are a pair, or features i and i + d_k / 2.

    Returns:
        `[..., T, d_k]`, every vector as long as before.

    Source: Su et al. (2024), equation 34.
    """
    first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
    cos, sin = table  # [T, d_k / 2]
    turned = first * cos - second * sin, first * sin + second * cos
    return torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)


# %% book/16-since-2017.ipynb · Longer texts than before · [rotary-stretch]
@dataclass(frozen=True)
class RotaryStretch:
    """Slows down slow rotations, for texts longer than those that a model was trained on at first.

    Args:
        factor: by which the slow ones are slowed down.
        slow: a rotation with fewer turns than this within `length` is slow.
        fast: one with more turns stays as it is.
        length: number of positions of the texts at first.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of its range.

    Source: `rope_scaling` of Llama 3.1; Peng et al. (2024), section 3.2.
    """

    factor: float = 8.0
    slow: float = 1.0
    fast: float = 4.0
    length: int = 8192

    def __post_init__(self) -> None:
        check_number(factor=self.factor, slow=self.slow, fast=self.fast)
        check_size(length=self.length)
        if self.factor < 1:
            raise ValueError(f"factor must be at least 1, but is {self.factor}")
        if self.slow >= self.fast:
            raise ValueError(f"slow must be below fast, but they are {self.slow} and {self.fast}")

    def __call__(self, speeds: Tensor) -> Tensor:
        """The new speeds, of the shape of `speeds`."""
        turns = self.length * speeds / (2 * math.pi)
        kept = ((turns - self.slow) / (self.fast - self.slow)).clamp(0.0, 1.0)
        return speeds * (kept + (1 - kept) / self.factor)


# %% book/16-since-2017.ipynb · Positions as a slope · [alibi]
def alibi(query: Tensor, key: Tensor) -> KeysAndValues:
    """Give queries and keys two more features, which lower a score by its distance times the head's slope.

    Args:
        query: `[B, H, T, d_k]`.
        key: `[B, H, S, d_k]`, of the positions 0 to S - 1, in half precision at most 65,536.

    Returns:
        both, with d_k + 2 features. Head h of H, counted from 1, has the slope 2^(-8h / H).

    Source: Press et al. (2022), section 3.
    """
    n_heads, length, d_k = key.shape[1:]
    slopes = 2 ** (-8 / n_heads * torch.arange(1, n_heads + 1, dtype=torch.float64))  # [H]
    places = torch.arange(length)
    digits = torch.stack([places // 256, places % 256], dim=-1).to(key)  # [S, 2]
    # Attention will divide by √(d_k + 2), but old scores need √d_k, and the new ones 1.
    weights = math.sqrt(d_k + 2) * torch.stack([256 * slopes, slopes], dim=-1)[:, None]  # [H, 1, 2]
    query = query * math.sqrt((d_k + 2) / d_k)
    query = torch.cat([query, weights.to(query).expand(*query.shape[:3], 2)], dim=-1)
    return query, torch.cat([key, digits.expand(*key.shape[:2], -1, -1)], dim=-1)


# %% book/16-since-2017.ipynb · What the model is told · [config]
@dataclass(frozen=True)
class LanguageModelConfig:
    """Everything that determines a `LanguageModel` except its weights.

    Args:
        vocab_size: number of tokens V.
        d_model: width of the vectors.
        n_heads: number of attention heads.
        n_kv_heads: number of heads of keys and values; divides `n_heads`. `None`: `n_heads`.
        d_head: width of a head; `None`: d_model / n_heads.
        n_layers: number of layers.
        d_ff: hidden width of the gated network.
        activation: of the gate, `"silu"`, `"gelu_tanh"`, `"gelu"` or `"relu"`.
        positions: how a layer knows them: `"rotary"`, `"alibi"` or `"none"`.
        rotary_base: as in `rotary_table`.
        rotary_stretch: for texts longer than those of the training at first; `None`: none.
        window: how many positions a query may attend to, itself included; `None`: all so far.
        qk_norm: whether queries and keys are normalized.
        norm_eps: epsilon of all norms.
        scale_embedding: whether embeddings are multiplied by √d_model, rounded to their dtype.
        tie_embeddings: whether input and output table are one parameter.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of its range.
    """

    vocab_size: int
    _: KW_ONLY
    d_model: int = 512
    n_heads: int = 8
    n_kv_heads: int | None = None
    d_head: int | None = None
    n_layers: int = 6
    d_ff: int = 1408
    activation: str = "silu"
    positions: str = "rotary"
    rotary_base: float = 10_000.0
    rotary_stretch: RotaryStretch | None = None
    window: int | None = None
    qk_norm: bool = False
    norm_eps: float = 1e-6
    scale_embedding: bool = False
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        _check_config(self)

    @property
    def kv_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def d_k(self) -> int:
        """The width of a head."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head


# %% book/16-since-2017.ipynb · What the model is told · [check-config]
def _check_config(config: LanguageModelConfig) -> None:
    for name in ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff"):
        check_size(**{name: getattr(config, name)})
    for name in ("n_kv_heads", "d_head", "window"):
        if getattr(config, name) is not None:
            check_size(**{name: getattr(config, name)})
    for name in ("qk_norm", "scale_embedding", "tie_embeddings"):
        check_type(bool, **{name: getattr(config, name)})
    check_type((RotaryStretch, type(None)), rotary_stretch=config.rotary_stretch)
    check_choice(sorted(GATES), activation=config.activation)
    check_choice(("rotary", "alibi", "none"), positions=config.positions)
    check_number(rotary_base=config.rotary_base, norm_eps=config.norm_eps)
    if config.rotary_base == 0:
        raise ValueError("rotary_base must be positive, but is 0")
    if config.d_head is None and config.d_model % config.n_heads:
        given = f"{config.n_heads} does not divide {config.d_model}"
        raise ValueError(f"n_heads must divide d_model where d_head is None, but {given}")
    if config.n_heads % config.kv_heads:
        given = f"{config.kv_heads} does not divide {config.n_heads}"
        raise ValueError(f"n_kv_heads must divide n_heads, but {given}")
    if config.positions == "rotary" and config.d_k % 2:
        raise ValueError(f"d_head must be even for rotary positions, but is {config.d_k}")


# %% book/16-since-2017.ipynb · Normalized queries and keys · [grouped-attention]
class GroupedQueryAttention(nn.Module):
    """Self-attention in which groups of heads share their keys and values.

    Args:
        config: sizes and choices.

    Source: Ainslie et al. (2023), section 2.2; with one shared head, Shazeer (2019), section 3.
    """

    d_k: int
    uses_alibi: bool
    group: int
    w_q: nn.Linear
    w_k: nn.Linear
    w_v: nn.Linear
    w_o: nn.Linear
    q_norm: nn.Module
    k_norm: nn.Module

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.d_k, self.uses_alibi = config.d_k, config.positions == "alibi"
        self.group = config.n_heads // config.kv_heads  # heads that share their keys and values
        d_model, width, kv_width = config.d_model, config.n_heads * self.d_k, config.kv_heads * self.d_k
        self.w_q = nn.Linear(d_model, width, bias=False)
        self.w_k = nn.Linear(d_model, kv_width, bias=False)
        self.w_v = nn.Linear(d_model, kv_width, bias=False)
        self.w_o = nn.Linear(width, d_model, bias=False)
        self.q_norm = RMSNorm(self.d_k, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.d_k, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        table: Tensor | None = None,
        cache: Callable[[nn.Module, Projection], KeysAndValues] | None = None,
    ) -> Tensor:
        """Let every position attend to the positions that the mask allows.

        Args:
            x: `[B, T, d_model]`; with a cache, of the new positions only.
            mask: `torch.bool`, broadcastable to `[B, H, T, S]`, True where a position may attend.
            table: of `rotary_table`, for these positions; `None`: nothing turns.
            cache: `append` of a `KeyValueCache`; S then counts what is kept as well.

        Returns:
            `[B, T, d_model]`.
        """

        def turned(x: Tensor) -> Tensor:
            return x if table is None else rotate(x, table)

        def project() -> KeysAndValues:
            return turned(self.k_norm(self._split(self.w_k(x)))), self._split(self.w_v(x))

        q = turned(self.q_norm(self._split(self.w_q(x))))  # [B, H, T, d_k]
        kept = project() if cache is None else cache(self, project)  # [B, H_kv, S, d_k]
        k, v = (one.repeat_interleave(self.group, dim=1) for one in kept)  # [B, H, S, d_k]
        if self.uses_alibi:
            q, k = alibi(q, k)
        return self.w_o(fused_attention(q, k, v, mask).transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.d_k)).transpose(1, 2)  # [B, T, H·d_k] -> [B, H, T, d_k]


# %% book/16-since-2017.ipynb · The arithmetic of the cache · [cache-bytes]
def cache_bytes(
    config: LanguageModelConfig, length: int, batch: int = 1, dtype: torch.dtype = torch.bfloat16
) -> int:
    """The bytes of all keys and values of `batch` sequences of `length` tokens."""
    numbers = 2 * config.n_layers * batch * config.kv_heads * length * config.d_k
    return numbers * dtype.itemsize


# %% book/16-since-2017.ipynb · Who may see what · [masks]
def sliding_mask(
    length: int, offset: int = 0, window: int | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Which positions may be attended to: the query's own, and those before it in the window.

    Args:
        length: number of queries T.
        offset: number of positions before the first of them.
        window: how many positions a query may attend to, itself included; `None`: all so far.
        device: where to put the mask.

    Returns:
        `torch.bool` `[1, 1, T, offset + T]`, True = may attend.

    Source: Beltagy et al. (2020), section 3.1.
    """
    mask = F.pad(causal_mask(length, device), (offset, 0), value=True)
    return mask if window is None else mask.triu(offset - window + 1)


def prefix_mask(length: int, prefix: Tensor) -> Tensor:
    """A causal mask in which the first tokens, which are given, all see one another.

    Args:
        length: number of positions T.
        prefix: how many tokens of each sequence are given, `[B]`.

    Returns:
        `torch.bool` `[B, 1, T, T]`, True = may attend.

    Source: Raffel et al. (2020), section 3.2.1.
    """
    given = torch.arange(length, device=prefix.device) < prefix[:, None, None, None]  # [B, 1, 1, T]
    return causal_mask(length, prefix.device) | given


# %% book/16-since-2017.ipynb · The whole model · [layer]
class LanguageModelLayer(nn.Module):
    """Self-attention, then the gated network, each after a norm and with a residual connection.

    Args:
        config: sizes and choices.
    """

    attention_norm: RMSNorm
    attention: GroupedQueryAttention
    feed_norm: RMSNorm
    feed_forward: nn.Module

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = GroupedQueryAttention(config)
        self.feed_norm = RMSNorm(config.d_model, config.norm_eps)
        self.feed_forward = GatedFeedForward(config.d_model, config.d_ff, config.activation)

    def forward(
        self, x: Tensor, mask: Tensor, table: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Transform `x` `[B, T, d_model]`; mask and table as in `GroupedQueryAttention`."""
        append = cache.append if cache else None
        x = x + self.attention(self.attention_norm(x), mask, table, append)
        return x + self.feed_forward(self.feed_norm(x))


# %% book/16-since-2017.ipynb · The whole model · [language-model]
class LanguageModel(nn.Module):
    """The decoder-only Transformer: token ids in, logits of the next tokens out.

    Args:
        config: sizes and choices.

    Source: Touvron et al. (2023), section 2.2.

    Example:
        >>> model = LanguageModel(LanguageModelConfig(20, d_model=16, n_heads=2, n_layers=1, d_ff=40))
        >>> model(torch.tensor([[5, 7, 3]])).shape
        torch.Size([1, 3, 20])
    """

    config: LanguageModelConfig
    embedding: nn.Embedding
    layers: nn.ModuleList
    norm: RMSNorm
    output: nn.Linear

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__()
        check_type(LanguageModelConfig, config=config)
        self.config, V, d_model = config, config.vocab_size, config.d_model
        self.embedding = nn.Embedding(V, d_model)
        self.layers = nn.ModuleList(LanguageModelLayer(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(d_model, config.norm_eps)
        self.output = nn.Linear(d_model, V, bias=False)
        self.apply(initialize)
        nn.init.normal_(self.embedding.weight, std=d_model**-0.5)
        if config.tie_embeddings:
            self.output.weight = self.embedding.weight

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        """Predict every token from the ones before it.

        Args:
            ids: token ids `[B, T]`; with a cache, the ones that it has not seen.
            mask: which positions may be attended to, broadcastable to `[B, H, T, S]`; `None`:
                `sliding_mask`.
            cache: what earlier calls have kept; it grows by T positions.

        Returns:
            logits `[B, T, V]`; those at position t are for token t + 1.

        Raises:
            TypeError: ids are not `torch.long`.
            ValueError: they do not have two axes.
            IndexError: an id is not in the vocabulary.
        """
        check_ids("ids", ids, self.config.vocab_size)
        length, offset, config = ids.size(1), cache.length if cache else 0, self.config
        if mask is None:
            mask = sliding_mask(length, offset, config.window, ids.device)
        x, table = self.embedding(ids), None  # [B, T, d_model]
        if config.scale_embedding:
            x = x * x.new_full((), math.sqrt(config.d_model))
        if config.positions == "rotary":
            table = rotary_table(
                length, config.d_k, config.rotary_base, offset, config.rotary_stretch
            ).to(x)
        for layer in self.layers:
            x = layer(x, mask, table, cache)
        return self.output(self.norm(x))


# %% book/16-since-2017.ipynb · Writing · [most-probable]
def most_probable(logits: Tensor) -> Tensor:
    """The token with the largest of the logits `[..., V]`."""
    return logits.argmax(-1)


# %% book/16-since-2017.ipynb · Writing · [generate]
@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    n_tokens: int,
    choose: Callable[[Tensor], Tensor] = most_probable,
    eos_id: int | None = None,
) -> Tensor:
    """Continue sequences token by token, with a cache.

    Args:
        model: the model.
        prompt: token ids `[B, T]`, at least one each.
        n_tokens: how many tokens to add, at most.
        choose: which token follows, `[B]`, from logits `[B, V]`.
        eos_id: the token that ends a text, and then fills its row; `None`: no text ends.

    Returns:
        the new token ids `[B, L]`; L is `n_tokens`, or less where all texts have ended.

    Raises:
        TypeError, ValueError, IndexError: as in `LanguageModel.forward`; the prompt is empty.
    """
    check_ids("prompt", prompt, model.config.vocab_size, always=True)
    check_size(n_tokens=n_tokens, prompt_length=prompt.size(1))
    tokens, cache = prompt, KeyValueCache()
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    with evaluating(model):
        for _ in range(n_tokens):
            logits = model(tokens[:, cache.length :], cache=cache)[:, -1]  # [B, V]
            chosen = choose(logits)
            if eos_id is not None:
                chosen = chosen.masked_fill(ended, eos_id)
                ended = chosen == eos_id
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            if ended.all():
                break
    return tokens[:, prompt.size(1) :]


# %% book/16-since-2017.ipynb · Is it the real thing? · [llama-names]
_PARTS = {
    "self_attn": "attention",
    "q_proj": "w_q",
    "k_proj": "w_k",
    "v_proj": "w_v",
    "o_proj": "w_o",
    "mlp": "feed_forward",
    "gate_proj": "w_gate",
    "up_proj": "w_1",
    "down_proj": "w_2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_norm",
    "embed_tokens": "embedding",
    "lm_head": "output",
}
_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "d_ff",
    "rms_norm_eps": "norm_eps",
}
_OPTIONAL = ("num_key_value_heads", "head_dim", "rms_norm_eps")  # where theirs and ours assume the same
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen3": {"qk_norm": True},
    "gemma": {"scale_embedding": True},
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_STRETCH = {
    "factor": "factor",
    "low_freq_factor": "slow",
    "high_freq_factor": "fast",
    "original_max_position_embeddings": "length",
}


def _our_name(name: str) -> str:
    path = name.removeprefix("model.").split(".")
    return ".".join(_PARTS.get(part, part) for part in path)


# %% book/16-since-2017.ipynb · Is it the real thing? · [llama-config]
def _config_from_llama(theirs: Mapping[str, Any]) -> LanguageModelConfig:
    check_choice(list(_FAMILIES), model_type=theirs.get("model_type"))
    family: str = theirs["model_type"]
    named = [f"{family.capitalize()}ForCausalLM"]
    check_choice([named, None], architectures=theirs.get("architectures"))
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        check_choice([False, None], **{name: theirs.get(name)})
    rotary = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    check_type(dict, rope_parameters=rotary)
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    check_choice(["default", "llama3"], rope_type=kind)
    stretch = {ours: rotary[name] for name, ours in _STRETCH.items()} if kind == "llama3" else None
    base = rotary.get("rope_theta", theirs.get("rope_theta"))
    activation = theirs.get("hidden_activation") or theirs.get("hidden_act", "silu")
    check_choice(list(_ACTIVATIONS), hidden_act=activation)
    if family == "gemma" and activation == "gelu":  # as older configurations call the other form
        activation = "gelu_pytorch_tanh"
    told = [name for name in _FIELDS if name in theirs or name not in _OPTIONAL]
    return LanguageModelConfig(
        **{_FIELDS[name]: theirs[name] for name in told},
        **_FAMILIES[family],
        activation=_ACTIVATIONS[activation],
        rotary_base=10_000.0 if base is None else base,
        rotary_stretch=None if stretch is None else RotaryStretch(**stretch),
        window=theirs.get("sliding_window") if family == "mistral" else None,
        tie_embeddings=theirs.get("tie_word_embeddings", family == "gemma"),
    )


# %% book/16-since-2017.ipynb · Is it the real thing? · [from-llama]
def from_llama(model: Any) -> LanguageModel:
    """Make a `LanguageModel` that computes what a model of Llama's form does, with copies of its weights.

    Args:
        model: a `LlamaForCausalLM` of Hugging Face's `transformers`, or the Mistral, Qwen3 or Gemma
            (1) model of the same kind; or the path of a folder with its `config.json` and its
            weights as safetensors, for which `transformers` is not needed.

    Returns:
        a `LanguageModel` of the same dtype and device; Gemma's norms are at least in float32.

    Raises:
        TypeError: `model` is neither a path nor such a model.
        ValueError: it is of another family, or does what ours cannot: biases, rotary
            positions scaled in another way than Llama 3.1's, windows in some layers only, other
            activations; its weights are not those of its configuration, or not finite.
        OSError, CheckpointError: as in `ForeignFolder`; what is refused in a folder is a
            `CheckpointError` as well.
        ImportError: safetensors is not installed.
    """
    if isinstance(model, str | Path):
        folder = ForeignFolder(model)
        with refusing_damage(folder.path):
            return _from_llama(folder.settings, folder.shapes, folder.weights)
    check_type(nn.Module, model=model)
    check_type(nn.Module, **{"model.lm_head": getattr(model, "lm_head", None)})
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    shapes = {name: value.shape for name, value in weights.items()}
    return _from_llama(model.config.to_dict(), shapes, lambda: weights)


def _from_llama(
    settings: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
) -> LanguageModel:
    config = _config_from_llama(settings)
    # Older files hold a table of the rotary speeds, which are computed here.
    shapes = {name: shape for name, shape in shapes.items() if not name.endswith(".rotary_emb.inv_freq")}
    names = {name: _our_name(name) for name in shapes}
    with torch.device("meta"):
        plan = LanguageModel(replace(config, n_layers=1))
    weights = fitted_weights(shapes, read, names, plan, config.n_layers, {})
    if settings["model_type"] == "gemma":  # whose norms multiply by 1 + weight
        wide = torch.promote_types(weights["norm.weight"].dtype, torch.float32)
        weights |= {name: value.to(wide) + 1 for name, value in weights.items() if "norm." in name}
    kinds = {value.dtype for name, value in weights.items() if "norm." not in name}
    if len(kinds) > 1:
        raise ValueError(f"all matrices must be of one dtype, not of {' and '.join(sorted(map(str, kinds)))}")
    with torch.device("meta"):
        ours = LanguageModel(config)
    ours.load_state_dict(weights, strict=False, assign=True)  # of a shared table, only one name is there
    if config.tie_embeddings:
        ours.output.weight = ours.embedding.weight
    return ours.eval()


# %% book/16-since-2017.ipynb · A model that writes · [next-token-loss]
def next_token_loss(model: nn.Module, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of every token of `ids` `[B, T + 1]` but the first, and their number, for `fit`."""
    logits, targets = model(ids[:, :-1]), ids[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return loss, torch.tensor(targets.numel(), device=ids.device)


# %% book/16-since-2017.ipynb · Guessing ahead · [probabilities]
def probabilities(logits: Tensor) -> Tensor:
    """The probabilities `[..., V]` that a model's logits `[..., V]` stand for."""
    return logits.softmax(-1)


# %% book/16-since-2017.ipynb · Guessing ahead · [accept]
Draw = Callable[[Tensor], int]


def random_draw(probabilities: Tensor) -> int:
    """A random index, from probabilities `[V]`."""
    return int(torch.multinomial(probabilities, 1))


def accept(proposed: list[int], q: Tensor, p: Tensor, draw: Draw = random_draw) -> list[int]:
    """Keep proposed tokens up to the first refusal: the result is distributed as the large model says.

    Args:
        proposed: n tokens, each drawn from its row of `q`.
        q: the small model's probabilities `[n, V]`.
        p: the large model's `[n + 1, V]`, those after the last proposed token included.
        draw: how an index is drawn.

    Returns:
        the tokens that are kept, and one more.

    Source: Leviathan et al. (2023), algorithm 1.
    """
    for t, token in enumerate(proposed):
        kept = min(1.0, float(p[t, token] / q[t, token]))
        if not draw(torch.tensor([1 - kept, kept], dtype=p.dtype)):
            # Through rounding alone, all could be 0.
            rest = (p[t] - q[t]).clamp(min=torch.finfo(p.dtype).tiny)
            return [*proposed[:t], draw(rest / rest.sum())]
    return [*proposed, draw(p[-1])]


# %% book/16-since-2017.ipynb · Guessing ahead · [rewindable-cache]
class RewindableCache(KeyValueCache):
    """A `KeyValueCache` that can forget the latest positions."""

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions, where there are more."""
        self.length = min(self.length, length)
        for attention, (room, _) in self._grown.items():
            self._grown[attention] = room, self.length


# %% book/16-since-2017.ipynb · Guessing ahead · [speculative-decoding]
@torch.no_grad()
def speculative_decoding(
    model: LanguageModel,
    draft: LanguageModel,
    prompt: Tensor,
    n_tokens: int,
    n_ahead: int = 4,
    distribution: Callable[[Tensor], Tensor] = probabilities,
    draw: Draw = random_draw,
) -> Tensor:
    """Continue a sequence as `model` would, which only checks what a smaller model guesses.

    Args:
        model: the model whose distribution the result has.
        draft: the model that guesses, with the same vocabulary.
        prompt: token ids `[1, T]`, at least one.
        n_tokens: how many tokens to add.
        n_ahead: how many tokens are guessed before each check.
        distribution: the probabilities `[..., V]` to sample from, of logits `[..., V]`.
        draw: how an index is drawn from probabilities `[V]`.

    Returns:
        the new token ids `[1, n_tokens]`.

    Raises:
        TypeError, ValueError, IndexError: as in `generate`; the prompt has more than one row.

    Source: Leviathan et al. (2023); Chen et al. (2023).
    """
    check_ids("prompt", prompt, model.config.vocab_size, always=True)
    check_choice([1], rows_of_prompt=len(prompt))
    check_size(n_tokens=n_tokens, n_ahead=n_ahead, prompt_length=prompt.size(1))
    tokens, known, caches = prompt[0].tolist(), prompt.size(1), (RewindableCache(), RewindableCache())

    def read(reader: LanguageModel, cache: RewindableCache, tokens: list[int]) -> Tensor:
        unread = torch.tensor([tokens[cache.length :]], device=prompt.device)
        return distribution(reader(unread, cache=cache)[0])  # [T, V]

    with evaluating(model), evaluating(draft):
        while len(tokens) < known + n_tokens:
            guessed, q = list(tokens), []
            for _ in range(n_ahead):
                q.append(read(draft, caches[1], guessed)[-1])
                guessed.append(draw(q[-1]))
            p = read(model, caches[0], guessed)[-n_ahead - 1 :]  # [n_ahead + 1, V]
            tokens += accept(guessed[len(tokens) :], torch.stack(q), p, draw)
            for cache in caches:
                cache.rewind(len(tokens) - 1)
    return prompt.new_tensor([tokens[known : known + n_tokens]])


# %% book/16-since-2017.ipynb · Level, then down · [wsd-rate]
def wsd_rate(step: int, steps: int, peak: float, warmup_steps: int, decay: float = 0.2) -> float:
    """The warm-up–stable–decay schedule: up linearly, level, down linearly over the last part.

    Args:
        step: number of the update, counted from 1.
        steps: number of updates of the run.
        peak: the rate of the level part.
        warmup_steps: how many updates the rate rises for.
        decay: the share of the run over which it falls, as in `cooldown`.

    Source: Hu et al. (2024), section 4.2; Hägele et al. (2024).
    """
    check_size(warmup_steps=warmup_steps)
    return peak * min(1.0, step / warmup_steps) * cooldown(step, steps, decay)


# %% book/16-since-2017.ipynb · An optimizer for matrices · [orthogonalize]
def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Bring all singular values of a matrix near 1, and leave its singular vectors as they are.

    Args:
        matrix: `[m, n]`, with a rank of at least 1.
        steps: number of Newton–Schulz steps.

    Returns:
        `[m, n]`, with singular values between about 0.7 and 1.2, except those that were tiny.

    Source: Jordan et al. (2024).
    """
    x = matrix / matrix.norm()
    for _ in range(steps):
        square = x @ x.mT if len(x) <= x.size(1) else x.mT @ x
        polynomial = -4.7750 * square + 2.0315 * square @ square
        x = 3.4445 * x + (polynomial @ x if len(x) <= x.size(1) else x @ polynomial)
    return x
