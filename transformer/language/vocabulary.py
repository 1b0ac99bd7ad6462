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
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer.files import atomic_file, regular_file
from transformer.language.preparation import AS_IT_IS, Preparation
from transformer.validation import check_size, check_type, optional_import


def normalize(text: str) -> str:
    """Bring a text into the one form in which a vocabulary knows it.

    Args:
        text: Any text.

    Returns:
        Its composed Unicode form (NFC), with single spaces between words and none around.

    Raises:
        TypeError: `text` is not a string.
        ValueError: It holds half of a surrogate pair, which no encoding can write.
    """
    check_type(str, text=text)
    text.encode()  # a UnicodeEncodeError is a ValueError
    return " ".join(unicodedata.normalize("NFC", text).split())


# %% book/12-text.ipynb · A vocabulary for real use · [text-learn]
_LONGEST_PIECE = 256  # characters


def _tokenizer(model: Any) -> Any:
    """The library's tokenizer: it marks where words begin, cuts there, and leaves the rest to `model`."""
    tokenizers = optional_import("tokenizers")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


def _prepared(text: str, preparation: Preparation) -> str:
    return normalize(preparation.prepare(text))


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
        max_token_length=_LONGEST_PIECE,
    )
    learner.train_from_iterator((_prepared(text, preparation) for text in sentences), trainer)
    learned = json.loads(learner.to_str())["model"]
    numbers: dict[str, int] = learned["vocab"]
    if len(numbers) == len(SPECIALS):
        raise ValueError("sentences hold no words to learn from")
    if len(numbers) > size:  # then nothing is merged, and these are the characters
        n = len(numbers) - len(SPECIALS)
        raise ValueError(f"size must be at least {len(numbers)} for texts of {n} characters, but is {size}")
    return sorted(numbers, key=numbers.__getitem__), [(left, right) for left, right in learned["merges"]]


# %% book/12-text.ipynb · A vocabulary for real use · [text-numbers]
def _numbers(ids: Iterable[int]) -> list[int]:
    numbers = ids.tolist() if isinstance(ids, Tensor) and ids.dim() == 1 else ids
    check_type(Iterable, ids=numbers)
    numbers = list(numbers)
    for number in numbers:
        check_type(int, **{"an id": number})
    return numbers


def _check_entries(pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    """Refuse what byte-pair encoding cannot have learned."""
    check_type((list, tuple), pieces=pieces, merges=merges)
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(f"the first entries of a vocabulary must be {SPECIALS}, got {pieces[:4]!r:.60}")
    for number, piece in enumerate(pieces):
        if not 0 < len(piece) <= _LONGEST_PIECE:
            raise ValueError(f"entry {number} is {piece!r:.60}")
        piece.encode()  # half of a surrogate pair raises a ValueError
    known = set(pieces) - set(SPECIALS)
    if len(known) != len(pieces) - len(SPECIALS):
        raise ValueError("the entries of a vocabulary must differ from one another")
    for number, merge in enumerate(merges):
        strings = isinstance(merge, list | tuple) and [type(part) for part in merge] == [str, str]
        if not strings or not {*merge, "".join(merge)} <= known:
            raise ValueError(f"merge {number} is {merge!r:.60}")


# %% book/12-text.ipynb · A vocabulary for real use · [vocabulary-file]
_LARGEST_FILE = 1 << 24  # bytes; a vocabulary of 37,000 entries has about 3 million


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
    """The pieces and merges in a file; refuses any rule beside them, by the setting's name."""
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE:,} bytes")
    given = json.loads(content)  # too deeply nested, it raises a RecursionError
    check_type(dict, content=given)
    check_type(dict, model=(model := given.get("model")))
    check_type(dict, vocab=(vocab := model.get("vocab")))
    for place, (piece, number) in enumerate(vocab.items()):
        if type(number) is not int or number != place:
            raise ValueError(f"entry {place}, {piece!r:.60}, has the number {number!r:.60}")
    wanted = _content(list(vocab), model.get("merges"))
    for part, form in (model, wanted["model"]), (given, wanted):
        for name in {**form, **part}:
            there, here = part.get(name, "missing"), form.get(name, "missing")
            if json.dumps(there, sort_keys=True) != json.dumps(here, sort_keys=True):  # True is not 1
                raise ValueError(f"{name!r:.60} is {there!r:.60}, not {here!r:.60}")
    return list(vocab), model["merges"]


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

    pieces: list[str]
    merges: list[tuple[str, str]]
    preparation: Preparation
    tokenizer: Any
    characters: frozenset[str]

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
        return _prepared(text, self.preparation)

    def unknown(self, text: str) -> str:
        """The characters of a text, once it is prepared, that no piece holds."""
        return "".join(letter for letter in self.prepare(text) if letter not in self.characters | {" "})

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
        kept = takewhile(lambda index: index != EOS_ID, _numbers(ids))
        names = self.tokens(index for index in kept if index not in (PAD_ID, BOS_ID))
        return "".join(names).replace(SPACE, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Name the piece of each of the `ids`; ``▁`` marks the beginning of a word."""
        numbers = _numbers(ids)
        for index in numbers:
            if not 0 <= index < len(self):
                raise IndexError(f"ids must lie in [0, {len(self)}), got {index}")
        return [self.pieces[index] for index in numbers]

    def save(self, path: str | Path) -> None:
        """Write the vocabulary to `path` as a JSON file, whole or not at all."""
        content = json.dumps(_content(self.pieces, self.merges), indent=2, ensure_ascii=False)
        with atomic_file(path) as part:
            part.write_bytes(content.encode())

    @classmethod
    def load(cls, path: str | Path, preparation: Preparation = AS_IT_IS) -> "Vocabulary":
        """Read the file at `path`, and refuse with `ValueError` what `save` would not have written.

        The file holds pieces and merges; the `preparation` is kept elsewhere, and given here.
        """
        optional_import("tokenizers")  # the file is not to blame if the library is missing
        check_type(Preparation, preparation=preparation)
        with regular_file(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        try:
            return cls(*_entries(content), preparation)
        except Exception as error:  # also what the parser raises
            raise ValueError(f"{path} holds no vocabulary: {error}") from error
