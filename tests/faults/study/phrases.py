"""Mistakes in `transformer.study.phrases`."""

from faults import Fault

FAULTS = [
    Fault(
        "spelling-before-o-only",
        "the spelling changes before another vowel: tocar becomes tocei",
        "conjugate",
        'ending[0] == "e"',
        'ending[0] == "i"',
    ),
    Fault(
        "dev-takes-from-test",
        "combinations of the test split occur in other splits",
        "split_of",
        "bucket < 8",
        "bucket % 7 < 1",
    ),
]
