"""How often the talks use the words of other texts, counted by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.words import spread, word_facts
from transformer.language.corpora import Pair


def test_words_are_counted_by_hand():
    train = [Pair("o gato o", "x")] * 10 + [Pair("raro", "y")]
    facts = word_facts(train, [Pair("o raro !", "z")], [Pair("gato novo-o novo", "w")], ["raro 9 , gato ."])
    assert facts["ours"] == [[("raro", 1), ("gato", 10)]]
    assert facts["spread"]["talks"] == [0, 1, 1, 0, 0]
    assert facts["spread"]["everyday"] == [2, 0, 1, 0, 0]
    assert spread([0, 1, 9, 10, 5000]) == [1, 2, 1, 0, 1]
