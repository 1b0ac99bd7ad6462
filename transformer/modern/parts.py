"""transformer.modern.parts, from book/15-since-2017.ipynb, "Since 2017".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "RMSNorm", "GATES", "GatedFeedForward", "rotary_table", "rotate", "RotaryStretch", "alibi",
    "sliding_mask", "route", "RoutedFeedForward", "balance_loss", "wsd_rate", "orthogonalize",
]


# %% book/15-since-2017.ipynb · RMSNorm · [rms-norm]
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.attention import KeysAndValues, causal_mask
from transformer.layers import ACTIVATIONS
from transformer.training import cooldown
from transformer.validation import check_choice, check_number, check_size


class RMSNorm(nn.Module):
    """Brings every vector to mean square 1, then scales each feature.

    Args:
        d_model: number of features.
        eps: added to the mean square, under the root.

    Source: Zhang and Sennrich (2019), equation 4.
    """

    def __init__(self, d_model: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` `[..., d_model]`; the shape stays."""
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = wide.square().mean(-1, keepdim=True)  # [..., 1]
        normalized = wide * torch.rsqrt(mean_square + self.eps)
        # Weights more precise than x, as in Gemma's code, multiply before rounding.
        dtype = torch.promote_types(x.dtype, self.weight.dtype)
        return (normalized.to(dtype) * self.weight).to(x.dtype)


# %% book/15-since-2017.ipynb · Gated networks (SwiGLU, GEGLU) · [gated-feed-forward]
GATES = ACTIVATIONS | {"gelu_tanh": partial(F.gelu, approximate="tanh")}


class GatedFeedForward(nn.Module):
    """The position-wise network with a gate: one layer decides what another passes.

    Args:
        d_model: width of input and output.
        d_ff: width of the hidden layer.
        activation: of the gate, a name in `GATES`.

    Source: Shazeer (2020), equation 6; with `"silu"` it is SwiGLU.
    """

    def __init__(self, d_model: int, d_ff: int, activation: str = "silu") -> None:
        super().__init__()
        check_choice(GATES, activation=activation)
        self.activation = activation
        self.w_gate = nn.Linear(d_model, d_ff, bias=False)
        self.w_1 = nn.Linear(d_model, d_ff, bias=False)
        self.w_2 = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` `[B, T, d_model]`; the shape stays."""
        return self.w_2(GATES[self.activation](self.w_gate(x)) * self.w_1(x))


# %% book/15-since-2017.ipynb · Rotary positions (RoPE) · [rotary-table]
def rotary_table(
    length: int,
    d_k: int,
    base: float = 10_000.0,
    offset: int = 0,
    stretch: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Cosine and sine of the angles by which pairs of features turn at each position.

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


# %% book/15-since-2017.ipynb · Rotary positions (RoPE) · [rotate]
def rotate(x: Tensor, table: Tensor, interleaved: bool = False) -> Tensor:
    """Turn the pairs of features of queries or keys by the angles of their positions.

    Args:
        x: `[..., T, d_k]`.
        table: from `rotary_table`, `[2, T, d_k / 2]`, of the dtype and device of `x`.
        interleaved: whether features 2i and 2i + 1 are a pair, or i and i + d_k / 2.

    Returns:
        `[..., T, d_k]`, every vector as long as before.

    Source: Su et al. (2024), equation 34.
    """
    pairs = x.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x.chunk(2, dim=-1)
    first, second = pairs
    cos, sin = table  # [T, d_k / 2]
    turned = first * cos - second * sin, first * sin + second * cos
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


# %% book/15-since-2017.ipynb · Longer contexts · [rotary-stretch]
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
        share = ((turns - self.slow) / (self.fast - self.slow)).clamp(0.0, 1.0)
        return speeds * (share + (1 - share) / self.factor)


# %% book/15-since-2017.ipynb · ALiBi · [alibi]
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


# %% book/15-since-2017.ipynb · Sliding windows · [masks]
def sliding_mask(
    length: int,
    offset: int = 0,
    window: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Which positions may be attended to: the query's own, and before it the window.

    Args:
        length: number of queries T.
        offset: number of positions before the first of them.
        window: how many positions a query sees, itself included; `None`: all so far.
        device: where to put the mask.

    Returns:
        `torch.bool` `[1, 1, T, offset + T]`, True = may attend.

    Source: Beltagy et al. (2020), section 3.1.
    """
    mask = F.pad(causal_mask(length, device), (offset, 0), value=True)
    return mask if window is None else mask.triu(offset - window + 1)


# %% book/15-since-2017.ipynb · Mixture of experts (MoE) · [routed-feed-forward]
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
            weighted = gates[rows, rank, None] * expert(tokens[rows])
            result.index_add_(0, rows, weighted.to(result))  # which is wider under autocast
        return result.view_as(x)


# %% book/15-since-2017.ipynb · Load balancing · [balance-loss]
def balance_loss(scores: Tensor, n_chosen: int) -> Tensor:
    """How unevenly a router uses its experts: 1 if evenly, E / `n_chosen` if always the same ones.

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


# %% book/15-since-2017.ipynb · Warm-up, stable, decay (WSD) · [wsd-rate]
def wsd_rate(
    step: int, steps: int, peak: float, warmup_steps: int, decay: float = 0.2
) -> float:
    """The warm-up–stable–decay schedule: linearly up, level, linearly down.

    Args:
        step: number of the update, counted from 1.
        steps: number of updates of the run.
        peak: the rate of the level part.
        warmup_steps: how many updates the rate rises for.
        decay: the share of the run over which it falls, as in `cooldown`.

    Source: Hägele et al. (2024); Hu et al. (2024), section 4.2, let it fall exponentially.
    """
    check_size(warmup_steps=warmup_steps)
    return peak * min(1.0, step / warmup_steps) * cooldown(step, steps, decay)


# %% book/15-since-2017.ipynb · Muon · [orthogonalize]
def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """Bring all singular values of a matrix near 1, and leave its singular vectors.

    Args:
        matrix: `[m, n]`, with a rank of at least 1.
        steps: number of Newton–Schulz steps.

    Returns:
        `[m, n]`, singular values from about 0.68 to 1.13 where they were above 1%.

    Source: Jordan et al. (2024).
    """
    x = matrix / matrix.norm()
    for _ in range(steps):
        square = x @ x.mT if len(x) <= x.size(1) else x.mT @ x
        polynomial = -4.7750 * square + 2.0315 * square @ square
        x = 3.4445 * x + (polynomial @ x if len(x) <= x.size(1) else x @ polynomial)
    return x
