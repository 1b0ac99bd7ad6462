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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer.commands.data import Translations
from transformer.commands.recipes import read_recipe
from transformer.files import read_record, write_record
from transformer.language.batches import pad
from transformer.language.corpora import Pair, load_corpus
from transformer.language.preparation import detokenize, tokenize
from transformer.language.scores import corpus_scores, sentence_scores
from transformer.language.translator import Alignment, Search, Translator, by_length, by_words
from transformer.runs.folder import run_facts
from transformer.training import evaluating, record_path

# A noun and its adjective, which change places.
SWAPS = {
    "um gato preto": "a black cat",
    "uma casa branca": "a white house",
    "uma ideia nova": "a new idea",
    "um problema difícil": "a difficult problem",
    "uma cidade grande": "a big city",
    "um carro vermelho": "a red car",
    "uma pessoa normal": "a normal person",
    "um mundo diferente": "a different world",
    "uma história verdadeira": "a true story",
    "um homem rico": "a rich man",
    "uma mulher forte": "a strong woman",
    "um livro interessante": "an interesting book",
    "uma pergunta simples": "a simple question",
    "um sistema político": "a political system",
    "uma decisão importante": "an important decision",
    "uma experiência científica": "a scientific experiment",
    "um projeto pequeno": "a small project",
    "uma criança doente": "a sick child",
    "uma mão fria": "a cold hand",
    "um rio profundo": "a deep river",
}
OFTEN = 10  # a word is known that training showed so often
KNOWN = (0.6, 0.7, 0.8, 0.9, 1.0)  # edges of ranges of the share of known words
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


def words_of(text: str) -> list[str]:
    """The words of a tokenized sentence: what has a letter in it."""
    return [token for token in text.split() if any(map(str.isalpha, token))]


def known_share(text: str, seen: Mapping[str, int], often: int = OFTEN) -> float:
    """The share of a sentence's words that training showed at least `often` times; 1 where it has none."""
    words = words_of(text)
    return sum(seen[word] >= often for word in words) / len(words) if words else 1.0


def load_lecture() -> dict[str, str]:
    """Five Portuguese sentences that a lecture on the ted corpus shows, with what its model made of them."""
    lines = record_path("lecture.tsv").read_text(encoding="utf8").splitlines()
    return dict(line.split("\t") for line in lines)


def scores_in_ranges(
    values: Sequence[float], edges: Sequence[float], hypotheses: Sequence[str], references: Sequence[str]
) -> list[dict[str, Any]]:
    """Score the sentences in each range of a number that each sentence has, by BLEU-detok.

    The first range begins at 0, the last has no end; where there are no sentences, the score is None.
    """
    ranges = []
    for low, high in zip((0, *edges), (*edges, None), strict=True):
        rows = [i for i, value in enumerate(values) if low <= value < (high or math.inf)]
        ours, theirs = ([side[i] for i in rows] for side in (hypotheses, references))
        score = corpus_scores(ours, theirs)["BLEU-detok"]["score"] if rows else None
        ranges.append({"from": low, "below": high, "pairs": len(rows), "score": score})
    return ranges


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
    """Say where translations of `pairs` are good: by length, known words, numbers and names."""
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    seen: tuple[Counter[str], Counter[str]] = Counter(), Counter()
    for pair in train:
        for counter, text in zip(seen, pair, strict=True):
            counter.update(text.split())
    lengths = [len(text.split()) for text in references]
    rarest = [min((seen[0][word] for word in text.split()), default=0) for text in sources]
    known = [known_share(text, seen[0]) for text in sources]
    numbers, names = copied_words(pairs)
    joined = [_SEPARATORS.sub("", text) for text in hypotheses]
    recall = {"numbers": recalled(joined, numbers), "names": recalled(joined, names)}
    for low, high in ((0, 1), (1, 10), (10, 100), (100, 1000), (1000, None)):
        wanted = [
            [word for word in text.split() if low <= seen[1][word] < (high or math.inf)]
            for text in references
        ]
        recall[f"from {low} below {high}" if high else f"from {low}"] = recalled(hypotheses, wanted)
    return {
        "sentences": sentence_scores(hypotheses, references),
        "by length": scores_in_ranges(lengths, (10, 20, 30, 40, 60), hypotheses, references),
        "by rarest word": scores_in_ranges(rarest, (1, 10, 100, 1000), hypotheses, references),
        "by known words": scores_in_ranges(known, KNOWN, hypotheses, references),
        "recalled": recall,
    }


def log_probabilities(
    translator: Translator, sources: list[list[int]], found: list[list[int]]
) -> list[float]:
    """The mean log-probability of a token of each translation, end token included; 0 for an empty one.

    Args:
        translator: whose model is asked.
        sources: token ids with their end tokens.
        found: token ids as `translate_ids` returns them.
    """
    model, means = translator.model, [0.0] * len(found)
    device, bos_id, pad_id = next(model.parameters()).device, model.config.bos_id, model.config.pad_id
    with evaluating(model):
        for rows in by_length([[*source, *ids] if ids else [] for source, ids in zip(sources, found)], 4000):
            src = pad([sources[row] for row in rows], pad_id).to(device)
            tgt = pad([[bos_id, *found[row]] for row in rows], pad_id).to(device)
            log_probs = model(src, tgt[:, :-1]).log_softmax(dim=-1).gather(2, tgt[:, 1:, None])[:, :, 0]
            real = tgt[:, 1:] != pad_id
            for row, mean in zip(rows, ((log_probs * real).sum(1) / real.sum(1)).tolist()):
                means[row] = mean
    return means


