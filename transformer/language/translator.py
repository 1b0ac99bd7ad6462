"""A translator: text in, text out."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypedDict, Unpack
import torch
import torch.nn.functional as F
from torch import Tensor
from transformer.decoding import beam_search, check_beam, greedy_search
from transformer.language.batches import batch_cuts, pad
from transformer.language.corpora import Pair
from transformer.language.doubts import Translation, checked, warn_of_doubts
from transformer.language.folder import (
    check_fit,
    check_sums,
    read_config,
    read_model,
    read_vocabulary,
    savable,
    translator_folder,
    write_translator,
)
from transformer.language.hub import OnHub
from transformer.language.scores import corpus_scores
from transformer.language.vocabulary import UNK_ID, Vocabulary
from transformer.model import Transformer, TransformerConfig
from transformer.speed.fast import FastTransformer, accelerated
from transformer.training import best_device, evaluating
from transformer.validation import (
    check_choice,
    check_device,
    check_finite_weights,
    check_size,
    check_type,
    optional_import,
)
from transformer.weights import original, plain_transformer

__all__ = [
    "by_length",
    "Search",
    "SearchSettings",
    "adjusted",
    "translate_ids",
    "Alignment",
    "ENGINES",
    "Translator",
    "AnyTranslator",
    "by_words",
    "evaluate_translator",
    "SEARCHES",
    "tune_search",
]


def by_length(sequences: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Groups of rows of about the same length, the longest first, so that trouble with memory comes
    at once.

    Args:
        sequences: token ids. A sequence of a single token, an end token alone, is left out: it
            says nothing.
        max_tokens: the most tokens in a group, padding included; a longer sequence makes a group of
            its own.

    Raises:
        TypeError: `max_tokens` is not an int.
        ValueError: it is below 1.
    """
    check_size(max_tokens=max_tokens)
    rows = [row for row, ids in enumerate(sequences) if len(ids) > 1]
    rows.sort(key=lambda row: -len(sequences[row]))
    for cut in batch_cuts([len(sequences[row]) for row in rows], max_tokens):
        yield rows[cut]


_READ = 64  # characters of a sentence for each token that the model reads; what follows is cut off


class _Source(NamedTuple):
    """What the model reads of a sentence: the text, its ids with the end token, and what was cut."""

    text: str
    ids: list[int]
    cuts: list[str]


def _encoded(
    sentences: Sequence[str], vocabulary: Vocabulary, config: TransformerConfig
) -> list[_Source]:
    if isinstance(sentences, str):
        raise TypeError("sentences must be a list of strings, not one string")
    longest, limit = config.max_length - 1, _READ * config.max_length  # beside the end token
    texts = [text[:limit] if isinstance(text, str) else text for text in sentences]
    sources = []
    for given, text, ids in zip(sentences, texts, vocabulary.encode_batch(texts), strict=True):
        cuts = [f"is cut to its first {limit:,} characters"] * (text != given)
        cuts += [f"is cut to its first {longest} tokens"] * (len(ids) > longest)
        sources.append(_Source(text, [*ids[:longest], config.eos_id], cuts))
    return sources


