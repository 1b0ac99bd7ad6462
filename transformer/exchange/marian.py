"""Marian and Pegasus as Hugging Face has them, read and written."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Unpack
import torch
from torch import Tensor, nn
from transformer.decoding import DecoderState, decoder_state
from transformer.embedding import sinusoidal_encoding
from transformer.exchange.foreign import (
    ForeignFolder,
    check_as_configured,
    check_one_dtype,
    fitted_weights,
    our_name,
    refusing_damage,
    whole_folder,
)
from transformer.exchange.torch import agreed, check_exact_type, place_copy
from transformer.files import regular_file
from transformer.language.bpe_file import SPACE, SPECIALS
from transformer.language.doubts import Translation, checked, warn_of_doubts
from transformer.language.translator import Search, SearchSettings, Translator, adjusted, translate_ids
from transformer.language.vocabulary import EOS_ID, Vocabulary
from transformer.layers import ACTIVATIONS
from transformer.model import Transformer, TransformerConfig
from transformer.speed.fast import accelerated
from transformer.training import best_device
from transformer.validation import check_choice, check_device, check_size, check_type, optional_import
from transformer.weights import parameter_owners

__all__ = [
    "marian_names",
    "Family",
    "FIELDS",
    "config_from",
    "config_to",
    "place_all",
    "from_marian",
    "from_pegasus",
    "to_marian",
    "to_pegasus",
    "save_theirs",
    "Forbidding",
    "MarianTranslator",
]


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
    "layer_norm": "norm",  # on top of a stack, in Pegasus
}
_MARIAN_TABLES = {
    "model.shared.weight": "src_embedding.weight",  # where all are one
    "model.encoder.embed_tokens.weight": "src_embedding.weight",
    "model.decoder.embed_tokens.weight": "tgt_embedding.weight",
    "lm_head.weight": "output.weight",
}


def marian_names(theirs: Collection[str]) -> dict[str, str]:
    """Of Marian's or Pegasus's weights, those that a `Transformer` has as well, each with our name."""
    names = {name: ours for name, ours in _MARIAN_TABLES.items() if name in theirs}
    parts = (name for name in theirs if ".layers." in name or ".layer_norm." in name)
    return names | {name: our_name(name, _MARIAN_PARTS) for name in parts}


class Family(NamedTuple):
    """One of Hugging Face's classes that computes what a `Transformer` does."""

    name: str
    model_type: str
    model: str
    norm_first: bool  # with norms on top
    fields: Mapping[str, str]  # of ours, by their names


