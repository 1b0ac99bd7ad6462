"""Mistakes in recipes."""

from faults import Fault

MODULE = "translation"
FAULTS = [
    Fault(
        "evaluated-on-training-data",
        "the best weights are chosen by the loss on the training split",
        "train_translator",
        "held_out(0)",
        "recipe_batches(recipe, train, vocabulary)(0)",
    ),
    Fault(
        "returned-in-training-mode",
        "a freshly trained translator has its dropout on",
        "train_translator",
        "_chosen(trainer, model).eval()",
        "_chosen(trainer, model)",
    ),
    Fault(
        "smoothing-not-passed-on",
        "the labels are smoothed by the default, whatever the recipe says",
        "recipe_loss",
        "partial(teacher_forced_loss, smoothing=recipe.smoothing)",
        "teacher_forced_loss",
    ),
    Fault(
        "subwords-not-seeded",
        "every seed of a recipe sees the same subwords in the same order",
        "recipe_batches",
        ", dropout, seed)",
        ", dropout)",
    ),
    Fault(
        "average-thrown-away",
        "the weights are averaged, and the last ones kept",
        "_chosen",
        "nullcontext() if trainer.average is None else trainer.average.applied()",
        "nullcontext()",
    ),
]
