"""Translators and models in folders and files."""

import hashlib
import json
import math
import os
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any
import torch
from torch import nn
from transformer.files import CheckpointError, atomic_file, read_record, regular_file, write_record
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from transformer.language.preparation import CORPORA, Preparation
from transformer.model import Transformer, TransformerConfig
from transformer.speed.fast import FastTransformer
from transformer.training import record_path
from transformer.validation import check_choice, check_device, check_type, optional_import
from transformer.weights import (
    check_shapes, differences, load_weights, original, parameter_owners, plain_transformer, planned,
    save_weights,
)  # fmt: skip

__all__ = [
    "check_sums", "translator_folder", "pretrained_folder", "read_config", "read_model", "read_vocabulary",
    "check_fit", "savable", "write_translator", "save_model", "load_model",
]  # fmt: skip


_FILES = ("config.json", "model.safetensors", "vocabulary.json")
_SUMS = "SHA256SUMS"


def _sum(name: str, path: Path) -> bytes:
    """What the program `sha256sum` says of a file that is called `name`."""
    with regular_file(path).open("rb") as file:
        return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode()


def _written(folder: Path, name: str) -> Path:
    """Where a new file is until the sums speak of it, and it takes its place."""
    return folder / f".{name}.new"


def check_sums(folder: Path) -> dict[str, Path]:
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


_CARRIED = ("phrases",)  # translators that are part of the package


def translator_folder(path: Path | str) -> Path:
    if isinstance(path, str) and path in _CARRIED:  # whatever the current folder holds
        return record_path(path)
    if not str(path) or not Path(path).is_dir():
        known = ", ".join(_CARRIED)
        raise FileNotFoundError(
            f"there is no translator {str(path)!r}: no folder has this name, and those that the "
            f"package carries are called {known}"
        )
    return Path(path)


_FETCHED = ("*.json", "*.safetensors", "*.spm", _SUMS)  # reading them executes nothing


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
        return translator_folder(name)
    hub = optional_import("huggingface_hub")
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=_FETCHED, **download))
    except Exception as error:  # the library and those beneath it raise some fifty types of error
        raise OSError(
            f"{name} on the Hugging Face hub: {str(error).strip() or type(error).__name__}"
        ) from error
    if not any(folder.glob("*.safetensors")):
        kinds = "(t.AutoModelForSeq2SeqLM, t.AutoTokenizer)"
        once = f"[kind.from_pretrained('{name}').save_pretrained('FOLDER') for kind in {kinds}]"
        raise FileNotFoundError(
            f"the hub's {name} holds no weights in the format safetensors; where it has them in another, "
            f'convert them once, and name FOLDER instead: python -c "import transformers as t; {once}"'
        )
    return folder


_LARGEST_CONFIG = 1 << 16  # bytes


def read_config(path: Path) -> tuple[TransformerConfig, Preparation]:
    try:
        values = read_record(path, _LARGEST_CONFIG)
        preparation = values.pop("preparation", asdict(CORPORA))  # an earlier version knew no other
        check_type(dict, preparation=preparation)
        return TransformerConfig(**values), Preparation(**preparation)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is not a configuration: {error}") from error


