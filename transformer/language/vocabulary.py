"""transformer.language.vocabulary, from book/12-text.ipynb, "Text".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["PAD_ID", "UNK_ID", "BOS_ID", "EOS_ID", "SPECIALS", "SPACE", "normalize", "Vocabulary"]


# %% book/12-text.ipynb · A vocabulary for real use · [text-entries]
PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
SPACE = "▁"  # stands for the space in front of a word


# %% book/12-text.ipynb · A vocabulary for real use · [text-normalize]
import json
import operator
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from transformer.files import atomic_file, refusing_damage, regular_file
from transformer.language.corpora import AS_IT_IS, Preparation
from transformer.validation import check_size, check_type, optional_import


def normalize(text: str) -> str:
    """The composed Unicode form (NFC) of a text, with single spaces between words and none around."""
    text.encode()  # half of a surrogate pair raises a ValueError
    return " ".join(unicodedata.normalize("NFC", text).split())


# %% book/12-text.ipynb · A vocabulary for real use · [text-learn]
def _tokenizer(model: Any) -> Any:
    """The library's tokenizer: it marks where words begin, cuts there, and leaves the rest to `model`."""
    tokenizers = optional_import("tokenizers")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _learn(
    sentences: Iterable[str], size: int, min_frequency: int, preparation: Preparation
) -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces and merges that byte-pair encoding finds in the sentences."""
    if isinstance(sentences, str):
        raise TypeError("sentences must be several strings, got one")
    check_size(len(SPECIALS) + 1, size=size)
    check_size(min_frequency=min_frequency)
    tokenizers = optional_import("tokenizers")
    learner = _tokenizer(tokenizers.models.BPE(unk_token=SPECIALS[UNK_ID]))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        show_progress=False,
    )
    learner.train_from_iterator((normalize(preparation.prepare(text)) for text in sentences), trainer)
    trained = json.loads(learner.to_str())["model"]
    numbers: dict[str, int] = trained["vocab"]
    if len(numbers) == len(SPECIALS):
        raise ValueError("sentences hold no words to learn from")
    if len(numbers) > size:  # then nothing is merged, and these are the characters
        n = len(numbers) - len(SPECIALS)
        raise ValueError(f"size must be at least {len(numbers)} for texts of {n} characters, but is {size}")
    # Texts may spell a special entry, but nothing is merged into one, or with one.
    merges = [(a, b) for a, b in trained["merges"] if not {a, b, a + b} & {*SPECIALS}]
    return sorted(numbers, key=numbers.__getitem__), merges


# %% book/12-text.ipynb · A vocabulary for real use · [text-numbers]
def _check_entries(pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    """Refuse what byte-pair encoding cannot have learned, such as a merge that spells a special entry."""
    known = set(pieces) - set(SPECIALS)
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS or len(known) != len(pieces) - len(SPECIALS):
        raise ValueError(f"the entries of a vocabulary must begin with {SPECIALS}, and differ")
    for number, merge in enumerate(merges):
        if len(merge) != 2 or not {*merge, "".join(merge)} <= known:
            raise ValueError(f"merge {number} is {merge!r:.60}, which joins or spells what is no entry")


# %% book/12-text.ipynb · A vocabulary for real use · [vocabulary-file]
def _content(pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """What a vocabulary's file holds: the form in which the library keeps byte pairs."""
    space = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    nothing: dict[str, Any] = {"truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": SPECIALS[UNK_ID],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {piece: number for number, piece in enumerate(pieces)},
        "merges": merges,
    }
    after = {"post_processor": None, "decoder": None}
    return {"version": "1.0", **nothing, "pre_tokenizer": space, **after, "model": model}


