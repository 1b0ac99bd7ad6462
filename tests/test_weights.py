"""Weights of a model: files of them, and files of other models."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small import VOCABULARY, make_model

from transformer.files import CheckpointError
from transformer.weights import load_weights, save_weights, set_weights

ROOT = Path(__file__).resolve().parents[1]
WRONG_WEIGHTS = {
    "none": None,
    "a number": 3,
    "a number for a weight": {"src_embedding.weight": 3},
    "a strange name": {"nobody.weight": torch.zeros(1)},
    "a name that is none": {3: torch.zeros(1)},
    "another shape": {"src_embedding.weight": torch.zeros(2, 2)},
    "whole numbers": {"src_embedding.weight": torch.zeros(len(VOCABULARY), 8, dtype=torch.long)},
}


@pytest.mark.parametrize("wrong", WRONG_WEIGHTS.values(), ids=WRONG_WEIGHTS)
def test_weights_that_do_not_fit_change_nothing(tmp_path, wrong):
    """Not even those that would fit: half of another model is worse than none of it."""
    model = make_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    weights = {**make_model(seed=1).state_dict(), **wrong} if isinstance(wrong, dict) else wrong
    with pytest.raises(CheckpointError, match=r"a\.pt (holds no weights|belongs to another model)"):
        set_weights(model, {"model": weights}, tmp_path / "a.pt")
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    "changes", [{"d_ff": 17}, {"n_layers": 2}, {"tie_embeddings": False}, {"bias": False}], ids=str
)
def test_another_models_file_changes_nothing(tmp_path, changes):
    save_weights(make_model(seed=1, **changes), tmp_path / "model.safetensors")
    model = make_model()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"model\.safetensors belongs to another model: "):
        load_weights(model, tmp_path / "model.safetensors")
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("dtype, atol", [(torch.float32, 0.0), (torch.float16, 1e-3)])
@pytest.mark.parametrize("tie", [True, False])
def test_weights_come_back_in_any_dtype_with_shared_tables_once(tmp_path, dtype, atol, tie):
    path = tmp_path / "model.safetensors"
    model = make_model(tie_embeddings=tie)
    save_weights(model, path, dtype)
    for p, q in zip(model.parameters(), make_model(tie_embeddings=tie).parameters()):
        assert p.dtype == torch.float32 and torch.equal(p, q)  # the model itself was not touched

    n_bytes = sum(p.numel() for p in model.parameters()) * dtype.itemsize
    assert n_bytes < path.stat().st_size < n_bytes + 8000

    other = make_model(seed=1, tie_embeddings=tie).double()
    load_weights(other, path)
    assert (other.output.weight is other.src_embedding.weight) == tie
    for p, q in zip(model.parameters(), other.parameters()):
        assert q.dtype == torch.float64 and torch.allclose(p.double(), q, rtol=0, atol=atol)


def test_weights_that_are_no_numbers_come_back_as_well(tmp_path):
    """They are a run's own: that a number differs from itself is not taken for another model."""
    model, other = make_model(), make_model(seed=1)
    with torch.no_grad():
        model.src_embedding.weight[3, 2] = math.nan
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert torch.equal(other.output.weight.isnan(), model.output.weight.isnan())
    assert other.output.weight.isnan().sum() == 1


def test_what_shares_memory_but_is_no_shared_parameter_is_written_as_well(tmp_path):
    model, other = (torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)) for _ in range(2))
    model[1].weight.data = model[0].weight.data
    model.register_buffer("a_row", model[0].weight.detach()[:1])
    other.register_buffer("a_row", torch.zeros(1, 3))
    save_weights(model, tmp_path / "model.safetensors")
    load_weights(other, tmp_path / "model.safetensors")
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_weights_too_large_for_their_format_are_refused(tmp_path):
    model, path = torch.nn.Linear(2, 2), tmp_path / "model.safetensors"
    torch.nn.init.constant_(model.weight, 1e6)
    with pytest.raises(ValueError, match="weight holds a number that is too large for torch.float16"):
        save_weights(model, path, torch.float16)
    assert not path.exists()
    model.register_buffer("nothing", torch.zeros(0))
    save_weights(model, path, torch.bfloat16)
