"""transformer.translation, from book/13-translation.ipynb, "Portuguese to English".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "corpus_scores",
    "sentence_scores",
    "by_length",
    "translate_ids",
    "Alignment",
    "Translator",
    "pretrained_folder",
    "model_card",
    "by_words",
    "evaluate_translator",
    "unseen_pairs",
    "SEARCHES",
    "tune_search",
]


# %% book/13-translation.ipynb · As the corpus writes · [translation-imports]
import hashlib
import json
import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.corpora import Pair
from transformer.decoding import beam_search, greedy_search
from transformer.fast import FastTransformer, accelerate, accelerated
from transformer.files import (
    CheckpointError,
    atomic_file,
    load_weights,
    read_record,
    regular_file,
    save_weights,
    write_record,
)
from transformer.model import Transformer, TransformerConfig
from transformer.text import BOS_ID, EOS_ID, PAD_ID, Vocabulary, pad
from transformer.training import evaluating, record_path
from transformer.validation import (
    check_choice,
    check_device,
    check_number,
    check_size,
    check_type,
    optional_import,
)
from transformer.wording import AS_IT_IS, CORPORA, Preparation, detokenize


# %% book/13-translation.ipynb · How good is a translation? · [corpus-scores]
def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str],
    n_bootstrap: int = 0,
    preparation: Preparation = CORPORA,
) -> dict[str, dict[str, Any]]:
    """BLEU, chrF and exact match of prepared translations, each with the signature that says how it
    was computed.

    Args:
        hypotheses: translations in the form that training showed, such as the tokenized lower-case
            one of the book's corpora.
        references: one reference translation for each, in the same form.
        n_bootstrap: how many corpora to draw from this one for a 95% interval; 0 or 1 for none.
        preparation: what gave both sides their form. Case counts where it keeps case.

    Returns:
        for `"BLEU-tok"` (on the tokens as they are, where the preparation makes any), `"BLEU-detok"`
        (both sides as one types them, then sacreBLEU's own tokenization), `"chrF2"` (as one types
        them) and `"exact"` (equal sentences, in percent) the `"score"` from 0 to 100, the
        `"signature"`, and the `"line"` to print, as sacreBLEU itself does. With an
        `n_bootstrap` of at least 2 also the `"mean"` over the corpora drawn and the `"margin"`: the
        interval is mean ± margin.

    Raises:
        TypeError: they are not lists of strings, or `n_bootstrap` is not an int.
        ValueError: there are no references, or not as many as hypotheses, or `n_bootstrap` is
            negative.

    Source: Papineni et al. (2002); Post (2018); Popović (2015); Koehn (2004) for the interval.
    """
    _check_pairs(hypotheses, references)
    check_size(minimum=0, n_bootstrap=n_bootstrap)
    metrics = optional_import("sacrebleu.metrics")
    fold, restore = not preparation.keeps_case, preparation.restore
    typed = [restore(text) for text in hypotheses], [restore(text) for text in references]
    measured = {
        "BLEU-tok": (metrics.BLEU(lowercase=fold, tokenize="none", force=True), (hypotheses, references)),
        "BLEU-detok": (metrics.BLEU(lowercase=fold), typed),
        "chrF2": (metrics.CHRF(lowercase=fold), typed),
    }
    if not preparation.splits_words:
        del measured["BLEU-tok"]
    scores = {name: _measured(metric, *sides, n_bootstrap) for name, (metric, sides) in measured.items()}
    return scores | {"exact": _equal(hypotheses, references, n_bootstrap, fold)}


# %% book/13-translation.ipynb · How good is a translation? · [measured]
def _check_pairs(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    check_type((list, tuple), hypotheses=hypotheses, references=references)
    if not references or len(hypotheses) != len(references):
        raise ValueError(
            f"hypotheses and references must be equally many and at least one, "
            f"not {len(hypotheses)} and {len(references)}"
        )


def _measured(
    metric: Any, hypotheses: Sequence[str], references: Sequence[str], n_bootstrap: int
) -> dict[str, Any]:
    found = metric.corpus_score(list(hypotheses), [list(references)], n_bootstrap=n_bootstrap)
    signature = str(metric.get_signature())
    facts = json.loads(found.format(signature=signature, is_json=True))
    line = found.format(signature=signature)
    score = {"score": facts["score"], "signature": signature, "line": line}
    if n_bootstrap > 1:  # the library says nothing about a mean of 0
        score["mean"] = facts.get("confidence_mean", 0.0)
        score["margin"] = facts.get("confidence_var", 0.0)
    return score


def _equal(
    hypotheses: Sequence[str], references: Sequence[str], n_bootstrap: int, fold: bool
) -> dict[str, Any]:
    n, right = len(references), sum(map(str.__eq__, hypotheses, references))
    share, signature = right / n, f"nrefs:1|case:{'lc' if fold else 'mixed'}"
    line = f"exact|{signature} = {100 * share:.1f} ({right:,} of {n:,})"
    score: dict[str, Any] = {"score": 100 * share, "signature": signature}
    if n_bootstrap > 1:  # what the interval would be in the limit of many corpora
        score["mean"], score["margin"] = 100 * share, 196 * (share * (1 - share) / n) ** 0.5
        line += f" ± {score['margin']:.1f}"
    return score | {"line": line}


# %% book/13-translation.ipynb · How certain is a score? · [sentence-scores]
def sentence_scores(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF2 of each translation alone, detokenized, from 0 to 100.

    Args:
        hypotheses: translations in the corpus's own tokenized lower-case form.
        references: one reference translation for each, in the same form.

    Raises:
        TypeError: they are not lists of strings.
        ValueError: there are no references, or not as many as hypotheses.

    Source: Popović (2015).
    """
    _check_pairs(hypotheses, references)
    metric = optional_import("sacrebleu.metrics").CHRF()
    typed = zip(map(detokenize, hypotheses), map(detokenize, references), strict=True)
    return [round(metric.sentence_score(ours, [theirs]).score, 2) for ours, theirs in typed]


