"""Mistakes in `transformer.commands.training`."""

from faults import Fault

FAULTS = [
    Fault(
        "returned-in-training-mode",
        "a freshly trained translator has its dropout on",
        "train_recipe",
        "_chosen(trainer, model).eval()",
        "_chosen(trainer, model)",
    ),
    Fault(
        "average-thrown-away",
        "the weights are averaged, and the last ones kept",
        "_chosen",
        "updater.averaged(), gathered",
        "gathered",
    ),
]
