"""Mistakes in `transformer.language.translator`."""

from faults import Fault

FAULTS = [
    Fault(
        "sums-unchecked",
        "a flipped bit passes",
        "Translator.load",
        "check_sums(translator_folder(path))",
        "{name: translator_folder(path) / name for name in _FILES}",
    ),
    Fault(
        "order-lost",
        "translations come back in the order in which they were made",
        "translate_ids",
        "zip(rows, best",
        "zip(sorted(rows), best",
    ),
    Fault(
        "maps-of-unshifted-target",
        "the maps are those of a decoder that reads what it is to predict",
        "_cross_attention",
        "[[model.config.bos_id, *target[:-1]]]",
        "[target]",
    ),
    Fault(
        "end-not-appended",
        "sources have no end token, though training showed one",
        "_encoded",
        "[*ids[:longest], config.eos_id]",
        "ids[: longest + 1]",
    ),
    Fault(
        "cut-without-warning",
        "a sentence that loses its last token loses it silently",
        "_encoded",
        "len(ids) > longest",
        "len(ids) > longest + 1",
    ),
    Fault(
        "references-not-prepared",
        "capitals and punctuation of a reference count as mistakes of a translator that writes none",
        "evaluate_translator",
        "translator.vocabulary.prepare(target)",
        "target",
    ),
]
