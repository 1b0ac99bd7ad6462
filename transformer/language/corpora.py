"""Corpora: loaded, verified, split; files of the user's own."""

import gzip
import hashlib
import http.client
import os
import tarfile
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
import torch
from transformer.files import atomic_file, regular_file
from transformer.language.vocabulary import normalize
from transformer.language.preparation import AS_IT_IS, Preparation
from transformer.training import record_path
from transformer.validation import check_choice, check_type, optional_import

__all__ = ["Pair", "CorpusError", "data_folder", "load_corpus", "read_pairs", "as_pairs", "held_out"]


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
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == source.sha256 else f"has sha256 {found} instead of {source.sha256}"


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
        "ted": Qi et al. (2018), section 3.

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
    found = []
    for index, pair in enumerate(pairs):
        check_type((tuple, list), **{f"pairs[{index}]": pair})
        if len(pair) != 2:
            raise ValueError(f"pairs[{index}] must be a source and a target, not {len(pair)} things")
        check_type(str, **{f"pairs[{index}][{side}]": text for side, text in enumerate(pair)})
        found.append(Pair(*pair))
    return found


def held_out(
    pairs: Sequence[Pair], preparation: Preparation = AS_IT_IS, seed: int = 0
) -> tuple[list[Pair], list[Pair]]:
    """Divide a corpus into pairs to train on and pairs to judge by, of which training shows none.

    Pairs that the `preparation` makes equal count as one. Both lists are in the order of the corpus. The
    second holds a twentieth of the different pairs, but at least 100 and at most 1,000; of fewer than 500, a
    fifth.
    """
    pairs = as_pairs(pairs)
    keys = [tuple(normalize(preparation.prepare(side)) for side in pair) for pair in pairs]
    firsts = {key: place for place, key in reversed([*enumerate(keys)])}
    if (n := len(firsts)) < 2:
        found = f"{n} (of {len(pairs):,})"
        raise ValueError(f"pairs must hold two different pairs, one of them to be held out, not {found}")
    size = max(1, min(1000, max(n // 20, min(100, n // 5))))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    places = sorted(sorted(firsts.values())[number] for number in order[:size])
    chosen = {keys[place] for place in places}
    train = [pair for pair, key in zip(pairs, keys) if key not in chosen]
    return train, [pairs[place] for place in places]
