"""transformer.toy, from book/09-toy-task.ipynb, "A toy task, solved".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "reverse_and_mark",
    "reversal_batch",
    "toy_config",
    "reversal_batches",
    "exact_match",
    "ToyRecipe",
    "train_toy",
    "toy_record",
    "load_toy_model",
]


# %% book/09-toy-task.ipynb · The rule · [reversal-batch]
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from transformer.decoding import greedy_search
from transformer.loss import teacher_forced_loss
from transformer.model import Transformer, TransformerConfig
from transformer.training import (
    Trainer,
    TrainingConfig,
    cooldown,
    load_record,
    load_weights,
    noam_rate,
    record_path,
    run_facts,
)
from transformer.validation import check_device, check_ids, check_size, check_type


def reverse_and_mark(digits: Tensor, mark: int) -> Tensor:
    """Replace the 2nd, 4th, … occurrence of a digit, counted from the left, by `mark`; then
    reverse.

    Args:
        digits: `[B, L]`.
        mark: what stands for an even occurrence.

    Returns:
        `[B, L]`.

    Raises:
        TypeError: the digits are not `torch.long`, or `mark` is not an int.
        ValueError: the digits do not have two axes.
        IndexError: a digit is not below `mark`; seen on the CPU.
    """
    check_size(mark=mark)
    check_ids("digits", digits, mark)
    same = digits[:, :, None] == digits[:, None, :]             # [B, L, L]
    occurrence = same.tril().sum(dim=2)  # 1 for the first
    return digits.masked_fill(occurrence % 2 == 0, mark).flip(1)


def reversal_batch(
    batch_size: int, length: int, n_digits: int = 10, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Random digit sequences and what the toy task makes of them.

    Args:
        batch_size: number of sequences B.
        length: digits in a sequence, L.
        n_digits: how many digits there are; X is token n_digits, the start token n_digits + 1.
        generator: the source of randomness; `None` for torch's own.

    Returns:
        inputs `[B, L]`, and outputs `[B, L + 1]` that begin with the start token and hold no end
        token.

    Raises:
        TypeError: a size is not an int, or `generator` is none.
        ValueError: a size is below 1.
    """
    check_size(batch_size=batch_size, length=length, n_digits=n_digits)
    check_type((torch.Generator, type(None)), generator=generator)
    inputs = torch.randint(n_digits, (batch_size, length), generator=generator)
    start = torch.full((batch_size, 1), n_digits + 1)
    return inputs, torch.cat([start, reverse_and_mark(inputs, n_digits)], dim=1)


# %% book/09-toy-task.ipynb · A small model · [toy-config]
def toy_config(n_digits: int = 10, **changes: Any) -> TransformerConfig:
    """The configuration of a toy model: 2+2 layers of width 128.

    Args:
        n_digits: how many digits there are; after them come X, the start, the end and the padding
            token.
        **changes: fields of `TransformerConfig` that are to differ.

    Raises:
        TypeError, ValueError: as in `TransformerConfig`.
    """
    check_size(n_digits=n_digits)
    size = n_digits + 4
    sizes = dict(
        src_vocab_size=size,
        tgt_vocab_size=size,
        d_model=128,
        n_heads=8,
        n_layers=2,
        d_ff=256,
        max_length=64,
    )
    ids = dict(bos_id=n_digits + 1, eos_id=n_digits + 2, pad_id=n_digits + 3)
    return TransformerConfig(**sizes | ids | changes)


