"""transformer.toy, from book/09-toy-task.ipynb, "A toy task, solved".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "reverse_and_mark", "reversal_batch", "toy_config", "reversal_batches", "exact_match", "load_toy_model",
    "with_copies", "faultless", "match_by_copies", "crowd",
]


# %% book/09-toy-task.ipynb · The rule · [reverse-and-mark]
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transformer.decoding import greedy_search
from transformer.model import Transformer, TransformerConfig
from transformer.training import load_record, record_path
from transformer.validation import check_ids, check_size, check_type, optional_import


def reverse_and_mark(digits: Tensor, mark: int) -> Tensor:
    """Replace the 2nd, 4th, … occurrence of each digit by `mark`; then reverse.

    Digits and result are `[B, L]`; a digit that is not below `mark` is an `IndexError`.

    Example:
        >>> reverse_and_mark(torch.tensor([[0, 1, 5, 9, 0, 3]]), mark=10).tolist()
        [[3, 10, 9, 5, 1, 0]]
    """
    check_size(mark=mark)
    check_ids("digits", digits, mark)
    same = digits[:, :, None] == digits[:, None, :]             # [B, L, L]
    occurrence = same.tril().sum(dim=2)  # 1 for the first
    return digits.masked_fill(occurrence % 2 == 0, mark).flip(1)


# %% book/09-toy-task.ipynb · The rule · [reversal-batch]
def _outputs(inputs: Tensor, n_digits: int) -> Tensor:
    # What the toy task makes of digits, behind the start token: [B, L] -> [B, L + 1].
    return F.pad(reverse_and_mark(inputs, n_digits), (1, 0), value=n_digits + 1)


def reversal_batch(
    batch_size: int, length: int, n_digits: int = 10,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Random digit sequences and what the toy task makes of them.

    Args:
        batch_size, length: number of sequences B, and digits in each, L.
        n_digits: how many there are; X is token n_digits, the start n_digits + 1.
        generator: the source of randomness; `None` for torch's own.

    Returns:
        inputs `[B, L]`; outputs `[B, L + 1]`, which have a start token, and no end.
    """
    check_size(batch_size=batch_size, length=length, n_digits=n_digits)
    check_type((torch.Generator, type(None)), generator=generator)
    inputs = torch.randint(n_digits, (batch_size, length), generator=generator)
    return inputs, _outputs(inputs, n_digits)


# %% book/09-toy-task.ipynb · Training · [toy-config]
def toy_config(n_digits: int = 10, **changes: Any) -> TransformerConfig:
    """The configuration of a toy model: 2+2 layers of width 128.

    Args:
        n_digits: how many there are; then come X, start, end and padding token.
        **changes: fields of `TransformerConfig` that are to differ.
    """
    check_size(n_digits=n_digits)
    size = n_digits + 4
    vocabulary: dict[str, Any] = dict(src_vocab_size=size, tgt_vocab_size=size)
    sizes = dict(d_model=128, n_heads=8, n_layers=2, d_ff=256, max_length=64)
    ids = dict(bos_id=n_digits + 1, eos_id=n_digits + 2, pad_id=n_digits + 3)
    return TransformerConfig(**vocabulary | sizes | ids | changes)


# %% book/09-toy-task.ipynb · Training · [reversal-batches]
def reversal_batches(
    epoch: int, batch_size: int = 32, length: int = 10, per_epoch: int = 500,
    seed: int = 0,
) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch's worth of fresh batches, the same ones for the same epoch and seed.

    Args:
        epoch: number of the epoch, counted from 0, of `per_epoch` batches.
        batch_size, length: sequences in a batch, and digits in each.
        seed: of the whole stream; streams of different seeds are different.
    """
    check_size(per_epoch=per_epoch)
    check_size(minimum=0, epoch=epoch, seed=seed)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    for _ in range(per_epoch):
        yield reversal_batch(batch_size, length, generator=generator)


# %% book/09-toy-task.ipynb · Training · [exact-match]
def exact_match(
    model: Transformer, n_sequences: int = 10_000, length: int = 10, seed: int = 10_000
) -> dict[str, float]:
    """Decode sequences greedily and compare.

    Args:
        model: a trained toy model.
        n_sequences, length: how many sequences to decode, and digits in each.
        seed: of the sequences.

    Returns:
        the shares of faultless `"sequences"` and of right `"tokens"`.
    """
    check_type(nn.Module, model=model)
    check_size(n_sequences=n_sequences, length=length)
    check_size(minimum=0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    device, n_digits = next(model.parameters()).device, model.config.bos_id - 1
    inputs, outputs = reversal_batch(n_sequences, length, n_digits, generator)
    parts = (greedy_search(model, x.to(device), length) for x in inputs.split(1000))
    right = torch.cat([part.cpu() for part in parts]) == outputs[:, 1:]
    return {
        "sequences": right.all(dim=1).double().mean().item(),
        "tokens": right.double().mean().item(),
    }


# %% book/09-toy-task.ipynb · The full run · [load-toy-model]
def load_toy_model() -> Transformer:
    """The toy model whose recorded run this chapter reports, in evaluation mode."""
    model = Transformer(toy_config(**load_record("toy")["recipe"]["model"]))
    safetensors = optional_import("safetensors.torch")
    safetensors.load_model(model, record_path("toy.safetensors"))
    return model.eval()


# %% book/09-toy-task.ipynb · Five samples · [with-copies]
def with_copies(copies: int, n_sequences: int, generator: torch.Generator) -> Tensor:
    """Digits `[n_sequences, 10]`: one occurs `copies` times, and none more often."""

    def permuted(rows: Tensor) -> Tensor:
        order = torch.rand(rows.shape, generator=generator).argsort(dim=1)
        return rows.gather(1, order)

    digits = permuted(torch.arange(10).expand(n_sequences, 10))
    others = permuted(digits[:, 1:].repeat(1, copies))[:, : 10 - copies]
    return permuted(torch.cat([digits[:, :1].expand(-1, copies), others], dim=1))


# %% book/09-toy-task.ipynb · Five samples · [match-by-copies]
def faultless(model: Transformer, inputs: Tensor) -> Tensor:
    """Which digits `[B, L]` a greedy search gets right: `torch.bool` `[B]`, from one
    pass that reads the true outputs.
    """
    outputs = _outputs(inputs, n_digits=model.config.bos_id - 1)
    with torch.no_grad():
        return (model(inputs, outputs[:, :-1]).argmax(-1) == outputs[:, 1:]).all(dim=1)


def match_by_copies(
    model: Transformer, n_sequences: int = 500, seed: int = 30_000
) -> dict[int, float]:
    """The share of right sequences, `n_sequences` of each kind, by the number of copies
    of the most common digit: 1, 2, … 10.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = {n: with_copies(n, n_sequences, generator) for n in range(1, 11)}
    return {n: faultless(model, x).double().mean().item() for n, x in kinds.items()}


# %% book/09-toy-task.ipynb · A test that would have told us · [crowd]
def crowd(digits: Tensor, generator: torch.Generator) -> Tensor:
    """Replace each digit `[B, L]`, from the left, by one from those up to its place.

    Source: the urn of Hoppe (1984).
    """
    digits = digits.clone()
    for place in range(1, digits.size(1)):
        drawn = torch.randint(place + 1, (len(digits), 1), generator=generator)
        digits[:, place : place + 1] = digits.gather(1, drawn)
    return digits
