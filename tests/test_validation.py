"""Checks beside those of test_bad_input.py: where values are looked at, and which library is missing."""

from __future__ import annotations

import sys

import pytest
import torch
from helpers import refuses

from transformer.validation import (
    check_choice,
    check_ids,
    check_range,
    check_size,
    is_traced,
    optional_import,
)


def test_a_choice_is_one_of_those_offered():
    check_choice(("mean", "sum"), reduction="sum")
    with refuses(ValueError, "reduction must be one of ['mean', 'sum'], not 'max'"):
        check_choice(["mean", "sum"], reduction="max")
    with refuses(ValueError, "reduction must be one of ['mean'], not []"):
        check_choice({"mean": 1}, reduction=[])  # cannot be asked of a dict


def test_a_size_may_be_its_bound_and_not_below_it():
    check_size(size=1)
    check_size(minimum=0, size=0)
    with refuses(ValueError, "size must be at least 1, but is 0"):
        check_size(size=0)
    with refuses(ValueError, "size must be at least 3, but is 2"):
        check_size(minimum=3, size=2)


def test_values_on_other_devices_are_looked_at_only_when_asked():
    elsewhere = torch.zeros(2, 3, dtype=torch.long, device="meta")  # has no values to look at
    check_ids("src", elsewhere, vocab_size=1)
    with refuses(ValueError, "src must have values, but lies on the meta device"):
        check_ids("src", elsewhere, vocab_size=1, always=True)


@pytest.mark.skipif(not hasattr(torch.func, "debug_unwrap"), reason="this torch cannot tell")
def test_values_that_stand_for_others_are_not_looked_at():
    seen = []

    def look(ids: torch.Tensor) -> torch.Tensor:
        seen.append(is_traced(ids))
        check_range("ids", ids, 1)
        return ids

    torch.func.vmap(look)(torch.tensor([[0], [7]]))
    assert seen == [True] and not is_traced(torch.tensor([0]))


def test_a_missing_library_is_named_with_its_cure(monkeypatch):
    with refuses(ImportError, "this needs the library no_such_library: pip install no_such_library"):
        optional_import("no_such_library.part")
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    with refuses(ImportError, 'this needs the library tokenizers: pip install "transformer-book[text]"'):
        optional_import("tokenizers")
