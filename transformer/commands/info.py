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
        fields = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
        fields |= asdict(model.config)
    for name, value in fields.items():
        if value != "":  # no file of your own
            print(f"{name}: {value}")


HELP = "show what a translator is made of, or a recipe's settings"


def add_options(add: Add) -> None:
    """The options of `info`."""
    add("--recipe", choices=list(RECIPES), help="show this recipe (default: a translator)")
    model_option(add, default=None)  # which tells that it was given
