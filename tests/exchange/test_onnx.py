"""The exported graphs: run by another program, they find what `greedy_search` finds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from transformer import Transformer, TransformerConfig, greedy_search, load_toy_model
from transformer.exchange.engines import to_onnx

PAGE = Path(__file__).resolve().parents[2] / "book" / "under-the-hood" / "exchange.md"


@pytest.fixture(scope="module")
def graph_search():
    """The loop as the book shows it."""
    _, _, rest = PAGE.read_text(encoding="utf8").partition("```python\nimport numpy")
    shown: dict = {}
    exec("import numpy" + rest.partition("\n```")[0], shown)
    return shown["graph_search"]


def model_of(form: str) -> Transformer:
    if form == "toy":
        return load_toy_model()
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_heads": 2, "n_layers": (2, 3), "d_ff": 24, "max_length": 20}
    choices = {"norm_first": True, "activation": "silu", "bias": False, "tie_embeddings": False}
    special = {"pad_id": 1, "bos_id": 0, "eos_id": 5}
    return Transformer(TransformerConfig(11, 17, **sizes, **choices, **special)).eval()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["toy", "other settings"])
@pytest.mark.filterwarnings("ignore")  # what an exporter has to say of itself
def test_the_runtime_finds_what_greedy_search_finds(form, graph_search, tmp_path):
    for library in ("onnx", "onnxscript"):
        pytest.importorskip(library, reason=f"{library} is not installed: transformer-book[interchange]")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = model_of(form)
    to_onnx(model, tmp_path)
    encoder, decoder = (
        runtime.InferenceSession(tmp_path / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("encoder", "decoder")
    )
    names = [value.name for value in decoder.get_inputs()]
    assert names == ["last", "mask", "cross", "own"]

    def read(src):
        return encoder.run(None, {"src": src})

    def write(*given):
        return decoder.run(None, dict(zip(names, given)))

    draw = torch.Generator().manual_seed(1)
    for batch, length in ((1, 1), (1, 7), (5, 12)):
        src = torch.randint(6, 10, (batch, length), generator=draw)
        if length > 5:
            src[-1, 5:] = model.config.pad_id
        found = graph_search(read, write, src.numpy(), 15, model.config)
        assert found.tolist() == greedy_search(model, src, 15).tolist()
