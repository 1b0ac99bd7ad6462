"""transformer.language.translator, from book/13-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "by_length", "Search", "translate_ids", "Engine", "Source", "AnyTranslator", "Alignment", "Translator",
    "by_words", "evaluate_translator", "SEARCHES", "tune_search",
]


# %% book/13-translation.ipynb · The Translator class · [translator-imports]
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer.decoding import beam_search, check_beam, greedy_search
from transformer.language.batches import batch_cuts, pad
from transformer.language.corpora import Pair, Preparation, Translation, checked, warn_of_doubts
from transformer.language.folder import check_agreement, read_translator, savable, write_translator
from transformer.language.vocabulary import UNK_ID, Vocabulary
from transformer.model import Transformer
from transformer.speed.fast import FastTransformer, accelerated
from transformer.training import best_device, evaluating
from transformer.validation import check_size, check_type
from transformer.weights import check_finite, original, plain_transformer


# %% book/13-translation.ipynb · The Translator class · [translator-search]
def by_length(sequences: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Groups of rows of about the same length, the longest first, of at most `max_tokens` with padding.

    A sequence of a single token, an end token alone, is left out; one that is too long is alone.
    """
    rows = [row for row, ids in enumerate(sequences) if len(ids) > 1]
    rows.sort(key=lambda row: -len(sequences[row]))
    for cut in batch_cuts([len(sequences[row]) for row in rows], max_tokens):
        yield rows[cut]


@dataclass(frozen=True)
class Search:
    """How a translation is searched for.

    Args:
        beam_size: width of the beam, from 1 to 100: hypotheses kept; 1 for greedy search.
        length_penalty: how much a long translation is favored, from 0 (not at all) to 10.
        max_length: the most tokens of a translation; a model may allow fewer.
        max_tokens: the most source tokens, padding included, that are translated at once; by default
            4,000, or 32,000 on an NVIDIA GPU. A batch that its memory can't hold is halved.

    Raises:
        TypeError, ValueError: a setting is of the wrong type or out of its range.
    """

    beam_size: int = 4
    length_penalty: float = 0.6
    max_length: int = 200
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        check_beam(self.beam_size, self.length_penalty)
        check_size(max_length=self.max_length)
        if self.max_tokens is not None:
            check_size(max_tokens=self.max_tokens)


