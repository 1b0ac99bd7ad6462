"""Marian, M2M-100 and NLLB-200 as Hugging Face has them, read and written."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
import torch
from torch import Tensor, nn
from transformer.embedding import PositionalEncoding
from transformer.exchange.foreign import (
    ForeignFolder,
    check_one_dtype,
    exported,
    fitted_weights,
    our_name,
    refusing_damage,
    whole_folder,
)
from transformer.exchange.torch import agreed
from transformer.layers import ACTIVATIONS
from transformer.model import Transformer, TransformerConfig
from transformer.validation import check_choice, check_size, optional_import
from transformer.weights import place_all, planned

__all__ = ["M2M100Positions", "M2M100Transformer", "from_marian", "from_m2m100", "to_marian", "to_m2m100"]


_WRITERS = ("w_o", "w_2", "norm")  # what they return has the features of the residual stream


def _reordered(weights: Mapping[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    """Our weights, for vectors whose feature i was feature `order[i]` before."""

    def moved(name: str, value: Tensor) -> Tensor:
        if name.split(".")[-2] in _WRITERS:
            return value[order]
        return value[:, order] if value.dim() == 2 else value  # or a bias inside a head or a network

    return {name: moved(name, value) for name, value in weights.items()}


def _sines_first(d_model: int) -> Tensor:
    """For each of our features, its place where all sines come first, and then all cosines."""
    half = (d_model + 1) // 2
    return torch.arange(2 * half).view(2, half).T.flatten()[:d_model]


_PARTS = {
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
    "layer_norm": "norm",  # on top of a stack, in M2M-100
}
_TABLES = {
    "model.shared.weight": "src_embedding.weight",  # where all are one
    "model.encoder.embed_tokens.weight": "src_embedding.weight",
    "model.decoder.embed_tokens.weight": "tgt_embedding.weight",
    "lm_head.weight": "output.weight",
}
_FIELDS = {
    "vocab_size": "src_vocab_size",
    "decoder_vocab_size": "tgt_vocab_size",
    "d_model": "d_model",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "share_encoder_decoder_embeddings": "tie_embeddings",
    "tie_word_embeddings": "tie_embeddings",
    "pad_token_id": "pad_id",
    "decoder_start_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "max_position_embeddings": "max_length",
}
_SIZES = {"attention_heads": "n_heads", "ffn_dim": "d_ff"}  # of both stacks


def _our_names(theirs: Iterable[str]) -> dict[str, str]:
    return {name: _TABLES.get(name) or our_name(name, _PARTS) for name in theirs}


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
        TypeError, ValueError: as in `Transformer`, or M2M-100 has no such model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        check_size(minimum=4, d_model=config.d_model)
        check_choice([0], **{"d_model % 2": config.d_model % 2})
        check_choice([_FIRST - 1], pad_id=config.pad_id)
        if config.bos_id == config.pad_id:
            raise ValueError(f"pad_id and bos_id must differ here, but both are {config.pad_id}")
        self.positions = M2M100Positions(config.d_model, config.dropout, config.max_length)


class _Family(NamedTuple):
    """One of Hugging Face's classes, and the class of ours that computes the same."""

    model_type: str
    model: str
    kind: type[Transformer]
    table: str  # the name of the positions in a stack
    unused: int  # rows of that table


_MARIAN = _Family("marian", "MarianMTModel", Transformer, "weight", 0)
_M2M100 = _Family("m2m_100", "M2M100ForConditionalGeneration", M2M100Transformer, "weights", _FIRST)
_DEFAULTS = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}  # in older files
_ACTIVATIONS = {name: name for name in ACTIVATIONS} | {"swish": "silu"}
_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed


def _config_from(theirs: Mapping[str, Any], family: _Family) -> TransformerConfig:
    """Our configuration of a model of theirs, from what its configuration says.

    Raises:
        ValueError, TypeError, KeyError: no model of ours is like this one.
    """
    check_choice([family.model_type], model_type=theirs.get("model_type"))
    check_choice([[family.model], None], architectures=theirs.get("architectures"))
    theirs = _DEFAULTS | dict(theirs)
    if theirs.get("decoder_vocab_size") is None:
        theirs["decoder_vocab_size"] = theirs["vocab_size"]
    check_choice([True], scale_embedding=theirs["scale_embedding"])
    check_choice(list(_ACTIVATIONS), activation_function=theirs["activation_function"])

    def same(*names: str) -> Any:
        return agreed(" and ".join(names), [theirs[name] for name in names])

    same("share_encoder_decoder_embeddings", "tie_word_embeddings")
    settings = {field: theirs[name] for name, field in _FIELDS.items()}
    for name, field in _SIZES.items():
        settings[field] = same(f"encoder_{name}", f"decoder_{name}")
    settings["n_layers"] = theirs["encoder_layers"], theirs["decoder_layers"]
    activation = _ACTIVATIONS[theirs["activation_function"]]
    config = TransformerConfig(**settings, activation=activation, norm_first=family is _M2M100)
    if config.max_length * config.d_model > _LARGEST_TABLE:
        asked = f"{config.max_length:,} positions of {config.d_model:,} features"
        raise ValueError(f"{asked} are more than {_LARGEST_TABLE:,} numbers")
    return config


def _read(path: str | Path, family: _Family) -> Any:
    """The model that a folder holds, as one of ours; arguments and errors as in `from_marian`."""
    folder = ForeignFolder(path)
    with refusing_damage(folder.path):
        config = _config_from(folder.settings, family)
        tables = [f"{stack}.embed_positions.{family.table}" for stack in ("encoder", "decoder")]
        extras = dict.fromkeys(tables, (family.unused + config.max_length, config.d_model))
        if family is _MARIAN:
            extras["final_logits_bias"] = 1, config.tgt_vocab_size
        ours = planned(family.kind, config, sum(config.depths), len(folder.shapes))
        weights = fitted_weights(folder, _our_names(folder.shapes), ours, extras)
        order = _sines_first(config.d_model) if family is _MARIAN else torch.arange(config.d_model)
        for name in tables:
            given = weights.pop(name)[family.unused :, order] if name in weights else ours.positions.table
            # Theirs is in float32, whatever the model is in, or as the file has rounded it.
            if not torch.allclose(given.double(), ours.positions.table.double(), rtol=0, atol=5e-3):
                raise ValueError(f"{name} must hold the sinusoids of {family.model}")
        check_one_dtype(weights)
        bias = weights.pop("final_logits_bias", torch.zeros(1))
        place_all(ours, _reordered(weights, order))
        if bias.any():
            ours.output.bias = nn.Parameter(bias[0].clone(), requires_grad=False)
        return ours.to(ours.output.weight).eval()


def from_marian(folder: str | Path) -> Transformer:
    """Make a `Transformer` that computes what a Marian model of Hugging Face does, from the model's folder.

    The features of its vectors are in our order, so that positions are our own. A bias of the logits
    that is not zero becomes `output.bias`. What their configuration says about a search is left out;
    tokens that `generate` was told never to choose are for `Constrained`, and `MarianTranslator` has them.

    Args:
        folder: with the `config.json` and the weights, as safetensors, of a `MarianMTModel`.

    Returns:
        A `Transformer` of the same dtype. Its padding and start token may be the same. No layer is
        dropped in training.

    Raises:
        OSError, CheckpointError: as in `ForeignFolder`; or the model does what ours cannot: stacks of
            different width, an activation other than ReLU, exact GELU and SiLU, embeddings that are not
            scaled or shared in part, learned positions; or its weights are not those of its
            configuration, or not finite.
        TypeError: `folder` is no path.
        ImportError: safetensors is not installed.
    """
    ours: Transformer = _read(folder, _MARIAN)
    return ours


