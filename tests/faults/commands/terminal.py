"""Mistakes in `transformer.commands.terminal`."""

from faults import Fault

FAULTS = [
    Fault(
        "escapes-echoed",
        "a message can move the cursor of a terminal",
        "one_line",
        "sign.isprintable()",
        "True",
    ),
    Fault(
        "interrupt-swallowed",
        "an interrupt that comes in a callback is lost",
        "raise_again",
        "issubclass(ignored.exc_type, KeyboardInterrupt)",
        "False",
    ),
]
