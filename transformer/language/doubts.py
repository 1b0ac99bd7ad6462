"""Translations that can't be trusted, and why."""

import re
import warnings
from collections.abc import Sequence
from typing import NamedTuple
from transformer.language.wording import visible

__all__ = ["Translation", "checked", "warn_of_doubts"]


_SENTENCE_END = re.compile(
    r"""(?:[!?]|(?<![\d.])(?<!\b\w)\.)["'”’»)\]]*\s+(?=\S)"""  # not after 3. or J., nor in …
    r"|[。！？।॥؟۔։።៕][」』”’»）]*\s*(?=[^\s。！？।॥])"
)


class Translation(NamedTuple):
    """A translation, and what is doubtful about it.

    `doubts` are said of the sentence, such as "is cut to its first 511 tokens". Without any, a
    translation may still be wrong.
    """

    text: str
    doubts: tuple[str, ...]


def checked(
    sentence: str, text: str, cuts: Sequence[str], unknown: str, is_known: bool, is_whole: bool
) -> Translation:
    """A sentence's translation, with its doubts; a sentence of which nothing is known is its own.

    Args:
        sentence: what was read of it, as somebody typed it.
        text: its translation.
        cuts: what is said of a sentence that was cut.
        unknown: the characters that the vocabulary lacks.
        is_known: whether there are others.
        is_whole: whether the search came to an end.
    """
    if unknown and not is_known:
        return Translation(sentence, (*cuts, "has no character of the vocabulary, and is copied"))
    doubts = list(cuts)
    if unknown:
        some = " ".join(dict.fromkeys(unknown))
        doubts.append(f"has characters that the vocabulary lacks, {len(unknown)} in all ({some:.40})")
    if visible(sentence).strip() and not any(map(str.isalnum, sentence)):
        doubts.append("has no letter or digit")
    if not is_whole:
        doubts.append("has a translation that is cut at the greatest length")
    came, went = (len(_SENTENCE_END.findall(each.strip())) + 1 for each in (sentence, text))
    if is_whole and went < came:
        doubts.append(f"is {came} sentences, and its translation {went}: give each a line of its own")
    return Translation(text, tuple(doubts))


def warn_of_doubts(sentences: Sequence[str], doubts: Sequence[Sequence[str]]) -> None:
    """Warn once where the caller was called, of the first doubtful sentence, with the number of others."""
    rows = [row for row, said in enumerate(doubts) if said]
    if rows:
        first, others = rows[0], len(rows) - 1
        said = f"sentence {first + 1} {' and '.join(doubts[first])}: {sentences[first][:60]!r}"
        said += f" ({others} more are doubtful: translate_checked tells of each)" if others else ""
        warnings.warn(said, stacklevel=3)
