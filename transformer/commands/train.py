"""`train`: a run in a folder, which goes on where it stopped."""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from transformer.commands.data import FILES, ParallelData, Reversals
from transformer.commands.main import Add, device_option, note, one_line, place, program, use_threads, within
from transformer.commands.recipes import (
    RECIPES, Recipe, changed, own_recipe, parsed, read_recipe, settings, train_recipe,
)  # fmt: skip
from transformer.files import write_record
from transformer.language.preparation import AS_IT_IS, PREPARATIONS, Preparation
from transformer.model import TransformerConfig
from transformer.runs.distributed import StoppedRun, process_group, rank_and_world_size
from transformer.runs.folder import RunFolder, draw_curves, run_facts
from transformer.runs.trainer import Trainer
from transformer.validation import check_choice, optional_import

__all__ = ["HELP", "run", "add_options"]


def run(options: argparse.Namespace) -> None:
    """Train, and leave the model, its record and its log in the run's folder."""
    recipe, folder = requested(options)
    use_threads(options, recipe.model.d_model)
    for library in ("safetensors", *recipe.data.needs):
        optional_import(library)  # better to find out now than hours later that it is missing
    with process_group(options.device) as device:
        first = rank_and_world_size()[0] == 0
        with locked_run(folder, recipe) if first else nullcontext(RunFolder(folder)) as directory:
            data = recipe.data.read()
            if first:
                _announce(recipe, data)
            try:
                minutes, graphs = options.max_minutes, options.graphs
                result, trainer = train_recipe(recipe, directory, device, True, minutes, data, graphs)
            except StoppedRun as stop:
                usable = f"what can be used already: {folder / recipe.data.output}"
                again = f"to go on: {shlex.join([*program().split(), *options.arguments])}"
                raise StoppedRun(f"{stop}; {usable}; {again}", stop.signal, stop.step) from None
    if first:  # of several processes, one is enough from here on
        leave_results(folder, recipe, data, result, trainer)


def requested(options: argparse.Namespace) -> tuple[Recipe, Path]:
    """The recipe that `train` was given, and the folder of its run.

    Raises:
        ValueError: not exactly one of a recipe, a file and texts is named; no folder for a file's
            recipe; or what is said of texts is said of a recipe, or cannot be set.
        CorpusError: the texts are no corpus.
    """
    if [options.recipe, options.config, options.source].count(None) != 2:
        raise ValueError(
            "train needs one of three: the name of a recipe, --config, or texts of your own (--source)"
        )
    for name, needed in (("target", "source"), ("dev_source", "source"), ("dev_target", "dev_source"),
                         ("languages", "source"), ("preparation", "source")):  # fmt: skip
        if getattr(options, name) and getattr(options, needed) is None:
            flags = (f"--{word}".replace("_", "-") for word in (name, needed))
            raise ValueError("{} needs {}: it is for texts of your own".format(*flags))
    if options.config and options.directory is None:
        raise ValueError("--config needs --directory as well: a folder for the run")
    folder = options.directory or Path("runs") / (options.recipe or "own")
    if options.recipe:
        check_choice(RECIPES, recipe=options.recipe)
    if options.source:
        languages = tuple(options.languages) if options.languages else None
        preparation = Preparation(options.preparation or AS_IT_IS.name, languages)
        recipe = own_recipe(preparation, **{name: getattr(options, name) or "" for name in FILES})
    else:
        recipe = RECIPES[options.recipe] if options.recipe else read_recipe(options.config)
    changes = parsed(options.set)
    of_texts = ("corpus", "preparation", "languages") if recipe.data.files else ()
    for name in changes.keys() & {*FILES, "sha256", *of_texts}:
        raise ValueError(f"{name} cannot be set: it follows from the texts, or has an option of its own")
    asked = changed(recipe, **changes)
    if "steps" in changes and "warmup_steps" not in changes:
        asked = changed(asked, warmup_steps=_warmup(recipe, asked.training.steps, folder))
    return asked, folder


