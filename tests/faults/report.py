"""Mistakes in the report on a translator."""

from faults import Fault

MODULE = "translation"
FAULTS = [
    Fault(
        "interval-of-nothing",
        "the interval has no width, because no corpus was resampled",
        "corpus_scores",
        "[list(theirs)], n_bootstrap=n_bootstrap",
        "[list(theirs)]",
    ),
    Fault(
        "unseen-by-source",
        "a pair counts as seen where its source alone was",
        "unseen_pairs",
        "pair not in known",
        "pair.source not in {seen.source for seen in known}",
    ),
    Fault(
        "tuned-on-test",
        "the search is tuned on the split that judges it",
        "examine_translator",
        "tune_search(translator, dev)",
        "tune_search(translator, test)",
    ),
]
