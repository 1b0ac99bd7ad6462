"""transformer.translation, from book/13-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "tokenize",
    "detokenize",
    "corpus_scores",
    "by_length",
    "Alignment",
    "Translator",
    "Recipe",
    "RECIPES",
    "train_translator",
    "recipe_loss",
    "recipe_batches",
    "evaluate_translator",
    "SEARCHES",
    "tune_search",
    "unseen_pairs",
    "sentence_scores",
    "scores_in_ranges",
    "recalled",
    "by_words",
    "crosses_over",
    "LECTURE",
    "SWAPS",
    "Sentence",
    "load_sentences",
    "examine_translator",
    "analyse_translations",
    "rounded",
    "translation_record",
]


# %% book/13-translation.ipynb · As the corpus writes · [wording-code]
import hashlib
import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.corpora import Pair, load_corpus
from transformer.decoding import beam_search, greedy_search
from transformer.fast import FastTransformer, accelerate
from transformer.loss import r_drop_loss, teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.text import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    TokenBatches,
    Vocabulary,
    encode_pairs,
    pad,
    sampled_batches,
)
from transformer.training import (
    CheckpointError,
    Trainer,
    TrainingConfig,
    atomic_file,
    cooldown,
    evaluate_loss,
    evaluating,
    load_checkpoint,
    load_weights,
    noam_rate,
    read_record,
    record_path,
    regular_file,
    run_facts,
    save_weights,
    set_weights,
    write_record,
)
from transformer.validation import (
    check_choice,
    check_device,
    check_number,
    check_rate,
    check_size,
    check_type,
    optional_import,
)

_ENDING = r"(?:s|re|ve|m|ll|d)\b"  # of she's, we're and their like
_TOKEN = re.compile(
    rf"``|''|\.\.\.|\d+(?:[.,]\d+)+|n['’]t\b|['’]{_ENDING}"
    rf"|\w+(?=n['’]t\b)|\w+(?:(?:-|['’](?!{_ENDING}))\w+)*|[^\w\s]"
)


def tokenize(text: str) -> str:
    """Write raw text as the corpora are written: lower case, blanks around punctuation, paired
    quotes.

    Text that is written so already stays as it is.

    Raises:
        TypeError: `text` is no string.
    """
    check_type(str, text=text)
    tokens, opening = [], True
    for token in _TOKEN.findall(text.lower()):
        if token == '"':
            token, opening = ("``" if opening else "''"), not opening
        token = {"“": "``", "”": "''", "«": "``", "»": "''", "…": "..."}.get(token, token)
        tokens.append(token.replace("’", "'"))
    return " ".join(tokens)


def detokenize(text: str) -> str:
    """Write an English sentence of the corpora as one would type it; case stays lower.

    Raises:
        TypeError: `text` is no string.
    """
    check_type(str, text=text)
    text = re.sub(r"``(?: (?:``|''))*", "“", text)
    text = re.sub(r"''(?: (?:``|''))*", "”", text)
    text = re.sub(r" (?=[.,;:?!%)\]”]|n't\b|'(?:s|re|ve|m|ll|d)\b)", "", text)
    text = re.sub(r"(?<=[(\[“$]) ", "", text)
    return text.replace("“", '"').replace("”", '"')


# %% book/13-translation.ipynb · How good is a translation? · [corpus-scores]
def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[str], n_bootstrap: int = 0
) -> dict[str, dict[str, Any]]:
    """BLEU and chrF of tokenized translations, each with the signature that says how it was
    computed.

    Args:
        hypotheses: translations in the corpus' own tokenized lower-case form.
        references: one reference translation for each, in the same form.
        n_bootstrap: how many corpora to draw from this one for a 95 % interval; 0 for none.

    Returns:
        for `"BLEU-tok"` (on the tokens as they are), `"BLEU-detok"` (both sides detokenized, then
        sacreBLEU's own tokenization) and `"chrF2"` (detokenized) the `"score"` from 0 to 100, the
        `"signature"`, and the `"line"` that sacreBLEU itself prints of them. With `n_bootstrap`
        also the `"mean"` over the corpora drawn and the `"margin"`: the interval is
        mean ± margin.

    Raises:
        TypeError: they are no lists of strings, or `n_bootstrap` is not an int.
        ValueError: there are no references, or not as many as hypotheses, or `n_bootstrap` is
            negative.

    Source: Papineni et al. (2002); Post (2018); Popović (2015); Koehn (2004) for the interval.
    """
    _check_pairs(hypotheses, references)
    check_size(minimum=0, n_bootstrap=n_bootstrap)
    metrics = optional_import("sacrebleu.metrics")
    typed = [detokenize(text) for text in hypotheses], [detokenize(text) for text in references]
    measured = {
        "BLEU-tok": (metrics.BLEU(tokenize="none", force=True), (hypotheses, references)),
        "BLEU-detok": (metrics.BLEU(), typed),
        "chrF2": (metrics.CHRF(), typed),
    }
    scores = {}
    for name, (metric, (ours, theirs)) in measured.items():
        found = metric.corpus_score(list(ours), [list(theirs)], n_bootstrap=n_bootstrap)
        signature = str(metric.get_signature())
        facts = json.loads(found.format(signature=signature, is_json=True))
        line = found.format(signature=signature)
        scores[name] = {"score": facts["score"], "signature": signature, "line": line}
        if n_bootstrap > 1:  # the library says nothing about a mean of 0
            mean, margin = facts.get("confidence_mean", 0.0), facts.get("confidence_var", 0.0)
            scores[name] |= {"mean": mean, "margin": margin}
    return scores


def _check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    check_type((list, tuple), hypotheses=hypotheses, references=references)
    if not references or len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be equally many and at least one, "
            f"not {len(hypotheses)} and {len(references)}"
        )


# %% book/13-translation.ipynb · A translator to keep · [by-length]
def by_length(sequences: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Groups of rows of about one length, the longest first, so that trouble with memory comes at
    once.

    Args:
        sequences: token ids. A sequence of a single one, an end token alone, is left out: it says
            nothing.
        max_tokens: the most tokens in a group, padding included; a longer sequence makes a group of
            its own.

    Raises:
        TypeError: `max_tokens` is not an int.
        ValueError: it is below 1.
    """
    check_size(max_tokens=max_tokens)
    rows = sorted(
        (row for row, ids in enumerate(sequences) if len(ids) > 1),
        key=lambda row: -len(sequences[row]),
    )
    while rows:
        size = max(1, max_tokens // len(sequences[rows[0]]))
        yield rows[:size]
        rows = rows[size:]


# %% book/13-translation.ipynb · A translator to keep · [translator-files]
_FILES = ("config.json", "model.safetensors", "vocabulary.json")
_SUMS = "SHA256SUMS"


def _sums(files: Mapping[str, Path]) -> bytes:
    """What the program `sha256sum` says of some files, each under the name that it is given."""
    said = ""
    for name, path in files.items():
        with regular_file(path).open("rb") as file:
            said += f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n"
    return said.encode()


def _check_sums(folder: Path) -> None:
    """Refuse a folder in which a byte is not as `Translator.save` left it; the message names the file."""
    missing = [name for name in (*_FILES, _SUMS) if not (folder / name).exists()]
    if missing == [_SUMS]:
        raise CheckpointError(
            f"{folder} has no {_SUMS}, so nobody would notice damage: an earlier version saved it. "
            f"If you trust its files, run there: sha256sum {' '.join(_FILES)} > {_SUMS}"
        )
    if missing:
        inner = folder / "translator"
        hint = f"; the translator of this run is {inner}" if inner.is_dir() else ""
        raise FileNotFoundError(f"{folder} is no translator, as {missing[0]} is missing{hint}")
    found = _sums({name: folder / name for name in _FILES})
    with regular_file(folder / _SUMS).open("rb") as file:
        noted = file.read(len(found) + 1)
    if noted != found:
        changed = [line for line in found.splitlines() if line not in noted.splitlines()]
        path = folder / (changed[0].decode().split()[1] if changed else _SUMS)
        raise CheckpointError(
            f"{path} does not match {folder / _SUMS}: it was damaged or changed, or saving was cut off"
        )


def _translator_folder(path: Path | str) -> Path:
    if path in _CARRIED:  # whatever the current folder holds; a Path equals no string
        return record_path(path)
    if not str(path) or not Path(path).is_dir():
        known = ", ".join(_CARRIED)
        raise FileNotFoundError(
            f"there is no translator {str(path)!r}: no folder has this name, and those that the "
            f"package carries are called {known}"
        )
    return Path(path)


# %% book/13-translation.ipynb · A translator to keep · [translator-header]
_LARGEST_CONFIG = 1 << 16  # bytes
_LARGEST_HEADER = 1 << 18  # bytes; for six layers on either side it has about 25,000
_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed and in no file
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def _read_config(path: Path) -> TransformerConfig:
    if regular_file(path).stat().st_size > _LARGEST_CONFIG:
        raise CheckpointError(f"{path} is no configuration: it has over {_LARGEST_CONFIG:,} bytes")
    try:
        return TransformerConfig(**read_record(path))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is no configuration: {error}") from error


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes in a file of weights, of which no tensor is read.

    Raises:
        CheckpointError: it is no such file, or its tensors do not fill it.
    """
    size = regular_file(path).stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(_LARGEST_HEADER, size - 8):
                raise ValueError(f"its header claims to have {length:,} bytes")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items()}
        for size_of in (x for shape in shapes.values() for x in shape):
            check_size(minimum=0, size=size_of)
        filled = sum(
            math.prod(shapes[name]) * _DTYPES[entry["dtype"]].itemsize
            for name, entry in header.items()
        )
        if 8 + length + filled != size:
            raise ValueError(f"its header names {filled:,} bytes of numbers in {size:,} of file")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is no file of weights ({said:.200})") from error
    return shapes


def _on_meta(config: TransformerConfig) -> dict[str, Tensor]:
    with torch.device("meta"):
        return Transformer(config).state_dict(keep_vars=True)  # a shared table is one object


def _check_header(path: Path, config: TransformerConfig) -> None:
    """Refuse weights that are not a configuration's, before memory is taken for its model.

    Raises:
        CheckpointError: they are not; the message names the file.
    """
    shapes, misfit = _read_header(path), f"{path} does not hold this model's weights"
    numbers = sum(map(math.prod, shapes.values()))
    for name in ("src_vocab_size", "tgt_vocab_size", "d_model", "d_ff"):
        if (asked := getattr(config, name)) > numbers:
            raise CheckpointError(f"{misfit}: it has {numbers:,} numbers, and {name} is {asked:,}")
    if (table := config.max_length * config.d_model) > _LARGEST_TABLE:
        raise CheckpointError(
            f"{path.parent} asks for {table:,} numbers of positions, more than {_LARGEST_TABLE:,}"
        )
    own = [_on_meta(replace(config, n_layers=n_layers)) for n_layers in (1, 2)]
    one, two = (len({id(x) for x in tensors.values()}) for tensors in own)
    if len(shapes) != (wanted := one + (config.n_layers - 1) * (two - one)):
        raise CheckpointError(f"{misfit}: it has {len(shapes)} tensors, not {wanted:,}")
    own = _on_meta(config)
    for name, shape in shapes.items():
        if name not in own or tuple(own[name].shape) != shape:
            wanted = tuple(own[name].shape) if name in own else "in no place"
            raise CheckpointError(f"{misfit}: {name!r:.80} has shape {shape}, but stands {wanted}")
    if len({id(own[name]) for name in shapes}) != len(shapes):
        raise CheckpointError(f"{misfit}: a shared table is there twice")


def _check_plain(model: nn.Module) -> None:
    # What is built of other parts, as a quantized model is, could be written but not read again.
    with torch.device("meta"):
        plain = Transformer(model.config)
    if type(model) is FastTransformer:  # has a plain model's weights, under their names
        plain = FastTransformer(plain)
    for part, wanted in zip(model.modules(), plain.modules()):
        if type(part) is not type(wanted):
            raise TypeError(
                f"model must be a plain Transformer to be saved, but holds a {type(part).__name__}: "
                "save the model that it was made of"
            )


def _not_finite(model: nn.Module, dtype: torch.dtype | None = None) -> str | None:
    """The first parameter with a number that is not finite, once written in `dtype`."""
    for name, x in model.named_parameters():
        if not x.detach().to(dtype or x.dtype).isfinite().all():
            return name
    return None


# %% book/13-translation.ipynb · A translator to keep · [translator]
class Alignment(NamedTuple):
    """A translation beside what its cross-attention looked at: subwords, or words by `by_words`."""

    source: list[str]
    target: list[str]
    weights: Tensor  # [n_layers, H, T, S]


_CARRIED = ("phrases",)  # translators that are part of the package
_READ = 64  # characters of a sentence for each token that the model reads; what follows is cut off


def _contents(model: nn.Module) -> list[object]:
    # All that the parts of a model have, hooks included; a changed model has others.
    found: list[object] = []
    for part in model.modules():
        for name, value in vars(part).items():
            if name != "training":
                found += [part, name, *(value.values() if isinstance(value, dict) else (value,))]
    return found


class Translator:
    """A trained model with its vocabulary: sentences in, sentences out.

    Searches run on the accelerated model, which has the same parameters; where `accelerate` refuses
    the model, on the model itself, and a warning says once why.

    Args:
        model: a trained `Transformer` with one vocabulary for both languages.
        vocabulary: that vocabulary.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: model and vocabulary are of different sizes, or number the special tokens
            differently.
    """

    def __init__(self, model: Transformer, vocabulary: Vocabulary) -> None:
        check_type(nn.Module, model=model)
        check_type(Vocabulary, vocabulary=vocabulary)
        sizes = {model.config.src_vocab_size, model.config.tgt_vocab_size}
        if sizes != {len(vocabulary)}:
            raise ValueError(
                f"the model has {sorted(sizes)} tokens, the vocabulary {len(vocabulary)}"
            )
        ids = model.config.pad_id, model.config.bos_id, model.config.eos_id
        if ids != (PAD_ID, BOS_ID, EOS_ID):
            raise ValueError(
                f"the model has padding, start and end at {ids}, "
                f"the vocabulary at {(PAD_ID, BOS_ID, EOS_ID)}"
            )
        self.model, self.vocabulary = model, vocabulary
        self._seen: list[object] = []  # in the model, when it was accelerated
        self._fast, self._warned = model, False

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> "Translator":
        """Read a translator from the folder that `save` wrote; nothing in it is executed.

        Args:
            path: the folder, or the name of a translator that the package carries, such as
                `"phrases"`. A folder of that name is meant by `"./phrases"`, or by a `Path`.
            device: to translate on.

        Raises:
            TypeError: `path` is none.
            FileNotFoundError: there is no such folder, or a file is missing in it.
            CheckpointError: a file is damaged, or they do not belong together; the message names it.
            ValueError: there is no such device.
        """
        check_type((str, Path), path=path)
        device = check_device(device)
        folder = _translator_folder(path)
        _check_sums(folder)
        config, weights = _read_config(folder / "config.json"), folder / "model.safetensors"
        _check_header(weights, config)
        model = Transformer(config).to(device)
        load_weights(model, weights)
        if (name := _not_finite(model)) is not None:
            raise CheckpointError(f"{weights} holds numbers that are not finite, in {name}")
        try:
            return cls(model.eval(), Vocabulary.load(folder / "vocabulary.json"))
        except ValueError as error:
            raise CheckpointError(f"{folder / 'vocabulary.json'} does not fit: {error}") from error

    def save(self, path: Path | str, dtype: torch.dtype = torch.float16) -> None:
        """Write weights, configuration, vocabulary and their checksums into the folder `path`, made
        where missing.

        Raises:
            TypeError: `dtype` is no `torch.dtype`, or the model is no plain `Transformer`.
            ValueError: `dtype` is none that a file can have, or a weight is not finite in it.
            OSError: a file cannot be written; the message names it, and what stood there stays.
        """
        check_type(torch.dtype, dtype=dtype)
        check_choice(_DTYPES.values(), dtype=dtype)
        _check_plain(self.model)
        if (name := _not_finite(self.model, dtype)) is not None:
            bound = f"holds a number that is not finite in {dtype}"
            raise ValueError(f"{name} {bound}, whose largest is {torch.finfo(dtype).max:.4g}")
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        with (  # none takes its place before all are written; cut off in between, the sums disagree
            atomic_file(folder / _SUMS) as sums,
            atomic_file(folder / "vocabulary.json") as vocabulary,
            atomic_file(folder / "model.safetensors") as weights,
            atomic_file(folder / "config.json") as config,
        ):
            write_record(config, asdict(self.model.config))
            save_weights(self.model, weights, dtype)
            self.vocabulary.save(vocabulary)
            sums.write_bytes(_sums(dict(zip(_FILES, (config, weights, vocabulary), strict=True))))

    def translate(
        self, sentences: Sequence[str], beam_size: int = 4, length_penalty: float = 0.6
    ) -> list[str]:
        """Translate sentences as one types them.

        Args:
            sentences: raw text, one sentence each.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.

        Returns:
            one translation for each, in the same order; lower case, as the corpora are.

        Raises:
            TypeError: `sentences` is a single string.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        sources = self._encode(map(tokenize, self._shortened(sentences)))
        return [detokenize(text) for text in self._search(sources, beam_size, length_penalty)]

    def translate_tokenized(
        self,
        sentences: Sequence[str],
        beam_size: int = 4,
        length_penalty: float = 0.6,
        max_length: int = 200,
        max_tokens: int = 4000,
    ) -> list[str]:
        """Translate sentences that are written as the corpora are, and write the translations so.

        Args:
            sentences: tokenized lower-case text. A sentence longer than the model's `max_length` is
                cut, with a warning; of one with more than 64 times as many characters, no more are
                looked at.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.
            max_length: the most tokens of a translation; never more than the model's `max_length`.
            max_tokens: the most source tokens, padding included, that are translated at once.

        Raises:
            TypeError: `sentences` is a single string or holds what is none, or a setting is not a
                number of the right kind.
            ValueError: a setting is out of its range.
        """
        if isinstance(sentences, str):
            raise TypeError("sentences must be a list of strings, not one string")
        sources = self._encode(self._shortened(sentences))
        return self._search(sources, beam_size, length_penalty, max_length, max_tokens)

    def _search(
        self,
        sources: list[list[int]],
        beam_size: int,
        length_penalty: float,
        max_length: int = 200,
        max_tokens: int = 4000,
    ) -> list[str]:
        check_size(beam_size=beam_size, max_length=max_length, max_tokens=max_tokens)
        check_number(length_penalty=length_penalty)
        model, config = self._searched(), self.model.config
        device = next(model.parameters()).device
        max_length = min(max_length, config.max_length)
        translations = [""] * len(sources)
        for rows in by_length(sources, max_tokens):
            src = pad([sources[row] for row in rows], config.pad_id).to(device)
            if beam_size == 1:
                best = greedy_search(model, src, max_length)
            else:
                found = beam_search(model, src, beam_size, length_penalty, max_length)
                best = found.tokens[:, 0]
            for row, ids in zip(rows, best.tolist(), strict=True):
                translations[row] = self.vocabulary.decode(ids)
        return translations

    def align(
        self, sentence: str, beam_size: int = 4, length_penalty: float = 0.6
    ) -> Alignment:
        """Translate one tokenized sentence and note what the decoder attended to while it did.

        Args:
            sentence: lower-case text, written as the corpora are.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.

        Raises:
            TypeError: `sentence` is no string, or a setting is not a number of the right kind.
            ValueError: a setting is out of its range.
        """
        check_type(str, sentence=sentence)
        config, device = self.model.config, next(self.model.parameters()).device
        src = torch.tensor(self._encode(self._shortened([sentence])), device=device)
        max_length = min(200, config.max_length)
        result = beam_search(self._searched(), src, beam_size, length_penalty, max_length)
        found = result.tokens[:, 0]
        found = found[:, : (found[0] != config.pad_id).sum()]  # its rivals may be longer
        with evaluating(self.model):
            tgt = F.pad(found[:, :-1], (1, 0), value=config.bos_id)
            weights = self.model.attention_maps(src, tgt).cross[:, 0]
        return Alignment(
            self.vocabulary.tokens(src[0].tolist()),
            self.vocabulary.tokens(found[0].tolist()),
            weights,
        )

    def _searched(self) -> nn.Module:
        # Accelerated once, and again where the model has changed, as by another device or a hook.
        if isinstance(self.model, FastTransformer):
            return self.model
        seen = _contents(self.model)
        if len(seen) != len(self._seen) or any(a is not b for a, b in zip(seen, self._seen)):
            self._seen, self._fast = seen, self.model
            try:
                self._fast = accelerate(self.model)
            except TypeError as error:
                if not self._warned:
                    said = f"translating with the model as it is, without faster kernels: {error}"
                    warnings.warn(said, stacklevel=4)
                self._warned = True
        return self._fast

    def _shortened(self, sentences: Sequence[str]) -> Iterator[str]:
        limit = _READ * self.model.config.max_length
        for number, text in enumerate(sentences, start=1):
            if isinstance(text, str) and len(text) > limit:
                warnings.warn(
                    f"sentence {number} is cut to its first {limit:,} characters", stacklevel=4
                )
                text = text[:limit]
            yield text

    def _encode(self, sentences: Iterable[str]) -> list[list[int]]:
        config = self.model.config
        sources = []
        for number, ids in enumerate(self.vocabulary.encode_batch(sentences), start=1):
            if len(ids) >= config.max_length:
                warnings.warn(
                    f"sentence {number} is cut to its first {config.max_length - 1} tokens",
                    stacklevel=3,
                )
            sources.append([*ids[: config.max_length - 1], config.eos_id])
        return sources


# %% book/13-translation.ipynb · Recipes · [recipe]
@dataclass(frozen=True)
class Recipe:
    """How a translator is trained: corpus, vocabulary, model and schedule.

    Args:
        corpus: a name that `load_corpus` knows.
        vocab_size: tokens in the vocabulary that both languages share.
        d_model, n_heads, n_layers, d_ff, dropout, norm_first: as in `TransformerConfig`.
        steps: number of updates.
        max_tokens: target tokens in a batch, padding included.
        peak_rate: the highest learning rate.
        warmup_steps: updates until it is reached.
        cooldown: the share of the run over which the learning rate falls to 0 at the end.
        smoothing: of the labels.
        r_drop: the weight α of `r_drop_loss`; 0 for `teacher_forced_loss`, one pass.
        bpe_dropout: how likely a merge of subwords is left out in training; 0 for none.
        accumulate, clip_norm, weight_decay, average, patience, precision: as in `TrainingConfig`.
        evaluate_every: updates between two evaluations on the development split.
        seed: of weights, data order, subwords and dropout.
    """

    corpus: str
    vocab_size: int
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 2
    d_ff: int = 256
    dropout: float = 0.1
    norm_first: bool = True
    steps: int = 1000
    max_tokens: int = 2000
    peak_rate: float = 2e-3
    warmup_steps: int = 200
    cooldown: float = 0.0
    smoothing: float = 0.1
    precision: str = "float32"
    evaluate_every: int = 500
    seed: int = 0
    r_drop: float = 0.0
    bpe_dropout: float = 0.0
    accumulate: int = 1
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    average: float = 0.0
    patience: int = 0

    def schedule(self, step: int) -> float:
        """The learning rate of update `step`."""
        factor = self.peak_rate * (self.d_model * self.warmup_steps) ** 0.5
        return noam_rate(step, self.d_model, self.warmup_steps, factor) * cooldown(
            step, self.steps, self.cooldown
        )


RECIPES = {
    "phrases": Recipe(
        "phrases",
        vocab_size=1200,
        dropout=0.05,
        steps=1400,
        max_tokens=1000,
        peak_rate=3e-3,
        cooldown=0.6,
        evaluate_every=350,
        precision="auto",
    ),
    "ted-tiny": Recipe(
        "ted",
        vocab_size=4000,
        n_heads=8,
        n_layers=4,
        d_ff=512,
        steps=6000,
        peak_rate=2e-3,
        warmup_steps=800,
        cooldown=0.4,
        precision="auto",
    ),
    "ted-small": Recipe(
        "ted",
        vocab_size=4000,
        d_model=256,
        n_layers=3,
        d_ff=1024,
        dropout=0.2,
        steps=10_000,
        peak_rate=1.2e-3,
        warmup_steps=1000,
        cooldown=0.5,
        precision="auto",
    ),
    "ted": Recipe(
        "ted",
        vocab_size=8000,
        d_model=512,
        n_layers=6,
        d_ff=1024,
        dropout=0.3,
        steps=60_000,
        max_tokens=4096,
        peak_rate=5e-4,
        warmup_steps=4000,
        precision="auto",
        r_drop=5.0,
        bpe_dropout=0.1,
        weight_decay=1e-4,
        average=0.999,
        patience=20,
    ),
}


# %% book/13-translation.ipynb · Recipes · [train-translator]
def train_translator(
    recipe: Recipe,
    directory: Path | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    load: Callable[[str, str], list[Pair]] = load_corpus,
    max_minutes: float | None = None,
) -> tuple[Translator, Trainer]:
    """Train a translator as a recipe says; stopped and called again with the same directory, it
    goes on.

    Args:
        recipe: what to do.
        directory: where log and checkpoints go; `None` for nowhere.
        device: to train on.
        progress: whether to show a progress bar.
        load: gives a corpus' split, as `load_corpus` does.
        max_minutes: as in `Trainer.fit`.

    Returns:
        the translator, with a plain model, and the trainer, with the accelerated one and its
        history. The translator has the weights of the last update; their average, where the recipe
        averages; and where it has patience and the run is finished and has a directory, those that
        were best on the development split.

    Raises:
        TypeError, ValueError: the recipe is none, an entry of it is out of its range, or there is no
            such device.
    """
    check_type(Recipe, recipe=recipe)
    check_size(minimum=0, seed=recipe.seed)
    check_size(warmup_steps=recipe.warmup_steps, d_model=recipe.d_model)
    check_number(peak_rate=recipe.peak_rate, r_drop=recipe.r_drop)
    check_rate(bpe_dropout=recipe.bpe_dropout)
    device = check_device(device)
    torch.manual_seed(recipe.seed)
    train, dev = load(recipe.corpus, "train"), load(recipe.corpus, "dev")
    vocabulary = Vocabulary.train((text for pair in train for text in pair), recipe.vocab_size)
    size = len(vocabulary)
    names = ("d_model", "n_heads", "n_layers", "d_ff", "dropout", "norm_first")
    model = Transformer(
        TransformerConfig(size, size, **{name: getattr(recipe, name) for name in names})
    ).to(device)
    held_out = TokenBatches(encode_pairs(dev, vocabulary), recipe.max_tokens, shuffle=False)
    names = ("accumulate", "clip_norm", "weight_decay", "average", "patience", "precision")
    names += ("evaluate_every", "seed")
    trainer = Trainer(
        accelerate(model),
        loss=recipe_loss(recipe),
        batches=recipe_batches(recipe, train, vocabulary),
        schedule=recipe.schedule,
        config=TrainingConfig(recipe.steps, **{name: getattr(recipe, name) for name in names}),
        directory=directory,
        evaluate=lambda model: evaluate_loss(model, held_out(0)),
        progress=progress,
    ).fit(max_minutes)
    return Translator(_chosen(trainer, model).eval(), vocabulary), trainer


def recipe_loss(recipe: Recipe) -> Callable[[nn.Module, Any], tuple[Tensor, Tensor]]:
    """The loss that a recipe asks for, as `Trainer` wants it.

    Raises:
        TypeError: `recipe` is none.
    """
    check_type(Recipe, recipe=recipe)
    if recipe.r_drop:
        return partial(r_drop_loss, smoothing=recipe.smoothing, alpha=recipe.r_drop)
    return partial(teacher_forced_loss, smoothing=recipe.smoothing)


def recipe_batches(
    recipe: Recipe, pairs: list[Pair], vocabulary: Vocabulary
) -> Callable[[int], Iterable[tuple[Tensor, Tensor]]]:
    """The training batches that a recipe asks for, by epoch, as `Trainer` wants them.

    Raises:
        TypeError, ValueError: `recipe` is none, or as in `encode_pairs` and `TokenBatches`.
    """
    check_type(Recipe, recipe=recipe)
    if recipe.bpe_dropout:
        dropout, seed = recipe.bpe_dropout, recipe.seed
        return sampled_batches(pairs, vocabulary, recipe.max_tokens, dropout, seed)
    return TokenBatches(encode_pairs(pairs, vocabulary), recipe.max_tokens, seed=recipe.seed)


def _chosen(trainer: Trainer, model: Transformer) -> Transformer:
    # The model to keep, whose parameters are the trainer's: a copy where its weights are to differ.
    patient = trainer.finished and trainer.config.patience and trainer.directory is not None
    if trainer.average is None and not patient:
        return model
    with nullcontext() if trainer.average is None else trainer.average.applied():
        model = deepcopy(model)
    if patient:
        path = trainer.directory / "best.pt"
        set_weights(model, load_checkpoint(path), path)
    return model


# %% book/13-translation.ipynb · Two minutes of training · [evaluate-translator]
def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], beam_size: int = 4, length_penalty: float = 0.6
) -> dict[str, dict[str, Any]]:
    """The `corpus_scores` of translating the sources of `pairs`, against their targets."""
    check_type(Translator, translator=translator)
    hypotheses = translator.translate_tokenized(
        [source for source, _ in pairs], beam_size, length_penalty
    )
    return corpus_scores(hypotheses, [target for _, target in pairs])