def from_m2m100(folder: str | Path) -> M2M100Transformer:
    """Make a `Transformer` that computes what an M2M-100 or NLLB-200 model does, from the model's folder.

    Args:
        folder: with the configuration and the weights, as safetensors, of Hugging Face's model.

    Returns:
        A `Transformer` with their positions, of the same dtype. Its start token is their
        `decoder_start_token_id`; that a language comes next is for `Constrained`, and
        `M2M100Translator` has it.

    Raises:
        OSError, CheckpointError, TypeError, ImportError: as in `from_marian`.
    """
    ours: M2M100Transformer = _read(folder, _M2M100)
    return ours


def to_marian(model: Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Marian model with the weights of ours.

    Args:
        model: a post-norm `Transformer` without norms on top, with biases. Its output may have a bias.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written; new or
            empty.

    Raises:
        TypeError: `model`, or a part of it, is not what its configuration makes.
        ValueError: it is of another form, or not finite; or `folder` is not empty.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: transformers is not installed.
    """
    _write(model, folder, _MARIAN)


def to_m2m100(model: M2M100Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads an M2M-100 model with the weights of ours.

    Args:
        model: an `M2M100Transformer`, pre-norm with norms on top, with biases and one table.
        folder: as in `to_marian`.

    Raises:
        TypeError: as in `to_marian`; a `Transformer` is another type, with other positions.
        ValueError, OSError, ImportError: as in `to_marian`.
    """
    _write(model, folder, _M2M100)


def _write(model: Transformer, folder: str | Path, family: _Family) -> None:
    """Write a model of ours as one of a family; arguments and errors as in `to_marian`."""
    transformers = optional_import("transformers")
    model = exported(model, "to_" + family.model_type.replace("_", ""), family.kind)
    config, kind = model.config, getattr(transformers, family.model)
    with torch.device("meta"):
        theirs = kind(kind.config_class(**_config_to(config, family)))
    weights = model.state_dict()
    bias = weights.pop("output.bias", None)
    if family is _MARIAN:
        order = _sines_first(config.d_model).argsort()
        weights = _reordered(weights, order)
        for stack in ("encoder", "decoder"):
            weights[f"{stack}.embed_positions.weight"] = model.positions.table[:, order]
        theirs.final_logits_bias = weights["output.weight"].new_zeros(1, config.tgt_vocab_size)
        if bias is not None:
            theirs.final_logits_bias += bias.detach()
    elif bias is not None:
        raise ValueError(f"output.bias must be None: {family.model} has none")
    names = _our_names(theirs.state_dict())
    place_all(theirs, {name: weights[ours] for name, ours in names.items() if ours in weights})
    theirs.generation_config.max_length = config.max_length + 1  # theirs counts the start token
    with whole_folder(folder) as part:
        theirs.save_pretrained(part)


def _config_to(ours: TransformerConfig, family: _Family) -> dict[str, Any]:
    """The settings of a model of theirs; refuses what they cannot say (`ValueError`)."""
    check_choice([family is _M2M100], norm_first=ours.norm_first, final_norm=ours.has_final_norm)
    check_choice([True], bias=ours.bias)
    settings = {name: getattr(ours, field) for name, field in _FIELDS.items()}
    if family is _M2M100:  # one table is all that it has, and its configuration does not say so
        check_choice([True], tie_embeddings=ours.tie_embeddings)
        del settings["decoder_vocab_size"], settings["share_encoder_decoder_embeddings"]
    settings |= {"activation_function": ours.activation, "scale_embedding": True, "forced_eos_token_id": None}
    for stack, depth in zip(("encoder", "decoder"), ours.depths, strict=True):
        settings |= {f"{stack}_{name}": getattr(ours, field) for name, field in _SIZES.items()}
        settings |= {f"{stack}_layers": depth, f"{stack}_layerdrop": 0.0}
    return settings
