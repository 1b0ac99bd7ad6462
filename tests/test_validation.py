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
    check_features,
    check_ids,
    check_memory,
    check_number,
    check_place,
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


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (8.0, "n_heads must be an int, not float (8.0)"),
        ("8", "n_heads must be an int, not str ('8')"),
        (True, "n_heads must be an int, not bool (True)"),
        (None, "n_heads must be an int, not NoneType (None)"),
    ],
)
def test_a_size_is_an_int(size, said):
    with refuses(TypeError, said):
        check_size(n_heads=size)


def test_the_size_at_fault_is_the_one_named():
    with refuses(ValueError, "d_ff must be at least 1, but is 0"):
        check_size(d_model=4, d_ff=0, n_heads=2)


@pytest.mark.parametrize("rate", [0, 0.0, 0.1, 1 - 2**-53])
def test_rates_from_0_to_below_1_pass(rate):
    check_rate(dropout=rate)


@pytest.mark.parametrize("rate", [1, 1.0, -0.1, 2, math.inf, math.nan])
def test_rates_outside_are_refused(rate):
    with refuses(ValueError, f"dropout must lie in [0, 1), but is {rate}"):
        check_rate(attention_dropout=0.5, dropout=rate)


@pytest.mark.parametrize(
    ("rate", "kind"), [("0.1", "str ('0.1')"), (False, "bool (False)"), (None, "NoneType (None)")]
)
def test_a_rate_is_a_number(rate, kind):
    with refuses(TypeError, f"dropout must be a number, not {kind}"):
        check_rate(dropout=rate)


@pytest.mark.parametrize("number", [0, 0.0, 3.5, 1e300])
def test_finite_numbers_from_0_on_pass(number):
    check_number(weight_decay=number)


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_vectors_of_every_floating_dtype_pass(dtype):
    check_features("x", torch.zeros(2, 3, 4, dtype=dtype), 4)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (torch.zeros(2, 3, 4, dtype=torch.long), "torch.int64"),
        (torch.zeros(2, 3, 4, dtype=torch.bool), "torch.bool"),
        ([[[0.0]]], "list"),
        (None, "NoneType"),
    ],
    ids=["long", "bool", "list", "None"],
)
def test_vectors_are_floating_point_tensors(x, kind):
    with refuses(TypeError, f"memory must be a floating-point tensor, not {kind}"):
        check_features("memory", x, 4)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (1, 2, 3, 4), (4,), ()], ids=str)
def test_vectors_have_their_axes(shape):
    said = f"x must have 3 axes, the last of size 4, not shape {list(shape)}"
    with refuses(ValueError, said):
        check_features("x", torch.zeros(shape), 4)


def test_vectors_of_any_width_and_other_numbers_of_axes():
    check_features("weight", torch.zeros(3, 4), None, rank=2)
    with refuses(ValueError, "weight must have 2 axes, not shape [4]"):
        check_features("weight", torch.zeros(4), None, rank=2)


def test_a_memory_has_a_row_for_every_target():
    tgt = torch.zeros(2, 5, dtype=torch.long)
    check_memory(torch.zeros(2, 7, 4), tgt, 4)
    with refuses(ValueError, "tgt and memory must have the same batch size, not 2 and 1"):
        check_memory(torch.zeros(1, 7, 4), tgt, 4)


def test_a_tensor_has_the_dtype_and_the_device_of_what_it_meets():
    table = torch.zeros(3, 4)
    check_place("x", torch.zeros(2, 4), table)
    check_place("ids", torch.zeros(2, dtype=torch.long), table)
    with refuses(TypeError, "x must be of torch.float32 like the table, not of torch.float64"):
        check_place("x", torch.zeros(2, 4, dtype=torch.float64), table, "the table")
    with refuses(ValueError, "x must lie on cpu like the weights, not on meta"):
        check_place("x", torch.zeros(2, 4, device="meta"), table)


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


@pytest.mark.parametrize(
    ("ids", "kind"),
    [
        (torch.zeros(2, 3), "torch.float32"),
        (torch.zeros(2, 3, dtype=torch.int32), "torch.int32"),
        ([[1, 2]], "list"),
    ],
    ids=["float", "int32", "list"],
)
def test_ids_are_long_tensors(ids, kind):
    with refuses(TypeError, f"src must be a torch.long tensor, not {kind}"):
        check_ids("src", ids, vocab_size=10)


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)], ids=str)
def test_ids_have_two_axes(shape):
    with refuses(ValueError, f"src must have shape [batch, length], not {list(shape)}"):
        check_ids("src", torch.zeros(shape, dtype=torch.long), vocab_size=10)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)], ids=str)
def test_no_ids_are_no_wrong_ids(shape):
    check_ids("src", torch.zeros(shape, dtype=torch.long), vocab_size=1)


def test_values_on_other_devices_are_looked_at_only_when_asked():
    elsewhere = torch.zeros(2, 3, dtype=torch.long, device="meta")  # has no values to look at
    check_ids("src", elsewhere, vocab_size=1)
    with refuses(ValueError, "src must have values, but lies on the meta device"):
        check_ids("src", elsewhere, vocab_size=1, always=True)


def test_shape_and_dtype_are_checked_on_every_device():
    with pytest.raises(TypeError, match="torch.long"):
        check_ids("src", torch.zeros(2, 3, device="meta"), vocab_size=1)


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


def test_an_installed_library_is_imported():
    assert optional_import("json.decoder") is sys.modules["json.decoder"]


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