SEARCHES = ((1, 0.6), (4, 0.0), (4, 0.6), (4, 1.0), (4, 1.4), (8, 1.0))


def tune_search(
    translator: Translator,
    pairs: Sequence[Pair],
    settings: Sequence[tuple[int, float]] = SEARCHES,
) -> list[dict[str, Any]]:
    """Score several searches on the development split.

    Args:
        translator: a trained translator.
        pairs: of a split that decides nothing but this.
        settings: pairs of a beam size and a length penalty.

    Returns:
        for each setting `"beam_size"`, `"length_penalty"` and `"scores"`, as `corpus_scores` gives
        them; the highest BLEU-detok first and, among equals, what stands first in `settings`.

    Raises:
        TypeError, ValueError: a setting is out of its range, or there is none, or no pair.
    """
    check_type(Translator, translator=translator)
    if not settings:
        raise ValueError("settings must hold at least one pair of beam size and length penalty")
    grid = [
        {
            "beam_size": beam_size,
            "length_penalty": length_penalty,
            "scores": evaluate_translator(translator, pairs, beam_size, length_penalty),
        }
        for beam_size, length_penalty in settings
    ]
    return sorted(grid, key=lambda entry: -entry["scores"]["BLEU-detok"]["score"])


def unseen_pairs(pairs: Iterable[Pair], train: Iterable[Pair]) -> list[Pair]:
    """The pairs that do not occur in the training split as well."""
    known = set(train)
    return [pair for pair in pairs if pair not in known]


