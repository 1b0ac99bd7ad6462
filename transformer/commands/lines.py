"""Lines in, lines out."""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO
from transformer.commands.terminal import note

__all__ = ["LONGEST_LINE", "read_lines", "decoded", "grouped"]


LONGEST_LINE = 1 << 16  # bytes of a line that are read


def read_lines(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The lines of a stream, each with whether it was cut off at `LONGEST_LINE` bytes."""
    while line := stream.readline(LONGEST_LINE + 1):
        cut = len(line) > LONGEST_LINE and not line.endswith(b"\n")
        if cut:
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        yield line[:LONGEST_LINE], cut


def decoded(lines: Iterable[tuple[bytes, bool]], place: str) -> Iterator[tuple[str, str]]:
    """Each line's place and its text; a warning says which were cut.

    Args:
        lines: in UTF-8, each with whether it was cut.
        place: what a line is called, before its number.

    Raises:
        ValueError: a line is not UTF-8; the message names its place.
    """
    for number, (line, cut) in enumerate(lines, start=1):
        if cut:
            note(f"warning: {place} {number} is cut to its first {LONGEST_LINE:,} bytes")
        try:  # a character that the cut went through is left out
            text = codecs.getincrementaldecoder("utf-8")().decode(line, final=not cut)
        except UnicodeDecodeError as error:
            wrong = f"byte {line[error.start]:#04x} at position {error.start + 1}"
            raise ValueError(f"{place} {number} is not UTF-8: {wrong}") from None
        yield f"{place} {number}", text.rstrip("\r\n").removeprefix("\ufeff")


def grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to `size` items; an error comes after the items before it."""
    group: list[Any] = []
    try:
        for item in items:
            group.append(item)
            if len(group) == size:
                yield group
                group = []
    except ValueError:
        if group:
            yield group
        raise
    if group:
        yield group
