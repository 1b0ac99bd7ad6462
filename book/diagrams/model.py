"""The diagrams of Chapters 1 to 5: the model."""

from __future__ import annotations

from pencil import Diagram


def scaled_scores() -> Diagram:
    """From queries and keys to weights, and with the values to the context."""
    d = Diagram(470, 330)
    d.tensor(70, 70, "Q", "query", 60, 90, "[T, d_k]")
    key = d.tensor(190, 70, "K^{T}", "key", 100, 60, "[d_k, S]")
    scores = d.tensor(380, 70, "scores", "plain", 100, 90, "[T, S]")
    d.text(120, 70, "×")
    d.arrow((key.right[0] + 4, 70), scores.left, label="÷ √d_{k}", look="", at=(285, 52))
    weights = d.tensor(380, 235, "weights", "plain", 100, 90, "[T, S]")
    d.arrow((380, 134), weights.top, label="mask, softmax over S", look="", at=(380, 158))
    value = d.tensor(225, 235, "V", "value", 60, 100, "[S, d_k]")
    context = d.tensor(70, 235, "context", "plain", 60, 90, "[T, d_k]")
    d.text(292, 235, "×")
    d.arrow(value.left, context.right)
    return d
