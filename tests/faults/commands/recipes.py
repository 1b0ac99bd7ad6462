"""Mistakes in `transformer.commands.recipes`."""

from faults import Fault

FAULTS = [
    Fault(
        "smoothing-not-passed-on",
        "the labels are smoothed by the default, whatever the recipe says",
        "Loss.__call__",
        "teacher_forced_loss(model, batch, smoothing=self.smoothing)",
        "teacher_forced_loss(model, batch)",
    ),
    Fault(
        "types-in-files-unchecked",
        "a recipe in a file may have text for a number",
        "_part",
        "type(value) is not kinds[name]",
        "False",
    ),
    Fault(
        "loss-lost-in-changes",
        "whoever changes a setting gets the default loss with it",
        "changed",
        "in fields(recipe):",
        "in fields(recipe)[:-1]:",
    ),
]
