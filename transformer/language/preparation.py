"""The form of a text, as it is or tokenized and in lower case, and translations that can't be trusted."""

import re
import unicodedata
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from transformer.validation import check_choice, check_type

__all__ = [
    "detokenize", "visible", "tokenize", "Preparation", "PREPARATIONS", "AS_IT_IS", "CORPORA", "Translation",
    "checked", "warn_of_doubts",
]  # fmt: skip


def detokenize(text: str) -> str:
    """Write a sentence of the corpora as you would type it, in lower case."""
    text = re.sub(r"``(?: (?:``|''))*", "“", text)
    text = re.sub(r"''(?: (?:``|''))*", "”", text)
    text = re.sub(r" (?=[.,;:?!%)\]”]|n't\b|'(?:s|re|ve|m|ll|d)\b)", "", text)
    text = re.sub(r"(?<=[(\[“$]) ", "", text)
    return text.replace("“", '"').replace("”", '"')


_UNSEEN = re.compile(
    r"(\U0001f3f4[\U000e0020-\U000e007f]+"  # a flag
    r"|[\u0600-\u0dff\u1000-\u109f\u1780-\u1cff\u2190-\u2bff\ua800-\uabff\ufb50-\ufe0f\ufe70-\ufefc"
    r"\U00010a00-\U00011fff\U0001e900-\U0001faff][\u200c\u200d])"  # where words or emoji need joiners
    r"|[\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]"
)


def visible(text: str) -> str:
    """The text without characters of category Cf that nobody sees and no script needs, as soft hyphens."""
    return _UNSEEN.sub(r"\1", text)


# What words are made of: whatever is neither a space nor Latin punctuation or a symbol.
_LETTER = r"[\w\u02b0-\u167f\u1681-\u1fff\u200c\u200d\u20d0-\u20f0\u2c00-\u2fff\u3001-\U0010ffff]"
_WORD = rf"(?:{_LETTER}++|(?<=\u200d)\S)++"  # and any sign that a joiner ties to the one before
_ENDING = rf"(?:s|re|ve|m|ll|d)(?!{_LETTER})"  # of she's, we're and their like
_INSIDE = rf"""(?:[-·]|(?<=[\u0590-\u05ff])"(?=[\u0590-\u05ff])|['’](?!{_ENDING}))"""
_TOKEN = re.compile(
    r"(?:https?://|www\.)\S*[\w/]|\w[\w.+-]{0,63}@[\w-]+(?:\.[\w-]+)+"  # addresses
    rf"|``|''|\.\.\.|\d+(?:[.,]\d+)+|n['’]t(?!{_LETTER})|['’]{_ENDING}"
    rf"|{_LETTER}+(?=n['’]t(?!{_LETTER}))|{_WORD}(?:{_INSIDE}{_WORD})*"
    rf"|[^\w\s][\u0300-\u036f\u200d\u20d0-\u20f0\ufe00-\ufe0f]*(?:(?<=\u200d){_WORD})?"
)


def tokenize(text: str) -> str:
    """Write raw text as the corpora are written: lower case, spaces around punctuation, paired quotes.

    Text that already has this form stays as it is. In every script a letter keeps its marks, and words
    keep the punctuation of scripts other than the Latin; web and mail addresses stay whole. `detokenize`
    gives all these back, and leaves spaces around signs such as `/` and `€`.
    """
    tokens, opening = [], True
    for token in _TOKEN.findall(unicodedata.normalize("NFC", visible(text)).lower()):
        if token == '"':
            token, opening = ("``" if opening else "''"), not opening
        token = {"“": "``", "”": "''", "«": "``", "»": "''", "…": "..."}.get(token, token)
        tokens.append(token.replace("’", "'"))
    return " ".join(tokens)


_CHANGES: dict[str, tuple[Callable[[str], str], Callable[[str], str]]] = {  # of a text, of a translation
    "as it is": (visible, str),
    "lower case": (lambda text: visible(text).lower(), str),
    "tokenized": (tokenize, detokenize),
}
_CODE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class Preparation:
    """What is done to a text before it is cut into subwords, and to a translation once it is written.

    All drop what is not `visible`.

    Args:
        name: ``"as it is"``, ``"lower case"``, or ``"tokenized"``, which is the form of the book's
            corpora.
        languages: Codes of source and target, such as ``("pt", "en")``; ``None`` if they are not known.

    Example:
        >>> Preparation("tokenized").prepare("Gosto disto.")
        'gosto disto .'
    """

    name: str = "as it is"
    languages: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        check_choice(_CHANGES, name=self.name)
        if self.languages is None:
            return
        check_type((tuple, list), languages=self.languages)
        if len(self.languages) != 2 or not all(map(_CODE.fullmatch, map(str, self.languages))):
            wanted = "two codes such as 'pt' and 'zh-Hant', source and target"
            raise ValueError(f"languages must be {wanted}, not {self.languages!r:.60}")
        object.__setattr__(self, "languages", tuple(self.languages))  # JSON knows no tuples

    def __str__(self) -> str:
        return self.name + (f", {self.languages[0]} to {self.languages[1]}" if self.languages else "")

    def prepare(self, text: str) -> str:
        """What training shows of a text."""
        check_type(str, text=text)
        return _CHANGES[self.name][0](text)

    def restore(self, text: str) -> str:
        """What a person would type for a prepared text."""
        check_type(str, text=text)
        return _CHANGES[self.name][1](text)


PREPARATIONS = tuple(_CHANGES)
AS_IT_IS = Preparation()
CORPORA = Preparation("tokenized", ("pt", "en"))  # that of the phrases and the talks


_SENTENCE_END = re.compile(
    r"""(?:[!?]|(?<![\d.])(?<!\b\w)\.)["'”’»)\]]*\s+(?=\S)"""  # not after 3. or J., nor in …
    r"|[。！？।॥؟۔։።៕][」』”’»）]*\s*(?=[^\s。！？।॥])"
)


class Translation(NamedTuple):
    """A translation, and what is doubtful: `doubts` are said of the sentence, as "has no letter or digit"."""

    text: str
    doubts: tuple[str, ...]


def checked(
    sentence: str, text: str, cuts: Sequence[str], unknown: str, is_known: bool, is_whole: bool
) -> Translation:
    """The translation `text` of what was read of a sentence, with its doubts: the `cuts`, the `unknown`
    characters, a search that came to no end. A sentence without a known character is its own."""
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
        message = f"sentence {first + 1} {' and '.join(doubts[first])}: {sentences[first][:60]!r}"
        message += f" ({others} more are doubtful: translate_checked tells of each)" if others else ""
        warnings.warn(message, stacklevel=3)
