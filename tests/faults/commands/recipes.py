"""Mistakes in `transformer.commands.recipes`."""

from faults import Fault

FAULTS = [
    Fault(
        "evaluated-on-training-data",
        "the best weights are chosen by the loss on the training split",
        "train_translator",
        "encode_pairs(dev, vocabulary, data.longest)",
        "encode_pairs(train, vocabulary, data.longest)",
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
        "Loss.__call__",
        "teacher_forced_loss(model, batch, smoothing=self.smoothing)",
        "teacher_forced_loss(model, batch)",
    ),
    Fault(
        "subwords-not-seeded",
        "every seed of a recipe sees the same subwords in the same order",
        "Translations.batches",
        "self.bpe_dropout, seed, longest)",
        "self.bpe_dropout, max_length=longest)",
    ),
    Fault(
        "average-thrown-away",
        "the weights are averaged, and the last ones kept",
        "_chosen",
        "nullcontext() if trainer.average is None else trainer.average.applied()",
        "nullcontext()",
    ),
    Fault(
        "types-in-files-unchecked",
        "a recipe in a file may have text for a number",
        "_part",
        "type(value) is not kinds[name]",
        "False",
    ),
    Fault(
        "toy-tested-on-training-data",
        "the score is measured on the stream that the model was trained on",
        "train_toy",
        "seed=20_000",
        "seed=recipe.training.seed * 1_000_003",
    ),
    Fault(
        "tuned-on-test",
        "the search is tuned on the split that judges it",
        "translation_record",
        "tune_search(translator, dev)",
        "tune_search(translator, test)",
    ),
    Fault(
        "loss-lost-in-changes",
        "whoever changes a setting gets the default loss with it",
        "changed",
        "in fields(recipe):",
        "in fields(recipe)[:-1]:",
    ),
]