_LARGEST_HEADER = 1 << 18  # bytes; for six layers on either side it has about 25,000
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The names and shapes in a file of weights, of which no tensor is read.

    Raises:
        CheckpointError: it is not such a file, or its tensors do not fill it.
    """
    safetensors, shapes = optional_import("safetensors"), {}
    try:
        with regular_file(path).open("rb") as file:
            if (length := int.from_bytes(file.read(8), "little")) > _LARGEST_HEADER:
                raise ValueError(f"its header claims to have {length:,} bytes")
        with safetensors.safe_open(path, framework="pt") as header:
            for name in header.keys():
                tensor = header.get_slice(name)
                shapes[name] = tuple(tensor.get_shape())
                _DTYPES[tensor.get_dtype()]
    except (ValueError, KeyError, safetensors.SafetensorError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{path} is not a file of weights ({reason:.200})") from error
    return shapes


_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed, not stored


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
    try:
        plan = planned(Transformer, config, sum(config.depths), len(shapes))
        wanted = {name: tuple(x.shape) for name, x in plan.named_parameters()}
        check_shapes(shapes, wanted, parameter_owners(plan))
    except ValueError as error:
        raise CheckpointError(f"{misfit}: {error}") from error


def _not_finite(model: nn.Module, dtype: torch.dtype | None = None) -> str | None:
    # The first parameter that has a number that is not finite once written in `dtype`.
    for name, x in model.named_parameters():
        if not x.detach().to(dtype or x.dtype).isfinite().all():
            return name
    return None


def read_model(weights: Path, config: TransformerConfig, device: torch.device) -> Transformer:
    _check_header(weights, config)
    model = Transformer(config).to(device)
    load_weights(model, weights)
    if (name := _not_finite(model)) is not None:
        raise CheckpointError(f"{weights} holds numbers that are not finite, in {name}")
    return model.eval()


def read_vocabulary(path: Path, config: TransformerConfig, preparation: Preparation) -> Vocabulary:
    try:
        vocabulary = Vocabulary.load(path, preparation)
        check_fit(config, vocabulary)
    except ValueError as error:
        raise CheckpointError(f"{path} does not fit: {error}") from error
    return vocabulary


def check_fit(config: TransformerConfig, vocabulary: Vocabulary) -> None:
    sizes, special = {config.src_vocab_size, config.tgt_vocab_size}, (PAD_ID, BOS_ID, EOS_ID)
    if sizes != {len(vocabulary)}:
        raise ValueError(f"the model has {sorted(sizes)} tokens, the vocabulary {len(vocabulary)}")
    if (ids := (config.pad_id, config.bos_id, config.eos_id)) != special:
        raise ValueError(f"the model has padding, start and end at {ids}, the vocabulary at {special}")


def savable(model: Transformer, dtype: torch.dtype) -> Transformer:
    """What is written for a model: its `plain_transformer`. A warning says what will compute otherwise."""
    check_type(torch.dtype, dtype=dtype)
    check_choice(_DTYPES.values(), dtype=dtype)
    plain = plain_transformer(model)
    if (name := _not_finite(plain, dtype)) is not None:
        bound = f"holds a number that is not finite in {dtype}"
        raise ValueError(f"{name} {bound}, whose largest is {torch.finfo(dtype).max:.4g}")
    if (lost := _not_in_a_file(original(model), plain)) is not None:
        warnings.warn(f"{lost}, which no file holds: loading gives a plain Transformer", stacklevel=3)
    return plain


def _not_in_a_file(model: Transformer, plain: Transformer) -> str | None:
    """The first class, setting or buffer by which a model differs from its plain one."""
    for difference in () if isinstance(model, FastTransformer) else differences(model, plain):
        name, what, _, wanted = difference
        if not (what == "class" and wanted is None or what.startswith("_") and what != "_buffers"):
            return str(difference)
    return None


def _check_own(folder: Path) -> None:
    """Refuse a folder that holds a run, or another program's model: without sums, and no `read_config`."""
    config = folder / "config.json"
    if config.exists() and not (folder / _SUMS).exists():
        try:
            read_config(config)
        except CheckpointError as error:
            raise ValueError(f"{config} is not a translator's, and stays: choose another folder") from error


def write_translator(folder: Path, model: Transformer, vocabulary: Vocabulary, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _check_own(folder)
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


def save_model(model: Transformer, path: Path | str, dtype: torch.dtype = torch.float32) -> None:
    """Write a model into a file, configuration and weights, for `load_model`.

    Args:
        model: a `Transformer`, plain, accelerated or compiled; its hooks and attributes are left out. Of
            a subclass, and of a model with other settings, the plain part is written, and a warning says so.
        path: of the file.
        dtype: to write in; `torch.float16` halves the file.

    Raises:
        TypeError: `model` has not the parameters that its configuration makes; the message names the
            first that differs.
        ValueError: `dtype` is not one that a file can have, or a weight is not finite in it.
        OSError: the file cannot be written; the message names it.
    """
    plain = savable(model, dtype)
    save_weights(plain, path, dtype, {"config": json.dumps(asdict(plain.config))})


def load_model(path: Path | str, device: torch.device | str = "cpu") -> Transformer:
    """Read the model that `save_model` wrote; nothing in the file is executed.

    Args:
        path: of the file.
        device: to put the model on.

    Returns:
        the model, plain, in float32 and in evaluation mode: call `train()` to go on training.

    Raises:
        ValueError: there is no such device.
        OSError: the file cannot be opened; `FileNotFoundError` where there is none.
        CheckpointError: it is damaged, or holds weights without their configuration; the message names it.
    """
    device = check_device(device)
    return read_model(Path(path), _kept_config(Path(path)), device)


def _kept_config(path: Path) -> TransformerConfig:
    _read_header(path)  # refuses what is no file of weights, or claims to have gigabytes of texts
    with optional_import("safetensors").safe_open(path, framework="pt") as header:
        metadata = header.metadata() or {}
    if "facts" not in metadata:
        raise CheckpointError(f"{path} holds weights alone: give them to a model with load_weights")
    try:
        return TransformerConfig(**json.loads(json.loads(metadata["facts"])["config"]))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} holds no configuration: {error}") from error
