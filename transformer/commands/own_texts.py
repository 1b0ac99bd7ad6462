"""Texts of the user's own: their checksum, and what's held out of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from transformer.commands.data import Translations
from transformer.language.corpora import CorpusError, Pair, held_out, read_pairs
from transformer.language.wording import Preparation
from transformer.runs.checkpoints import regular_file

__all__ = ["checksum", "OwnTexts", "own_splits"]


def checksum(path: str) -> str:
    """The sha256 of a file."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class OwnTexts(Translations):
    """The data of a translator that learns from files of your own.

    Args:
        source: the file of sources, or the one file that holds both sides with a tab between them.
        target: the file of translations; empty for one file.
        dev_source, dev_target: the same for pairs that are not trained on. Without them, some are held
            out, as `held_out` chooses them.
        sha256: the checksums of the files named, in this order, with spaces between them.

    The other arguments are those of `Translations`.
    """

    source: str = ""
    target: str = ""
    dev_source: str = ""
    dev_target: str = ""
    sha256: str = ""

    @property
    def files(self) -> Sequence[str]:
        """The files that are named."""
        return [path for path in (self.source, self.target, self.dev_source, self.dev_target) if path]

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
    if not dev_source:
        return held_out(train, preparation)
    dev = read_pairs(dev_source, dev_target or None, keep_empty=False)
    for path, pairs in ((source, train), (dev_source, dev)):
        if not pairs:
            raise CorpusError(f"{path} holds no pairs")
    return train, dev
