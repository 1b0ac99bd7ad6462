"""transformer.__main__, from book/11-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""


# %% book/11-translation.ipynb · From the command line · [command-line-code]
import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from transformer.text import Pair, load_corpus, read_pairs
from transformer.toy import ToyRecipe, toy_record, train_toy
from transformer.training import (
    draw_curves,
    process_group,
    rank_and_world_size,
    read_record,
    save_weights,
    write_record,
)
from transformer.translation import (
    RECIPES,
    Recipe,
    Translator,
    corpus_scores,
    examine_translator,
    tokenize,
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
        try:
            values[name] = text == "true" if kinds[name] is bool else kinds[name](text)
        except ValueError:
            kind = "an int" if kinds[name] is int else "a float"
            raise ValueError(f"{name} must be {kind}, not {text!r}") from None
    return replace(recipe, **values)


# %% book/11-translation.ipynb · From the command line · [config-code]
def read_recipe(path: Path) -> ToyRecipe | Recipe:
    """The recipe in a run's `config.json`, or in a record.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: it holds no record.
        ValueError: it holds no recipe; the message names the file and the setting.
    """
    values = read_record(path)
    values = values.get("recipe", values)
    kind = Recipe if isinstance(values, dict) and "corpus" in values else ToyRecipe
    kinds = {field.name: field.type for field in fields(kind)}
    for name, value in values.items() if isinstance(values, dict) else [("recipe", values)]:
        if name not in kinds:
            raise ValueError(f"{path} holds no recipe: {name!r} is no setting of one")
        if type(value) is not kinds[name] and (type(value), kinds[name]) != (int, float):
            wanted = kinds[name].__name__
            raise ValueError(
                f"{path} holds no recipe: {name} is {value!r:.60}, not of type {wanted}"
            )
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{path} holds no recipe: {error}") from None


def claim_folder(folder: Path, recipe: ToyRecipe | Recipe) -> None:
    """Note a run's recipe in its folder, unless the folder holds a run of another one.

    Raises:
        ValueError: it does; the message names the first setting that differs.
    """
    config = folder / "config.json"
    checkpoints = sorted(folder.glob("checkpoint-*.pt"))
    if checkpoints and config.exists():
        stored, asked = asdict(read_recipe(config)), asdict(recipe)
        for name in stored | asked:
            if (there := stored.get(name)) != (here := asked.get(name)):
                raise ValueError(
                    f"{folder} holds a run with {name} = {there}, and {name} = {here} is asked for: "
                    f"name another --directory, or go on with --config {config}"
                )
    if checkpoints:
        step = int(checkpoints[-1].stem.rpartition("-")[2])
        print(f"going on from step {step:,} of {recipe.steps:,}")
    folder.mkdir(parents=True, exist_ok=True)
    write_record(config, asdict(recipe))


# %% book/11-translation.ipynb · From the command line · [commands-code]
def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    if (options.recipe is None) == (options.config is None):
        raise ValueError("train needs either the name of a recipe or --config, and not both")
    if options.recipe is None and options.directory is None:
        raise ValueError("--config needs --directory as well: a folder for the run")
    recipe = ALL_RECIPES[options.recipe] if options.recipe else read_recipe(options.config)
    recipe = changed(recipe, options.set)
    folder = options.directory or Path("runs") / options.recipe
    with process_group(options.device) as device:
        first = rank_and_world_size()[0] == 0
        if first:
            claim_folder(folder, recipe)
        if isinstance(recipe, ToyRecipe):
            if options.max_minutes is not None:
                raise ValueError("--max-minutes is for translators; the toy takes a few minutes")
            trainer = train_toy(recipe, folder, device, progress=True)
        else:
            translator, trainer = train_translator(
                recipe, folder, device, progress=True, max_minutes=options.max_minutes
            )
    if not first:  # of several processes one is enough from here on
        return
    with suppress(ImportError):  # without matplotlib the run is as good
        draw_curves(trainer.history, folder / "curves.png")
    if isinstance(recipe, ToyRecipe):
        record = toy_record(trainer, recipe)
        save_weights(trainer.model, folder / "model.safetensors", torch.float16)
        print(f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}")
    else:
        translator.save(folder / "translator")
        if not trainer.finished:
            print(f"time is over at step {trainer.step:,}; the same command goes on from there")
            print(f"what can be used already: {folder / 'translator'}")
            return
        record = translation_record(translator, trainer, recipe)
        show_scores(record["scores"]["test"]["tuned"])
    write_record(folder / "record.json", record)
    print(f"the run's folder: {folder}")


def translate(options: argparse.Namespace) -> None:
    """Translate the sentences given or, where there are none, the lines of standard input."""
    translator = Translator.load(options.model, options.device)
    if options.sentence:
        given = decoded(map(os.fsencode, options.sentence), "sentence")
    else:
        if sys.stdin.isatty():
            print("One sentence a line; an end of file (Ctrl-D) ends it.", file=sys.stderr)
        given = decoded(sys.stdin.buffer, "standard input, line")
    for place, sentence in given:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (answer,) = translator.translate([sentence], options.beam, options.length_penalty)
        for warning in caught:
            print(f"warning: {place}: {warning.message}", file=sys.stderr)
        print(answer, flush=True)


def evaluate(options: argparse.Namespace) -> None:
    """Score a translator on a split of a corpus, or on two files; or examine it for a record."""
    translator = Translator.load(options.model, options.device)
    if options.record is not None:
        record, recipe = read_record(options.record), read_recipe(options.record)
        if isinstance(recipe, ToyRecipe):
            raise ValueError(f"{options.record} is the record of a toy, not of a translator")
        write_record(options.record, record | examine_translator(translator, recipe.corpus))
        return
    pairs, seen = evaluation_pairs(options)
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    hypotheses = translator.translate_tokenized(sources, options.beam, options.length_penalty)
    print(f"{len(pairs):,} pairs, beam {options.beam}, length penalty {options.length_penalty}")
    show_scores(corpus_scores(hypotheses, targets, options.bootstrap))
    rows = [row for row, pair in enumerate(pairs) if pair not in seen]
    if 0 < len(rows) < len(pairs):
        print(
            f"{len(rows):,} pairs, without {len(pairs) - len(rows):,} that training showed as well"
        )
        ours, theirs = ([side[row] for row in rows] for side in (hypotheses, targets))
        show_scores(corpus_scores(ours, theirs, options.bootstrap))


def info(options: argparse.Namespace) -> None:
    """Show what a translator is made of, or the settings of a recipe."""
    if options.recipe is not None:
        shown = ALL_RECIPES[options.recipe]
    else:
        model = Translator.load(options.model).model
        print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
        shown = model.config
    for name, value in asdict(shown).items():
        print(f"{name}: {value}")


def evaluation_pairs(options: argparse.Namespace) -> tuple[list[Pair], set[Pair]]:
    """The pairs that `evaluate` is asked for, tokenised, and those that training showed.

    Raises:
        ValueError: one of two files is missing, or a corpus is asked for beside them.
        CorpusError: a file is not UTF-8, or the two have not equally many lines.
    """
    files = options.source, options.reference
    if files == (None, None):
        corpus, split = options.corpus or "phrases", options.split or "test"
        seen = load_corpus(corpus, "train") if split != "train" else []
        return load_corpus(corpus, split), set(seen)
    if None in files:
        raise ValueError("--source and --reference belong together: two files, a sentence a line")
    if (options.corpus, options.split) != (None, None):
        raise ValueError(
            "--corpus and --split are for a corpus, --source and --reference for files"
        )
    return [Pair(*map(tokenize, pair)) for pair in read_pairs(*files)], set()


def decoded(lines: Iterable[bytes], place: str) -> Iterator[tuple[str, str]]:
    """Each line's place and its text.

    Args:
        lines: in UTF-8.
        place: what a line is called, before its number.

    Raises:
        ValueError: a line is not UTF-8; the message names its place.
    """
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8").rstrip("\r\n").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            wrong = f"byte {line[error.start]:#04x} at position {error.start + 1}"
            raise ValueError(f"{place} {number} is not UTF-8: {wrong}") from None
        yield f"{place} {number}", text


def show_scores(scores: dict[str, dict[str, Any]]) -> None:
    """Print scores as sacreBLEU does, one to a line."""
    for measured in scores.values():
        print(measured["line"])


# %% book/11-translation.ipynb · From the command line · [parser-code]
DESCRIPTION = """\
Train a Transformer that translates Portuguese into English, and use it.

  python -m transformer translate "a menina gosta do gato preto ."
  python -m transformer train phrases --directory runs/mine
  python -m transformer evaluate --model runs/mine/translator --corpus phrases

