"""How often the talks use the words of other texts, counted by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments.report import OFTEN
from experiments.words import spread, word_facts
from transformer.language.corpora import Pair


def test_words_are_counted_by_hand():
    train = [Pair("o gato o", "x")] * OFTEN + [Pair("raro", "y")]
    facts = word_facts(train, [Pair("o raro !", "z")], [Pair("gato novo-o novo", "w")], ["raro 9 , gato ."])
    assert facts["ours"] == [[("raro", 1), ("gato", OFTEN)]]
    assert facts["talks"] == {"words": [2], "known": [1]}
    assert facts["never seen"] == ["novo"]
    assert facts["spread"]["everyday"] == [2, 0, 1, 0, 0]
    assert spread([0, 1, 9, 10, 5000]) == [1, 2, 1, 0, 1]
