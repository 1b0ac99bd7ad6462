"""Mistakes in `transformer.translation`."""

from faults import Fault

FAULTS = [
    Fault(
        "bleu-tokenized-again",
        "tokens are tokenized once more before they are counted",
        "corpus_scores",
        'tokenize="none", ',
        "",
    ),
    Fault(
        "file-larger-than-its-tensors",
        "a file may hold more than its header names",
        "_read_header",
        "8 + length + filled != size",
        "8 + length + filled > size",
    ),
    Fault("sums-unchecked", "a flipped bit passes", "Translator.load", "_check_sums(folder)", "pass"),
    Fault(
        "overflow-saved",
        "a number too large for float16 is written as infinity",
        "Translator.save",
        "(name := _not_finite(self.model, dtype)) is not None",
        "False",
    ),
    Fault(
        "order-lost",
        "translations come back in the order in which they were made",
        "Translator._search",
        "zip(rows, best",
        "zip(sorted(rows), best",
    ),
    Fault(
        "maps-of-unshifted-target",
        "the maps are those of a decoder that reads what it is to predict",
        "Translator.align",
        "F.pad(found[:, :-1], (1, 0), value=config.bos_id)",
        "found",
    ),
    Fault(
        "end-not-appended",
        "sources have no end token, though training showed one",
        "Translator._encode",
        "[*ids[: config.max_length - 1], config.eos_id]",
        "ids[: config.max_length]",
    ),
    Fault(
        "cut-without-warning",
        "a sentence that loses its last token loses it silently",
        "Translator._encode",
        "len(ids) >= config.max_length",
        "len(ids) > config.max_length",
    ),
]
