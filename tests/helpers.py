"""What several test files need."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import transformer
from transformer import Transformer, TransformerConfig, noam_rate
from transformer.language.corpora import Pair
from transformer.training import load_record, record_path

# Every public name of every module, under its own name.
MODULES = [
    m.name for m in pkgutil.walk_packages(transformer.__path__, "transformer.") if "__main__" not in m.name
]
FOUND = [module for module in map(importlib.import_module, MODULES) if hasattr(module, "__all__")]
everything = SimpleNamespace(**{name: getattr(module, name) for module in FOUND for name in module.__all__})

PAIRS = [  # a corpus of four sentences
    Pair("o gato vê a casa .", "the cat sees the house ."),
    Pair("a casa é velha .", "the house is old ."),
    Pair("gosto disto .", "i like this ."),
    Pair("o gato não gosta da casa .", "the cat does n't like the house ."),
]
FILES = ("config.json", "model.safetensors", "vocabulary.json")  # of a saved translator
# No two sizes are equal, so that no axis can be taken for another.
SIZES = {"d_model": 12, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_length": 12}
DROPPING = {"dropout": 0.3, "attention_dropout": 0.2, "activation_dropout": 0.1}
NORM_ORDERS = pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
MODES = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])
BIASES = pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])


def corpus(name: str, split: str) -> list[Pair]:
    """A split of `PAIRS`, whatever the name; the test has a sentence of its own."""
    held_out = [Pair("gosto da casa .", "i like the house ."), PAIRS[0]]
    return {"train": PAIRS, "dev": PAIRS[:2], "test": held_out}[split]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def summed(folder: Path) -> Path:
    """The folder, with sums that agree with its files, as a stranger would make them."""
    sums = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES]
    (folder / "SHA256SUMS").write_bytes("".join(sums).encode())
    return folder


def llama_folder(folder: Path, **changes) -> Path:
    """The recorded Llama as others publish a model, with changes of its configuration."""
    config = load_record("llama")["config"] | changes
    (folder / "config.json").write_text(json.dumps(config), encoding="utf8")
    (folder / "model.safetensors").write_bytes(record_path("llama.safetensors").read_bytes())
    return folder


def close(a: Tensor, b: Tensor | float, atol: float = 1e-10) -> bool:
    """Whether two tensors of one shape and dtype, or a tensor and a number, are equal but for rounding."""
    if not isinstance(b, Tensor):
        b = torch.tensor(b, dtype=a.dtype)
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=atol)


def assert_close(found, wanted, atol: float = 1e-9, rtol: float = 0.0) -> None:
    """Tensors, or sequences of them, are equal but for rounding."""
    torch.testing.assert_close(found, wanted, atol=atol, rtol=rtol)


def assert_same(found, wanted, tolerance: float = 1e-10) -> None:
    """As `assert_close`, with the tolerance for large numbers relative to them."""
    assert_close(found, wanted, tolerance, tolerance)


def refuses(error: type[Exception], message: str):
    """Expect `error` with exactly this message."""
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def scrambled(module: nn.Module, std: float = 0.3) -> nn.Module:
    """The module, with noise on every parameter: none is 0 or 1, and no two layers are alike."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    return module


def make_config(vocab_size: int = 11, **changes) -> TransformerConfig:
    """A small model, by default without dropout."""
    sizes = {"src_vocab_size": vocab_size, "tgt_vocab_size": vocab_size, **SIZES, "dropout": 0.0}
    return TransformerConfig(**(sizes | changes))


def make_model(
    vocab_size: int = 11, seed: int = 0, dtype: torch.dtype = torch.float64, noise: float = 0.1, **changes
) -> Transformer:
    """An untrained model; by the noise, its biases and norms are no longer 0 and 1."""
    torch.manual_seed(seed)
    model = Transformer(make_config(vocab_size, **changes)).to(dtype)
    return scrambled(model, noise) if noise else model


def lively_model(seed: int, vocab_size: int = 11, **changes) -> Transformer:
    """A model with dropout whose next token depends on source and beginning."""
    model = make_model(vocab_size, seed, noise=0.0, **({"dropout": 0.1} | changes))
    with torch.no_grad():
        model.src_embedding.weight *= 3
    return model


@torch.no_grad()
def greedy_by_hand(model: Transformer, source: list[int], max_length: int) -> list[int]:
    """One sentence, the whole beginning anew at every step, no cache."""
    tokens, config = [], model.eval().config
    while len(tokens) < max_length and config.eos_id not in tokens:
        tgt = torch.tensor([[config.bos_id, *tokens]])
        tokens.append(int(model(torch.tensor([source]), tgt)[0, -1].argmax()))
    return tokens


def adam_by_hand(
    parameters: list[Tensor], gradients: tuple[Tensor, ...], averages: list, step: int, clip_norm: float
) -> float:
    """Make update `step`, at the rate `run_rate`, by Adam written out; return the gradients' norm.

    `averages` holds for each parameter those of its gradients and of their squares.
    """
    norm = math.sqrt(sum(g.square().sum().item() for g in gradients))
    clip = min(1.0, clip_norm / norm)
    with torch.no_grad():
        for p, g, (m, v) in zip(parameters, gradients, averages):
            m.mul_(0.9).add_(0.1 * clip * g)
            v.mul_(0.98).add_(0.02 * (clip * g) ** 2)
            p -= run_rate(step) * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
    return norm


RUN_SIZES = dict(d_model=8, n_heads=2, n_layers=1, d_ff=12, max_length=12)  # of a run that takes no time


def run_model(dropout: float = 0.2, seed: int = 0, **changes) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(TransformerConfig(9, 9, dropout=dropout, **{**RUN_SIZES, **changes}))


def run_batches(epoch: int, n_batches: int = 5) -> list[tuple[Tensor, Tensor]]:
    """Batches of unequal size and length, with padding; the same ones for the same epoch."""
    generator = torch.Generator().manual_seed(epoch)
    batches = []
    for _ in range(n_batches):
        size, length = torch.randint(2, 6, (2,), generator=generator).tolist()
        ids = torch.randint(4, 9, (size, length), generator=generator)
        ids[0, 1:] = 0
        batches.append((ids, nn.functional.pad(ids, (1, 0), value=2)))
    return batches


def run_rate(step: int) -> float:
    return noam_rate(step, d_model=8, warmup_steps=10, factor=0.1)
