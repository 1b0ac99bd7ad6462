"""M2M-100 and NLLB-200, read and written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.decoding import DecoderState, decoder_state
from transformer.embedding import PositionalEncoding
from transformer.exchange.foreign import (
    ForeignFolder,
    check_as_configured,
    check_one_dtype,
    fitted_weights,
    refusing_damage,
    tokenizer_text,
)
from transformer.exchange.marian import (
    FIELDS,
    Family,
    MarianTranslator,
    config_from,
    config_to,
    marian_names,
    place_all,
    save_theirs,
)
from transformer.exchange.torch import check_exact_type
from transformer.files import regular_file
from transformer.model import Transformer, TransformerConfig
from transformer.training import best_device
from transformer.validation import check_choice, check_device, check_size, check_type, optional_import

__all__ = [
    "M2M100Positions",
    "M2M100Transformer",
    "from_m2m100",
    "to_m2m100",
    "Beginning",
    "M2M100Translator",
]


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


_M2M100 = Family("M2M100", "m2m_100", "M2M100ForConditionalGeneration", True, FIELDS)
_NO_LAYER_DROP = {"encoder_layerdrop": 0, "decoder_layerdrop": 0}
_STACKS = ("encoder", "decoder")


def from_m2m100(model: Any) -> M2M100Transformer:
    """Make a `Transformer` that computes what an M2M-100 or NLLB-200 model does, with copies of its weights.

    Args:
        model: a `transformers.M2M100ForConditionalGeneration`, or the path of a folder that holds one as
            safetensors, for which `transformers` is not needed.

    Returns:
        A `Transformer` with their positions, of the same dtype, device and mode; that of a folder is in
        evaluation mode. No layer is dropped in training. Its start token is their
        `decoder_start_token_id`; that a language comes next is for `Beginning`, and `M2M100Translator`
        has it.

    Raises:
        TypeError, ValueError, OSError, CheckpointError, ImportError: as in `from_marian`.
    """
    if isinstance(model, str | Path):
        folder = ForeignFolder(model)
        with refusing_damage(folder.path):
            return _built(folder.settings, folder.shapes, folder.weights).eval()
    check_exact_type("model", model, getattr(optional_import("transformers"), _M2M100.model))
    settings = model.config.to_dict()
    config_from(settings | _NO_LAYER_DROP, _M2M100)
    check_as_configured(model)
    tables = {f"model.{stack}.embed_positions.weights": getattr(model.model, stack) for stack in _STACKS}
    weights = {**model.state_dict(), **{name: part.embed_positions.weights for name, part in tables.items()}}
    shapes = {name: x.shape for name, x in weights.items()}
    return _built(settings, shapes, lambda: weights).train(model.training)


def _built(
    settings: Mapping[str, Any],
    shapes: Mapping[str, Sequence[int]],
    read: Callable[[], Mapping[str, Tensor]],
) -> M2M100Transformer:
    config = config_from({**settings, **_NO_LAYER_DROP}, _M2M100)
    with torch.device("meta"):
        plan = M2M100Transformer(replace(config, n_layers=1))
    table = [_FIRST + config.max_length, config.d_model]  # older files hold it
    extras = {f"model.{stack}.embed_positions.weights": table for stack in _STACKS}
    weights = fitted_weights(shapes, read, marian_names(shapes), plan, config.n_layers, extras)
    with torch.device("meta"):
        ours = M2M100Transformer(config)
    for name in extras.keys() & weights.keys():
        given = weights.pop(name)[_FIRST:].to("cpu", torch.float64)
        if not torch.allclose(given, ours.positions.table.double(), rtol=0, atol=0.01):
            raise ValueError(f"{name} must hold the sinusoids of M2M-100")
    check_one_dtype(weights)
    place_all(ours, weights)
    return ours.to(ours.output.weight)


def to_m2m100(model: M2M100Transformer, folder: str | Path) -> None:
    """Write a folder from which Hugging Face's transformers loads an M2M-100 model with the weights of ours.

    Args:
        model: an `M2M100Transformer`, pre-norm with norms on top, with biases and one table.
        folder: where `config.json`, `generation_config.json` and `model.safetensors` are written.

    Raises:
        TypeError: `model`, or a part of it, is of another type, such as a `Transformer`, whose positions
            M2M-100 does not have and which `to_pegasus` writes.
        ValueError, OSError, ImportError: as in `to_marian`.
    """
    transformers = optional_import("transformers")
    if type(model) is Transformer:
        raise TypeError("model must have the positions of M2M-100, not the paper's: to_pegasus writes it")
    check_exact_type("model", model, M2M100Transformer)
    settings = config_to(model.config, _M2M100) | _NO_LAYER_DROP
    check_as_configured(model)
    with torch.device("meta"):
        theirs = getattr(transformers, _M2M100.model)(transformers.M2M100Config(**settings))
    weights, names = model.state_dict(), marian_names(theirs.state_dict())
    place_all(theirs, {name: weights[own] for name, own in names.items()})
    theirs.generation_config.max_length = model.config.max_length + 1  # theirs counts the start token
    save_theirs(theirs, folder, _M2M100)


class Beginning(nn.Module):
    """A model for searches whose results all begin with one token.

    Args:
        model: what `greedy_search` and `beam_search` take.
        token: the token.

    Raises:
        TypeError, ValueError: `token` is not an int, or no token of the model.
    """

    def __init__(self, model: Any, token: int) -> None:
        super().__init__()
        check_type(nn.Module, model=model)
        check_size(minimum=0, token=token)
        if token >= (end := model.config.tgt_vocab_size):
            raise ValueError(f"token must lie in [0, {end}), but is {token}")
        self.model, self.config, self.token = model, model.config, token


class _BeginningState(DecoderState):
    def __init__(self, model: Beginning, src: Tensor, beam_size: int) -> None:
        self.free, self.begins_with = decoder_state(model.model, src, beam_size), [model.token]
        self.memory = self.free.memory

    def step(self, last: Tensor) -> Tensor:
        logits = self.free.step(last)
        if not self.begins_with:
            return logits
        only = torch.full_like(logits, -torch.inf)
        only[:, self.begins_with.pop()] = 0.0
        return only

    def keep(self, rows: Tensor) -> None:
        self.free.keep(rows)


@decoder_state.register
def _beginning_state(model: Beginning, src: Tensor, beam_size: int = 1) -> DecoderState:  # type: ignore
    return _BeginningState(model, src, beam_size)


_OLDER_FILES = ["vocab.json", "sentencepiece.bpe.model"]


class M2M100Translator(MarianTranslator):
    """An M2M-100 or NLLB-200 model of Hugging Face with its vocabulary: sentences in, sentences out.

    Args:
        folder: of the model and its tokenizer.
        source, target: the languages as the model calls them, such as `"por_Latn"` and `"eng_Latn"` in
            NLLB-200, `"pt"` and `"en"` in M2M-100.
        device: to translate on; `None` for the `best_device`.

    Raises:
        OSError, CheckpointError: as in `from_m2m100`; or a file of the vocabulary is missing, is damaged,
            or does not fit the model.
        ValueError: the model has no such language, or there is no such device.
        ImportError: transformers or sentencepiece is not installed.
    """

    model: M2M100Transformer

    def __init__(
        self, folder: str | Path, source: str, target: str, device: torch.device | str | None = None
    ) -> None:
        check_type(str, source=source, target=target)
        optional_import("sentencepiece")  # which the tokenizer needs
        optional_import("transformers")
        device = check_device(best_device() if device is None else device)
        self.model, opened = from_m2m100(folder).to(device), ForeignFolder(folder)
        self._path = opened.path
        with refusing_damage(self._path):
            self._tokenizer, languages = _m2m100_tokenizer(opened, self.model.config.tgt_vocab_size)
        for name in (source, target):
            if name not in languages:
                some = ", ".join(sorted(languages)[:3])
                raise ValueError(f"the model has no language {name!r:.40}; it has {some} and others")
        self._tokenizer.src_lang = source
        self._searched = Beginning(self.model, languages[target])

    def _decoded(self, found: list[list[int]]) -> list[str]:
        return super()._decoded([tokens[1:] for tokens in found])  # without the language


def _m2m100_tokenizer(folder: ForeignFolder, vocab_size: int) -> tuple[Any, dict[str, int]]:
    """The tokenizer of a folder, and the token of each of its languages."""
    transformers = optional_import("transformers")
    older = "vocab.json" in folder.listed  # M2M-100
    places = [folder.path / name for name in (_OLDER_FILES if older else ["tokenizer.json"])]
    for place in places:
        if not regular_file(place).exists():
            raise FileNotFoundError(f"{place} is missing, which the tokenizer needs")
    if older:
        tokenizer = transformers.M2M100Tokenizer(*map(str, places))
        added = tokenizer.lang_code_to_id
    else:
        tokenizer_text(places[0])
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder.path, local_files_only=True)
        added = tokenizer.added_tokens_encoder
    languages = {name: token for name, token in added.items() if not name.startswith("<")}
    last = max([*tokenizer.get_vocab().values(), *languages.values()])
    if last >= vocab_size:
        raise ValueError(f"its tokens must lie below {vocab_size:,}, the model's number, but one is {last:,}")
    return tokenizer, languages
