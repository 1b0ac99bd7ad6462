"""`check`: a model of the user's under `check_model`, or a training of the user's under `check_training`."""

import argparse
import importlib
import sys
from transformer.commands.main import Add
from transformer.study.model_checks import check_model
from transformer.study.training_checks import check_training

__all__ = ["run", "add_options", "HELP"]


def run(options: argparse.Namespace) -> int:
    """Examine the model, or the training, that a function builds; the status is 1 if a check fails."""
    module, _, name = options.factory.partition(":")
    if not (module and name):
        raise ValueError(f"a factory is named as module:function, not {options.factory!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder is found as well
    try:
        factory = getattr(importlib.import_module(module), name, None)
        if not callable(factory):
            raise ValueError(f"module {module} has no function {name}")
        try:
            made = factory()
        except Exception as error:
            said = f"{options.factory} raised {type(error).__name__}: {error} (--debug shows where)"
            raise ValueError(said) from error
    except SystemExit as error:  # not a status of this program
        raise ValueError(f"{options.factory} called exit({error.code!r}), and left no model") from error
    if not isinstance(made, dict):
        report = check_model(made)
    else:
        report = check_training(**made) if "batch" in made else check_model(**made)
    print(report)
    return int(not report.passed)


def add_options(add: Add) -> None:
    """The options of `check`."""
    add("factory", metavar="MODULE:FUNCTION", help="a function without arguments that builds the model")


HELP = """look for faults of a model of yours

  python -m transformer check mine:build

calls the function build of mine.py, in the current folder, and examines the model that it returns; or,
if that is a dictionary, calls check_model with it, such as {"model": model, "src_vocab_size": 8000}. One
that holds a batch as well is for check_training, such as {"model": model, "batch": (src, tgt),
"loss": loss, "search": search}: then all of it is examined together.
A model that is not called as model(src, tgt) needs an adapter around it, from transformer.study.model_checks:
seq2seq and decoder_only for models of Hugging Face, Adapted for any other.
The status is 0 if no check fails, 1 if one does, and 2 if there is nothing to check."""
