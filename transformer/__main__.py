"""The program `transformer-book`, also as `python -m transformer`."""

import argparse
import os
import signal
import sys
import traceback
from typing import Any
from transformer import __version__
from transformer.commands.check import CHECK_HELP, check, check_options
from transformer.commands.evaluate import EVALUATE_HELP, evaluate, evaluate_options
from transformer.commands.info import info, info_options
from transformer.commands.options import Arguments, place, program, use_threads
from transformer.commands.recipes import RECIPES
from transformer.commands.serve import SERVE_HELP, serve, serve_options
from transformer.commands.terminal import drop_output, note, refusal, terminable
from transformer.commands.train import train
from transformer.commands.train_options import TRAIN_HELP, summary, train_options
from transformer.commands.translate import TRANSLATE_HELP, translate, translate_options
from transformer.speed.kernels import keep_freed_memory
from transformer.validation import optional_import


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
    whole.add_argument(
        "--print-completion", action=Completion, choices=shells, metavar="SHELL", help=script
    )
    commands = whole.add_subparsers(title="commands", metavar="command")
    recipes = "\n".join(f"  {key:13}{summary(recipe)}" for key, recipe in RECIPES.items())
    training = TRAIN_HELP.format(recipes=recipes)
    for run, line, more, fill in (
        (train, "train a model, or go on with a run that was stopped", training, train_options),
        (translate, "translate sentences, given here or line by line", TRANSLATE_HELP, translate_options),
        (evaluate, "score a translator with sacreBLEU", EVALUATE_HELP, evaluate_options),
        (serve, "translate over HTTP", SERVE_HELP, serve_options),
        (check, "look for faults of a model of yours", CHECK_HELP, check_options),
        (info, "show what a translator is made of, or a recipe's settings", "", info_options),
    ):
        more, described = more.replace(module, name), f"{line[0].upper()}{line[1:]}."
        sub = commands.add_parser(
            run.__name__, help=line, description=described, epilog=more, formatter_class=layout
        )
        sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=debug)
        sub.set_defaults(run=run)
        fill(sub.add_argument)
    return whole


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


if __name__ == "__main__":
    if "ipykernel" not in sys.modules:  # a notebook has the same name, and no command line
        sys.exit(main())