def _entries(content: bytes) -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces and merges in a file; refuses any rule beside them."""
    given = json.loads(content)
    pieces, merges = list(given["model"]["vocab"]), given["model"]["merges"]
    if given != _content(pieces, merges):
        raise ValueError("it holds other rules than entries, numbered in their order, and merges")
    return pieces, merges


# %% book/12-text.ipynb · A vocabulary for real use · [text-vocabulary]
class Vocabulary:
    """Subwords learned by byte-pair encoding, numbered from 4, after padding, unknown, start and end.

    Args:
        pieces: The entries in the order of their numbers, the four special ones first.
        merges: Pairs of pieces, in the order in which they are joined.
        preparation: What is done to every text before it is cut.

    Raises:
        ValueError: The special entries are missing, an entry occurs twice, or a merge joins something
            that is not an entry.

    Source:
        Sennrich et al. (2016), section 3.2.

    Example:
        >>> vocabulary = Vocabulary.train(["o gato come", "a gata come", "a gata bebe"], size=20)
        >>> vocabulary.tokens(vocabulary.encode("a gata"))
        ['▁a', '▁gat', 'a']
    """

    def __init__(
        self,
        pieces: Sequence[str],
        merges: Sequence[tuple[str, str]],
        preparation: Preparation = AS_IT_IS,
    ) -> None:
        _check_entries(pieces, merges)
        check_type(Preparation, preparation=preparation)
        self.preparation = preparation
        self.pieces, self.merges = list(pieces), [(left, right) for left, right in merges]
        numbers = {piece: number for number, piece in enumerate(pieces)}
        model = optional_import("tokenizers").models.BPE(numbers, self.merges, unk_token=SPECIALS[UNK_ID])
        self.tokenizer = _tokenizer(model)
        self.characters = frozenset(piece for piece in pieces if len(piece) == 1)

    @classmethod
    def train(
        cls,
        sentences: Iterable[str],
        size: int,
        min_frequency: int = 2,
        preparation: Preparation = AS_IT_IS,
    ) -> "Vocabulary":
        """Learn at most `size` entries from `sentences`; no pair is merged that is below `min_frequency`.

        Raises:
            TypeError: `sentences` is a single string.
            ValueError: they hold no words, or more characters than have room beside the special entries.
        """
        check_type(Preparation, preparation=preparation)
        return cls(*_learn(sentences, size, min_frequency, preparation), preparation)

    def __len__(self) -> int:
        return len(self.pieces)

    def prepare(self, text: str) -> str:
        """The text that is cut: prepared as in training, and in normal form."""
        return normalize(self.preparation.prepare(text))

    def unknown(self, text: str) -> str:
        """The characters of a text, once it is prepared, that no piece holds."""
        known = self.characters | {" "}
        return "".join(letter for letter in self.prepare(text) if letter not in known)

    def encode(self, text: str) -> list[int]:
        """Cut a sentence into ids, without start and end tokens; unknown characters become `UNK_ID`."""
        ids: list[int] = self.tokenizer.encode(self.prepare(text)).ids
        return ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Cut many `texts`, in parallel: what `encode` gives for each."""
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, got one")
        return [cut.ids for cut in self.tokenizer.encode_batch([self.prepare(text) for text in texts])]

    def decode(self, ids: Iterable[int]) -> str:
        """Put a sentence back together from its `ids`, up to the first end token; it is still prepared."""
        content = takewhile(lambda index: index != EOS_ID, map(operator.index, ids))
        names = self.tokens(index for index in content if index not in (PAD_ID, BOS_ID))
        return "".join(names).replace(SPACE, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Name the piece of each of the `ids`; ``▁`` marks the beginning of a word."""
        numbers = list(map(operator.index, ids))
        for index in numbers:
            if not 0 <= index < len(self):
                raise IndexError(f"ids must lie in [0, {len(self)}), got {index}")
        return [self.pieces[index] for index in numbers]

    def save(self, path: str | Path) -> None:
        """Write the vocabulary, without its `preparation`, as a JSON file, whole or not at all."""
        content = json.dumps(_content(self.pieces, self.merges), indent=2, ensure_ascii=False)
        with atomic_file(path) as part:
            part.write_bytes(content.encode())

    @classmethod
    def load(cls, path: str | Path, preparation: Preparation = AS_IT_IS) -> "Vocabulary":
        """Read the file at `path`, and refuse with `CheckpointError` what `save` would not have written.

        The file holds pieces and merges; the `preparation` is kept elsewhere, and given here.
        """
        with refusing_damage(path):
            return cls(*_entries(regular_file(path).read_bytes()), preparation)
