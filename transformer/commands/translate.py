"""`translate`: lines of a file, or of the command line."""

import argparse
import os
import sys
from transformer.commands.lines import decoded, grouped, read_lines
from transformer.commands.options import Add, engine_option, named_translator, search_options
from transformer.commands.terminal import note

__all__ = ["GROUP", "translate", "translate_options", "TRANSLATE_HELP"]


GROUP = 64  # lines that are translated together


def translate(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator = named_translator(options)
    size = GROUP
    if options.sentence:
        given = decoded(((os.fsencode(text), False) for text in options.sentence), "sentence")
    elif sys.stdin is None:
        raise OSError("standard input is closed, and no sentence is given")
    else:
        if sys.stdin.isatty():
            note("One sentence a line; an end of file (Ctrl-D) ends it.")
            size = 1  # a person who types a line waits for its translation
        given = decoded(read_lines(sys.stdin.buffer), "standard input, line")
    for group in grouped(given, size):
        places, sentences = zip(*group, strict=True)
        answers = translator.translate_checked(sentences, options.search)
        for where, answer in zip(places, answers, strict=True):
            if answer.doubts:
                note(f"warning: {where} {' and '.join(answer.doubts)}")
        print(*(answer.text for answer in answers), sep="\n", flush=True)


def translate_options(add: Add) -> None:
    """The options of `translate`."""
    add("sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)")
    engine_option(add)
    search_options(add)


TRANSLATE_HELP = """\
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

A name with one slash that is not a folder is looked up on the Hugging Face hub: a translator that
Translator.push_to_hub has put there, or a Marian model with weights in safetensors. Only files that
execute nothing are fetched, and they are kept, so that the next call needs no network."""
