"""transformer.language.batches, from book/12-text.ipynb, "Text".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "encode_pairs", "pad", "batch_cuts", "padding_waste", "TokenBatches", "bucket_lengths", "BPEDropout",
]


# %% book/12-text.ipynb · A vocabulary for real use · [batches-imports]
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.language.corpora import as_pairs
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from transformer.validation import check_rate, check_size, check_type


# %% book/12-text.ipynb · From pairs to tensors · [text-encode-pairs]
_Encoded = tuple[list[int], list[int]]


def encode_pairs(
    pairs: Iterable[tuple[str, str]], vocabulary: Vocabulary, max_tokens: int | None = None
) -> list[_Encoded]:
    """Turn sentence pairs into the numbers that training needs.

    Args:
        pairs: Pairs (source, target).
        vocabulary: The vocabulary of both languages.
        max_tokens: Pairs with more tokens than this on either side, special ones included, are left
            out, and the result is that much shorter; ``None`` keeps them all.

    Returns:
        For each pair the source ids, `EOS_ID` at their end, and the target ids between `BOS_ID` and
        `EOS_ID`.

    Raises:
        TypeError, ValueError: `vocabulary` is none, or what should be a pair of texts is not one.
    """
    check_type(Vocabulary, vocabulary=vocabulary)
    pairs = as_pairs(pairs)
    sources = vocabulary.encode_batch(source for source, _ in pairs)
    targets = vocabulary.encode_batch(target for _, target in pairs)
    encoded = [([*source, EOS_ID], [BOS_ID, *target, EOS_ID]) for source, target in zip(sources, targets)]
    return [pair for pair in encoded if max_tokens is None or max(map(len, pair)) <= max_tokens]


# %% book/12-text.ipynb · From pairs to tensors · [text-pad]
def pad(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Pad sequences of ids, at least one, into a ``torch.long`` tensor [B, L], L being the longest length.

    Args:
        sequences: The sequences, of which one must hold an id.
        pad_id: What fills the rows up, after their last id.

    Raises:
        TypeError: there is no id, or one is no whole number.

    Example:
        >>> pad([[5, 6, 7], [8]]).tolist()
        [[5, 6, 7], [8, 0, 0]]
    """
    ids = torch.tensor(list(chain.from_iterable(sequences)))
    if ids.dtype != torch.long:  # without any, it isn't
        raise TypeError(f"sequences must hold whole numbers, at least one, not {ids.dtype}")
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    rows = torch.full((len(sequences), int(lengths.max())), pad_id, dtype=torch.long)  # [B, L]
    rows[torch.arange(rows.size(1)) < lengths[:, None]] = ids
    return rows


def _filled(ids: Tensor, rows: int, length: int) -> Tensor:
    """Ids [B, L], padded to so many rows of this length."""
    return F.pad(ids, (0, length - ids.size(1), 0, rows - len(ids)), value=PAD_ID)


# %% book/12-text.ipynb · Batches by tokens · [text-by-length]
def _mowing_order(pair: _Encoded) -> tuple[int, int]:
    """The longer side; then how much longer the target is, up and down in turn."""
    source, target = map(len, pair)
    longest, difference = max(source, target), target - source
    return longest, difference if longest % 2 else -difference


