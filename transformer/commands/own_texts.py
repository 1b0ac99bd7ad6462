"""Texts of the user's own: their checksum, and what's held out of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from transformer.commands.data import Translations
from transformer.files import regular_file
from transformer.language.corpora import CorpusError, Pair, held_out, read_pairs
from transformer.language.wording import Preparation

__all__ = ["checksum", "FILES", "OwnTexts", "own_splits"]


def checksum(path: str) -> str:
    """The sha256 of a file."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


FILES = ("source", "target", "dev_source", "dev_target")


@dataclass(frozen=True)
class OwnTexts(Translations):
    """The data of a translator that learns from files of your own.

    Args:
        source: the file of sources, or the one file that holds both sides with a tab between them.
        target: the file of translations; empty for one file.
        dev_source, dev_target: the same for pairs that are not trained on. Without them, some are held
            out, as `held_out` chooses them.
        sha256: the checksums of the files named, in this order, with spaces between them; or empty.

    The other arguments are those of `Translations`.

    Raises:
        TypeError, ValueError: as in `Translations`; a name is not UTF-8; or there are more or fewer checksums
            than files.
    """

    source: str = ""
    target: str = ""
    dev_source: str = ""
    dev_target: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.files:
            try:
                path.encode()
            except UnicodeEncodeError:
                wanted = "a file's name must be UTF-8, so that a record can hold it"
                raise ValueError(f"{wanted}, not {path!r}") from None
        if (n := len(self.sha256.split())) not in (0, len(self.files)):
            raise ValueError(f"sha256 must hold a checksum for each of {len(self.files)} files, not {n}")

    @property
    def files(self) -> Sequence[str]:
        """The files that are named."""
        return [path for name in FILES if (path := getattr(self, name))]

    @property
    def identity(self) -> dict[str, str]:
        """Of each file its checksum, or its path if there is none; texts are told apart by these."""
        named = [name for name in FILES if getattr(self, name)]
        return dict(zip(named, self.sha256.split() or self.files))

    def load(self, split: str) -> list[Pair]:
        """The pairs to train on, `"train"`, or to judge by, `"dev"`.

        Raises:
            OSError, CorpusError: as in `read_pairs`; or a file is no longer what its checksum says.
        """
        for path, noted in zip(self.files, self.sha256.split()):
            if (found := checksum(path)) != noted:
                raise CorpusError(f"{path} has changed: its sha256 was {noted}, and is {found}")
        train, dev = own_splits(
            self.source, self.target, self.dev_source, self.dev_target, self.sha256, self.prepared
        )
        return {"train": train, "dev": dev}[split]


@lru_cache(1)
def own_splits(
    source: str, target: str, dev_source: str, dev_target: str, sha256: str, preparation: Preparation
) -> tuple[list[Pair], list[Pair]]:
    """The pairs of `OwnTexts`, to train on and to judge by."""
    train = read_pairs(source, target or None, keep_empty=False)
    dev = read_pairs(dev_source, dev_target or None, keep_empty=False) if dev_source else None
    for files, pairs in (((source, target), train), ((dev_source, dev_target), dev)):
        if pairs == []:
            raise CorpusError(f"{', '.join(filter(None, files))}: no lines, and no pairs")
    if dev is not None:
        return train, dev
    try:
        return held_out(train, preparation)
    except ValueError as error:
        raise CorpusError(f"{', '.join(filter(None, (source, target)))}: {error}") from None
