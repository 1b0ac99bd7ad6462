"""transformer.text, from book/12-text.ipynb, "Text".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "Pair",
    "CorpusError",
    "CorpusSource",
    "Corpus",
    "data_folder",
    "load_corpus",
    "read_pairs",
    "normalize",
    "PAD_ID",
    "UNK_ID",
    "BOS_ID",
    "EOS_ID",
    "Vocabulary",
    "encode_pairs",
    "pad",
    "TokenBatches",
    "padding_waste",
    "SubwordSampler",
    "sampled_batches",
    "corpus_facts",
]


# %% book/12-text.ipynb · Talks, translated · [text-pair]
import gzip
import hashlib
import json
import os
import re
import sys
import tarfile
import unicodedata
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transformer.training import atomic_file, record_path, regular_file
from transformer.validation import (
    check_range,
    check_rate,
    check_size,
    check_type,
    optional_import,
)


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


_SPLITS = ("train", "dev", "test")


# %% book/12-text.ipynb · Talks, translated · [text-sources]
class CorpusError(OSError):
    """A corpus is neither here nor to be had, or what lies here is not what it should be."""


@dataclass(frozen=True)
class CorpusSource:
    """An archive that holds a corpus.

    Args:
        file: Its name in the data folder.
        url: Where it can be had.
        size: Its size in bytes.
        sha256: Its fingerprint.
    """

    file: str
    url: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Corpus:
    """A parallel corpus in a tar archive.

    Args:
        name: What `load_corpus` calls it.
        sources: Archives that hold it, the preferred one first.
        folder: The folder inside the archive.
        languages: Source and target. The member ``folder/language.split`` holds one sentence a line.
        sha256: The fingerprint of each member, under ``language.split``.
        licence: What whoever fetches it should know.
    """

    name: str
    sources: tuple[CorpusSource, ...]
    folder: str
    languages: tuple[str, str]
    sha256: Mapping[str, str]
    licence: str


_TED = Corpus(
    name="ted",
    sources=(
        CorpusSource(
            file="ted_hrlr_pt_to_en.tar.gz",
            url="https://raw.githubusercontent.com/zeynabmirzazada/holbertonschool-machine_learning/"
            "ecc2f2804100e5d7617879175b57c5fca07f3889/supervised_learning/transformer_apps/ted_hrlr_pt_to_en.tar.gz",
            size=3_492_119,
            sha256="e753eac6bbc55e513146ee6994ebe9de45d977187f34b510cad5f00400c228c5",
        ),
        CorpusSource(
            file="qi18naacl-dataset.tar.gz",
            url="http://www.phontron.com/data/qi18naacl-dataset.tar.gz",
            size=131_005_909,
            sha256="216a86c3df4d4f522856fe9b920ff5be6b394d769cc88974ae8f9f5546953bbc",
        ),
    ),
    folder="datasets/pt_to_en",
    languages=("pt", "en"),
    sha256={
        "pt.train": "278e1bb96a2a6e18cc5ac6294fcf4ce01e77c58c74a4c36a6b567ef601144cb2",
        "en.train": "e7c74d6e1b8b7041a23df5f812c9819dafd67a200535a3ffc4c483e32b622863",
        "pt.dev": "c9fedee6935999d3302008640f7f80e3afbe87c230f17b73759a78caf18d1de4",
        "en.dev": "01c9b58f68cc3bb6505560dfc7f9dfe972baf659e67689724aefb9abc5137a80",
        "pt.test": "f8b88eff89b575c9a5756953d0b70d9f6b79babd881983581070fcdeb1b7ffa0",
        "en.test": "6a9a6818a03e676bb8e951cc166c3110bbc7d47836d091c3c514f263e4f21636",
    },
    licence="TED talk transcripts (c) TED Conferences and its volunteer translators, CC BY-NC-ND 4.0",
)


def data_folder() -> Path:
    """Where downloaded corpora are kept.

    Returns:
        The folder that the environment variable ``TRANSFORMER_DATA`` names; without it
        ``transformer-book`` in the user's cache folder (``XDG_CACHE_HOME``, ``%LOCALAPPDATA%`` or the
        system's habit). It need not exist.
    """
    if named := os.environ.get("TRANSFORMER_DATA"):
        return Path(named).expanduser()
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "transformer-book"


# %% book/12-text.ipynb · Talks, translated · [text-fetch]
_CHUNK = 1 << 18  # bytes read at a time
_MAX_MEMBER = 1 << 26  # no text of a corpus is larger than this; what claims to be is not unpacked


def _fault(path: Path, source: CorpusSource) -> str:
    """What is wrong with an archive on the disk; the empty string where it is the right one."""
    if path.stat().st_size != source.size:
        return f"has {path.stat().st_size:,} bytes instead of {source.size:,}"
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == source.sha256 else f"has sha256 {found} instead of {source.sha256}"


def _progress(source: CorpusSource):
    """A progress bar for what takes more than two seconds, where tqdm is installed; else nothing."""
    try:
        tqdm = optional_import("tqdm").tqdm
        return tqdm(total=source.size, unit="B", unit_scale=True, desc=source.file, delay=2)
    except ImportError:
        return None


def _download(source: CorpusSource, folder: Path) -> Path:
    """Fetch an archive; it gets its name only when it is whole and the right one."""
    folder.mkdir(parents=True, exist_ok=True)
    path, part = folder / source.file, folder / f"{source.file}.{os.getpid()}.part"
    bar = _progress(source)
    try:
        with urllib.request.urlopen(source.url, timeout=30) as response, part.open("wb") as file:
            received = 0
            while received <= source.size and (chunk := response.read(_CHUNK)):
                received += file.write(chunk)
                if bar is not None:
                    bar.update(len(chunk))
        if problem := _fault(part, source):
            raise CorpusError(f"the download {problem}")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
        if bar is not None:
            bar.close()
    return path


def _archive(corpus: Corpus, folder: Path) -> Path:
    """The verified archive of a corpus: one that lies here already, else the first to be had."""
    report = []
    for source in corpus.sources:
        path = folder / source.file
        if path.is_file():
            if not (problem := _fault(path, source)):
                return path
            report.append(f"{path} {problem}")
    for source in corpus.sources:
        try:
            return _download(source, folder)
        except (OSError, ValueError) as error:  # no network, no such page, a full disk, a wrong file
            report.append(f"{source.url}: {error}")
    wanted = "\n".join(
        f"  {source.file} ({source.size:,} bytes, sha256 {source.sha256}) from {source.url}"
        for source in corpus.sources
    )
    raise CorpusError(
        f"the corpus {corpus.name!r} is not here and could not be fetched:\n"
        + "\n".join(f"  {line}" for line in report)
        + f"\nPut one of these files, as it is, into the folder {folder}:\n{wanted}\n"
        "or name another folder in the environment variable TRANSFORMER_DATA."
    )


# %% book/12-text.ipynb · Talks, translated · [text-unpack]
def _decoded(content: bytes, name: str | Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        byte, line = content[error.start], content.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{name} is not UTF-8: byte {byte:#04x} in line {line:,}") from error


def _lines(text: str) -> list[str]:
    """Only a line feed ends a line: Unicode's other ends of lines occur within sentences."""
    return text.removesuffix("\n").split("\n") if text else []


