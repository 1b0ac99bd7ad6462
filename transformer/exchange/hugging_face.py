"""Models of Hugging Face, whose folders are read without trusting them and written whole: Marian, M2M-100 and
NLLB-200, both ways; Llama, Mistral and Qwen3, read."""

import base64
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.embedding import PositionalEncoding
from transformer.files import read_record, refusing_damage, regular_file
from transformer.model import Transformer, TransformerConfig
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.modern.parts import RotaryStretch
from transformer.validation import check_choice, check_index, optional_import
from transformer.weights import (
    by_parameter, check_finite, check_shapes, configured, parameter_owners, place_all, plain_state, planned,
)  # fmt: skip

__all__ = [
    "ForeignFolder", "our_name", "exported", "whole_folder", "check_tokenizer",
    "M2M100Positions", "M2M100Transformer", "from_marian", "from_m2m100", "to_marian", "to_m2m100",
    "LLAMA_PARTS", "from_llama",
]  # fmt: skip


class ForeignFolder:
    """A model as others publish it: records, and safetensors files, of which only the heads are read.

    Where there is an index, the files that it names are read, and otherwise `model.safetensors`. A file
    must be among those that the folder lists, so that no path leads out of it. Nothing is executed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
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
            advice = "save the model by the save_pretrained of a newer transformers"
            raise FileNotFoundError(f"{self.path} has no model.safetensors: {advice}")
        return ["model.safetensors"]

    def record(self, name: str) -> dict[str, Any]:
        """What a JSON file of the folder holds."""
        return read_record(self.path / name)

    def tensor(self, name: str) -> Tensor:
        """One of the tensors, in the dtype that it has in its file."""
        tensor: Tensor = self._opened[name].get_tensor(name)
        return tensor


def our_name(name: str, parts: Mapping[str, str]) -> str:
    """A tensor's name with our names for the `parts` of a model; what is not among them keeps its name."""
    return ".".join(parts.get(part, part) for part in name.removeprefix("model.").split("."))


def _fitted_weights(folder: ForeignFolder, names: Mapping[str, str], plan: nn.Module) -> dict[str, Tensor]:
    """A folder's weights under our `names`, read when all fit the `plan` of our model on the meta device."""
    owners = parameter_owners(plan)
    places = {name: owners.get(ours, ours) for name, ours in names.items()}
    wanted = {name: tuple(x.shape) for name, x in plan.named_parameters()}
    check_shapes({name: folder.shapes[name] for name in names}, wanted, places)
    theirs = {name: folder.tensor(name) for name in names}
    check_finite(theirs)
    several = {x.dtype: name for name, x in theirs.items()}
    if len(several) > 1:
        dtypes = " and ".join(f"{name} is {dtype}" for dtype, name in several.items())
        raise ValueError(f"all weights must be of one dtype, but {dtypes}")
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

    The library that runs it can't be interrupted, however long a text becomes.
    """
    contents = read_record(path)
    with refusing_damage(path):
        for parts in (("normalizer", "pre_tokenizer", "post_processor"), ("decoder",)):
            growth = math.prod(_growth(contents.get(part)) for part in parts)
            if growth > _MOST_GROWTH:
                limit = f"{growth:,.0f} times longer; at most {_MOST_GROWTH:,} times is allowed"
                raise ValueError(f"{' and '.join(parts)} can make a text {limit}")


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


_PARTS = {
    "self_attn_layer_norm": "self_residual.norm", "self_attn": "self_attention",
    "encoder_attn_layer_norm": "cross_residual.norm", "encoder_attn": "cross_attention",
    "q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "out_proj": "w_o",
    "final_layer_norm": "feed_residual.norm", "fc1": "feed_forward.w_1", "fc2": "feed_forward.w_2",
    "layer_norm": "norm",  # on top of a stack, in M2M-100
}  # fmt: skip
_ALONE = {
    "model.shared.weight": "src_embedding.weight", "lm_head.weight": "src_embedding.weight",
    "model.encoder.embed_tokens.weight": "src_embedding.weight",
    "model.decoder.embed_tokens.weight": "src_embedding.weight",
    "final_logits_bias": "output.bias",  # [1, V]
}  # fmt: skip
_FIELDS = {
    "d_model": "d_model", "max_position_embeddings": "max_length",
    "dropout": "dropout", "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "pad_token_id": "pad_id", "decoder_start_token_id": "bos_id", "eos_token_id": "eos_id",
}  # fmt: skip
_SIZES = {"attention_heads": "n_heads", "ffn_dim": "d_ff"}  # of both stacks


def _our_names(theirs: Iterable[str]) -> dict[str, str]:
    return {name: _ALONE.get(name) or our_name(name, _PARTS) for name in theirs}


def _reordered(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Our weights, for vectors whose feature i was feature `order[i]` before."""

    def moved(name: str, value: Tensor) -> Tensor:
        if name.split(".")[-2] in ("w_o", "w_2", "norm"):  # which write to the residual stream
            return value[order]
        return value[:, order] if value.dim() == 2 else value  # or a bias inside a head or a network

    return {name: moved(name, value) for name, value in weights.items()}


