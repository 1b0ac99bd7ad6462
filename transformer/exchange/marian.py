"""transformer.exchange.marian, from book/G-exchange.ipynb, "Workshop G: Exchange".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["from_marian", "to_marian", "MarianTranslator"]


# %% book/G-exchange.ipynb · Marian · [marian-imports]
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from transformer.embedding import sinusoidal_encoding
from transformer.exchange.foreign import (
    ForeignFolder,
    check_as_configured,
    fitted_weights,
    our_name,
    refusing_damage,
    whole_folder,
)
from transformer.exchange.torch import agreed, check_exact_type, place_copy
from transformer.language.translator import Search, SearchSettings, adjusted, translate_ids
from transformer.layers import ACTIVATIONS
from transformer.model import Transformer, TransformerConfig
from transformer.runs.checkpoints import regular_file
from transformer.speed.configured import parameter_owners
from transformer.validation import check_choice, check_device, check_size, check_type, optional_import


# %% book/G-exchange.ipynb · Marian · [feature-order]
_WRITERS = ("w_o", "w_2", "norm")  # what they return has the features of the residual stream


def _reordered(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Our weights, for vectors whose feature i was feature `order[i]` before."""

    def moved(name: str, value: Tensor) -> Tensor:
        if name.split(".")[-2] in _WRITERS:
            return value[order]
        return value[:, order] if value.dim() == 2 else value  # a bias inside a head or a network

    return {name: moved(name, value) for name, value in weights.items()}


def _sines_first(d_model: int) -> Tensor:
    """For each of our features, its place where all sines come first, and then all cosines."""
    half = (d_model + 1) // 2
    return torch.arange(2 * half).view(2, half).T.flatten()[:d_model]


# %% book/G-exchange.ipynb · Marian · [marian-parts]
_MARIAN_PARTS = {
    "self_attn": "self_attention",
    "encoder_attn": "cross_attention",
    "q_proj": "w_q",
    "k_proj": "w_k",
    "v_proj": "w_v",
    "out_proj": "w_o",
    "fc1": "feed_forward.w_1",
    "fc2": "feed_forward.w_2",
    "self_attn_layer_norm": "self_residual.norm",
    "encoder_attn_layer_norm": "cross_residual.norm",
    "final_layer_norm": "feed_residual.norm",
}
_MARIAN_TABLES = {
    "model.shared.weight": "src_embedding.weight",  # where all are one
    "model.encoder.embed_tokens.weight": "src_embedding.weight",
    "model.decoder.embed_tokens.weight": "tgt_embedding.weight",
    "lm_head.weight": "output.weight",
}


def _marian_names(theirs: Collection[str]) -> dict[str, str]:
    """Of Marian's weights, those that a `Transformer` has as well, each with our name."""
    names = {name: ours for name, ours in _MARIAN_TABLES.items() if name in theirs}
    return names | {name: our_name(name, _MARIAN_PARTS) for name in theirs if ".layers." in name}


# %% book/G-exchange.ipynb · Marian · [marian-config]
_MARIAN_FIELDS = {
    "vocab_size": "src_vocab_size",
    "decoder_vocab_size": "tgt_vocab_size",
    "d_model": "d_model",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "share_encoder_decoder_embeddings": "tie_embeddings",
    "pad_token_id": "pad_id",
    "decoder_start_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "max_position_embeddings": "max_length",
}
_MARIAN_DEFAULTS = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}  # in older files
_MARIAN_SIZES = {"layers": "n_layers", "attention_heads": "n_heads", "ffn_dim": "d_ff"}  # of a stack
_MARIAN_ACTIVATIONS = {name: name for name in ACTIVATIONS} | {"swish": "silu"}


def _config_from_marian(theirs: Mapping[str, Any]) -> TransformerConfig:
    check_choice(["marian"], model_type=theirs.get("model_type"))
    check_choice([["MarianMTModel"], None], architectures=theirs.get("architectures"))
    theirs = _MARIAN_DEFAULTS | dict(theirs)
    if theirs.get("decoder_vocab_size") is None:
        theirs["decoder_vocab_size"] = theirs["vocab_size"]
    check_choice([True], scale_embedding=theirs["scale_embedding"])
    check_choice([0], encoder_layerdrop=theirs["encoder_layerdrop"])
    check_choice([0], decoder_layerdrop=theirs["decoder_layerdrop"])
    check_choice(list(_MARIAN_ACTIVATIONS), activation_function=theirs["activation_function"])

    def same(*names: str) -> Any:
        return agreed(" and ".join(names), [theirs[name] for name in names])

    same("share_encoder_decoder_embeddings", "tie_word_embeddings")
    settings = {field: theirs[name] for name, field in _MARIAN_FIELDS.items()}
    for name, field in _MARIAN_SIZES.items():
        settings[field] = same(f"encoder_{name}", f"decoder_{name}")
    return TransformerConfig(**settings, activation=_MARIAN_ACTIVATIONS[theirs["activation_function"]])


