"""Mistakes in `transformer.kernels`."""

from faults import Fault

FAULTS = [
    Fault(
        "dropout-lost-bit",
        "one number in four has only 15 random bits",
        "dropout_by_bytes",
        "random_(-(2**63), None)",
        "random_()",
    ),
    Fault(
        "fused-inside-transforms",
        "vmap calls the fused kernel, for which it has no rule",
        "fast_attention",
        "is_traced(query, key, value) and not torch.compiler.is_compiling()",
        "False",
    ),
    Fault(
        "any-square-mask-is-causal",
        "a square mask is taken for the causal one",
        "fast_attention",
        "torch.equal(mask, causal_mask(T))",
        "T == S",
    ),
    Fault("mask-unread", "a mask that hides something is left out", "fast_attention", "mask.all", "mask.any"),
    Fault(
        "chunked-slope-unsmoothed",
        "the gradient of the loss in pieces knows no smoothing",
        "_loss_and_slope",
        "smoothing - 1",
        "-1.0",
    ),
    Fault(
        "chunked-padding-has-a-slope",
        "padding counts in the gradient, though not in the loss",
        "linear_cross_entropy",
        ".masked_fill((targets == pad_id)[:, None], 0.0)",
        "",
    ),
    Fault(
        "chunks-overwrite-the-table",
        "the table's gradient is that of the last chunk",
        "_ChunkedLoss.forward",
        "d_columns.addmm_(rows.T, slope)",
        "d_columns = rows.T @ slope",
    ),
    Fault(
        "pieces-inside-transforms",
        "the loss in pieces is used inside torch.func's transforms, which it does not support",
        "linear_cross_entropy",
        "is_traced(hidden, weight)",
        "torch.compiler.is_compiling()",
    ),
    Fault(
        "r-drop-same-pull",
        "the second pass is pushed away from the first",
        "_r_drop_and_slope",
        "pull[1].neg_()",
        "pass",
    ),
    Fault(
        "onednn-mean-of-biases",
        "the bias learns from the mean of the rows instead of their sum",
        "_OneDNNLinear.backward",
        "slopes.sum(0)",
        "slopes.mean(0)",
    ),
    Fault(
        "onednn-swapped-gradient",
        "the gradient of a wide layer's weights is not transposed back",
        "_OneDNNLinear.backward",
        "linear_by_onednn(rows.T, slopes.T).T",
        "linear_by_onednn(rows.T, slopes.T).reshape(weight.shape)",
    ),
    Fault(
        "onednn-once",
        "a product by oneDNN can be differentiated once, and not twice",
        "_OneDNNLinear.backward",
        "d_x = linear_by_onednn(slope, weight.T)",
        "d_x = _onednn_linear(slope, weight.T, None)",
    ),
    Fault(
        "onednn-unasked",
        "the operator is called where PyTorch lacks it",
        "onednn_wins",
        "and HAS_ONEDNN",
        "",
    ),
    Fault(
        "forgets-memory",
        "as much freed memory is kept as by default",
        "keep_freed_memory",
        "2**30",
        "2**17",
    ),
]