# %% book/09-toy-task.ipynb · Training · [reversal-batches]
def reversal_batches(
    epoch: int, batch_size: int = 32, length: int = 10, per_epoch: int = 500, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch's worth of fresh batches, the same ones for the same epoch and seed.

    Args:
        epoch: number of the epoch, counted from 0.
        batch_size: sequences in a batch.
        length: digits in a sequence.
        per_epoch: batches in an epoch.
        seed: of the whole stream; streams of different seeds are different.

    Raises:
        TypeError: a number is not an int.
        ValueError: a size is below 1, or `epoch` or `seed` negative.
    """
    check_size(per_epoch=per_epoch)
    check_size(minimum=0, epoch=epoch, seed=seed)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    for _ in range(per_epoch):
        yield reversal_batch(batch_size, length, generator=generator)


def exact_match(
    model: Transformer, n_sequences: int = 10_000, length: int = 10, seed: int = 10_000
) -> dict[str, float]:
    """Decode unseen sequences greedily and compare.

    Args:
        model: a trained toy model.
        n_sequences: how many sequences to decode.
        length: digits in a sequence.
        seed: of the sequences.

    Returns:
        `"sequences"`, the share of sequences without a fault, and `"tokens"`, the share of right
        tokens.

    Raises:
        TypeError: `model` is no module, or a number not an int.
        ValueError: a number is out of its range.
    """
    check_type(nn.Module, model=model)
    check_size(n_sequences=n_sequences, length=length)
    check_size(minimum=0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    device = next(model.parameters()).device
    inputs, outputs = reversal_batch(n_sequences, length, model.config.bos_id - 1, generator)
    decoded = torch.cat(
        [greedy_search(model, part.to(device), length).cpu() for part in inputs.split(1000)]
    )
    right = decoded == outputs[:, 1:]
    return {
        "sequences": right.all(dim=1).double().mean().item(),
        "tokens": right.double().mean().item(),
    }


# %% book/09-toy-task.ipynb · Training · [toy-recipe]
@dataclass(frozen=True)
class ToyRecipe:
    """How a toy model is trained.

    Args:
        steps: number of updates.
        batch_size: sequences in a batch.
        length: digits in a sequence.
        norm_first, dropout: as in `TransformerConfig`.
        warmup_steps, factor: as in `noam_rate`.
        cooldown: the share of the run over which the learning rate falls to 0 at the end.
        evaluate_every: updates between two evaluations, on 1,000 sequences of a seed of their own.
        seed: of weights, data and dropout.
    """

    steps: int = 30_000
    batch_size: int = 32
    length: int = 10
    norm_first: bool = True
    dropout: float = 0.0
    warmup_steps: int = 2000
    factor: float = 0.5
    cooldown: float = 0.5
    evaluate_every: int = 500
    seed: int = 0

    def schedule(self, step: int, d_model: int) -> float:
        """The learning rate of update `step`."""
        rate = noam_rate(step, d_model, self.warmup_steps, self.factor)
        return rate * cooldown(step, self.steps, self.cooldown)


# %% book/09-toy-task.ipynb · Training · [train-toy]
def train_toy(
    recipe: ToyRecipe,
    directory: Path | str | None = None,
    device: torch.device | str = "cpu",
    progress: bool = False,
    max_minutes: float | None = None,
) -> Trainer:
    """Train a toy model as a recipe says; stopped and called again with the same directory, it goes
    on.

    Args:
        recipe: what to do.
        directory: where log and checkpoints go; `None` for nowhere.
        device: to train on.
        progress: whether to show a progress bar.
        max_minutes: as in `Trainer.fit`.

    Returns:
        the trainer, with the trained model as `.model`.

    Raises:
        TypeError, ValueError: the recipe is none, an entry of it is out of its range, or there is no
            such device.
    """
    check_type(ToyRecipe, recipe=recipe)
    check_size(minimum=0, seed=recipe.seed)
    device = check_device(device)
    torch.manual_seed(recipe.seed)
    config = toy_config(norm_first=recipe.norm_first, dropout=recipe.dropout)
    return Trainer(
        Transformer(config).to(device),
        loss=partial(teacher_forced_loss, smoothing=0.0),
        batches=partial(
            reversal_batches, batch_size=recipe.batch_size, length=recipe.length, seed=recipe.seed
        ),
        schedule=partial(recipe.schedule, d_model=config.d_model),
        config=TrainingConfig(
            recipe.steps,
            clip_norm=5.0,
            seed=recipe.seed,
            evaluate_every=recipe.evaluate_every,
            monitor="sequences",
        ),
        directory=directory,
        evaluate=partial(exact_match, n_sequences=1000, length=recipe.length, seed=20_000),
        progress=progress,
    ).fit(max_minutes)


# %% book/09-toy-task.ipynb · The full run, on record · [toy-record]
def toy_record(trainer: Trainer, recipe: ToyRecipe) -> dict[str, Any]:
    """What the book keeps of a finished toy run.

    Args:
        trainer: what `train_toy` returned.
        recipe: what it was given.

    Returns:
        the facts of `run_facts`, the recipe, the curve of evaluations, and the score on 10,000
        unseen sequences.
    """
    curve = [entry for entry in trainer.history if "sequences" in entry]
    test = exact_match(trainer.model, length=recipe.length)
    return run_facts(trainer.device) | {"recipe": asdict(recipe), "curve": curve, "test": test}


def load_toy_model() -> Transformer:
    """The toy model whose recorded run this chapter reports, in evaluation mode."""
    recipe = ToyRecipe(**load_record("toy")["recipe"])
    model = Transformer(toy_config(norm_first=recipe.norm_first, dropout=recipe.dropout))
    load_weights(model, record_path("toy.safetensors"))
    return model.eval()
