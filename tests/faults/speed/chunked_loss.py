"""Mistakes in `transformer.speed.chunked_loss`."""

from faults import Fault

FAULTS = [
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
]