def _sines_first(d_model: int) -> Tensor:
    """For each of our features, its place where all sines come first, and then all cosines."""
    return torch.arange(d_model).view(2, -1).T.flatten()


_FIRST = 2  # the position of the first token, as padding, token 1, has the one before


class M2M100Positions(PositionalEncoding):
    """Adds the positions of M2M-100 to a sequence of vectors, then applies dropout.

    Arguments as in `PositionalEncoding`. All sines come before all cosines.
    """

    @staticmethod
    def _compute(length: int, d_model: int, dtype: torch.dtype | None = None) -> Tensor:
        n = d_model // 2
        numbers = torch.arange(max(n, _FIRST + length), dtype=torch.float64, device="cpu")
        angle = numbers[_FIRST : _FIRST + length, None] * 10000.0 ** (-numbers[:n] / (n - 1))  # [length, n]
        return torch.cat([angle.sin(), angle.cos()], dim=1).to(dtype or torch.get_default_dtype())


class M2M100Transformer(Transformer):
    """A `Transformer` with the positions of M2M-100.

    Args:
        config: as in `Transformer`; with an even width, at least 4, and padding as token 1.

    Raises:
        TypeError, ValueError: as in `Transformer`; or padding is another token, or starts a sentence.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        check_choice([_FIRST - 1], pad_id=config.pad_id)
        if config.bos_id == config.pad_id:
            raise ValueError(f"pad_id and bos_id must differ here, but both are {config.pad_id}")
        self.positions = M2M100Positions(config.d_model, config.dropout, config.max_length)


_MODELS: dict[str, tuple[str, type[Transformer]]] = {  # by their `model_type`: their class, and ours
    "marian": ("MarianMTModel", Transformer),
    "m2m_100": ("M2M100ForConditionalGeneration", M2M100Transformer),
}


def _config_from(theirs: Mapping[str, Any], family: str) -> TransformerConfig:
    check_choice([family], model_type=theirs.get("model_type"))
    check_choice([True], scale_embedding=theirs["scale_embedding"])
    settings = {ours: theirs[name] for name, ours in _FIELDS.items()}
    for name, ours in _SIZES.items():
        settings[ours] = theirs[f"encoder_{name}"]
        check_choice([settings[ours]], **{f"decoder_{name}": theirs[f"decoder_{name}"]})
    config = TransformerConfig(
        theirs["vocab_size"],
        theirs["vocab_size"],
        n_layers=(theirs["encoder_layers"], theirs["decoder_layers"]),
        activation=theirs["activation_function"].replace("swish", "silu"),
        norm_first=family == "m2m_100",
        **settings,
    )
    check_index(1 << 24, **{"numbers in the table of positions": config.max_length * config.d_model})
    return config


def _read(path: str | Path, family: str) -> Any:
    """The model that a folder holds, as one of ours."""
    folder = ForeignFolder(path)
    with refusing_damage(folder.path):
        config = _config_from(folder.settings, family)
        ours = planned(_MODELS[family][1], config, sum(config.depths), len(folder.shapes))
        if family == "marian":
            ours.output.bias = nn.Parameter(torch.empty(1, config.tgt_vocab_size, device="meta"))
        names = _our_names(name for name in folder.shapes if "embed_positions" not in name)  # all sinusoids
        weights = _fitted_weights(folder, names, ours)
        bias = weights.pop("output.bias", torch.zeros(1))
        ours.output.bias = nn.Parameter(bias[0].clone(), requires_grad=False) if bias.any() else None
        place_all(ours, _reordered(weights, _sines_first(config.d_model)) if family == "marian" else weights)
        return ours.to(ours.output.weight).eval()


def from_marian(folder: str | Path) -> Transformer:
    """Make a `Transformer` that computes what a Marian model of Hugging Face does, from the model's folder.

    The features of its vectors are in our order, so that positions are our own. A bias of the logits
    that is not zero becomes `output.bias`. What their configuration says about a search is left out;
    tokens that `generate` was told never to choose are `MarianTranslator`'s.

    Args:
        folder: with the `config.json` and the weights, as safetensors, of a `MarianMTModel`.

    Returns:
        A `Transformer` of the same dtype. Its padding and start token may be the same. No layer is
        dropped in training.

    Raises:
        OSError: there is no such folder, or a file is missing; the message names it.
        CheckpointError: a file is damaged; or the model does what ours cannot: stacks of different
            width, an activation other than ReLU, exact GELU and SiLU, embeddings that are not scaled or
            not shared; or its weights are not those of its configuration, not of one dtype, or not
            finite. The message names what it is.
        ImportError: safetensors is not installed.
    """
    ours: Transformer = _read(folder, "marian")
    return ours


def from_m2m100(folder: str | Path) -> M2M100Transformer:
    """As `from_marian`, from the folder of an M2M-100 or NLLB-200 model, with their positions.

    The start token is their `decoder_start_token_id`; `Constrained` makes a search go on with a
    language, as in `M2M100Translator`.
    """
    ours: M2M100Transformer = _read(folder, "m2m_100")
    return ours


def to_marian(model: Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Marian model with the weights of ours.

    Args:
        model: a post-norm `Transformer` without norms on top, with biases and one table, of an even
            width. Its output may have a bias.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written; new or
            empty.

    Raises:
        TypeError: `model`, or a part of it, is not what its configuration makes.
        ValueError: it is of another form, or not finite; or `folder` is not empty.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: transformers is not installed.
    """
    _write(model, folder, "marian")


