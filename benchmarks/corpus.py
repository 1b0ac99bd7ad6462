"""Corpus: what chapter 12 reports of one, counted.

python -m benchmarks.corpus ted ted-corpus.json    the talks, as the package's record has them
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from transformer.files import write_record
from transformer.language.batches import (
    BPEDropout,
    TokenBatches,
    batch_cuts,
    encode_pairs,
    pad,
    padding_waste,
)
from transformer.language.corpora import load_corpus
from transformer.language.vocabulary import Vocabulary
from transformer.runs.folder import run_facts

Encoded = tuple[list[int], list[int]]


def in_turn(pairs: Sequence[Encoded], max_tokens: int) -> Iterator[tuple[Tensor, ...]]:
    """Make batches of the pairs in the order in which they come, as a yardstick."""
    for cut in batch_cuts([max(map(len, pair)) for pair in pairs], max_tokens):
        yield tuple(pad(side) for side in zip(*pairs[cut], strict=True))


def corpus_facts(
    name: str,
    sizes: Sequence[int] = (8000,),
    budgets: Sequence[int] = (4096,),
    dropouts: Sequence[float] = (),
) -> dict[str, Any]:
    """Count what the chapter reports of a corpus; none of its text is in the result.

    Args:
        name: as in `load_corpus`.
        sizes: of vocabularies to learn from the training split, at least one.
        budgets: of tokens in a batch to try with the last of them.
        dropouts: rates of BPE-dropout to try with it.

    Returns:
        For each split the pairs, and for both sides tokens, distinct tokens and a table [length, how often];
        how many pairs repeat others, have equal sides, or stand in the training split too; the share of
        tokens that the training split lacks. For each vocabulary its size and its subwords a token; for
        each budget the number of batches and the shares of padding, in random order and in `TokenBatches`;
        for each rate of dropout the rate and the subwords a token.
    """
    splits = {split: load_corpus(name, split) for split in ("train", "dev", "test")}
    facts: dict[str, Any] = {"corpus": name, "vocabularies": [], "batches": [], "dropout": []}
    facts["splits"] = {split: split_facts(pairs, splits["train"]) for split, pairs in splits.items()}
    tokens = facts["splits"]["train"]["tokens"]
    for size in sizes:
        vocabulary = Vocabulary.train((text for pair in splits["train"] for text in pair), size)
        encoded = encode_pairs(splits["train"], vocabulary)
        facts["vocabularies"].append([len(vocabulary), *subwords(encoded, tokens)])
    order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()
    random_order = [encoded[index] for index in order]
    for budget in budgets:
        batches = TokenBatches(encoded, budget)
        facts["batches"].append(
            {
                "max_tokens": budget,
                "batches": len(batches),
                "waste": padding_waste(batches(0)),
                "waste at random": padding_waste(in_turn(random_order, budget)),
            }
        )
    for rate in dropouts:
        drawn = BPEDropout(splits["train"], vocabulary, rate)(0)
        facts["dropout"].append([rate, *subwords(drawn, tokens)])
    return facts


def split_facts(pairs: Sequence[tuple[str, str]], train: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Count pairs, words and lengths of a split, and what it has in common with the training split."""
    sides = [[text.split() for text in side] for side in zip(*pairs, strict=True)]
    words = [[word for text in side for word in text] for side in sides]
    known = [{word for text in side for word in text.split()} for side in zip(*train, strict=True)]
    trained = set(train)
    return {
        "pairs": len(pairs),
        "tokens": [len(side) for side in words],
        "types": [len(set(side)) for side in words],
        "lengths": [sorted(Counter(map(len, side)).items()) for side in sides],
        "repeated": len(pairs) - len(set(pairs)),
        "equal sides": sum(source == target for source, target in pairs),
        "in train": sum(pair in trained for pair in pairs),
        "unknown": [
            sum(word not in seen for word in side) / len(side)
            for side, seen in zip(words, known, strict=True)
        ],
    }


def subwords(encoded: Sequence[Encoded], tokens: Sequence[int]) -> list[float]:
    """Count how many subwords a token has, on either side, without special ones."""
    sums = sum(len(source) - 1 for source, _ in encoded), sum(len(target) - 2 for _, target in encoded)
    return [count / total for count, total in zip(sums, tokens, strict=True)]


if __name__ == "__main__":
    name, path = sys.argv[1:]
    sizes, budgets = (1000, 2000, 4000, 16000, 8000), (1024, 2048, 4096, 8192, 16384)
    write_record(path, run_facts("cpu") | corpus_facts(name, sizes, budgets, (0.05, 0.1, 0.2, 0.3, 0.5)))
