"""The recorded run with the real programs: in small it agrees as well; the record says what was compared."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import agreement
from transformer.training import load_record


@pytest.fixture(scope="module")
def data():
    return agreement.Data(n_sentences=3)


@torch.no_grad()
def test_torch_nn_agrees(data):
    row = agreement.torch_nn(data)
    assert row["float32"] < 1e-4 and row["float64"] < 1e-12
    assert row["greedy"]["equal tokens"] == row["greedy"]["tokens"] > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "libraries"),
    [
        ("marian", ["transformers"]),
        ("m2m100", ["transformers"]),
        ("ctranslate2", ["ctranslate2"]),
        ("onnx", ["onnx", "onnxscript", "onnxruntime"]),
        ("llama", ["transformers"]),
    ],
)
@pytest.mark.filterwarnings("ignore")  # what other programs have to say of themselves
def test_the_others_agree(name, libraries, data):
    for library in libraries:
        pytest.importorskip(library, reason=f"{library} is not installed: transformer-book[interchange]")
    more = {"marian": lambda: [agreement.trained(data, 3)], "llama": lambda: [3], "m2m100": lambda: [3]}
    with torch.no_grad():
        row = getattr(agreement, name)(data, *more.get(name, list)())
    assert row["float32"] < 1e-3 and row["largest"] > 0.1
    assert row.get("float64, theirs exact", 0) < 1e-12
    assert row["greedy"]["equal tokens"] == row["greedy"]["tokens"] > 10


def test_equal_tokens_are_counted_place_by_place():
    found = agreement.equal([[1, 2, 3], [4]], [[1, 5, 3, 6], [4]])
    assert found == {"sentences": 2, "equal sentences": 1, "tokens": 4, "equal tokens": 3}


def test_the_record_has_a_row_for_each_program():
    record = load_record("agreement")
    assert record["sentences"] == agreement.SENTENCES and record["beam"] == agreement.BEAM
    assert [row["library"] for row in record["rows"]] == [
        "torch.nn",
        "Hugging Face Marian",
        "Hugging Face M2M-100",
        "CTranslate2",
        "ONNX Runtime",
        "Hugging Face Llama",
    ]
    assert all(row["greedy"]["sentences"] == record["sentences"] for row in record["rows"])