FIELDS = {
    "vocab_size": "src_vocab_size",
    "d_model": "d_model",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "tie_word_embeddings": "tie_embeddings",
    "pad_token_id": "pad_id",
    "decoder_start_token_id": "bos_id",
    "eos_token_id": "eos_id",
    "max_position_embeddings": "max_length",
}
_TABLES = {"decoder_vocab_size": "tgt_vocab_size", "share_encoder_decoder_embeddings": "tie_embeddings"}
_MARIAN = Family("Marian", "marian", "MarianMTModel", False, {**FIELDS, **_TABLES})
_PEGASUS = Family("Pegasus", "pegasus", "PegasusForConditionalGeneration", True, FIELDS)
_DEFAULTS = {"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True}  # in older files
_SIZES = {"attention_heads": "n_heads", "ffn_dim": "d_ff"}  # of both stacks
_ACTIVATIONS = {name: name for name in ACTIVATIONS} | {"swish": "silu"}
_LARGEST_TABLE = 1 << 24  # numbers in the table of positions, which is computed


def config_from(theirs: Mapping[str, Any], family: Family) -> TransformerConfig:
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
    check_choice([0], encoder_layerdrop=theirs["encoder_layerdrop"])
    check_choice([0], decoder_layerdrop=theirs["decoder_layerdrop"])
    check_choice(list(_ACTIVATIONS), activation_function=theirs["activation_function"])

    def same(*names: str) -> Any:
        return agreed(" and ".join(names), [theirs[name] for name in names])

    same("share_encoder_decoder_embeddings", "tie_word_embeddings")
    settings = {field: theirs[name] for name, field in {**FIELDS, **_TABLES}.items()}
    for name, field in _SIZES.items():
        settings[field] = same(f"encoder_{name}", f"decoder_{name}")
    settings["n_layers"] = theirs["encoder_layers"], theirs["decoder_layers"]
    activation = _ACTIVATIONS[theirs["activation_function"]]
    config = TransformerConfig(**settings, activation=activation, norm_first=family.norm_first)
    if config.max_length * config.d_model > _LARGEST_TABLE:
        asked = f"{config.max_length:,} positions of {config.d_model:,} features"
        raise ValueError(f"{asked} are more than {_LARGEST_TABLE:,} numbers")
    return config


def config_to(ours: TransformerConfig, family: Family) -> dict[str, Any]:
    """The settings of a configuration of theirs; refuses what they cannot say (`ValueError`)."""
    check_choice([family.norm_first], norm_first=ours.norm_first, final_norm=ours.has_final_norm)
    check_choice([True], bias=ours.bias)
    if "decoder_vocab_size" not in family.fields:
        check_choice([True], tie_embeddings=ours.tie_embeddings)
    settings = {name: getattr(ours, field) for name, field in family.fields.items()}
    for name, field in _SIZES.items():
        settings |= dict.fromkeys((f"encoder_{name}", f"decoder_{name}"), getattr(ours, field))
    settings["encoder_layers"], settings["decoder_layers"] = ours.depths
    return settings | {
        "activation_function": ours.activation,
        "scale_embedding": True,
        "forced_eos_token_id": None,
    }


def place_all(target: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Fill a whole model that was built on the meta device; shared parameters stay shared."""
    for name, owner in parameter_owners(target).items():
        path, _, leaf = name.rpartition(".")
        part = target.get_submodule(path)
        if name == owner:
            place_copy(part, leaf, nn.Parameter(weights[name], getattr(part, leaf).requires_grad))
        else:
            setattr(part, leaf, target.get_parameter(owner))


def from_marian(model: Any) -> Transformer:
    """Make a `Transformer` that computes what Hugging Face's Marian model does, with copies of its weights.

    The features of its vectors are in our order, so that positions are our own. A bias of the logits
    that is not zero becomes `output.bias`. What their configuration says about a search is left out;
    tokens that `generate` was told never to choose are for `Forbidding`, and `MarianTranslator` has them.

    Args:
        model: a `transformers.MarianMTModel`, or the path of a folder that holds one as safetensors,
            for which `transformers` is not needed.

    Returns:
        A `Transformer` of the same dtype, device and mode; that of a folder is in evaluation mode.
        Its padding and start token may be the same.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it does what ours cannot: stacks of different width, an activation other than
            ReLU, exact GELU and SiLU, embeddings that are not scaled or shared in part, dropped
            layers, learned positions; or it is not as its configuration says, or not finite.
        OSError, CheckpointError: as in `ForeignFolder`; what is refused in a folder is a
            `CheckpointError` as well.
        ImportError: transformers or safetensors is not installed.
    """
    return _from(model, _MARIAN)


def from_pegasus(model: Any) -> Transformer:
    """Make a `Transformer` that computes what Hugging Face's Pegasus model does: Marian's with pre-norm.

    Args:
        model: a `transformers.PegasusForConditionalGeneration`, or the path of a folder, as in
            `from_marian`; so are the result and the errors.
    """
    return _from(model, _PEGASUS)


def _from(model: Any, family: Family) -> Transformer:
    if isinstance(model, str | Path):
        folder = ForeignFolder(model)
        with refusing_damage(folder.path):
            return _built(folder.settings, family, folder.shapes, folder.weights).eval()
    check_exact_type("model", model, getattr(optional_import("transformers"), family.model))
    settings = model.config.to_dict()
    config_from(settings, family)
    check_as_configured(model)
    weights = model.state_dict()
    shapes = {name: x.shape for name, x in weights.items()}
    return _built(settings, family, shapes, lambda: weights).train(model.training)


def _built(
    settings: Mapping[str, Any],
    family: Family,
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
) -> Transformer:
    config = config_from(settings, family)
    length, d_model = config.max_length, config.d_model
    with torch.device("meta"):
        plan = Transformer(replace(config, n_layers=1))
    tables = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    extras = {"final_logits_bias": [1, config.tgt_vocab_size], **dict.fromkeys(tables, [length, d_model])}
    weights = fitted_weights(shapes, read, marian_names(shapes), plan, config.n_layers, extras)
    check_one_dtype({name: value for name, value in weights.items() if name not in tables})
    given, order = {name: weights.pop(name) for name in extras if name in weights}, _sines_first(d_model)
    for name in given.keys() & tables:
        _check_sinusoids(given[name][:, order])
    with torch.device("meta"):
        ours = Transformer(config)
    place_all(ours, _reordered(weights, order))
    bias = given.get("final_logits_bias")
    if bias is not None and bias.any():
        copied = bias[0].detach().to(ours.output.weight, copy=True)
        ours.output.bias = nn.Parameter(copied, requires_grad=False)
    return ours.to(ours.output.weight)


def _check_sinusoids(table: Tensor) -> None:
    length, d_model = table.shape
    sinusoids = sinusoidal_encoding(length, d_model, table.dtype).to(table.device)
    rounding = max(1e-6, torch.finfo(table.dtype).eps)  # theirs is in float32, whatever the model is in
    if not torch.allclose(table, sinusoids, rtol=0, atol=rounding):
        raise ValueError("embed_positions must hold sinusoids: first all sines, then all cosines")


def to_marian(model: Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Marian model with the weights of ours.

    Args:
        model: a post-norm `Transformer` without norms on top, with biases. Its output may have a bias.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is of another form, not as its configuration says, or not finite; or `folder`
            holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: transformers is not installed.
    """
    _write(model, folder, _MARIAN)


def to_pegasus(model: Transformer | Translator, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads a Pegasus model with the weights of ours.

    Args:
        model: a `Translator`, of which a tokenizer is written too, for text that its vocabulary has
            prepared; or a `Transformer`. It is pre-norm with norms on top, with biases and one table,
            as the recipes of this package train it.
        folder: as in `to_marian`; so are the errors.
    """
    if isinstance(model, Translator):
        _write(model.model, folder, _PEGASUS, model.vocabulary)
    else:
        _write(model, folder, _PEGASUS)


def _write(
    model: Transformer, folder: str | Path, family: Family, vocabulary: Vocabulary | None = None
) -> None:
    transformers = optional_import("transformers")
    check_exact_type("model", model, Transformer)
    settings = getattr(transformers, f"{family.name}Config")(**config_to(model.config, family))
    check_as_configured(model)
    with torch.device("meta"):
        theirs = getattr(transformers, family.model)(settings)
    weights, order = model.state_dict(), _sines_first(model.config.d_model).argsort()
    names = marian_names(theirs.state_dict())
    moved = _reordered({name: weights[name] for name in names.values()}, order)
    table = model.positions.table[:, order]
    positions = {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
    place_all(theirs, {name: moved[names[name]] for name in names} | positions)
    bias = weights.get("output.bias", torch.zeros_like(model.output.weight[:, 0]))
    theirs.final_logits_bias = bias[None]
    theirs.generation_config.max_length = model.config.max_length + 1  # theirs counts the start token
    save_theirs(theirs, folder, family, vocabulary)


def save_theirs(
    theirs: Any, folder: str | Path, family: Family, vocabulary: Vocabulary | None = None
) -> None:
    """Write the folder of a model of `transformers`, with a tokenizer of our vocabulary if there is one."""
    written = ("*config.json", "tokenizer.json", "model*.safetensors", "model.safetensors.index.json")
    ours = lambda found: found.get("model_type") == family.model_type
    with whole_folder(folder, written, ours) as part:
        theirs.save_pretrained(part)
        if vocabulary is not None:
            _tokenizer_of(vocabulary).save_pretrained(part)


def _tokenizer_of(vocabulary: Vocabulary) -> Any:
    """A tokenizer of transformers with the pieces and merges of ours; it adds the end token."""
    tokenizers = optional_import("tokenizers")
    fast = tokenizers.Tokenizer.from_str(vocabulary.tokenizer.to_str())
    fast.normalizer = tokenizers.normalizers.NFC()
    fast.decoder = tokenizers.decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    end, with_end = SPECIALS[EOS_ID], tokenizers.processors.TemplateProcessing
    fast.post_processor = with_end(f"$A {end}", special_tokens=[(end, EOS_ID)])
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), SPECIALS, strict=True))
    return optional_import("transformers").PreTrainedTokenizerFast(tokenizer_object=fast, **names)


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


class Forbidding(nn.Module):
    """A model for searches that never choose some of its tokens.

    Args:
        model: what `greedy_search` and `beam_search` take.
        banned: the tokens.

    Raises:
        TypeError, ValueError: `banned` is not a list of ints, or one of them is no token of the model.
    """

    banned: Tensor

    def __init__(self, model: Any, banned: list[int]) -> None:
        super().__init__()
        check_type(nn.Module, model=model)
        check_type(list, banned=banned)
        check_size(minimum=0, **{f"banned[{n}]": token for n, token in enumerate(banned)})
        if banned and max(banned) >= (end := model.config.tgt_vocab_size):
            raise ValueError(f"banned must lie in [0, {end}), but holds {max(banned)}")
        self.model, self.config = model, model.config
        self.register_buffer("banned", torch.tensor(banned, dtype=torch.long), persistent=False)


class _ForbiddingState(DecoderState):
    def __init__(self, model: Forbidding, src: Tensor, beam_size: int) -> None:
        self.allowed, self.banned = decoder_state(model.model, src, beam_size), model.banned
        self.memory = self.allowed.memory

    def step(self, last: Tensor) -> Tensor:
        return self.allowed.step(last).index_fill(-1, self.banned.to(last.device), -torch.inf)

    def keep(self, rows: Tensor) -> None:
        self.allowed.keep(rows)


@decoder_state.register
def _forbidding_state(model: Forbidding, src: Tensor, beam_size: int = 1) -> DecoderState:  # type: ignore
    return _ForbiddingState(model, src, beam_size)


def _banned(folder: ForeignFolder) -> list[int]:
    """The tokens that a folder's searches must never choose."""
    named = "generation_config.json" in folder.listed  # older folders say it all in one file
    search = folder.record("generation_config.json") if named else folder.settings
    banned = search.get("bad_words_ids")
    check_type((list, type(None)), bad_words_ids=banned)
    if any(not isinstance(tokens, list) or len(tokens) != 1 for tokens in banned or []):
        raise ValueError(f"bad_words_ids must hold single tokens, not {banned}")
    return [token for (token,) in banned or []]


class MarianTranslator:
    """A Marian model of Hugging Face with its vocabulary: sentences in, sentences out.

    Args:
        folder: of the model and its tokenizer.
        device: to translate on; `None` for the `best_device`.

    Raises:
        OSError, CheckpointError: as in `from_marian`; or a file of the vocabulary is missing, is
            damaged, or does not fit the model.
        ValueError: there is no such device.
        ImportError: transformers or sentencepiece is not installed.
    """

    model: Transformer
    engine = "pytorch"

    def __init__(self, folder: str | Path, device: torch.device | str | None = None) -> None:
        optional_import("sentencepiece")  # which the tokenizer needs
        optional_import("transformers")
        device = check_device(best_device() if device is None else device)
        self.model, opened = from_marian(folder).to(device), ForeignFolder(folder)
        self._path, self._tokenizer = opened.path, _marian_tokenizer(opened, self.model.config)
        with refusing_damage(opened.path):
            self._searched: Any = Forbidding(accelerated(self.model, stacklevel=3), _banned(opened))

    def translate(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[str]:
        """Translate sentences; arguments, warnings and errors are those of `Translator.translate`."""
        found = self.translate_checked(sentences, search, **changes)
        warn_of_doubts(sentences, [each.doubts for each in found])
        return [each.text for each in found]

    def translate_checked(
        self, sentences: Sequence[str], search: Search = Search(), **changes: Unpack[SearchSettings]
    ) -> list[Translation]:
        """As `Translator.translate_checked`."""
        longest, sources, cuts = self.model.config.max_length - 1, [], []
        for sentence in sentences:
            *ids, end = self._encoded(sentence)
            cuts.append([f"is cut to its first {longest} tokens"] * (len(ids) > longest))
            sources.append([*ids[:longest], end])
        found = translate_ids(self._searched, sources, adjusted(search, changes))
        texts = self._decoded(found)
        return [self._checked(*each) for each in zip(sentences, texts, cuts, found, strict=True)]

    def _checked(self, sentence: str, text: str, cuts: list[str], ids: list[int]) -> Translation:
        name, unk = self._tokenizer.convert_tokens_to_ids, self._tokenizer.unk_token_id
        pieces = self._tokenizer.tokenize(sentence)
        unknown = "".join(piece for piece in pieces if name(piece) == unk).replace("▁", "")
        is_known = any(name(piece) != unk for piece in pieces if piece != "▁")
        is_whole = ids[-1:] in ([], [self.model.config.eos_id])
        return checked(sentence, text, cuts, unknown, is_known, is_whole)

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model reads of a sentence, the end token included."""
        return len(self._encoded(sentence))

    def _encoded(self, sentence: str) -> list[int]:
        check_type(str, sentence=sentence)
        with refusing_damage(self._path):
            return list(self._tokenizer(sentence).input_ids)

    def _decoded(self, found: list[list[int]]) -> list[str]:
        return list(self._tokenizer.batch_decode(found, skip_special_tokens=True))
