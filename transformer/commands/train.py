"""transformer.commands.train, from book/B-commands.ipynb, "Workshop B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "parsed",
    "check_folder",
    "claimed",
    "memory_of",
    "check_room",
    "train",
    "asked_for",
    "own_texts",
    "recipe_of_texts",
    "announce",
    "leave_results",
    "TRAIN_HELP",
    "summary",
    "train_options",
    "texts_options",
]


# %% book/B-commands.ipynb · From the command line · [command-line-code-train]
import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from transformer.commands.options import Add, device_option, place, within
from transformer.commands.recipes import (
    RECIPES,
    OwnTexts,
    Recipe,
    Reversals,
    changed,
    own_recipe,
    read_recipe,
    settings,
    toy_record,
    train_toy,
    train_translator,
    translation_record,
)
from transformer.commands.terminal import note, one_line, tell
from transformer.language.translator import Translator
from transformer.language.wording import AS_IT_IS, PREPARATIONS, Preparation
from transformer.runs.checkpoints import save_weights
from transformer.runs.distributed import process_group, rank_and_world_size
from transformer.runs.folder import RunFolder, write_record
from transformer.runs.journal import draw_curves
from transformer.runs.trainer import Trainer
from transformer.validation import optional_import


def parsed(recipe: Recipe, changes: Iterable[str]) -> dict[str, Any]:
    """Settings written as `name=value`, each as a value of the recipe's own type.

    Raises:
        ValueError: a value is not of that type. Unknown names are left to `changed`.
    """
    known, values = settings(recipe), {}
    for name, _, text in (change.partition("=") for change in changes):
        kind = type(known.get(name, ""))
        try:
            values[name] = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (ValueError, KeyError):
            wanted = {bool: "true or false", int: "an int", float: "a float"}[kind]
            raise ValueError(f"{name} must be {wanted}, not {text!r}") from None
    return values


# %% book/B-commands.ipynb · A run has a folder · [folder-code]
# What a run, or something else, has left that must not be written over.
_WORK = ("best.pt", "model.safetensors", "vocabulary.json", "record.json", "translator", "curves.png")


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds another run, or something else that training would write over.

    More steps than before may be asked for; any other setting must be as it was.

    Raises:
        ValueError: it holds a run of another recipe, and the message names the first setting that
            differs; checkpoints without a recipe, or results without checkpoints; or a
            `config.json` that is no recipe.
    """
    config, elsewhere = folder / "config.json", "name another --directory"
    checkpoints = RunFolder(folder).checkpoints()
    for name in () if checkpoints else _WORK:
        if (folder / name).exists():
            raise ValueError(
                f"{folder} holds {name}, but no checkpoint of a run to go on from: "
                f"{elsewhere}, or move it away"
            )
    if not config.exists():
        if checkpoints:
            raise ValueError(
                f"{folder} holds checkpoints, but no config.json that tells their recipe: "
                f"put it back, or {elsewhere}"
            )
        return
    try:
        before, asked = settings(read_recipe(config)), settings(recipe)
    except ValueError as error:
        raise ValueError(f"{error}: {elsewhere}, or move it away") from None
    raised = before["steps"] < asked["steps"]
    for name in before | asked:
        there, here = before.get(name), asked.get(name)
        if there != here and not (name == "steps" and raised):
            raise ValueError(
                f"{folder} holds a run with {name} = {there}, and {name} = {here} is asked "
                f"for: {elsewhere}, or go on with --config {config}"
            )
    if checkpoints:
        step = int(checkpoints[-1].stem.rpartition("-")[2])
        more = f", raised from {before['steps']:,}" if raised else ""
        tell(f"going on from step {step:,} of {asked['steps']:,}{more}")


