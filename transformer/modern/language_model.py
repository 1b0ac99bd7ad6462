"""transformer.modern.language_model, from book/15-since-2017.ipynb, "Since 2017".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "LanguageModelConfig", "GroupedQueryAttention", "cache_bytes", "LanguageModelLayer", "LanguageModel",
    "most_probable", "generate", "Draw", "random_draw", "accept", "RewindableCache", "probabilities",
    "speculative_decoding",
]


# %% book/15-since-2017.ipynb · Grouped-query attention (GQA) · [language-model-config]
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor, nn

from transformer.attention import KeysAndValues, KeyValueCache, Projection, fused_attention
from transformer.decoding import check_numbers
from transformer.model import initialize
from transformer.modern.parts import (
    GATES,
    GatedFeedForward,
    RMSNorm,
    RotaryStretch,
    alibi,
    rotary_table,
    rotate,
    sliding_mask,
)
from transformer.training import evaluating
from transformer.validation import check_choice, check_ids, check_number, check_size, check_type


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
        sizes = ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff")
        check_size(**{name: getattr(self, name) for name in sizes}, n_kv_heads=self.kv_heads)
        check_size(window=1 if self.window is None else self.window)
        for name in ("qk_norm", "scale_embedding", "tie_embeddings"):
            check_type(bool, **{name: getattr(self, name)})
        check_type((RotaryStretch, type(None)), rotary_stretch=self.rotary_stretch)
        check_choice(sorted(GATES), activation=self.activation)
        check_choice(("rotary", "alibi", "none"), positions=self.positions)
        check_number(rotary_base=self.rotary_base, norm_eps=self.norm_eps)
        if self.rotary_base == 0:
            raise ValueError("rotary_base must be positive, but is 0")
        if self.d_head is None and self.d_model % self.n_heads:
            given = f"{self.n_heads} does not divide {self.d_model}"
            raise ValueError(f"n_heads must divide d_model where d_head is None, but {given}")
        check_size(d_head=self.d_k)
        if self.n_heads % self.kv_heads:
            given = f"{self.kv_heads} does not divide {self.n_heads}"
            raise ValueError(f"n_kv_heads must divide n_heads, but {given}")
        if self.positions == "rotary" and self.d_k % 2:
            raise ValueError(f"d_head must be even for rotary positions, but is {self.d_k}")

    @property
    def kv_heads(self) -> int:
        """How many heads of keys and values there are."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def d_k(self) -> int:
        """The width of a head."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head


# %% book/15-since-2017.ipynb · Grouped-query attention (GQA) · [grouped-query-attention]
class GroupedQueryAttention(nn.Module):
    """Self-attention in which groups of heads share their keys and values.

    Args:
        config: sizes and choices.

    Source: Ainslie et al. (2023), section 2.2; with one shared head, Shazeer (2019), section 3.
    """

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


# %% book/15-since-2017.ipynb · The KV cache in bytes · [cache-bytes]
def cache_bytes(
    config: LanguageModelConfig,
    length: int,
    batch: int = 1,
    dtype: torch.dtype = torch.bfloat16,
) -> int:
    """The bytes of all keys and values of `batch` sequences of `length` tokens."""
    numbers = 2 * config.n_layers * batch * config.kv_heads * length * config.d_k
    return numbers * dtype.itemsize


# %% book/15-since-2017.ipynb · The whole model · [language-model-layer]
class LanguageModelLayer(nn.Module):
    """Self-attention, then the gated network, each after a norm and with a residual connection.

    Args:
        config: sizes and choices.
    """

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


# %% book/15-since-2017.ipynb · The whole model · [language-model]
class LanguageModel(nn.Module):
    """The decoder-only Transformer: token ids in, logits of the next tokens out.

    Args:
        config: sizes and choices.

    Source: LLaMA (Touvron et al., 2023), section 2.2.

    Example:
        >>> model = LanguageModel(LanguageModelConfig(20, d_model=16, n_heads=2, n_layers=1, d_ff=40))
        >>> model(torch.tensor([[5, 7, 3]])).shape
        torch.Size([1, 3, 20])
    """

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


# %% book/15-since-2017.ipynb · The whole model · [generate]
def most_probable(logits: Tensor) -> Tensor:
    """The token with the largest of the logits `[..., V]`."""
    return logits.argmax(-1)


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
        TypeError, ValueError, IndexError: as in `LanguageModel.forward`; the prompt is empty, or
            logits are NaN.
    """
    check_ids("prompt", prompt, model.config.vocab_size, always=True)
    check_size(n_tokens=n_tokens, prompt_length=prompt.size(1))
    tokens, cache = prompt, KeyValueCache()
    ended = torch.zeros(len(prompt), dtype=torch.bool, device=prompt.device)
    with evaluating(model):
        for _ in range(n_tokens):
            logits = model(tokens[:, cache.length :], cache=cache)[:, -1]  # [B, V]
            check_numbers(logits.isnan().any())
            chosen = choose(logits)
            if eos_id is not None:
                chosen = chosen.masked_fill(ended, eos_id)
                ended = chosen == eos_id
            tokens = torch.cat([tokens, chosen[:, None]], dim=1)
            if ended.all():
                break
    return tokens[:, prompt.size(1) :]


Draw = Callable[[Tensor], int]


def random_draw(probabilities: Tensor) -> int:
    """A random index, from probabilities `[V]`."""
    return int(torch.multinomial(probabilities, 1))


# %% book/15-since-2017.ipynb · Speculative decoding · [accept]
def accept(
    proposed: list[int],
    q: Tensor,
    p: Tensor,
    draw: Draw = random_draw,
) -> list[int]:
    """Keep guesses up to the first refusal; the distribution is the large model's.

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


# %% book/15-since-2017.ipynb · Speculative decoding · [speculative-decoding]
class RewindableCache(KeyValueCache):
    """A `KeyValueCache` that can forget the latest positions."""

    def rewind(self, length: int) -> None:
        """Keep only the first `length` positions, where there are more."""
        self.length = min(self.length, length)
        for attention, (room, _) in self._grown.items():
            self._grown[attention] = room, self.length


def probabilities(logits: Tensor) -> Tensor:
    """The probabilities `[..., V]` that a model's logits `[..., V]` stand for."""
    return logits.softmax(-1)


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
        TypeError, ValueError, IndexError: as in `LanguageModel.forward`; the prompt is empty or has
            more than one row.

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
