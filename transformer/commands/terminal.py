"""What a command writes to a terminal, and how it ends."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

__all__ = ["one_line", "note", "tell", "refusal", "drop_output", "Terminated", "terminable", "raise_again"]


def one_line(message: object) -> str:
    """A message on one line, with escapes for what is not printable, and without C++ frames."""
    text = str(message).partition("\nException raised from")[0]
    text = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode()
        for sign in text
    )


def note(message: object) -> None:
    """Say something on standard error, on one line, whether or not somebody still reads it."""
    try:
        print(one_line(message), file=sys.stderr, flush=True)
    except OSError:
        drop_output()


def tell(message: str) -> None:
    """Say something on standard output, whether or not somebody still reads it."""
    try:
        print(message, flush=True)
    except OSError:
        drop_output()


def refusal(error: Exception) -> str:
    """The text for an error: its message and, if the error was not foreseen, its type."""
    foreseen = (ValueError, TypeError, OSError, ImportError, ArithmeticError)
    if isinstance(error, foreseen) and str(error):
        return f"error: {one_line(error)}"
    said = ": ".join(filter(None, (type(error).__name__, one_line(error))))
    return f"error: {said} (--debug shows where)"


def drop_output() -> None:
    """Discard output that was printed and cannot be written, which Python would try again at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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
