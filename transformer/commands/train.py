"""transformer.commands.train, from book/B-commands.ipynb, "Workshop B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["train", "asked_for", "leave_results", "summary", "train_options", "TRAIN_HELP"]


# %% book/B-commands.ipynb · train: a run has a folder · [command-line-code-train]
import argparse
from contextlib import nullcontext, suppress
from pathlib import Path

from transformer.commands.claim import check_room, claimed
from transformer.commands.options import Add, device_option, place, use_threads, within
from transformer.commands.recipes import RECIPES, Recipe, changed, parsed, read_recipe
from transformer.commands.terminal import note, one_line, tell
from transformer.commands.train_texts import announce, own_texts, recipe_of_texts, texts_options
from transformer.commands.training import Trained, record_of, train_recipe
from transformer.runs.distributed import process_group, rank_and_world_size
from transformer.runs.folder import RunFolder, write_record
from transformer.runs.journal import draw_curves
from transformer.validation import optional_import


# %% book/B-commands.ipynb · train: a run has a folder · [train-code]
def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe, folder = asked_for(options)
    use_threads(options, recipe.model.d_model)
    for library in ("tqdm", "safetensors", *recipe.data.needs):
        optional_import(library)  # better to find out now than hours later that it is missing
    with process_group(options.device) as device:
        rank, n_processes = rank_and_world_size()
        check_room(recipe, device, n_processes if options.shard else 1)
        first = rank == 0
        if first and recipe.data.files:
            announce(recipe)
        with claimed(folder, recipe) if first else nullcontext(RunFolder(folder)) as place:
            run = train_recipe(recipe, place, device, True, options.max_minutes, shard=options.shard)
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, run)


def asked_for(options: argparse.Namespace) -> tuple[Recipe, Path]:
    """The recipe that `train` was given, and the folder of its run.

    Raises:
        ValueError: not exactly one of a recipe, a file and texts is named; no folder for a file's
            recipe; or as in `own_texts`.
        CorpusError: the texts are no corpus.
    """
    own = own_texts(options)
    if [options.recipe is None, options.config is None, not own].count(False) != 1:
        raise ValueError(
            "train needs one of three: the name of a recipe, --config, or texts of your own "
            "(--source and --target, or --pairs)"
        )
    if options.config and options.directory is None:
        raise ValueError("--config needs --directory as well: a folder for the run")
    folder = options.directory or Path("runs") / (options.recipe or "own")
    if own:
        recipe = recipe_of_texts(options, own, folder)
    else:
        recipe = RECIPES[options.recipe] if options.recipe else read_recipe(options.config)
    return changed(recipe, **parsed(recipe, options.set)), folder


# %% book/B-commands.ipynb · train: a run has a folder · [results-code]
def leave_results(folder: Path, recipe: Recipe, run: Trained) -> None:
    """Write the curves into the run's folder and, once the run is over, its record."""
    trainer, usable = run.trainer, folder / run.data.left
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        tell(f"time is over at step {trainer.step:,}; the same command goes on from there")
        tell(f"what can be used already: {one_line(usable)}")
        return
    note("training is over; scoring it can take some minutes more …")
    record = record_of(recipe, run)
    run.data.keep(run.learned, folder, record)
    write_record(folder / "record.json", record)
    tell(run.data.said(record))
    tell(f"the run's folder: {one_line(folder)}")


# %% book/B-commands.ipynb · train: a run has a folder · [kinds-code-train]
def summary(recipe: Recipe) -> str:
    """A recipe in a line."""
    model, steps = recipe.model, recipe.training.steps
    encoder, decoder = model.depths
    size = f"{encoder}+{decoder} layers of width {model.d_model}"
    return f"{recipe.data}; {size}, {steps:,} updates"


# %% book/B-commands.ipynb · train: a run has a folder · [options-code-train]
def train_options(add: Add) -> None:
    """The options of `train`."""
    add("recipe", nargs="?", choices=list(RECIPES), metavar="recipe", help="one of the recipes below")
    instead = "take the recipe from a run's config.json or record.json instead"
    add("--config", type=place, metavar="FILE", help=instead)
    change = "change a setting of the recipe, such as steps=500; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    texts_options(add)
    folder = "the run's folder (default: runs/ and the recipe's name, or runs/own)"
    add("--directory", type=place, help=folder)
    stop = "stop training after M minutes; the same command goes on later (default: no limit)"
    add("--max-minutes", type=within(float, 0.0, float("inf")), metavar="M", help=stop)
    device_option(add)
    share = "share weights and moments out among the processes of torchrun (default: none, copies)"
    add("--shard", action="store_true", help=share)


# %% book/B-commands.ipynb · train: a run has a folder · [help-code-train]
TRAIN_HELP = """\
recipes:
{recipes}

All settings of one: python -m transformer info --recipe NAME
With precision = auto, a CPU or GPU computes in bfloat16 or float16 where it has units for that,
and in float32 otherwise.

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt (where a stopped run goes on), best.pt, and the model: translator/, for
translate --model, or model.safetensors of the toy. At the end of the run, record.json is added.
A run that was stopped, by Ctrl-C or --max-minutes, goes on when the same command is given again;
steps may be raised then, and nothing else may change.

Texts of your own take the place of a recipe: two files in UTF-8, of which line n of one translates line
n of the other, or one file with a tab between sentence and translation.

  python -m transformer train --source train.de --target train.en --languages de en
  python -m transformer train --pairs dates.tsv --directory runs/dates --set steps=2000

Vocabulary, model, batches and steps are chosen by the size of the corpus, and said. Without dev files
a twentieth of the pairs, at most 1,000, is held out and scored at the end. What is done to the texts is
kept with the translator, which treats whatever it translates in the same way.

A model up to 128 wide is trained by one thread, since its steps are too short to be shared, and threads
that wait for one another are many times slower where another program is busy. --threads takes more.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME
Each holds the whole model, or with --shard a part of it, which saves memory and costs traffic. Either run
goes on from the other's checkpoints, with any N."""
