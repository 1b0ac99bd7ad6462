"""`info`: what a translator is and how it was trained."""

import argparse
from dataclasses import asdict
from transformer.commands.main import Add, model_option
from transformer.commands.recipes import RECIPES, settings
from transformer.language.folder import pretrained_folder
from transformer.language.translator import Translator

__all__ = ["HELP", "run", "add_options"]


def run(options: argparse.Namespace) -> None:
    """Show what a translator is made of, or the settings of a recipe."""
    if options.recipe is not None and options.model is not None:
        raise ValueError(f"info shows --recipe {options.recipe} or --model {options.model}, not both")
    if options.recipe is not None:
        fields = settings(RECIPES[options.recipe])
    else:
        model = Translator.load(pretrained_folder(options.model or "phrases"), "cpu").model
        fields = {"parameters": sum(p.numel() for p in model.parameters())} | asdict(model.config)
    given = {name: value for name, value in fields.items() if value != ""}  # "" is no file of your own
    print(*(f"{name}: {value}" for name, value in given.items()), sep="\n")


HELP = "show what a translator is made of, or a recipe's settings"


def add_options(add: Add) -> None:
    """The options of `info`."""
    add("--recipe", choices=list(RECIPES), help="show this recipe (default: a translator)")
    model_option(add, default=None)  # which tells that it was given
