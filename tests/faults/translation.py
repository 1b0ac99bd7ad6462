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
    Fault(
        "sums-unchecked",
        "a flipped bit passes",
        "Translator.load",
        "_check_sums(_translator_folder(path))",
        "{name: _translator_folder(path) / name for name in _FILES}",
    ),
    Fault(
        "new-files-in-place-before-the-sums",
        "a translator whose saving is cut off is neither the old one nor the new one",
        "_write",
        "new = [_written(folder, name) for name in _FILES]",
        "new = [folder / name for name in _FILES]",
    ),
    Fault(
        "preparation-not-saved",
        "a translator that was saved treats its sentences as the book's corpora are treated",
        "_write",
        ' | {"preparation": asdict(vocabulary.preparation)}',
        "",
    ),
    Fault(
        "overflow-saved",
        "a number too large for float16 is written as infinity",
        "_check_kept",
        "(name := _not_finite(model, dtype)) is not None",
        "False",
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
        "interval-of-nothing",
        "the interval has no width, because no corpus was resampled",
        "_measured",
        "[list(references)], n_bootstrap=n_bootstrap",
        "[list(references)]",
    ),
    Fault(
        "unseen-by-source",
        "a pair counts as seen where its source alone was",
        "unseen_pairs",
        "pair not in known",
        "pair.source not in {seen.source for seen in known}",
    ),
]