def _paired(source: list[str], target: list[str], name: str) -> list[Pair]:
    if len(source) != len(target):
        raise CorpusError(f"{name}: {len(source):,} source lines but {len(target):,} target lines")
    return [Pair(*pair) for pair in zip(source, target, strict=True)]


def _member(archive: Path, corpus: Corpus, names: Sequence[str]) -> dict[str, str]:
    """Read the named texts straight out of the archive; none of its names becomes a path here."""
    wanted = {f"{corpus.folder}/{name}": name for name in names}
    texts: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                if name is None or not member.isreg():
                    continue
                if member.size > _MAX_MEMBER:
                    raise CorpusError(f"{archive}: {member.name} claims {member.size:,} bytes")
                content = tar.extractfile(member).read()
                found = hashlib.sha256(content).hexdigest()
                if found != corpus.sha256[name]:
                    raise CorpusError(
                        f"{archive}: {member.name} has sha256 {found} instead of {corpus.sha256[name]}"
                    )
                texts[name] = _decoded(content, f"{archive}: {member.name}")
                if len(texts) == len(wanted):
                    break
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise CorpusError(f"{archive} cannot be read: {error}") from error
    if missing := [path for path, name in wanted.items() if name not in texts]:
        raise CorpusError(f"{archive} has no member {', '.join(missing)}")
    return texts


def _read_archive(corpus: Corpus, split: str, folder: Path) -> list[Pair]:
    names = [f"{language}.{split}" for language in corpus.languages]
    texts = _member(_archive(corpus, folder), corpus, names)
    source, target = (_lines(texts[name]) for name in names)
    return _paired(source, target, f"{corpus.name} {split}")


