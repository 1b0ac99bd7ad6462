"""Translators of other programs: ours written for CTranslate2, theirs read, and any by its name; speakers."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.decoding import DecoderState, decoder_state, length_norm
from transformer.embedding import sinusoidal_encoding
from transformer.exchange.hugging_face import (
    ForeignFolder, check_tokenizer, exported, from_llama, from_m2m100, from_marian, whole_folder,
)  # fmt: skip
from transformer.files import read_record, refusing_damage, regular_file
from transformer.language.folder import pretrained_folder
from transformer.language.translator import AnyTranslator, Search, Source, Translator, translate_ids
from transformer.language.vocabulary import UNK_ID
from transformer.layers import DecoderLayer, LayerNorm
from transformer.model import Decoder, Encoder, Transformer, TransformerConfig
from transformer.modern.language_model import generate, most_probable
from transformer.speed.fast import accelerated
from transformer.training import best_device, check_device
from transformer.validation import check_choice, check_index, check_type, optional_import

__all__ = [
    "to_ctranslate2", "CTranslate2Engine", "Constrained", "MarianTranslator", "M2M100Translator",
    "load_translator", "Speaker",
]  # fmt: skip


def _array(*parts: Tensor) -> Any:
    return torch.cat([part.detach() for part in parts]).to("cpu", torch.float32).numpy()


def _fill_linear(place: Any, *layers: nn.Linear) -> None:
    """Put linear layers that read the same vectors on top of one another."""
    place.weight = _array(*(layer.weight for layer in layers))
    if layers[0].bias is not None:
        place.bias = _array(*(layer.bias for layer in layers))


def _fill_norm(place: Any, norm: LayerNorm) -> None:
    place.gamma = _array(norm.weight)
    place.beta = _array(torch.zeros_like(norm.weight) if norm.bias is None else norm.bias)


def _fill_stack(place: Any, stack: Encoder | Decoder) -> None:
    """Fill the layers of a stack in the engine's specification, and the norm on top."""
    layers: Any = stack.layers
    for spot, layer in zip(place.layer, layers, strict=True):
        own = layer.self_attention
        _fill_linear(spot.self_attention.linear[0], own.w_q, own.w_k, own.w_v)
        _fill_linear(spot.self_attention.linear[1], own.w_o)
        _fill_norm(spot.self_attention.layer_norm, layer.self_residual.norm)
        if isinstance(layer, DecoderLayer):
            cross = layer.cross_attention
            _fill_linear(spot.attention.linear[0], cross.w_q)
            _fill_linear(spot.attention.linear[1], cross.w_k, cross.w_v)
            _fill_linear(spot.attention.linear[2], cross.w_o)
            _fill_norm(spot.attention.layer_norm, layer.cross_residual.norm)
        _fill_linear(spot.ffn.linear_0, layer.feed_forward.w_1)
        _fill_linear(spot.ffn.linear_1, layer.feed_forward.w_2)
        _fill_norm(spot.ffn.layer_norm, layer.feed_residual.norm)
    if isinstance(stack.norm, LayerNorm):
        _fill_norm(place.layer_norm, stack.norm)


_CTRANSLATE2_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH"}