def _config_to_marian(ours: TransformerConfig) -> dict[str, Any]:
    check_choice([False], norm_first=ours.norm_first, final_norm=ours.has_final_norm)
    check_choice([True], bias=ours.bias)
    settings = {name: getattr(ours, field) for name, field in _MARIAN_FIELDS.items()}
    for name, field in _MARIAN_SIZES.items():
        settings |= dict.fromkeys((f"encoder_{name}", f"decoder_{name}"), getattr(ours, field))
    settings |= {"activation_function": ours.activation, "tie_word_embeddings": ours.tie_embeddings}
    return settings | {"scale_embedding": True, "forced_eos_token_id": None}


# %% book/G-exchange.ipynb · Marian · [as-configured]
def _place_all(target: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill a whole model that was built on the meta device; shared parameters stay shared."""
    for name, owner in parameter_owners(target).items():
        path, _, leaf = name.rpartition(".")
        part = target.get_submodule(path)
        if name == owner:
            place_copy(part, leaf, nn.Parameter(weights[name], getattr(part, leaf).requires_grad))
        else:
            setattr(part, leaf, target.get_parameter(owner))


# %% book/G-exchange.ipynb · Marian · [from-marian]
def from_marian(model: Any) -> Transformer:
    """Make a `Transformer` that computes what Hugging Face's Marian model does, with copies of its weights.

    The features of its vectors are in our order, so that positions are our own. A bias of the logits
    that is not zero becomes `output.bias`, and is minus infinity for tokens that `generate` was told
    never to choose. Everything else that their configuration says about a search is left out.

    Args:
        model: a `transformers.MarianMTModel`, or the path of a folder that holds one as safetensors,
            for which `transformers` is not needed.

    Returns:
        A `Transformer` of the same dtype, device and mode; that of a folder is in evaluation mode.
        Its padding and start token may be the same.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it does what ours cannot: stacks of different size, an activation other than
            ReLU, exact GELU and SiLU, embeddings that are not scaled or shared in part, dropped
            layers, learned positions; or it is not as its configuration says, or not finite.
        OSError, CheckpointError: as in `ForeignFolder`; what is refused in a folder is a
            `CheckpointError` as well.
        ImportError: transformers or safetensors is not installed.
    """
    if isinstance(model, str | Path):
        folder = ForeignFolder(model)
        with refusing_damage(folder.path):
            named = "generation_config.json" in folder.listed  # older folders say it all in one file
            search = folder.record("generation_config.json") if named else folder.settings
            banned = search.get("bad_words_ids")
            return _from_marian(folder.settings, banned, folder.shapes, folder.weights).eval()
    check_exact_type("model", model, optional_import("transformers").MarianMTModel)
    settings, banned = model.config.to_dict(), model.generation_config.bad_words_ids
    _config_from_marian(settings)
    check_as_configured(model)
    weights = model.state_dict()
    shapes = {name: x.shape for name, x in weights.items()}
    return _from_marian(settings, banned, shapes, lambda: weights).train(model.training)


_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed


def _from_marian(
    settings: Mapping[str, Any],
    banned: Any,
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
) -> Transformer:
    config = _config_from_marian(settings)
    length, d_model = config.max_length, config.d_model
    if length * d_model > _LARGEST_TABLE:
        asked = f"{length:,} positions of {d_model:,} features"
        raise ValueError(f"{asked} are more than {_LARGEST_TABLE:,} numbers")
    with torch.device("meta"):
        plan = Transformer(replace(config, n_layers=1))
    tables = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    extras = {"final_logits_bias": [1, config.tgt_vocab_size], **dict.fromkeys(tables, [length, d_model])}
    weights = fitted_weights(shapes, read, _marian_names(shapes), plan, config.n_layers, extras)
    given, order = {name: weights.pop(name) for name in extras if name in weights}, _sines_first(d_model)
    for name in given.keys() & tables:
        _check_sinusoids(given[name][:, order])
    with torch.device("meta"):
        ours = Transformer(config)
    _place_all(ours, _reordered(weights, order))
    bias = torch.zeros_like(ours.output.weight[:, 0])
    if "final_logits_bias" in given:
        bias.copy_(given["final_logits_bias"][0])
    bias[_banned(banned, len(bias))] = -torch.inf
    if bias.any():
        ours.output.bias = nn.Parameter(bias.detach(), requires_grad=False)
    return ours.to(ours.output.weight)


def _check_sinusoids(table: Tensor) -> None:
    length, d_model = table.shape
    sinusoids = sinusoidal_encoding(length, d_model, table.dtype).to(table.device)
    rounding = max(1e-6, torch.finfo(table.dtype).eps)  # theirs is in float32, whatever the model is in
    if not torch.allclose(table, sinusoids, rtol=0, atol=rounding):
        raise ValueError("embed_positions must hold sinusoids: first all sines, then all cosines")


def _banned(bad_words_ids: Any, end: int) -> list[int]:
    check_type((list, type(None)), bad_words_ids=bad_words_ids)
    banned = bad_words_ids or []
    if any(not isinstance(tokens, list) or len(tokens) != 1 for tokens in banned):
        raise ValueError(f"bad_words_ids must hold single tokens, not {banned}")
    found = [token for (token,) in banned]
    check_size(minimum=0, **{f"bad_words_ids[{n}]": token for n, token in enumerate(found)})
    if found and max(found) >= end:
        raise ValueError(f"bad_words_ids must lie in [0, {end}), but hold {max(found)}")
    return found


# %% book/G-exchange.ipynb · Marian · [to-marian]
def to_marian(model: Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Marian model with the weights of ours.

    Args:
        model: a post-norm `Transformer` without norms on top, with biases. Its output may have a
            bias, in which minus infinity becomes a token that `generate` never chooses.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is of another form, not as its configuration says, or not finite; or `folder`
            holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: transformers is not installed.
    """
    transformers = optional_import("transformers")
    check_exact_type("model", model, Transformer)
    settings = transformers.MarianConfig(**_config_to_marian(model.config))
    check_as_configured(model)
    with torch.device("meta"):
        theirs = transformers.MarianMTModel(settings)
    weights, order = model.state_dict(), _sines_first(model.config.d_model).argsort()
    names = _marian_names(theirs.state_dict())
    moved = _reordered({name: weights[name] for name in names.values()}, order)
    table = model.positions.table[:, order]
    positions = {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
    _place_all(theirs, {name: moved[names[name]] for name in names} | positions)
    bias = weights.get("output.bias", torch.zeros_like(model.output.weight[:, 0]))
    banned = bias == -torch.inf
    theirs.final_logits_bias = bias.masked_fill(banned, 0.0)[None]
    theirs.generation_config.bad_words_ids = banned.nonzero().tolist() or None
    theirs.generation_config.max_length = model.config.max_length + 1  # theirs counts the start token
    written = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")
    with whole_folder(folder, written, lambda found: found.get("model_type") == "marian") as part:
        theirs.save_pretrained(part)


# %% book/G-exchange.ipynb · Marian · [marian-tokenizer]
def _marian_tokenizer(folder: ForeignFolder, config: TransformerConfig) -> Any:
    """The tokenizer of a Marian model; its class is built from these files, whatever others may say."""
    told = "tokenizer_config.json"
    told_of = folder.record(told) if told in folder.listed else {}
    used = ("source_lang", "target_lang", "separate_vocabs")
    options = {name: told_of[name] for name in used if name in told_of}
    files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    sizes = {"vocab.json": config.src_vocab_size}
    if options.get("separate_vocabs"):
        files["target_vocab_file"], sizes["target_vocab.json"] = "target_vocab.json", config.tgt_vocab_size
    for name in files.values():
        if not regular_file(folder.path / name).exists():
            raise FileNotFoundError(f"{folder.path / name} is missing, which Marian's tokenizer needs")
    for name, size in sizes.items():
        with refusing_damage(folder.path / name):
            _check_words(folder.record(name), size, config)
    with refusing_damage(folder.path):
        paths = {name: str(folder.path / file) for name, file in files.items()}
        return optional_import("transformers").MarianTokenizer(**paths, **options)


def _check_words(words: Mapping[str, Any], size: int, config: TransformerConfig) -> None:
    for word, token in words.items():
        check_size(minimum=0, **{f"number of {word!r:.40}": token})
    if len(set(words.values())) < len(words) or max(words.values(), default=size) >= size:
        raise ValueError(f"its words must have different numbers below {size}, as many as the model has")
    for word, token in {"</s>": config.eos_id, "<pad>": config.pad_id}.items():
        check_choice([token], **{f"number of {word!r}": words.get(word)})
    words["<unk>"]


# %% book/G-exchange.ipynb · Marian · [marian-translator]
class MarianTranslator:
    """A Marian model of Hugging Face with its vocabulary: sentences in, sentences out.

    Args:
        folder: of the model and its tokenizer.
        device: to translate on.

    Raises:
        OSError, CheckpointError: as in `from_marian`; or a file of the vocabulary is missing, is
            damaged, or does not fit the model.
        ValueError: there is no such device.
        ImportError: transformers or sentencepiece is not installed.
    """

    model: Transformer

    def __init__(self, folder: str | Path, device: torch.device | str = "cpu") -> None:
        optional_import("sentencepiece")  # which the tokenizer needs
        optional_import("transformers")
        self.model = from_marian(folder).to(check_device(device))
        self._tokenizer = _marian_tokenizer(ForeignFolder(folder), self.model.config)

    def translate(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[str]:
        """Translate sentences; arguments and errors are those of `Translator.translate_tokenized`."""
        longest, sources = self.model.config.max_length, []
        for number, sentence in enumerate(sentences, start=1):
            *ids, end = self._tokenizer(sentence).input_ids
            if len(ids) >= longest:
                warnings.warn(f"sentence {number} is cut to its first {longest - 1} tokens", stacklevel=2)
            sources.append([*ids[: longest - 1], end])
        found = translate_ids(self.model, sources, adjusted(search, changes))
        return list(self._tokenizer.batch_decode(found, skip_special_tokens=True))

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence, the end token included."""
        return len(self._tokenizer(sentence).input_ids)
