"""Translators and models in folders and files."""

import json
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
import torch
from torch import Tensor
from transformer.files import (
    CheckpointError, atomic_file, file_sha256, read_record, refusing_damage, regular_file, write_record,
)  # fmt: skip
from transformer.language.corpora import CORPORA, Preparation
from transformer.language.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from transformer.model import Transformer, TransformerConfig
from transformer.speed.fast import FastTransformer
from transformer.training import check_device, record_path
from transformer.validation import check_type, optional_import
from transformer.weights import (
    check_finite, check_fit, differences, original, place_all, plain_transformer, planned, read_weights,
    save_weights,
)  # fmt: skip

__all__ = [
    "pretrained_folder", "check_agreement", "read_translator", "write_translator",
    "savable", "save_model", "load_model",
]  # fmt: skip


_FILES = ("config.json", "model.safetensors", "vocabulary.json")
_SUMS = "SHA256SUMS"
_CARRIED = ("phrases",)  # translators that are part of the package


def _sum(name: str, path: Path) -> bytes:
    """What the program `sha256sum` says of a file that is called `name`."""
    return f"{file_sha256(path)}  {name}\n".encode()


def _written(folder: Path, name: str) -> Path:
    """Where a new file is until the sums speak of it, and it takes its place."""
    return folder / f".{name}.new"


def _checked_files(folder: Path) -> list[Path]:
    """The files of a translator; refuses, by name, one that is not as `write_translator` left it."""
    for name in (*_FILES, _SUMS):
        if not ((folder / name).exists() or _written(folder, name).exists()):
            inner = folder / "translator"  # of a run
            hint = f"; {inner} is one" if (inner / _SUMS).exists() else ""
            raise FileNotFoundError(f"{folder} is not a translator, as {name} is missing{hint}")
    noted, files = regular_file(folder / _SUMS).read_bytes().splitlines(keepends=True), []
    for name in _FILES:
        places = [path for path in (folder / name, _written(folder, name)) if path.exists()]
        agreeing = [path for path in places if _sum(name, path) in noted]
        if not agreeing:
            message = f"does not match {folder / _SUMS}: it was damaged or changed"
            raise CheckpointError(f"{folder / name} {message}")
        files.append(agreeing[0])
    return files


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


def _translator_folder(path: Path | str) -> Path:
    """A folder that is here, or that of the translator of this name in the package."""
    check_type((str, Path), path=path)
    if path in _CARRIED:  # whatever the current folder holds
        return record_path(str(path))
    if not str(path) or not Path(path).is_dir():
        carried = f"no folder has this name, and the package carries {', '.join(_CARRIED)}"
        raise FileNotFoundError(f"there is no translator {str(path)!r}: {carried}")
    return Path(path)


def pretrained_folder(name: Path | str) -> Path:
    """The folder of a model: one that is here, or a copy of what the Hugging Face hub has under that name.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"`.

    Raises:
        TypeError: `name` is neither a string nor a `Path`.
        OSError: there is no such folder, and no such name on the hub; or the hub cannot be reached.
    """
    on_hub = isinstance(name, str) and re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)
    if not on_hub or Path(name).is_dir():
        return _translator_folder(name)
    hub = optional_import("huggingface_hub")
    try:  # reading these files executes nothing
        kinds = ["*.json", "*.safetensors", "*.spm", _SUMS]
        return Path(hub.snapshot_download(name, allow_patterns=kinds))
    except Exception as error:  # the library and those beneath it raise some fifty types of error
        message = str(error).strip() or type(error).__name__
        raise OSError(f"no folder {name} is here, and on the Hugging Face hub: {message}") from error


_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed, not stored


def _assembled(config: TransformerConfig, weights: Mapping[str, Tensor], device: torch.device) -> Transformer:
    """The model of a configuration, which takes no memory that a file's weights do not fill."""
    if (table := config.max_length * config.d_model) > _LARGEST_TABLE:
        raise ValueError(f"it asks for {table:,} numbers of positions, more than {_LARGEST_TABLE:,}")
    model: Transformer = planned(Transformer, config, sum(config.depths), len(weights))
    check_fit(model, weights)
    check_finite(weights)
    place_all(model, {name: x.float() for name, x in weights.items()})
    return model.to(device).eval()


def check_agreement(config: TransformerConfig, vocabulary: Vocabulary) -> None:
    """Refuse a model and a vocabulary of different sizes or special tokens (`ValueError`)."""
    sizes, special = {config.src_vocab_size, config.tgt_vocab_size}, (PAD_ID, BOS_ID, EOS_ID)
    if sizes != {len(vocabulary)}:
        raise ValueError(f"the model has {sorted(sizes)} tokens, the vocabulary {len(vocabulary)}")
    if (ids := (config.pad_id, config.bos_id, config.eos_id)) != special:
        raise ValueError(f"the model has padding, start and end at {ids}, the vocabulary at {special}")


def read_translator(path: Path | str, device: torch.device | str) -> tuple[Transformer, Vocabulary]:
    """The model and the vocabulary in a translator's folder, or in one that the package carries."""
    settings, tensors, tokens = _checked_files(_translator_folder(path))
    place = check_device(device)
    with refusing_damage(settings):
        values = read_record(settings)
        preparation = Preparation(**values.pop("preparation", asdict(CORPORA)))
        config = TransformerConfig(**values)
    with refusing_damage(tensors):
        model = _assembled(config, read_weights(tensors)[0], place)
    with refusing_damage(tokens):
        check_agreement(config, vocabulary := Vocabulary.load(tokens, preparation))
    return model, vocabulary


def write_translator(folder: Path, model: Transformer, vocabulary: Vocabulary, dtype: torch.dtype) -> None:
    """Write a translator's folder, so that whoever is cut off leaves the earlier one or this one."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / _FILES[0]).exists() and not (folder / _SUMS).exists():  # a run's, or another program's
        raise ValueError(f"{folder / _FILES[0]} is not a translator's, and stays: choose another folder")
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


def savable(model: Transformer) -> Transformer:
    """What is written for a model: its `plain_transformer`. A warning says what will compute otherwise."""
    plain = plain_transformer(model)
    check_finite(dict(plain.named_parameters()))
    own = original(model)
    for _, what, message in () if isinstance(own, FastTransformer) else differences(own, plain):
        if not what.startswith("_") or what == "_buffers":
            warnings.warn(f"{message}, which no file holds: loading gives a plain Transformer", stacklevel=3)
            break
    return plain


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
    plain = savable(model)
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
    place, (weights, facts) = check_device(device), read_weights(path)
    if "config" not in facts:
        raise CheckpointError(f"{path} holds weights alone: see transformer.weights.load_weights")
    with refusing_damage(path):
        return _assembled(TransformerConfig(**json.loads(facts["config"])), weights, place)