# %% book/13-translation.ipynb · Where is it good? · [analysis]
def sentence_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF2 of each translation alone, detokenized, from 0 to 100.

    Args:
        hypotheses: translations in the corpus' own tokenized lower-case form.
        references: one reference translation for each, in the same form.

    Raises:
        TypeError: they are no lists of strings.
        ValueError: there are no references, or not as many as hypotheses.

    Source: Popović (2015).
    """
    _check_pairs(hypotheses, references)
    metric = optional_import("sacrebleu.metrics").CHRF()
    typed = zip(map(detokenize, hypotheses), map(detokenize, references), strict=True)
    return [round(metric.sentence_score(ours, [theirs]).score, 2) for ours, theirs in typed]


def scores_in_ranges(
    values: Sequence[float],
    edges: Sequence[float],
    hypotheses: Sequence[str],
    references: Sequence[str],
) -> list[dict[str, Any]]:
    """The corpus BLEU-detok of the sentences in each range of a number that each sentence has.

    Args:
        values: the number of each sentence, such as its length; at least 0.
        edges: the borders between the ranges, rising. The first range begins at 0, the last has no end.
        hypotheses: as in `corpus_scores`.
        references: as in `corpus_scores`.

    Returns:
        for each range `"from"`, `"below"` (`None` for the last), the number of `"pairs"` in it, and
        their `"score"`, `None` where there are none.

    Raises:
        TypeError, ValueError: as in `corpus_scores`; or there are not as many values as pairs.
    """
    _check_pairs(hypotheses, references)
    if len(values) != len(references):
        raise ValueError(f"values must be {len(references)}, one a pair, not {len(values)}")
    ranges = []
    for low, high in zip((0, *edges), (*edges, None), strict=True):
        rows = [i for i, value in enumerate(values) if low <= value < (high or math.inf)]
        ours, theirs = ([side[i] for i in rows] for side in (hypotheses, references))
        score = corpus_scores(ours, theirs)["BLEU-detok"]["score"] if rows else None
        ranges.append({"from": low, "below": high, "pairs": len(rows), "score": score})
    return ranges


def recalled(hypotheses: Sequence[str], wanted: Sequence[Iterable[str]]) -> tuple[int, int]:
    """How many of the wanted words the translations hold, and how many were wanted.

    Args:
        hypotheses: tokenized translations.
        wanted: for each translation the words that it should hold; one that is wanted twice has to
            be there twice.

    Raises:
        TypeError: `hypotheses` is no list of strings.
        ValueError: there are not as many lists of words as translations.
    """
    check_type((list, tuple), hypotheses=hypotheses, wanted=wanted)
    if len(hypotheses) != len(wanted):
        raise ValueError(f"wanted must be {len(hypotheses)} lists of words, not {len(wanted)}")
    counts = [Counter(words) for words in wanted]
    found = [Counter(text.split()) & words for text, words in zip(hypotheses, counts, strict=True)]
    return sum(words.total() for words in found), sum(words.total() for words in counts)


# %% book/13-translation.ipynb · What it looks at · [crossing]
def by_words(found: Alignment) -> Alignment:
    """The same alignment between words: weights are summed over a source word's subwords, and
    averaged over a target word's.

    Args:
        found: what `Translator.align` returned.

    Raises:
        TypeError: `found` is no `Alignment`.
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


