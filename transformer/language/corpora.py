"""Texts: corpora and files of your own, the form that training gives them, and doubts about translations."""

import gzip
import http.client
import os
import re
import tarfile
import unicodedata
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from transformer.files import atomic_file, file_sha256, regular_file
from transformer.training import record_path
from transformer.validation import check_choice, check_type, optional_import

__all__ = [
    "Pair", "CorpusError", "data_folder", "load_corpus", "read_pairs", "as_pairs", "detokenize", "visible",
    "tokenize", "Preparation", "PREPARATIONS", "AS_IT_IS", "CORPORA", "Translation", "checked",
    "warn_of_doubts",
]  # fmt: skip


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class CorpusError(OSError):
    """A corpus that can be neither found nor fetched, or is not what it should be."""


class _Archive(NamedTuple):
    file: str  # its name in the data folder
    url: str
    size: int  # in bytes
    sha256: str


_TED = (  # each holds the corpus; the preferred one first
    _Archive(
        file="qi18naacl-dataset.tar.gz",
        url="http://www.phontron.com/data/qi18naacl-dataset.tar.gz",
        size=131_005_909,
        sha256="216a86c3df4d4f522856fe9b920ff5be6b394d769cc88974ae8f9f5546953bbc",
    ),
    _Archive(
        file="ted_hrlr_pt_to_en.tar.gz",
        url="https://raw.githubusercontent.com/zeynabmirzazada/holbertonschool-machine_learning/"
        "ecc2f2804100e5d7617879175b57c5fca07f3889/supervised_learning/transformer_apps/ted_hrlr_pt_to_en.tar.gz",
        size=3_492_119,
        sha256="e753eac6bbc55e513146ee6994ebe9de45d977187f34b510cad5f00400c228c5",
    ),
)


def data_folder() -> Path:
    """Where downloaded corpora are kept: the folder that the environment variable ``TRANSFORMER_DATA`` names;
    without it ``transformer-book`` where the system keeps a user's caches."""
    if named := os.environ.get("TRANSFORMER_DATA"):
        return Path(named).expanduser()
    cache = optional_import("platformdirs").user_cache_path("transformer-book", False, opinion=False)
    return Path(cache)


_CHUNK = 1 << 18  # bytes read at a time


def _fault(path: Path, source: _Archive) -> str:
    """What is wrong with an archive on the disk; the empty string where it is the right one."""
    if path.stat().st_size != source.size:
        return f"has {path.stat().st_size:,} bytes instead of {source.size:,}"
    digest = file_sha256(path)
    return "" if digest == source.sha256 else f"has sha256 {digest} instead of {source.sha256}"