def load_corpus(name: str, split: str) -> list[Pair]:
    """Load one split of a Portuguese–English corpus.

    Args:
        name: ``"phrases"``, the sentences that the package carries; or ``"ted"``, translated
            talks (CC BY-NC-ND 4.0), downloaded into `data_folder` unless an archive lies there already.
        split: ``"train"``, ``"dev"`` or ``"test"``.

    Returns:
        The pairs (Portuguese, English), already tokenized and in lower case, in a fixed order.

    Raises:
        ValueError: An unknown corpus or split.
        CorpusError: The corpus cannot be had, or is not what its fingerprint says; the message says
            which file to put where.

    Source:
        "ted": Qi et al. (2018), section 3.
    """
    if name not in ("phrases", "ted"):
        raise ValueError(f"name must be one of phrases, ted, got {name!r}")
    if split not in _SPLITS:
        raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
    if name == "ted":
        return _read_archive(_TED, split, data_folder())
    with gzip.open(record_path("phrases.tsv.gz"), "rt", encoding="utf-8", newline="\n") as file:
        rows = [line.removesuffix("\n").split("\t") for line in file]
    return [Pair(source, target) for name, source, target in rows if name == split]


# %% book/12-text.ipynb · A corpus of your own · [text-read-pairs]
_MAX_FILE = 1 << 30  # bytes; a file is held in memory whole, several times over


def read_pairs(source: str | Path, target: str | Path) -> list[Pair]:
    """Read a parallel corpus from two text files, of which line n of one translates line n of the other.

    Args:
        source: A file in UTF-8 with one sentence a line.
        target: Another with the translations.

    Returns:
        The pairs as they stand there, also those with an empty side. Only a line feed ends a line; a
        carriage return before it and a byte order mark at the beginning are dropped.

    Raises:
        OSError: A file cannot be opened; the message names it.
        CorpusError: A file is not UTF-8, or has more than 1 GiB, or the numbers of lines differ; the message
            says where.
    """
    sides = []
    for path in (Path(source), Path(target)):
        if (size := regular_file(path).stat().st_size) > _MAX_FILE:
            raise CorpusError(f"{path} has {size:,} bytes, more than {_MAX_FILE:,}: divide it")
        text = _decoded(path.read_bytes(), path).removeprefix("\ufeff")
        if "\0" in text:
            line = text.count("\n", 0, text.index("\0")) + 1
            raise CorpusError(f"{path} is not text in UTF-8: a zero byte in line {line:,}")
        sides.append([line.removesuffix("\r") for line in _lines(text)])
    return _paired(*sides, f"{source}, {target}")


# %% book/12-text.ipynb · Byte-pair encoding · [text-normalize]
def normalize(text: str) -> str:
    """Bring a text into the one form in which a vocabulary knows it.

    Args:
        text: Any text.

    Returns:
        Its composed Unicode form (NFC), with single spaces between words and none around.

    Raises:
        TypeError: `text` is no string.
        ValueError: It holds half of a surrogate pair, which no encoding can write.
    """
    check_type(str, text=text)
    text.encode()  # a UnicodeEncodeError is a ValueError
    return " ".join(unicodedata.normalize("NFC", text).split())


# %% book/12-text.ipynb · Byte-pair encoding · [text-vocabulary]
PAD_ID, UNK_ID, BOS_ID, EOS_ID = 0, 1, 2, 3
_SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_SPACE = "▁"  # stands for the space in front of a word
_LONGEST_PIECE = 256  # characters


