"""Checks beside those of test_bad_input.py: where values are looked at."""

import torch

from transformer.validation import check_ids, check_range, is_traced


def test_values_on_other_devices_are_looked_at_only_when_asked():
    elsewhere = torch.zeros(2, 3, dtype=torch.long, device="meta")  # has no values to look at
    check_ids("src", elsewhere, vocab_size=1)


def test_values_that_stand_for_others_are_not_looked_at():
    seen = []

    def look(ids: torch.Tensor) -> torch.Tensor:
        seen.append(is_traced(ids))
        check_range("ids", ids, 1)
        return ids

    torch.func.vmap(look)(torch.tensor([[0], [7]]))
    assert seen == [True] and not is_traced(torch.tensor([0]))