# %% book/B-commands.ipynb · A run has a folder · [claimed-code]
@contextmanager
def claimed(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Keep the folder of a run to this process, and refuse it where `check_folder` does.

    Yields:
        the folder, locked; the trainer writes the recipe into it once the run has begun or gone on.

    Raises:
        ValueError: as in `check_folder`.
        BlockingIOError: another process is training there.
    """
    run = RunFolder(folder, asdict(recipe))
    with run.locked():
        check_folder(folder, recipe)
        yield run


# %% book/B-commands.ipynb · A run has a folder · [memory-code]
def memory_of(device: torch.device | str) -> int | None:
    """The bytes of memory that a device has; `None` where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


def check_room(recipe: Recipe, device: torch.device | str = "cpu") -> None:
    """Refuse a model that cannot be trained in the memory of a device.

    It needs 16 bytes per parameter (weights, gradients, and two moments of Adam, each in float32), four
    more for a moving average, and about half a megabyte of Python for a pair of layers. Batches need
    more memory still.

    Raises:
        ValueError: there is less memory; nothing is checked where the system does not tell.
    """
    d, d_ff, n_layers = recipe.model.d_model, recipe.model.d_ff, recipe.model.n_layers
    vocab_size = getattr(recipe.data, "vocab_size", 0)
    parameters = vocab_size * d + n_layers * (12 * d**2 + 4 * d * d_ff)  # without biases and norms
    needed = (16 + 4 * bool(recipe.training.average)) * parameters + 500_000 * n_layers
    memory = memory_of(device)
    if memory is not None and needed > memory:
        raise ValueError(
            f"a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB in training, but "
            f"{device} has {memory / 1e9:,.0f} GB"
        )


# %% book/B-commands.ipynb · The commands · [train-code]
def train(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe, folder = asked_for(options)
    toy = isinstance(recipe.data, Reversals)
    for library in ("tqdm", "safetensors", *(() if toy else ("tokenizers", "sacrebleu"))):
        optional_import(library)  # better to find out now than hours later that it is missing
    with process_group(options.device) as device:
        check_room(recipe, device)
        first = rank_and_world_size()[0] == 0
        if first and isinstance(recipe.data, OwnTexts):
            announce(recipe)
        with claimed(folder, recipe) if first else nullcontext(RunFolder(folder)) as place:
            how = {"progress": True, "max_minutes": options.max_minutes}
            if toy:
                translator, trainer = None, train_toy(recipe, place, device, **how)
            else:
                translator, trainer = train_translator(recipe, place, device, **how)
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, trainer, translator)


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


# %% book/B-commands.ipynb · The commands · [own-train-code]
def own_texts(options: argparse.Namespace) -> dict[str, str]:
    """The files that `train` was given, by the names that `OwnTexts` has for them; none for a recipe.

    Raises:
        ValueError: of two files that belong together, one is missing, or too many are named; or what is
            said of texts is said of a recipe.
    """
    files: dict[str, str] = {}
    for prefix in ("", "dev_"):
        both, one = [getattr(options, f"{prefix}{side}") for side in ("source", "target")], f"{prefix}pairs"
        flags = [f"--{prefix}{side}".replace("_", "-") for side in ("source", "target", "pairs")]
        if both.count(None) == 1:
            raise ValueError(f"{flags[0]} and {flags[1]} belong together: two files, a sentence a line")
        if (pairs := getattr(options, one)) is not None:
            if None not in both:
                raise ValueError(f"{flags[2]} takes the place of {flags[0]} and {flags[1]}")
            both = [pairs, ""]
        if None not in both:
            files |= {f"{prefix}{side}": str(path) for side, path in zip(("source", "target"), both)}
    if "source" not in files:
        for name in ("dev_source", "languages", "preparation"):
            if files.get(name) or getattr(options, name, None):
                option = "--" + name.replace("_", "-")
                raise ValueError(f"{option} is for texts of your own: --source and --target, or --pairs")
    return files


def recipe_of_texts(options: argparse.Namespace, files: dict[str, str], folder: Path) -> Recipe:
    """The recipe for texts: that of the run in the folder, if it has begun with these files, or a new one."""
    languages = tuple(options.languages) if options.languages else None
    if RunFolder(folder).checkpoints() and (folder / "config.json").is_file():
        recipe, names = read_recipe(folder / "config.json"), ("source", "target", "dev_source", "dev_target")
        there = {name: getattr(recipe.data, name, "") for name in names}
        if there == dict.fromkeys(names, "") | files:
            asked = {"preparation": options.preparation, "languages": " ".join(languages or ())}
            return changed(recipe, **{name: value for name, value in asked.items() if value})
        if isinstance(recipe.data, OwnTexts):
            theirs, ours = ", ".join(recipe.data.files), ", ".join(filter(None, files.values()))
            raise ValueError(f"{folder} holds a run on {theirs}, not on {ours}: name another --directory")
    chosen = Preparation(options.preparation or AS_IT_IS.name, languages)
    return own_recipe(**files, preparation=chosen)


def announce(recipe: Recipe) -> None:
    """Say what was chosen for texts of somebody's own."""
    data, model, steps = recipe.data, recipe.model, recipe.training.steps
    assert isinstance(data, OwnTexts)
    train, dev = data.load("train"), data.load("dev")
    origin = f"from {data.dev_source}" if data.dev_source else "held out: no copy of them is trained on"
    print(f"{len(train):,} pairs to train on, {len(dev):,} to judge by, {origin}")
    print(f"texts: {data.prepared}; a vocabulary of up to {data.vocab_size:,} tokens")
    print(
        f"{model.n_layers}+{model.n_layers} layers of width {model.d_model}, dropout {model.dropout}; "
        f"{steps:,} updates with batches of {data.max_tokens:,} tokens",
        flush=True,
    )


# %% book/B-commands.ipynb · The commands · [results-code]
def leave_results(
    folder: Path, recipe: Recipe, trainer: Trainer, translator: Translator | None
) -> None:
    """Write what was trained into the run's folder and, once the run is over, its record."""
    usable = folder / ("model.safetensors" if translator is None else "translator")
    if translator is None:  # `train_translator` leaves its own
        save_weights(trainer.model, usable, torch.float16)
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        tell(f"time is over at step {trainer.step:,}; the same command goes on from there")
        tell(f"what can be used already: {one_line(usable)}")
        return
    if translator is None:
        record = toy_record(trainer, recipe)
        said = f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}"
    else:
        note("training is over; scoring it takes some minutes more …")
        record = translation_record(translator, trainer, recipe)
        own = isinstance(recipe.data, OwnTexts)
        scores = record["scores"]["held out"]["beam 4"] if own else record["scores"]["test"]["tuned"]
        said = "\n".join(score["line"] for score in scores.values())
        translator.save_pretrained(usable, record=record)
    write_record(folder / "record.json", record)
    tell(said)
    tell(f"the run's folder: {one_line(folder)}")


