"""What a recipe learns from: the toy's reversals, or translated sentences of a corpus or of your own."""

import atexit
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, ClassVar
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformer.files import file_sha256
from transformer.language.batches import BPEDropout, TokenBatches, bucket_lengths, encode_pairs
from transformer.language.corpora import (
    AS_IT_IS, CORPORA, CorpusError, Pair, Preparation, as_pairs, load_corpus, read_pairs,
)  # fmt: skip
from transformer.language.scores import corpus_scores
from transformer.language.translator import Search, Translator, evaluate_translator, tune_search
from transformer.language.vocabulary import Vocabulary, normalize
from transformer.model import Transformer, TransformerConfig
from transformer.toy import exact_match, reversal_batches, toy_config
from transformer.training import evaluate_loss
from transformer.validation import check_rate, check_size, check_type
from transformer.weights import save_weights

__all__ = [
    "Batches", "Reversals", "Translations", "ParallelData", "PrefetchedEpochs", "FILES", "N_SHAPES",
    "held_out",
]


Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # of an epoch, as `Trainer` wants them


@dataclass(frozen=True)
class Reversals:
    """The data of the toy task: random digits, to be reversed and marked.

    Args:
        batch_size: sequences in a batch.
        length: digits in a sequence.
    """

    batch_size: int = 32
    length: int = 10

    output: ClassVar[str] = "model.safetensors"  # in the run's folder

    def __post_init__(self) -> None:
        check_size(batch_size=self.batch_size, length=self.length)

    def __str__(self) -> str:
        return f"sequences of {self.length} digits, reversed"

    def read(self) -> "Reversals":
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

    def result(self, model: Transformer) -> Transformer:
        """What the run has made: the model itself."""
        return model

    def save(self, model: Transformer, folder: Path) -> None:
        """Write the model's weights into the run's folder."""
        save_weights(model, folder / self.output, torch.float16)

    def record(self, model: Transformer, history: list[dict[str, float]]) -> dict[str, Any]:
        """The curve of evaluations, and the score on 10,000 fresh sequences."""
        curve = [entry for entry in history if "sequences" in entry]
        return {"curve": curve, "test": exact_match(model, length=self.length)}

    def summary(self, record: dict[str, Any]) -> str:
        """A record's score in a line."""
        return f"exact match on 10,000 fresh sequences: {record['test']['sequences']:.2%}"


FILES = ("source", "target", "dev_source", "dev_target")
N_SHAPES = 16  # of batches whose updates are made as graphs


