"""What PyTorch itself does, where the book speaks of it: `python -m experiments.pytorch` writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from transformer.files import write_record
from transformer.runs.folder import run_facts

D, D_FF = 12, 20


def share_of_nan(x: Tensor) -> float:
    """The share of entries that are not a number."""
    return x.isnan().double().mean().item()


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


def main(arguments: list[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("transformer/records/book/pytorch.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    record = run_facts("cpu") | {"seed": 0, "empty sentence": empty_sentence()}
    write_record(options.output, record)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
