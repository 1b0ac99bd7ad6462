"""Mistakes in `transformer.commands.lines`."""

from faults import Fault

FAULTS = [
    Fault(
        "lines-before-an-error-lost",
        "a line that is not UTF-8 costs the answers to the lines before it",
        "grouped",
        "if group:\n            yield group\n        raise",
        "raise",
    ),
]
