"""Checks beside those of test_bad_input.py: where values are looked at, and which library is missing."""

from __future__ import annotations

import sys

import pytest
import torch
from helpers import refuses

from transformer.validation import (
    check_ids,
    check_range,
    is_traced,
    optional_import,
)


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
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    with pytest.raises(ImportError, match="this needs the library tokenizers: pip install tokenizers, or "):
        optional_import("tokenizers")
