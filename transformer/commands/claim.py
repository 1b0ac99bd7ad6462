"""A command has its run's folder, and the memory that its model takes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
import torch
from transformer.commands.recipes import Recipe, read_recipe, settings
from transformer.commands.terminal import tell
from transformer.runs.folder import RunFolder

__all__ = ["check_folder", "claimed", "memory_of", "check_room"]


# What a run, or something else, has left that must not be written over.
_WORK = ("best.pt", "model.safetensors", "vocabulary.json", "record.json", "translator", "curves.png")


def check_folder(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder that holds another run, or something else that training would write over.

    More steps than before may be asked for, and the same texts may lie elsewhere; any other setting must be
    as it was.

    Raises:
        ValueError: it holds a run of another recipe, and the message names the first setting that
            differs; checkpoints without a recipe, or results without checkpoints; or a
            `config.json` that is no recipe.
    """
    config, elsewhere = folder / "config.json", "name another --directory"
    checkpoints = RunFolder(folder).checkpoints()
    for name in () if checkpoints else _WORK:
        if (folder / name).exists():
            raise ValueError(
                f"{folder} holds {name}, but no checkpoint of a run to go on from: "
                f"{elsewhere}, or move it away"
            )
    if not config.exists():
        if checkpoints:
            raise ValueError(
                f"{folder} holds checkpoints, but no config.json that tells their recipe: "
                f"put it back, or {elsewhere}"
            )
        return
    try:
        begun = read_recipe(config)
    except ValueError as error:
        raise ValueError(f"{error}: {elsewhere}, or move it away") from None
    before, asked = (settings(one) | getattr(one.data, "identity", {}) for one in (begun, recipe))
    raised = before["steps"] < asked["steps"]
    for name in before | asked:
        there, here = before.get(name), asked.get(name)
        if there != here and not (name == "steps" and raised):
            raise ValueError(
                f"{folder} holds a run with {name} = {there}, and {name} = {here} is asked "
                f"for: {elsewhere}, or go on with --config {config}"
            )
    if checkpoints:
        step = int(checkpoints[-1].stem.rpartition("-")[2])
        more = f", raised from {before['steps']:,}" if raised else ""
        tell(f"going on from step {step:,} of {asked['steps']:,}{more}")


@contextmanager
def claimed(folder: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Keep the folder of a run to this process, and refuse it where `check_folder` does.

    Yields:
        the folder, locked; the trainer writes the recipe into it once the run has begun or gone on.

    Raises:
        ValueError: as in `check_folder`.
        BlockingIOError: another process is training there.
    """
    run = RunFolder(folder, asdict(recipe))
    with run.locked():
        check_folder(folder, recipe)
        yield run


def memory_of(device: torch.device | str) -> int | None:
    """The bytes of memory that a device has; `None` where the system does not tell."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return None


def check_room(recipe: Recipe, device: torch.device | str = "cpu", n_shards: int = 1) -> None:
    """Refuse a model that cannot be trained in the memory of a device.

    It needs 16 bytes per parameter (weights, gradients, and two moments of Adam, each in float32), four
    more for a moving average, and about a quarter of a megabyte of Python for a layer. Batches need
    more memory still. Of `n_shards` shards a device has one, but all weights for an evaluation.

    Raises:
        ValueError: there is less memory; nothing is checked where the system does not tell.
    """
    d, (encoder, decoder) = recipe.model.d_model, recipe.model.depths
    vocab_size = getattr(recipe.data, "vocab_size", 0)
    attentions, networks = encoder + 2 * decoder, encoder + decoder
    # Biases and norms are not counted.
    parameters = vocab_size * d + attentions * 4 * d**2 + networks * 2 * d * recipe.model.d_ff
    shared_out = 16 + 4 * bool(recipe.training.average)
    whole = 4 if n_shards > 1 else 0
    needed = (shared_out / n_shards + whole) * parameters + 250_000 * networks
    memory = memory_of(device)
    if memory is not None and needed > memory:
        raise ValueError(
            f"a model of {parameters:,} parameters needs {needed / 1e9:,.0f} GB in training, but "
            f"{device} has {memory / 1e9:,.0f} GB"
        )