@dataclass(frozen=True)
class Translations:
    """The data of a translator: pairs of sentences, of a corpus or of files of your own, cut into subwords.

    Args:
        corpus: a name that `load_corpus` knows; for your own files any name.
        vocab_size: tokens in the vocabulary that both languages share.
        max_tokens: the most source tokens, and the most target tokens, in a batch, padding included.
        bpe_dropout: how likely a merge of subwords is to be left out in training; 0 for never.
        n_shapes: the most shapes that training batches have, by more padding; 0 for any number.
        preparation: the name of what is done to every text, as in `Preparation`.
        languages: the codes of source and target, with a space between them; empty if not known.
        source: a file of texts to train on, a sentence a line; or with their translations, after a tab.
        target: the translations of `source`, line by line, if it does not hold them.
        dev_source, dev_target: the same, to judge by; without them, some pairs are held out.
        sha256: the checksums of the files named, in this order, with spaces between them.
    """

    corpus: str
    vocab_size: int
    max_tokens: int = 2000
    bpe_dropout: float = 0.0
    preparation: str = CORPORA.name
    languages: str = " ".join(CORPORA.languages or ())
    source: str = ""
    target: str = ""
    dev_source: str = ""
    dev_target: str = ""
    sha256: str = ""
    n_shapes: int = 0

    output: ClassVar[str] = "translator"  # in the run's folder

    def __post_init__(self) -> None:
        texts = ("corpus", "preparation", "languages", *FILES, "sha256")
        check_type(str, **{name: getattr(self, name) for name in texts})
        check_size(vocab_size=self.vocab_size, max_tokens=self.max_tokens)
        check_size(minimum=0, n_shapes=self.n_shapes)
        check_rate(bpe_dropout=self.bpe_dropout)
        check_type(Preparation, prepared=self.prepared)  # refused if there is none such
        if not "".join(self.files).isprintable():  # a record can't hold half a surrogate pair
            raise ValueError(f"names of files must be UTF-8 without control characters, not {self.files}")

    def __str__(self) -> str:
        return ", ".join(self.files) or f"the corpus {self.corpus}"

    @property
    def files(self) -> list[str]:
        """The files of your own."""
        return [path for name in FILES if (path := getattr(self, name))]

    @property
    def prepared(self) -> Preparation:
        """What is done to every text."""
        source, _, target = self.languages.partition(" ")
        return Preparation(self.preparation, (source, target) if self.languages else None)

    @property
    def longest(self) -> int:
        """Tokens of the longest sentence that a batch and a model can hold."""
        return min(self.max_tokens, TransformerConfig(4, 4).max_length)

    def read(self) -> "ParallelData":
        """The pairs to train on, to judge by, and, of a corpus, to test with; `OSError` if a file is missing,
        no text, or no longer what its checksum says."""
        if not self.source:
            train, dev = (load_corpus(self.corpus, split) for split in ("train", "dev"))
            return ParallelData(self, train, dev, partial(load_corpus, self.corpus, "test"))
        for path, noted in zip(self.files, self.sha256.split()):
            if (actual := file_sha256(path)) != noted:
                raise CorpusError(f"{path} has changed: its sha256 was {noted}, and is {actual}")
        train = read_pairs(self.source, self.target or None, keep_empty=False)
        if not self.dev_source:
            return ParallelData(self, *held_out(train, self.prepared))
        dev = read_pairs(self.dev_source, self.dev_target or None, keep_empty=False)
        return ParallelData(self, train, dev)


