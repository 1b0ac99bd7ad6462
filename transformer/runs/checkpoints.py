"""transformer.runs.checkpoints, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = [
    "random_state", "set_random_state", "CHECKPOINT_FORMAT", "save_checkpoint", "DamagedCheckpointError",
    "load_checkpoint",
]


# %% book/11-long-runs.ipynb · Killed and resumed · [checkpoint-imports]
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer.files import CheckpointError, atomic_file, regular_file


# %% book/11-long-runs.ipynb · Killed and resumed · [random-state]
def random_state(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's own random generators, on the CPU and on `device`."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on with the random numbers that followed when `random_state` was called.

    Args:
        state: what it returned.
        device: the device to draw on; a state that belongs to another kind of device is left out.
    """
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)
    elif "mps" in state and device.type == "mps":
        torch.mps.set_rng_state(state["mps"])


# %% book/11-long-runs.ipynb · Killed and resumed · [save-checkpoint]
CHECKPOINT_FORMAT = "transformer-checkpoint-3"


def save_checkpoint(path: Path | str, state: dict[str, Any]) -> None:
    """Write tensors, numbers and dictionaries of them, and a checksum; whole or not at all.

    Raises:
        OSError: the file cannot be written; the message names it.
    """
    content = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **state}, content)
    content.seek(-2, io.SEEK_END)  # a zip archive may end with a comment: its length, then the text
    content.write(hashlib.sha256().digest_size.to_bytes(2, "little"))
    content.write(hashlib.sha256(content.getvalue()).digest())
    with atomic_file(path) as part:
        part.write_bytes(content.getbuffer())


# %% book/11-long-runs.ipynb · Killed and resumed · [load-checkpoint]
class DamagedCheckpointError(CheckpointError):
    """A file that has changed, of which a part is missing, or that never was a checkpoint."""


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read onto the CPU what `save_checkpoint` wrote, executing nothing.

    Args:
        path: of the file.

    Returns:
        the state.

    Raises:
        OSError: the file cannot be read; `FileNotFoundError` where there is none.
        DamagedCheckpointError: a bit of it has changed, a part is missing, or it never was a
            checkpoint; the message names it.
        CheckpointError: it is whole, but in another format.
    """
    content, size = regular_file(path).read_bytes(), hashlib.sha256().digest_size
    if hashlib.sha256(memoryview(content)[:-size]).digest() != content[-size:]:
        raise DamagedCheckpointError(f"{path} is not a whole checkpoint: its checksum is wrong")
    try:
        state: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        given = state["format"]
    except MemoryError:
        raise
    except Exception as error:  # a stranger's file can raise half a dozen types of error
        said = f"{type(error).__name__}: {str(error).strip():.200}"
        raise CheckpointError(f"{path} is not a checkpoint that can be read ({said})") from error
    if given != CHECKPOINT_FORMAT:
        wanted = f"in the format {CHECKPOINT_FORMAT!r}, but says {given!r:.60}"
        raise CheckpointError(f"{path} is not a checkpoint {wanted}")
    return dict(state)
