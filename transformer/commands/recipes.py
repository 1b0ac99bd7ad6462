"""Recipes: all that a training run depends on, as data, and the run itself."""

import ast
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.commands.data import ParallelData, Reversals, Translations, held_out
from transformer.files import file_sha256, read_record
from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.corpora import AS_IT_IS, CorpusError, Preparation, as_pairs
from transformer.language.translator import Translator
from transformer.language.vocabulary import Vocabulary, normalize
from transformer.layers import LayerConfig
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.runs.distributed import rank_and_world_size
from transformer.runs.trainer import StoppedRun, Trainer, TrainingConfig
from transformer.training import best_device, check_device, cooldown, noam_rate, record_path
from transformer.validation import check_number, check_rate, check_size, check_type, optional_import

__all__ = [
    "Stacks", "Schedule", "Loss", "Recipe", "settings", "changed", "parsed", "read_recipe",
    "RECIPES", "recipe_for", "own_recipe", "train_recipe", "train_translator",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stacks(LayerConfig):
    """The layers of a model, as in `LayerConfig`, and how many there are.

    Args:
        n_layers: number of layers of either stack; or a pair, of the encoder and of the decoder.
    """

    n_layers: int | tuple[int, int] = 6

    def __post_init__(self) -> None:
        config = TransformerConfig(4, 4, **asdict(self))  # refuses settings that no model can have
        object.__setattr__(self, "n_layers", config.n_layers)


@dataclass(frozen=True)
class Schedule:
    """The learning rate: the paper's, with a cool-down at the end.

    Args:
        warmup_steps: updates until the rate is highest.
        cooldown: the share of the run over which the rate falls to 0 at the end.
        peak_rate: the highest rate; 0 to let `factor` decide.
        factor: as in `noam_rate`.
    """

    warmup_steps: int = 4000
    cooldown: float = 0.0
    peak_rate: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        check_size(warmup_steps=self.warmup_steps)
        check_number(peak_rate=self.peak_rate, factor=self.factor, cooldown=self.cooldown)
        if self.cooldown > 1:
            raise ValueError(f"cooldown must be at most 1, but is {self.cooldown}")

    def rate(self, step: int, steps: int, d_model: int) -> float:
        """The learning rate of update `step` of `steps`, of a model `d_model` wide."""
        factor = self.peak_rate * (d_model * self.warmup_steps) ** 0.5 or self.factor
        return noam_rate(step, d_model, self.warmup_steps, factor) * cooldown(step, steps, self.cooldown)


@dataclass(frozen=True)
class Loss:
    """What is minimized; called with a model and a batch, it is the loss that `Trainer` asks for.

    Args:
        smoothing: of the labels.
        r_drop: the weight α of `r_drop_loss`; 0 for `teacher_forced_loss`, one pass.
    """

    smoothing: float = 0.1
    r_drop: float = 0.0

    def __post_init__(self) -> None:
        check_rate(smoothing=self.smoothing)
        check_number(r_drop=self.r_drop)

    def __call__(self, model: Transformer, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch, and the number of target tokens that it sums over."""
        if self.r_drop:
            return r_drop_loss(model, batch, smoothing=self.smoothing, alpha=self.r_drop)
        return teacher_forced_loss(model, batch, smoothing=self.smoothing)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained.

    Args:
        data: what it learns from.
        model: its layers.
        schedule: the learning rate.
        training: how the run goes; `seed` is that of weights, data, subwords and dropout.
        loss: what is minimized.
    """

    data: Reversals | Translations
    model: Stacks
    schedule: Schedule
    training: TrainingConfig
    loss: Loss = Loss()

    def rate(self, step: int) -> float:
        """The learning rate of update `step`."""
        return self.schedule.rate(step, self.training.steps, self.model.d_model)


def settings(recipe: Recipe) -> dict[str, Any]:
    """All settings of a recipe by name; no two parts have one of the same name."""
    return {name: value for part in asdict(recipe).values() for name, value in part.items()}


def _recipe_from(values: Any) -> Recipe:
    """The recipe of which `asdict`, a record or a table in TOML holds the settings, part by part."""
    check_type(dict, recipe=values)
    data = Translations if "corpus" in values.get("data", ()) else Reversals
    kinds: dict[str, Any] = {"data": data, "model": Stacks, "schedule": Schedule}
    kinds |= {"training": TrainingConfig, "loss": Loss}
    parts: Any = {name: kinds[name](**part) if name in kinds else part for name, part in values.items()}
    return Recipe(**parts)


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with some settings changed, whichever parts they belong to.

    Raises:
        TypeError, ValueError: there is no such setting, or a value is out of its range.
    """
    names, parts = settings(recipe), asdict(recipe)
    for name in changes.keys() - names.keys():
        raise ValueError(f"{name!r} is not a setting of this recipe; there are {', '.join(names)}")
    for part in parts.values():
        part |= {name: value for name, value in changes.items() if name in part}
    return _recipe_from(parts)


def parsed(changes: Iterable[str]) -> dict[str, Any]:
    """Settings written as `name=value`: `true`, `false`, `inf`, a number, a pair of these, or else a text."""
    words, values = {"true": True, "false": False, "inf": math.inf}, dict[str, Any]()
    for name, equals, text in (change.partition("=") for change in changes):
        if not equals:
            raise ValueError(f"--set must have the form NAME=VALUE, not {name!r}")
        try:
            values[name] = words[text] if text in words else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def read_recipe(path: Path | str) -> Recipe:
    """The recipe in a run's `config.json`, or in a record; `ValueError` if there is none."""
    values = read_record(path)
    try:
        return _recipe_from(values.get("recipe", values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no recipe: {error}") from None


_TABLES = tomllib.loads(record_path("recipes.toml").read_text(encoding="utf8"))
RECIPES = {name: _recipe_from(table) for name, table in _TABLES.items()}

_OWN = "own texts"  # instead of a corpus
_OWN_LIMITS = 1_000_000, 10_000_000  # words up to which the first size is taken, and the second
_OWN_SIZES = (  # the layers, the highest rate, tokens in a batch
    (replace(RECIPES["phrases"].model, dropout=0.1), 3e-3, 1000),
    (RECIPES["ted-small"].model, 1.2e-3, 2000),
    (Stacks(norm_first=True), 7e-4, 4096),  # the paper's sizes and rate
)


def recipe_for(pairs: Sequence[tuple[str, str]], preparation: Preparation = AS_IT_IS) -> Recipe:
    """A recipe for a corpus of your own, with sizes that fit it, for `train_translator(recipe, pairs=pairs)`.

    From the words and characters of the prepared texts follow vocabulary, layers and batches; the updates
    are ten passes, but at least 1,000 and at most 50,000.

    Args:
        pairs: what will be trained on.
        preparation: what is to be done to every text.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, there are no words, or no pair is short
            enough.
    """
    check_type(Preparation, preparation=preparation)
    texts = [normalize(preparation.prepare(text)) for pair in as_pairs(pairs) for text in pair]
    words = Counter(word for text in texts for word in text.split())
    often = sum(count >= 10 for count in words.values())
    least = 5 + len(set().union(*words))  # characters, four special entries, and the space
    vocab_size = max(least, min(least + often // 2, 16_000))
    model, peak_rate, max_tokens = _OWN_SIZES[sum(words.total() > limit for limit in _OWN_LIMITS)]
    languages = " ".join(preparation.languages or ())
    data = Translations(_OWN, vocab_size, max_tokens, 0.0, preparation.name, languages)
    vocabulary = Vocabulary.train(texts, vocab_size)  # the texts are prepared
    encoded = encode_pairs(list(zip(texts[::2], texts[1::2])), vocabulary, data.longest)
    if not encoded:
        raise ValueError(f"no pair, of {len(pairs):,}, has at most {data.longest:,} tokens on both sides")
    steps = max(1000, min(10 * len(TokenBatches(encoded, max_tokens)), 50_000))
    training = TrainingConfig(steps, evaluate_every=steps // 10, precision="auto")
    return Recipe(data, model, Schedule(steps // 8, cooldown=0.5, peak_rate=peak_rate), training)


def own_recipe(preparation: Preparation = AS_IT_IS, **files: Path | str) -> Recipe:
    """The recipe of `recipe_for`, for files of your own, `source` to `dev_target` as in `Translations`, which
    it names together with their checksums; `OSError` if they are no corpus."""
    languages = " ".join(preparation.languages or ())
    named: dict[str, Any] = {name: str(path) for name, path in files.items()}
    data = Translations(_OWN, 1, preparation=preparation.name, languages=languages, **named)
    named["sha256"] = " ".join(map(file_sha256, data.files))
    try:
        return changed(recipe_for(data.read().train, preparation), **named)
    except ValueError as error:
        raise CorpusError(f"{data}: {error}") from None


def train_recipe(
    recipe: Recipe, directory: PathLike[str] | str | None = None, device: torch.device | str | None = None,
    progress: bool = False, max_minutes: float | None = None, data: Reversals | ParallelData | None = None,
    graphs: bool = False,
) -> tuple[Any, Trainer]:  # fmt: skip
    """Train as a recipe says; stopped and called again with the same directory, it goes on.

    Args:
        recipe: what to do.
        directory: where log, checkpoints and the model go; `None` for nowhere.
        device: to train on; `None` for the `best_device`.
        progress, graphs: as in `Trainer`.
        max_minutes: as in `Trainer.fit`.
        data: what is learned from; `None` to read the recipe's own.

    Returns:
        what the run has made, a translator or the toy's model, and the trainer, as in `train_translator`.

    Raises:
        TypeError: `recipe` is not a recipe.
        StoppedRun: a signal asked the process to end; the model so far is in the directory by then.
    """
    check_type(Recipe, recipe=recipe)
    if directory is not None:
        optional_import("safetensors")  # which saving needs, perhaps hours later
    own = recipe.data if data is None else None
    if isinstance(own, Translations) and own.corpus == _OWN and not own.files:
        raise ValueError("pairs must be given, since the recipe is for texts of your own")
    config, data = recipe.training, data or recipe.data.read()
    torch.manual_seed(config.seed)
    model = data.model(**asdict(recipe.model)).to(best_device() if device is None else device)
    batches = data.batches(config.seed)
    trainer = Trainer(
        model, recipe.loss, batches, recipe.rate, config, directory, data.evaluate, progress, graphs
    )
    stopped: StoppedRun | None = None
    try:
        trainer.fit(max_minutes)
    except StoppedRun as stop:
        stopped = stop
    if directory is not None and config.patience and trainer.finished:
        trainer.load_best()
    elif config.average:
        with trainer.updater.averaged():
            model = deepcopy(model)
    result: Any = data.result(model.eval())
    if directory is not None and rank_and_world_size()[0] == 0:
        data.save(result, Path(directory))
    if stopped is not None:
        raise stopped
    return result, trainer


def train_translator(
    recipe: Recipe, directory: PathLike[str] | str | None = None, device: torch.device | str | None = None,
    progress: bool = False, max_minutes: float | None = None, pairs: Sequence[tuple[str, str]] | None = None,
) -> tuple[Translator, Trainer]:  # fmt: skip
    """Train a translator as `train_recipe` does, with its other arguments.

    Args:
        recipe: what to do; its data are `Translations`.
        pairs: of your own, instead of a corpus; `held_out` chooses those that are not trained on.

    Returns:
        the translator, with a plain model, and the trainer, with the accelerated one and its history. The
        weights are those of the last update; their average, where the recipe averages; and where it has
        patience, and the run a directory and an end, those that were best on the development split.

    Raises:
        TypeError, ValueError: `recipe` is not a recipe, or is the toy's; or there is no such device.
    """
    check_type(Recipe, recipe=recipe)
    data: Any = recipe.data
    check_type(Translations, data=data)
    device = check_device(best_device() if device is None else device)
    own = None if pairs is None else ParallelData(data, *held_out(pairs, data.prepared))
    return train_recipe(recipe, directory, device, progress, max_minutes, own)
