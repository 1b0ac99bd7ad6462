"""Folders of other programs: read without trusting them."""

import base64
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from torch import Tensor, nn
from transformer.exchange.torch import check_parts
from transformer.files import CheckpointError, read_record, regular_file
from transformer.validation import check_choice, check_finite_weights, check_type, optional_import
from transformer.weights import LAYER, by_parameter, check_shapes, copies, parameter_owners, planned_shapes

__all__ = [
    "refusing_damage",
    "ForeignFolder",
    "our_name",
    "check_as_configured",
    "check_one_dtype",
    "fitted_weights",
    "place_all",
    "whole_folder",
    "tokenizer_text",
]


_LARGEST_RECORD = 1 << 24  # bytes of a configuration, an index or a vocabulary
_FLOATS = ("F64", "F32", "F16", "BF16")  # as the head of a file calls them


@contextmanager
def refusing_damage(path: Path) -> Iterator[None]:
    """Turn whatever a stranger's file makes a program raise into a `CheckpointError` of one line.

    Args:
        path: what the message names. Errors of the system and of a missing library stay what they are.
    """
    try:
        yield
    except (CheckpointError, OSError, ImportError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # some twenty types, by the library that meets the damage, or its panic
        said = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if not isinstance(error, ValueError | TypeError | KeyError):
            said = f"{type(error).__name__}: {said}"
        raise CheckpointError(f"{path} cannot be used: {' '.join(said.split()):.300}") from error


class ForeignFolder:
    """A model as others publish it: `config.json`, and safetensors files, of which the heads are read.

    Where there is an index, its files are read, and otherwise `model.safetensors`. A file must be
    among those that the folder lists, so that no path leads out of it. Nothing is executed.

    Args:
        path: of the folder.

    Raises:
        TypeError: `path` is none.
        OSError: there is no such folder, or a file is missing; the message names it.
        CheckpointError: a file is damaged, or they do not belong together; the message names it.
        ImportError: safetensors is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        check_type((str, Path), folder=path)
        self.path: Path = Path(path)
        self.listed: set[str] = {entry.name for entry in self.path.iterdir()}
        self.settings: dict[str, Any] = self.record("config.json")
        self.shapes: dict[str, list[int]] = {}  # of the tensors, by name
        self._opened: dict[str, Any] = {}  # by the tensor's name
        index = "model.safetensors.index.json"
        self._read_heads(self._indexed(index) if index in self.listed else None)

    def record(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds; errors as above."""
        return read_record(self.path / name, _LARGEST_RECORD)

    def weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Some of the tensors, in the dtypes that they have in the files."""
        return {name: self._opened[name].get_tensor(name) for name in names}

    def _indexed(self, index: str) -> dict[str, str]:
        with refusing_damage(self.path / index):
            places = self.record(index)["weight_map"]
            check_type(dict, weight_map=places)
            for file in places.values():
                if not isinstance(file, str) or file not in self.listed:
                    raise ValueError(f"the folder lists no file {file!r:.80}")
            if "model.safetensors" in self.listed - set(places.values()):
                raise ValueError("it does not name model.safetensors, which is there as well")
        return dict(places)

    def _read_heads(self, places: dict[str, str] | None) -> None:
        safetensors = optional_import("safetensors")
        if places is None and "model.safetensors" not in self.listed:
            raise FileNotFoundError(self._how_to_convert())
        for file in ["model.safetensors"] if places is None else sorted(set(places.values())):
            path = regular_file(self.path / file)
            with refusing_damage(path):
                opened = safetensors.safe_open(path, "pt")
                for name in opened.keys():
                    if places is not None and places.get(name) != file:
                        raise ValueError(f"it holds {name}, which the index does not put there")
                    head = opened.get_slice(name)
                    check_choice(_FLOATS, **{f"dtype of {name}": head.get_dtype()})
                    self.shapes[name], self._opened[name] = head.get_shape(), opened
        if missing := sorted((places or {}).keys() - self.shapes.keys()):
            raise CheckpointError(f"{self.path} lacks {missing[0]}, which its index names")

    def _how_to_convert(self) -> str:
        kind = "Seq2Seq" if self.settings.get("is_encoder_decoder") else "Causal"
        load = f"transformers.AutoModelFor{kind}LM.from_pretrained({str(self.path)!r})"
        once = f'python -c "import transformers; {load}.save_pretrained({str(self.path)!r})"'
        return (
            f"{self.path} holds neither model.safetensors nor its index; where the weights are in another "
            f"format, such as pytorch_model.bin, convert them once: {once}"
        )


_SETTINGS = "p", "dropout", "activation_dropout", "eps", "n_heads", "num_heads", "norm_first"


def our_name(name: str, parts: Mapping[str, str]) -> str:
    """A tensor's name with our names for the `parts` of a model; what is not among them keeps its name."""
    return ".".join(parts.get(part, part) for part in name.removeprefix("model.").split("."))


def check_as_configured(model: Any) -> None:
    """Refuse a whole model that is not as its configuration makes it, or not finite."""
    check_parts(model, model.config, compared=(*_SETTINGS, "sharing"))
    check_finite_weights(dict(model.named_parameters()))


def check_one_dtype(weights: Mapping[str, Tensor]) -> None:
    """Refuse weights of several dtypes, of which a model would have one."""
    kinds = Counter(value.dtype for value in weights.values())
    if len(kinds) > 1:
        most, *_, other = (kind for kind, _ in kinds.most_common())
        name = next(name for name, value in weights.items() if value.dtype == other)
        raise ValueError(f"all weights must be of one dtype, but {name} is {other}, and most are {most}")


def fitted_weights(
    folder: ForeignFolder,
    names: Mapping[str, str],
    plan: nn.Module,
    n_layers: int | tuple[int, int],
    extras: Mapping[str, tuple[int, ...]],
) -> dict[str, Tensor]:
    """The weights of a model from elsewhere under our names, read when all names and shapes fit.

    Args:
        folder: of the model.
        names: for each of its tensors, our name.
        plan: our model with a single layer in each stack, on the meta device.
        n_layers: how many layers the model has, or its encoder and its decoder.
        extras: shapes of tensors that are no parameters of ours, and may be missing.

    Raises:
        ValueError: a tensor is missing, is one too many, has another shape, or numbers that are not
            finite; or two that are one parameter of ours differ. The message names it.
    """
    owners = parameter_owners(plan)
    places = {name: owners.get(ours, ours) for name, ours in names.items()}
    _check_depths(places.values(), plan, n_layers)
    given = {name: shape for name, shape in extras.items() if name in places.values()}
    check_shapes(
        {name: folder.shapes[name] for name in names}, planned_shapes(plan, n_layers) | given, places
    )
    theirs = folder.weights(names)
    check_finite_weights(theirs)
    return by_parameter(theirs, places)


def place_all(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give a model on the meta device its weights, a shared one by the first of its names."""
    owners = parameter_owners(model)
    model.load_state_dict(weights, strict=False, assign=True)
    for name, owner in owners.items():
        part, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(part), leaf, model.get_parameter(owner))


def _check_depths(names: Collection[str], plan: nn.Module, n_layers: int | tuple[int, int]) -> None:
    """Refuse another number of layers before their shapes are planned, however many are claimed."""
    in_layers = [name for name, _ in plan.named_parameters() if LAYER.search(name)]
    for stack in sorted({LAYER.split(name)[0] for name in in_layers}):
        found = {LAYER.findall(name)[0] for name in names if name.startswith(stack) and LAYER.search(name)}
        if len(found) != (wanted := copies(stack + "0", n_layers)):
            kind = stack.replace(".", " ").strip()  # such as "encoder layers"
            raise ValueError(f"of {kind} the configuration has {wanted:,}, and the weights {len(found):,}")


@contextmanager
def whole_folder(
    folder: str | Path, replaced: Collection[str], ours: Callable[[Mapping[str, Any]], bool]
) -> Iterator[Path]:
    """An empty folder to write in, whose files are moved to `folder` at the end, if nothing fails.

    Args:
        folder: where the files belong; made if missing.
        replaced: patterns of the files that an earlier export has left there.
        ours: whether such an export wrote the `config.json` with these settings.

    Raises:
        ValueError: the folder holds another model.
    """
    folder = Path(folder).absolute()
    for name in ("SHA256SUMS", "config.json"):
        path = folder / name
        if path.exists() and not (path.suffix == ".json" and ours(read_record(path))):
            raise ValueError(f"folder must not hold another model, but {path} belongs to one: choose another")
    at = folder if folder.exists() else folder.parent
    at.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=at) as part:
        whole = Path(part, "whole")
        whole.mkdir()
        yield whole
        if at != folder:
            os.replace(whole, folder)
            return
        for old in [path for pattern in replaced for path in folder.glob(pattern)]:
            old.unlink()  # so that, cut off here, files are missing, and no old one stands beside a new one
        for new in sorted(whole.iterdir()):
            os.replace(new, folder / new.name)


# The steps that a tokenizer may have, and how many times longer, in bytes, one can make a text.
_STEPS = dict.fromkeys(
    "Lowercase Strip StripAccents Nmt Replace Prepend Precompiled Split Punctuation Digits Whitespace "
    "WhitespaceSplit FixedLength BertPreTokenizer CharDelimiterSplit UnicodeScripts TemplateProcessing "
    "BertProcessing RobertaProcessing ByteFallback Fuse WordPiece BPEDecoder CTC".split(),
    1,
) | {"ByteLevel": 2, "NFC": 3, "NFD": 3, "BertNormalizer": 3, "Metaspace": 4, "NFKC": 11, "NFKD": 11}
_MOST_STEPS, _MOST_GROWTH = 32, 1 << 12


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """The steps of a part of a tokenizer, those of its sequences one by one."""
    if part is not None:
        check_type(dict, step=part)
        lists = ("normalizers", "pretokenizers", "processors", "decoders")
        inner = [step for name in lists for step in part.get(name, [])]
        yield from [part] if part["type"] != "Sequence" else (one for step in inner for one in _steps(step))


def _growth(step: dict[str, Any]) -> int:
    """How many times longer, in bytes, a step can make a text."""
    match step["type"]:
        case "Replace":
            size, replaced = len(step["content"].encode()), step["pattern"].get("String", "").encode()
            # What an expression finds may be empty, between any two characters.
            return max(1, -(-size // len(replaced))) if replaced else size + 1
        case "Prepend":
            return len(step["prepend"].encode()) + 1
        case "Precompiled":  # the size of a trie, the trie, and texts that end with a zero
            table = base64.b64decode(step["precompiled_charsmap"] or "")
            texts = table[4 + int.from_bytes(table[:4], "little") :]
            return max(map(len, texts.split(b"\0"))) + 1
        case "TemplateProcessing":
            return len(step["single"])
    return _STEPS[step["type"]]


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


def _check_steps(steps: Sequence[tuple[str, dict[str, Any]]]) -> None:
    growth = 1
    for number, (part, step) in enumerate(steps, start=1):
        if (kind := step["type"]) not in _STEPS:
            raise ValueError(f"{part} has a step of a kind that is not known, {kind!r:.40}")
        if number > _MOST_STEPS:
            raise ValueError(f"{part} must end the tokenizer's steps by number {_MOST_STEPS}")
        if (growth := growth * _growth(step)) > _MOST_GROWTH:
            said = f"{part} can make a text {growth:,} times longer with step {number}, {kind}"
            raise ValueError(f"{said}; at most {_MOST_GROWTH:,} times is allowed")
