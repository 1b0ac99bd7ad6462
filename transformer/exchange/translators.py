"""Translators of other programs with their vocabularies, and any translator by its name."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any
import torch
from torch import Tensor, nn
from transformer.decoding import DecoderState, decoder_state
from transformer.exchange.engines import CTranslate2Engine
from transformer.exchange.foreign import ForeignFolder, refusing_damage, tokenizer_text
from transformer.exchange.marian import from_m2m100, from_marian
from transformer.files import read_record, regular_file
from transformer.language.folder import pretrained_folder
from transformer.language.translator import AnyTranslator, Source, Translator, translate_ids
from transformer.model import Transformer, TransformerConfig
from transformer.speed.fast import accelerated
from transformer.training import best_device
from transformer.validation import check_choice, check_device, check_index, check_type, optional_import

__all__ = ["Constrained", "banned_tokens", "MarianTranslator", "M2M100Translator", "load_translator"]


class Constrained(nn.Module):
    """A model for searches that never choose some of its tokens, or must begin with one.

    Args:
        model: what `greedy_search` and `beam_search` take.
        banned: tokens that are never chosen.
        first: the token that every result begins with; `None` for any.

    Raises:
        TypeError, ValueError: a token is not an int, or is no token of the model.
    """

    model: Any
    config: Any
    banned: Tensor
    first: int | None

    def __init__(self, model: Any, banned: Sequence[int] = (), first: int | None = None) -> None:
        super().__init__()
        check_type(nn.Module, model=model)
        check_type((list, tuple), banned=banned)
        end = model.config.tgt_vocab_size
        check_index(end, **{f"banned[{n}]": token for n, token in enumerate(banned)})
        check_index(end, first=0 if first is None else first)
        self.model, self.config, self.first = model, model.config, first
        self.register_buffer("banned", torch.tensor(banned, dtype=torch.long), persistent=False)


class _ConstrainedState(DecoderState):
    def __init__(self, model: Constrained, src: Tensor, beam_size: int) -> None:
        self.free, self.banned = decoder_state(model.model, src, beam_size), model.banned
        self.memory, self.look_every, self.first = self.free.memory, self.free.look_every, model.first

    def step(self, last: Tensor) -> Tensor:
        logits = self.free.step(last).index_fill(-1, self.banned.to(last.device), -torch.inf)
        if self.first is not None:
            logits = torch.full_like(logits, -torch.inf)
            logits[:, self.first], self.first = 0.0, None
        return logits

    def keep(self, rows: Tensor) -> None:
        self.free.keep(rows)


@decoder_state.register
def _constrained_state(model: Constrained, src: Tensor, beam_size: int = 1) -> DecoderState:  # type: ignore
    return _ConstrainedState(model, src, beam_size)


def banned_tokens(folder: ForeignFolder) -> list[int]:
    """The tokens that a folder's searches must never choose."""
    named = "generation_config.json" in folder.listed  # older folders say it all in one file
    search = folder.record("generation_config.json") if named else folder.settings
    banned = search.get("bad_words_ids")
    check_type((list, type(None)), bad_words_ids=banned)
    if any(not isinstance(tokens, list) or len(tokens) != 1 for tokens in banned or []):
        raise ValueError(f"bad_words_ids must hold single tokens, not {banned}")
    return [token for (token,) in banned or []]


def _marian_tokenizer(folder: ForeignFolder, config: TransformerConfig) -> Any:
    """The tokenizer of a Marian model; its class is built from these files, whatever others may say."""
    told = folder.record("tokenizer_config.json") if "tokenizer_config.json" in folder.listed else {}
    used = ("source_lang", "target_lang", "separate_vocabs")
    options = {name: told[name] for name in used if name in told}
    files = {"source_spm": "source.spm", "target_spm": "target.spm", "vocab": "vocab.json"}
    sizes = {"vocab.json": config.src_vocab_size}
    if options.get("separate_vocabs"):
        files["target_vocab_file"], sizes["target_vocab.json"] = "target_vocab.json", config.tgt_vocab_size
    paths = {name: _needed(folder, file) for name, file in files.items()}
    for name, size in sizes.items():
        with refusing_damage(folder.path / name):
            words = folder.record(name)
            check_index(size, **{f"number of {word!r:.40}": token for word, token in words.items()})
            check_choice([config.eos_id], **{"number of '</s>'": words.get("</s>")})
            check_choice([config.pad_id], **{"number of '<pad>'": words.get("<pad>")})
    with refusing_damage(folder.path):
        return optional_import("transformers").MarianTokenizer(**paths, **options)