@dataclass(eq=False)
class ParallelData:
    """The data of a translator once they are read.

    Args:
        settings: what was read.
        train: pairs to train on.
        dev: pairs to judge by.
        test: gives the pairs that are scored at the end; `None` for those to judge by.
    """

    settings: Translations
    train: Sequence[Pair]
    dev: Sequence[Pair]
    test: Callable[[], list[Pair]] | None = None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The subwords of both sides of what is trained on."""
        texts = (text for pair in self.train for text in pair)
        return Vocabulary.train(texts, self.settings.vocab_size, preparation=self.settings.prepared)

    @property
    def n_seen(self) -> int:
        """How many of the pairs to judge by are trained on as well."""
        trained, judged = (_compared(pairs, self.settings.prepared) for pairs in (self.train, self.dev))
        return sum(map({*trained}.__contains__, judged))

    @cached_property
    def dev_batches(self) -> TokenBatches:
        """The batches to judge by."""
        return TokenBatches(self._encoded(self.dev, "judge by"), self.settings.max_tokens, shuffle=False)

    @cached_property
    def _train_ids(self) -> list[tuple[list[int], list[int]]]:
        return self._encoded(self.train, "train on")

    def _encoded(self, pairs: Sequence[Pair], purpose: str) -> list[tuple[list[int], list[int]]]:
        # Those of the pairs that are short enough, as ids; refused where none is.
        longest = self.settings.longest
        if encoded := encode_pairs(pairs, self.vocabulary, longest):
            return encoded
        refusal = f"no pair to {purpose}, of {len(pairs):,}, has at most {longest:,} tokens on both sides"
        raise ValueError(f"{self.settings}: {refusal}")

    def model(self, **layers: Any) -> Transformer:
        """A fresh model with these layers."""
        size = len(self.vocabulary)
        return Transformer(TransformerConfig(size, size, **layers))

    def batches(self, seed: int) -> Batches:
        """The training batches by epoch. Pairs that are too long are left out, with a warning."""
        data, size, longest = self.settings, self.settings.max_tokens, self.settings.longest
        if left := len(self.train) - len(self._train_ids):
            message = f"{left:,} of {len(self.train):,} pairs have over {longest:,} tokens and are left out"
            warnings.warn(message, stacklevel=4)  # where the training is asked for
        lengths = None
        if data.n_shapes:  # with room for what BPE-dropout makes longer
            sides = [max(map(len, pair)) for pair in self._train_ids]
            lengths = bucket_lengths([*sides, longest], data.n_shapes)
        batches = partial(TokenBatches, max_tokens=size, seed=seed, lengths=lengths)
        if data.bpe_dropout:
            cut = BPEDropout(self.train, self.vocabulary, data.bpe_dropout, seed, longest)
            return PrefetchedEpochs(lambda epoch: _Arrays(batches(cut(epoch))(epoch)))
        return batches(self._train_ids)

    def evaluate(self, model: Transformer) -> dict[str, float]:
        """Loss and accuracy on the pairs to judge by."""
        return evaluate_loss(model, self.dev_batches(0))

    def result(self, model: Transformer) -> Translator:
        """What the run has made: model and vocabulary."""
        return Translator(model, self.vocabulary)

    def save(self, translator: Translator, folder: Path) -> None:
        """Write the translator into the run's folder."""
        translator.save(folder / self.settings.output)

    def record(self, translator: Translator, history: list[dict[str, float]]) -> dict[str, Any]:
        """The number of parameters, the seconds spent in updates, the log, and the scores."""
        facts = {
            "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
            "seconds": round(sum(entry.get("seconds", 0.0) for entry in history)),
            "log": history,
        }
        if self.test is None:
            held = {"pairs": len(self.dev), "beam 4": evaluate_translator(translator, self.dev)}
            return facts | {"scores": {"held out": held}}
        test, grid = self.test(), tune_search(translator, self.dev)
        on_dev = {Search(entry["beam_size"], entry["length_penalty"]): entry["scores"] for entry in grid}
        searches = {"greedy": Search(1), "beam 4": Search(4), "tuned": next(iter(on_dev))}
        trained_on = set(self.train)
        splits = {"test": test, "test, unseen": [pair for pair in test if pair not in trained_on]}
        judged = {"dev": self.dev, **splits}
        scores: dict[str, dict[str, Any]] = {split: {"pairs": len(pairs)} for split, pairs in judged.items()}
        for name, search in searches.items():
            scores["dev"][name] = on_dev[search]
            written = dict(zip(test, translator.translate_tokenized([pair.source for pair in test], search)))
            for split, pairs in splits.items():
                references = [translator.vocabulary.prepare(pair.target) for pair in pairs]
                ours = [written[pair] for pair in pairs]
                if ours:
                    scores[split][name] = corpus_scores(ours, references, 1000, translator.preparation)
        return facts | {"grid": grid, "scores": scores}

    def summary(self, record: dict[str, Any]) -> str:
        """A record's scores, one to a line."""
        scores = record["scores"]
        best = scores["test"]["tuned"] if self.test else scores["held out"]["beam 4"]
        return "\n".join(score["line"] for score in best.values())


