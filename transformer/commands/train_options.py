"""transformer.commands.train_options, from book/B-commands.ipynb, "Workshop B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["summary", "train_options", "TRAIN_HELP"]


# %% book/B-commands.ipynb · train: a run has a folder · [train-options-imports]
from transformer.commands.options import Add, device_option, place, within
from transformer.commands.recipes import RECIPES, Recipe
from transformer.commands.train_texts import texts_options


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
A run that was stopped, by Ctrl-C or --max-minutes, leaves the model that it has by then, and goes on
when the same command is given again; steps may be raised then, and texts may have been moved, but
nothing else may change. Fewer steps than a recipe's have a warm-up that is shorter in proportion,
unless --set warmup_steps says what it is.

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
