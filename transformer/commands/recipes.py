"""transformer.commands.recipes, from book/B-commands.ipynb, "Workshop B: The command line".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "Reversals",
    "Translations",
    "OwnTexts",
    "Stacks",
    "Schedule",
    "Loss",
    "Recipe",
    "settings",
    "changed",
    "RECIPES",
    "recipe_for",
    "own_recipe",
    "train_toy",
    "train_translator",
    "toy_record",
    "translation_record",
    "read_recipe",
]


# %% book/B-commands.ipynb · A recipe is data · [recipe-data]
import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.bpe_dropout import sampled_batches
from transformer.language.corpora import CorpusError, Pair, held_out, load_corpus, read_pairs
from transformer.language.scores import corpus_scores
from transformer.language.translator import Translator, evaluate_translator, tune_search
from transformer.language.vocabulary import Vocabulary
from transformer.language.wording import AS_IT_IS, CORPORA, Preparation
from transformer.layers import LayerConfig
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.runs.checkpoints import load_checkpoint, regular_file, set_weights
from transformer.runs.distributed import rank_and_world_size
from transformer.runs.folder import read_record, run_facts
from transformer.runs.trainer import Trainer
from transformer.runs.update import TrainingConfig
from transformer.toy import exact_match, reversal_batches, toy_config
from transformer.training import cooldown, evaluate_loss, noam_rate
from transformer.validation import (
    check_device,
    check_number,
    check_rate,
    check_size,
    check_type,
    optional_import,
)

_Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # of an epoch, as `Trainer` wants them


@dataclass(frozen=True)
class Reversals:
    """The data of the toy task: random digits, to be reversed and marked.

    Args:
        batch_size: sequences in a batch.
        length: digits in a sequence.
    """

    batch_size: int = 32
    length: int = 10

    def __post_init__(self) -> None:
        check_size(batch_size=self.batch_size, length=self.length)

    def batches(self, seed: int) -> _Batches:
        """The training batches by epoch."""
        return partial(reversal_batches, batch_size=self.batch_size, length=self.length, seed=seed)


# %% book/B-commands.ipynb · A recipe is data · [recipe-translations]
@dataclass(frozen=True)
class Translations:
    """The data of a translator: pairs of sentences, cut into subwords.

    Args:
        corpus: a name that `load_corpus` knows.
        vocab_size: tokens in the vocabulary that both languages share.
        max_tokens: the most source tokens, and the most target tokens, in a batch,
            padding included.
        bpe_dropout: how likely a merge of subwords is to be left out in training; 0 for never.
        preparation: the name of what is done to every text, as in `Preparation`.
        languages: the codes of source and target, with a space between them; empty if not known.
    """

    corpus: str
    vocab_size: int
    max_tokens: int = 2000
    bpe_dropout: float = 0.0
    preparation: str = CORPORA.name
    languages: str = " ".join(CORPORA.languages or ())

    def __post_init__(self) -> None:
        check_type(str, corpus=self.corpus)
        check_size(vocab_size=self.vocab_size, max_tokens=self.max_tokens)
        check_rate(bpe_dropout=self.bpe_dropout)
        check_type(str, preparation=self.preparation, languages=self.languages)
        assert self.prepared  # which refuses what is none

    @property
    def prepared(self) -> Preparation:
        """What is done to every text."""
        source, _, target = self.languages.partition(" ")
        return Preparation(self.preparation, (source, target) if self.languages else None)

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence that a batch and a model can hold."""
        return min(self.max_tokens, TransformerConfig(4, 4).max_length)

    def load(self, split: str) -> list[Pair]:
        """A split of the corpus."""
        return load_corpus(self.corpus, split)

    def batches(self, pairs: Sequence[Pair], vocabulary: Vocabulary, seed: int) -> _Batches:
        """The training batches by epoch. Pairs that are too long are left out, with a warning."""
        size, longest = self.max_tokens, self.longest
        if self.bpe_dropout:
            return sampled_batches(pairs, vocabulary, size, self.bpe_dropout, seed, longest)
        encoded = encode_pairs(pairs, vocabulary, longest)
        if left := len(pairs) - len(encoded):
            said = f"{left:,} of {len(pairs):,} pairs have over {longest} tokens and are left out"
            warnings.warn(said, stacklevel=3)  # where the training is asked for
        return TokenBatches(encoded, size, seed=seed)


