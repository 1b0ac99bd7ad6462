"""The checks at the entries: what passes, what is refused, and what a refusal says."""

from __future__ import annotations

import sys

import pytest
import torch
from helpers import refuses
from hypothesis import given
from hypothesis import strategies as st

from transformer.validation import (
    check_choice,
    check_ids,
    check_range,
    check_type,
    is_traced,
    optional_import,
)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (bool, None, "x must be a bool, not NoneType (None)"),
        (int, True, "x must be an int, not bool (True)"),
        ((int, float), "1", "x must be a number, not str ('1')"),
        ((list, tuple), {}, "x must be a list or tuple, not dict ({})"),
    ],
)
def test_a_wrong_kind_is_named_with_the_right_one(kind, value, said):
    with refuses(TypeError, said):
        check_type(kind, x=value)


def test_a_choice_is_one_of_those_offered():
    check_choice(("mean", "sum"), reduction="sum")
    with refuses(ValueError, "reduction must be one of ['mean', 'sum'], not 'max'"):
        check_choice(["mean", "sum"], reduction="max")
    with refuses(ValueError, "reduction must be one of ['mean'], not []"):
        check_choice({"mean": 1}, reduction=[])  # cannot be asked of a dict


# -------------------------------------------------------------------------------------------------
# Token ids
# -------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-3, 12), min_size=1, max_size=8))
def test_ids_pass_inside_the_vocabulary_only(row):
    ids = torch.tensor([row])
    outside = [i for i in row if not 0 <= i < 10]
    if not outside:
        check_ids("tgt", ids, vocab_size=10)
        return
    wrong = min(row) if min(row) < 0 else max(row)
    with refuses(IndexError, f"tgt must lie in [0, 10), but holds {wrong}"):
        check_ids("tgt", ids, vocab_size=10)


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


# -------------------------------------------------------------------------------------------------
# Libraries
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no_such_library", "no_such_library.part"])
def test_a_missing_library_is_named_with_its_cure(name):
    said = "this needs the library no_such_library: pip install no_such_library"
    with refuses(ImportError, said) as refusal:
        optional_import(name)
    assert isinstance(refusal.value.__cause__, ModuleNotFoundError)


def test_a_library_of_an_extra_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # as if it were not installed
    said = 'this needs the library tokenizers: pip install "transformer-book[text]"'
    with refuses(ImportError, said):
        optional_import("tokenizers")