class Vocabulary:
    """Subwords learned by byte-pair encoding, numbered from 4, behind padding, unknown, start and end.

    Args:
        tokenizer: A ``tokenizers.Tokenizer`` as `train` and `load` make it.

    Raises:
        TypeError: It is no tokenizer.
        ValueError: It does not begin with the four special entries, or its numbers have gaps.

    Source:
        Sennrich et al. (2016), section 3.2.
    """

    def __init__(self, tokenizer: Any) -> None:
        check_type(optional_import("tokenizers").Tokenizer, tokenizer=tokenizer)
        names = tuple(tokenizer.id_to_token(index) for index in range(len(_SPECIALS)))
        if names != _SPECIALS:
            raise ValueError(f"the first entries of a vocabulary must be {_SPECIALS}, got {names}")
        size, highest = tokenizer.get_vocab_size(), max(tokenizer.get_vocab().values())
        if highest != size - 1:
            raise ValueError(f"the last of {size} entries must be number {size - 1}, not {highest}")
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, sentences: Iterable[str], size: int, min_frequency: int = 2) -> "Vocabulary":
        """Learn a vocabulary from sentences of the training split.

        Args:
            sentences: Tokenized sentences, of both languages where they share one vocabulary.
            size: Largest number of entries, the four special ones included.
            min_frequency: A pair of pieces that occurs less often is not merged.

        Returns:
            The vocabulary; smaller than `size` where the sentences offer no more merges.

        Raises:
            TypeError: `sentences` is one string or holds what is none, or a number is not whole.
            ValueError: `size` leaves no room for the special entries, or there are no words.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be several strings, got one")
        check_size(len(_SPECIALS) + 1, size=size)
        check_size(min_frequency=min_frequency)
        tokenizers = optional_import("tokenizers")
        learner = _new_tokenizer(tokenizers.models.BPE(unk_token=_SPECIALS[UNK_ID]))
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=list(_SPECIALS),
            show_progress=False,
            max_token_length=_LONGEST_PIECE,
        )
        learner.train_from_iterator(map(normalize, sentences), trainer)
        learned = json.loads(learner.to_str())["model"]
        if len(learned["vocab"]) == len(_SPECIALS):
            raise ValueError("sentences hold no words to learn from")
        # A fresh model knows the special entries by number only: "<s>" in a text is text, no start token.
        merges = [tuple(merge) for merge in learned["merges"]]
        model = tokenizers.models.BPE(learned["vocab"], merges, unk_token=_SPECIALS[UNK_ID])
        return cls(_new_tokenizer(model))

    def __len__(self) -> int:
        return self.tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Cut a sentence into subwords.

        Args:
            text: A tokenized sentence.

        Returns:
            Ids, without start and end; characters that training never saw become `UNK_ID`.

        Raises:
            TypeError, ValueError: As in `normalize`.
        """
        return self.tokenizer.encode(normalize(text)).ids

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Cut many sentences into subwords, in parallel.

        Args:
            texts: Tokenized sentences.

        Returns:
            What `encode` gives for each.

        Raises:
            TypeError: `texts` is one string or holds what is none.
            ValueError: As in `normalize`.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be several strings, got one")
        return [
            encoding.ids
            for encoding in self.tokenizer.encode_batch([normalize(text) for text in texts])
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """Put subwords together again.

        Args:
            ids: Numbers, or a one-dimensional tensor of them; the first end token ends the sentence.

        Returns:
            The sentence, without padding and start; what was unknown shows as ``<unk>``.

        Raises:
            TypeError: What is no whole number.
            IndexError: An id out of range.
        """
        kept = []
        for index in _numbers(ids):
            if index == EOS_ID:
                break
            if index not in (PAD_ID, BOS_ID):
                kept.append(index)
        return "".join(self.tokens(kept)).replace(_SPACE, " ").strip()

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Name each subword, as labels of an attention map do.

        Args:
            ids: Numbers, or a one-dimensional tensor of them.

        Returns:
            One string an id; ``▁`` marks the beginning of a word.

        Raises:
            TypeError: What is no whole number.
            IndexError: An id out of range.
        """
        names = []
        for index in _numbers(ids):
            if not 0 <= index < len(self):
                raise IndexError(f"ids must lie in [0, {len(self)}), got {index}")
            names.append(self.tokenizer.id_to_token(index))
        return names

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as a JSON file, whole or not at all.

        Args:
            path: The file.

        Raises:
            ValueError: The tokenizer does more than cut words by its merges, which the file could not say.
            OSError: The file cannot be written; the message names it.
        """
        content = _file_content(self.tokenizer)
        with atomic_file(path) as part:
            part.write_bytes(content)

    @classmethod
    def load(cls, path: str | Path) -> "Vocabulary":
        """Read a vocabulary; a JSON file is data, and nothing in it is executed.

        The library does not see the file. The entries and merges in it are checked one by one, and
        the tokenizer is built from them as `train` builds it.

        Args:
            path: A file that `save` wrote.

        Returns:
            The vocabulary.

        Raises:
            OSError: The file cannot be opened.
            ValueError: The file holds no such vocabulary, or has more than 16 MiB; the message names it.
        """
        tokenizers = optional_import("tokenizers")
        with regular_file(path).open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
        try:
            vocab, merges = _parsed(content)
            model = tokenizers.models.BPE(vocab, merges, unk_token=_SPECIALS[UNK_ID])
            return cls(_new_tokenizer(model))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} holds no vocabulary: {error}") from error


def _new_tokenizer(model):
    """A tokenizer that marks where words begin, cuts between them, and leaves the rest to `model`."""
    tokenizers = optional_import("tokenizers")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="always"
    )
    return tokenizer


def _numbers(ids: Iterable[int]) -> list[int]:
    numbers = ids.tolist() if isinstance(ids, Tensor) and ids.dim() == 1 else ids
    check_type(Iterable, ids=numbers)
    numbers = list(numbers)
    for number in numbers:
        check_type(int, **{"an id": number})
    return numbers


