"""transformer.attention, from book/03-attention.ipynb, "Attention".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "padding_mask", "causal_mask", "check_mask", "scaled_dot_product_attention", "fused_attention",
    "KeysAndValues", "Projection", "KeyValueCache", "MultiHeadAttention",
]


# %% book/03-attention.ipynb · Masks · [masks-code]
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def padding_mask(ids: Tensor, pad_id: int = 0) -> Tensor:
    """Mark the ids `[B, S]` that are not padding: `torch.bool` `[B, 1, 1, S]`."""
    return (ids != pad_id)[:, None, None, :]


def causal_mask(length: int, device: torch.device | str | None = None) -> Tensor:
    """Let a position attend to itself and all before it: `torch.bool` `[1, 1, T, T]`.

    Source: Vaswani et al. (2017), section 3.2.3.

    Example:
        >>> causal_mask(2)
        tensor([[[[ True, False],
                  [ True,  True]]]])
    """
    return torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()


# %% book/03-attention.ipynb · Masks · [check-mask]
def check_mask(mask: Tensor, query: Tensor, key: Tensor) -> None:
    """Refuse a mask that would be broadcast along the wrong axes.

    Args:
        mask: `torch.bool`, with as many axes as the scores `[..., T, S]`, each of their size or 1.
        query, key: `[..., T, d_k]`, `[..., S, d_k]`.

    Raises:
        TypeError, ValueError: it is not a `torch.bool` tensor, or its shape does not fit.
    """
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"mask must be a torch.bool tensor, True where a query may attend, not {kind}")
    front = [k if q == 1 else q for q, k in zip(query.shape[:-2], key.shape[:-2])]
    shape = [*front, query.size(-2), key.size(-2)]  # of the scores
    if mask.dim() != len(shape) or any(size not in (1, n) for size, n in zip(mask.shape, shape)):
        ways = "mask[None, None] for [T, S], mask[:, None, None] for [B, S], mask[:, None] for [B, T, S]"
        hint = f": write {ways}" if mask.dim() < len(shape) == 4 else ""
        given = f"{shape} (1 may stand for any size), not {list(mask.shape)}"
        raise ValueError(f"mask must have shape {given}{hint}")


# %% book/03-attention.ipynb · Scaled dot-product attention · [scaled-dot-product-attention]
def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(Q Kᵀ / √d_k) V, written out, with its weights.

    Args:
        query, key, value: `[..., T, d_k]`, `[..., S, d_k]` and `[..., S, d_v]`.
        mask: `torch.bool`, True = may attend, with as many axes as the scores
            `[..., T, S]`, each of their size or 1. A query without any key gets zeros.
        dropout: rate at which weights are dropped.

    Returns:
        context `[..., T, d_v]` and its weights `[..., T, S]`, after dropout.
        Half precision is computed in float32.

    Source: Vaswani et al. (2017), equation 1; dropout on the weights: section 6.3.
    """
    inputs = query, key, value
    Q, K, V = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in inputs)
    scores = (Q / math.sqrt(Q.size(-1))) @ K.transpose(-2, -1)  # [..., T, S]
    if mask is not None:
        check_mask(mask, query, key)
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    if mask is not None:
        weights = weights.masked_fill(~mask, 0.0)  # for a row without any key
    weights = F.dropout(weights, dropout)
    return (weights @ V).to(value.dtype), weights.to(value.dtype)


# %% book/03-attention.ipynb · The fused kernel (FlashAttention) · [fused-attention]
def fused_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """The context of `scaled_dot_product_attention`, by PyTorch's fused kernel.

    Source: Dao et al. (2022).
    """
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
    check_mask(mask, query, key)
    # Kernels may differ on a row without any key: let it attend, then put zeros there.
    nothing = ~mask.any(dim=-1, keepdim=True)  # [..., T, 1]
    mask = mask | nothing
    context = F.scaled_dot_product_attention(query, key, value, mask, dropout_p=dropout)
    return context.masked_fill(nothing, 0.0)