def translate_ids(model: Transformer, sources: list[list[int]], search: Search) -> list[list[int]]:
    """Translate sources of token ids, each with its end token, in batches of about the same length:
    the ids of each translation without padding, none for an empty source."""
    device, pad_id = next(model.parameters()).device, model.config.pad_id
    longest = min(search.max_length, model.config.max_length)
    translations: list[list[int]] = [[] for _ in sources]
    max_tokens = search.max_tokens or (32_000 if device.type == "cuda" else 4000)
    batches = deque(by_length(sources, max_tokens))
    while batches:
        rows = batches.popleft()
        src = pad([sources[row] for row in rows], pad_id).to(device)
        try:
            if search.beam_size == 1:
                best = greedy_search(model, src, longest)
            else:
                beam = beam_search(model, src, search.beam_size, search.length_penalty, longest)
                best = beam.tokens[:, 0]
        except torch.OutOfMemoryError:
            if len(rows) == 1:
                raise
            batches.extendleft((rows[len(rows) // 2 :], rows[: len(rows) // 2]))
            continue
        for row, ids in zip(rows, best.tolist(), strict=True):
            translations[row] = [token for token in ids if token != pad_id]
    return translations


# %% book/13-translation.ipynb · The Translator class · [any-translator]
Engine = Callable[[list[list[int]], Search], list[list[int]]]  # translations of sources, all as token ids


class Source(NamedTuple):
    """What a model reads of a sentence."""

    text: str  # as somebody typed it, without what is cut off
    ids: list[int]  # with the end token
    cuts: list[str]  # what is said of a sentence that was cut
    unknown: str  # the characters that the vocabulary lacks
    is_known: bool  # whether any character is known


class AnyTranslator(ABC):
    """Sentences in, sentences out, whatever the vocabulary; `engine` runs the searches."""

    model: Transformer
    engine: Engine

    @abstractmethod
    def read(self, sentences: Sequence[str]) -> list[Source]:
        """What the model reads of sentences; too long ones are cut."""

    @abstractmethod
    def write(self, ids: list[int]) -> str:
        """The text of a translation's ids."""

    def translate(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Any
    ) -> list[str]:
        """Translate sentences as you type them, each in a string of its own.

        One warning names the first sentence whose translation is doubtful; `translate_checked` tells of each.

        Args:
            sentences: the sentences; those that are longer than the model's `max_length` are cut.
            search: how to search.
            **changes: settings of `search` to change, such as `beam_size=1`.

        Raises:
            TypeError, ValueError: `sentences` is a string or holds a non-string, `search` is not a
                `Search`, there is no such setting, or as in `Search`.
        """
        checked = self.translate_checked(sentences, search, **changes)
        warn_of_doubts(sentences, [each.doubts for each in checked])
        return [each.text for each in checked]

    def translate_checked(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Any
    ) -> list[Translation]:
        """As `translate`, each translation with what makes it doubtful: it or its sentence is cut, the
        vocabulary lacks characters, there is no letter or digit, or fewer sentences than were read. What has
        no known character is copied.
        """
        translations = []
        for (text, _, cuts, unknown, is_known), ids in self._searched(sentences, search, changes):
            is_whole = ids[-1:] in ([], [self.model.config.eos_id])
            translations.append(checked(text, self.write(ids), cuts, unknown, is_known, is_whole))
        return translations

    def _searched(
        self, sentences: Sequence[str], search: Search, changes: dict[str, Any]
    ) -> list[tuple[Source, list[int]]]:
        if isinstance(sentences, str) or not hasattr(sentences, "__len__"):
            given = "one string" if isinstance(sentences, str) else type(sentences).__name__
            raise TypeError(f"sentences must be a list of strings, not {given}")
        check_type(str, **{f"sentences[{n}]": text for n, text in enumerate(sentences)})
        check_type(Search, search=search)
        sources = self.read(sentences)
        targets = self.engine([source.ids for source in sources], replace(search, **changes))
        return list(zip(sources, targets, strict=True))


# %% book/13-translation.ipynb · The Translator class · [the-translator]
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


_READ = 64  # characters of a sentence for each token that the model reads; what follows is cut off


class Translator(AnyTranslator):
    """A trained model with its vocabulary: sentences in, sentences out.

    Sentences are prepared as those of training were, and translations restored, by the vocabulary's
    `Preparation`. Searches run on the accelerated model, which shares the parameters: weights that change
    later, and forward hooks, count at once. Replace a part of the model before. Where `accelerate` refuses,
    a warning says why; of a compiled model it takes the original.

    Args:
        model: a trained `Transformer` with one vocabulary for both languages, and with the parameters that
            its configuration makes; so of a subclass as well, of which `save` keeps the plain part.
        vocabulary: that vocabulary.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, they do not belong together, or a weight is
            not finite.

    Example:
        >>> Translator.load("phrases").translate(["A menina gosta do gato preto."])
        ['the girl likes the black cat.']
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary) -> None:
        check_type(Transformer, model=(model := original(model)))
        check_type(Vocabulary, vocabulary=vocabulary)
        if not isinstance(model, FastTransformer):  # which was compared when it was made
            plain_transformer(model)  # and not only when it is saved
        check_agreement(model.config, vocabulary)
        check_finite(dict(model.named_parameters()))  # kernels of attention make numbers of NaN
        self.model, self.vocabulary = model, vocabulary
        self.engine = partial(translate_ids, accelerated(model, stacklevel=3))

    @property
    def preparation(self) -> Preparation:
        """What is done to every sentence, and to every translation."""
        return self.vocabulary.preparation

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str | None = None) -> Self:
        """Read a translator from the folder that `save` wrote; nothing in it is executed.

        Args:
            path: the folder, or the name of a translator that the package carries, such as
                `"phrases"`. For a folder of that name, write `"./phrases"` or a `Path`.
            device: to translate on; `None` for the `best_device`.

        Raises:
            TypeError, ValueError: `path` is not a path, or there is no such device.
            FileNotFoundError, CheckpointError: the file that the message names is missing or damaged,
                or does not fit the others.
        """
        return cls(*read_translator(path, best_device() if device is None else device))

    def save(self, path: Path | str, dtype: torch.dtype = torch.float16) -> None:
        """Write weights, configuration, vocabulary and checksums into a folder, made if missing.

        Weights are rounded to `dtype`. Cut off at any moment, it leaves the earlier translator or the new
        one; the next `save` tidies up.

        Raises:
            TypeError, ValueError: as in `save_model`; or the folder's `config.json` is not a translator's.
            OSError: a file cannot be written; the message names it, and an earlier translator stays.
        """
        write_translator(Path(path), savable(self.model), self.vocabulary, dtype)

    def read(self, sentences: Sequence[str]) -> list[Source]:
        config, vocabulary = self.model.config, self.vocabulary
        longest, limit = config.max_length - 1, _READ * config.max_length  # beside the end token
        texts = [text[:limit] if isinstance(text, str) else text for text in sentences]
        sources = []
        for given, text, whole in zip(sentences, texts, vocabulary.encode_batch(texts), strict=True):
            ids = whole[:longest]
            cuts = [f"is cut to its first {limit:,} characters"] * (text != given)
            cuts += [f"is cut to its first {longest} tokens"] * (len(whole) > longest)
            unknown = vocabulary.unknown(text) if UNK_ID in ids else ""
            is_known = bool({*vocabulary.tokens(ids)} - {"<unk>", "▁"})
            sources.append(Source(text, [*ids, config.eos_id], cuts, unknown, is_known))
        return sources

    def write(self, ids: list[int]) -> str:
        return self.preparation.restore(self.vocabulary.decode(ids))

    def translate_tokenized(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Any
    ) -> list[str]:
        """As `translate`, into the form that training showed, as scores want them; the one warning is of
        sentences that are cut."""
        searched = self._searched(sentences, search, changes)
        warn_of_doubts(sentences, [source.cuts for source, _ in searched])
        return [self.vocabulary.decode(ids) for _, ids in searched]

    def align(self, sentence: str, search: Search = Search(), **changes: Any) -> Alignment:
        """Translate one sentence as `translate` does, and note what the decoder attended to meanwhile."""
        check_type(str, sentence=sentence)
        ((read, written),) = self._searched([sentence], search, changes)
        warn_of_doubts([sentence], [read.cuts])
        target = written or [self.model.config.eos_id]  # of an empty sentence
        names, weights = self.vocabulary.tokens, _cross_attention(self.model, read.ids, target)
        return Alignment(names(read.ids), names(target), weights)


# %% book/13-translation.ipynb · The Translator class · [alignment-by-words]
def by_words(alignment: Alignment) -> Alignment:
    """What `Translator.align` returned, between words: weights are summed over a source word's subwords,
    and averaged over a target word's."""
    columns, rows = (_words(side, alignment.weights) for side in (alignment.source, alignment.target))
    rows = rows / rows.sum(dim=1, keepdim=True)
    source, target = (
        "".join(side).replace("</s>", "▁</s>").removeprefix("▁").split("▁")
        for side in (alignment.source, alignment.target)
    )
    return Alignment(source, target, rows @ alignment.weights @ columns.T)


def _words(tokens: list[str], like: Tensor) -> Tensor:
    # [words, tokens], 1 where a token belongs to a word.
    starts = [i == 0 or token[0] == "▁" or token == "</s>" for i, token in enumerate(tokens)]
    word = torch.tensor(starts).cumsum(dim=0) - 1
    return F.one_hot(word).T.to(like)


# %% book/13-translation.ipynb · Which search? · [tuning-imports]
from transformer.language.scores import corpus_scores


# %% book/13-translation.ipynb · Which search? · [tune-search]
def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], search: Search = Search()
) -> dict[str, dict[str, Any]]:
    """The `corpus_scores` of translating the sources of `pairs`, against their targets, as prepared."""
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
    """Score several searches on pairs that decide this and nothing else.

    Returns:
        for each search `"beam_size"`, `"length_penalty"` and `"scores"`, as `corpus_scores` gives
        them; the highest BLEU-detok first, and equal ones in the order of `searches`.
    """
    grid = [
        {
            "beam_size": search.beam_size,
            "length_penalty": search.length_penalty,
            "scores": evaluate_translator(translator, pairs, search),
        }
        for search in searches
    ]
    return sorted(grid, key=lambda entry: -entry["scores"]["BLEU-detok"]["score"])
