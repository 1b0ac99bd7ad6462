"""Mistakes in `transformer.commands.claim`."""

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
        "folder-of-something-else-taken",
        "training begins over a translator or a stranger's files",
        "check_folder",
        "() if checkpoints else _WORK",
        "()",
    ),
]