Every command has a --help of its own."""

RECIPE_HELP = """\
recipes:
{recipes}

All settings of one: python -m transformer info --recipe NAME

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt (where a stopped run goes on), best.pt, and at the end record.json and translator/,
for translate --model.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME"""

TRANSLATE_HELP = """\
Sentences are written as one types them, in UTF-8; translations are in lower case, as the talks and
phrases are that the models learn from. An empty line gives an empty line. A line of more tokens than
the model reads (512 for those of the recipes) is cut, with a warning on standard error; a
translation has at most 200 tokens.

  python -m transformer translate < portuguese.txt > english.txt"""

EVALUATE_HELP = """\
Three lines as sacreBLEU prints them: BLEU on the tokens as the corpora have them (tok:none), BLEU
and chrF2 on text as one types it. Of a corpus, pairs that its training split holds as well are
then left out, and the rest is scored again. Files of your own are brought to lower case first.

  python -m transformer evaluate --model runs/ted/translator --corpus ted --split test --bootstrap
  python -m transformer evaluate --source mine.pt --reference mine.en
  python -m transformer evaluate --model runs/ted/translator --record runs/ted/record.json"""


def parser() -> argparse.ArgumentParser:
    """What may stand on the command line."""
    layout = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        prog="python -m transformer", description=DESCRIPTION, formatter_class=layout
    )
    commands = whole.add_subparsers(title="commands", metavar="command")

    def command(run, summary: str, more: str = "") -> argparse.ArgumentParser:
        described = f"{summary[0].upper()}{summary[1:]}."
        sub = commands.add_parser(
            run.__name__, help=summary, description=described, epilog=more, formatter_class=layout
        )
        sub.set_defaults(run=run)
        return sub

    recipes = "\n".join(f"  {name:12}{summary(recipe)}" for name, recipe in ALL_RECIPES.items())
    training = command(
        train,
        "train a model, or go on with a run that was stopped",
        RECIPE_HELP.format(recipes=recipes),
    )
    training.add_argument(
        "recipe", nargs="?", choices=ALL_RECIPES, metavar="recipe", help="one of the recipes below"
    )
    training.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="take the recipe from a run's config.json or record.json instead",
    )
    training.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the recipe, such as steps=500; may be repeated",
    )
    training.add_argument(
        "--directory", type=Path, help="the run's folder (default: runs/ and the recipe's name)"
    )
    training.add_argument(
        "--max-minutes",
        type=float,
        metavar="M",
        help="stop training after M minutes; the same command goes on later (default: no limit)",
    )
    translating = command(translate, "translate Portuguese sentences into English", TRANSLATE_HELP)
    translating.add_argument(
        "sentence", nargs="*", help="a sentence, in quotes (default: the lines of standard input)"
    )
    evaluating = command(evaluate, "score a translator with sacreBLEU", EVALUATE_HELP)
    evaluating.add_argument("--corpus", help="phrases or ted (default: phrases)")
    evaluating.add_argument("--split", help="train, dev or test (default: test)")
    evaluating.add_argument(
        "--source", type=Path, metavar="FILE", help="Portuguese of your own, a sentence a line"
    )
    evaluating.add_argument(
        "--reference", type=Path, metavar="FILE", help="its English, line by line"
    )
    evaluating.add_argument(
        "--bootstrap",
        type=int,
        nargs="?",
        const=1000,
        default=0,
        metavar="N",
        help="give a 95 %% interval from N corpora drawn from this one (default: none; without "
        "a number: 1000)",
    )
    evaluating.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="instead of printing scores, examine the translator as train does at the end of a run, "
        "and put what is found into the run's record.json",
    )
    informing = command(info, "show what a translator is made of, or a recipe's settings")
    informing.add_argument(
        "--recipe", choices=ALL_RECIPES, help="show this recipe (default: a translator)"
    )
    for sub in (translating, evaluating, informing):
        sub.add_argument(
            "--model",
            default="phrases",
            metavar="FOLDER",
            help="a translator's folder (default: the small one that is built in, for phrases)",
        )
    for sub in (translating, evaluating):
        sub.add_argument(
            "--beam",
            type=int,
            default=4,
            help="width of the beam: hypotheses kept; 1 for greedy search (default: 4)",
        )
        sub.add_argument(
            "--length-penalty",
            type=float,
            default=0.6,
            metavar="ALPHA",
            help="how much a long translation is favoured; 0: not at all (default: 0.6)",
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for sub in (training, translating, evaluating):
        sub.add_argument("--device", default=device, help=f"where to compute (default: {device})")
    return whole


def summary(recipe: ToyRecipe | Recipe) -> str:
    """A recipe in a line."""
    if isinstance(recipe, ToyRecipe):
        return f"sequences of {recipe.length} digits, reversed; {recipe.steps:,} updates"
    size = f"{recipe.n_layers}+{recipe.n_layers} layers of width {recipe.d_model}"
    return f"the corpus {recipe.corpus}; {size}, {recipe.steps:,} updates"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; bad input ends in one line on standard error and status 2.

    A reader who has seen enough, as `head` has, ends it silently, with the status that the shell
    gives to a program that a closed pipe stops; whoever interrupts it gets the shell's status for
    that.
    """
    known = parser()
    options = known.parse_args(arguments)
    if not hasattr(options, "run"):
        known.print_help(sys.stderr)
        return 2
    try:
        options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere
        return 141
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, ImportError, ArithmeticError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    if "ipykernel" not in sys.modules:  # a notebook has the same name, and no command line
        sys.exit(main())
