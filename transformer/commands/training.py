"""Training by a recipe, from data to a translator and its record."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
import torch
from transformer.commands.data import Lessons, Load, Reversals, Translations
from transformer.commands.recipes import Recipe
from transformer.language.corpora import Pair, held_out
from transformer.language.translator import Translator
from transformer.model import Transformer
from transformer.runs.checkpoints import load_checkpoint
from transformer.runs.distributed import rank_and_world_size
from transformer.runs.folder import run_facts
from transformer.runs.trainer import StoppedRun, Trainer
from transformer.training import best_device
from transformer.validation import check_device, check_type, optional_import
from transformer.weights import set_weights

__all__ = [
    "Trained",
    "train_recipe",
    "train_toy",
    "train_translator",
    "record_of",
    "toy_record",
    "translation_record",
]


class Trained(NamedTuple):
    """What a run has given."""

    data: Reversals | Lessons  # what it learned from
    learned: Any  # a translator, or the toy's model
    trainer: Trainer


def train_recipe(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    max_minutes: float | None = None,
    read: Callable[[], Reversals | Lessons] | None = None,
) -> Trained:
    """Train as a recipe says; stopped and called again with the same directory, it goes on.

    Args:
        recipe: what to do.
        directory: where log, checkpoints and the model go; `None` for nowhere.
        device: to train on; `None` for the `best_device`.
        progress: whether to show a progress bar.
        max_minutes: as in `Trainer.fit`.
        read: gives what is learned from; `None` for the recipe's own data.

    Raises:
        TypeError, ValueError: `recipe` is not a recipe; or there is no such device.
        StoppedRun: a signal asked the process to end; the model so far is in the directory by then.
    """
    check_type(Recipe, recipe=recipe)
    device = check_device(best_device() if device is None else device)
    if directory is not None:
        optional_import("safetensors")  # which saving needs
    torch.manual_seed(recipe.training.seed)
    data = read() if read else recipe.data.read()
    model = data.model(**asdict(recipe.model)).to(device)
    trainer = Trainer(
        model,
        loss=recipe.loss,
        batches=data.batches(recipe.training.seed),
        schedule=recipe.rate,
        config=recipe.training,
        directory=directory,
        evaluate=data.evaluate,
        progress=progress,
    )
    stopped: StoppedRun | None = None
    try:
        trainer.fit(max_minutes)
    except StoppedRun as stop:
        stopped = stop
    learned: Any = data.learned(_chosen(trainer, model).eval())
    if directory is not None and rank_and_world_size()[0] == 0:
        data.keep(learned, Path(directory))
    if stopped is not None:
        said = str(stopped)
        if directory is not None:
            said += f"; what can be used already: {Path(directory) / recipe.data.left}"
        raise StoppedRun(said, stopped.signal, stopped.step)
    return Trained(data, learned, trainer)


def _chosen(trainer: Trainer, model: Transformer) -> Transformer:
    # The model to keep. It shares the trainer's parameters, or is a copy where its weights are to differ.
    updater = trainer.updater
    folder = trainer.checkpointer.folder if trainer.finished and trainer.config.patience else None
    if updater.average is None and folder is None:
        return model
    with updater.averaged():
        model = deepcopy(model)
    if folder is not None:
        set_weights(model, load_checkpoint(folder.best), folder.best)
    return model


def train_toy(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    max_minutes: float | None = None,
) -> Trainer:
    """Train a toy model; arguments are those of `train_recipe`.

    Returns:
        the trainer, with the trained model as `.model`.

    Raises:
        TypeError, ValueError: as in `train_recipe`; or the recipe is a translator's.
    """
    check_type(Recipe, recipe=recipe)
    check_type(Reversals, data=recipe.data)
    return train_recipe(recipe, directory, device, progress, max_minutes).trainer


def train_translator(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    load: Load | None = None,
    max_minutes: float | None = None,
    pairs: Sequence[Pair] | None = None,
) -> tuple[Translator, Trainer]:
    """Train a translator as a recipe says; stopped and called again with the same directory, it
    goes on.

    Args:
        recipe: what to do; its data are `Translations`.
        directory: where log and checkpoints go, and the translator, into its folder `translator`;
            `None` for nowhere.
        device: to train on; `None` for the `best_device`.
        progress: whether to show a progress bar.
        load: gives a split of a corpus, as `load_corpus` does; `None` for that of the recipe's data.
        max_minutes: as in `Trainer.fit`.
        pairs: of your own, instead of a corpus; `held_out` chooses those that are not trained on.

    Returns:
        the translator, with a plain model, and the trainer, with the accelerated one and its
        history. The translator has the weights of the last update; their average, where the recipe
        averages; and where it has patience and the run is finished and has a directory, those that
        were best on the development split.

    Raises:
        TypeError, ValueError: `recipe` is not a recipe, or is the toy's; or there is no such device.
    """
    check_type(Recipe, recipe=recipe)
    data: Any = recipe.data
    check_type(Translations, data=data)

    def read() -> Lessons:
        return data.read(load) if pairs is None else Lessons(data, *held_out(pairs, data.prepared))

    run = train_recipe(recipe, directory, device, progress, max_minutes, read)
    return run.learned, run.trainer


def record_of(recipe: Recipe, run: Trained) -> dict[str, Any]:
    """The record of a finished run: the facts of `run_facts`, the recipe, and what its data note."""
    facts = run_facts(run.trainer.updater.device) | {"recipe": asdict(recipe)}
    return facts | run.data.record(run.learned, run.trainer)


def toy_record(trainer: Trainer, recipe: Recipe) -> dict[str, Any]:
    """The record of a finished toy run.

    Args:
        trainer: what `train_toy` returned.
        recipe: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the curve of evaluations, and the score on 10,000
        unseen sequences.
    """
    check_type(Reversals, data=recipe.data)
    return record_of(recipe, Trained(recipe.data.read(), trainer.model, trainer))


def translation_record(
    translator: Translator,
    trainer: Trainer,
    recipe: Recipe,
    load: Load | None = None,
) -> dict[str, Any]:
    """The record of a finished translation run.

    Args:
        translator: what `train_translator` returned.
        trainer: its trainer, which `train_translator` returned as well.
        recipe: what it was given.
        load: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the number of parameters, the time spent in updates in
        seconds, the log, the `"grid"` of `tune_search` on the development split, and `"scores"`: for
        `"dev"`, `"test"` and `"test, unseen"` (without the pairs that training showed) by greedy
        search, by a beam of 4, and by the search that the grid found best, `"tuned"`. For `OwnTexts`
        there is no grid, and one score, that of `"held out"` by a beam of 4.

    Raises:
        TypeError, CorpusError: an argument is of the wrong type; or as in `load_corpus`.
    """
    check_type(Translator, translator=translator)
    check_type(Trainer, trainer=trainer)
    check_type(Recipe, recipe=recipe)
    check_type(Translations, data=recipe.data)
    return record_of(recipe, Trained(recipe.data.read(load), translator, trainer))
