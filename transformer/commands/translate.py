"""`translate`: lines of a file, or of the command line."""

import argparse
import codecs
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO
from transformer.commands.main import Add, engine_option, named_translator, note, search_options

__all__ = ["GROUP", "run", "add_options", "HELP"]


GROUP = 64  # lines that are translated together


LONGEST_LINE = 1 << 16  # bytes of a line that are read


def _read_lines(stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """The lines of a stream, each with whether it was cut off at `LONGEST_LINE` bytes."""
    while line := stream.readline(LONGEST_LINE + 1):
        cut = len(line) > LONGEST_LINE and not line.endswith(b"\n")
        if cut:
            while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                pass
        yield line[:LONGEST_LINE], cut


def _decoded(lines: Iterable[tuple[bytes, bool]], place: str) -> Iterator[tuple[str, str]]:
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


def _grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
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


def run(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator = named_translator(options)
    size = GROUP
    if options.sentence:
        given = _decoded(((os.fsencode(text), False) for text in options.sentence), "sentence")
    elif sys.stdin is None:
        raise OSError("standard input is closed, and no sentence is given")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # a person who types a line waits for its translation
        given = _decoded(_read_lines(sys.stdin.buffer), "standard input, line")
    for group in _grouped(given, size):
        places, sentences = zip(*group, strict=True)
        answers = translator.translate_checked(sentences, options.search)
        for where, answer in zip(places, answers, strict=True):
            if answer.doubts:
                note(f"warning: {where} {' and '.join(answer.doubts)}")
        print(*(answer.text for answer in answers), sep="\n", flush=True)


def add_options(add: Add) -> None:
    """The options of `translate`."""
    add("sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)")
    engine_option(add)
    search_options(add)


HELP = """translate sentences, given here or line by line

Sentences are written as one types them, in UTF-8. The translator treats them as it did those that it
has learned from; translations of models of the talks and phrases are in lower case, like these.

An empty line gives an empty line. A line of more tokens than the model reads (512 for those of the
recipes) is cut, with a warning on standard error, and so is one of more than 65,536 bytes. Other lines
whose translation is doubtful are named there as well: it is cut, the vocabulary lacks characters, or
several sentences came in and fewer out.

A terminal is answered line by line. Anything else is read and translated in groups of 64 lines, in
order, in a fixed amount of memory. A line that is not UTF-8 ends the program, with its number, once
the lines before it are answered.

  python -m transformer translate < portuguese.txt > english.txt

A name with one slash that is not a folder is looked up on the Hugging Face hub: a translator's folder
that "hf upload OWNER/NAME FOLDER" has put there, or a Marian model with weights in safetensors. Only
files that execute nothing are fetched, and they are kept, so that the next call needs no network."""
