"""`check`: a model of the user's under `check_model`."""

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any
from transformer.commands.main import Add, within
from transformer.study.model_checks import check_model
from transformer.study.training_checks import check_training

__all__ = ["run", "built", "add_options", "HELP"]


def run(options: argparse.Namespace) -> int:
    """Examine the model, or the training, that a function builds; the status is 1 if a check fails."""
    names = "src_vocab_size", "tgt_vocab_size", "pad_id", "bos_id", "positions"
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    if options.training and given:
        raise ValueError(f"--training takes no {', '.join(given)}: the function returns all that is needed")
    try:
        made = built(options.factory)
        if not options.training:
            report = check_model(made, **given)
        elif isinstance(made, Mapping):
            report = check_training(**made)
        elif isinstance(made, tuple):
            report = check_training(*made)
        else:
            form = "a tuple or a dictionary of the arguments of check_training"
            raise ValueError(f"{options.factory} must return {form}, not {type(made).__name__}")
    except SystemExit as error:  # not a status of this program
        raise ValueError(f"{options.factory} called exit({error.code!r}), and left no model") from error
    print(report)
    return int(not report.passed)


def built(name: str) -> Any:
    """What a user's own function returns.

    Args:
        name: as in `module:function`; a module in the current folder is found as well.

    Raises:
        ValueError: there is no such function, or the name has another form.
    """
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(f"a factory is named as module:function, not {name!r}")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    factory = getattr(importlib.import_module(module), function, None)
    if not callable(factory):
        raise ValueError(f"module {module} has no function {function}")
    return factory()


def add_options(add: Add) -> None:
    """The options of `check`."""
    add("factory", metavar="MODULE:FUNCTION", help="a function without arguments that builds the model")
    whole = "examine a training: the function returns what check_training takes (default: none, the model)"
    add("--training", action="store_true", help=whole)
    unsaid = "(default: as the model's configuration says)"
    size = within(int, 1, 2**22)
    add("--src-vocab-size", type=size, metavar="N", help=f"number of source tokens {unsaid}")
    add("--tgt-vocab-size", type=size, metavar="N", help=f"number of target tokens {unsaid}")
    add("--pad-id", type=int, metavar="ID", help=f"the padding token {unsaid}")
    add("--bos-id", type=int, metavar="ID", help=f"the token that a target begins with {unsaid}")
    kinds = "what the model is meant to have; rotary positions are relative (default: not said)"
    add("--positions", choices=("absolute", "relative", "none"), help=kinds)


HELP = """look for faults of a model of yours

  python -m transformer check mine:build

calls the function build of mine.py, in the current folder, and examines the model that it returns.
A model that is not called as model(src, tgt) needs an adapter around it, from transformer.study.model_checks:
seq2seq and decoder_only for models of Hugging Face, Adapted for any other.
With --training, build returns the arguments of check_training, as a dictionary or a tuple, such as
{"model": model, "batch": (src, tgt), "loss": loss, "search": search}; then all of it is examined together.
The status is 0 if no check fails, 1 if one does, and 2 if there is nothing to check."""