class _Arrays:  # an epoch's batches, which a process reads from another a hundred times faster than lists
    def __init__(self, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.batches = [tuple(ids.numpy().astype("int32") for ids in batch) for batch in batches]

    def __call__(self, epoch: int) -> Iterator[tuple[Tensor, ...]]:
        return (tuple(torch.from_numpy(ids).long() for ids in batch) for batch in self.batches)


class PrefetchedEpochs:
    """The batches of an epoch, prepared in another process while earlier ones are trained on.

    With four cores or more there are up to eight processes, since a GPU needs only seconds for an epoch.

    Linux alone safely copies a process with all that it has read; elsewhere an epoch is prepared when due.

    Args:
        prepare: `prepare(epoch)` returns what gives the batches when it is called with the epoch. It
            depends on the epoch alone, and needs no GPU.
    """

    _epoch: int  # whose batches were asked for last

    def __init__(self, prepare: Callable[[int], Callable[[int], Iterable[Any]]]) -> None:
        self.prepare, self._over = prepare, multiprocessing.Event()
        self.close()
        _ALL.add(self)

    def __call__(self, epoch: int) -> Iterable[Any]:
        """The batches of the epoch; those of the next are prepared from now on."""
        if sys.platform != "linux" or multiprocessing.current_process().daemon:
            return self.prepare(epoch)(epoch)
        if epoch not in (self._epoch, self._epoch + 1):
            self._coming = self._in_a_worker(epoch)
        if epoch != self._epoch:
            self._epoch, self._prepared = epoch, next(self._coming)
        return self._prepared(epoch)

    def close(self) -> None:
        """End the other processes."""
        self._over.set()
        self._epoch, self._prepared, self._coming = -2, lambda epoch: (), iter(())

    def _in_a_worker(self, epoch: int) -> Iterator[Any]:
        # What is prepared for an epoch and those after it, in their order, one ahead for each process.
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # of torchrun
        workers = max(1, min(8, (os.cpu_count() or 1) // 2 // processes))
        self._over = multiprocessing.Event()
        loader = DataLoader(
            _Prepared(self.prepare), None, sampler=count(epoch), num_workers=workers, prefetch_factor=1,
            collate_fn=lambda prepared: prepared, worker_init_fn=partial(_follow_parent, self._over),
            multiprocessing_context="fork", generator=torch.Generator(),
        )  # fmt: skip
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of threads, not copied
            return iter(loader)


_ALL: weakref.WeakSet[PrefetchedEpochs] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Before Python's own end of other processes, which would wait for one that ignores its signal.
    for epochs in _ALL:
        epochs.close()


class _Prepared(Dataset[Any]):  # not `PrefetchedEpochs` itself: in a circle, none would end the other process
    def __init__(self, prepare: Callable[[int], Any]) -> None:
        self.prepare = prepare

    def __getitem__(self, epoch: int) -> Any:
        return self.prepare(epoch)


def _follow_parent(over: Any, number: int) -> None:
    gc.freeze()  # what was the parent's, a GPU's memory among it, is not this process's to free
    # Signals that end a run are for the parent to obey; without it, this process ends whatever it waits for.
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    parent: Any = multiprocessing.parent_process()
    for waiting, status in ((parent.join, 1), (over.wait, 0)):  # not for an epoch that nobody wants any more
        threading.Thread(target=lambda w=waiting, s=status: (w(), os._exit(s)), daemon=True).start()


def _compared(pairs: Sequence[Pair], preparation: Preparation) -> list[tuple[str, ...]]:
    # As training shows them.
    return [tuple(normalize(preparation.prepare(side)) for side in pair) for pair in pairs]


def held_out(
    pairs: Sequence[tuple[str, str]], preparation: Preparation = AS_IT_IS
) -> tuple[list[Pair], list[Pair]]:
    """Divide a corpus into pairs to train on and pairs to judge by, of which training shows none.

    Pairs that the `preparation` makes equal count as one. Both lists are in the order of the corpus. The
    second holds a twentieth of the different pairs, but at least 100 and at most 1,000; of fewer than 500, a
    fifth.
    """
    pairs = as_pairs(pairs)
    keys = _compared(pairs, preparation)
    firsts = {key: place for place, key in reversed([*enumerate(keys)])}
    if (n := len(firsts)) < 2:
        count = f"{n} (of {len(pairs):,})"
        raise ValueError(f"pairs must hold two different pairs, one of them to be held out, not {count}")
    size = max(1, min(1000, max(n // 20, min(100, n // 5))))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    places = sorted(sorted(firsts.values())[number] for number in order[:size])
    chosen = {keys[place] for place in places}
    train = [pair for pair, key in zip(pairs, keys) if key not in chosen]
    return train, [pairs[place] for place in places]
