"""Llama, Mistral, Qwen3 and Gemma, read into `LanguageModel`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.exchange.foreign import (
    ForeignFolder,
    check_one_dtype,
    fitted_weights,
    our_name,
    refusing_damage,
    tokenizer_text,
)
from transformer.modern.generate import generate, most_probable
from transformer.modern.language_model import LanguageModel, LanguageModelConfig
from transformer.modern.parts import RotaryStretch
from transformer.validation import check_choice, check_index, check_type, optional_import
from transformer.weights import place_all, planned

__all__ = ["PARTS", "from_llama", "Speaker"]


PARTS = {
    "self_attn": "attention",
    "q_proj": "w_q",
    "k_proj": "w_k",
    "v_proj": "w_v",
    "o_proj": "w_o",
    "mlp": "feed_forward",
    "gate_proj": "w_gate",
    "up_proj": "w_1",
    "down_proj": "w_2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_norm",
    "embed_tokens": "embedding",
    "lm_head": "output",
}
_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "d_model",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "head_dim": "d_head",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "d_ff",
    "rms_norm_eps": "norm_eps",
}
_OPTIONAL = ("num_key_value_heads", "head_dim", "rms_norm_eps")  # where theirs and ours assume the same
_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {},
    "qwen3": {"qk_norm": True},
    "gemma": {"scale_embedding": True},
}
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
_STRETCH = {
    "factor": "factor",
    "low_freq_factor": "slow",
    "high_freq_factor": "fast",
    "original_max_position_embeddings": "length",
}


def _config_from_llama(theirs: Mapping[str, Any]) -> LanguageModelConfig:
    check_choice(list(_FAMILIES), model_type=theirs.get("model_type"))
    family: str = theirs["model_type"]
    named = [f"{family.capitalize()}ForCausalLM"]
    check_choice([named, None], architectures=theirs.get("architectures"))
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        check_choice([False, None], **{name: theirs.get(name)})
    rotary = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    check_type(dict, rope_parameters=rotary)
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    check_choice(["default", "llama3"], rope_type=kind)
    partial = "partial_rotary_factor"  # of a head's features, how many turn
    check_choice([1, None], **{partial: rotary.get(partial, theirs.get(partial))})
    stretch = {ours: rotary[name] for name, ours in _STRETCH.items()} if kind == "llama3" else None
    base = rotary.get("rope_theta", theirs.get("rope_theta"))
    activation = theirs.get("hidden_activation") or theirs.get("hidden_act", "silu")
    check_choice(list(_ACTIVATIONS), hidden_act=activation)
    if family == "gemma" and activation == "gelu":  # as older configurations call the other form
        activation = "gelu_pytorch_tanh"
    told = [name for name in _FIELDS if name in theirs or name not in _OPTIONAL]
    return LanguageModelConfig(
        **{_FIELDS[name]: theirs[name] for name in told},
        **_FAMILIES[family],
        activation=_ACTIVATIONS[activation],
        rotary_base=10_000.0 if base is None else base,
        rotary_stretch=None if stretch is None else RotaryStretch(**stretch),
        window=theirs.get("sliding_window") if family == "mistral" else None,
        tie_embeddings=theirs.get("tie_word_embeddings", family == "gemma"),
    )


def from_llama(folder: str | Path) -> LanguageModel:
    """Make a `LanguageModel` that computes what a model of Llama's form does, from a folder with its weights.

    Args:
        folder: with the `config.json` and the weights, as safetensors, of a `LlamaForCausalLM` of
            Hugging Face's `transformers`, or of a Mistral, Qwen3 or Gemma (1) model of the same kind.

    Returns:
        a `LanguageModel` of the same dtype; Gemma's norms are at least in float32.

    Raises:
        OSError, CheckpointError: as in `ForeignFolder`; or the model is of another family, or does what
            ours cannot: biases, rotary positions scaled in another way than Llama 3.1's, windows in some
            layers only, other activations; or its weights are not those of its configuration, or not finite.
        TypeError: `folder` is no path.
        ImportError: safetensors is not installed.
    """
    opened = ForeignFolder(folder)
    with refusing_damage(opened.path):
        config = _config_from_llama(opened.settings)
        # Older files hold a table of the rotary speeds, which are computed here.
        shapes = [name for name in opened.shapes if not name.endswith(".rotary_emb.inv_freq")]
        names = {name: our_name(name, PARTS) for name in shapes}
        ours = planned(LanguageModel, config, config.n_layers, len(names))
        weights = fitted_weights(opened, names, ours, {})
        if opened.settings["model_type"] == "gemma":  # whose norms multiply by 1 + weight
            wide = torch.promote_types(weights["norm.weight"].dtype, torch.float32)
            weights |= {name: value.to(wide) + 1 for name, value in weights.items() if "norm." in name}
        check_one_dtype({name: value for name, value in weights.items() if "norm." not in name})
        place_all(ours, weights)
    return ours.eval()


def _read_tokenizer(folder: ForeignFolder, vocab_size: int) -> Any:
    path, tokenizers = folder.path / "tokenizer.json", optional_import("tokenizers")
    content = tokenizer_text(path)
    with refusing_damage(path):
        found = tokenizers.Tokenizer.from_str(content)
        for piece, number in found.get_vocab(with_added_tokens=True).items():
            check_index(vocab_size, **{f"number of {piece!r:.40}": number})
    found.no_padding()
    found.no_truncation()
    return found


def _ends(folder: ForeignFolder, vocab_size: int) -> Tensor:
    """The tokens that end a text, `[N]`."""
    named = "generation_config.json"
    search = folder.record(named) if named in folder.listed else folder.settings
    ends = search.get("eos_token_id", folder.settings.get("eos_token_id"))
    numbers = ends if isinstance(ends, list) else [] if ends is None else [ends]
    for number in numbers:
        check_index(vocab_size, eos_token_id=number)
    return torch.tensor(numbers, dtype=torch.long)


class Speaker:
    """A language model with its tokenizer: text in, text out.

    Args:
        folder: of a model that `from_llama` reads, with its `tokenizer.json`.

    Raises:
        OSError, CheckpointError: as in `from_llama`; or the tokenizer is missing, is damaged, or does
            not fit the model.
        ImportError: safetensors or tokenizers is not installed.
    """

    model: LanguageModel

    def __init__(self, folder: str | Path) -> None:
        opened = ForeignFolder(folder)
        self._file = opened.path / "tokenizer.json"
        self.model = from_llama(opened.path)
        self._tokenizer = _read_tokenizer(opened, self.model.config.vocab_size)
        with refusing_damage(opened.path):
            self._ends = _ends(opened, self.model.config.vocab_size)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with the start token where the tokenizer has one.

        Raises:
            TypeError, ValueError: `text` is not a string, or the tokenizer's file is of no use for it.
        """
        check_type(str, text=text)
        text.encode()  # a UnicodeEncodeError is a ValueError
        with refusing_damage(self._file):
            ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some `ids`, without tokens that are no text."""
        numbers = list(ids)
        end = self.model.config.vocab_size
        check_index(end, **{f"ids[{place}]": number for place, number in enumerate(numbers)})
        with refusing_damage(self._file):
            return str(self._tokenizer.decode(numbers))

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
        ends = self._ends.to(begun.device)

        def chosen(logits: Tensor) -> Tensor:
            tokens = choose(logits)
            return tokens.where(~torch.isin(tokens, ends), ends[0]) if len(ends) else tokens

        added = generate(self.model, begun, n_tokens, chosen, int(ends[0]) if len(ends) else None)
        return self.decode([*begun[0].tolist(), *added[0].tolist()])
