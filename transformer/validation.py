"""transformer.validation, from book/02-embedding.ipynb, "Tokens and positions".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["check_size", "check_rate", "check_features", "check_ids", "optional_import"]


# %% book/02-embedding.ipynb · What every public door checks · [check-numbers]
import importlib
from types import ModuleType

import torch
from torch import Tensor


def check_size(minimum: int = 1, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least `minimum`.

    Args:
        minimum: the smallest size allowed.
        **sizes: the sizes to check, each under the name that the message will show.

    Raises:
        TypeError: a size is not an `int`.
        ValueError: a size is below `minimum`.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be an int, not {type(size).__name__} ({size!r})")
        if size < minimum:
            raise ValueError(f"{name} must be at least {minimum}, but is {size}")


def check_rate(**rates: float) -> None:
    """Refuse probabilities outside [0, 1), such as a dropout rate of 1.

    Args:
        **rates: the rates to check, each under the name that the message will show.

    Raises:
        TypeError: a rate is not a number.
        ValueError: a rate is outside [0, 1).
    """
    for name, rate in rates.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise TypeError(f"{name} must be a number, not {type(rate).__name__} ({rate!r})")
        if not 0 <= rate < 1:
            raise ValueError(f"{name} must lie in [0, 1), but is {rate}")


# %% book/02-embedding.ipynb · What every public door checks · [check-tensors]
def check_features(name: str, x: Tensor, features: int, rank: int | None = 3) -> None:
    """Refuse anything but a floating-point tensor of `rank` axes, the last with `features` entries.

    Args:
        name: what the message calls the tensor.
        x: the tensor.
        features: size of the last axis.
        rank: number of axes; `None` for any number from 1.

    Raises:
        TypeError: `x` is not a tensor of floating-point numbers.
        ValueError: `x` has another number of axes, or another last axis.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = getattr(x, "dtype", type(x).__name__)
        raise TypeError(f"{name} must be a floating-point tensor, not {kind}")
    if x.dim() != (rank or max(1, x.dim())) or x.size(-1) != features:
        axes = "at least 1 axis" if rank is None else f"{rank} axes"
        shape = list(x.shape)
        raise ValueError(f"{name} must have {axes}, the last of size {features}, not shape {shape}")


def check_ids(name: str, ids: Tensor, vocab_size: int, always: bool = False) -> None:
    """Refuse anything but a `[B, T]` tensor of token ids below `vocab_size`.

    Looking at the values of a tensor on an accelerator would make the host wait for it, so they are
    checked on the CPU only, and not while `torch.compile` or `torch.export` traces.

    Args:
        name: what the message calls the ids.
        ids: the token ids.
        vocab_size: number of tokens.
        always: whether to look at the values wherever they are.

    Raises:
        TypeError: `ids` is not a tensor of `torch.long`.
        ValueError: `ids` does not have two axes.
        IndexError: an id is negative, or not below `vocab_size`.
    """
    if not isinstance(ids, Tensor) or ids.dtype != torch.long:
        kind = getattr(ids, "dtype", type(ids).__name__)
        raise TypeError(f"{name} must be a torch.long tensor, not {kind}")
    if ids.dim() != 2:
        raise ValueError(f"{name} must have shape [batch, length], not {list(ids.shape)}")
    if torch.compiler.is_compiling() or not (always or ids.device.type == "cpu"):
        return
    if ids.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(ids))
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise IndexError(f"{name} must lie in [0, {vocab_size}), but holds {wrong}")


# %% book/02-embedding.ipynb · What every public door checks · [optional-import]
def optional_import(name: str) -> ModuleType:
    """Import a library that only a part of the package needs, or say how to get it.

    Args:
        name: the library's import name, such as `"matplotlib.pyplot"`.

    Returns:
        The imported module.

    Raises:
        ImportError: the library is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        library = name.partition(".")[0]
        raise ImportError(f"this needs the library {library}: pip install {library}") from error