def _download(source: _Archive, folder: Path) -> Path:
    """Fetch an archive; it gets its name only when it is whole and the right one."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder / source.file) as part:
        with urllib.request.urlopen(source.url, timeout=30) as response, part.open("wb") as file:
            while file.tell() <= source.size and (chunk := response.read(_CHUNK)):
                file.write(chunk)
        if problem := _fault(part, source):
            raise CorpusError(f"the download {problem}")
    return folder / source.file


def _archive(sources: Sequence[_Archive], folder: Path) -> Path:
    """The verified archive of the talks: one that is here already, else the first that can be fetched."""
    report = []
    for source in sources:
        path = folder / source.file
        if path.is_file():
            if not (problem := _fault(path, source)):
                return path
            report.append(f"{path} {problem}")
    for source in sources:
        try:
            return _download(source, folder)
        except (OSError, ValueError, http.client.HTTPException) as error:  # no network, a full disk …
            report.append(f"{source.url}: {error}")
    wanted = [f"{x.file} ({x.size:,} bytes, sha256 {x.sha256}) from {x.url}" for x in sources]
    lines = [
        "the corpus 'ted' is not here and could not be fetched:", *report,
        f"Put one of these files into {folder}, or name another folder in TRANSFORMER_DATA:", *wanted,
    ]  # fmt: skip
    raise CorpusError("\n  ".join(lines))


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _paired(source: list[str], target: list[str], name: str) -> list[Pair]:
    if len(source) != len(target):
        alone = min(len(source), len(target)) + 1
        message = f"{name}: {len(source):,} source lines but {len(target):,} target lines"
        raise CorpusError(f"{message}, so that line {alone:,} is alone")
    return [Pair(*pair) for pair in zip(source, target)]


def _packed_pairs(split: str) -> list[Pair]:
    with gzip.open(record_path("phrases.tsv.gz"), "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.removesuffix("\n").split("\t") for line in file]
    return [Pair(source, target) for name, source, target in rows if name == split]


def _archived_pairs(sources: Sequence[_Archive], split: str, folder: Path) -> list[Pair]:
    """A split, straight out of the verified archive; none of the names in it becomes a path here."""
    names, sides = [f"datasets/pt_to_en/{language}.{split}" for language in ("pt", "en")], {}
    with tarfile.open(_archive(sources, folder), "r:gz") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if name in names and (file := tar.extractfile(member)):
                sides[name] = _lines(file.read().decode())
            if len(sides) == 2:
                break
    source, target = (sides[name] for name in names)
    return _paired(source, target, f"ted {split}")


def load_corpus(name: str, split: str) -> list[Pair]:
    """Load one split of a Portuguese–English corpus.

    Args:
        name: ``"phrases"``, the sentences that come with this package; or ``"ted"``, translated talks
            (CC BY-NC-ND 4.0), downloaded into `data_folder` unless an archive is there already.
        split: ``"train"``, ``"dev"`` or ``"test"``.

    Returns:
        The pairs (Portuguese, English), already tokenized and in lower case, in a fixed order.

    Raises:
        ValueError: An unknown corpus or split.
        CorpusError: The corpus can be neither found nor fetched, or is not what its fingerprint says; the
            message says which file to put where.

    Source:
        "ted": Qi et al. (2018), section 2.

    Example:
        >>> load_corpus("phrases", "test")[1]
        Pair(source='a nossa prima está feliz .', target='our cousin is happy .')
    """
    check_choice(("phrases", "ted"), name=name)
    check_choice(("train", "dev", "test"), split=split)
    return _packed_pairs(split) if name == "phrases" else _archived_pairs(_TED, split, data_folder())


def _own_lines(path: Path) -> list[str]:
    """The lines of a file, without what marks where they begin and end."""
    content = regular_file(path).read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        byte, line = content[error.start], content.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{path} is not UTF-8: byte {byte:#04x} in line {line:,}") from error
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise CorpusError(f"{path} is not text in UTF-8: a zero byte in line {number:,}")
    return [line.removesuffix("\r").removeprefix("\ufeff") for line in _lines(text)]


def read_pairs(source: str | Path, target: str | Path | None = None, keep_empty: bool = True) -> list[Pair]:
    """Read a parallel corpus of your own.

    Args:
        source: A file in UTF-8 with one sentence a line.
        target: Another, of which line n translates line n of the first. ``None`` if each line of the
            first holds both, with a tab between them.
        keep_empty: Whether a side may be empty, or nothing but spaces.

    Returns:
        The pairs as they are. Only a line feed ends a line; a carriage return before it and a byte order
        mark before a sentence are dropped.

    Raises:
        OSError: A file cannot be opened; the message names it.
        CorpusError: A file is not UTF-8; the numbers of lines differ; a line has not exactly one tab, where
            it should; or a side is empty, where none may be. The message names file and line.
    """
    if target is None:
        rows = [line.split("\t") for line in _own_lines(Path(source))]
        for number, row in enumerate(rows, start=1):
            if len(row) != 2:
                wanted = "not the one between a sentence and its translation"
                raise CorpusError(f"{source}: line {number:,} has {len(row) - 1} tabs, {wanted}")
        pairs = [Pair(left, right.removeprefix("\ufeff")) for left, right in rows]
    else:
        pairs = _paired(_own_lines(Path(source)), _own_lines(Path(target)), f"{source}, {target}")
    if not keep_empty:
        if not pairs:
            raise CorpusError(f"{source}: no lines, and no pairs")
        for number, pair in enumerate(pairs, start=1):
            for side, path in zip(pair, (source, target or source)):
                if not side.strip():
                    raise CorpusError(f"{path}: line {number:,} holds an empty sentence")
    return pairs


def as_pairs(pairs: Iterable[Sequence[str]]) -> list[Pair]:
    """Pairs of your own, tuples or lists of two texts (`TypeError`, `ValueError`), each as a `Pair`."""
    checked = []
    for index, pair in enumerate(pairs):
        check_type((tuple, list), **{f"pairs[{index}]": pair})
        if len(pair) != 2:
            raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
        check_type(str, **{f"pairs[{index}][{side}]": text for side, text in enumerate(pair)})
        checked.append(Pair(*pair))
    return checked


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
    """The text without characters of category Cf that nobody sees and no script needs, like soft hyphens."""
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
        name: ``"as it is"``, ``"lower case"``, or ``"tokenized"``: in lower case and tokenized,
            as the book's corpora are.
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
    characters, a search that met its limit of length. A sentence without a known character is its own."""
    if unknown and not is_known:
        return Translation(sentence, (*cuts, "has no character of the vocabulary, and is copied"))
    doubts = list(cuts)
    if unknown:
        some = " ".join(dict.fromkeys(unknown))
        doubts.append(f"has characters that the vocabulary lacks, {len(unknown)} in all ({some:.40})")
    if visible(sentence).strip() and not any(map(str.isalnum, sentence)):
        doubts.append("has no letter or digit")
    if not is_whole:
        doubts.append("has a translation that is cut at the length limit")
    came, went = (len(_SENTENCE_END.findall(each.strip())) + 1 for each in (sentence, text))
    if is_whole and went < came:
        doubts.append(f"is {came} sentences, and its translation {went}: give each a line of its own")
    return Translation(text, tuple(doubts))


def warn_of_doubts(sentences: Sequence[str], doubts: Sequence[Sequence[str]]) -> None:
    """Warn once where the caller was called, of the first doubtful sentence, with the number of others."""
    rows = [row for row, each in enumerate(doubts) if each]
    if rows:
        first, others = rows[0], len(rows) - 1
        message = f"sentence {first + 1} {' and '.join(doubts[first])}: {sentences[first][:60]!r}"
        message += f" ({others} more are doubtful: translate_checked tells of each)" if others else ""
        warnings.warn(message, stacklevel=3)