def calibration(
    translator: Translator, pairs: Sequence[Pair], n_bins: int = 10
) -> list[dict[str, float | int]]:
    """How often the most probable next token is right, by how probable the model finds it.

    Args:
        translator: whose model is asked, with the beginning of the reference read.
        pairs: of a split that training has not seen.
        n_bins: of equal width in which probabilities are put.

    Returns:
        for each bin that is not empty the number of `"tokens"`, their mean `"probability"`, and the share
        that is `"right"`.

    Source: Guo et al. (2017).
    """
    model, sums = translator.model, torch.zeros(3, n_bins, dtype=torch.float64)
    device, config = next(model.parameters()).device, model.config
    sources, targets = (translator.vocabulary.encode_batch(side) for side in zip(*pairs, strict=True))
    with evaluating(model):
        for rows in by_length([[*a, *b] for a, b in zip(sources, targets, strict=True)], 4000):
            src = pad([[*sources[row], config.eos_id] for row in rows], config.pad_id).to(device)
            rows_of_ids = [[config.bos_id, *targets[row], config.eos_id] for row in rows]
            tgt = pad(rows_of_ids, config.pad_id).to(device)
            probability, token = model(src, tgt[:, :-1]).softmax(dim=-1).max(dim=-1)
            wanted = tgt[:, 1:]
            real = wanted != config.pad_id
            probability, right = probability[real].double(), (token == wanted)[real].double()
            place = (probability * n_bins).long().clamp(max=n_bins - 1)
            for row, values in enumerate((torch.ones_like(right), probability, right)):
                sums[row].index_add_(0, place.cpu(), values.cpu())
    return [
        {"tokens": int(count), "probability": likely / count, "right": right / count}
        for count, likely, right in sums.T.tolist()
        if count
    ]


def crosses_over(found: Alignment, source: Sequence[str], target: Sequence[str]) -> list[bool]:
    """Say whether attention crosses over, for each layer of the decoder by the mean over its heads.

    It does where the first of two target words looks more at the second of two source words than at the
    first, and the second target word more at the first.
    """
    rows, columns = [found.target.index(word) for word in target], [found.source.index(w) for w in source]
    table = found.weights.mean(dim=1)[:, rows][:, :, columns]  # [n_layers, 2, 2]
    crossed = (table[:, 0, 1] > table[:, 0, 0]) & (table[:, 1, 0] > table[:, 1, 1])
    return crossed.tolist()


def find_swap(translator: Translator, source: str, target: str, search: Search) -> dict[str, Any]:
    """Translate a noun phrase, and say whether attention crosses over where both words are as expected."""
    words = by_words(translator.align(f"isto é {source} .", search))
    pairs = source.split()[1:], target.split()[1:]
    as_said = set(pairs[0]) <= set(words.source) and set(pairs[1]) <= set(words.target)
    crossed = crosses_over(words, *pairs) if as_said else None
    return {"source": words.source, "target": words.target, "crossed": crossed}


def rounded(weights: Tensor) -> Any:
    """A tensor as nested lists of numbers with three digits, for a record that people can read."""
    return (weights.double() * 1000).round().div(1000).tolist()


def translate_surely(
    translator: Translator, sentences: Sequence[str], search: Search
) -> tuple[list[str], list[float]]:
    """Tokenized translations, with the mean log-probability of a token of each, rounded to four digits."""
    eos_id = translator.model.config.eos_id
    sources = [[*ids, eos_id] for ids in translator.vocabulary.encode_batch(sentences)]
    found = translator.engine(sources, search)
    means = log_probabilities(translator, sources, found)
    return [translator.vocabulary.decode(ids) for ids in found], [round(mean, 4) for mean in means]


def ask_own_sentences(translator: Translator, search: Search) -> dict[str, Any]:
    """Translate what was written for the book, and what the lecture shows."""
    ours, lecture = load_sentences(), list(load_lecture())
    sources, targets = ([tokenize(sentence[side]) for sentence in ours] for side in (1, 2))
    found, sure = translate_surely(translator, sources, search)
    scores = sentence_scores(found, targets)
    moved = [s for s, sentence in zip(sources, ours, strict=True) if sentence.category == "adjectives"]
    reordered = [by_words(translator.align(source, search)) for source in moved[:3]]
    aligned = [translator.align(source) for source in lecture[:2]]
    return {
        "sentences": [
            {**sentence._asdict(), "translation": detokenize(text), "chrF2": score, "log-probability": mean}
            for sentence, text, score, mean in zip(ours, found, scores, sure, strict=True)
        ],
        "swaps": [find_swap(translator, *pair, search) for pair in SWAPS.items()],
        "reordered": [{**x._asdict(), "weights": rounded(x.weights.mean(dim=1))} for x in reordered],
        "lecture": {
            name: translator.translate_tokenized(lecture, beam_size=size)
            for name, size in (("greedy", 1), ("beam 4", 4))
        },
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
    written, sure = translate_surely(translator, [pair.source for pair in test], search)
    return record | {
        "examined": run_facts(next(translator.model.parameters()).device),
        "analysis": analyse_translations(written, test, train),
        "confidence": {"sentences": sure, "tokens": calibration(translator, test)},
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
