"""A recipe whose sizes are chosen by the texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from transformer.commands.data import Translations
from transformer.commands.own_texts import FILES, OwnTexts, checksum
from transformer.commands.recipes import RECIPES, Recipe, Schedule
from transformer.language.batches import TokenBatches, encode_pairs
from transformer.language.corpora import CorpusError, as_pairs
from transformer.language.vocabulary import Vocabulary, normalize
from transformer.language.wording import AS_IT_IS, Preparation
from transformer.runs.update import TrainingConfig
from transformer.validation import check_type

__all__ = ["recipe_for", "own_recipe"]


_SMALL = RECIPES["phrases"].model
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
    data = Translations(
        "own texts",
        vocab_size,
        max_tokens,
        preparation=preparation.name,
        languages=" ".join(preparation.languages or ()),
    )
    vocabulary = Vocabulary.train(texts, vocab_size)  # the texts are prepared
    encoded = encode_pairs(list(zip(texts[::2], texts[1::2])), vocabulary, data.longest)
    if not encoded:
        said = f"no pair, of {len(texts) // 2:,}, has at most {data.longest:,} tokens on both sides"
        raise ValueError(said)
    steps = max(1000, min(10 * len(TokenBatches(encoded, max_tokens)), 50_000))
    return Recipe(
        data,
        model,
        Schedule(warmup_steps=steps // 8, cooldown=0.5, peak_rate=peak_rate),
        TrainingConfig(steps, evaluate_every=steps // 10, precision="auto"),
    )


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
        OSError, CorpusError: as in `read_pairs` and `recipe_for`.
        ValueError: a file's name is not UTF-8.
    """
    files: dict[str, Any] = dict(zip(FILES, map(str, (source, target, dev_source, dev_target))))
    data = OwnTexts(
        "own texts",
        vocab_size=1,
        preparation=preparation.name,
        languages=" ".join(preparation.languages or ()),
        sha256=" ".join(checksum(path) for path in files.values() if path),
        **files,
    )
    train = data.load("train")
    try:
        recipe = recipe_for(train, preparation)
    except ValueError as error:
        raise CorpusError(f"{', '.join(filter(None, (data.source, data.target)))}: {error}") from None
    sizes = {name: getattr(recipe.data, name) for name in ("vocab_size", "max_tokens")}
    return replace(recipe, data=replace(data, **sizes))
