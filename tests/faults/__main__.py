"""Mistakes in the command line."""

from faults import Fault

FAULTS = [
    Fault(
        "another-recipe-goes-on",
        "a run goes on with other settings than it began with",
        "check_folder",
        'there != here and not (name == "steps" and raised)',
        "False",
    ),
    Fault(
        "recipe-noted-before-it-is-accepted",
        "a run that is refused later has left its recipe in the folder",
        "claimed",
        "        yield run",
        "        run.note_config()\n        yield run",
    ),
    Fault(
        "unfinished-run-recorded",
        "a run that ran out of time is recorded as if it were complete",
        "leave_results",
        "not trainer.finished",
        "False",
    ),
    Fault(
        "lines-before-an-error-lost",
        "a line that is not UTF-8 costs the answers to the lines before it",
        "grouped",
        "if group:\n            yield group\n        raise",
        "raise",
    ),
    Fault(
        "escapes-echoed",
        "a message can move the cursor of a terminal",
        "one_line",
        "sign.isprintable()",
        "True",
    ),
    Fault(
        "error-ends-in-success",
        "a script that calls the command cannot see that it failed",
        "main",
        "drop_output()\n        return 2",
        "drop_output()\n        return 0",
    ),
    Fault(
        "folder-of-something-else-taken",
        "training begins over a translator or a stranger's files",
        "check_folder",
        "() if checkpoints else _WORK",
        "()",
    ),
    Fault(
        "interrupt-swallowed",
        "an interrupt that comes in a callback is lost",
        "raise_again",
        "issubclass(ignored.exc_type, KeyboardInterrupt)",
        "False",
    ),
    Fault(
        "signal-forgotten",
        "a terminated run ends as if it had been interrupted",
        "main",
        'getattr(error, "signal", signal.SIGINT)',
        "signal.SIGINT",
    ),
]