def _warmup(recipe: Recipe, steps: int, folder: Path) -> int:
    # Of a run with fewer steps it is shorter in proportion; a run that has begun keeps its own.
    if RunFolder(folder).checkpoints() and (config := folder / "config.json").is_file():
        recipe = read_recipe(config)
        steps = recipe.training.steps
    return max(1, round(recipe.schedule.warmup_steps * min(1, steps / recipe.training.steps)))


def leave_results(folder: Path, recipe: Recipe, data: Any, result: Any, trainer: Trainer) -> None:
    """Write the curves into the run's folder and, once the run is over, its record."""
    with suppress(ImportError):  # without matplotlib the run is just as good
        draw_curves(trainer.history, folder / "curves.png")
    if trainer.graphs is not None and (positions := trainer.graphs.positions)[0]:
        padding = positions[1] / positions[0] - 1
        print(f"graphs: {len(trainer.graphs.shapes)} shapes, {padding:.0%} more positions by padding to them")
    if not trainer.finished:
        print(f"time is over at step {trainer.step:,}; the same command goes on from there")
        print(f"what can be used already: {one_line(folder / recipe.data.output)}")
        return
    note("training is over; scoring it can take some minutes more …")
    record = data.record(result, trainer)
    facts = run_facts(trainer.updater.device) | {"recipe": asdict(recipe)}
    write_record(folder / "record.json", facts | record)
    print(data.summary(record))
    print(f"the run's folder: {one_line(folder)}")


