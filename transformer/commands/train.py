"""`train`: a run in a folder, which goes on where it stopped."""

import argparse
import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
import torch
from transformer.commands.data import FILES, OwnTexts, checksum
from transformer.commands.options import (
    Add,
    device_option,
    note,
    one_line,
    place,
    program,
    tell,
    use_threads,
    within,
)
from transformer.commands.recipes import RECIPES, Recipe, changed, own_recipe, parsed, read_recipe, settings
from transformer.commands.training import Trained, record_of, train_recipe
from transformer.files import write_record
from transformer.language.wording import AS_IT_IS, PREPARATIONS, Preparation
from transformer.runs.distributed import process_group, rank_and_world_size
from transformer.runs.folder import RunFolder
from transformer.runs.log import draw_curves
from transformer.runs.trainer import StoppedRun
from transformer.validation import optional_import

__all__ = ["HELP", "run", "add_options"]


def run(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe, folder = asked_for(options)
    use_threads(options, recipe.model.d_model)
    for library in ("tqdm", "safetensors", *recipe.data.needs):
        optional_import(library)  # better to find out now than hours later that it is missing
    with process_group(options.device) as device:
        check_room(recipe, device)
        first = rank_and_world_size()[0] == 0
        if first and recipe.data.files:
            announce(recipe)
        elif first and any(change.startswith("steps=") for change in options.set):
            tell(updates(recipe))
        with claimed(folder, recipe) if first else nullcontext(RunFolder(folder)) as place:
            try:
                trained = train_recipe(recipe, place, device, True, options.max_minutes)
            except StoppedRun as stop:
                said = f"stopped at step {stop.step:,} of {recipe.training.steps:,} with a checkpoint"
                usable = f"what can be used already: {folder / recipe.data.left}"
                again = shlex.join([*program().split(), *options.arguments])
                raise StoppedRun(f"{said}; {usable}; to go on: {again}", stop.signal, stop.step) from None
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, trained)


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


def leave_results(folder: Path, recipe: Recipe, trained: Trained) -> None:
    """Write the curves into the run's folder and, once the run is over, its record."""
    trainer, usable = trained.trainer, folder / recipe.data.left
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if not trainer.finished:
        tell(f"time is over at step {trainer.step:,}; the same command goes on from there")
        tell(f"what can be used already: {one_line(usable)}")
        return
    note("training is over; scoring it can take some minutes more …")
    record = record_of(recipe, trained)
    write_record(folder / "record.json", record)
    tell(trained.data.said(record))
    tell(f"the run's folder: {one_line(folder)}")


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
    if (begun := begun_recipe(folder)) is not None and begun.data.files:
        data: Any = begun.data
        asked = dict.fromkeys(FILES, "") | files
        if asked != {name: getattr(data, name) for name in FILES}:
            sums = " ".join(checksum(path) for path in asked.values() if path)
            moved = replace(data, **asked, sha256=sums)
            if moved.identity != data.identity:
                theirs, ours = ", ".join(data.files), ", ".join(moved.files)
                raise ValueError(f"{folder} holds a run on {theirs}, not on {ours}: name another --directory")
            data = moved
        said = {"preparation": options.preparation, "languages": " ".join(languages or ())}
        return changed(replace(begun, data=data), **{name: value for name, value in said.items() if value})
    chosen = Preparation(options.preparation or AS_IT_IS.name, languages)
    return own_recipe(**files, preparation=chosen)


def begun_recipe(folder: Path) -> Recipe | None:
    """The recipe of the run that has begun in a folder, if one has."""
    config = folder / "config.json"
    return read_recipe(config) if RunFolder(folder).checkpoints() and config.is_file() else None


def check_changes(recipe: Recipe, changes: Iterable[str], own: bool) -> None:
    """Refuse to set what follows from texts of somebody's own, or what an option says of them.

    Args:
        recipe: which is to be changed.
        changes: the names of the settings.
        own: whether texts were named, and not the file of a recipe.

    Raises:
        ValueError: such a setting is to be changed.
    """
    if not recipe.data.files:
        return
    for name in changes:
        if name in ("corpus", "sha256", *FILES):
            raise ValueError(f"{name} cannot be set: it follows from the files that are named as texts")
        if own and name in ("preparation", "languages"):
            raise ValueError(f"{name} of texts is said by --{name}, and cannot be set")


