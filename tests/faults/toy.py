"""Mistakes in `transformer.toy`."""

from faults import Fault

FAULTS = [
    Fault(
        "counted-from-the-right",
        "occurrences are counted from the right",
        "reverse_and_mark",
        "same.tril",
        "same.triu",
    ),
    Fault(
        "last-digit-never-drawn",
        "the upper bound is thought to be included",
        "reversal_batch",
        "torch.randint(n_digits,",
        "torch.randint(n_digits - 1,",
    ),
    Fault(
        "generator-ignored",
        "the digits come from torch's own generator",
        "reversal_batch",
        "(batch_size, length), generator=generator",
        "(batch_size, length)",
    ),
    Fault(
        "seeds-overlap",
        "the second epoch of a seed is the first of the next",
        "reversal_batches",
        "seed * 1_000_003 + epoch",
        "seed + epoch",
    ),
]
