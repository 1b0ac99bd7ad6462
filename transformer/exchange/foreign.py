"""Folders of other programs: read without trusting them."""

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from torch import Tensor, nn
from transformer.files import read_record, regular_file
from transformer.files import refusing_damage as refusing_damage
from transformer.model import Transformer
from transformer.validation import check_choice, check_type, optional_import
from transformer.weights import (
    by_parameter, check_finite, check_shapes, configured, parameter_owners, place_all, plain_state,
)  # fmt: skip

__all__ = [
    "ForeignFolder",
    "our_name",
    "check_one_dtype",
    "fitted_weights",
    "exported",
    "whole_folder",
    "tokenizer_text",
]


_FLOATS = ("F64", "F32", "F16", "BF16")  # as the head of a file calls them


class ForeignFolder:
    """A model as others publish it: `config.json`, and safetensors files, of which the heads are read.

    Where there is an index, the files that it names are read, and otherwise `model.safetensors`. A file
    must be among those that the folder lists, so that no path leads out of it. Nothing is executed.

    Args:
        path: of the folder.

    Raises:
        TypeError: `path` is none.
        OSError: there is no such folder, or a file is missing; the message names it.
        CheckpointError: a file is damaged, or two hold one tensor; the message names it.
        ImportError: safetensors is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        check_type((str, Path), folder=path)
        self.path: Path = Path(path)
        self.listed: set[str] = {entry.name for entry in self.path.iterdir()}
        self.settings: dict[str, Any] = self.record("config.json")
        self.shapes: dict[str, list[int]] = {}  # of the tensors, by name
        self._opened: dict[str, Any] = {}  # by the tensor's name
        for file in self._files():
            self._read_head(regular_file(self.path / file))

    def record(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds; errors as above."""
        return read_record(self.path / name)

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Some of the tensors, in the dtypes that they have in the files."""
        return {name: self._opened[name].get_tensor(name) for name in names}

    def _files(self) -> list[str]:
        index = "model.safetensors.index.json"
        if index in self.listed:
            with refusing_damage(self.path / index):
                places = self.record(index)["weight_map"]
                check_type(dict, weight_map=places)
                for file in places.values():
                    if not isinstance(file, str) or file not in self.listed:
                        raise ValueError(f"the folder lists no file {file!r:.80}")
                return sorted(set(places.values()))
        if "model.safetensors" in self.listed:
            return ["model.safetensors"]
        kind = "Seq2Seq" if self.settings.get("is_encoder_decoder") else "Causal"
        load = f"transformers.AutoModelFor{kind}LM.from_pretrained({str(self.path)!r})"
        once = f'python -c "import transformers; {load}.save_pretrained({str(self.path)!r})"'
        raise FileNotFoundError(
            f"{self.path} holds neither model.safetensors nor its index; where the weights are in another "
            f"format, such as pytorch_model.bin, convert them once: {once}"
        )

    def _read_head(self, path: Path) -> None:
        safetensors = optional_import("safetensors")
        with refusing_damage(path):
            opened = safetensors.safe_open(path, "pt")
            for name in opened.keys():
                if name in self.shapes:
                    raise ValueError(f"it holds {name}, which another file holds as well")
                head = opened.get_slice(name)
                check_choice(_FLOATS, **{f"dtype of {name}": head.get_dtype()})
                self.shapes[name], self._opened[name] = head.get_shape(), opened


def our_name(name: str, parts: Mapping[str, str]) -> str:
    """A tensor's name with our names for the `parts` of a model; what is not among them keeps its name."""
    return ".".join(parts.get(part, part) for part in name.removeprefix("model.").split("."))