def batch_cuts(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Where batches begin and end; with padding, none exceeds `max_tokens`."""
    cuts, start, longest = [], 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > start and (index + 1 - start) * longest > max_tokens:
            cuts.append(slice(start, index))
            start, longest = index, length
    return [*cuts, slice(start, len(lengths))] if lengths else []


# %% book/12-text.ipynb · Batches by tokens · [text-waste]
def padding_waste(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of the positions in batches of `TokenBatches`, sources and targets, that hold `PAD_ID`."""
    padding = total = 0
    for ids in chain.from_iterable(batches):
        padding += int((ids == PAD_ID).sum())
        total += ids.numel()
    return padding / total


# %% book/12-text.ipynb · Batches by tokens · [text-check-encoded]
def _check_encoded(pairs: Sequence[_Encoded], max_tokens: int) -> None:
    if len(pairs) == 0:
        raise ValueError("pairs must hold at least one pair")
    for index, (source, target) in enumerate(pairs):
        if isinstance(source, str) or isinstance(target, str):
            raise TypeError(f"pairs[{index}] is text: pairs must be ids, as encode_pairs returns them")
        if min(len(source), len(target)) == 0 or target[0] != BOS_ID:
            wanted = f"ids, those of the target after the start token {BOS_ID}"
            raise ValueError(f"pairs[{index}] must be {wanted}, not {(source, target)!r:.60}")
        if (longest := max(len(source), len(target))) > max_tokens:
            raise ValueError(f"pairs[{index}] has {longest} tokens, more than max_tokens={max_tokens}")


def _check_lengths(lengths: list[int], longest: int, max_tokens: int) -> None:
    check_size(**{f"lengths[{index}]": length for index, length in enumerate(lengths)})
    rising = all(a < b for a, b in zip(lengths, lengths[1:]))
    if not lengths or not rising or not longest <= lengths[-1] <= max_tokens:
        wanted = f"rise to at least {longest}, the longest sentence, and at most max_tokens={max_tokens}"
        raise ValueError(f"lengths must {wanted}, but are {lengths!r:.80}")


# %% book/12-text.ipynb · Batches by tokens · [text-batches]
class TokenBatches:
    """Batches of about equally many tokens, made of sentences of about equal length.

    Called with the number of an epoch it yields that epoch's batches: source [B, S] and target [B, T], padded
    with `PAD_ID`. They depend on `seed` and epoch alone. All epochs have the same number of batches, of the
    same shapes, in different orders, and sentences of equal lengths change places.

    Args:
        pairs: What `encode_pairs` returns.
        max_tokens: Bound on the sizes B·S of the source and B·T of the target tensor, padding included.
        seed: Of the random order.
        shuffle: ``False`` gives every epoch in the same order, short sentences first.
        lengths: What sentences are padded to, in rising order: a batch padded to length n then has
            ``max_tokens // n`` rows, of which some may be padding. ``None`` for the least padding.

    Raises:
        TypeError: `max_tokens` or `seed` is not a whole number, or a pair is text.
        ValueError: No pairs, a pair with an empty side, a sentence longer than `max_tokens`, a target
            without a start token, or `lengths` that do not rise to a last one between those two.

    Example:
        >>> batches = TokenBatches([([5, 3], [2, 7, 3]), ([6, 3], [2, 8, 3])], max_tokens=8)
        >>> [(tuple(source.shape), tuple(target.shape)) for source, target in batches(epoch=0)]
        [((2, 2), (2, 3))]
    """

    def __init__(
        self, pairs: Sequence[_Encoded], max_tokens: int, seed: int = 0, shuffle: bool = True,
        lengths: Iterable[int] | None = None,
    ) -> None:
        check_size(max_tokens=max_tokens)
        check_size(0, seed=seed)
        _check_encoded(pairs, max_tokens)
        self.pairs, self.seed, self.shuffle = pairs, seed, shuffle
        self.max_tokens, self.lengths = max_tokens, None if lengths is None else list(lengths)
        self._keys = [_mowing_order(pair) for pair in pairs]
        longest = sorted(length for length, _ in self._keys)
        if self.lengths is not None:
            _check_lengths(self.lengths, longest[-1], max_tokens)
        self._cuts = batch_cuts([self._padded(length) for length in longest], max_tokens)

    def __len__(self) -> int:
        return len(self._cuts)

    def indices(self, epoch: int) -> list[list[int]]:
        """For each batch of an `epoch` the indices of its pairs; over the epoch every index occurs once."""
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order, cuts = list(range(len(self.pairs))), self._cuts
        if self.shuffle:  # sorting is stable: pairs of equal lengths keep this random order
            order = torch.randperm(len(order), generator=generator).tolist()
            cuts = [cuts[number] for number in torch.randperm(len(cuts), generator=generator).tolist()]
        order.sort(key=self._keys.__getitem__)
        return [order[cut] for cut in cuts]

    def __call__(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.indices(epoch):
            sources, targets = zip(*(self.pairs[index] for index in batch))
            src, tgt = pad(sources), pad(targets)
            if self.lengths is not None:
                length = self._padded(max(src.size(1), tgt.size(1)))
                src, tgt = (_filled(ids, self.max_tokens // length, length) for ids in (src, tgt))
            yield src, tgt

    def _padded(self, length: int) -> int:
        return length if self.lengths is None else next(n for n in self.lengths if n >= length)


# %% book/12-text.ipynb · Few shapes for a CUDA graph · [text-bucket-lengths]
def bucket_lengths(lengths: Iterable[int], n_buckets: int) -> list[int]:
    """The lengths to which sentences are padded with the least padding, if there are only so many.

    Args:
        lengths: Of all sentences.
        n_buckets: The most lengths to choose.

    Returns:
        In rising order the lengths to pad to, of which the last is that of the longest sentence.

    Raises:
        TypeError, ValueError: `n_buckets` is not a whole number, or less than 1.
    """
    check_size(n_buckets=n_buckets)
    counts = Counter(lengths)
    ends = sorted(counts)
    below = [0, *accumulate(counts[end] for end in ends)]  # of the j shortest lengths
    best: list[tuple[float, list[int]]] = [(0, [])]  # C_k(j), and the lengths
    best += [(float("inf"), [])] * len(ends)
    for _ in range(n_buckets):
        better = best[:1]
        for j, end in enumerate(ends, start=1):
            costs = (best[i][0] + end * (below[j] - below[i]) for i in range(j))
            cost, i = min((cost, i) for i, cost in enumerate(costs))
            better.append((cost, [*best[i][1], end]))
        best = better
    return best[-1][1]


# %% book/12-text.ipynb · BPE-dropout · [text-dropout-courses]
_State = tuple[tuple[int, ...], int]  # pieces; how many of their possible merges have just been left out
_Course = Callable[[tuple[int, ...], int], list[_State]]
_REMEMBERED = 1 << 18  # courses; about 300 MB
_LONGEST_WORD = 64  # letters; what is longer is not a word, and its course would fill the memory


def _course_of(ids: dict[str, int], vocabulary: Vocabulary) -> _Course:
    """What the merges make of a state: itself, and those that it passes through if none more is left out."""
    merges = {
        (ids[left], ids[right]): (age, ids[left + right])
        for age, (left, right) in enumerate(vocabulary.merges)
    }

    def course(pieces: tuple[int, ...], left_out: int) -> list[_State]:
        passed = [(pieces, left_out)]
        while True:
            pairs = enumerate(zip(pieces, pieces[1:]))
            possible = sorted((merges[pair], i) for i, pair in pairs if pair in merges)
            if len(possible) <= left_out:
                return passed
            (_, merged), i = possible[left_out]
            pieces, left_out = (*pieces[:i], merged, *pieces[i + 2 :]), 0
            passed.append((pieces, 0))

    return lru_cache(_REMEMBERED)(course)


def _draw_cuts(
    courses: list[list[_State]], course: _Course, dropout: float, generator: torch.Generator
) -> list[tuple[int, ...]]:
    """For each word, given its undisturbed course, the pieces that it gets when merges are left out."""
    courses, places = list(courses), torch.arange(len(courses))
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


# %% book/12-text.ipynb · BPE-dropout · [text-bpe-dropout]
class BPEDropout:
    """Sentence pairs, cut anew for every epoch by BPE-dropout.

    Called with the number of an epoch it returns what `encode_pairs` would, in the same order, with merges
    left out at random. The cuts depend on `seed` and epoch alone. Words of more than 64 characters are always
    cut as usual.

    Args:
        pairs: Pairs (source, target).
        vocabulary: The vocabulary of both languages.
        dropout: Probability p, in [0, 1), with which each possible merge is left out.
        seed: Of the cuts.
        max_tokens: Pairs that `encode_pairs` finds too long are left out; a pair that only a random cut makes
            too long is cut as usual. ``None`` for no bound.

    Source:
        Provilkov et al. (2020), algorithm 1.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[str, str]],
        vocabulary: Vocabulary,
        dropout: float = 0.1,
        seed: int = 0,
        max_tokens: int | None = None,
    ) -> None:
        check_rate(dropout=dropout)
        pairs, longest = list(pairs), max_tokens or float("inf")
        both = zip(pairs, encode_pairs(pairs, vocabulary))
        fitting = [(pair, ids) for pair, ids in both if max(map(len, ids)) <= longest]
        numbers = {piece: number for number, piece in enumerate(vocabulary.pieces)}
        cut, course = vocabulary.tokenizer, _course_of(numbers, vocabulary)

        def undisturbed(word: str) -> list[_State]:
            if len(word) > _LONGEST_WORD:  # cut once and for all
                return [(tuple(cut.encode(word).ids), 0)]
            return course(tuple(numbers.get(letter, UNK_ID) for letter in word), 0)

        texts = [
            [word for word, _ in cut.pre_tokenizer.pre_tokenize_str(vocabulary.prepare(text))]
            for pair, _ in fitting
            for text in pair
        ]
        courses = {word: undisturbed(word) for word in set(chain.from_iterable(texts))}
        self.dropout, self.seed, self._longest, self._course = dropout, seed, longest, course
        self._usual, self._sizes = [ids for _, ids in fitting], [len(words) for words in texts]
        self._courses = [courses[word] for word in chain.from_iterable(texts)]

    def __call__(self, epoch: int) -> list[_Encoded]:
        if self.dropout == 0:
            return self._usual
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch + (1 << 31))
        cuts = iter(_draw_cuts(self._courses, self._course, self.dropout, generator))
        texts = [[*chain.from_iterable(islice(cuts, size)), EOS_ID] for size in self._sizes]
        drawn = [(source, [BOS_ID, *target]) for source, target in zip(texts[::2], texts[1::2])]
        return [new if max(map(len, new)) <= self._longest else old for new, old in zip(drawn, self._usual)]
