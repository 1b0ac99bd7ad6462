"""Examine a translator more closely than training does: `python -m experiments.report FOLDER`.

The folder is that of a finished run. What is found is added to its record.json: where its translations of the
test split are good and where they are not, and what becomes of sentences that were written for the book. Of
the test split only numbers are kept, because translations would be changed versions of its text.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics import CHRF
from torch import Tensor

from transformer.commands.data import Translations
from transformer.commands.recipes import read_recipe
from transformer.files import read_record, write_record
from transformer.language.corpora import Pair, detokenize, load_corpus, tokenize
from transformer.language.translator import Search, Translator
from transformer.runs.folder import run_facts
from transformer.training import record_path

# What the maps of attention in Chapter 13 show: a sentence without its full stop, and with it.
ALIGNED = ("este é um problema que temos que resolver", "este é um problema que temos que resolver .")
_SEPARATORS = re.compile(r"(?<=\d)[.,](?=\d)")


class Sentence(NamedTuple):
    """A sentence that the book asks every translator, with the authors' own translation."""

    category: str
    source: str
    target: str


def load_sentences() -> list[Sentence]:
    """The hundred Portuguese sentences that were written for the book, in eleven categories."""
    lines = record_path("sentences.tsv").read_text(encoding="utf8").splitlines()
    return [Sentence(*line.split("\t")) for line in lines]


def recalled(hypotheses: Sequence[str], wanted: Sequence[Iterable[str]]) -> tuple[int, int]:
    """Count the wanted words that the translations hold, and those that were wanted; what is wanted twice
    has to be there twice."""
    counts = [Counter(words) for words in wanted]
    found = [Counter(text.split()) & words for text, words in zip(hypotheses, counts, strict=True)]
    return sum(words.total() for words in found), sum(words.total() for words in counts)


def copied_words(pairs: Iterable[Pair]) -> tuple[list[list[str]], list[list[str]]]:
    """The numbers that source and reference have in common, and the names: other words of four letters."""
    numbers, names = [], []
    for pair in pairs:
        words, others = (_SEPARATORS.sub("", text).split() for text in pair)  # 2.000 is 2,000
        common = list((Counter(words) & Counter(others)).elements())
        numbers.append([word for word in common if word[0].isdigit()])
        names.append([word for word in common if word.isalpha() and len(word) > 3])
    return numbers, names


def analyse_translations(
    hypotheses: Sequence[str], pairs: Sequence[Pair], train: Iterable[Pair]
) -> dict[str, Any]:
    """Count which numbers, names and words of the references the translations hold, words by how often
    training shows them."""
    seen = Counter(word for pair in train for word in pair.target.split())
    references = [pair.target.split() for pair in pairs]
    numbers, names = copied_words(pairs)
    joined = [_SEPARATORS.sub("", text) for text in hypotheses]
    recall = {"numbers": recalled(joined, numbers), "names": recalled(joined, names)}
    for low, high in ((0, 1), (1, 10), (10, 100), (100, 1000), (1000, math.inf)):
        wanted = [[word for word in words if low <= seen[word] < high] for words in references]
        recall[f"from {low}" + (f" below {high}" if high < math.inf else "")] = recalled(hypotheses, wanted)
    return {"recalled": recall}


def rounded(weights: Tensor) -> Any:
    """A tensor as nested lists of numbers with three digits, for a record that people can read."""
    return (weights.double() * 1000).round().div(1000).tolist()


def ask_own_sentences(translator: Translator, search: Search) -> dict[str, Any]:
    """Translate what was written for the book, and keep what attention looks at in some sentences."""
    ours = load_sentences()
    sources, targets = ([tokenize(sentence[side]) for sentence in ours] for side in (1, 2))
    found = translator.translate_tokenized(sources, search)
    aligned = [translator.align(source) for source in ALIGNED]
    typed, metric = [[*map(detokenize, side)] for side in (found, targets)], CHRF()
    return {
        "sentences": [
            {
                **sentence._asdict(),
                "translation": text,
                "chrF2": round(metric.sentence_score(text, [own]).score, 2),
            }
            for sentence, text, own in zip(ours, *typed, strict=True)
        ],
        "alignments": [{**x._asdict(), "weights": rounded(x.weights[-1])} for x in aligned],
    }


def examine(
    translator: Translator,
    record: dict[str, Any],
    corpus: str,
    load: Callable[[str, str], list[Pair]] = load_corpus,
) -> dict[str, Any]:
    """The record of a run, with what the book keeps beside it. The search is the best of its grid."""
    best = record["grid"][0]
    search = Search(best["beam_size"], best["length_penalty"])
    train, test = load(corpus, "train"), load(corpus, "test")
    written = translator.translate_tokenized([pair.source for pair in test], search)
    return record | {
        "examined": run_facts(next(translator.model.parameters()).device),
        "analysis": analyse_translations(written, test, train),
        **ask_own_sentences(translator, search),
    }


def read_run(folder: Path) -> tuple[Translator, dict[str, Any], str]:
    """The translator of a run, its record, and the name of its corpus.

    Raises:
        ValueError: the record is not that of a finished run of this translator.
    """
    path = folder / "record.json"
    record, translator = read_record(path), Translator.load(folder / "translator", "cpu")
    for name in ("recipe", "grid", "parameters"):
        if name not in record:
            raise ValueError(f"{path} is not a record of a finished run of a translator: it has no {name!r}")
    data = read_recipe(path).data
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    if not isinstance(data, Translations) or record["parameters"] != parameters:
        raise ValueError(f"{path} is of another model than {folder / 'translator'}")
    return translator, record, data.corpus


def main(arguments: list[str] | None = None) -> None:
    """Examine the translator of a run, and add what is found to the run's record."""
    summary = __doc__.partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m experiments.report", description=summary)
    parser.add_argument("folder", type=Path, help="of a finished run, with translator/ and record.json")
    folder = parser.parse_args(arguments).folder
    translator, record, corpus = read_run(folder)
    write_record(folder / "record.json", examine(translator, record, corpus))


if __name__ == "__main__":
    main()
