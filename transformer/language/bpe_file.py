"""A vocabulary's file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from transformer.files import atomic_file, regular_file
from transformer.validation import check_type

__all__ = ["SPECIALS", "SPACE", "LONGEST_PIECE", "check_entries", "read_entries", "write_entries"]


SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")  # the entries 0 to 3
SPACE = "▁"  # stands for the space in front of a word
LONGEST_PIECE = 256  # characters


def check_entries(pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    """Refuse what byte-pair encoding cannot have learned."""
    check_type((list, tuple), pieces=pieces, merges=merges)
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise ValueError(f"the first entries of a vocabulary must be {SPECIALS}, got {pieces[:4]!r:.60}")
    for number, piece in enumerate(pieces):
        if not 0 < len(piece) <= LONGEST_PIECE:
            raise ValueError(f"entry {number} is {piece!r:.60}")
        piece.encode()  # half of a surrogate pair raises a ValueError
    known = set(pieces) - set(SPECIALS)
    if len(known) != len(pieces) - len(SPECIALS):
        raise ValueError("the entries of a vocabulary must differ from one another")
    for number, merge in enumerate(merges):
        strings = isinstance(merge, list | tuple) and [type(part) for part in merge] == [str, str]
        if not strings or not {*merge, "".join(merge)} <= known:
            raise ValueError(f"merge {number} is {merge!r:.60}")


_LARGEST_FILE = 1 << 24  # bytes; a vocabulary of 37,000 entries has about 3 million
_FORM: dict[str, Any] = {  # what other programs expect in the file besides entries and merges
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True},
    "post_processor": None,
    "decoder": None,
}
_BPE_FORM: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": SPECIALS[1],
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def _check_form(given: Any, form: dict[str, Any]) -> None:
    """Refuse a file at the first setting in which it departs from the form."""
    check_type(dict, content=given)
    for name in {**form, **given}:
        if name not in given or name not in form or given[name] != form[name]:
            there, wanted = given.get(name, "missing"), form.get(name, "missing")
            raise ValueError(f"{name!r:.60} is {there!r:.60}, not {wanted!r:.60}")


def _parsed(content: bytes) -> tuple[list[str], list[tuple[str, str]]]:
    """The pieces and merges in a file's content; refuses what `write_entries` would not have written."""
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE:,} bytes")
    given = json.loads(content)  # too deeply nested, it raises a RecursionError
    check_type(dict, content=given)
    model = given.pop("model", None)
    check_type(dict, model=model)
    vocab, merges = model.pop("vocab", None), model.pop("merges", None)
    _check_form(given, _FORM)
    _check_form(model, _BPE_FORM)
    check_type(dict, vocab=vocab)
    check_type(list, merges=merges)
    for number, (piece, index) in enumerate(vocab.items()):
        if type(index) is not int or index != number:
            raise ValueError(f"entry {number} is {piece!r:.60} with number {index!r:.60}")
    return list(vocab), merges


def read_entries(path: str | Path) -> tuple[list[str], list[tuple[str, str]]]:
    """Read the pieces and merges of a vocabulary.

    Raises:
        OSError: The file cannot be opened, or is not a regular file.
        ValueError: It is not what `write_entries` would have written; the message says where.
    """
    with regular_file(path).open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    try:
        pieces, merges = _parsed(content)
        check_entries(pieces, merges)
    except Exception as error:  # also what the parser raises
        raise ValueError(f"{path} holds no vocabulary: {error}") from error
    return pieces, merges


def write_entries(path: str | Path, pieces: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
    """Write pieces and merges to `path`, whole or not at all."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    model = {**_BPE_FORM, "vocab": vocab, "merges": merges}
    content = json.dumps({**_FORM, "model": model}, indent=2, ensure_ascii=False).encode()
    with atomic_file(path) as part:
        part.write_bytes(content)
