"""Mistakes in `transformer.attention`."""

from faults import Fault

FAULTS = [
    Fault(
        "padding-mask-inverted",
        "True marks padding, as in torch.nn's key_padding_mask",
        "padding_mask",
        "ids != pad_id",
        "ids == pad_id",
    ),
    Fault(
        "causal-without-diagonal",
        "a position may not attend to itself",
        "causal_mask",
        ".tril()",
        ".tril(-1)",
    ),
    Fault(
        "scale-missing",
        "scores are not divided by √d_k",
        "scaled_dot_product_attention",
        "Q / math.sqrt(Q.size(-1))",
        "Q",
    ),
    Fault(
        "softmax-over-queries",
        "the softmax runs over the queries",
        "scaled_dot_product_attention",
        "scores.softmax(dim=-1)",
        "scores.softmax(dim=-2)",
    ),
    Fault(
        "softmax-in-half-precision",
        "scores and softmax are not computed in float32",
        "scaled_dot_product_attention",
        "x.to(torch.promote_types(x.dtype, torch.float32))",
        "x",
    ),
    Fault(
        "forbidden-score-minus-1e9",
        "forbidden scores become -1e9, as in tensor2tensor: a bad score can be lower",
        "scaled_dot_product_attention",
        "torch.finfo(scores.dtype).min",
        "-1e9",
    ),
    Fault(
        "forbidden-score-minus-infinity",
        "a row with nothing to attend to becomes NaN, and so does its gradient",
        "scaled_dot_product_attention",
        "torch.finfo(scores.dtype).min",
        "-math.inf",
    ),
    Fault(
        "empty-row-uniform",
        "a query that may attend to nothing attends to everything",
        "scaled_dot_product_attention",
        "weights.masked_fill(~mask, 0.0)",
        "weights.clone()",
    ),
    Fault(
        "decoder-caches-shared",
        "all layers keep their keys in one place",
        "KeyValueCache.append",
        "_grown.get(attention)",
        "_grown.get(None)",
    ),
    Fault(
        "own-cache-not-reordered",
        "a beam's survivors go on with the keys of others",
        "KeyValueCache.reorder",
        "room.index_select(1, rows)",
        "room",
    ),
    Fault(
        "values-from-keys",
        "the values are projected from the keys' input",
        "MultiHeadAttention.forward",
        "self.w_v(value)",
        "self.w_v(key)",
    ),
    Fault(
        "dropout-in-evaluation",
        "weights are dropped in evaluation mode as well",
        "MultiHeadAttention.forward",
        "self.dropout if self.training else 0.0",
        "self.dropout",
    ),
    Fault(
        "heads-cut-across-positions",
        "a view without a transpose mixes positions and heads",
        "MultiHeadAttention._split",
        "x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)",
        "x.reshape(x.size(0), self.n_heads, x.size(1), x.size(2) // self.n_heads)",
    ),
]