# %% book/03-attention.ipynb · The whole class · [key-value-cache]
KeysAndValues = tuple[Tensor, Tensor]
Projection = Callable[[], KeysAndValues]
_Keeping = Callable[[nn.Module, Projection], KeysAndValues]  # `append` or `hold` of a cache


class KeyValueCache:
    """The keys and values of a decoder's attentions, for the `length` positions appended so far, without
    gradients.
    """

    def __init__(self) -> None:
        self.length = 0
        self._grown: dict[nn.Module, tuple[Tensor, int]] = {}  # [2, B, H, room, d_k] and its length
        self._held: dict[nn.Module, Tensor] = {}  # [2, B, H, S, d_k]

    def append(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        """Self-attention: add what `project` returns for the next positions, and return all."""
        key, value = project()  # [B, H, T, d_k]
        room, start = self._grown.get(attention) or (key.new_empty(2, *key.shape)[:, :, :, :0], 0)
        end = start + key.size(2)
        if key.shape[:2] != room.shape[1:3]:  # a single row would be broadcast to all
            raise ValueError(f"the cache holds {room.size(1)} rows, not {len(key)}")
        if end > room.size(3):  # doubling: t steps copy O(t) positions in all, not O(t²)
            room = F.pad(room, (0, 0, 0, max(end, 2 * start) - room.size(3)))
        room[0, :, :, start:end], room[1, :, :, start:end] = key, value
        self._grown[attention], self.length = (room, end), end
        return room[0, :, :, :end], room[1, :, :, :end]

    def hold(self, attention: nn.Module, project: Projection) -> KeysAndValues:
        """Cross-attention: what `project` returned at the first call; the memory stays the same."""
        if attention not in self._held:
            self._held[attention] = torch.stack(project())
        return self._held[attention][0], self._held[attention][1]

    def reorder(self, rows: Tensor) -> None:
        """Keep the batch rows `rows` (`torch.long` `[B']`) in that order, as often as each is named."""
        for attention, (room, length) in self._grown.items():
            self._grown[attention] = room.index_select(1, rows), length
        for attention, held in self._held.items():
            self._held[attention] = held.index_select(1, rows)


# %% book/03-attention.ipynb · The whole class · [multi-head-attention]
class MultiHeadAttention(nn.Module):
    """Attention in `n_heads` subspaces at once; Vaswani et al. (2017), section 3.2.2.

    Args:
        d_model, n_heads, dropout: width; number of heads; rate of dropping weights.
        kdim, vdim, bias: widths of keys and values (`None`: d_model); biases or none.
    """

    def __init__(
        self, d_model: int, n_heads: int, dropout: float = 0.0, bias: bool = True,
        kdim: int | None = None, vdim: int | None = None,
    ) -> None:
        super().__init__()
        if n_heads < 1 or d_model % n_heads:
            numbers = f"{n_heads} does not divide {d_model}"
            raise ValueError(f"n_heads must divide d_model, but {numbers}")
        self.n_heads = n_heads
        self.dropout = dropout
        self.w_q = nn.Linear(d_model, d_model, bias)
        self.w_k = nn.Linear(kdim or d_model, d_model, bias)
        self.w_v = nn.Linear(vdim or d_model, d_model, bias)
        self.w_o = nn.Linear(d_model, d_model, bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None,
        need_weights: bool = False, cache: _Keeping | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Let queries `[B, T, d_model]` attend to `[B, S, kdim]` and `[B, S, vdim]`.

        The mask broadcasts to the weights' `[B, H, T, S]`; S counts what a cache keeps.
        """
        def project() -> KeysAndValues:
            return self._split(self.w_k(key)), self._split(self.w_v(value))

        q = self._split(self.w_q(query))  # [B, H, T, d_k]
        k, v = project() if cache is None else cache(self, project)  # [B, H, S, d_k]
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            context, weights = scaled_dot_product_attention(q, k, v, mask, dropout)
        else:
            context, weights = fused_attention(q, k, v, mask, dropout), None
        return self.w_o(context.transpose(1, 2).flatten(2)), weights

    def _split(self, x: Tensor) -> Tensor:  # [B, T, d_model] -> [B, H, T, d_k]
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