def _needed(folder: ForeignFolder, name: str) -> str:
    """The path of a file that a tokenizer needs."""
    if not regular_file(folder.path / name).exists():
        raise FileNotFoundError(f"{folder.path / name} is missing, which the tokenizer needs")
    return str(folder.path / name)


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

    _tokenizer: Any

    def __init__(self, folder: str | Path, device: torch.device | str | None = None) -> None:
        opened = self._opened(folder, device, from_marian)
        self._tokenizer = _marian_tokenizer(opened, self.model.config)
        with refusing_damage(self._path):
            searched: Any = Constrained(accelerated(self.model, stacklevel=3), banned_tokens(opened))
        self.engine = partial(translate_ids, searched)

    def _opened(
        self, folder: str | Path, device: torch.device | str | None, read: Callable[[Any], Transformer]
    ) -> ForeignFolder:
        """Read the model onto its device, if there are the libraries that its tokenizer needs."""
        optional_import("sentencepiece")
        optional_import("transformers")
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

    def n_tokens(self, sentence: str) -> int:
        """How many tokens the model would read of a whole sentence, the end token included."""
        return len(self._encoded(sentence))

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
        OSError, CheckpointError: as in `from_m2m100`; or a file of the vocabulary is missing, is damaged,
            or does not fit the model.
        ValueError: the model has no such language, or there is no such device.
        ImportError: transformers or sentencepiece is not installed.
    """

    def __init__(
        self, folder: str | Path, source: str, target: str, device: torch.device | str | None = None
    ) -> None:
        check_type(str, source=source, target=target)
        opened = self._opened(folder, device, from_m2m100)
        with refusing_damage(self._path):
            self._tokenizer, languages = _m2m100_tokenizer(opened, self.model.config.tgt_vocab_size)
        for name in (source, target):
            if name not in languages:
                some = ", ".join(sorted(languages)[:3])
                raise ValueError(f"the model has no language {name!r:.40}; it has {some} and others")
        self._tokenizer.src_lang = source
        with refusing_damage(self._path):
            searched: Any = Constrained(self.model, banned_tokens(opened), languages[target])
        self.engine = partial(translate_ids, searched)

    def write(self, ids: list[int]) -> str:
        """The text of a translation's ids, of which the first is the language."""
        return super().write(ids[1:])


def _m2m100_tokenizer(folder: ForeignFolder, vocab_size: int) -> tuple[Any, dict[str, int]]:
    """The tokenizer of a folder, and the token of each of its languages."""
    transformers = optional_import("transformers")
    if "vocab.json" in folder.listed:  # M2M-100
        files = _needed(folder, "vocab.json"), _needed(folder, "sentencepiece.bpe.model")
        tokenizer = transformers.M2M100Tokenizer(*files)
        added = tokenizer.lang_code_to_id
    else:
        tokenizer_text(Path(_needed(folder, "tokenizer.json")))
        tokenizer = transformers.NllbTokenizer.from_pretrained(folder.path, local_files_only=True)
        added = tokenizer.added_tokens_encoder
    languages = {name: token for name, token in added.items() if not name.startswith("<")}
    last = max([*tokenizer.get_vocab().values(), *languages.values()])
    check_index(vocab_size, **{"the tokenizer's last token": last})
    return tokenizer, languages


def load_translator(
    name: str | Path,
    device: torch.device | str | None = None,
    engine: str | None = None,
    compute_type: str | None = None,
    **download: Any,
) -> AnyTranslator:
    """The translator that a name stands for, ours or Marian's.

    Args:
        name: a folder, the name of a translator that the package carries, or `"OWNER/NAME"` on the
            Hugging Face hub.
        device: to translate on; `None` for the `best_device`.
        engine: what runs the searches: `"ctranslate2"`, or `None` for PyTorch, on which a Marian model runs.
        compute_type: what CTranslate2 computes with, as in `CTranslate2Engine`.
        **download: as in `pretrained_folder`.

    Raises:
        ValueError: it is an M2M-100 model, for `M2M100Translator`, or has no such engine.
        TypeError, ValueError, OSError, ImportError: as in `pretrained_folder`, in `Translator.load`
            or `MarianTranslator`, and in `CTranslate2Engine`.
    """
    check_choice((None, "ctranslate2"), engine=engine)
    if engine is None:
        check_choice((None,), **{"compute_type without an engine": compute_type})
    folder = pretrained_folder(name, **download)
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
