"""Pictures: what is drawn is what was given."""

from __future__ import annotations

import re

import matplotlib
import pytest
import torch

from transformer import plot_attention
from transformer.plots import plot_curves

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402


@pytest.fixture
def ax():
    figure, ax = plt.subplots()
    yield ax
    plt.close(figure)


def labels(ticks) -> list[str]:
    return [tick.get_text() for tick in ticks]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_attention_map_shows_the_weights_with_queries_down_and_keys_across(ax, dtype):
    weights = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]], dtype=dtype, requires_grad=True)
    assert plot_attention(weights, ["a", "b"], ["x", "y", "z"], "a title", ax) is ax
    (image,) = ax.get_images()
    assert image.get_array().tolist() == weights.tolist()
    assert image.get_clim() == (0, 1)  # so that two maps can be compared
    assert labels(ax.get_yticklabels()) == ["a", "b"]
    assert labels(ax.get_xticklabels()) == ["x", "y", "z"]
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("a title", "key", "query")


@pytest.mark.parametrize("shape", [(3, 2), (2, 2), (1, 2, 3), (6,)])
def test_attention_map_refuses_labels_that_do_not_fit(ax, shape):
    message = f"weights must have shape [2, 3], one row per query, not {list(shape)}"
    with pytest.raises(ValueError, match=re.escape(message)):
        plot_attention(torch.zeros(shape), ["a", "b"], ["x", "y", "z"], ax=ax)


def test_curves_are_drawn_through_their_points(ax):
    curves = {"train": [(0, 4.5), (10, 2.25), (20, 1)], "dev": [(20, 1.5)], "not yet": []}
    assert plot_curves(curves, "step", "loss (nats per token)", ax) is ax
    assert {line.get_label(): line.get_xydata().tolist() for line in ax.get_lines()} == {
        label: [list(point) for point in points] for label, points in curves.items()
    }
    assert labels(ax.get_legend().get_texts()) == list(curves)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "loss (nats per token)")
