"""What a recipe learns from: the toy's reversals, translated sentences, texts of the user's own."""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
import torch
from torch import Tensor
from transformer.language.batches import BPEDropout, TokenBatches, encode_pairs
from transformer.files import regular_file
from transformer.language.corpora import CorpusError, Pair, held_out, load_corpus, read_pairs
from transformer.language.scores import corpus_scores
from transformer.language.translator import Search, Translator, evaluate_translator, tune_search
from transformer.language.vocabulary import Vocabulary
from transformer.language.preparation import CORPORA, Preparation
from transformer.model import Transformer, TransformerConfig
from transformer.runs.trainer import Trainer
from transformer.toy import exact_match, reversal_batches, toy_config
from transformer.training import evaluate_loss
from transformer.validation import check_rate, check_size, check_type
from transformer.weights import save_weights

__all__ = ["Batches", "Load", "Reversals", "Translations", "Lessons", "FILES", "OwnTexts", "checksum"]


Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # of an epoch, as `Trainer` wants them
Load = Callable[[str, str], list[Pair]]  # a split of a corpus, as `load_corpus` gives it


@dataclass(frozen=True)
class Reversals:
    """The data of the toy task: random digits, to be reversed and marked.

    Args:
        batch_size: sequences in a batch.
        length: digits in a sequence.
    """

    batch_size: int = 32
    length: int = 10

    needs: ClassVar[tuple[str, ...]] = ()  # libraries, beside those of every run
    left: ClassVar[str] = "model.safetensors"  # in the run's folder
    files: ClassVar[Sequence[str]] = ()  # of somebody's own

    def __post_init__(self) -> None:
        check_size(batch_size=self.batch_size, length=self.length)

    def __str__(self) -> str:
        return f"sequences of {self.length} digits, reversed"

    def read(self, load: Load | None = None) -> "Reversals":
        """These data themselves: there is nothing to read."""
        return self

    def model(self, **layers: Any) -> Transformer:
        """A fresh model with these layers."""
        return Transformer(toy_config(**layers))

    def batches(self, seed: int) -> Batches:
        """The training batches by epoch."""
        return partial(reversal_batches, batch_size=self.batch_size, length=self.length, seed=seed)

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """The scores on a thousand sequences, drawn with a seed of their own."""
        return exact_match(model, n_sequences=1000, length=self.length, seed=20_000)

    def learned(self, model: Transformer) -> Transformer:
        """What the run has made: the model itself."""
        return model

    def keep(self, model: Transformer, folder: Path) -> None:
        """Write the model's weights into the run's folder."""
        save_weights(model, folder / self.left, torch.float16)

    def record(self, model: Transformer, trainer: Trainer) -> dict[str, Any]:
        """The curve of evaluations, and the score on 10,000 unseen sequences."""
        curve = [entry for entry in trainer.history if "sequences" in entry]
        return {"curve": curve, "test": exact_match(model, length=self.length)}

    def said(self, record: dict[str, Any]) -> str:
        """A record's score in a line."""
        return f"exact match on 10,000 unseen sequences: {record['test']['sequences']:.2%}"


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

    needs: ClassVar[tuple[str, ...]] = ("tokenizers", "sacrebleu")
    left: ClassVar[str] = "translator"  # in the run's folder

    def __post_init__(self) -> None:
        check_type(str, corpus=self.corpus)
        check_size(vocab_size=self.vocab_size, max_tokens=self.max_tokens)
        check_rate(bpe_dropout=self.bpe_dropout)
        check_type(str, preparation=self.preparation, languages=self.languages)
        assert self.prepared  # which refuses what is none

    def __str__(self) -> str:
        return f"the corpus {self.corpus}"

    @property
    def files(self) -> Sequence[str]:
        """Files of somebody's own."""
        return ()

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

    def read(self, load: Load | None = None) -> "Lessons":
        """The pairs, from `load` if it is given. Of one's own files there is no test split."""
        split = partial(load, self.corpus) if load else self.load
        test = None if self.files else partial(split, "test")
        return Lessons(self, split("train"), split("dev"), test)


