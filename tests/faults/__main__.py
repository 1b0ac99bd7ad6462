"""Mistakes in the command line."""

from faults import Fault

FAULTS = [
    Fault(
        "error-ends-in-success",
        "a script that calls the command cannot see that it failed",
        "main",
        "drop_output()\n        return 2",
        "drop_output()\n        return 0",
    ),
    Fault(
        "signal-forgotten",
        "a terminated run ends as if it had been interrupted",
        "main",
        'getattr(error, "signal", signal.SIGINT)',
        "signal.SIGINT",
    ),
]
