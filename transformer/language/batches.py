"""transformer.language.batches, from book/12-text.ipynb, "Text".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["encode_pairs", "pad", "batch_cuts", "padding_waste", "TokenBatches"]


# %% book/12-text.ipynb · A vocabulary for real use · [batches-imports]
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from transformer.validation import check_range, check_size, check_type


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
        TypeError: An argument is of the wrong type.
        ValueError: `max_tokens` is below 1, or what should be a pair is not one.
    """
    check_type(Vocabulary, vocabulary=vocabulary)
    if max_tokens is not None:
        check_size(max_tokens=max_tokens)
    pairs = _checked(pairs)
    sources = vocabulary.encode_batch(source for source, _ in pairs)
    targets = vocabulary.encode_batch(target for _, target in pairs)
    encoded = [([*source, EOS_ID], [BOS_ID, *target, EOS_ID]) for source, target in zip(sources, targets)]
    return [pair for pair in encoded if max_tokens is None or max(map(len, pair)) <= max_tokens]


def _checked(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = list(pairs)
    for index, pair in enumerate(pairs):
        check_type(tuple, **{f"pairs[{index}]": pair})
        if len(pair) != 2:
            raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
    return pairs


# %% book/12-text.ipynb · From pairs to tensors · [text-pad]
def pad(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Pad sequences of different lengths into one tensor.

    Args:
        sequences: At least one sequence of ids.
        pad_id: What fills the rows up, after their last id.

    Returns:
        ``torch.long`` tensor [B, L], L being the longest length.

    Raises:
        TypeError: An id is not a whole number.
        ValueError: There is no sequence.
        IndexError: An id is negative.

    Example:
        >>> pad([[5, 6, 7], [8]]).tolist()
        [[5, 6, 7], [8, 0, 0]]
    """
    check_type(int, pad_id=pad_id)
    check_type(Sequence, sequences=sequences)
    if len(sequences) == 0:
        raise ValueError("sequences must hold at least one sequence")
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    rows = torch.full((len(sequences), int(lengths.max())), pad_id, dtype=torch.long)  # [B, L]
    rows[torch.arange(rows.size(1)) < lengths[:, None]] = _ids(list(chain.from_iterable(sequences)))
    return rows


def _ids(numbers: list[int]) -> Tensor:
    try:
        ids = torch.tensor(numbers or [0])[: len(numbers)]  # if the dtype were given, 1.5 would become 1
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"sequences must hold ids, not {numbers!r:.60}") from error
    if ids.dtype != torch.long or ids.dim() != 1:
        raise TypeError(f"sequences must hold ids, not {numbers!r:.60}")
    check_range("sequences", ids, 2**63)
    return ids


# %% book/12-text.ipynb · Batches by tokens · [text-by-length]
def _mowing_order(pair: _Encoded) -> tuple[int, int]:
    """Longer side first; among equals how much longer the target is, alternately rising and falling."""
    source, target = map(len, pair)
    longest, difference = max(source, target), target - source
    return longest, difference if longest % 2 else -difference


def batch_cuts(lengths: Sequence[int], max_tokens: int) -> list[slice]:
    """Where batches begin and end, each as large as `max_tokens` allows, padding included."""
    cuts, start, longest = [], 0, 0
    for index, length in enumerate(lengths):
        longest = max(longest, length)
        if index > start and (index + 1 - start) * longest > max_tokens:
            cuts.append(slice(start, index))
            start, longest = index, length
    return [*cuts, slice(start, len(lengths))] if lengths else []


# %% book/12-text.ipynb · Batches by tokens · [text-waste]
def padding_waste(batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """How much of the batches is padding.

    Args:
        batches: Pairs of tensors of ids, [B, S] and [B, T], as `TokenBatches` yields them.

    Returns:
        The share of positions, source and target together, that hold `PAD_ID`, between 0 and 1.

    Raises:
        TypeError: A batch does not hold tensors.
        ValueError: There is no batch.
    """
    padding = total = 0
    for batch in batches:
        check_type((tuple, list), batch=batch)
        for ids in batch:
            check_type(Tensor, ids=ids)
            padding += int((ids == PAD_ID).sum())
            total += ids.numel()
    if total == 0:
        raise ValueError("batches must hold at least one batch")
    return padding / total


# %% book/12-text.ipynb · Batches by tokens · [text-check-encoded]
def _check_encoded(pairs: Sequence[_Encoded], max_tokens: int) -> None:
    check_type(Sequence, pairs=pairs)
    if len(pairs) == 0:
        raise ValueError("pairs must hold at least one pair")
    for index, pair in enumerate(pairs):
        check_type((tuple, list), **{f"pairs[{index}]": pair})
        if len(pair) != 2:
            raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
        if any(isinstance(side, str) for side in pair):
            raise TypeError(f"pairs[{index}] is text: pairs must be ids, as encode_pairs returns them")
        if min(map(len, pair)) == 0:
            raise ValueError(f"pairs[{index}] has an empty side")
        if (longest := max(map(len, pair))) > max_tokens:
            raise ValueError(f"pairs[{index}] has {longest} tokens, more than max_tokens={max_tokens}")
        if pair[1][0] != BOS_ID:
            said = f"the target of pairs[{index}] must begin with the start token {BOS_ID}"
            raise ValueError(f"{said}, not with {pair[1][0]!r:.60}")


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

    Raises:
        TypeError: `max_tokens` or `seed` is not a whole number, `shuffle` not a `bool`, or a pair is text.
        ValueError: No pairs, a pair with an empty side, a sentence longer than `max_tokens`, or a target
            without a start token.

    Example:
        >>> batches = TokenBatches([([5, 3], [2, 7, 3]), ([6, 3], [2, 8, 3])], max_tokens=8)
        >>> [(tuple(source.shape), tuple(target.shape)) for source, target in batches(epoch=0)]
        [((2, 2), (2, 3))]
    """

    pairs: Sequence[_Encoded]
    seed: int
    shuffle: bool

    def __init__(
        self, pairs: Sequence[_Encoded], max_tokens: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        check_size(max_tokens=max_tokens)
        check_size(0, seed=seed)
        check_type(bool, shuffle=shuffle)
        _check_encoded(pairs, max_tokens)
        self.pairs, self.seed, self.shuffle = pairs, seed, shuffle
        self._keys = [_mowing_order(pair) for pair in pairs]
        self._cuts = batch_cuts([longest for longest, _ in sorted(self._keys)], max_tokens)

    def __len__(self) -> int:
        return len(self._cuts)

    def indices(self, epoch: int) -> list[list[int]]:
        """For each batch of an `epoch` the indices of its pairs; over the epoch every index occurs once."""
        check_size(0, epoch=epoch)
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
            yield pad(sources), pad(targets)