def check_one_dtype(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of several dtypes, of which a model would have one."""
    names = {value.dtype: name for name, value in weights.items()}
    if len(names) > 1:
        several = " and ".join(f"{name} is {dtype}" for dtype, name in names.items())
        raise ValueError(f"all weights must be of one dtype, but {several}")


def fitted_weights(
    folder: ForeignFolder, names: Mapping[str, str], plan: nn.Module, extras: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """The weights of a model from elsewhere under our names, read when all names and shapes fit.

    Args:
        folder: of the model.
        names: for each of its tensors, our name.
        plan: our model, on the meta device.
        extras: shapes of tensors that are no parameters of ours, and may be missing.

    Raises:
        ValueError: a tensor is missing, is one too many, has another shape, or numbers that are not
            finite; or two that are one parameter of ours differ. The message names it.
    """
    owners = parameter_owners(plan)
    places = {name: owners.get(ours, ours) for name, ours in names.items()}
    wanted = {name: tuple(x.shape) for name, x in plan.named_parameters()}
    wanted |= {name: shape for name, shape in extras.items() if name in places.values()}
    check_shapes({name: folder.shapes[name] for name in names}, wanted, places)
    theirs = folder.weights(names)
    check_finite(theirs)
    return by_parameter(theirs, places)


def exported(model: Any, taker: str, kind: type[Transformer] = Transformer) -> Transformer:
    """A plain model with the weights of one that is to leave, compiled or not.

    Raises:
        TypeError: as in `configured`.
        ValueError: a weight is not finite; the message names it.
    """
    plain, weights = configured(model, taker, kind), plain_state(model)
    check_finite(weights)
    place_all(plain, weights)
    return plain.to(plain.output.weight).eval()


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """An empty folder to write in, which becomes `folder` at the end, if nothing fails.

    Raises:
        ValueError: there is such a folder, and it is not empty.
    """
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
_MOST_STEPS, _MOST_GROWTH = 32, 1 << 12
_LARGEST_TOKENIZER = 1 << 26  # bytes; one with 256,000 entries has about 17 million


def tokenizer_text(path: Path) -> str:
    """The content of a stranger's `tokenizer.json`, if what it does to a text stays within bounds.

    The library that runs it hears no interrupt, however long a text becomes.

    Raises:
        OSError, CheckpointError: the file cannot be read, is too large, or is no tokenizer; a step is not
            known, there are too many, or they can make a text thousands of times longer; or there is no
            token for an unknown word. The message names file and step.
    """
    with refusing_damage(regular_file(path)):
        if (size := path.stat().st_size) > _LARGEST_TOKENIZER:
            raise ValueError(f"it has {size:,} bytes, over {_LARGEST_TOKENIZER:,}")
        content = path.read_text(encoding="utf8")
        found = json.loads(content)
        check_type(dict, content=found)
        check_type(dict, model=found["model"])
        for parts in (("normalizer", "pre_tokenizer", "post_processor"), ("decoder",)):
            _check_steps([(part, step) for part in parts for step in _steps(found.get(part))])
        kind, unknown = found["model"].get("type"), found["model"].get("unk_token")
        if kind in ("WordLevel", "WordPiece") and unknown not in found["model"]["vocab"]:
            raise ValueError(f"the vocabulary of its {kind} lacks the unknown token, {unknown!r:.40}")
    return content


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part of a tokenizer, those of its sequences one by one."""
    if part is not None:
        check_type(dict, step=part)
        lists = ("normalizers", "pretokenizers", "processors", "decoders")
        inner = [step for name in lists for step in part.get(name, [])]
        yield from [part] if part["type"] != "Sequence" else (one for step in inner for one in _steps(step))


def _check_steps(steps: list[tuple[str, dict[str, Any]]]) -> None:
    growth = 1
    for number, (part, step) in enumerate(steps, start=1):
        if (kind := step["type"]) not in _STEPS:
            raise ValueError(f"{part} has a step of a kind that is not known, {kind!r:.40}")
        if number > _MOST_STEPS:
            raise ValueError(f"{part} must end the tokenizer's steps by number {_MOST_STEPS}")
        growth *= max(_STEPS[kind], len(step.get("single", []))) + _inserted(step)
        if growth > _MOST_GROWTH:
            said = f"{part} can make a text {growth:,} times longer with step {number}, {kind}"
            raise ValueError(f"{said}; at most {_MOST_GROWTH:,} times is allowed")


def _inserted(step: dict[str, Any]) -> int:
    """How many bytes the longest text has that a step can insert."""
    if step["type"] == "Precompiled":  # the size of a trie, the trie, and texts that end with a zero
        table = base64.b64decode(step["precompiled_charsmap"] or "")
        texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
        return max(map(len, texts))
    return len((step.get("content") or step.get("prepend") or "").encode())
