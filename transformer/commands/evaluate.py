"""`evaluate`: scores of a translator on pairs of sentences."""

import argparse
from collections.abc import Sequence
from transformer.commands.main import Add, note, place, search_of, search_options, within
from transformer.language.corpora import Pair, load_corpus, read_pairs
from transformer.language.folder import pretrained_folder
from transformer.language.scores import corpus_scores
from transformer.language.translator import Translator
from transformer.language.preparation import CORPORA, Preparation

__all__ = ["run", "evaluation_pairs", "add_options", "HELP"]


def run(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus, or on two files."""
    search = search_of(options)
    translator = Translator.load(pretrained_folder(options.model), options.device)
    pairs, seen = evaluation_pairs(options, translator.preparation)
    sources = [source for source, _ in pairs]
    targets = [translator.vocabulary.prepare(target) for _, target in pairs]

    def show(rows: Sequence[int]) -> None:
        ours, theirs = ([side[row] for row in rows] for side in (hypotheses, targets))
        scores = corpus_scores(ours, theirs, options.bootstrap, translator.preparation)
        print(*(score["line"] for score in scores.values()), sep="\n")

    note(f"scoring {len(pairs):,} pairs …")
    hypotheses = translator.translate_tokenized(sources, search)
    print(f"{len(pairs):,} pairs, beam {search.beam_size}, length penalty {search.length_penalty}")
    show(range(len(pairs)))
    rows = [row for row, pair in enumerate(pairs) if pair not in seen]
    if 0 < len(rows) < len(pairs):
        left = len(pairs) - len(rows)
        print(f"{len(rows):,} pairs, without {left:,} that are in the training split as well")
        show(rows)


def evaluation_pairs(options: argparse.Namespace, preparation: Preparation) -> tuple[list[Pair], set[Pair]]:
    """The pairs that `evaluate` is asked for, and those that training showed.

    Raises:
        ValueError: one of two files is missing, or a corpus is asked for as well, or it is not of the kind
            of texts that the translator was made for.
        CorpusError: a file is not UTF-8, or the two do not have the same number of lines.
    """
    files = options.source, options.reference
    if files == (None, None):
        corpus, split = options.corpus or "phrases", options.split or "test"
        if preparation != CORPORA:
            raise ValueError(
                f"a translator of texts that are {preparation} cannot be scored on --corpus {corpus}, whose "
                f"texts are {CORPORA}: name --source and --reference"
            )
        seen = load_corpus(corpus, "train") if split != "train" else []
        return load_corpus(corpus, split), set(seen)
    if None in files:
        raise ValueError("--source and --reference belong together: two files, a sentence a line")
    if (options.corpus, options.split) != (None, None):
        raise ValueError("--corpus and --split are for a corpus, --source and --reference for files")
    return read_pairs(*files), set()


def add_options(add: Add) -> None:
    """The options of `evaluate`."""
    add("--corpus", help="phrases or ted (default: phrases)")
    add("--split", help="train, dev or test (default: test)")
    add("--source", type=place, metavar="FILE", help="texts of your own, one a line")
    add("--reference", type=place, metavar="FILE", help="their translations, line by line")
    interval = "give a 95%% interval from N corpora drawn from this one "
    interval += "(default: none; without a number: 1000)"
    count = {"type": within(int, 0, 100_000), "nargs": "?", "const": 1000, "default": 0}
    add("--bootstrap", **count, metavar="N", help=interval)
    search_options(add)


HELP = """score a translator with sacreBLEU

Lines as sacreBLEU prints them: BLEU on the tokens as the corpora have them (tok:none), if the texts of
the translator are split into tokens; BLEU and chrF2 on text as one types it; and how many translations
are equal to their reference. Of a corpus, pairs that its training split holds as well are then left out,
and the rest is scored again. Files of your own are prepared as the translator's texts are. Where no
translation has four words, such as of dates or numbers, BLEU is 0 and says nothing; look at the last line.

  python -m transformer evaluate --model runs/ted-small/translator --corpus ted --split test --bootstrap
  python -m transformer evaluate --model runs/own/translator --source test.de --reference test.en"""
