"""Which words a translator has met: how often the talks it learned from use those that it is asked.

    python -m experiments.words    # writes transformer/records/book/words.json; a minute, and no model

TRANSFORMER_DATA names the folder that holds the TED corpus. Of the talks the record has numbers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.report import load_sentences
from transformer.files import write_record
from transformer.language.corpora import Pair, load_corpus, tokenize
from transformer.runs.folder import run_facts

RECORD = Path(__file__).resolve().parents[1] / "transformer" / "records" / "book" / "words.json"
EDGES = (1, 10, 100, 1000)


def words_of(text: str) -> list[str]:
    """The words of a tokenized sentence: what has a letter in it."""
    return [token for token in text.split() if any(map(str.isalpha, token))]


def spread(counts: Iterable[int]) -> list[int]:
    """How many of the counts are 0, 1 to 9, 10 to 99, 100 to 999, and larger."""
    found = Counter(sum(count >= edge for edge in EDGES) for count in counts)
    return [found[place] for place in range(len(EDGES) + 1)]


def word_facts(train: Iterable[Pair], test: Sequence[Pair], ours: Sequence[str]) -> dict[str, Any]:
    """How often training shows the source words of other texts.

    Args:
        train: the pairs of the training split.
        test: those of the test split.
        ours: tokenized sentences.

    Returns:
        the `EDGES` between the places of a `spread`; that of the running words of `test`, `"talks"`; and
        for each sentence of `ours` its words with their counts.
    """
    seen = Counter(word for pair in train for word in words_of(pair.source))
    talks = spread(seen[word] for pair in test for word in words_of(pair.source))
    asked = [[(word, seen[word]) for word in words_of(text)] for text in ours]
    return {"edges": EDGES, "spread": {"talks": talks}, "ours": asked}


def main() -> None:
    """Count, and write the record."""
    train, test = (load_corpus("ted", split) for split in ("train", "test"))
    ours = [tokenize(sentence.source) for sentence in load_sentences()]
    write_record(RECORD, run_facts("cpu") | word_facts(train, test, ours))


if __name__ == "__main__":
    main()