def crosses_over(found: Alignment, source: tuple[str, str], target: tuple[str, str]) -> list[bool]:
    """Whether attention crosses over: the first target word looks more at the second source word
    than at the first, and the second target word more at the first.

    Args:
        found: an alignment of words, from `by_words`.
        source: two words of its source.
        target: two words of its target.

    Returns:
        one answer for each layer of the decoder, by the mean over its heads.

    Raises:
        TypeError: `found` is no `Alignment`.
        ValueError: it lacks one of the words.
    """
    check_type(Alignment, found=found)
    for words, side in ((source, found.source), (target, found.target)):
        for word in words:
            if word not in side:
                raise ValueError(f"found must hold the word {word!r}, but holds {side}")
    rows, columns = map(found.target.index, target), map(found.source.index, source)
    table = found.weights.mean(dim=1)[:, list(rows)][:, :, list(columns)]  # [n_layers, 2, 2]
    crossed = (table[:, 0, 1] > table[:, 0, 0]) & (table[:, 1, 0] > table[:, 1, 1])
    return crossed.tolist()


# %% book/13-translation.ipynb · Real talks · [sentences]
# Portuguese sentences that a lecture on this corpus shows, with what its model made of them.
LECTURE = {
    "este é um problema que temos que resolver": "this is a problem we have to solve .",
    "este modelo parece funcionar bem": "this model seems to work well .",
    "quem tudo quer tudo perde": "who always wants everything to lose .",
    "estás aqui estás a levar": "these are actually taking over here .",
    "estou feito ao bife": "i ' m done by the different tree .",
}

