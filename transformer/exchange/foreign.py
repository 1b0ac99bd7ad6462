"""Folders of other programs: read without trusting them, and written whole."""

import base64
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from torch import Tensor, nn
from transformer.files import read_record, refusing_damage, regular_file
from transformer.model import Transformer
from transformer.validation import optional_import
from transformer.weights import (
    by_parameter, check_finite, check_shapes, configured, parameter_owners, place_all, plain_state,
)  # fmt: skip

__all__ = [
    "ForeignFolder", "our_name", "fitted_weights", "exported", "whole_folder", "check_tokenizer",
]  # fmt: skip


class ForeignFolder:
    """A model as others publish it: records, and safetensors files, of which only the heads are read.

    Where there is an index, the files that it names are read, and otherwise `model.safetensors`. A file
    must be among those that the folder lists, so that no path leads out of it. Nothing is executed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self.listed: set[str] = {entry.name for entry in self.path.iterdir()}
        self.settings: dict[str, Any] = self.record("config.json")
        self.search: dict[str, Any] = dict(self.settings)  # older folders say it all in one file
        if "generation_config.json" in self.listed:
            self.search |= self.record("generation_config.json")
        self.shapes: dict[str, list[int]] = {}  # of the tensors, by name
        self._opened: dict[str, Any] = {}  # by the tensor's name
        for file in self._files():
            with refusing_damage(path := regular_file(self.path / file)):
                opened = optional_import("safetensors").safe_open(path, "pt")
                for name in opened.keys():
                    self.shapes[name], self._opened[name] = opened.get_slice(name).get_shape(), opened

    def _files(self) -> list[str]:
        index = "model.safetensors.index.json"
        if index in self.listed:
            with refusing_damage(self.path / index):
                files = set(self.record(index)["weight_map"].values())
                if not files <= self.listed:
                    raise ValueError("it names files that the folder does not list")
                return sorted(files)
        if "model.safetensors" not in self.listed:
            said = "save the model by the save_pretrained of a newer transformers"
            raise FileNotFoundError(f"{self.path} has no model.safetensors: {said}")
        return ["model.safetensors"]

    def record(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds."""
        return read_record(self.path / name)

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, in the dtype that it has in its file."""
        found: Tensor = self._opened[name].get_tensor(name)
        return found


def our_name(name: str, parts: Mapping[str, str]) -> str:
    """A tensor's name with our names for the `parts` of a model; what is not among them keeps its name."""
    return ".".join(parts.get(part, part) for part in name.removeprefix("model.").split("."))


def fitted_weights(folder: ForeignFolder, names: Mapping[str, str], plan: nn.Module) -> dict[str, Tensor]:
    """A folder's weights under our `names`, read when all fit the `plan` of our model on the meta device."""
    owners = parameter_owners(plan)
    places = {name: owners.get(ours, ours) for name, ours in names.items()}
    wanted = {name: tuple(x.shape) for name, x in plan.named_parameters()}
    check_shapes({name: folder.shapes[name] for name in names}, wanted, places)
    theirs = {name: folder.tensor(name) for name in names}
    check_finite(theirs)
    several = {x.dtype: name for name, x in theirs.items()}
    if len(several) > 1:
        said = " and ".join(f"{name} is {dtype}" for dtype, name in several.items())
        raise ValueError(f"all weights must be of one dtype, but {said}")
    return by_parameter(theirs, places)


def exported(model: Any, taker: str, kind: type[Transformer] = Transformer) -> Transformer:
    """A plain model with the weights of one that is to leave, compiled or not; refuses what is not finite."""
    plain, weights = configured(model, taker, kind), plain_state(model)
    check_finite(weights)
    place_all(plain, weights)
    return plain.to(plain.output.weight).eval()


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder to write in, which becomes `folder`, new or empty, at the end, if nothing fails."""
    folder = Path(folder).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"folder must be new or empty, but {folder} holds {next(folder.iterdir()).name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as part:
        whole = Path(part, "whole")
        whole.mkdir()
        yield whole
        if folder.exists():
            folder.rmdir()  # which Windows does not replace
        os.replace(whole, folder)


# The steps that tokenizers of such models have, and how many times longer, in bytes, one makes a text, beside
# the text that it may insert at every place.
_STEPS = {"ByteLevel": 2, "NFC": 3, "NFD": 3, "Metaspace": 4, "NFKC": 11, "NFKD": 11} | dict.fromkeys(
    "Lowercase Strip StripAccents Replace Prepend Precompiled Split Punctuation Digits Whitespace "
    "WhitespaceSplit TemplateProcessing ByteFallback Fuse".split(),
    1,
)
_MOST_GROWTH = 1 << 12


def check_tokenizer(path: Path) -> None:
    """Refuse a stranger's `tokenizer.json` that can make a text thousands of times longer.

    The library that runs it hears no interrupt, however long a text becomes.
    """
    found = read_record(path)
    with refusing_damage(path):
        for parts in (("normalizer", "pre_tokenizer", "post_processor"), ("decoder",)):
            growth = math.prod(_growth(found.get(part)) for part in parts)
            if growth > _MOST_GROWTH:
                said = f"{growth:,.0f} times longer; at most {_MOST_GROWTH:,} times is allowed"
                raise ValueError(f"{' and '.join(parts)} can make a text {said}")


def _growth(step: Any) -> float:
    """How many times longer, in bytes, a step of a tokenizer can make a text."""
    if step is None:
        return 1.0
    if step["type"] == "Sequence":
        lists = ("normalizers", "pretokenizers", "processors", "decoders")
        return math.prod((_growth(each) for name in lists for each in step.get(name, [])), start=1.0)
    inserted = (step.get("content") or step.get("prepend") or "").encode()
    if step["type"] == "Precompiled":  # the size of a trie, the trie, and texts that end with a zero
        table = base64.b64decode(step["precompiled_charsmap"] or "")
        inserted = max(table[4 + int.from_bytes(table[:4], "little") :].split(b"\0"), key=len)
    return max(_STEPS[step["type"]], len(step.get("single", []))) + len(inserted)
