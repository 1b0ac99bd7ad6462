"""The line that a check by value prints."""

from __future__ import annotations

import math

import pytest
import torch

from transformer.study.equality import show_equal


def test_says_how_many_numbers_agree_and_how_far_the_worst_is_off(capsys):
    ours = {"w": [torch.ones(2, 3), torch.zeros(4)], "b": 1.0}
    theirs = {"b": 1.0 + 3e-9, "w": [torch.ones(2, 3), torch.zeros(4)]}
    show_equal("equal to theirs", ours, theirs, rtol=0, atol=1e-8)
    assert capsys.readouterr().out == "✓ equal to theirs: 11 numbers, largest difference 3e-09\n"


def test_equal_to_the_last_bit_is_zero_also_at_infinity(capsys):
    ids = torch.tensor([1, 2])
    show_equal("same", [ids, torch.tensor([-math.inf, math.inf])], [ids, torch.tensor([-math.inf, math.inf])])
    assert capsys.readouterr().out == "✓ same: 4 numbers, largest difference 0\n"


@pytest.mark.parametrize("expected", [1.1, torch.tensor([1.0, 1.0]), math.nan, [1.0]])
def test_what_differs_is_refused_and_prints_nothing(expected, capsys):
    with pytest.raises((AssertionError, TypeError)):
        show_equal("equal", 1.0, expected)
    assert capsys.readouterr().out == ""
