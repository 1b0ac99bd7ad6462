"""Mistakes in `transformer.language.batches`."""

from faults import Fault

FAULTS = [
    Fault(
        "target-without-end",
        "targets have no end token: the model never learns to stop",
        "encode_pairs",
        "*target, EOS_ID",
        "*target",
    ),
    Fault(
        "pad-id-ignored",
        "rows are filled up with 0, whatever was asked for",
        "pad",
        ", pad_id, dtype",
        ", 0, dtype",
    ),
    Fault(
        "budget-of-source-only",
        "the target tensor may exceed the budget",
        "_mowing_order",
        "max(source, target)",
        "source",
    ),
    Fault(
        "last-batch-lost",
        "the sentences after the last cut are never seen",
        "batch_cuts",
        "[*cuts, slice(start, len(lengths))]",
        "cuts or [slice(start, len(lengths))]",
    ),
    Fault(
        "shuffled-by-chance",
        "the order comes from torch's own generator",
        "TokenBatches.indices",
        "(len(order), generator=generator)",
        "(len(order))",
    ),
]