# A noun and its adjective, which change places.
SWAPS = {
    "um gato preto": "a black cat",
    "uma casa branca": "a white house",
    "uma ideia nova": "a new idea",
    "um problema difícil": "a difficult problem",
    "uma cidade grande": "a big city",
    "um carro vermelho": "a red car",
    "uma pessoa normal": "a normal person",
    "um mundo diferente": "a different world",
    "uma história verdadeira": "a true story",
    "um homem rico": "a rich man",
    "uma mulher forte": "a strong woman",
    "um livro interessante": "an interesting book",
    "uma pergunta simples": "a simple question",
    "um sistema político": "a political system",
    "uma decisão importante": "an important decision",
    "uma experiência científica": "a scientific experiment",
    "um projeto pequeno": "a small project",
    "uma criança doente": "a sick child",
    "uma mão fria": "a cold hand",
    "um rio profundo": "a deep river",
}


class Sentence(NamedTuple):
    """A sentence that the book asks every translator, with the authors' own translation."""

    category: str
    source: str
    target: str


def load_sentences() -> list[Sentence]:
    """The hundred Portuguese sentences of this chapter, written for it, in eleven categories."""
    lines = record_path("sentences.tsv").read_text(encoding="utf8").splitlines()
    return [Sentence(*line.split("\t")) for line in lines]


