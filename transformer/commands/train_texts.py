"""`train` with texts of the user's own."""

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from transformer.commands.options import Add, place
from transformer.commands.own_texts import FILES, OwnTexts, checksum
from transformer.commands.recipes import Recipe, changed, read_recipe
from transformer.commands.sizes import own_recipe
from transformer.language.wording import AS_IT_IS, PREPARATIONS, Preparation
from transformer.runs.folder import RunFolder

__all__ = [
    "own_texts",
    "recipe_of_texts",
    "begun_recipe",
    "check_changes",
    "updates",
    "announce",
    "texts_options",
]


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
