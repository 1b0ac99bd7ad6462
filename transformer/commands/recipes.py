"""Recipes: all that a training run depends on, as data, and the run itself."""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple
import torch
from torch import Tensor
from transformer.commands.data import Lessons, Load, OwnTexts, Reversals, Translations, checksum
from transformer.files import read_record
from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.corpora import CorpusError, Pair, as_pairs, held_out
from transformer.language.translator import Translator
from transformer.language.vocabulary import Vocabulary, normalize
from transformer.language.preparation import AS_IT_IS, Preparation
from transformer.layers import LayerConfig
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.runs.checkpoints import load_checkpoint
from transformer.runs.distributed import StoppedRun, rank_and_world_size
from transformer.runs.folder import run_facts
from transformer.runs.trainer import Trainer, TrainingConfig
from transformer.training import best_device, cooldown, noam_rate
from transformer.validation import check_device, check_number, check_rate, check_size, check_type
from transformer.validation import optional_import
from transformer.weights import set_weights

__all__ = [
    "Stacks", "Schedule", "Loss", "Recipe", "settings", "changed", "parsed", "RECIPES", "read_recipe",
    "recipe_for", "own_recipe", "Trained", "train_recipe", "train_translator",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Stacks(LayerConfig):
    """The model: the settings of its layers, and how many there are.

    Args:
        n_layers: number of layers of either stack; or a pair, of the encoder and of the decoder.

    The other arguments are those of `LayerConfig`.
    """

    n_layers: int | tuple[int, int] = 6

    def __post_init__(self) -> None:
        config = TransformerConfig(4, 4, **asdict(self))  # refuses settings that no model can have
        object.__setattr__(self, "n_layers", config.n_layers)

    @property
    def depths(self) -> tuple[int, int]:
        """As in `TransformerConfig`."""
        return TransformerConfig(4, 4, **asdict(self)).depths


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
        check_number(peak_rate=self.peak_rate, factor=self.factor)
        cooldown(1, 1, self.cooldown)

    def rate(self, step: int, steps: int, d_model: int) -> float:
        """The learning rate of update `step` of `steps`."""
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

    Example:
        >>> recipe = changed(RECIPES["phrases"], steps=500, dropout=0.1)
        >>> recipe.training.steps, recipe.model.dropout
        (500, 0.1)
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
    check_type(Recipe, recipe=recipe)
    parts: dict[str, dict[str, Any]] = asdict(recipe)
    return {name: value for part in parts.values() for name, value in part.items()}


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with some settings changed, whichever parts they belong to.

    Raises:
        TypeError, ValueError: there is no such setting, or a value is out of its range.
    """
    known = settings(recipe)
    for name in changes:
        if name not in known:
            raise ValueError(f"{name!r} is not a setting of this recipe; there are {', '.join(known)}")
    parts = {}
    for slot in fields(recipe):
        part = getattr(recipe, slot.name)
        own = {field.name for field in fields(part)} & set(changes)
        parts[slot.name] = replace(part, **{name: changes[name] for name in own})
    return Recipe(**parts)


def _depths(text: str) -> int | tuple[int, ...]:
    numbers = tuple(map(int, text.split(",")))
    return numbers if len(numbers) > 1 else numbers[0]


_KINDS: dict[type, tuple[str, Any]] = {  # how a setting is called, and read
    bool: ("true or false", {"true": True, "false": False}.__getitem__),
    int: ("an int", int),
    float: ("a float", float),
}
_LAYERS = "an int, or two with a comma between them, for encoder and decoder", _depths


def parsed(recipe: Recipe, changes: Iterable[str]) -> dict[str, Any]:
    """Settings written as `name=value`, each as a value of the recipe's own type.

    Raises:
        ValueError: a value is not of that type. Unknown names are left to `changed`.
    """
    known, values = settings(recipe), {}
    for name, _, text in (change.partition("=") for change in changes):
        wanted, read = _KINDS.get(type(known.get(name)), ("a text", str))
        if name == "n_layers":
            wanted, read = _LAYERS
        try:
            values[name] = read(text)
        except (ValueError, KeyError):
            raise ValueError(f"{name} must be {wanted}, not {text!r}") from None
    return values


_SMALL = Stacks(d_model=128, n_heads=4, n_layers=2, d_ff=256, dropout=0.05, norm_first=True)


def _of_corpus(
    corpus: str, vocab_size: int, model: Stacks, schedule: Schedule, steps: int, max_tokens: int = 2000
) -> Recipe:
    every = 350 if steps < 2000 else 500
    training = TrainingConfig(steps, evaluate_every=every, precision="auto")
    return Recipe(Translations(corpus, vocab_size, max_tokens), model, schedule, training)


_PHRASES = _of_corpus("phrases", 1200, _SMALL, Schedule(200, 0.6, 3e-3), 1400, 1000)
RECIPES = {
    "toy": Recipe(
        Reversals(batch_size=32, length=10),
        Stacks(d_model=128, n_heads=8, n_layers=2, d_ff=256, dropout=0.0, norm_first=True),
        Schedule(warmup_steps=2000, cooldown=0.5, factor=0.5),
        TrainingConfig(30_000, clip_norm=5.0, evaluate_every=500, monitor="sequences"),
        Loss(smoothing=0.0),
    ),
    "phrases": _PHRASES,
    "phrases-post": replace(
        _PHRASES, model=replace(_SMALL, norm_first=False), schedule=Schedule(400, 0.6, 2e-3)
    ),
    "ted-tiny": _of_corpus(
        "ted", 4000, replace(_SMALL, n_heads=8, n_layers=4, d_ff=512, dropout=0.1),
        Schedule(800, 0.4, 2e-3), 6000,
    ),
    "ted-small": _of_corpus(
        "ted", 4000, replace(_SMALL, d_model=256, n_layers=3, d_ff=1024, dropout=0.2),
        Schedule(1000, 0.5, 1.2e-3), 10_000,
    ),
}  # fmt: skip


def read_recipe(path: Path | str) -> Recipe:
    """The recipe in a run's `config.json`, or in a record.

    Raises:
        OSError: the file cannot be opened.
        CheckpointError: it holds no record.
        ValueError: it holds no recipe; the message names the file and the setting.
    """
    values = read_record(path)
    try:
        return _recipe(values.get("recipe", values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no recipe: {error}") from None


def _recipe(values: Any) -> Recipe:
    parts = {"model": Stacks, "schedule": Schedule, "training": TrainingConfig, "loss": Loss}
    if not isinstance(values, dict) or not isinstance(data := values.get("data"), dict):
        raise ValueError("it has no data")
    parts["data"] = OwnTexts if "source" in data else Translations if "corpus" in data else Reversals
    for name in parts.keys() ^ values.keys():
        raise ValueError(f"it has no {name}" if name in parts else f"{name!r} is not a part of one")
    return Recipe(**{name: _part(kind, values[name]) for name, kind in parts.items()})


def _part(kind: type, values: Any) -> Any:
    check_type(dict, part=values)
    kinds: dict[str, Any] = {field.name: field.type for field in fields(kind)}
    for name, value in values.items():
        if name not in kinds:
            raise ValueError(f"{name!r} is not a setting of one")
        if name == "n_layers":  # a number or a list of two, of which `Stacks` says more
            continue
        if type(value) is not kinds[name] and (type(value), kinds[name]) != (int, float):
            raise TypeError(f"{name} is {value!r:.60}, not of type {kinds[name].__name__}")
    return kind(**values)


_OWN_LIMITS = 1_000_000, 10_000_000  # words up to which the first size is taken, and the second
_OWN_SIZES = (  # the layers, the highest rate, tokens in a batch
    (replace(_SMALL, dropout=0.1), 3e-3, 1000),
    (replace(_SMALL, d_model=256, n_layers=3, d_ff=1024, dropout=0.2), 1.2e-3, 2000),
    (replace(_SMALL, d_model=512, n_heads=8, n_layers=6, d_ff=2048, dropout=0.1), 7e-4, 4096),
)


def recipe_for(pairs: Sequence[tuple[str, str]], preparation: Preparation = AS_IT_IS) -> Recipe:
    """A recipe for a corpus of your own, with sizes that fit it.

    Args:
        pairs: what will be trained on.
        preparation: what is to be done to every text.

    Returns:
        the recipe, for `train_translator(recipe, pairs=pairs)`. From the words and characters of the
        prepared texts follow vocabulary, layers and batches; the updates are ten passes, but at least
        1,000 and at most 50,000.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, there are no words, or no pair is short
            enough.

    Example:
        >>> recipe = recipe_for([("um gato", "a cat"), ("dois gatos", "two cats")])
        >>> recipe.data.vocab_size, recipe.training.steps
        (16, 1000)
    """
    check_type(Preparation, preparation=preparation)
    texts = [normalize(preparation.prepare(text)) for pair in as_pairs(pairs) for text in pair]
    words = Counter(word for text in texts for word in text.split())
    often = sum(count >= 10 for count in words.values())
    least = 5 + len(set().union(*words))  # characters, four special entries, and the space
    vocab_size = max(least, min(least + often // 2, 16_000))
    model, peak_rate, max_tokens = _OWN_SIZES[sum(words.total() > limit for limit in _OWN_LIMITS)]
    languages = " ".join(preparation.languages or ())
    name = preparation.name
    data = Translations("own texts", vocab_size, max_tokens, preparation=name, languages=languages)
    vocabulary = Vocabulary.train(texts, vocab_size)  # the texts are prepared
    encoded = encode_pairs(list(zip(texts[::2], texts[1::2])), vocabulary, data.longest)
    if not encoded:
        said = f"no pair, of {len(texts) // 2:,}, has at most {data.longest:,} tokens on both sides"
        raise ValueError(said)
    steps = max(1000, min(10 * len(TokenBatches(encoded, max_tokens)), 50_000))
    training = TrainingConfig(steps, evaluate_every=steps // 10, precision="auto")
    return Recipe(data, model, Schedule(steps // 8, cooldown=0.5, peak_rate=peak_rate), training)


def own_recipe(preparation: Preparation = AS_IT_IS, **files: Path | str) -> Recipe:
    """The recipe of `recipe_for`, for files of your own, which it names together with their checksums.

    Args:
        preparation: as in `recipe_for`.
        **files: `source`, `target`, `dev_source` and `dev_target`, as in `OwnTexts`.

    Raises:
        OSError, CorpusError: as in `read_pairs` and `recipe_for`.
        ValueError: a file's name is not UTF-8.
    """
    named: dict[str, Any] = {name: str(path) for name, path in files.items()}
    named |= {"preparation": preparation.name, "languages": " ".join(preparation.languages or ())}
    own = OwnTexts("own texts", 1, **named)
    own = replace(own, sha256=" ".join(map(checksum, own.files)))
    train = own.load("train")
    try:
        recipe = recipe_for(train, preparation)
    except ValueError as error:
        raise CorpusError(f"{', '.join(filter(None, (own.source, own.target)))}: {error}") from None
    chosen: Any = recipe.data
    return replace(recipe, data=replace(own, vocab_size=chosen.vocab_size, max_tokens=chosen.max_tokens))


class Trained(NamedTuple):
    """What a run has given."""

    recipe: Recipe
    data: Reversals | Lessons  # what it learned from
    learned: Any  # a translator, or the toy's model
    trainer: Trainer

    def record(self) -> dict[str, Any]:
        """The record of a finished run: the facts of `run_facts`, the recipe, and what the data note."""
        facts = run_facts(self.trainer.updater.device) | {"recipe": asdict(self.recipe)}
        return facts | self.data.record(self.learned, self.trainer)


def train_recipe(
    recipe: Recipe, directory: PathLike[str] | str | None = None, device: torch.device | str | None = None,
    progress: bool = False, max_minutes: float | None = None, data: Reversals | Lessons | None = None,
    graphs: bool = False,
) -> Trained:
    """Train as a recipe says; stopped and called again with the same directory, it goes on.

    Args:
        recipe: what to do.
        directory: where log, checkpoints and the model go; `None` for nowhere.
        device: to train on; `None` for the `best_device`.
        progress: whether to show a progress bar.
        max_minutes: as in `Trainer.fit`.
        data: what is learned from; `None` to read the recipe's own.
        graphs: as in `Trainer`.

    Raises:
        TypeError, ValueError: `recipe` is not a recipe; or there is no such device.
        StoppedRun: a signal asked the process to end; the model so far is in the directory by then.
    """
    check_type(Recipe, recipe=recipe)
    device = check_device(best_device() if device is None else device)
    if directory is not None:
        optional_import("safetensors")  # which saving needs
    torch.manual_seed(recipe.training.seed)
    data = data or recipe.data.read()
    model = data.model(**asdict(recipe.model)).to(device)
    batches, config = data.batches(recipe.training.seed), recipe.training
    given = model, recipe.loss, batches, recipe.rate, config, directory, data.evaluate
    trainer = Trainer(*given, progress, graphs)
    stopped: StoppedRun | None = None
    try:
        trainer.fit(max_minutes)
    except StoppedRun as stop:
        stopped = stop
    learned: Any = data.learned(_chosen(trainer, model).eval())
    if directory is not None and rank_and_world_size()[0] == 0:
        data.keep(learned, Path(directory))
    if stopped is not None:
        usable = f"; what can be used already: {Path(directory) / recipe.data.left}" if directory else ""
        raise StoppedRun(f"{stopped}{usable}", stopped.signal, stopped.step)
    return Trained(recipe, data, learned, trainer)


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


def train_translator(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str | None = None,
    progress: bool = False,
    load: Load | None = None,
    max_minutes: float | None = None,
    pairs: Sequence[Pair] | None = None,
) -> tuple[Translator, Trainer]:
    """Train a translator as `train_recipe` does, with its other arguments.

    Args:
        recipe: what to do; its data are `Translations`.
        load: gives a split of a corpus, as `load_corpus` does; `None` for that of the recipe's data.
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
    lessons = data.read(load) if pairs is None else Lessons(data, *held_out(pairs, data.prepared))
    trained = train_recipe(recipe, directory, device, progress, max_minutes, lessons)
    return trained.learned, trained.trainer