# %% book/13-translation.ipynb · Real talks · [examine]
def examine_translator(
    translator: Translator,
    corpus: str,
    load: Callable[[str, str], list[Pair]] = load_corpus,
) -> dict[str, Any]:
    """What the book keeps of a trained translator, but for how it was trained.

    Args:
        translator: the translator.
        corpus: the one that it was trained on.
        load: gives a corpus' split, as `load_corpus` does.

    Returns:
        `"examined"`, the facts of `run_facts`; the `"grid"` of `tune_search` on the development
        split; `"scores"` for `"dev"`, `"test"` and `"test, unseen"` (without the pairs that
        training showed) by greedy search, by a beam of 4 and by the search that the grid found
        best, `"tuned"`; the `"analysis"` of the test split, see `analyse_translations`; and what
        becomes of `LECTURE`, `SWAPS` and `load_sentences`.

    Raises:
        TypeError, ValueError, CorpusError: as in `load_corpus` and `corpus_scores`.
    """
    check_type(Translator, translator=translator)
    train, dev, test = (load(corpus, split) for split in ("train", "dev", "test"))
    grid = tune_search(translator, dev)
    on_dev = {(entry["beam_size"], entry["length_penalty"]): entry["scores"] for entry in grid}
    searches = {"greedy": (1, 0.6), "beam 4": (4, 0.6), "tuned": next(iter(on_dev))}
    sources = [pair.source for pair in test]
    written = {  # each search once, though it may have two names
        search: translator.translate_tokenized(sources, *search)
        for search in dict.fromkeys(searches.values())
    }
    named = {name: written[search] for name, search in searches.items()}
    dev_scores = {name: on_dev[search] for name, search in searches.items()}
    return {
        "examined": run_facts(next(translator.model.parameters()).device),
        "grid": grid,
        "scores": {"dev": {"pairs": len(dev)} | dev_scores} | _test_scores(named, test, train),
        "analysis": analyse_translations(named["tuned"], test, train),
        **_own_sentences(translator, *searches["tuned"]),
    }