# %% book/B-commands.ipynb · A recipe is data · [own-texts]
def _sha256(path: str) -> str:
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class OwnTexts(Translations):
    """The data of a translator that learns from files of your own.

    Args:
        source: the file of sources, or the one file that holds both sides with a tab between them.
        target: the file of translations; empty for one file.
        dev_source, dev_target: the same for pairs that are not trained on. Without them, some are held
            out, as `held_out` chooses them.
        sha256: the checksums of the files named, in this order, with spaces between them.

    The other arguments are those of `Translations`.
    """

    source: str = ""
    target: str = ""
    dev_source: str = ""
    dev_target: str = ""
    sha256: str = ""

    @property
    def files(self) -> list[str]:
        """The files that are named."""
        return [path for path in (self.source, self.target, self.dev_source, self.dev_target) if path]

    def load(self, split: str) -> list[Pair]:
        """The pairs to train on, `"train"`, or to judge by, `"dev"`.

        Raises:
            OSError, CorpusError: as in `read_pairs`; or a file is no longer what its checksum says.
        """
        for path, noted in zip(self.files, self.sha256.split()):
            if (found := _sha256(path)) != noted:
                raise CorpusError(f"{path} has changed: its sha256 was {noted}, and is {found}")
        train, dev = _own_splits(
            self.source, self.target, self.dev_source, self.dev_target, self.sha256, self.prepared
        )
        return {"train": train, "dev": dev}[split]


@lru_cache(1)
def _own_splits(
    source: str, target: str, dev_source: str, dev_target: str, sha256: str, preparation: Preparation
) -> tuple[list[Pair], list[Pair]]:
    train = read_pairs(source, target or None, keep_empty=False)
    if not dev_source:
        return held_out(train, preparation)
    dev = read_pairs(dev_source, dev_target or None, keep_empty=False)
    for path, pairs in ((source, train), (dev_source, dev)):
        if not pairs:
            raise CorpusError(f"{path} holds no pairs")
    return train, dev


# %% book/B-commands.ipynb · A recipe is data · [recipe-stacks]
@dataclass(frozen=True, kw_only=True)
class Stacks(LayerConfig):
    """The model: the settings of its layers, and how many there are.

    Args:
        n_layers: number of encoder layers, and of decoder layers.

    The other arguments are those of `LayerConfig`.
    """

    n_layers: int = 6

    def __post_init__(self) -> None:
        TransformerConfig(4, 4, **asdict(self))  # refuses settings that no model can have


# %% book/B-commands.ipynb · A recipe is data · [recipe-schedule]
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
        return noam_rate(step, d_model, self.warmup_steps, factor) * cooldown(
            step, steps, self.cooldown
        )