@dataclass(frozen=True)
class Search:
    """How a translation is searched for. The command line has an option for each setting, and its help
    says what stands here.

    Args:
        beam_size: width of the beam, from 1 to 100: hypotheses kept; 1 for greedy search.
        length_penalty: how much a long translation is favored, from 0 (not at all) to 10.
        max_length: the most tokens of a translation; a model may allow fewer.
        max_tokens: the most source tokens, padding included, that are translated at once.

    Raises:
        TypeError, ValueError: a setting is of the wrong type or out of its range.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length: int = 200
    max_tokens: int = 4000

    def __post_init__(self) -> None:
        check_beam(self.beam_size, self.length_penalty)
        check_size(max_length=self.max_length, max_tokens=self.max_tokens)


class SearchSettings(TypedDict, total=False):
    """The settings of a `Search` by name, for whoever gives a few of them."""

    beam_size: int
    length_penalty: float
    max_length: int
    max_tokens: int


def adjusted(search: Search, changes: SearchSettings) -> Search:
    """A search with some settings changed.

    Raises:
        TypeError, ValueError: `search` is not a `Search`, or there is no such setting, or as in `Search`.
    """
    check_type(Search, search=search)
    return replace(search, **changes)


def translate_ids(model: Transformer, sources: list[list[int]], search: Search) -> list[list[int]]:
    """Translate sources of token ids, each with its end token, in batches of about the same length:
    the ids of each translation without padding, none for an empty source."""
    device, pad_id = next(model.parameters()).device, model.config.pad_id
    longest = min(search.max_length, model.config.max_length)
    found: list[list[int]] = [[] for _ in sources]
    for rows in by_length(sources, search.max_tokens):
        src = pad([sources[row] for row in rows], pad_id).to(device)
        if search.beam_size == 1:
            best = greedy_search(model, src, longest)
        else:
            beam = beam_search(model, src, search.beam_size, search.length_penalty, longest)
            best = beam.tokens[:, 0]
        for row, ids in zip(rows, best.tolist(), strict=True):
            found[row] = [token for token in ids if token != pad_id]
    return found


class Alignment(NamedTuple):
    """A translation and what its cross-attention looked at: subwords, or words after `by_words`."""

    source: list[str]
    target: list[str]
    weights: Tensor  # [n_layers, H, T, S], on the CPU


def _cross_attention(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    # What the decoder looks at while it writes `target`, end token included: [n_layers, H, T, S].
    device = next(model.parameters()).device
    src = torch.tensor([source], device=device)
    tgt = torch.tensor([[model.config.bos_id, *target[:-1]]], device=device)
    with evaluating(model):
        return model.attention_maps(src, tgt).cross[:, 0].cpu()


ENGINES = ("pytorch", "ctranslate2", "auto")
_EXCHANGE = "transformer.exchange.ctranslate2"  # builds on this module, and is imported when asked for


_Find = Callable[[list[list[int]], Search], list[list[int]]]  # translations of sources, all as token ids


def _engine_for(translator: "Translator", engine: str) -> tuple[str, _Find]:
    # What runs the searches of a translator: its name, and its `translate_ids`. Warnings name the line
    # where the translator is made.
    check_choice(ENGINES, engine=engine)
    if engine != "pytorch":
        try:
            return "ctranslate2", optional_import(_EXCHANGE).CTranslate2Engine(translator).translate_ids
        except (ImportError, TypeError, ValueError, RuntimeError) as error:
            if engine != "auto":
                raise
            warnings.warn(f"searches run on pytorch: {error}", stacklevel=3)
    return "pytorch", partial(translate_ids, accelerated(translator.model, stacklevel=4))


class Translator(OnHub):
    """A trained model with its vocabulary: sentences in, sentences out.

    Sentences are prepared as those of training were, and translations restored, by the vocabulary's
    `Preparation`. Searches run on the accelerated model, which shares the parameters: weights that change
    later count at once. Replace or watch a part of the model before. Where `accelerate` refuses, a warning
    says why; of a compiled model it takes the original. CTranslate2 copies the weights, in float32, and
    ends its beam by a rule of its own, so that a rare translation differs.

    Args:
        model: a trained `Transformer` with one vocabulary for both languages, and with the parameters that
            its configuration makes; so of a subclass as well, of which `save` keeps the plain part.
        vocabulary: that vocabulary.
        engine: what runs the searches, one of `ENGINES`, and then as attribute what does. `"auto"` is
            CTranslate2 where it can be had for the model, and else PyTorch, with a warning.

    Raises:
        TypeError, ValueError, ImportError: an argument is of the wrong type, they do not belong together,
            a weight is not finite, or CTranslate2 cannot hold the model, or is not installed.

    Example:
        >>> Translator.load("phrases").translate(["A menina gosta do gato preto."])
        ['the girl likes the black cat.']
    """

    model: Transformer
    vocabulary: Vocabulary
    engine: str

    def __init__(self, model: Transformer, vocabulary: Vocabulary, engine: str = "pytorch") -> None:
        check_type(Transformer, model=(model := original(model)))
        check_type(Vocabulary, vocabulary=vocabulary)
        if not isinstance(model, FastTransformer):  # which was compared when it was made
            plain_transformer(model)  # and not only when it is saved
        check_fit(model.config, vocabulary)
        check_finite_weights(dict(model.named_parameters()))  # kernels of attention make numbers of NaN
        self.model, self.vocabulary = model, vocabulary
        self.engine, self._find = _engine_for(self, engine)

    @classmethod
    def load(
        cls, path: Path | str, device: torch.device | str | None = None, engine: str = "pytorch"
    ) -> Self:
        """Read a translator from the folder that `save` wrote; nothing in it is executed.

        Args:
            path: the folder, or the name of a translator that the package carries, such as
                `"phrases"`. For a folder of that name, write `"./phrases"` or a `Path`.
            device: to translate on; `None` for the `best_device`.
            engine: as in `Translator`; so are its errors.

        Raises:
            TypeError, ValueError: `path` is not a path, or there is no such device.
            FileNotFoundError, CheckpointError: the file that the message names is missing or damaged,
                or does not fit the others.
        """
        check_type((str, Path), path=path)
        files = check_sums(translator_folder(path))
        config, preparation = read_config(files["config.json"])
        place = check_device(best_device() if device is None else device)
        model = read_model(files["model.safetensors"], config, place)
        return cls(model, read_vocabulary(files["vocabulary.json"], config, preparation), engine)

    def save(self, path: Path | str, dtype: torch.dtype = torch.float16) -> None:
        """Write weights, configuration, vocabulary and checksums into a folder, made if missing.

        Cut off at any moment, it leaves the earlier translator or the new one; the next `save` tidies up.

        Raises:
            TypeError, ValueError: as in `save_model`; or the folder's `config.json` is not a translator's.
            OSError: a file cannot be written; the message names it, and an earlier translator stays.
        """
        write_translator(Path(path), savable(self.model, dtype), self.vocabulary, dtype)

    def translate(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[str]:
        """Translate sentences as you type them, each in a string of its own, into what `preparation`
        restores: lower case for the book's corpora. One warning names the first sentence whose translation
        is doubtful, as `translate_checked` tells of each. Arguments and errors are those of
        `translate_tokenized`.
        """
        found = self.translate_checked(sentences, search, **changes)
        warn_of_doubts(sentences, [each.doubts for each in found])
        return [each.text for each in found]

    def translate_checked(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[Translation]:
        """As `translate`, each translation with what makes it doubtful: it or its sentence is cut, the
        vocabulary lacks characters, there is no letter or digit, or fewer sentences than were read. What has
        no known character is copied.
        """
        sources = _encoded(sentences, self.vocabulary, self.model.config)
        found = self.translate_ids([source.ids for source in sources], adjusted(search, changes))
        return [self._checked(*each) for each in zip(sources, found, strict=True)]

    def _checked(self, source: _Source, ids: list[int]) -> Translation:
        text = self.preparation.restore(self.vocabulary.decode(ids))
        unknown = self.vocabulary.unknown(source.text) if UNK_ID in source.ids else ""
        is_known = bool({*self.vocabulary.tokens(source.ids[:-1])} - {"<unk>", "▁"})
        is_whole = ids[-1:] in ([], [self.model.config.eos_id])
        return checked(source.text, text, source.cuts, unknown, is_known, is_whole)

    def translate_tokenized(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[str]:
        """Translate sentences into the form that training showed, as scores want them.

        Args:
            sentences: as you type them, or prepared; cut, with one warning, to the model's `max_length`.
            search: how to search.
            **changes: settings of `search` to change, such as `beam_size=1`.

        Raises:
            TypeError, ValueError: `sentences` is a string or holds a non-string, or as in `adjusted`.
        """
        sources = _encoded(sentences, self.vocabulary, self.model.config)
        warn_of_doubts(sentences, [source.cuts for source in sources])
        found = self.translate_ids([source.ids for source in sources], adjusted(search, changes))
        return [self.vocabulary.decode(ids) for ids in found]

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence as you type it, the end token included."""
        return len(self.vocabulary.encode(sentence)) + 1

    def translate_ids(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        """As the function `translate_ids`, by this translator's engine."""
        return self._find(sources, search)

    def align(self, sentence: str, search: Search = Search(), **changes: Unpack[SearchSettings]) -> Alignment:
        """Translate one sentence as `translate` does, and note what the decoder attended to meanwhile."""
        check_type(str, sentence=sentence)
        ((_, source, cuts),) = _encoded([sentence], self.vocabulary, self.model.config)
        warn_of_doubts([sentence], [cuts])
        (found,) = self.translate_ids([source], adjusted(search, changes))
        target = found or [self.model.config.eos_id]  # of an empty sentence
        names, weights = self.vocabulary.tokens, _cross_attention(self.model, source, target)
        return Alignment(names(source), names(target), weights)


class AnyTranslator(Protocol):
    """What the command line and the server ask of a translator, ours or another program's."""

    model: Transformer
    engine: str  # what runs the searches

    def translate(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[str]:
        """Translate sentences as you type them."""

    def translate_checked(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[Translation]:
        """Translate sentences as you type them, each with what makes its translation doubtful."""

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence as you type it, the end token included."""


def by_words(found: Alignment) -> Alignment:
    """The same alignment between words: weights are summed over a source word's subwords, and
    averaged over a target word's.

    Args:
        found: what `Translator.align` returned.

    Raises:
        TypeError: `found` is not an `Alignment`.
    """
    check_type(Alignment, found=found)
    columns, rows = (_words(side, found.weights) for side in (found.source, found.target))
    rows = rows / rows.sum(dim=1, keepdim=True)
    source, target = (
        "".join(side).replace("</s>", "▁</s>").removeprefix("▁").split("▁")
        for side in (found.source, found.target)
    )
    return Alignment(source, target, rows @ found.weights @ columns.T)


def _words(tokens: list[str], like: Tensor) -> Tensor:
    # [words, tokens], 1 where a token belongs to a word.
    starts = [i == 0 or token[0] == "▁" or token == "</s>" for i, token in enumerate(tokens)]
    word = torch.tensor(starts).cumsum(dim=0) - 1
    return F.one_hot(word).T.to(like)


def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], search: Search = Search()
) -> dict[str, dict[str, Any]]:
    """The `corpus_scores` of translating the sources of `pairs`, against their targets, in the form
    that training showed."""
    check_type(Translator, translator=translator)
    hypotheses = translator.translate_tokenized([source for source, _ in pairs], search)
    references = [translator.vocabulary.prepare(target) for _, target in pairs]
    return corpus_scores(hypotheses, references, preparation=translator.preparation)


# Wide enough that the best penalty lies inside.
SEARCHES = (
    Search(1),
    *(Search(4, penalty) for penalty in (0.0, 0.6, 1.0, 1.4, 2.0, 3.0)),
    *(Search(8, penalty) for penalty in (1.0, 1.4, 2.0)),
)


def tune_search(
    translator: Translator, pairs: Sequence[Pair], searches: Sequence[Search] = SEARCHES
) -> list[dict[str, Any]]:
    """Score several searches on the development split.

    Args:
        translator: a trained translator.
        pairs: of a split that decides this and nothing else.
        searches: which to try.

    Returns:
        for each search `"beam_size"`, `"length_penalty"` and `"scores"`, as `corpus_scores` gives
        them; the highest BLEU-detok first, and equal ones in the order of `searches`.

    Raises:
        TypeError, ValueError: one is not a `Search`, or there is none, or no pair.
    """
    check_type(Translator, translator=translator)
    if not searches:
        raise ValueError("searches must hold at least one Search, but is empty")
    for search in searches:
        check_type(Search, search=search)
    grid = [
        {
            "beam_size": search.beam_size,
            "length_penalty": search.length_penalty,
            "scores": evaluate_translator(translator, pairs, search),
        }
        for search in searches
    ]
    return sorted(grid, key=lambda entry: -entry["scores"]["BLEU-detok"]["score"])
