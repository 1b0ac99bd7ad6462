"""Mistakes in `transformer.commands.train`."""

from faults import Fault

FAULTS = [
    Fault(
        "unfinished-run-recorded",
        "a run that ran out of time is recorded as if it were complete",
        "leave_results",
        "not trainer.finished",
        "False",
    ),
]
