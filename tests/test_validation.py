"""The checks at the entries: what passes, what is refused, and what a refusal says."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from helpers import refuses
from hypothesis import given
from hypothesis import strategies as st

from transformer.validation import (
    check_choice,
    check_device,
    check_ids,
    check_memory,
    check_number,
    check_range,
    check_rate,
    check_size,
    check_type,
    is_traced,
    optional_import,
)

# -------------------------------------------------------------------------------------------------
# Sizes and rates
# -------------------------------------------------------------------------------------------------


@given(st.integers(-5, 5), st.integers(-10, 10))
def test_a_size_passes_from_its_minimum_on(minimum, size):
    if size >= minimum:
        check_size(minimum, d_model=size)
    else:
        with refuses(ValueError, f"d_model must be at least {minimum}, but is {size}"):
            check_size(minimum, d_model=size)


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, 2, math.inf, math.nan])
def test_rates_outside_are_refused(rate):
    with refuses(ValueError, f"dropout must lie in [0, 1), but is {rate}"):
        check_rate(attention_dropout=0.5, dropout=rate)


@pytest.mark.parametrize("number", [-1e-5, math.inf, -math.inf, math.nan])
def test_other_numbers_are_refused(number):
    with refuses(ValueError, f"weight_decay must be finite and at least 0, but is {number}"):
        check_number(weight_decay=number)


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
# Vectors
# -------------------------------------------------------------------------------------------------


def test_a_memory_has_a_row_for_every_target():
    tgt = torch.zeros(2, 5, dtype=torch.long)
    check_memory(torch.zeros(2, 7, 4), tgt, 4)
    with refuses(ValueError, "tgt and memory must have the same batch size, not 2 and 1"):
        check_memory(torch.zeros(1, 7, 4), tgt, 4)


def test_a_device_is_one_that_can_hold_something():
    assert check_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"^device 'toaster' cannot be used here: "):
        check_device("toaster")


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


def test_a_range_has_any_shape():
    check_range("numbers", torch.tensor(4), 5)
    with refuses(IndexError, "numbers must lie in [0, 5), but holds 5"):
        check_range("numbers", torch.tensor([[[5]]]), 5)


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
