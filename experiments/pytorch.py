"""What PyTorch itself does, where the book speaks of it: `python -m experiments.pytorch` writes it."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.files import write_record
from transformer.runs.folder import run_facts

D, H, D_FF = 12, 4, 20


def share_of_nan(x: Tensor) -> float:
    """The share of entries that are not a number."""
    return x.isnan().double().mean().item()


def nothing_to_see() -> dict[str, float]:
    """An attention one of whose queries may attend to nothing: the share of NaN in its weights."""
    x, hidden = torch.randn(2, 5, D), torch.zeros(5, 5, dtype=torch.bool)
    hidden[4] = True
    _, weights = nn.MultiheadAttention(D, H, batch_first=True)(x, x, x, attn_mask=hidden)
    return {"that row": share_of_nan(weights[:, 4]), "other rows": share_of_nan(weights[:, :4])}


def drawn_anew() -> list[str]:
    """The parameters of a stack that change when `torch.nn.Transformer` is built around it."""
    layer = nn.TransformerEncoderLayer(D, H, D_FF, batch_first=True)
    ready = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)
    for parameter in ready.parameters():
        nn.init.normal_(parameter)
    before = copy.deepcopy(ready.state_dict())
    nn.Transformer(D, H, num_decoder_layers=1, custom_encoder=ready, batch_first=True)
    return [name for name, x in ready.state_dict().items() if not torch.equal(x, before[name])]


def empty_sentence() -> dict[str, float]:
    """A sentence of padding alone in evaluation: the share of NaN, by heads and with or without gradients."""
    x, padding, found = torch.randn(1, 4, D), torch.ones(1, 4, dtype=torch.bool), {}
    for heads in (3, 4):
        layer = nn.TransformerEncoderLayer(D, heads, D_FF, batch_first=True).eval()
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                y = layer(x, src_key_padding_mask=padding)
            found[f"{heads} heads, {'with' if gradients else 'without'} gradients"] = share_of_nan(y)
    return found


def top_level_operations(work: Callable[[], object]) -> int:
    """How many operations Python asks of PyTorch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    return sum(event.cpu_parent is None for event in profiler.events())


def stack(with_norm: bool = True) -> nn.TransformerEncoder:
    """A post-norm encoder of two layers in evaluation mode, with a norm on top whose bias is not 0."""
    layer = nn.TransformerEncoderLayer(D, H, D_FF, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D) if with_norm else None).eval()
    if with_norm:
        nn.init.normal_(encoder.norm.bias)
    return encoder


def operations() -> dict[str, int]:
    """Operations of an encoder of two layers in evaluation, with and without gradients."""
    encoder, x, found = stack(with_norm=False), torch.randn(2, 7, D), {}
    for name, gradients in (("with gradients", True), ("without gradients", False)):
        with torch.set_grad_enabled(gradients):
            encoder(x)
            found[name] = top_level_operations(lambda: encoder(x))
    return found


def padded_places() -> dict[str, bool]:
    """Whether an encoder returns, at padded places, what the norm on top makes of 0."""
    encoder, x, found = stack(), torch.randn(2, 7, D), {}
    padding = torch.arange(7) >= torch.tensor([[7], [4]])
    for name, gradients in (("with gradients", True), ("without gradients", False)):
        with torch.set_grad_enabled(gradients), warnings.catch_warnings(action="ignore"):
            y = encoder(x, src_key_padding_mask=padding)
        found[name] = torch.allclose(y[padding], encoder.norm.bias.expand(3, D), atol=1e-6)
    return found


def measure() -> dict[str, Any]:
    """Everything that the book reads."""
    torch.manual_seed(0)
    return {
        "nothing to see": nothing_to_see(),
        "drawn anew": drawn_anew(),
        "empty sentence": empty_sentence(),
        "operations": operations(),
        "padded places": padded_places(),
    }


def main(arguments: list[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("transformer/records/book/pytorch.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    record = run_facts("cpu") | {"seed": 0} | measure()
    write_record(options.output, record)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