# %% book/B-commands.ipynb · The options · [help-code-train]
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

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME"""


# %% book/B-commands.ipynb · The options · [kinds-code-train]
def summary(recipe: Recipe) -> str:
    """A recipe in a line."""
    model, steps = recipe.model, recipe.training.steps
    if isinstance(recipe.data, Reversals):
        return f"sequences of {recipe.data.length} digits, reversed; {steps:,} updates"
    size = f"{model.n_layers}+{model.n_layers} layers of width {model.d_model}"
    return f"the corpus {recipe.data.corpus}; {size}, {steps:,} updates"


# %% book/B-commands.ipynb · The options · [options-code-train]
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


def texts_options(add: Add) -> None:
    """What `train` can be given in place of a recipe."""
    texts = "texts of your own to train on, a sentence a line (default: the corpus of a recipe)"
    add("--source", type=place, metavar="FILE", help=texts)
    add("--target", type=place, metavar="FILE", help="their translations, line by line (default: none)")
    both = "one file in place of both, a tab between sentence and translation (default: none)"
    add("--pairs", type=place, metavar="FILE", help=both)
    judge = "texts to judge by, which are not trained on (default: some are held out)"
    add("--dev-source", type=place, metavar="FILE", help=judge)
    add("--dev-target", type=place, metavar="FILE", help="their translations (default: none)")
    add("--dev-pairs", type=place, metavar="FILE", help="one file in place of both (default: none)")
    codes = "their languages, such as de en, for the model card (default: not said)"
    add("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help=codes)
    form = "what is done to all texts, in training and in use (default: as it is)"
    add("--preparation", choices=PREPARATIONS, help=form)
