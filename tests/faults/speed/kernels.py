"""Mistakes in `transformer.speed.kernels`."""

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
        "HAS_ONEDNN and ",
        "",
    ),
    Fault(
        "columns-as-a-vector",
        "one row is multiplied as a vector, which is no faster than before",
        "linear_by_columns",
        "x if len(x) > 1 else x.repeat(2, 1)",
        "x",
    ),
    Fault(
        "columns-from-the-cache",
        "few rows go by columns where a cache holds the weights",
        "_are_few_rows_from_memory",
        "few and from_memory and",
        "few and",
    ),
    Fault(
        "forgets-memory",
        "as much freed memory is kept as by default",
        "keep_freed_memory",
        "2**30",
        "2**17",
    ),
]