def updates(recipe: Recipe) -> str:
    """How long a recipe trains."""
    return f"{recipe.training.steps:,} updates with a warm-up of {recipe.schedule.warmup_steps:,}"


def announce(recipe: Recipe) -> None:
    """Say what was chosen for texts of somebody's own."""
    data, model = recipe.data, recipe.model
    encoder, decoder = model.depths
    assert isinstance(data, OwnTexts)
    train, dev = data.load("train"), data.load("dev")
    origin = f"from {data.dev_source}" if data.dev_source else "held out: no copy of them is trained on"
    print(f"{len(train):,} pairs to train on, {len(dev):,} to judge by, {origin}")
    print(f"texts: {data.prepared}; a vocabulary of up to {data.vocab_size:,} tokens")
    print(
        f"{encoder}+{decoder} layers of width {model.d_model}, dropout {model.dropout}; "
        f"{updates(recipe)} and batches of {data.max_tokens:,} tokens",
        flush=True,
    )


# What a run, or something else, has left that must not be written over.
_WORK = ("best.pt", "model.safetensors", "vocabulary.json", "record.json", "translator", "curves.png")


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds another run, or something else that training would write over.

    More steps than before may be asked for, and the same texts may lie elsewhere; any other setting must be
    as it was.

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
        begun = read_recipe(config)
    except ValueError as error:
        raise ValueError(f"{error}: {elsewhere}, or move it away") from None
    before, asked = (settings(one) | getattr(one.data, "identity", {}) for one in (begun, recipe))
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
    more for a moving average, and about a quarter of a megabyte of Python for a layer. Batches need
    more memory still.

    Raises:
        ValueError: there is less memory; nothing is checked where the system does not tell.
    """
    d, (encoder, decoder) = recipe.model.d_model, recipe.model.depths
    vocab_size = getattr(recipe.data, "vocab_size", 0)
    attentions, networks = encoder + 2 * decoder, encoder + decoder
    # Biases and norms are not counted.
    parameters = vocab_size * d + attentions * 4 * d**2 + networks * 2 * d * recipe.model.d_ff
    needed = (16 + 4 * bool(recipe.training.average)) * parameters + 250_000 * networks
    memory = memory_of(device)
    if memory is not None and needed > memory:
        raise ValueError(
            f"a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB in training, but "
            f"{device} has {memory / 1e9:,.0f} GB"
        )


def summary(recipe: Recipe) -> str:
    """A recipe in a line."""
    model, steps = recipe.model, recipe.training.steps
    encoder, decoder = model.depths
    size = f"{encoder}+{decoder} layers of width {model.d_model}"
    return f"{recipe.data}; {size}, {steps:,} updates"


def _texts_options(add: Add) -> None:
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


def add_options(add: Add) -> None:
    """The options of `train`."""
    add("recipe", nargs="?", choices=list(RECIPES), metavar="recipe", help="one of the recipes below")
    instead = "take the recipe from a run's config.json or record.json instead"
    add("--config", type=place, metavar="FILE", help=instead)
    change = "change a setting of the recipe, such as steps=500; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    _texts_options(add)
    folder = "the run's folder (default: runs/ and the recipe's name, or runs/own)"
    add("--directory", type=place, help=folder)
    stop = "stop training after M minutes; the same command goes on later (default: no limit)"
    add("--max-minutes", type=within(float, 0.0, float("inf")), metavar="M", help=stop)
    device_option(add)


HELP = (
    """train a model, or go on with a run that was stopped

recipes:
"""
    + "\n".join(f"  {name:13}{summary(recipe)}" for name, recipe in RECIPES.items())
    + """

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
A run goes on from its checkpoints with any N."""
)