def to_ctranslate2(
    model: Transformer | Translator, folder: str | Path, quantization: str | None = None
) -> None:
    """Write a folder from which `ctranslate2.Translator` translates with the weights of ours.

    Args:
        model: a `Translator`, whose subwords become the engine's tokens and which adds an end token
            to each source; or a `Transformer`, whose tokens are then their numbers as strings.
        folder: where `model.bin`, `config.json` and the vocabulary are written. The engine's
            `max_decoding_length` must not exceed our `max_length`, and its `min_decoding_length` has
            to be set to 0, or no translation is empty. A translator's `config.json` says how texts
            are to be prepared, which the engine leaves to whoever calls it.
        quantization: how weights are stored, such as `"int8"` or `"float16"`; `None` for float32.

    Raises:
        TypeError: `model`, or a part of it, is of another type; a subclass is another type.
        ValueError: it is not as its configuration says, or not finite; the engine knows no such
            `quantization`; or `folder` holds another model.
        OSError: a file cannot be written; the folder stays as it was.
        ImportError: ctranslate2 is not installed.
    """
    specs = optional_import("ctranslate2.specs")
    translates = isinstance(model, Translator)
    plain = exported(model.model if isinstance(model, Translator) else model, "to_ctranslate2")
    config = plain.config
    spec = specs.TransformerSpec.from_config(
        config.depths,
        config.n_heads,
        no_final_norm=not config.has_final_norm,
        activation=specs.Activation[_CTRANSLATE2_ACTIVATIONS[config.activation]],
    )
    spec.encoder.embeddings[0].weight = _array(plain.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(plain.tgt_embedding.weight)
    _fill_linear(spec.decoder.projection, plain.output)
    table = sinusoidal_encoding(config.max_length, config.d_model, torch.float32).numpy()
    for place, stack in ((spec.encoder, plain.encoder), (spec.decoder, plain.decoder)):
        place.position_encodings.encodings = table
        place.pre_norm = config.norm_first  # only now, because with False it has no place for a final norm
        _fill_stack(place, stack)
    numbers = [str(token) for token in range(max(config.src_vocab_size, config.tgt_vocab_size))]
    words = model.vocabulary.pieces if isinstance(model, Translator) else numbers
    spec.register_source_vocabulary(words[: config.src_vocab_size])
    spec.register_target_vocabulary(words[: config.tgt_vocab_size])
    spec.config.unk_token = words[UNK_ID]
    spec.config.bos_token = spec.config.decoder_start_token = words[config.bos_id]
    spec.config.eos_token, spec.config.add_source_eos = words[config.eos_id], translates
    if isinstance(model, Translator):
        spec.config.add_attribute("preparation", vars(model.preparation))
    spec.validate()
    spec.optimize(quantization)
    with whole_folder(folder) as part:
        spec.save(str(part))


class CTranslate2Engine:
    """The searches of a translator, run by CTranslate2: assign it to `translator.engine`.

    Its beam ends by the engine's own rule, so that a rare translation differs from those of PyTorch.

    Args:
        translator: where weights and vocabulary come from; later changes to the weights have no effect.
        compute_type: what the engine computes with, such as `"int8"`; `None` for float32.

    Raises:
        TypeError, ValueError, ImportError: as in `to_ctranslate2`; or the model is on a device, or
            `compute_type` is one, that CTranslate2 does not know.
    """

    def __init__(self, translator: Translator, compute_type: str | None = None) -> None:
        engine = optional_import("ctranslate2").Translator
        device = next(translator.model.parameters()).device
        kind = "cpu" if device.type == "mps" else device.type  # Apple's GPUs are strange to the engine
        self._words, self._longest = translator.vocabulary.tokens, translator.model.config.max_length
        self._end = translator.model.config.eos_id
        self._ids = {piece: number for number, piece in enumerate(translator.vocabulary.pieces)}
        options = {"compute_type": compute_type or "float32", "intra_threads": torch.get_num_threads()}
        with tempfile.TemporaryDirectory() as folder:
            to_ctranslate2(translator, folder)
            self._engine = engine(folder, device=kind, device_index=device.index or 0, **options)

    def __call__(self, sources: list[list[int]], search: Search) -> list[list[int]]:
        """As `translate_ids`."""
        longest = min(search.max_length, self._longest)
        translations: list[list[int]] = [[] for _ in sources]
        rows = [row for row, ids in enumerate(sources) if len(ids) > 1]  # not the empty ones
        results = self._engine.translate_batch(
            [self._words(sources[row][:-1]) for row in rows],  # it adds the end itself
            beam_size=search.beam_size, num_hypotheses=search.beam_size, length_penalty=0, return_scores=True,
            min_decoding_length=0,  # a translation may be empty; the engine's default is 1
            max_decoding_length=longest, max_batch_size=search.max_tokens or 4000, batch_type="tokens",
        )  # fmt: skip
        for row, result in zip(rows, results, strict=True):
            lengths = [min(len(pieces) + 1, longest) for pieces in result.hypotheses]
            ranked = zip(result.scores, lengths, result.hypotheses, strict=True)
            best = max(ranked, key=lambda each: each[0] / length_norm(each[1], search.length_penalty))
            ends = [self._end] * (len(best[2]) < longest)  # of which the engine does not speak
            translations[row] = [self._ids[piece] for piece in best[2]] + ends
        return translations


class Constrained(nn.Module):
    """A model for searches that must begin with a token, such as a language, which costs nothing.

    Args:
        model: what `greedy_search` and `beam_search` take.
        first: the token.
    """

    def __init__(self, model: Any, first: int) -> None:
        super().__init__()
        check_index(model.config.tgt_vocab_size, first=first)
        self.model, self.config, self.first = model, model.config, first


class _ConstrainedState(DecoderState):
    def __init__(self, model: Constrained, src: Tensor, beam_size: int) -> None:
        self.free, self.begins = decoder_state(model.model, src, beam_size), True
        self.memory, self.look_every, self.first = self.free.memory, self.free.look_every, model.first

    def step(self, last: Tensor) -> Tensor:
        logits = self.free.step(last)
        if self.begins:
            logits = torch.full_like(logits, -torch.inf)
            logits[:, self.first], self.begins = 0.0, False
        return logits

    def keep(self, rows: Tensor) -> None:
        self.free.keep(rows)


@decoder_state.register
def _constrained_state(model: Constrained, src: Tensor, beam_size: int = 1) -> DecoderState:  # type: ignore
    return _ConstrainedState(model, src, beam_size)


def _marian_tokenizer(folder: ForeignFolder, config: TransformerConfig) -> Any:
    """The tokenizer of a Marian model; its class is built from these files, whatever others may say."""
    words = folder.record("vocab.json")
    check_index(config.src_vocab_size, **{f"number of {word!r:.40}": n for word, n in words.items()})
    check_choice([config.eos_id], **{"number of '</s>'": words["</s>"]})
    check_choice([config.pad_id], **{"number of '<pad>'": words["<pad>"]})
    names = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    files = {option: str(regular_file(folder.path / name)) for option, name in names.items()}
    language = folder.record("tokenizer_config.json").get("source_lang")  # whose punctuation is normalized
    return optional_import("transformers").MarianTokenizer(**files, source_lang=language)


class MarianTranslator(AnyTranslator):
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

    def __init__(self, folder: str | Path, device: torch.device | str | None = None) -> None:
        opened = self._opened(folder, device, from_marian)
        with refusing_damage(self._path):
            self._tokenizer = _marian_tokenizer(opened, self.model.config)
            bias = self.model.output.bias
            if bias is None:
                bias = self.model.output.weight.new_zeros(self.model.config.tgt_vocab_size)
            for (banned,) in opened.search.get("bad_words_ids") or []:  # such as padding
                bias[banned] = -torch.inf
            self.model.output.bias = nn.Parameter(bias, requires_grad=False)
        self.engine = partial(translate_ids, accelerated(self.model, stacklevel=3))

    def _opened(
        self, folder: str | Path, device: torch.device | str | None, read: Callable[[Any], Transformer]
    ) -> ForeignFolder:
        """Read the model onto its device, if there is the library that its tokenizer needs."""
        optional_import("sentencepiece")
        device = check_device(best_device() if device is None else device)
        self.model, opened = read(folder).to(device), ForeignFolder(folder)
        self._path = opened.path
        return opened

    def read(self, sentences: Sequence[str]) -> list[Source]:
        """What the model reads of sentences; too long ones are cut."""
        longest, number = self.model.config.max_length - 1, self._tokenizer.convert_tokens_to_ids
        sources = []
        for sentence in sentences:
            *ids, end = self._encoded(sentence)
            pieces = self._tokenizer.tokenize(sentence)
            is_unknown = [number(piece) == self._tokenizer.unk_token_id for piece in pieces]
            unknown = "".join(compress(pieces, is_unknown)).replace("▁", "")
            is_known = any(not lost and piece != "▁" for piece, lost in zip(pieces, is_unknown, strict=True))
            cuts = [f"is cut to its first {longest} tokens"] * (len(ids) > longest)
            sources.append(Source(sentence, [*ids[:longest], end], cuts, unknown, is_known))
        return sources

    def write(self, ids: list[int]) -> str:
        """The text of a translation's ids."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _encoded(self, sentence: str) -> list[int]:
        check_type(str, sentence=sentence)
        with refusing_damage(self._path):
            return list(self._tokenizer(sentence).input_ids)


class M2M100Translator(MarianTranslator):
    """An M2M-100 or NLLB-200 model of Hugging Face with its vocabulary: sentences in, sentences out.

    Args:
        folder: of the model and its tokenizer.
        source, target: the languages as the model calls them, such as `"por_Latn"` and `"eng_Latn"` in
            NLLB-200, `"pt"` and `"en"` in M2M-100.
        device: to translate on; `None` for the `best_device`.

    Raises:
        OSError, CheckpointError, ImportError: as in `MarianTranslator`.
        ValueError: the model has no such language, or there is no such device.
    """

    def __init__(
        self, folder: str | Path, source: str, target: str, device: torch.device | str | None = None
    ) -> None:
        opened = self._opened(folder, device, from_m2m100)
        with refusing_damage(self._path):
            self._tokenizer, languages = _m2m100_tokenizer(opened, self.model.config.tgt_vocab_size)
        check_choice(languages, source=source, target=target)
        self._tokenizer.src_lang = source
        searched: Any = Constrained(self.model, languages[target])
        self.engine = partial(translate_ids, searched)

    def write(self, ids: list[int]) -> str:
        """The text of a translation's ids, of which the first is the language."""
        return super().write(ids[1:])


def _m2m100_tokenizer(folder: ForeignFolder, vocab_size: int) -> tuple[Any, dict[str, int]]:
    """The tokenizer of a folder, and the token of each of its languages."""
    transformers = optional_import("transformers")
    if "vocab.json" in folder.listed:  # M2M-100
        files = [str(folder.path / name) for name in ("vocab.json", "sentencepiece.bpe.model")]
        tokenizer = transformers.M2M100Tokenizer(*files)
        added = tokenizer.lang_code_to_id
    else:
        check_tokenizer(folder.path / "tokenizer.json")
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder.path, local_files_only=True)
        added = tokenizer.added_tokens_encoder
    languages = {name: token for name, token in added.items() if not name.startswith("<")}
    check_index(vocab_size, **{"the tokenizer's last token": max(tokenizer.get_vocab().values())})
    check_index(vocab_size, **languages)
    return tokenizer, languages