# %% book/13-translation.ipynb · Reading and searching · [by-length]
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
    rows = sorted(
        (row for row, ids in enumerate(sequences) if len(ids) > 1),
        key=lambda row: -len(sequences[row]),
    )
    while rows:
        size = max(1, max_tokens // len(sequences[rows[0]]))
        yield rows[:size]
        rows = rows[size:]


# %% book/13-translation.ipynb · Reading and searching · [encoding]
_READ = 64  # characters of a sentence for each token that the model reads; what follows is cut off


def _shortened(sentences: Sequence[str], config: TransformerConfig) -> list[str]:
    if isinstance(sentences, str):
        raise TypeError("sentences must be a list of strings, not one string")
    limit, kept = _READ * config.max_length, list(sentences)
    for row, text in enumerate(kept):
        if isinstance(text, str) and len(text) > limit:
            said = f"sentence {row + 1} is cut to its first {limit:,} characters"
            warnings.warn(said, stacklevel=3)  # at the call of a translator's method
            kept[row] = text[:limit]
    return kept


def _encoded(
    sentences: Iterable[str], vocabulary: Vocabulary, config: TransformerConfig
) -> list[list[int]]:
    longest, sources = config.max_length - 1, []  # and the end token
    for number, ids in enumerate(vocabulary.encode_batch(sentences), start=1):
        if len(ids) > longest:
            warnings.warn(f"sentence {number} is cut to its first {longest} tokens", stacklevel=3)
        sources.append([*ids[:longest], config.eos_id])
    return sources


# %% book/13-translation.ipynb · Reading and searching · [searching]
def translate_ids(
    model: Transformer,
    sources: list[list[int]],
    beam_size: int,
    length_penalty: float,
    max_length: int = 200,
    max_tokens: int = 4000,
) -> list[list[int]]:
    """Translate sources of token ids, each with its end token, in batches of about the same length.

    Arguments after `sources` and errors are those of `Translator.translate_tokenized`.

    Returns:
        the ids of each translation without padding; none for an empty source.
    """
    check_size(beam_size=beam_size, max_length=max_length, max_tokens=max_tokens)
    check_number(length_penalty=length_penalty)
    device, pad_id = next(model.parameters()).device, model.config.pad_id
    max_length = min(max_length, model.config.max_length)
    found: list[list[int]] = [[] for _ in sources]
    for rows in by_length(sources, max_tokens):
        src = pad([sources[row] for row in rows], pad_id).to(device)
        if beam_size == 1:
            best = greedy_search(model, src, max_length)
        else:
            best = beam_search(model, src, beam_size, length_penalty, max_length).tokens[:, 0]
        for row, ids in zip(rows, best.tolist(), strict=True):
            found[row] = [token for token in ids if token != pad_id]
    return found


# %% book/13-translation.ipynb · In a folder · [translator-files]
_FILES = ("config.json", "model.safetensors", "vocabulary.json")
_SUMS = "SHA256SUMS"


def _sum(name: str, path: Path) -> bytes:
    """What the program `sha256sum` says of a file that is called `name`."""
    with regular_file(path).open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode()


def _written(folder: Path, name: str) -> Path:
    """Where a new file is until the sums speak of it, and it takes its place."""
    return folder / f".{name}.new"


def _check_sums(folder: Path) -> dict[str, Path]:
    """The files of a translator; refuses, by name, one that is not as `Translator.save` left it."""
    summed = (folder / _SUMS).exists()
    places = {name: [folder / name, *[_written(folder, name)] * summed] for name in _FILES}
    places = {name: [path for path in paths if path.exists()] for name, paths in places.items()}
    missing = [name for name, paths in places.items() if not paths]
    if not (missing or summed):
        raise CheckpointError(
            f"{folder} has no {_SUMS}, so nobody would notice damage: an earlier version saved it. "
            f"If you trust its files, run there: sha256sum {' '.join(_FILES)} > {_SUMS}"
        )
    if missing or not summed:
        inner = folder / "translator"
        hint = f"; the translator of this run is {inner}" if inner.is_dir() else ""
        gone = (*missing, _SUMS)[0]
        raise FileNotFoundError(f"{folder} is not a translator, as {gone} is missing{hint}")
    with regular_file(folder / _SUMS).open("rb") as file:
        noted = file.read(1024).splitlines(keepends=True)
    sums = {name: {_sum(name, path): path for path in reversed(paths)} for name, paths in places.items()}
    lines = dict(zip(_FILES, noted))
    changed = [name for name in _FILES if lines.get(name) not in sums[name]]
    if changed or len(noted) != len(_FILES):
        raise CheckpointError(
            f"{folder / (changed or [_SUMS])[0]} does not match {folder / _SUMS}: it was damaged or changed"
        )
    return {name: sums[name][line] for name, line in lines.items()}


def _settle(folder: Path) -> None:
    """Give new files their places if the sums speak of them; remove them, and what was begun, if not."""
    noted = (folder / _SUMS).read_bytes() if (folder / _SUMS).exists() else b""
    for name in (*_FILES, _SUMS):
        if (new := _written(folder, name)).exists():
            if _sum(name, new) in noted:
                os.replace(new, folder / name)
            else:
                new.unlink()
        for part in folder.glob(f".*{name}*.part"):
            part.unlink()


# %% book/13-translation.ipynb · In a folder · [translator-folder]
_CARRIED = ("phrases",)  # translators that are part of the package


def _translator_folder(path: Path | str) -> Path:
    if isinstance(path, str) and path in _CARRIED:  # whatever the current folder holds
        return record_path(path)
    if not str(path) or not Path(path).is_dir():
        known = ", ".join(_CARRIED)
        raise FileNotFoundError(
            f"there is no translator {str(path)!r}: no folder has this name, and those that the "
            f"package carries are called {known}"
        )
    return Path(path)


# %% book/13-translation.ipynb · In a folder · [translator-config]
_LARGEST_CONFIG = 1 << 16  # bytes


def _read_config(path: Path) -> tuple[TransformerConfig, Preparation]:
    if regular_file(path).stat().st_size > _LARGEST_CONFIG:
        raise CheckpointError(f"{path} is not a configuration: it has over {_LARGEST_CONFIG:,} bytes")
    try:
        values = read_record(path)
        said = values.pop("preparation", asdict(CORPORA))  # an earlier version knew no other
        check_type(dict, preparation=said)
        return TransformerConfig(**values), Preparation(**said)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a configuration: {error}") from error


# %% book/13-translation.ipynb · In a folder · [translator-header]
_LARGEST_HEADER = 1 << 18  # bytes; for six layers on either side it has about 25,000
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes in a file of weights, of which no tensor is read.

    Raises:
        CheckpointError: it is not such a file, or its tensors do not fill it.
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
        for side in (x for shape in shapes.values() for x in shape):
            check_size(minimum=0, size=side)
        filled = sum(
            math.prod(shapes[name]) * _DTYPES[entry["dtype"]].itemsize
            for name, entry in header.items()
        )
        if 8 + length + filled != size:
            raise ValueError(f"its header names {filled:,} bytes of numbers in {size:,} of file")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is not a file of weights ({said:.200})") from error
    return shapes


# %% book/13-translation.ipynb · In a folder · [header-check]
_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed, not stored


def _on_meta(config: TransformerConfig) -> dict[str, Tensor]:
    with torch.device("meta"):
        return Transformer(config).state_dict(keep_vars=True)  # a shared table is one object


def _n_tensors(config: TransformerConfig) -> int:
    # All layers have equally many, so two small models tell the number for any depth.
    one, two = (
        len({id(x) for x in _on_meta(replace(config, n_layers=n)).values()}) for n in (1, 2)
    )
    return one + (config.n_layers - 1) * (two - one)


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
    if len(shapes) != (n_tensors := _n_tensors(config)):
        raise CheckpointError(f"{misfit}: it has {len(shapes)} tensors, not {n_tensors:,}")
    own = _on_meta(config)
    for name, shape in shapes.items():
        wanted = tuple(own[name].shape) if name in own else "in no place"
        if shape != wanted:
            raise CheckpointError(f"{misfit}: {name!r:.80} has shape {shape}, but stands {wanted}")
    if len({id(own[name]) for name in shapes}) != len(shapes):
        raise CheckpointError(f"{misfit}: a shared table is there twice")


# %% book/13-translation.ipynb · In a folder · [reading]
def _not_finite(model: nn.Module, dtype: torch.dtype | None = None) -> str | None:
    # The first parameter that has a number that is not finite once written in `dtype`.
    for name, x in model.named_parameters():
        if not x.detach().to(dtype or x.dtype).isfinite().all():
            return name
    return None


def _read_model(weights: Path, config: TransformerConfig, device: torch.device) -> Transformer:
    _check_header(weights, config)
    model = Transformer(config).to(device)
    load_weights(model, weights)
    if (name := _not_finite(model)) is not None:
        raise CheckpointError(f"{weights} holds numbers that are not finite, in {name}")
    return model.eval()


def _read_vocabulary(
    path: Path, config: TransformerConfig, preparation: Preparation
) -> Vocabulary:
    try:
        vocabulary = Vocabulary.load(path, preparation)
        _check_fit(config, vocabulary)
    except ValueError as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error
    return vocabulary


def _check_fit(config: TransformerConfig, vocabulary: Vocabulary) -> None:
    sizes, special = {config.src_vocab_size, config.tgt_vocab_size}, (PAD_ID, BOS_ID, EOS_ID)
    if sizes != {len(vocabulary)}:
        raise ValueError(f"the model has {sorted(sizes)} tokens, the vocabulary {len(vocabulary)}")
    if (ids := (config.pad_id, config.bos_id, config.eos_id)) != special:
        raise ValueError(
            f"the model has padding, start and end at {ids}, the vocabulary at {special}"
        )


# %% book/13-translation.ipynb · In a folder · [keeping]
def _check_kept(model: Transformer, dtype: torch.dtype) -> None:
    wanted = "model must be a plain Transformer to be saved"
    try:
        kind = type(accelerate(model))
    except TypeError as error:
        raise TypeError(f"{wanted}: {error}") from error
    if kind is not FastTransformer:
        raise TypeError(f"{wanted}, not a {kind.__name__}: save the model that it was made of")
    if (name := _not_finite(model, dtype)) is not None:
        bound = f"holds a number that is not finite in {dtype}"
        raise ValueError(f"{name} {bound}, whose largest is {torch.finfo(dtype).max:.4g}")


def _write(
    folder: Path, model: Transformer, vocabulary: Vocabulary, dtype: torch.dtype
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _settle(folder)  # a save that was cut off
    config, weights, tokens = new = [_written(folder, name) for name in _FILES]
    try:
        write_record(config, asdict(model.config) | {"preparation": asdict(vocabulary.preparation)})
        save_weights(model, weights, dtype)
        vocabulary.save(tokens)
        with atomic_file(folder / _SUMS) as sums:  # when it takes its place, the new translator is there
            sums.write_bytes(b"".join(map(_sum, _FILES, new)))
    finally:
        _settle(folder)


# %% book/13-translation.ipynb · The class · [alignment]
class Alignment(NamedTuple):
    """A translation and what its cross-attention looked at: subwords, or words after `by_words`."""

    source: list[str]
    target: list[str]
    weights: Tensor  # [n_layers, H, T, S]


def _cross_attention(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    # What the decoder looks at while it writes `target`, end token included: [n_layers, H, T, S].
    device = next(model.parameters()).device
    src = torch.tensor([source], device=device)
    tgt = torch.tensor([[model.config.bos_id, *target[:-1]]], device=device)
    with evaluating(model):
        return model.attention_maps(src, tgt).cross[:, 0]


# %% book/13-translation.ipynb · The class · [translator]
class Translator:
    """A trained model with its vocabulary: sentences in, sentences out.

    Every sentence is prepared as the vocabulary prepared those of training, and every translation is
    restored, by the vocabulary's `Preparation`.

    Searches run on the accelerated model, which is made here and has the same parameters: weights
    that change later count at once. If you replace or watch a part of the model, do so before. Where
    `accelerate` refuses, searches run on the model itself, and a warning says why.

    Args:
        model: a trained `Transformer` with one vocabulary for both languages.
        vocabulary: that vocabulary.

    Raises:
        TypeError, ValueError: an argument is of the wrong type, or they do not belong together.

    Example:
        >>> Translator.load("phrases").translate(["A menina gosta do gato preto."])
        ['the girl likes the black cat.']
    """

    model: Transformer
    vocabulary: Vocabulary

    def __init__(self, model: Transformer, vocabulary: Vocabulary) -> None:
        check_type(nn.Module, model=model)
        check_type(Vocabulary, vocabulary=vocabulary)
        _check_fit(model.config, vocabulary)
        self.model, self.vocabulary = model, vocabulary
        self._searched = accelerated(model, stacklevel=3)  # where a translator is made

    @classmethod
    def load(cls, path: Path | str, device: torch.device | str = "cpu") -> "Translator":
        """Read a translator from the folder that `save` wrote; nothing in it is executed.

        Args:
            path: the folder, or the name of a translator that the package carries, such as
                `"phrases"`. For a folder of that name, write `"./phrases"` or a `Path`.
            device: to translate on.

        Raises:
            TypeError: `path` is not a path.
            FileNotFoundError: there is no such folder, or a file is missing in it.
            CheckpointError: a file is damaged, or they do not belong together; the message names it.
            ValueError: there is no such device.
        """
        check_type((str, Path), path=path)
        device = check_device(device)
        files = _check_sums(_translator_folder(path))
        config, preparation = _read_config(files["config.json"])
        model = _read_model(files["model.safetensors"], config, device)
        return cls(model, _read_vocabulary(files["vocabulary.json"], config, preparation))

    @property
    def preparation(self) -> Preparation:
        """What is done to every sentence, and to every translation."""
        return self.vocabulary.preparation

    def save(self, path: Path | str, dtype: torch.dtype = torch.float16) -> None:
        """Write weights, configuration, vocabulary and checksums into a folder, made if missing.

        Cut off at any moment, it leaves the earlier translator or the new one, and the next `save`
        tidies up.

        Raises:
            TypeError: `dtype` is not a `torch.dtype`, or the model not a plain `Transformer`.
            ValueError: `dtype` is not one that a file can have, or a weight is not finite in it.
            OSError: a file cannot be written; the message names it, and an earlier translator stays.
        """
        check_type(torch.dtype, dtype=dtype)
        check_choice(_DTYPES.values(), dtype=dtype)
        _check_kept(self.model, dtype)
        _write(Path(path), self.model, self.vocabulary, dtype)

    @classmethod
    def from_pretrained(
        cls, name: Path | str, *, device: torch.device | str = "cpu", **download: Any
    ) -> "Translator":
        """`load`, which fetches a translator from the Hugging Face hub where no folder has that name.

        Args:
            name: as in `load`, or `"OWNER/NAME"`.
            device: to translate on.
            **download: as in `pretrained_folder`.

        Raises:
            TypeError, OSError, CheckpointError, ValueError: as in `load` and `pretrained_folder`.
        """
        return cls.load(pretrained_folder(name, **download), device)

    def save_pretrained(
        self, path: Path | str, *, record: Mapping[str, Any] | None = None,
        repo_id: str = "OWNER/NAME",
    ) -> None:
        """`save`, with a model card beside it.

        Args:
            path: the folder.
            record: what was noted of the training, as `translation_record` returns it.
            repo_id: the model's name on the hub, for the card's example.

        Raises:
            TypeError, ValueError, OSError: as in `save` and `model_card`.
        """
        card = model_card(self.model.config, record, repo_id, self.preparation)
        self.save(path)
        with atomic_file(Path(path) / "README.md") as part:
            part.write_text(card, encoding="utf8")

    def push_to_hub(
        self, repo_id: str, *, record: Mapping[str, Any] | None = None,
        commit_message: str = "Add a translator", private: bool | None = None,
        token: str | None = None,
    ) -> str:
        """Upload what `save_pretrained` writes, as one commit; the repository is made if missing.

        Args:
            repo_id: its name, `"OWNER/NAME"`.
            record: as in `save_pretrained`.
            commit_message: of the commit.
            private: whether a new repository is; `None` for its owner's default.
            token: of an account; `None` for the one that has logged in.

        Returns:
            the address of the commit.

        Raises:
            TypeError, ValueError: as in `save_pretrained`.
            OSError: the hub refuses, or cannot be reached.
            ImportError: huggingface_hub is missing.
        """
        hub = optional_import("huggingface_hub").HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder, record=record, repo_id=repo_id)
            with _asking_hub(repo_id):
                hub.create_repo(repo_id, private=private, exist_ok=True)
                what = {"folder_path": folder, "commit_message": commit_message}
                return str(hub.upload_folder(repo_id=repo_id, **what))

    def translate(
        self, sentences: Sequence[str], beam_size: int = 4, length_penalty: float = 0.6
    ) -> list[str]:
        """Translate sentences as you type them; translations are written as their `preparation` restores
        them, which is in lower case for models of the book's corpora.

        Give each sentence a string of its own: of two in one string, the model may drop one. It writes
        a fluent sentence whatever it reads, and nothing here says how sure it is.

        Arguments and errors are those of `translate_tokenized`.
        """
        config = self.model.config
        sources = _encoded(_shortened(sentences, config), self.vocabulary, config)
        found = self.translate_ids(sources, beam_size, length_penalty)
        return [self.preparation.restore(self.vocabulary.decode(ids)) for ids in found]

    def translate_tokenized(
        self, sentences: Sequence[str], beam_size: int = 4, length_penalty: float = 0.6,
        max_length: int = 200, max_tokens: int = 4000,
    ) -> list[str]:
        """Translate sentences, and leave the translations in the form that training showed, as scores
        want them.

        Args:
            sentences: text as you type it, or prepared already. What is longer than the model's
                `max_length` is cut, with a warning.
            beam_size: width of the beam; 1 for greedy search.
            length_penalty: as in `beam_search`.
            max_length: the most tokens of a translation; never more than the model's `max_length`.
            max_tokens: the most source tokens, padding included, that are translated at once.

        Raises:
            TypeError, ValueError: `sentences` is a single string or holds a non-string, or a
                setting is of the wrong type or out of its range.
        """
        config = self.model.config
        sources = _encoded(_shortened(sentences, config), self.vocabulary, config)
        found = self.translate_ids(sources, beam_size, length_penalty, max_length, max_tokens)
        return [self.vocabulary.decode(ids) for ids in found]

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence as you type it, the end token included."""
        return len(self.vocabulary.encode(sentence)) + 1

    def translate_ids(
        self, sources: list[list[int]], beam_size: int = 4, length_penalty: float = 0.6,
        max_length: int = 200, max_tokens: int = 4000,
    ) -> list[list[int]]:
        """The function `translate_ids` on this translator's model, with its arguments."""
        settings = beam_size, length_penalty, max_length, max_tokens
        return translate_ids(self._searched, sources, *settings)

    def align(self, sentence: str, beam_size: int = 4, length_penalty: float = 0.6) -> Alignment:
        """Translate one sentence and note what the decoder attended to while it did.

        Arguments and errors are those of `translate_tokenized`.
        """
        check_type(str, sentence=sentence)
        config = self.model.config
        (source,) = _encoded(_shortened([sentence], config), self.vocabulary, config)
        (found,) = self.translate_ids([source], beam_size, length_penalty)
        target = found or [config.eos_id]  # of an empty sentence
        names, weights = self.vocabulary.tokens, _cross_attention(self.model, source, target)
        return Alignment(names(source), names(target), weights)


# %% book/13-translation.ipynb · On a hub · [hub-folder]
_FETCHED = ("*.json", "*.safetensors", "*.spm", _SUMS)  # reading them executes nothing
_REFUSALS = {
    "RepositoryNotFoundError": "there is none of that name, or it is private",
    "GatedRepoError": "its owner has to admit you first",
    "RevisionNotFoundError": "it has no such revision",
    "LocalEntryNotFoundError": "the hub cannot be reached, and the model was not fetched before",
    "OfflineModeIsEnabled": "the library was told to work offline",
}


def pretrained_folder(name: Path | str, **download: Any) -> Path:
    """The folder of a model: one that is here, or a copy of what the Hugging Face hub has under that name.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"`.
        **download: as in `huggingface_hub.snapshot_download`, such as `revision`, `token`,
            `cache_dir` or `local_files_only`.

    Raises:
        TypeError: `name` is neither a string nor a `Path`.
        OSError: there is no such folder, and no such name on the hub; the hub has no safetensors
            for it, or cannot be reached.
        ImportError: huggingface_hub is missing.
    """
    check_type((str, Path), name=name)
    on_hub = isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    if not on_hub or Path(name).is_dir():
        return _translator_folder(name)
    hub = optional_import("huggingface_hub")
    with _asking_hub(str(name)):
        folder = Path(hub.snapshot_download(name, allow_patterns=_FETCHED, **download))
    if not any(folder.glob("*.safetensors")):
        raise FileNotFoundError(f"the hub's {name} holds no weights in the format safetensors")
    return folder


@contextmanager
def _asking_hub(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the library and those beneath it raise some fifty types of error
        kind = type(error).__name__
        said = _REFUSALS.get(kind) or f"{kind}: {str(error).strip():.200}"
        raise OSError(f"{name} on the Hugging Face hub: {said}") from error


# %% book/13-translation.ipynb · On a hub · [card-text]
_CARD = """\
---
{language}library_name: transformer-book
pipeline_tag: translation
---

# A translator{between}

An encoder-decoder Transformer. The package `transformer-book`, with its extra `text`, runs it:

```python
from transformer import Translator

Translator.from_pretrained("{name}").translate(["{example}"])
```

It reads single sentences of up to {max_length} tokens, {form}.

| setting | value |
| --- | --- |
"""
_FORMS = {
    "as it is": "as they are written",
    "lower case": "which it brings to lower case; translations are in lower case",
    "tokenized": "which it brings to lower case and splits into tokens; translations are in lower case",
}
_TRAINED = """
## Training

| | |
| --- | --- |
| command | `{command}` |
| commit | `{commit}` |
| date | {date} |
| device | {device} |
| corpus | {corpus} |

## Scores

On {scored}:

```text
{scores}
```
"""


# %% book/13-translation.ipynb · On a hub · [model-card]
def model_card(
    config: TransformerConfig,
    record: Mapping[str, Any] | None,
    name: str,
    preparation: Preparation = AS_IT_IS,
) -> str:
    """The text of a translator's `README.md` on the Hugging Face hub.

    Args:
        config: the model's.
        record: what was noted of its training, as `translation_record` returns it, or `None`.
        name: what the card's example loads it by.
        preparation: the translator's. The card names languages only if it does.

    Raises:
        TypeError, ValueError: `record` is not that of a translator.
    """
    check_type(TransformerConfig, config=config)
    check_type((Mapping, type(None)), record=record)
    check_type(Preparation, preparation=preparation)
    facts = {"language": "", "between": "", "example": "…"}
    if preparation.languages:
        source, target = preparation.languages
        facts["language"] = f"language: {json.dumps(preparation.languages)}\n"
        facts["between"] = f" from {source} to {target}"
        facts["example"] = "Gosto disto." if source == "pt" else "…"
    facts |= {"name": name, "max_length": str(config.max_length - 1), "form": _FORMS[preparation.name]}
    rows = [f"| {setting} | {value} |\n" for setting, value in asdict(config).items()]
    card = "".join([_CARD.format(**facts), *rows])
    if record is None:
        return card
    try:
        facts = {fact: record[fact] for fact in ("command", "commit", "date", "device")}
        facts["corpus"], scores = record["recipe"]["data"]["corpus"], record["scores"]
        if own := scores.get("held out"):
            facts["scored"] = f"{own['pairs']:,} pairs that training did not show"
            measured = own["beam 4"]
        else:
            facts["scored"], measured = "the test split of the corpus", scores["test"]["tuned"]
        facts["scores"] = "\n".join(score["line"] for score in measured.values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"record is not that of a translator: {error!r}") from error
    return card + _TRAINED.format(**facts)


# %% book/13-translation.ipynb · Between words · [crossing]
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


# %% book/13-translation.ipynb · Which search? · [evaluate-translator]
def evaluate_translator(
    translator: Translator, pairs: Sequence[Pair], beam_size: int = 4, length_penalty: float = 0.6
) -> dict[str, dict[str, Any]]:
    """The `corpus_scores` of translating the sources of `pairs`, against their targets, in the form
    that training showed."""
    check_type(Translator, translator=translator)
    hypotheses = translator.translate_tokenized(
        [source for source, _ in pairs], beam_size, length_penalty
    )
    references = [translator.vocabulary.prepare(target) for _, target in pairs]
    return corpus_scores(hypotheses, references, preparation=translator.preparation)


def unseen_pairs(pairs: Iterable[Pair], train: Iterable[Pair]) -> list[Pair]:
    """The pairs that do not occur in the training split as well."""
    known = set(train)
    return [pair for pair in pairs if pair not in known]


# %% book/13-translation.ipynb · Which search? · [tune-search]
SEARCHES = ((1, 0.6), (4, 0.0), (4, 0.6), (4, 1.0), (4, 1.4), (8, 1.0))


def tune_search(
    translator: Translator,
    pairs: Sequence[Pair],
    settings: Sequence[tuple[int, float]] = SEARCHES,
) -> list[dict[str, Any]]:
    """Score several searches on the development split.

    Args:
        translator: a trained translator.
        pairs: of a split that decides this and nothing else.
        settings: pairs of a beam size and a length penalty.

    Returns:
        for each setting `"beam_size"`, `"length_penalty"` and `"scores"`, as `corpus_scores` gives
        them; the highest BLEU-detok first, and equal ones in the order of `settings`.

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
