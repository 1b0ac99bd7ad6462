"""transformer.study.equality, from book/01-gradients.ipynb, "Gradients".

Written by book/tangle.py: change the chapter, then run ``make tangle``; what is edited here is lost.
"""

__all__ = ["show_equal"]


# %% book/01-gradients.ipynb · A worked example · [show-equal]
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def _gaps(actual: Any, expected: Any) -> Iterator[Tensor]:
    if isinstance(expected, Mapping):
        for name in expected:
            yield from _gaps(actual[name], expected[name])
    elif isinstance(expected, Sequence):
        for pair in zip(actual, expected, strict=True):
            yield from _gaps(*pair)
    else:
        a, b = (torch.as_tensor(value, dtype=torch.float64).cpu() for value in (actual, expected))
        yield torch.where(a == b, 0.0, (a - b).detach().abs())  # equal infinities are not apart


def show_equal(label: str, actual: Any, expected: Any, **tolerance: Any) -> None:
    """Compare by `torch.testing.assert_close`; print how many numbers agree, and how closely.

    Args:
        label: what the line says, such as "equal to torch.nn".
        actual: a number, a tensor, or a mapping or sequence of them.
        expected: what `actual` should be, in the same form.
        tolerance: of `assert_close`, as `rtol` and `atol`.

    Raises:
        AssertionError: they differ by more than the tolerance.
    """
    torch.testing.assert_close(actual, expected, **tolerance)
    gaps = list(_gaps(actual, expected))
    largest = max((gap.max().item() for gap in gaps if gap.numel()), default=0.0)
    numbers = sum(gap.numel() for gap in gaps)
    print(f"✓ {label}: {numbers:,} number{'s' * (numbers != 1)}, largest difference {largest:.1g}")