def _test_scores(
    written: dict[str, list[str]], test: Sequence[Pair], train: Iterable[Pair]
) -> dict[str, dict[str, Any]]:
    known, scores = set(train), {}
    unseen = [row for row, pair in enumerate(test) if pair not in known]
    for split, rows in (("test", range(len(test))), ("test, unseen", unseen)):
        scores[split] = {"pairs": len(rows)}
        for name, hypotheses in written.items() if rows else ():
            ours, theirs = [hypotheses[row] for row in rows], [test[row].target for row in rows]
            scores[split][name] = corpus_scores(ours, theirs, n_bootstrap=1000)
    return scores


def analyse_translations(
    hypotheses: Sequence[str], pairs: Sequence[Pair], train: Iterable[Pair]
) -> dict[str, Any]:
    """Where translations are good and where they are not.

    Args:
        hypotheses: tokenized translations of the sources of `pairs`.
        pairs: sources with their references.
        train: the pairs that the translator was trained on, to count words in.

    Returns:
        `"sentences"`, the chrF2 of each; `"by length"`, scores by words in the reference; `"by
        rarest word"`, scores by how often training showed the source's rarest word; and how many
        words were `"recalled"`, of how many: `"numbers"` and `"names"` (other words of four letters
        or more) that source and reference have in common, and the references' words by how often
        training showed them.

    Raises:
        TypeError, ValueError: as in `corpus_scores`.
    """
    references = [pair.target for pair in pairs]
    _check_pairs(hypotheses, references)
    sources, targets = ([pair[side].split() for pair in pairs] for side in (0, 1))
    seen_sources, seen_targets = Counter(), Counter()
    for source, target in train:
        seen_sources.update(source.split())
        seen_targets.update(target.split())
    rarest = [min((seen_sources[word] for word in words), default=0) for words in sources]
    joined = [_DIGITS.sub("", text) for text in hypotheses]  # 2.000 is 2,000
    numbers, names = [], []
    for pair in pairs:
        words, others = (_DIGITS.sub("", text).split() for text in pair)
        common = (Counter(words) & Counter(others)).elements()
        common = [word for word in common if len(word) > 3 or word[0].isdigit()]
        numbers.append([word for word in common if word[0].isdigit()])
        names.append([word for word in common if word.isalpha()])
    recall = {"numbers": recalled(joined, numbers), "names": recalled(joined, names)}
    for low, high in ((0, 1), (1, 10), (10, 100), (100, 1000), (1000, None)):
        wanted = [
            [word for word in words if low <= seen_targets[word] < (high or math.inf)]
            for words in targets
        ]
        recall[f"from {low} below {high}" if high else f"from {low}"] = recalled(hypotheses, wanted)
    return {
        "sentences": sentence_scores(hypotheses, references),
        "by length": scores_in_ranges(
            [len(words) for words in targets], (10, 20, 30, 40, 60), hypotheses, references
        ),
        "by rarest word": scores_in_ranges(rarest, (1, 10, 100, 1000), hypotheses, references),
        "recalled": recall,
    }


