"""The measurement behind Chapter 15's tables: each row changes what its name says, and nothing else."""

from collections import Counter

import pytest
import torch
from torch import nn

from experiments import since_2017 as bench


def built(row: str) -> nn.Module:
    return bench.build(bench.ROWS[row], vocab_size=12)


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("row", bench.ROWS)
def test_a_row_has_about_as_many_parameters_as_2017(row):
    assert abs(n_parameters(built(row)) / n_parameters(built("2017")) - 1) < 0.03


def test_muon_moves_the_matrices_of_the_layers_and_each_parameter_is_moved_once():
    model = built("2017")
    both = bench.optimizers(model, muon=True)
    moved = [p for optimizer, _ in both for group in optimizer.param_groups for p in group["params"]]
    assert Counter(map(id, moved)) == Counter(map(id, model.parameters()))
    muon = both[0][0]
    assert isinstance(muon, torch.optim.Muon)
    assert all(p.dim() == 2 for p in muon.param_groups[0]["params"])


def influence(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Whether a changed token changes the logits at a place, `[place, token]`."""
    with torch.no_grad():
        model.eval()
        seen = torch.zeros(ids.size(1), ids.size(1), dtype=torch.bool)
        for token in range(ids.size(1)):
            other = ids.clone()
            other[:, token] = (ids[:, token] + 1) % 12
            seen[:, token] = (model(other) - model(ids)).abs().amax(dim=(0, 2)) > 1e-6
    return seen


def test_a_prefix_sees_all_of_itself_and_nothing_later():
    torch.manual_seed(0)
    ids = bench.reversals(2)[:, :-1]
    places = torch.arange(ids.size(1))
    causal = places[:, None] >= places
    assert torch.equal(influence(built("2017"), ids), causal)
    prefix = (places[:, None] <= bench.DIGITS) & (places <= bench.DIGITS)
    assert torch.equal(influence(built("prefix"), ids), causal | prefix)
