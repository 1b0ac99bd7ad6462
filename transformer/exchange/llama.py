"""Llama, Mistral and Qwen3, read into `LanguageModel`."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
import torch
from torch import Tensor
from transformer.exchange.foreign import ForeignFolder, check_tokenizer, fitted_weights, our_name
from transformer.files import refusing_damage
from transformer.modern.language_model import LanguageModel, LanguageModelConfig, generate, most_probable
from transformer.modern.parts import RotaryStretch
from transformer.validation import check_choice, check_index, check_type, optional_import
from transformer.weights import place_all, planned

__all__ = ["PARTS", "from_llama", "Speaker"]


PARTS = {
    "input_layernorm": "attention_norm", "self_attn": "attention",
    "q_proj": "w_q", "k_proj": "w_k", "v_proj": "w_v", "o_proj": "w_o",
    "post_attention_layernorm": "feed_norm", "mlp": "feed_forward",
    "gate_proj": "w_gate", "up_proj": "w_1", "down_proj": "w_2",
    "embed_tokens": "embedding", "lm_head": "output",
}  # fmt: skip
_FIELDS = {
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
        **{ours: theirs[name] for name, ours in _FIELDS.items()},
        activation=theirs["hidden_act"],
        rotary_base=theirs["rope_theta"],
        rotary_stretch=None if stretch is None else RotaryStretch(**stretch),
        window=theirs.get("sliding_window") if theirs["model_type"] == "mistral" else None,
        qk_norm=theirs["model_type"] == "qwen3",
        tie_embeddings=theirs["tie_word_embeddings"],
    )


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
        place_all(ours, fitted_weights(opened, {name: our_name(name, PARTS) for name in opened.shapes}, ours))
    return ours.eval()


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
