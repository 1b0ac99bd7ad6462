"""Mistakes in `transformer.commands.data`."""

from faults import Fault

FAULTS = [
    Fault(
        "evaluated-on-training-data",
        "the best weights are chosen by the loss on the training split",
        "Lessons.judged",
        "encode_pairs(self.dev, ",
        "encode_pairs(self.train, ",
    ),
    Fault(
        "subwords-not-seeded",
        "every seed of a recipe sees the same subwords in the same order",
        "Lessons.batches",
        "data.bpe_dropout, seed, longest",
        "data.bpe_dropout, max_length=longest",
    ),
    Fault(
        "toy-tested-on-training-data",
        "the score is measured on the stream that the model was trained on",
        "Reversals.evaluate",
        "seed=20_000",
        "seed=0",
    ),
    Fault(
        "tuned-on-test",
        "the search is tuned on the split that judges it",
        "Lessons.record",
        "tune_search(translator, self.dev)",
        "tune_search(translator, self.test())",
    ),
]
