"""The command line."""

import argparse
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from transformer import __version__
from transformer.commands import check, evaluate, info, serve, train, translate
from transformer.commands.options import Arguments, drop_output, note, one_line, place, program, use_threads
from transformer.speed.kernels import keep_freed_memory
from transformer.validation import optional_import

__all__ = ["COMMANDS", "parser", "main"]


COMMANDS = train, translate, evaluate, serve, check, info  # each has HELP, add_options and run

DESCRIPTION = """\
Train a Transformer that translates, on a corpus of this book or texts of your own, and use it.
The one that is built in translates Portuguese into English; --model takes any other.

  python -m transformer translate "A menina gosta do gato preto."
  python -m transformer train phrases --directory runs/mine
  python -m transformer evaluate --model runs/mine/translator --corpus phrases
  python -m transformer train --source train.de --target train.en

Every command has a --help of its own."""


class Completion(argparse.Action):
    """Print a shell's completion of the command line, and end."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        shtab = optional_import("shtab")
        (commands,) = (action.choices for action in parser._actions if isinstance(action.choices, dict))
        for action in (action for command in commands.values() for action in command._actions):
            if action.dest in ("model", "directory"):
                action.complete = shtab.DIRECTORY
            elif action.type is place:
                action.complete = shtab.FILE
        parser.prog = "transformer-book"
        print(shtab.complete(parser, values))
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """What may appear on the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    name, module = program(), "python -m transformer"
    described = DESCRIPTION.replace(module, name)
    whole = Arguments(prog=name, description=described, formatter_class=layout)
    whole.add_argument("--version", action="version", version=f"transformer-book {__version__}")
    debug = "show the traceback of an error (default: one line that says what is wrong)"
    whole.add_argument("--debug", action="store_true", help=debug)
    script = "print what makes bash, zsh or fish complete transformer-book at the Tab key"
    shells = ("bash", "zsh", "fish")
    whole.add_argument("--print-completion", action=Completion, choices=shells, metavar="SHELL", help=script)
    commands = whole.add_subparsers(title="commands", metavar="command")
    for command in COMMANDS:
        line, _, more = command.HELP.replace(module, name).partition("\n\n")
        described = f"{line[0].upper()}{line[1:]}."
        sub = commands.add_parser(
            command.__name__.rpartition(".")[2],
            help=line,
            description=described,
            epilog=more,
            formatter_class=layout,
        )
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
        sub.set_defaults(run=command.run)
        command.add_options(sub.add_argument)
    return whole


def refusal(error: Exception) -> str:
    """The text for an error: its message and, if the error was not foreseen, its type."""
    foreseen = (ValueError, TypeError, OSError, ImportError, ArithmeticError)
    if isinstance(error, foreseen) and str(error):
        return f"error: {one_line(error)}"
    said = ": ".join(filter(None, (type(error).__name__, one_line(error))))
    return f"error: {said} (--debug shows where)"


class Terminated(KeyboardInterrupt):
    """A request to terminate, which ends the program as an interrupt does.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int) -> None:
        super().__init__("terminated")
        self.signal = number


@contextmanager
def terminable() -> Iterator[None]:
    """Let a request to terminate, or the end of the terminal, end the program as an interrupt does,
    so that it can clean up."""

    def stop(number: int, frame: object) -> None:
        raise Terminated(number)

    handlers = {"SIGINT": signal.default_int_handler, "SIGTERM": stop, "SIGHUP": stop}
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # others may not ask for signals
            for name, handler in handlers.items():
                number = getattr(signal, name, None)  # there is no terminal to be closed on Windows
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                    before = signal.signal(number, handler)
                    stack.callback(signal.signal, number, before or signal.SIG_DFL)
            stack.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
            sys.unraisablehook = partial(raise_again, sys.unraisablehook)
        yield


def raise_again(report: Callable[[Any], object], ignored: Any) -> None:
    """Send an interrupt once more that came in a callback, where Python ignores exceptions."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):  # the value may be missing
        number = getattr(ignored.exc_value, "signal", signal.SIGINT)
        send = signal.raise_signal
        if hasattr(signal, "pthread_kill"):  # not on Windows; it also wakes a thread that sleeps
            send = partial(signal.pthread_kill, threading.get_ident())
        while True:
            try:
                return threading.Timer(0.01, send, [number]).start()  # by then, the callback is over
            except KeyboardInterrupt:  # or not: it came while this was still at work, and would be ignored
                continue
    report(ignored)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A closed pipe, such as `head` leaves behind, ends the program silently. The status is then the
    one that a shell has for it, as it is after an interrupt or a request to terminate. `--debug` shows
    an error's traceback.
    """
    if sys.stderr is None:  # the parent process has closed it
        sys.stderr = open(os.devnull, "w")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if sys.stdout is None:
            raise OSError("standard output is closed")
        known = parser()
        options = known.parse_args(arguments, argparse.Namespace(arguments=arguments))
        if not hasattr(options, "run"):
            known.print_help(sys.stderr)
            return 2
        keep_freed_memory()  # the process is this program's own
        use_threads(options)
        with terminable():
            status: int | None = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        return 141
    except KeyboardInterrupt as error:
        note(str(error) or "interrupted")
        return 128 + getattr(error, "signal", signal.SIGINT)
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        note(refusal(error))
        drop_output()
        return 2
    drop_output()
    return status or 0
