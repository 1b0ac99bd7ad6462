"""`evaluate`: scores of a translator on pairs of sentences."""

import argparse
from typing import Any
from transformer.commands.main import Add, note, search_of, search_options, within
from transformer.language.corpora import CORPORA, Pair, load_corpus, read_pairs
from transformer.language.folder import pretrained_folder
from transformer.language.scores import corpus_scores
from transformer.language.translator import Translator

__all__ = ["run", "add_options", "HELP"]


def run(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus, or on two files."""
    search = search_of(options)
    translator = Translator.load(pretrained_folder(options.model), options.device)
    if bool(options.source) != bool(options.reference):
        raise ValueError("--source and --reference belong together: two files, a sentence a line")
    seen: set[Pair] = set()
    if options.source and (options.corpus or options.split):
        raise ValueError("--corpus and --split are of a corpus, --source and --reference of two files")
    if options.source:
        pairs = read_pairs(options.source, options.reference)
        if not pairs:
            raise ValueError(f"{options.source} holds no sentence to score")
    elif translator.preparation != CORPORA:
        raise ValueError(
            f"a translator of texts that are {translator.preparation} cannot be scored on a corpus, whose "
            f"texts are {CORPORA}: name --source and --reference"
        )
    else:
        corpus, split = options.corpus or "phrases", options.split or "test"
        pairs = load_corpus(corpus, split)
        seen = set() if split == "train" else set(load_corpus(corpus, "train"))
    note(f"scoring {len(pairs):,} pairs …")
    written = translator.translate_tokenized([pair.source for pair in pairs], search)
    targets = [translator.vocabulary.prepare(pair.target) for pair in pairs]
    print(f"{len(pairs):,} pairs, beam {search.beam_size}, length penalty {search.length_penalty}")
    _print_scores(written, targets, options.bootstrap, translator.preparation)
    unseen = [row for row, pair in enumerate(pairs) if pair not in seen]
    if 0 < len(unseen) < len(pairs):
        left = len(pairs) - len(unseen)
        print(f"{len(unseen):,} pairs, without {left:,} that are in the training split as well")
        written, targets = [written[row] for row in unseen], [targets[row] for row in unseen]
        _print_scores(written, targets, options.bootstrap, translator.preparation)


def _print_scores(*given: Any) -> None:
    print(*(score["line"] for score in corpus_scores(*given).values()), sep="\n")


def add_options(add: Add) -> None:
    """The options of `evaluate`."""
    add("--corpus", help="phrases or ted (default: phrases)")
    add("--split", help="train, dev or test (default: test)")
    add("--source", metavar="FILE", help="texts of your own, one a line, instead of a corpus")
    add("--reference", metavar="FILE", help="their translations, line by line")
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
