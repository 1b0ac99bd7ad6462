"""`train`: a run in a folder, which goes on where it stopped."""

import argparse
import shlex
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from transformer.commands.claim import check_room, claimed
from transformer.commands.options import program, use_threads
from transformer.commands.recipes import RECIPES, Recipe, changed, parsed, read_recipe
from transformer.commands.terminal import note, one_line, tell
from transformer.commands.train_texts import (
    announce,
    begun_recipe,
    check_changes,
    own_texts,
    recipe_of_texts,
    updates,
)
from transformer.commands.training import Trained, record_of, train_recipe
from transformer.files import write_record
from transformer.runs.distributed import process_group, rank_and_world_size
from transformer.runs.folder import RunFolder
from transformer.runs.journal import draw_curves
from transformer.runs.trainer import StoppedRun
from transformer.validation import optional_import

__all__ = ["train", "asked_for", "warmed_up", "leave_results"]


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
        elif first and any(change.startswith("steps=") for change in options.set):
            tell(updates(recipe))
        with claimed(folder, recipe) if first else nullcontext(RunFolder(folder)) as place:
            try:
                run = train_recipe(recipe, place, device, True, options.max_minutes, shard=options.shard)
            except StoppedRun as stop:
                said = f"stopped at step {stop.step:,} of {recipe.training.steps:,} with a checkpoint"
                usable = f"what can be used already: {folder / recipe.data.left}"
                again = shlex.join([*program().split(), *options.arguments])
                raise StoppedRun(f"{said}; {usable}; to go on: {again}", stop.signal, stop.step) from None
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, run)


def asked_for(options: argparse.Namespace) -> tuple[Recipe, Path]:
    """The recipe that `train` was given, and the folder of its run.

    Raises:
        ValueError: not exactly one of a recipe, a file and texts is named; no folder for a file's
            recipe; or as in `own_texts` and `check_changes`.
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
    changes = parsed(recipe, options.set)
    check_changes(recipe, changes, bool(own))
    return changed(recipe, **warmed_up(recipe, changes, begun_recipe(folder))), folder


def warmed_up(recipe: Recipe, changes: dict[str, Any], begun: Recipe | None) -> dict[str, Any]:
    """The changes, with a warm-up that is shortened as the run is, if they say nothing of it.

    A run that has `begun` keeps its own, however many steps are added.
    """
    warmup, steps = recipe.schedule.warmup_steps, recipe.training.steps
    if begun is not None:
        warmup = begun.schedule.warmup_steps
    elif changes.get("steps", steps) < steps:
        warmup = max(1, round(warmup * changes["steps"] / steps))
    return {"warmup_steps": warmup} | changes if "steps" in changes else changes


def leave_results(folder: Path, recipe: Recipe, run: Trained) -> None:
    """Write the curves into the run's folder and, once the run is over, its record."""
    trainer, usable = run.trainer, folder / recipe.data.left
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