@contextmanager
def locked_run(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Keep the folder of a run to this process, and refuse one that holds another run or something else
    that training would write over. More steps than before may be asked for.

    Yields:
        the folder, locked; the trainer writes the recipe into it once the run has begun or gone on.

    Raises:
        ValueError: it holds a run of another recipe, and the message names the first setting that
            differs; checkpoints without a recipe, or results without checkpoints; or a
            `config.json` that is no recipe.
        BlockingIOError: another process is training there.
    """
    run = RunFolder(folder, asdict(recipe))
    with run.locked():
        _check_same_run(run, recipe)
        if checkpoints := run.checkpoints():
            step = int(checkpoints[-1].stem.rpartition("-")[2])
            print(f"going on from step {step:,} of {recipe.training.steps:,}", flush=True)
        yield run


# What a run, or something else, has left that must not be written over.
_WORK = ("best.pt", "model.safetensors", "vocabulary.json", "record.json", "translator", "curves.png")


def _check_same_run(run: RunFolder, recipe: Recipe) -> None:
    folder, config, elsewhere = run.path, run.path / "config.json", "name another --directory"
    begun = bool(run.checkpoints())
    for name in () if begun else _WORK:
        if (folder / name).exists():
            found = f"{folder} holds {name}, but no checkpoint of a run to go on from"
            raise ValueError(f"{found}: {elsewhere}, or move it away")
    if not config.exists():
        if begun:
            found = f"{folder} holds checkpoints, but no config.json that tells their recipe"
            raise ValueError(f"{found}: put it back, or {elsewhere}")
        return
    try:
        before, asked = _compared(read_recipe(config)), _compared(recipe)
    except ValueError as error:
        raise ValueError(f"{error}: {elsewhere}, or move it away") from None
    for name in before | asked:
        there, here = before.get(name, ""), asked.get(name, "")
        if there != here and not (name == "steps" and there < here):
            found = f"{folder} holds a run with {name} = {there}, and {name} = {here} is asked for"
            raise ValueError(f"{found}: {elsewhere}, or go on with --config {config}")


def _compared(recipe: Recipe) -> dict[str, Any]:
    # The settings; of texts, which may lie elsewhere now, the checksums tell whether they are the same.
    return {name: bool(value) if name in FILES else value for name, value in settings(recipe).items()}


def _size(recipe: Recipe) -> str:
    encoder, decoder = TransformerConfig(4, 4, **asdict(recipe.model)).depths
    return f"{encoder}+{decoder} layers of width {recipe.model.d_model}"


def _announce(recipe: Recipe, data: Reversals | ParallelData) -> None:
    # Say what was chosen for texts of somebody's own, and how long the run is.
    if isinstance(data, ParallelData) and (chosen := data.settings).files:
        train, dev = len(data.train), len(data.dev)
        print(f"{train:,} pairs to train on, {dev:,} to judge by, none of which is trained on")
        print(f"texts: {chosen.prepared}; a vocabulary of up to {chosen.vocab_size:,} tokens")
        print(f"{_size(recipe)}, dropout {recipe.model.dropout}; batches of {chosen.max_tokens:,} tokens")
    steps, warmup = recipe.training.steps, recipe.schedule.warmup_steps
    print(f"{steps:,} updates with a warm-up of {warmup:,}", flush=True)


def add_options(add: Add) -> None:
    """The options of `train`."""
    add("recipe", nargs="?", help="one of the recipes below")
    instead = "take the recipe from a run's config.json or record.json instead"
    add("--config", type=place, metavar="FILE", help=instead)
    change = "change a setting of the recipe, such as steps=500; may be repeated"
    add("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    for flag, text in (
        ("--source", "texts to train on, a sentence a line; or with their translations, after a tab"),
        ("--target", "the translations of --source, line by line, if it does not hold them (default: none)"),
        ("--dev-source", "texts to judge by, which are not trained on (default: none, some are held out)"),
        ("--dev-target", "the translations of --dev-source, if it does not hold them (default: none)"),
    ):
        add(flag, type=place, metavar="FILE", help=text)
    codes = "their languages, such as de en (default: not said)"
    add("--languages", nargs=2, metavar=("SOURCE", "TARGET"), help=codes)
    form = "what is done to all texts, in training and in use (default: as it is)"
    add("--preparation", choices=PREPARATIONS, help=form)
    folder = "the run's folder (default: runs/ and the recipe's name, or runs/own)"
    add("--directory", type=place, help=folder)
    stop = "stop training after M minutes; the same command goes on later (default: no limit)"
    add("--max-minutes", type=within(float, 0.0, float("inf")), metavar="M", help=stop)
    whole = "on a GPU, record updates as graphs: faster with small batches (default: none)"
    add("--graphs", action="store_true", help=whole)
    device_option(add)


HELP = (
    """train a model, or go on with a run that was stopped

recipes:
"""
    + "\n".join(
        f"  {name:13}{recipe.data}; {_size(recipe)}, {recipe.training.steps:,} updates"
        for name, recipe in RECIPES.items()
    )
    + """

All settings of one: python -m transformer info --recipe NAME
With precision = auto, a GPU computes in bfloat16 or float16 where it has units for that, and
everything else in float32.

The folder of a run holds config.json (the recipe), log.jsonl (losses; curves.png shows them),
checkpoint-*.pt (where a stopped run goes on), best.pt, and the model: translator/, for
translate --model, or model.safetensors of the toy. At the end of the run, record.json is added.
A run that was stopped, by Ctrl-C or --max-minutes, leaves the model that it has by then, and goes on
when the same command is given again; steps may be raised then, but nothing else may change.
Fewer steps than a recipe's have a warm-up that is shorter in proportion, unless
--set warmup_steps says what it is.

Texts of your own take the place of a recipe: two files in UTF-8, of which line n of one translates line
n of the other, or one file with a tab between sentence and translation.

  python -m transformer train --source train.de --target train.en --languages de en
  python -m transformer train --source dates.tsv --directory runs/dates --set steps=2000

Vocabulary, model, batches and steps are chosen by the size of the corpus, and said. Without dev files
a twentieth of the pairs, at most 1,000, is held out and scored at the end. What is done to the texts is
kept with the translator, which treats whatever it translates in the same way.

A model up to 128 wide is trained by one thread, since its steps are too short to be shared, and threads
that wait for one another are many times slower where another program is busy. --threads takes more.

With several GPUs: torchrun --nproc-per-node=N -m transformer train NAME
A run goes on from its checkpoints with any N."""
)