# %% book/12-text.ipynb · Byte-pair encoding · [text-vocabulary-file]
_LARGEST_FILE = 1 << 24  # bytes; a vocabulary of 37,000 entries has about 3 million
_FORM = {  # what stands in the file beside entries and merges; other programs read it so as well
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {
        "type": "Metaspace",
        "replacement": _SPACE,
        "prepend_scheme": "always",
        "split": True,
    },
    "post_processor": None,
    "decoder": None,
}
_BPE_FORM = {
    "type": "BPE",
    "dropout": None,
    "unk_token": _SPECIALS[UNK_ID],
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def _file_content(tokenizer: Any) -> bytes:
    """What the file of a vocabulary holds; an error where the tokenizer has more to it than that."""
    plain = _new_tokenizer(optional_import("tokenizers").models.BPE(unk_token=_SPECIALS[UNK_ID]))
    (settings, learned), (ours, _) = _settings(tokenizer), _settings(plain)
    if (other := _difference(settings, ours)) is not None:
        raise ValueError(f"only a vocabulary that cuts words by merges alone can be saved: {other}")
    return json.dumps({**_FORM, "model": {**_BPE_FORM, **learned}}, indent=2, ensure_ascii=False).encode()


def _settings(tokenizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the library says of a tokenizer: its settings, and its entries and merges."""
    said = json.loads(tokenizer.to_str())
    model = said.pop("model")
    learned = {name: model.pop(name, None) for name in ("vocab", "merges")}
    return said | model, learned


def _difference(given: Any, form: dict[str, Any]) -> str | None:
    """The first setting in which a form was not kept; `None` where it was."""
    check_type(dict, content=given)
    for name in {**form, **given}:
        if name not in given or name not in form or given[name] != form[name]:
            there, wanted = given.get(name, "missing"), form.get(name, "missing")
            return f"{name!r:.60} is {there!r:.60}, not {wanted!r:.60}"
    return None


def _parsed(content: bytes) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The entries and merges in a file's content; an error where `save` would not have written it."""
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"it has more than {_LARGEST_FILE:,} bytes")
    given = json.loads(content)  # too deeply nested, it raises a RecursionError
    check_type(dict, content=given)
    model = given.pop("model", None)
    check_type(dict, model=model)
    vocab, merges = model.pop("vocab", None), model.pop("merges", None)
    if (other := _difference(given, _FORM) or _difference(model, _BPE_FORM)) is not None:
        raise ValueError(other)
    check_type(dict, vocab=vocab)
    check_type(list, merges=merges)
    for number, (piece, index) in enumerate(vocab.items()):
        if type(index) is not int or index != number or not 0 < len(piece) <= _LONGEST_PIECE:
            raise ValueError(f"entry {number} is {piece!r:.60} with number {index!r:.60}")
        piece.encode()  # half of a surrogate pair raises a ValueError
    known = set(vocab) - set(_SPECIALS)
    for number, pair in enumerate(merges):
        strings = isinstance(pair, list) and [type(part) for part in pair] == [str, str]
        if not strings or not {*pair, "".join(pair)} <= known:
            raise ValueError(f"merge {number} is {pair!r:.60}")
    return vocab, [(left, right) for left, right in merges]


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
        ValueError: `max_tokens` is below 1, or what should be a pair is none.
    """
    check_type(Vocabulary, vocabulary=vocabulary)
    if max_tokens is not None:
        check_size(max_tokens=max_tokens)
    pairs = _checked(pairs)
    sources = vocabulary.encode_batch(source for source, _ in pairs)
    targets = vocabulary.encode_batch(target for _, target in pairs)
    encoded = [
        ([*source, EOS_ID], [BOS_ID, *target, EOS_ID])
        for source, target in zip(sources, targets, strict=True)
    ]
    if max_tokens is None:
        return encoded
    return [pair for pair in encoded if max(map(len, pair)) <= max_tokens]


def _checked(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    pairs = list(pairs)
    for index, pair in enumerate(pairs):
        check_type(tuple, **{f"pairs[{index}]": pair})
        if len(pair) != 2:
            raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
    return pairs


# %% book/12-text.ipynb · From pairs to tensors · [text-pad]
def pad(sequences: Sequence[Sequence[int]], pad_id: int = PAD_ID) -> Tensor:
    """Lay sequences of different lengths into one tensor.

    Args:
        sequences: At least one sequence of ids.
        pad_id: What fills the rows up, behind their last id.

    Returns:
        ``torch.long`` tensor [B, L], L being the longest length.

    Raises:
        TypeError: An id is no whole number.
        ValueError: There is no sequence.
        IndexError: An id is negative.
    """
    check_type(int, pad_id=pad_id)
    check_type(Sequence, sequences=sequences)
    if len(sequences) == 0:
        raise ValueError("sequences must hold at least one sequence")
    rows = torch.full(
        (len(sequences), max(map(len, sequences))), pad_id, dtype=torch.long
    )  # [B, L]
    ids = _ids([index for sequence in sequences for index in sequence])
    for row, sequence in zip(rows, ids.split([len(sequence) for sequence in sequences]), strict=True):
        row[: len(sequence)] = sequence
    return rows


def _ids(numbers: list[int]) -> Tensor:
    try:
        ids = torch.tensor(numbers or [0])[: len(numbers)]  # were the dtype given, 1.5 would become 1
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"sequences must hold ids, not {numbers!r:.60}") from error
    if ids.dtype != torch.long or ids.dim() != 1:
        raise TypeError(f"sequences must hold ids, not {numbers!r:.60}")
    check_range("sequences", ids, 2**63)
    return ids


# %% book/12-text.ipynb · Batches by tokens · [text-batches]
def _by_length(pair: _Encoded) -> tuple[int, int]:
    """Longer side first; among equals how much longer the target is, alternately rising and falling."""
    source, target = map(len, pair)
    longest, difference = max(source, target), target - source
    return longest, difference if longest % 2 else -difference


class TokenBatches:
    """Batches of about equally many tokens, made of sentences of about equal length.

    Called with the number of an epoch it gives that epoch's batches, which depend on `seed` and epoch
    alone. All epochs have the same number of batches, of the same shapes, in different orders, and
    sentences of equal lengths change places.

    Args:
        pairs: What `encode_pairs` returns.
        max_tokens: Bound on the sizes B·S of the source and B·T of the target tensor, padding included.
        seed: Of the random order.
        shuffle: ``False`` gives every epoch in the same order, short sentences first.

    Raises:
        TypeError: `max_tokens` or `seed` is no whole number, or `shuffle` no `bool`.
        ValueError: No pairs, a pair with an empty side, or a sentence longer than `max_tokens`.
    """

    def __init__(
        self, pairs: Sequence[_Encoded], max_tokens: int, seed: int = 0, shuffle: bool = True
    ) -> None:
        check_size(max_tokens=max_tokens)
        check_size(0, seed=seed)
        check_type(bool, shuffle=shuffle)
        check_type(Sequence, pairs=pairs)
        if len(pairs) == 0:
            raise ValueError("pairs must hold at least one pair")
        for index, pair in enumerate(pairs):
            check_type((tuple, list), **{f"pairs[{index}]": pair})
            if len(pair) != 2:
                raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
            if min(map(len, pair)) == 0:
                raise ValueError(f"pairs[{index}] has an empty side")
            if max(map(len, pair)) > max_tokens:
                raise ValueError(
                    f"pairs[{index}] has {max(map(len, pair))} tokens, more than max_tokens={max_tokens}"
                )
        self.pairs, self.max_tokens, self.seed, self.shuffle = pairs, max_tokens, seed, shuffle
        self._keys = [_by_length(pair) for pair in pairs]
        self._cuts = self._cut([longest for longest, _ in sorted(self._keys)])

    def _cut(self, lengths: list[int]) -> list[slice]:
        """Where batches begin and end: lengths rise, so its last one decides what a batch costs."""
        cuts, start = [], 0
        for index, longest in enumerate(lengths):
            if (index + 1 - start) * longest > self.max_tokens:
                cuts.append(slice(start, index))
                start = index
        return [*cuts, slice(start, len(lengths))]

    def __len__(self) -> int:
        return len(self._cuts)

    def indices(self, epoch: int) -> list[list[int]]:
        """The pairs that each batch of an epoch is made of.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            For each batch the indices of its pairs; over the epoch every index occurs once.
        """
        check_size(0, epoch=epoch)
        if not self.shuffle:
            order = sorted(range(len(self.pairs)), key=self._keys.__getitem__)
            return [order[cut] for cut in self._cuts]
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        # Sorting is stable: sentences of equal lengths keep the random order that they have here.
        order = torch.randperm(len(self.pairs), generator=generator).tolist()
        order.sort(key=self._keys.__getitem__)
        return [
            order[self._cuts[number]]
            for number in torch.randperm(len(self), generator=generator).tolist()
        ]

    def __call__(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of an epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Yields:
            Source [B, S] and target [B, T], padded behind with `PAD_ID`.
        """
        for batch in self.indices(epoch):
            sources, targets = zip(*(self.pairs[index] for index in batch), strict=True)
            yield pad(sources), pad(targets)


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


# %% book/12-text.ipynb · Batches by tokens · [text-in-turn]
def _in_turn(pairs: Sequence[_Encoded], max_tokens: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of the pairs in the order in which they come, as a yardstick."""
    batch: list[_Encoded] = []
    longest = 0
    for pair in pairs:
        longest = max(longest, *map(len, pair))
        if (len(batch) + 1) * longest > max_tokens:
            yield tuple(pad(side) for side in zip(*batch, strict=True))
            batch, longest = [], max(map(len, pair))
        batch.append(pair)
    yield tuple(pad(side) for side in zip(*batch, strict=True))


# %% book/12-text.ipynb · Random cuts that can be repeated · [text-courses]
_State = tuple[tuple[int, ...], int]  # pieces, and how many of their possible merges were just left out
_REMEMBERED = 1 << 18  # courses; about 300 MB
_LONGEST = 64  # letters; what is longer is no word, and its course would fill the memory


def _words(text: str) -> list[str]:
    """Where merges stop: the words of a normalized text, each with the sign for the space before it."""
    marked = text.replace(" ", _SPACE)
    if not marked.startswith(_SPACE):
        marked = _SPACE * bool(marked) + marked
    return re.findall(f"{_SPACE}[^{_SPACE}]*", marked)


class _Merges:
    """What a vocabulary's merges make of a word, step by step."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        learned = json.loads(vocabulary.tokenizer.to_str())["model"]
        if learned["type"] != "BPE":
            raise ValueError(f"vocabulary must be made of merges, but is of type {learned['type']}")
        self.ids = ids = learned["vocab"]
        self.merges = {
            (ids[left], ids[right]): (age, ids.get(left + right))
            for age, (left, right) in enumerate(learned["merges"])
        }
        self.course = lru_cache(_REMEMBERED)(self._course)

    def letters(self, word: str) -> tuple[int, ...]:
        return tuple(self.ids.get(letter, UNK_ID) for letter in word)

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
    """For each word, whose undisturbed course is given, the pieces where merges are left out."""
    courses = list(courses)
    places = torch.arange(len(courses))
    merges = torch.tensor([len(states) - 1 for states in courses])
    while len(places):
        throws = torch.empty(len(places), dtype=torch.float64).geometric_(dropout, generator=generator)
        disturbed = throws <= merges
        places, throws = places[disturbed], throws[disturbed].long()
        left = []
        for place, throw in zip(places.tolist(), throws.tolist(), strict=True):
            pieces, left_out = courses[place][throw - 1]
            courses[place] = course(pieces, left_out + 1)
            left.append(len(courses[place]) - 1)
        merges = torch.tensor(left)
    return [states[-1][0] for states in courses]


# %% book/12-text.ipynb · Random cuts that can be repeated · [text-sampler]
class SubwordSampler:
    """Sentence pairs, cut anew for every epoch by BPE-dropout.

    Called with the number of an epoch it gives what `encode_pairs` would, in the same order, with merges
    left out at random. The cuts depend on `seed` and epoch alone. For training only: what is
    translated, or evaluated, is cut by the vocabulary itself.

    Args:
        pairs: Pairs (source, target).
        vocabulary: The vocabulary of both languages.
        dropout: Probability p, in [0, 1), with which each possible merge is left out; with 0 the result
            is that of `encode_pairs`.
        seed: Of the cuts.
        max_tokens: Pairs that `encode_pairs` finds too long are left out; a pair that only a cut at
            random makes too long is cut as always. ``None`` for no bound.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: A number is out of its range, what should be a pair is none, or the vocabulary does
            not cut words by merges alone.

    Source:
        Provilkov et al. (2020), algorithm 1. Words of more than 64 characters are always cut as usual.
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
        check_size(0, seed=seed)
        if max_tokens is not None:
            check_size(max_tokens=max_tokens)
        pairs = _checked(pairs)
        encoded = encode_pairs(pairs, vocabulary)
        if max_tokens is not None:
            short = [max(map(len, pair)) <= max_tokens for pair in encoded]
            pairs, encoded = ([x for x, fits in zip(xs, short) if fits] for xs in (pairs, encoded))
        self.dropout, self.seed, self.max_tokens, self._encoded = dropout, seed, max_tokens, encoded
        self._merges, courses = _Merges(vocabulary), {}
        texts = [_words(normalize(text)) for pair in pairs for text in pair]
        for word in chain.from_iterable(texts):
            if word not in courses:
                courses[word] = self._undisturbed(word, vocabulary)
        self._sizes = [len(words) for words in texts]
        self._courses = [courses[word] for word in chain.from_iterable(texts)]
        if self._join(states[-1][0] for states in self._courses) != encoded:
            raise ValueError("vocabulary must cut words by its merges alone")

    def _undisturbed(self, word: str, vocabulary: Vocabulary) -> list[_State]:
        if len(word) > _LONGEST:
            return [(tuple(vocabulary.encode(word)), 0)]
        return self._merges.course(self._merges.letters(word), 0)

    def _join(self, cuts: Iterable[tuple[int, ...]]) -> list[_Encoded]:
        cuts = iter(cuts)
        texts = [[*chain.from_iterable(islice(cuts, size)), EOS_ID] for size in self._sizes]
        return [(source, [BOS_ID, *target]) for source, target in zip(texts[::2], texts[1::2], strict=True)]

    def __call__(self, epoch: int) -> list[_Encoded]:
        """Cut the pairs for an epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            As `encode_pairs`.
        """
        check_size(0, epoch=epoch)
        if self.dropout == 0:
            return self._encoded
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch + (1 << 31))
        drawn = self._join(_draw_cuts(self._courses, self._merges.course, self.dropout, generator))
        if self.max_tokens is None:
            return drawn
        return [
            new if max(map(len, new)) <= self.max_tokens else usual
            for new, usual in zip(drawn, self._encoded, strict=True)
        ]


def sampled_batches(
    pairs: Iterable[tuple[str, str]],
    vocabulary: Vocabulary,
    max_tokens: int,
    dropout: float = 0.1,
    seed: int = 0,
    max_length: int | None = None,
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Batches for training by BPE-dropout: `TokenBatches` of what `SubwordSampler` gives in each epoch.

    Args:
        pairs, vocabulary, dropout: As in `SubwordSampler`.
        max_tokens: As in `TokenBatches`.
        seed: Of cuts and order.
        max_length: Longest sentence in tokens, special ones included: `max_tokens` of the sampler. By
            default what a batch can hold.

    Returns:
        A function that yields the batches of the epoch whose number it is given, the same whenever it
        is called. Their number may differ from epoch to epoch.

    Raises:
        TypeError, ValueError: As in `SubwordSampler` and `TokenBatches`.
    """
    check_size(max_tokens=max_tokens)
    max_length = max_tokens if max_length is None else max_length
    sampler = SubwordSampler(pairs, vocabulary, dropout, seed, max_length)
    return lambda epoch: TokenBatches(sampler(epoch), max_tokens, seed)(epoch)


# %% book/12-text.ipynb · What was counted · [text-facts]
def corpus_facts(
    name: str,
    sizes: Sequence[int] = (8000,),
    budgets: Sequence[int] = (4096,),
    dropouts: Sequence[float] = (),
) -> dict:
    """Count what this chapter reports of a corpus; none of its text is in the result.

    Args:
        name: As in `load_corpus`.
        sizes: Of vocabularies to learn from the training split.
        budgets: Of tokens in a batch to try with the last of them.
        dropouts: Rates of BPE-dropout to try with it.

    Returns:
        For each split the pairs, and for both sides tokens, distinct tokens and a table [length, how often];
        how many pairs repeat others, have equal sides, or stand in the training split too; the share of
        tokens that the training split lacks. For each vocabulary its size and its subwords a token; for
        each budget the number of batches and the shares of padding, in random order and in `TokenBatches`;
        for each rate of dropout the rate and the subwords a token.
    """
    if len(sizes) == 0:
        raise ValueError("sizes must hold at least one size")
    splits = {split: load_corpus(name, split) for split in _SPLITS}
    trained = set(splits["train"])
    known = [{word for text in side for word in text.split()} for side in zip(*splits["train"], strict=True)]
    facts: dict = {"corpus": name, "splits": {}, "vocabularies": [], "batches": [], "dropout": []}
    for split, pairs in splits.items():
        sides = [[text.split() for text in side] for side in zip(*pairs, strict=True)]
        words = [[word for text in side for word in text] for side in sides]
        facts["splits"][split] = {
            "pairs": len(pairs),
            "tokens": [len(side) for side in words],
            "types": [len(set(side)) for side in words],
            "lengths": [sorted(Counter(map(len, side)).items()) for side in sides],
            "repeated": len(pairs) - len(set(pairs)),
            "equal sides": sum(source == target for source, target in pairs),
            "in train": sum(pair in trained for pair in pairs),
            "unknown": [
                sum(word not in train for word in side) / len(side)
                for side, train in zip(words, known, strict=True)
            ],
        }
    tokens = facts["splits"]["train"]["tokens"]
    for size in sizes:
        vocabulary = Vocabulary.train((text for pair in splits["train"] for text in pair), size)
        encoded = encode_pairs(splits["train"], vocabulary)
        facts["vocabularies"].append([len(vocabulary), *_subwords(encoded, tokens)])
    for budget in budgets:
        batches = TokenBatches(encoded, budget)
        order = torch.randperm(len(encoded), generator=torch.Generator().manual_seed(0)).tolist()
        random_order = [encoded[index] for index in order]
        facts["batches"].append(
            {
                "max_tokens": budget,
                "batches": len(batches),
                "waste": padding_waste(batches(0)),
                "waste at random": padding_waste(_in_turn(random_order, budget)),
            }
        )
    for rate in dropouts:
        drawn = SubwordSampler(splits["train"], vocabulary, rate)(0)
        facts["dropout"].append([rate, *_subwords(drawn, tokens)])
    return facts


def _subwords(encoded: Sequence[_Encoded], tokens: Sequence[int]) -> list[float]:
    """How many subwords a token has, on either side, without special ones."""
    sums = sum(len(source) - 1 for source, _ in encoded), sum(len(target) - 2 for _, target in encoded)
    return [count / total for count, total in zip(sums, tokens, strict=True)]