_DIGITS = re.compile(r"(?<=\d)[.,](?=\d)")


def _own_sentences(translator: Translator, beam_size: int, length_penalty: float) -> dict[str, Any]:
    ours = load_sentences()
    sources, targets = ([tokenize(sentence[side]) for sentence in ours] for side in (1, 2))
    found = translator.translate_tokenized(sources, beam_size, length_penalty)
    swaps = []
    for source, target in SWAPS.items():
        words = by_words(translator.align(f"isto é {source} .", beam_size, length_penalty))
        pairs = source.split()[1:], target.split()[1:]
        as_said = set(pairs[0]) <= set(words.source) and set(pairs[1]) <= set(words.target)
        crossed = crosses_over(words, *pairs) if as_said else None
        swaps.append({"source": words.source, "target": words.target, "crossed": crossed})
    reordered = [
        by_words(translator.align(source, beam_size, length_penalty))
        for source, sentence in zip(sources, ours, strict=True)
        if sentence.category == "adjectives"
    ]
    return {
        "sentences": [
            {**sentence._asdict(), "translation": detokenize(text), "chrF2": score}
            for sentence, text, score in zip(
                ours, found, sentence_scores(found, targets), strict=True
            )
        ],
        "swaps": swaps,
        "reordered": [
            {**words._asdict(), "weights": rounded(words.weights.mean(dim=1))}
            for words in reordered[:3]
        ],
        "lecture": {
            name: translator.translate_tokenized(list(LECTURE), size)
            for name, size in (("greedy", 1), ("beam 4", 4))
        },
        "alignments": [
            {**found._asdict(), "weights": rounded(found.weights[-1])}
            for found in map(translator.align, list(LECTURE)[:2])
        ],
    }


def rounded(weights: Tensor) -> list:
    """A tensor as nested lists of numbers with three digits, for a record that people can read."""
    check_type(Tensor, weights=weights)
    return (weights.double() * 1000).round().div(1000).tolist()


# %% book/13-translation.ipynb · Real talks · [translation-record]
def translation_record(
    translator: Translator,
    trainer: Trainer,
    recipe: Recipe,
    load: Callable[[str, str], list[Pair]] = load_corpus,
) -> dict[str, Any]:
    """What the book keeps of a finished translation run.

    Args:
        translator: what `train_translator` returned.
        trainer: what it returned beside.
        recipe: what it was given.
        load: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the number of parameters, the time spent in updates in
        seconds, the log, and all that `examine_translator` returns.

    Raises:
        TypeError, ValueError, CorpusError: as in `examine_translator`.
    """
    check_type(Translator, translator=translator)
    check_type(Trainer, trainer=trainer)
    check_type(Recipe, recipe=recipe)
    return run_facts(trainer.device) | {
        "recipe": asdict(recipe),
        "parameters": sum(parameter.numel() for parameter in translator.model.parameters()),
        "seconds": round(sum(entry.get("seconds", 0.0) for entry in trainer.history)),
        "log": trainer.history,
        **examine_translator(translator, recipe.corpus, load),
    }
