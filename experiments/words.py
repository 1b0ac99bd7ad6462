"""Which words a translator has met: how often the talks it learned from use those that it is asked.

    python -m experiments.words    # writes transformer/records/book/words.json; a minute, and no model

TRANSFORMER_DATA names the folder that holds the TED corpus. Of the talks the record has numbers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.report import OFTEN, load_sentences, words_of
from transformer.files import write_record
from transformer.language.corpora import Pair, load_corpus
from transformer.language.preparation import tokenize
from transformer.runs.folder import run_facts

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "words.json"
EDGES = (1, 10, 100, 1000)


def spread(counts: Iterable[int]) -> list[int]:
    """How many of the counts are 0, 1 to 9, 10 to 99, 100 to 999, and larger."""
    found = Counter(sum(count >= edge for edge in EDGES) for count in counts)
    return [found[place] for place in range(len(EDGES) + 1)]


def word_facts(
    train: Iterable[Pair], test: Sequence[Pair], everyday: Iterable[Pair], ours: Sequence[str]
) -> dict[str, Any]:
    """How often training shows the source words of other texts.

    Args:
        train: the pairs of the training split.
        test: those of the test split.
        everyday: pairs of a corpus of everyday phrases.
        ours: tokenized sentences.

    Returns:
        the `EDGES` between the places of a `spread`; that of the running words of `test` and of `ours`, and
        of the distinct words of `everyday`; of the last, those that training never shows; for each sentence
        of `ours` its words with their counts; and for each of `test` how many words it has, and how many of
        them training shows at least `OFTEN` times.
    """
    seen = Counter(word for pair in train for word in words_of(pair.source))
    tested = [[seen[word] for word in words_of(pair.source)] for pair in test]
    asked = [[(word, seen[word]) for word in words_of(text)] for text in ours]
    distinct = sorted({word for pair in everyday for word in words_of(pair.source)})
    return {
        "edges": EDGES,
        "spread": {
            "talks": spread(count for counts in tested for count in counts),
            "ours": spread(count for pairs in asked for _, count in pairs),
            "everyday": spread(seen[word] for word in distinct),
        },
        "never seen": [word for word in distinct if word not in seen and "-" not in word],
        "ours": asked,
        "talks": {
            "words": [len(counts) for counts in tested],
            "known": [sum(count >= OFTEN for count in counts) for counts in tested],
        },
    }


def main() -> None:
    """Count, and write the record."""
    train, test = (load_corpus("ted", split) for split in ("train", "test"))
    ours = [tokenize(sentence.source) for sentence in load_sentences()]
    facts = word_facts(train, test, load_corpus("phrases", "train"), ours)
    write_record(RECORD, run_facts("cpu") | facts)


if __name__ == "__main__":
    main()