def to_m2m100(model: M2M100Transformer, folder: str | Path) -> None:
    """As `to_marian`, an M2M-100 model: `model` is pre-norm with norms on top, with biases and one table."""
    _write(model, folder, "m2m_100")


def _write(model: Transformer, folder: str | Path, family: str) -> None:
    """Write a model of ours as one of a family."""
    name, ours = _MODELS[family]
    kind = getattr(optional_import("transformers"), name)
    model = exported(model, "to_" + family.replace("_", ""), ours)
    config = model.config
    with torch.device("meta"):
        theirs = kind(kind.config_class(**_config_to(config, family)))
    weights = model.state_dict()
    if family == "marian":
        order = _sines_first(config.d_model).argsort()
        weights, table = _reordered(weights, order), model.positions.table[:, order]
        weights |= {f"{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
        weights["output.bias"] = weights.get("output.bias", table.new_zeros(config.tgt_vocab_size))[None]
    elif "output.bias" in weights:
        raise ValueError(f"output.bias must be None: {name} has none")
    names = _our_names(theirs.state_dict())
    place_all(theirs, {name: weights[ours] for name, ours in names.items() if ours in weights})
    theirs.generation_config.max_length = config.max_length + 1  # theirs counts the start token
    with whole_folder(folder) as part:
        theirs.save_pretrained(part)


def _config_to(ours: TransformerConfig, family: str) -> dict[str, Any]:
    """The settings of a model of theirs; refuses what they cannot say."""
    check_choice([family == "m2m_100"], norm_first=ours.norm_first, final_norm=ours.has_final_norm)
    check_choice([True], bias=ours.bias, tie_embeddings=ours.tie_embeddings)
    settings = {name: getattr(ours, field) for name, field in _FIELDS.items()}
    settings |= {"vocab_size": ours.src_vocab_size, "activation_function": ours.activation}
    settings |= {"scale_embedding": True, "forced_eos_token_id": None}
    for stack, depth in zip(("encoder", "decoder"), ours.depths, strict=True):
        settings |= {f"{stack}_{name}": getattr(ours, field) for name, field in _SIZES.items()}
        settings |= {f"{stack}_layers": depth, f"{stack}_layerdrop": 0.0}
    return settings


LLAMA_PARTS = {
    "input_layernorm": "attention_norm", "self_attn": "attention",
    "q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "o_proj": "w_o",
    "post_attention_layernorm": "feed_norm", "mlp": "feed_forward",
    "gate_proj": "w_gate", "up_proj": "w_1", "down_proj": "w_2",
    "embed_tokens": "embedding", "lm_head": "output",
}  # fmt: skip
_LLAMA_FIELDS = {
    "vocab_size": "vocab_size", "hidden_size": "d_model", "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "head_dim": "d_head",
    "intermediate_size": "d_ff", "rms_norm_eps": "norm_eps",
}  # fmt: skip
_DEFAULTS = {
    "num_key_value_heads": None, "head_dim": None, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_STRETCH = {
    "factor": "factor", "low_freq_factor": "slow", "high_freq_factor": "fast",
    "original_max_position_embeddings": "length",
}  # fmt: skip


def _config_from_llama(settings: Mapping[str, Any]) -> LanguageModelConfig:
    rotary = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    theirs = {**_DEFAULTS, **settings, **rotary}
    check_choice(["llama", "mistral", "qwen3"], model_type=theirs.get("model_type"))
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    check_choice(["default", "llama3"], rope_type=kind)
    check_choice([None, 1], partial_rotary_factor=theirs.get("partial_rotary_factor"))
    check_choice([None, False], use_sliding_window=theirs.get("use_sliding_window"))
    stretch = {ours: rotary[name] for name, ours in _STRETCH.items()} if kind == "llama3" else None
    return LanguageModelConfig(
        **{ours: theirs[name] for name, ours in _LLAMA_FIELDS.items()},
        activation=theirs["hidden_act"], rotary_base=theirs["rope_theta"],
        rotary_stretch=None if stretch is None else RotaryStretch(**stretch),
        window=theirs.get("sliding_window") if theirs["model_type"] == "mistral" else None,
        qk_norm=theirs["model_type"] == "qwen3", tie_embeddings=theirs["tie_word_embeddings"],
    )  # fmt: skip


def from_llama(folder: str | Path) -> LanguageModel:
    """Make a `LanguageModel` that computes what a model of Llama's form does, from a folder with its weights.

    Args:
        folder: with the `config.json` and the weights, as safetensors, of a `LlamaForCausalLM` of
            Hugging Face's `transformers`, or of a Mistral or Qwen3 model of the same kind.

    Returns:
        a `LanguageModel` of the same dtype.

    Raises:
        OSError: there is no such folder, or a file is missing; the message names it.
        CheckpointError: a file is damaged; or the model is of another family, or does what ours cannot:
            biases, rotary positions scaled in another way than Llama 3.1's, windows in some layers only,
            other activations; or its weights are not those of its configuration, not of one dtype, or
            not finite. The message names what it is.
        ImportError: safetensors is not installed.
    """
    opened = ForeignFolder(folder)
    with refusing_damage(opened.path):
        config = _config_from_llama(opened.settings)
        ours = planned(LanguageModel, config, config.n_layers, len(opened.shapes))
        # Older files hold the rotary positions' frequencies, too, which follow from the settings.
        theirs = [name for name in opened.shapes if not name.endswith("rotary_emb.inv_freq")]
        names = {name: our_name(name, LLAMA_PARTS) for name in theirs}
        place_all(ours, _fitted_weights(opened, names, ours))
    return ours.eval()
