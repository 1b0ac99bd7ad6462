"""`translate`: lines of a file, or of the command line."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from transformer.commands.main import Add, engine_option, named_translator, note, search_of, search_options

__all__ = ["run", "add_options", "HELP"]


_GROUP = 64  # lines that are translated together


def _decoded(lines: Iterable[bytes], place: str) -> Iterator[tuple[str, str]]:
    # Each line's place, which is `place` and its number, and its text; refused where it is not UTF-8.
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            wrong = f"byte {line[error.start]:#04x} at position {error.start + 1}"
            raise ValueError(f"{place} {number} is not UTF-8: {wrong}") from None
        yield f"{place} {number}", text.rstrip("\r\n").removeprefix("\ufeff")


def run(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    search, translator = search_of(options), named_translator(options)
    size = _GROUP
    if options.sentence:
        given = _decoded(map(os.fsencode, options.sentence), "sentence")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # a person who types a line waits for its translation
        given = _decoded(sys.stdin.buffer, "standard input, line")
    while group := list(islice(given, size)):
        answers = translator.translate_checked([sentence for _, sentence in group], search)
        for (place, _), answer in zip(group, answers, strict=True):
            if answer.doubts:
                note(f"warning: {place} {' and '.join(answer.doubts)}")
        print(*(answer.text for answer in answers), sep="\n", flush=True)


def add_options(add: Add) -> None:
    """The options of `translate`."""
    add("sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)")
    engine_option(add)
    search_options(add)


HELP = """translate sentences, given here or line by line

Sentences are written as one types them, in UTF-8; translations of models of the talks and phrases are
in lower case, like these. A terminal is answered line by line; anything else in groups of 64 lines, in
order. A line that is not UTF-8 ends the program, with its number. A line whose translation is doubtful
is named on standard error: it is cut, the vocabulary lacks characters, or several sentences came in.

  python -m transformer translate < portuguese.txt > english.txt

A name with one slash that is not a folder is looked up on the Hugging Face hub: a translator's folder
that "hf upload OWNER/NAME FOLDER" has put there, or a Marian model with weights in safetensors."""
