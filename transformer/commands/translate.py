"""`translate`: lines of a file, or of the command line."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from transformer.commands.main import Add, engine_option, named_translator, note, search_of, search_options

__all__ = ["GROUP", "run", "add_options", "HELP"]


GROUP = 64  # lines that are translated together


def _decoded(lines: Iterable[bytes], place: str) -> Iterator[tuple[str, str]]:
    """Each line's place, which is `place` and its number, and its text.

    Raises:
        ValueError: a line is not UTF-8; the message names its place.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode()
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
    search, translator = search_of(options), named_translator(options)
    size = GROUP
    if options.sentence:
        given = _decoded(map(os.fsencode, options.sentence), "sentence")
    elif sys.stdin is None:
        raise OSError("standard input is closed, and no sentence is given")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # a person who types a line waits for its translation
        given = _decoded(sys.stdin.buffer, "standard input, line")
    for group in _grouped(given, size):
        places, sentences = zip(*group, strict=True)
        answers = translator.translate_checked(sentences, search)
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
recipes) is cut, with a warning on standard error. Other lines whose translation is doubtful are named
there as well: it is cut, the vocabulary lacks characters, or several sentences came in and fewer out.

A terminal is answered line by line. Anything else is read and translated in groups of 64 lines, in
order. A line that is not UTF-8 ends the program, with its number, once the lines before it are answered.

  python -m transformer translate < portuguese.txt > english.txt

A name with one slash that is not a folder is looked up on the Hugging Face hub: a translator's folder
that "hf upload OWNER/NAME FOLDER" has put there, or a Marian model with weights in safetensors. Only
files that execute nothing are fetched, and they are kept, so that the next call needs no network."""