def load_translator(
    name: str | Path, device: torch.device | str | None = None, engine: str | None = None,
    compute_type: str | None = None,
) -> AnyTranslator:  # fmt: skip
    """The translator that a name stands for, ours or Marian's.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"` on the
            Hugging Face hub.
        device: to translate on; `None` for the `best_device`.
        engine: what runs the searches: `"ctranslate2"`, or `None` for PyTorch, on which a Marian model runs.
        compute_type: what CTranslate2 computes with, as in `CTranslate2Engine`.

    Raises:
        ValueError: it is an M2M-100 model, for `M2M100Translator`, or has no such engine.
        TypeError, ValueError, OSError, ImportError: as in `pretrained_folder`, in `Translator.load`
            or `MarianTranslator`, and in `CTranslate2Engine`.
    """
    check_choice((None, "ctranslate2"), engine=engine)
    if engine is None:
        check_choice((None,), **{"compute_type without an engine": compute_type})
    folder = pretrained_folder(name)
    config = folder / "config.json"
    kind = read_record(config).get("model_type") if config.is_file() else None
    if kind == "m2m_100":
        raise ValueError(f"{name} translates between many languages: M2M100Translator is told which")
    if kind == "marian":
        check_choice((None,), **{f"engine of {name}, a Marian model,": engine})
        return MarianTranslator(folder, device)
    translator = Translator.load(folder, device)
    if engine is not None:
        translator.engine = CTranslate2Engine(translator, compute_type)
    return translator


