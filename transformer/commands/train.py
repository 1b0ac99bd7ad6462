"""`train`: a run in a folder, which goes on where it stopped."""

import argparse
import os
import shlex
from contextlib import nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
import torch
from transformer.commands.data import FILES, N_SHAPES, ParallelData
from transformer.commands.main import PROGRAM, Add, device_option, within
from transformer.commands.recipes import RECIPES, Recipe, changed, own_recipe, parsed, read_recipe, settings
from transformer.commands.recipes import train_recipe
from transformer.files import write_record
from transformer.language.corpora import AS_IT_IS, PREPARATIONS, Preparation
from transformer.runs.distributed import process_group, rank_and_world_size
from transformer.runs.folder import RunFolder, draw_curves, run_facts
from transformer.runs.trainer import StoppedRun, Trainer
from transformer.validation import optional_import

__all__ = ["HELP", "run", "add_options"]


def run(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    path, recipe = _folder(options), requested(options)
    if options.threads is None and recipe.model.d_model <= 128 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # for steps too short to be shared: threads that wait for others are slow
    folder = RunFolder(path, asdict(recipe))
    with process_group(options.device) as device:
        first = rank_and_world_size()[0] == 0
        with folder.locked() if first else nullcontext():
            data = _begin(folder, recipe, first)
            try:
                minutes, graphs = options.max_minutes, options.graphs
                result, trainer = train_recipe(recipe, folder, device, True, minutes, data, graphs)
            except StoppedRun as stop:
                usable = f"what can be used already: {folder.path / recipe.data.output}"
                again = f"to go on: {shlex.join([*PROGRAM.split(), *options.arguments])}"
                raise StoppedRun(f"{stop}; {usable}; {again}", stop.signal, stop.step) from None
    if first:  # of several processes, one is enough from here on
        _leave_results(folder.path, recipe, data, result, trainer)


def _folder(options: argparse.Namespace) -> Path:
    return Path(options.directory or f"runs/{options.recipe or 'own'}")


def requested(options: argparse.Namespace) -> Recipe:
    """The recipe that the options ask for: one of those below, or one for texts of your own."""
    begun = _folder(options) / "config.json"
    if (options.recipe is None) == (options.source is None):
        raise ValueError("train needs one of two: the name of a recipe, or texts of your own (--source)")
    if options.recipe:
        for name in ("target", "dev_source", "dev_target", "languages", "preparation"):
            if getattr(options, name):
                raise ValueError(f"--{name.replace('_', '-')} needs --source: it is for texts of your own")
        if options.recipe not in RECIPES:
            raise ValueError(f"recipe must be one of {list(RECIPES)}, not {options.recipe!r}")
        recipe = RECIPES[options.recipe]
    elif options.dev_target and not options.dev_source:
        raise ValueError("--dev-target needs --dev-source")
    else:
        languages = tuple(options.languages) if options.languages else None
        preparation = Preparation(options.preparation or AS_IT_IS.name, languages)
        if os.environ.get("RANK", "0") == "0":  # which torchrun sets
            print("choosing sizes for these texts", flush=True)  # a minute for 100,000 pairs
        recipe = own_recipe(preparation, **{name: getattr(options, name) or "" for name in FILES})
    changes = parsed(options.set)
    for name in changes.keys() & ({*FILES, "sha256"} | ({"corpus"} if options.source else set())):
        raise ValueError(f"{name} cannot be set: it follows from the texts")
    if options.graphs and "n_shapes" in settings(recipe):
        changes = {"n_shapes": N_SHAPES} | changes
    if "warmup_steps" not in changes and begun.exists() and any(begun.parent.glob("checkpoint-*.pt")):
        changes["warmup_steps"] = read_recipe(begun).schedule.warmup_steps  # of fewer updates, perhaps
    elif "steps" in changes and "warmup_steps" not in changes:
        share = min(1, changed(recipe, **changes).training.steps / recipe.training.steps)
        changes["warmup_steps"] = max(1, round(share * recipe.schedule.warmup_steps))
    return changed(recipe, **changes)


def _begin(folder: RunFolder, recipe: Recipe, first: bool) -> Any:
    # Refuse another run's folder, and read the data; the first process says how long the run is, and what
    # was chosen for texts of somebody's own.
    check_same_run(folder, recipe)
    data: Any = recipe.data.read()
    if not first:
        return data
    if isinstance(data, ParallelData):
        optional_import("sacrebleu")  # which scoring needs, perhaps hours later
    steps, schedule, model = recipe.training.steps, recipe.schedule, recipe.model
    if isinstance(data, ParallelData) and (chosen := data.settings).files:
        train, dev = len(data.train), len(data.dev)
        seen = data.n_seen if chosen.dev_source else 0  # held out, none is
        which = f"{seen:,} of them trained on as well" if seen else "none of which is trained on"
        print(f"{train:,} pairs to train on, {dev:,} to judge by, {which}")
        print(f"texts: {chosen.prepared}; a vocabulary of up to {chosen.vocab_size:,} tokens")
        size = f"n_layers {model.n_layers}, d_model {model.d_model}, dropout {model.dropout}"
        print(f"{size}; batches of {chosen.max_tokens:,} tokens")
    print(f"{steps:,} updates with a warm-up of {schedule.warmup_steps:,}", flush=True)
    return data


# What a run, or something else, has left that must not be written over.
_WORK = ("model.safetensors", "record.json", "translator", "curves.png")


def check_same_run(folder: RunFolder, recipe: Recipe) -> None:
    """Refuse a folder that holds another run, or something else that training would write over.

    More steps than before may be asked for, and texts may lie elsewhere: their checksums are compared.
    """
    config, begun = folder.path / "config.json", bool(folder.checkpoints())
    if begun and not config.exists():
        raise ValueError(f"{folder.path} holds a run that no recipe began: name another --directory")
    for name in () if begun else _WORK:
        if (folder.path / name).exists():
            message = f"{folder.path} holds {name}, but no checkpoint of a run to go on from"
            raise ValueError(f"{message}: name another --directory, or move it away")
    if begun or config.exists():
        before, asked = settings(read_recipe(config)), settings(recipe)
        for name in before | asked:
            there, here = before.get(name, ""), asked.get(name, "")
            if there != here and name not in FILES and not (name == "steps" and there < here):
                message = f"{folder.path} holds a run with {name} = {there}, and {name} = {here} is asked for"
                same = "" if name == "sha256" else f", or go on by --set {shlex.quote(f'{name}={there}')}"
                raise ValueError(f"{message}: name another --directory{same}")


def _leave_results(folder: Path, recipe: Recipe, data: Any, result: Any, trainer: Trainer) -> None:
    # Write the curves into the run's folder and, once the run is over, its record.
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        print(f"time is over at step {trainer.step:,}; the same command goes on from there")
        print(f"what can be used already: {folder / recipe.data.output}")
        return
    trainer.log.say("training is over; scoring it can take some minutes more …")
    record = data.record(result, trainer.history)
    facts = run_facts(trainer.updater.device) | {"recipe": asdict(recipe)}
    write_record(folder / "record.json", facts | record)
    print(data.summary(record))
    print(f"the run's folder: {folder}")


def add_options(add: Add) -> None:
    """The options of `train`."""
    add("recipe", nargs="?", help="one of the recipes below")
    change = "change a setting of the recipe, such as steps=500; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    for flag, text in (
        ("--source", "texts to train on, a sentence a line; or with their translations, after a tab"),
        ("--target", "the translations of --source, line by line, if it does not hold them (default: none)"),
        ("--dev-source", "texts to judge by, which are not trained on (default: none, some are held out)"),
        ("--dev-target", "the translations of --dev-source, if it does not hold them (default: none)"),
    ):
        add(flag, metavar="FILE", help=text)
    codes = "their languages, such as de en (default: not said)"
    add("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help=codes)
    form = "the form of all texts; tokenized is in lower case, too (default: as it is)"
    add("--preparation", choices=PREPARATIONS, help=form)
    folder = "the run's folder (default: runs/ and the recipe's name, or runs/own)"
    add("--directory", metavar="FOLDER", help=folder)
    stop = "stop training after M minutes; the same command goes on later (default: no limit)"
    add("--max-minutes", type=within(float, 0.0, float("inf")), metavar="M", help=stop)
    whole = f"on a GPU, record updates as graphs, for batches of n_shapes={N_SHAPES} (default: none)"
    add("--graphs", action="store_true", help=whole)
    device_option(add)


_RECIPES = [f"  {name:13}{each.data}, {each.training.steps:,} updates" for name, each in RECIPES.items()]
HELP = f"""train a model, or go on with a run that was stopped

recipes, whose settings info --recipe NAME shows:
{chr(10).join(_RECIPES)}

Texts of your own take the place of a recipe: two files in UTF-8, of which line n of one translates line
n of the other, or one file with a tab between sentence and translation. Sizes are chosen by the corpus.

  python -m transformer train --source train.de --target train.en --languages de en
  python -m transformer train --source dates.tsv --directory runs/dates --set steps=2000

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt, best.pt, and the model: translator/, for translate --model, or model.safetensors of
the toy; at the end, record.json. A run that was stopped, by Ctrl-C or --max-minutes, leaves the model
that it has by then, and goes on when the same command is given again; steps may be raised then, but
nothing else may change. Fewer steps than a recipe's have a shorter warm-up, which a run keeps.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME"""
