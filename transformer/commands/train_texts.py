"""`train` with texts of the user's own."""

import argparse
from pathlib import Path
from transformer.commands.options import Add, place
from transformer.commands.own_texts import OwnTexts
from transformer.commands.recipes import Recipe, changed, read_recipe
from transformer.commands.sizes import own_recipe
from transformer.language.wording import AS_IT_IS, PREPARATIONS, Preparation
from transformer.runs.folder import RunFolder

__all__ = ["own_texts", "recipe_of_texts", "announce", "texts_options"]


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
        if recipe.data.files:
            theirs, ours = ", ".join(recipe.data.files), ", ".join(filter(None, files.values()))
            raise ValueError(f"{folder} holds a run on {theirs}, not on {ours}: name another --directory")
    chosen = Preparation(options.preparation or AS_IT_IS.name, languages)
    return own_recipe(**files, preparation=chosen)


def announce(recipe: Recipe) -> None:
    """Say what was chosen for texts of somebody's own."""
    data, model, steps = recipe.data, recipe.model, recipe.training.steps
    encoder, decoder = model.depths
    assert isinstance(data, OwnTexts)
    train, dev = data.load("train"), data.load("dev")
    origin = f"from {data.dev_source}" if data.dev_source else "held out: no copy of them is trained on"
    print(f"{len(train):,} pairs to train on, {len(dev):,} to judge by, {origin}")
    print(f"texts: {data.prepared}; a vocabulary of up to {data.vocab_size:,} tokens")
    print(
        f"{encoder}+{decoder} layers of width {model.d_model}, dropout {model.dropout}; "
        f"{steps:,} updates with batches of {data.max_tokens:,} tokens",
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
