"""The command line: options and messages that commands share, and the program around them."""

import argparse
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any, NoReturn
import torch
from transformer import __version__
from transformer.exchange.translators import load_translator
from transformer.language.translator import AnyTranslator, Search
from transformer.speed.kernels import keep_freed_memory
from transformer.training import best_device

__all__ = [
    "PROGRAM", "Add", "within", "search_options", "search_of", "model_option", "engine_option",
    "named_translator", "device_option", "one_line", "note", "parser", "run",
]  # fmt: skip


PROGRAM = "python -m transformer"
DESCRIPTION = """\
Train a Transformer that translates, on a corpus of this book or texts of your own, and use it.
The one that is built in translates Portuguese into English; --model takes any other.

  python -m transformer translate "A menina gosta do gato preto."
  python -m transformer train phrases --directory runs/mine
  python -m transformer evaluate --model runs/mine/translator --corpus phrases
  python -m transformer train --source train.de --target train.en

Every command has a --help of its own."""

Add = Callable[..., Any]  # an argument parser's `add_argument`


class _Arguments(argparse.ArgumentParser):
    # A parser that leaves it to `run` to say what is wrong.
    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} (see {self.prog} --help)")


def within(kind: type, low: float, high: float) -> Callable[[str], Any]:
    """A parser for numbers of this type, from the lowest to the highest allowed."""

    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must lie in [{low}, {high}], but is {text}")
        return value

    number.__name__ = kind.__name__  # for the message about what is not a number
    return number


def search_options(add: Add) -> None:
    """Which translator searches, how, and where; `search_of` makes a `Search` of it."""
    model_option(add)
    for name, text in (
        ("beam_size", "width of the beam, from 1 to 100; 1 for greedy search"),
        ("length_penalty", "how much a long translation is favored, from 0 to 10"),
        ("max_length", "the most tokens of a translation"),
    ):
        flag, default = f"--{name.replace('_', '-')}", getattr(Search, name)
        add(flag, type=type(default), default=default, metavar="N", help=f"{text} (default: {default})")
    at_once = "the most source tokens that are translated at once (default: 4000, on a GPU 32000)"
    add("--max-tokens", type=int, metavar="N", help=at_once)
    device_option(add)


def search_of(options: argparse.Namespace) -> Search:
    """The search that the options ask for, which checks them."""
    return Search(**{field.name: getattr(options, field.name) for field in fields(Search)})


def model_option(add: Add, default: str | None = "phrases") -> None:
    """Which translator; with `None` a command sees that nobody named one."""
    name = "a translator's folder, such as runs/ted-small/translator, or OWNER/NAME on the Hugging Face hub "
    name += "(default: phrases, the small one that is built in; a folder of that name is ./phrases)"
    add("--model", default=default, metavar="NAME", help=name)


def engine_option(add: Add) -> None:
    """What runs the search."""
    engine = "search by ctranslate2, a program in C++ (default: PyTorch)"
    add("--engine", choices=["ctranslate2"], help=engine)
    numbers = "what ctranslate2 computes with, such as int8 (default: float32)"
    add("--compute-type", metavar="TYPE", help=numbers)


def named_translator(options: argparse.Namespace) -> AnyTranslator:
    """The translator of the options."""
    return load_translator(options.model, options.device, options.engine, options.compute_type)


def device_option(add: Add) -> None:
    """On which device."""
    device = best_device().type
    add("--device", default=device, help=f"where to compute (default: {device})")
    many = "threads to compute with (default: as many as PyTorch takes, but one to train a narrow model)"
    add("--threads", type=within(int, 1, 1024), metavar="N", help=many)


def one_line(message: object) -> str:
    """A message on one line, with escapes for what is not printable, and without C++ frames."""
    text = str(message).partition("\nException raised from")[0]
    text = " ".join(line.strip() for line in text.splitlines())
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def note(message: object) -> None:
    """Say something on standard error, on one line, whether or not somebody still reads it."""
    try:
        print(one_line(message), file=sys.stderr, flush=True)
    except OSError:
        _drop_output()


def _drop_output() -> None:
    # Discard output that was printed and cannot be written, which Python would try again at exit.
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def parser(commands: Sequence[ModuleType]) -> argparse.ArgumentParser:
    """What may appear on the command line; a command is a module with `HELP`, `add_options` and `run`."""
    layout = argparse.RawDescriptionHelpFormatter
    whole = _Arguments(prog=PROGRAM, description=DESCRIPTION, formatter_class=layout)
    whole.add_argument("--version", action="version", version=f"transformer-book {__version__}")
    subparsers = whole.add_subparsers(title="commands", metavar="command")
    for command in commands:
        name, (line, _, more) = command.__name__.rpartition(".")[2], command.HELP.partition("\n\n")
        about = f"{line[0].upper()}{line[1:]}."
        sub = subparsers.add_parser(name, help=line, description=about, epilog=more, formatter_class=layout)
        sub.set_defaults(run=command.run)
        debug = "show the traceback of an error (default: one line that says what is wrong)"
        sub.add_argument("--debug", action="store_true", help=debug)
        command.add_options(sub.add_argument)
    return whole


def run(commands: Sequence[ModuleType], arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A closed pipe, such as `head` leaves behind, ends the program silently. The status is then the one that
    a shell has for it, as it is after an interrupt, or where a signal has stopped a run.

    Args:
        commands: as in `parser`.
        arguments: the words of the command line; `None` for those of the process.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    program, status, format_ = parser(commands), 0, warnings.formatwarning
    try:
        if arguments and arguments[0].startswith("--") and arguments[0] not in ("--help", "--version"):
            raise ValueError(f"{arguments[0]} stands before the command, after which options follow")
        options = program.parse_args(arguments, argparse.Namespace(arguments=arguments))
        if not hasattr(options, "run"):
            program.print_help(sys.stderr)
            return 2
        keep_freed_memory()  # the process is this program's own
        if not options.debug:
            warnings.formatwarning = lambda message, *_, **__: f"warning: {one_line(message)}\n"
        if getattr(options, "threads", None):
            torch.set_num_threads(options.threads)
        status = options.run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        status = 141
    except KeyboardInterrupt as error:
        note(str(error) or "interrupted")
        status = 128 + getattr(error, "signal", signal.SIGINT)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        foreseen = isinstance(error, ValueError | TypeError | OSError | ImportError | ArithmeticError)
        kind = "" if foreseen and str(error) else f"{type(error).__name__}: "
        note(f"error: {kind}{one_line(error)}{' (--debug shows where)' if kind else ''}")
        status = 2
    warnings.formatwarning = format_
    _drop_output()
    return status