@dataclass(eq=False)
class Lessons:
    """The data of a translator once they are read.

    Args:
        data: what was read.
        train: pairs to train on.
        dev: pairs to judge by.
        test: gives the pairs that are scored at the end; `None` for those to judge by.
    """

    data: Translations
    train: Sequence[Pair]
    dev: Sequence[Pair]
    test: Callable[[], list[Pair]] | None = None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The subwords of both sides of what is trained on."""
        texts = (text for pair in self.train for text in pair)
        return Vocabulary.train(texts, self.data.vocab_size, preparation=self.data.prepared)

    @cached_property
    def judged(self) -> TokenBatches:
        """The batches to judge by."""
        return TokenBatches(self._fitting(self.dev, "judge by"), self.data.max_tokens, shuffle=False)

    def _fitting(self, pairs: Sequence[Pair], purpose: str) -> list[tuple[list[int], list[int]]]:
        """Those of the pairs that are short enough, as ids; refused where none is."""
        data, longest = self.data, self.data.longest
        if encoded := encode_pairs(pairs, self.vocabulary, longest):
            return encoded
        where = ", ".join(data.files) or str(data)
        said = f"no pair to {purpose}, of {len(pairs):,}, has at most {longest:,} tokens on both sides"
        raise ValueError(f"{where}: {said}")

    def model(self, **layers: Any) -> Transformer:
        """A fresh model with these layers."""
        size = len(self.vocabulary)
        return Transformer(TransformerConfig(size, size, **layers))

    def batches(self, seed: int) -> Batches:
        """The training batches by epoch. Pairs that are too long are left out, with a warning."""
        data, size, longest = self.data, self.data.max_tokens, self.data.longest
        encoded = self._fitting(self.train, "train on")
        if left := len(self.train) - len(encoded):
            said = f"{left:,} of {len(self.train):,} pairs have over {longest:,} tokens and are left out"
            warnings.warn(said, stacklevel=4)  # where the training is asked for
        if data.bpe_dropout:
            cut = BPEDropout(self.train, self.vocabulary, data.bpe_dropout, seed, longest)
            return lambda epoch: TokenBatches(cut(epoch), size, seed)(epoch)
        return TokenBatches(encoded, size, seed=seed)

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """Loss and accuracy on the pairs to judge by."""
        return evaluate_loss(model, self.judged(0))

    def learned(self, model: Transformer) -> Translator:
        """What the run has made: model and vocabulary."""
        return Translator(model, self.vocabulary)

    def keep(self, translator: Translator, folder: Path) -> None:
        """Write the translator into the run's folder."""
        translator.save(folder / self.data.left)

    def record(self, translator: Translator, trainer: Trainer) -> dict[str, Any]:
        """The number of parameters, the seconds spent in updates, the log, and the scores."""
        kept = {
            "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
            "seconds": round(sum(entry.get("seconds", 0.0) for entry in trainer.history)),
            "log": trainer.history,
        }
        if self.test is None:
            held = {"pairs": len(self.dev), "beam 4": evaluate_translator(translator, self.dev)}
            return kept | {"scores": {"held out": held}}
        test, grid = self.test(), tune_search(translator, self.dev)
        on_dev = {Search(entry["beam_size"], entry["length_penalty"]): entry["scores"] for entry in grid}
        searches = {"greedy": Search(1), "beam 4": Search(4), "tuned": next(iter(on_dev))}
        dev = {"pairs": len(self.dev)} | {name: on_dev[search] for name, search in searches.items()}
        tested = _test_scores(translator, searches, test, self.train)
        return kept | {"grid": grid, "scores": {"dev": dev} | tested}

    def said(self, record: dict[str, Any]) -> str:
        """A record's scores, one to a line."""
        scores = record["scores"]
        best = scores["test"]["tuned"] if self.test else scores["held out"]["beam 4"]
        return "\n".join(score["line"] for score in best.values())


def _test_scores(
    translator: Translator, searches: dict[str, Search], test: Sequence[Pair], train: Iterable[Pair]
) -> dict[str, dict[str, Any]]:
    sources, known = [pair.source for pair in test], set(train)
    written = {  # each search once, though it may have two names
        search: translator.translate_tokenized(sources, search) for search in dict.fromkeys(searches.values())
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


def checksum(path: str) -> str:
    """The sha256 of a file."""
    with regular_file(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


FILES = ("source", "target", "dev_source", "dev_target")


@dataclass(frozen=True)
class OwnTexts(Translations):
    """The data of a translator that learns from files of your own.

    Args:
        source: texts to train on, a sentence a line; or with their translations, after a tab.
        target: the translations of `source`, line by line, if it does not hold them.
        dev_source: texts to judge by, which are not trained on; without them, some are held out.
        dev_target: the translations of `dev_source`, line by line, if it does not hold them.
        sha256: the checksums of the files named, in this order, with spaces between them; or empty.

    The other arguments are those of `Translations`.
    """

    source: str = ""
    target: str = ""
    dev_source: str = ""
    dev_target: str = ""
    sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for path in self.files:
            try:
                path.encode()
            except UnicodeEncodeError:
                wanted = "a file's name must be UTF-8, so that a record can hold it"
                raise ValueError(f"{wanted}, not {path!r}") from None
        if (n := len(self.sha256.split())) not in (0, len(self.files)):
            raise ValueError(f"sha256 must hold a checksum for each of {len(self.files)} files, not {n}")

    @property
    def files(self) -> Sequence[str]:
        """The files that are named."""
        return [path for name in FILES if (path := getattr(self, name))]

    def load(self, split: str) -> list[Pair]:
        """The pairs to train on, `"train"`, or to judge by, `"dev"`.

        Raises:
            OSError, CorpusError: as in `read_pairs`; or a file is no longer what its checksum says.
        """
        for path, noted in zip(self.files, self.sha256.split()):
            if (found := checksum(path)) != noted:
                raise CorpusError(f"{path} has changed: its sha256 was {noted}, and is {found}")
        if self.dev_source:
            files = (self.source, self.target) if split == "train" else (self.dev_source, self.dev_target)
            return _read(*files)
        try:
            train, dev = held_out(_read(self.source, self.target), self.prepared)
        except ValueError as error:
            raise CorpusError(f"{', '.join(self.files)}: {error}") from None
        return train if split == "train" else dev


def _read(source: str, target: str) -> list[Pair]:
    if pairs := read_pairs(source, target or None, keep_empty=False):
        return pairs
    raise CorpusError(f"{', '.join(filter(None, (source, target)))}: no lines, and no pairs")
