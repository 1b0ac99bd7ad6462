"""A model in one file: configuration and weights come back together, and whatever else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers import make_model

from transformer import (
    Transformer,
    load_model,
    save_model,
)
from transformer.files import CheckpointError
from transformer.weights import load_weights, save_weights

safetensors = pytest.importorskip("safetensors.torch")

SRC, TGT = torch.tensor([[5, 7, 3], [6, 3, 0]]), torch.tensor([[2, 9], [2, 8]])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a model is kept."""
    return tmp_path / "model.safetensors"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_first": True, "activation": "gelu", "dropout": 0.3, "bias": False},
        {"tgt_vocab_size": 13, "tie_embeddings": False, "bos_id": 5},
    ],
    ids=["paper", "settings", "two vocabularies"],
)
def test_configuration_and_weights_come_back_from_one_file(path, changes):
    model = make_model(dtype=torch.float32, **changes)
    save_model(model, path)
    again = load_model(str(path))
    assert type(again) is Transformer and again.config == model.config
    assert not again.training and next(again.parameters()).dtype == torch.float32
    assert torch.equal(again(SRC, TGT), model.eval()(SRC, TGT))
    assert (again.output.weight is again.src_embedding.weight) == model.config.tie_embeddings


def test_a_file_may_be_halved(path):
    model = make_model(dtype=torch.float32)
    save_model(model, path)
    plain = path.read_bytes()
    save_model(model, path, torch.float16)
    assert len(path.read_bytes()) < 0.7 * len(plain)
    assert torch.allclose(load_model(path)(SRC, TGT), model.eval()(SRC, TGT), atol=0.01)


def test_the_file_serves_as_one_of_weights_too(path):
    model, other = make_model(), make_model(seed=1)
    save_model(model, path, torch.float64)
    load_weights(other, path)
    assert torch.equal(other.eval()(SRC, TGT), model.eval()(SRC, TGT))
    save_weights(model, path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors holds weights alone: .*load_weights"):
        load_model(path)


@pytest.mark.parametrize(
    ("said", "message"),
    [("[]", "its checksum is wrong"), ({"n_heads": 4}, "its checksum is wrong")],
)
def test_a_models_file_is_refused_by_name(path, said, message):
    model = make_model(dtype=torch.float32)
    save_model(model, path)
    with safetensors.safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["facts"])
    said = said if isinstance(said, str) else json.dumps(json.loads(facts["config"]) | said)
    metadata = {"facts": json.dumps(facts | {"config": said})}
    path.write_bytes(safetensors.save(safetensors.load(path.read_bytes()), metadata))
    with pytest.raises(CheckpointError, match=message) as refusal:
        load_model(path)
    assert "model.safetensors" in str(refusal.value)
    assert len(str(refusal.value)) < 500