# %% book/B-commands.ipynb · A recipe is data · [recipe-loss]
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

    def __call__(
        self, model: Transformer, batch: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The summed loss of a batch, and the number of target tokens that it sums over."""
        if self.r_drop:
            return r_drop_loss(model, batch, smoothing=self.smoothing, alpha=self.r_drop)
        return teacher_forced_loss(model, batch, smoothing=self.smoothing)


# %% book/B-commands.ipynb · A recipe is data · [recipe]
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


# %% book/B-commands.ipynb · A recipe is data · [recipe-settings]
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
            raise ValueError(
                f"{name!r} is not a setting of this recipe; there are {', '.join(known)}"
            )
    parts = {}
    for place in fields(recipe):
        part = getattr(recipe, place.name)
        own = {field.name for field in fields(part)} & set(changes)
        parts[place.name] = replace(part, **{name: changes[name] for name in own})
    return Recipe(**parts)


# %% book/B-commands.ipynb · The recipes of this book · [recipe-list]
_TOY = Stacks(d_model=128, n_heads=8, n_layers=2, d_ff=256, dropout=0.0, norm_first=True)
_SMALL = Stacks(d_model=128, n_heads=4, n_layers=2, d_ff=256, dropout=0.05, norm_first=True)

RECIPES = {
    "toy": Recipe(
        Reversals(batch_size=32, length=10),
        _TOY,
        Schedule(warmup_steps=2000, cooldown=0.5, factor=0.5),
        TrainingConfig(30_000, clip_norm=5.0, evaluate_every=500, monitor="sequences"),
        Loss(smoothing=0.0),
    ),
    "phrases": Recipe(
        Translations("phrases", vocab_size=1200, max_tokens=1000),
        _SMALL,
        Schedule(warmup_steps=200, cooldown=0.6, peak_rate=3e-3),
        TrainingConfig(1400, evaluate_every=350, precision="auto"),
    ),
    "ted-tiny": Recipe(
        Translations("ted", vocab_size=4000),
        replace(_SMALL, n_heads=8, n_layers=4, d_ff=512, dropout=0.1),
        Schedule(warmup_steps=800, cooldown=0.4, peak_rate=2e-3),
        TrainingConfig(6000, evaluate_every=500, precision="auto"),
    ),
    "ted-small": Recipe(
        Translations("ted", vocab_size=4000),
        replace(_SMALL, d_model=256, n_layers=3, d_ff=1024, dropout=0.2),
        Schedule(warmup_steps=1000, cooldown=0.5, peak_rate=1.2e-3),
        TrainingConfig(10_000, evaluate_every=500, precision="auto"),
    ),
    "ted": Recipe(
        Translations("ted", vocab_size=8000, max_tokens=4096, bpe_dropout=0.1),
        replace(_SMALL, d_model=512, n_layers=6, d_ff=1024, dropout=0.3),
        Schedule(warmup_steps=4000, peak_rate=5e-4),
        TrainingConfig(
            60_000,
            evaluate_every=500,
            precision="auto",
            weight_decay=1e-4,
            average=0.999,
            patience=20,
        ),
        Loss(r_drop=5.0),
    ),
}


# %% book/B-commands.ipynb · A recipe for your own texts · [own-recipe]
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
        TypeError, ValueError: an argument is of the wrong type, or there are no words.

    Example:
        >>> recipe = recipe_for([("um gato", "a cat"), ("dois gatos", "two cats")])
        >>> recipe.data.vocab_size, recipe.training.steps
        (16, 1000)
    """
    check_type(Preparation, preparation=preparation)
    texts = [preparation.prepare(text) for pair in pairs for text in pair]
    words = Counter(word for text in texts for word in text.split())
    often = sum(count >= 10 for count in words.values())
    vocab_size = min(5 + len(set().union(*words)) + often // 2, 16_000)  # four special ones, and the space
    model, peak_rate, max_tokens = _OWN_SIZES[sum(words.total() > limit for limit in _OWN_LIMITS)]
    vocabulary = Vocabulary.train(texts, vocab_size)  # the texts are prepared
    encoded = encode_pairs(list(zip(texts[::2], texts[1::2])), vocabulary, max_tokens)
    n_batches = len(TokenBatches(encoded, max_tokens))
    steps = max(1000, min(10 * n_batches, 50_000))
    return Recipe(
        Translations(
            "own texts",
            vocab_size,
            max_tokens,
            preparation=preparation.name,
            languages=" ".join(preparation.languages or ()),
        ),
        model,
        Schedule(warmup_steps=steps // 8, cooldown=0.5, peak_rate=peak_rate),
        TrainingConfig(steps, evaluate_every=steps // 10, precision="auto"),
    )


# %% book/B-commands.ipynb · A recipe for your own texts · [own-files-recipe]
def own_recipe(
    source: Path | str,
    target: Path | str = "",
    dev_source: Path | str = "",
    dev_target: Path | str = "",
    preparation: Preparation = AS_IT_IS,
) -> Recipe:
    """The recipe of `recipe_for`, for files of your own, which it names together with their checksums.

    Args:
        source, target, dev_source, dev_target: the files, as in `OwnTexts`.
        preparation: as in `recipe_for`.

    Raises:
        OSError, CorpusError, ValueError: as in `read_pairs` and `recipe_for`.
    """
    files = [str(path) for path in (source, target, dev_source, dev_target)]
    sha256 = " ".join(_sha256(path) for path in files if path)
    train, _ = _own_splits(*files, sha256, preparation)
    recipe = recipe_for(train, preparation)
    names = "source", "target", "dev_source", "dev_target", "sha256"
    named: dict[str, Any] = dict(zip(names, (*files, sha256)))
    return replace(recipe, data=OwnTexts(**asdict(recipe.data), **named))


# %% book/B-commands.ipynb · Training by recipe · [train-toy]
def train_toy(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    max_minutes: float | None = None,
) -> Trainer:
    """Train a toy model as a recipe says; stopped and called again with the same directory, it goes
    on.

    Args:
        recipe: what to do; its data are `Reversals`.
        directory: where log and checkpoints go; `None` for nowhere.
        device: to train on.
        progress: whether to show a progress bar.
        max_minutes: as in `Trainer.fit`.

    Returns:
        the trainer, with the trained model as `.model`.

    Raises:
        TypeError, ValueError: `recipe` is not a recipe, or is a translator's; or there is no such device.
    """
    check_type(Recipe, recipe=recipe)
    if not isinstance(recipe.data, Reversals):
        raise TypeError(f"data must be Reversals, not {type(recipe.data).__name__}")
    device = check_device(device)
    torch.manual_seed(recipe.training.seed)
    model = Transformer(toy_config(**asdict(recipe.model))).to(device)
    return Trainer(
        model,
        loss=recipe.loss,
        batches=recipe.data.batches(recipe.training.seed),
        schedule=recipe.rate,
        config=recipe.training,
        directory=directory,
        # On sequences drawn with a seed of their own.
        evaluate=partial(exact_match, n_sequences=1000, length=recipe.data.length, seed=20_000),
        progress=progress,
    ).fit(max_minutes)


# %% book/B-commands.ipynb · Training by recipe · [train-translator]
def train_translator(
    recipe: Recipe,
    directory: PathLike[str] | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    load: Callable[[str, str], list[Pair]] | None = None,
    max_minutes: float | None = None,
    pairs: Sequence[Pair] | None = None,
) -> tuple[Translator, Trainer]:
    """Train a translator as a recipe says; stopped and called again with the same directory, it
    goes on.

    Args:
        recipe: what to do; its data are `Translations`.
        directory: where log and checkpoints go, and the translator, into its folder `translator`;
            `None` for nowhere.
        device: to train on.
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
    if not isinstance(recipe.data, Translations):
        raise TypeError(f"data must be Translations, not {type(recipe.data).__name__}")
    device, data = check_device(device), recipe.data
    if directory is not None:
        optional_import("safetensors")  # which saving needs
    torch.manual_seed(recipe.training.seed)
    if pairs is not None:
        train, dev = held_out(pairs, data.prepared)
    else:
        train, dev = (load(data.corpus, x) if load else data.load(x) for x in ("train", "dev"))
    texts = (text for pair in train for text in pair)
    vocabulary = Vocabulary.train(texts, data.vocab_size, preparation=data.prepared)
    size = len(vocabulary)
    model = Transformer(TransformerConfig(size, size, **asdict(recipe.model))).to(device)
    unseen = encode_pairs(dev, vocabulary, data.longest)
    judged = TokenBatches(unseen, data.max_tokens, shuffle=False)
    trainer = Trainer(
        model,
        loss=recipe.loss,
        batches=data.batches(train, vocabulary, recipe.training.seed),
        schedule=recipe.rate,
        config=recipe.training,
        directory=directory,
        evaluate=lambda model: evaluate_loss(model, judged(0)),
        progress=progress,
    ).fit(max_minutes)
    translator = Translator(_chosen(trainer, model).eval(), vocabulary)
    if directory is not None and rank_and_world_size()[0] == 0:
        translator.save(Path(directory) / "translator")
    return translator, trainer


def _chosen(trainer: Trainer, model: Transformer) -> Transformer:
    # The model to keep. It shares the trainer's parameters, or is a copy where its weights are to differ.
    folder = trainer.directory if trainer.finished and trainer.config.patience else None
    if trainer.average is None and folder is None:
        return model
    with nullcontext() if trainer.average is None else trainer.average.applied():
        model = deepcopy(model)
    if folder is not None:
        set_weights(model, load_checkpoint(folder / "best.pt"), folder / "best.pt")
    return model


# %% book/B-commands.ipynb · What is recorded · [toy-record]
def toy_record(trainer: Trainer, recipe: Recipe) -> dict[str, Any]:
    """The record of a finished toy run.

    Args:
        trainer: what `train_toy` returned.
        recipe: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the curve of evaluations, and the score on 10,000
        unseen sequences.
    """
    if not isinstance(recipe.data, Reversals):
        raise TypeError(f"data must be Reversals, not {type(recipe.data).__name__}")
    curve = [entry for entry in trainer.history if "sequences" in entry]
    assert isinstance(trainer.model, Transformer)  # as `train_toy` made it
    test = exact_match(trainer.model, length=recipe.data.length)
    return run_facts(trainer.device) | {"recipe": asdict(recipe), "curve": curve, "test": test}


# %% book/B-commands.ipynb · What is recorded · [translation-record]
def translation_record(
    translator: Translator,
    trainer: Trainer,
    recipe: Recipe,
    load: Callable[[str, str], list[Pair]] | None = None,
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
    if not isinstance(recipe.data, Translations):
        raise TypeError(f"data must be Translations, not {type(recipe.data).__name__}")
    data = recipe.data
    record = run_facts(trainer.device) | {
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "seconds": round(sum(entry.get("seconds", 0.0) for entry in trainer.history)),
        "log": trainer.history,
    }
    if isinstance(data, OwnTexts):
        dev = data.load("dev")
        held = {"pairs": len(dev), "beam 4": evaluate_translator(translator, dev)}
        return record | {"scores": {"held out": held}}
    train, dev, test = (
        load(data.corpus, split) if load else data.load(split) for split in ("train", "dev", "test")
    )
    grid = tune_search(translator, dev)
    on_dev = {(entry["beam_size"], entry["length_penalty"]): entry["scores"] for entry in grid}
    searches = {"greedy": (1, 0.6), "beam 4": (4, 0.6), "tuned": next(iter(on_dev))}
    dev_scores = {name: on_dev[search] for name, search in searches.items()}
    return record | {
        "grid": grid,
        "scores": {"dev": {"pairs": len(dev)} | dev_scores}
        | _test_scores(translator, searches, test, train),
    }


def _test_scores(
    translator: Translator,
    searches: dict[str, tuple[int, float]],
    test: Sequence[Pair],
    train: Iterable[Pair],
) -> dict[str, dict[str, Any]]:
    sources, known = [pair.source for pair in test], set(train)
    written = {  # each search once, though it may have two names
        search: translator.translate_tokenized(sources, *search)
        for search in dict.fromkeys(searches.values())
    }
    unseen = [row for row, pair in enumerate(test) if pair not in known]
    scores: dict[str, dict[str, Any]] = {}
    for split, rows in (("test", range(len(test))), ("test, unseen", unseen)):
        scores[split] = {"pairs": len(rows)}
        references = [translator.vocabulary.prepare(test[row].target) for row in rows]
        for name, search in searches.items() if rows else ():
            hypotheses = [written[search][row] for row in rows]
            scores[split][name] = corpus_scores(
                hypotheses, references, n_bootstrap=1000, preparation=translator.preparation
            )
    return scores


# %% book/B-commands.ipynb · What is recorded · [config-code]
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
        if type(value) is not kinds[name] and (type(value), kinds[name]) != (int, float):
            raise TypeError(f"{name} is {value!r:.60}, not of type {kinds[name].__name__}")
    return kind(**values)
