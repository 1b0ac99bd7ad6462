"""transformer.__main__, from book/11-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""


# %% book/11-translation.ipynb · From the command line · [command-line-code]
import argparse
import os
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path

import torch

from transformer.text import load_corpus
from transformer.toy import ToyRecipe, toy_record, train_toy
from transformer.training import save_weights, write_record
from transformer.translation import (
    RECIPES,
    Recipe,
    Translator,
    evaluate_translator,
    train_translator,
    translation_record,
)

ALL_RECIPES: dict[str, ToyRecipe | Recipe] = {"toy": ToyRecipe(), **RECIPES}


def changed(recipe: ToyRecipe | Recipe, changes: list[str]) -> ToyRecipe | Recipe:
    """A recipe with some fields set anew, each change written as `name=value`.

    Raises:
        ValueError: a change is not of that form, its name is no field, or its value not of the
            field's type.
    """
    kinds = {field.name: field.type for field in fields(recipe)}
    values = {}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in kinds:
            raise ValueError(f"{name!r} is no setting of this recipe; there are {', '.join(kinds)}")
        if kinds[name] is bool and text not in ("true", "false"):
            raise ValueError(f"{name} must be true or false, not {text!r}")
        values[name] = text == "true" if kinds[name] is bool else kinds[name](text)
    return replace(recipe, **values)


def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe = changed(ALL_RECIPES[options.recipe], options.set)
    folder = options.directory or Path("runs") / options.recipe
    if isinstance(recipe, ToyRecipe):
        trainer = train_toy(recipe, folder, options.device, progress=True)
        record = toy_record(trainer, recipe)
        save_weights(trainer.model, folder / "model.safetensors", torch.float16)
        print(f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}")
    else:
        translator, trainer = train_translator(recipe, folder, options.device, progress=True)
        translator.save(folder / "translator")
        record = translation_record(translator, trainer, recipe)
        show_scores(record["scores"]["test"]["beam 4"])
    write_record(folder / "record.json", record)
    print(f"the run's folder: {folder}")


def translate(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator = Translator.load(options.model, options.device)
    for sentence in options.sentence or (line.rstrip("\n") for line in sys.stdin):
        print(*translator.translate([sentence], options.beam), flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus."""
    translator = Translator.load(options.model, options.device)
    show_scores(
        evaluate_translator(translator, load_corpus(options.corpus, options.split), options.beam)
    )


def info(options: argparse.Namespace) -> None:
    """Show what a translator is made of."""
    model = Translator.load(options.model).model
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    for name, value in asdict(model.config).items():
        print(f"{name}: {value}")


def show_scores(scores: dict[str, dict]) -> None:
    """Print scores with their signatures, one to a line."""
    for name, measured in scores.items():
        print(f"{name} {measured['score']:.2f} ({measured['signature']})")


def parser() -> argparse.ArgumentParser:
    """What may stand on the command line."""
    whole = argparse.ArgumentParser(
        prog="python -m transformer", description="Train a Transformer and use it."
    )
    commands = whole.add_subparsers(required=True, metavar="command")

    def command(run, summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(run.__name__, help=summary, description=summary)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        sub.add_argument("--device", default=device, help=f"where to compute (default: {device})")
        sub.set_defaults(run=run)
        return sub

    training = command(train, "train a model; stopped and started again, it goes on where it was")
    training.add_argument("recipe", choices=ALL_RECIPES, help="the task, with its settings")
    training.add_argument("--directory", type=Path, help="the run's folder (default: runs/RECIPE)")
    training.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="change a setting"
    )
    uses = {
        "translating": command(translate, "translate Portuguese sentences into English"),
        "evaluating": command(evaluate, "score a translator with sacreBLEU"),
        "informing": command(info, "show what a translator is made of"),
    }
    for use in uses.values():
        use.add_argument(
            "--model",
            default="phrases",
            help="a translator's folder (default: the one that is built in)",
        )
    for use in (uses["translating"], uses["evaluating"]):
        use.add_argument(
            "--beam",
            type=int,
            default=4,
            help="width of the beam; 1 for greedy search (default: 4)",
        )
    uses["translating"].add_argument(
        "sentence", nargs="*", help="sentences; none: the lines of standard input"
    )
    uses["evaluating"].add_argument(
        "--corpus", default="phrases", help="phrases or ted (default: phrases)"
    )
    uses["evaluating"].add_argument(
        "--split", default="test", help="train, dev or test (default: test)"
    )
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A reader who has seen enough, as `head` has, ends it silently, with the status that the shell
    gives to a program that a closed pipe stops.
    """
    options = parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        return 141
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if "ipykernel" not in sys.modules:  # a notebook has the same name, and no command line
        sys.exit(main())
