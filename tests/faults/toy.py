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
    Fault(
        "own-place-never-drawn",
        "a digit is copied from the places before its own",
        "crowd",
        "torch.randint(place + 1,",
        "torch.randint(place,",
    ),
    Fault(
        "place-for-its-digit",
        "the number of the place is written, not the digit in it",
        "crowd",
        "digits.gather(1, drawn)",
        "drawn",
    ),
    Fault(
        "given-digits-changed",
        "the caller's tensor is crowded as well",
        "crowd",
        "digits = digits.clone()",
        "digits = digits[:]",
    ),
    Fault(
        "others-more-often",
        "another digit may stand as often as it likes",
        "with_copies",
        "digits[:, 1:].repeat(1, copies)",
        "digits[:, 1:2].repeat(1, 10)",
    ),
    Fault(
        "in-a-fixed-order",
        "the copies stand first",
        "with_copies",
        "return permuted(torch.cat([digits[:, :1].expand(-1, copies), others], dim=1))",
        "return torch.cat([digits[:, :1].expand(-1, copies), others], dim=1)",
    ),
    Fault(
        "first-token-is-enough",
        "a sequence counts as right when one of its tokens is",
        "faultless",
        ".all(dim=1)",
        ".any(dim=1)",
    ),
]
