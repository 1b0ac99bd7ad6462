"""Mistakes in `transformer.language.scores`."""

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
