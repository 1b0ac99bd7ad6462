"""BPE-dropout: words cut differently in every epoch, by a seed."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
import torch
from torch import Tensor
from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.bpe_file import SPACE
from transformer.language.vocabulary import BOS_ID, EOS_ID, UNK_ID, Vocabulary
from transformer.validation import check_rate, check_size

__all__ = ["BPEDropout", "sampled_batches"]


_Encoded = tuple[list[int], list[int]]
_State = tuple[tuple[int, ...], int]  # pieces, and how many of their possible merges have just been left out
_REMEMBERED = 1 << 18  # courses; about 300 MB
_LONGEST = 64  # letters; what is longer is not a word, and its course would fill the memory


class _Merges:
    """What a vocabulary's merges make of a word, step by step."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.ids = ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        self.merges = {
            (ids[left], ids[right]): (age, ids[left + right])
            for age, (left, right) in enumerate(vocabulary.merges)
        }
        self.course = lru_cache(_REMEMBERED)(self._course)

    def undisturbed(self, word: str) -> list[_State]:
        """The course of a word from its letters on; one that is too long is cut once and for all."""
        if len(word) > _LONGEST:
            return [(tuple(self.vocabulary.tokenizer.encode(word).ids), 0)]  # prepared already
        return self.course(tuple(self.ids.get(letter, UNK_ID) for letter in word), 0)

    def _course(self, pieces: tuple[int, ...], left_out: int) -> list[_State]:
        """The state itself, and those that it passes through if no further merge is left out."""
        course = [(pieces, left_out)]
        while True:
            pairs = enumerate(zip(pieces, pieces[1:]))
            possible = sorted((self.merges[pair], i) for i, pair in pairs if pair in self.merges)
            if len(possible) <= left_out:
                return course
            (_, merged), i = possible[left_out]
            pieces = (*pieces[:i], merged, *pieces[i + 2 :])
            left_out = 0
            course.append((pieces, 0))


def _draw_cuts(
    courses: list[list[_State]],
    course: Callable[[tuple[int, ...], int], list[_State]],
    dropout: float,
    generator: torch.Generator,
) -> list[tuple[int, ...]]:
    """For each word, given its undisturbed course, the pieces that it gets when merges are left out."""
    courses = list(courses)
    places = torch.arange(len(courses))
    merges = torch.tensor([len(states) - 1 for states in courses])
    while len(places):
        draws = torch.empty(len(places), dtype=torch.float64).geometric_(dropout, generator=generator)
        disturbed = draws <= merges
        places, draws = places[disturbed], draws[disturbed].long()
        left = []
        for place, draw in zip(places.tolist(), draws.tolist()):
            pieces, left_out = courses[place][draw - 1]
            courses[place] = course(pieces, left_out + 1)
            left.append(len(courses[place]) - 1)
        merges = torch.tensor(left)
    return [states[-1][0] for states in courses]


def _words(text: str) -> list[str]:
    """Where merges stop: the words of a normalized text, each with the sign for the space before it."""
    marked = text.replace(" ", SPACE)
    if not marked.startswith(SPACE):
        marked = SPACE * bool(marked) + marked
    return re.findall(f"{SPACE}[^{SPACE}]*", marked)


class BPEDropout:
    """Sentence pairs, cut anew for every epoch by BPE-dropout.

    Called with the number of an epoch it returns what `encode_pairs` would, in the same order, with merges
    left out at random. The cuts depend on `seed` and epoch alone. For training only: text that is translated
    or evaluated is cut by the vocabulary itself. Words of more than 64 characters are always cut as usual.

    Args:
        pairs: Pairs (source, target).
        vocabulary: The vocabulary of both languages.
        dropout: Probability p, in [0, 1), with which each possible merge is left out.
        seed: Of the cuts.
        max_tokens: Pairs that `encode_pairs` finds too long are left out; a pair that only a random cut makes
            too long is cut as usual. ``None`` for no bound.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of its range, or what should be a pair is not one.

    Source:
        Provilkov et al. (2020), algorithm 1.
    """

    dropout: float
    seed: int

    def __init__(
        self,
        pairs: Iterable[tuple[str, str]],
        vocabulary: Vocabulary,
        dropout: float = 0.1,
        seed: int = 0,
        max_tokens: int | None = None,
    ) -> None:
        check_rate(dropout=dropout)
        check_size(0, seed=seed)
        if max_tokens is not None:
            check_size(max_tokens=max_tokens)
        pairs = list(pairs)
        longest = max_tokens or float("inf")
        both = zip(pairs, encode_pairs(pairs, vocabulary))
        fitting = [(pair, ids) for pair, ids in both if max(map(len, ids)) <= longest]
        self.dropout, self.seed, self._longest = dropout, seed, longest
        self._usual, self._merges = [ids for _, ids in fitting], _Merges(vocabulary)
        texts = [_words(vocabulary.prepare(text)) for pair, _ in fitting for text in pair]
        courses = {word: self._merges.undisturbed(word) for word in set(chain.from_iterable(texts))}
        self._sizes = [len(words) for words in texts]
        self._courses = [courses[word] for word in chain.from_iterable(texts)]

    def __call__(self, epoch: int) -> list[_Encoded]:
        check_size(0, epoch=epoch)
        if self.dropout == 0:
            return self._usual
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch + (1 << 31))
        cuts = iter(_draw_cuts(self._courses, self._merges.course, self.dropout, generator))
        texts = [[*chain.from_iterable(islice(cuts, size)), EOS_ID] for size in self._sizes]
        drawn = [(source, [BOS_ID, *target]) for source, target in zip(texts[::2], texts[1::2])]
        return [new if max(map(len, new)) <= self._longest else old for new, old in zip(drawn, self._usual)]


def sampled_batches(
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    max_tokens: int,
    dropout: float = 0.1,
    seed: int = 0,
    max_length: int | None = None,
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Batches for training by BPE-dropout: `TokenBatches` of what `BPEDropout` gives in each epoch.

    Args:
        pairs, vocabulary, dropout: As in `BPEDropout`.
        max_tokens: As in `TokenBatches`.
        seed: Of cuts and order.
        max_length: Longest sentence in tokens, special ones included. By default what a batch can hold.

    Returns:
        A function that yields the batches of the epoch whose number it is given, the same whenever it
        is called. Their number may differ from epoch to epoch.

    Raises:
        TypeError, ValueError: As in `BPEDropout` and `TokenBatches`.
    """
    check_size(max_tokens=max_tokens)
    cut = BPEDropout(pairs, vocabulary, dropout, seed, max_tokens if max_length is None else max_length)
    return lambda epoch: TokenBatches(cut(epoch), max_tokens, seed)(epoch)
