"""Mistakes in `transformer.language.bpe_dropout`."""

from faults import Fault

FAULTS = [
    Fault(
        "drawn-cuts-not-prepared",
        "random cuts are those of texts as they are",
        "BPEDropout.__init__",
        "vocabulary.prepare(text)",
        "text",
    ),
]