class Speaker:
    """A language model with its tokenizer: text in, text out.

    Args:
        folder: of a model that `from_llama` reads, with its `tokenizer.json`.

    Raises:
        OSError, CheckpointError: as in `from_llama`; or the tokenizer is missing, is damaged, or does
            not fit the model.
        ImportError: safetensors or tokenizers is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        opened = ForeignFolder(folder)
        self._file = opened.path / "tokenizer.json"
        self.model = from_llama(folder)
        check_tokenizer(self._file)
        with refusing_damage(self._file):
            self._tokenizer = optional_import("tokenizers").Tokenizer.from_file(str(self._file))
            numbers = {f"number of {piece!r:.40}": n for piece, n in self._tokenizer.get_vocab().items()}
            ends = opened.search.get("eos_token_id")
            self._ends: list[int] = ends if isinstance(ends, list) else [] if ends is None else [ends]
            numbers |= {f"eos_token_id, number {n}": end for n, end in enumerate(self._ends)}
            check_index(self.model.config.vocab_size, **numbers)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with the start token where the tokenizer has one."""
        check_type(str, text=text)
        text.encode()  # a UnicodeEncodeError is a ValueError
        with refusing_damage(self._file):
            ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some `ids`, without tokens that are no text."""
        with refusing_damage(self._file):
            return str(self._tokenizer.decode(list(ids)))

    def speak(
        self, prompt: str = "", n_tokens: int = 40, choose: Callable[[Tensor], Tensor] = most_probable
    ) -> str:
        """Continue a text.

        Args:
            prompt: its beginning.
            n_tokens: how many tokens to add, at most.
            choose: as in `generate`.

        Returns:
            the text, with its beginning.

        Raises:
            TypeError, ValueError: an argument is of the wrong type or out of range.
        """
        begun = torch.tensor([self.encode(prompt)], device=self.model.output.weight.device)
        ends = torch.tensor(self._ends, device=begun.device)

        def chosen(logits: Tensor) -> Tensor:
            tokens = choose(logits)
            return tokens.where(~torch.isin(tokens, ends), ends[0]) if self._ends else tokens

        added = generate(self.model, begun, n_tokens, chosen, self._ends[0] if self._ends else None)
        return self.decode([*begun[0].tolist(), *added[0].tolist()])
