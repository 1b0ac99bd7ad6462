"""transformer.plots, from book/03-attention.ipynb, "Attention".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["plot_attention", "plot_curves"]


# %% book/03-attention.ipynb · Multi-head attention · [plots]
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def plot_attention(
    weights: Tensor, queries: Sequence[str], keys: Sequence[str], title: str = "", ax: Any = None
) -> Any:
    """Draw one attention map as a grid of gray values, a row per query and a column per key.

    Args:
        weights: `[T, S]`, from 0 (white) to 1 (black).
        queries, keys: T labels and S labels.
        title: of the picture.
        ax: the matplotlib axes to draw into, which are returned; `None` for the current ones.
    """
    if weights.shape != (len(queries), len(keys)):
        wanted, given = [len(queries), len(keys)], list(weights.shape)
        raise ValueError(f"weights must have shape {wanted}, one row per query, not {given}")
    ax = _current_axes() if ax is None else ax
    ax.imshow(weights.detach().float().cpu().numpy(), cmap="Greys", vmin=0, vmax=1)
    ax.set_xticks(range(len(keys)), keys, rotation=90)
    ax.set_yticks(range(len(queries)), queries)
    ax.set(title=title, xlabel="key", ylabel="query")
    return ax


# %% book/03-attention.ipynb · What it costs · [plot-curves]
def _current_axes() -> Any:
    try:
        import matplotlib.pyplot as plt  # the package needs it for pictures only
    except ImportError as error:
        wanted = 'pip install "transformer-book[plots]"'
        raise ImportError(f"this needs the library matplotlib: {wanted}") from error
    return plt.gca()


def plot_curves(
    curves: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str, ax: Any = None
) -> Any:
    """Draw curves over a common axis, such as losses over steps.

    Args:
        curves: from a curve's label to its points (x, y).
        xlabel, ylabel: labels of the axes, with their units.
        ax: the matplotlib axes to draw into, which are returned; `None` for the current ones.
    """
    ax = _current_axes() if ax is None else ax
    for label, points in curves.items():
        ax.plot([x for x, _ in points], [y for _, y in points], label=label)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.grid(alpha=0.3)
    if curves:
        ax.legend()
    return ax
