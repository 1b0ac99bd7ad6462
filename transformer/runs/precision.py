"""transformer.runs.precision, from book/11-long-runs.ipynb, "Long runs".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["processor", "PRECISIONS", "autocast", "best_precision", "precision_on"]


# %% book/11-long-runs.ipynb · What must stay in float32 · [precision-imports]
import platform
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from transformer.validation import check_choice, check_type


# %% book/11-long-runs.ipynb · What must stay in float32 · [processor]
_INSTRUCTIONS = {
    *("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "sve", "sve2"),
    *("avx512_bf16", "amx_bf16", "bf16", "avx512_fp16", "amx_fp16", "asimdhp"),
}


def processor() -> tuple[str, set[str]]:
    """The processor's model, and those of its instructions that decide how fast products are.

    Both come from torch, where it reports them, and from Linux; `""` for an unknown model.
    """
    told: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    names = {"avx512_f": "avx512f", "fp16_arith": "asimdhp"}
    found = {names.get(name, name) for name, value in told.items() if value is True}
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    found.update(facts.get("flags", facts.get("Features", "")).split())
    models = [facts.get("model name"), told.get("cpu_name"), platform.processor()]
    return next(filter(None, models), ""), found & _INSTRUCTIONS


# %% book/11-long-runs.ipynb · What must stay in float32 · [trainer-imports]
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


# %% book/11-long-runs.ipynb · What must stay in float32 · [autocast]
def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """A context that computes matrix products, but not sums, in `precision`, one of `PRECISIONS`.

    Raises:
        TypeError: `device` is not a `torch.device`.
        ValueError: the precision is unknown.
    """
    check_type(torch.device, device=device)
    check_choice(PRECISIONS, precision=precision)
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, PRECISIONS[precision])


# %% book/11-long-runs.ipynb · Which of the three · [best-precision]
_UNITS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},  # the last is Arm's
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}


def best_precision(device: torch.device) -> str:
    """The precision in which a device is fast, of those in which Chapter 11 trains as in float32.

    Args:
        device: to train on.

    Returns:
        `"bfloat16"` for a GPU or a processor that has units for it, `"float16"` for a GPU from 7.0 on;
        `"float32"` for everything else, Apple's `mps` included.

    Raises:
        TypeError: `device` is not a `torch.device`.
    """
    check_type(torch.device, device=device)
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        return "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"
    # We do not know what torch does with such units on a Mac.
    known = device.type == "cpu" and sys.platform != "darwin"
    return "bfloat16" if known and _UNITS["bfloat16"] & processor()[1] else "float32"


# %% book/11-long-runs.ipynb · Which of the three · [updater-parts-precision]
def precision_on(device: torch.device, precision: str) -> str:
    chosen = best_precision(device) if precision == "auto" else precision
    if device.type == "cpu" and chosen in _UNITS and not _UNITS[chosen] & processor()[1]:
        said = f"this processor has no units for {chosen} and only imitates it, which can take"
        warnings.warn(f"{said} many times as long as float32", stacklevel=4)
    return chosen
