"""The measurement behind Chapter 15's tables: each row changes what its name says, and nothing else."""

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from experiments import since_2017 as bench
from transformer.training import load_record


def kinds(model: nn.Module) -> Counter:
    """How many modules of each type a model has."""
    return Counter(type(module).__name__ for module in model.modules())


def built(row: str) -> nn.Module:
    return bench.build(bench.ROWS[row], vocab_size=12)


def n_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("row", bench.ROWS)
def test_a_row_has_about_as_many_parameters_as_2017(row):
    assert abs(n_parameters(built(row)) / n_parameters(built("2017")) - 1) < 0.03


@pytest.mark.parametrize(
    ("row", "gone", "come"),
    [
        ("rms", "LayerNorm", "RMSNorm"),
        ("gate", "FeedForward", "GatedFeedForward"),
        ("rotary", "SinusoidalEmbedding", "Embedding"),
        ("alibi", "SinusoidalEmbedding", "Embedding"),
        ("prefix", "LanguageModel", "PrefixModel"),
    ],
)
def test_a_row_puts_a_part_in_the_place_of_another(row, gone, come):
    before, after = kinds(built("2017")), kinds(built(row))
    assert before[gone] and not after[gone]
    assert after[come] > before[come]


def test_schedules_begin_in_the_warm_up_and_end_as_they_say():
    at = lambda step, *changes: bench.shape(step, 100, 10, changes)
    for changes in ((), ("wsd",), ("cooled",)):
        assert at(5, *changes) == pytest.approx(0.5) and at(10, *changes) == pytest.approx(1.0)
    assert at(40) == pytest.approx(0.5)  # the square root of the warm-up's share
    assert at(60, "wsd") == pytest.approx(1.0)
    assert at(100, "wsd") < 0.1 and at(100, "cooled") < 0.1 < at(100)


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


def test_the_pair_reads_the_same_sequences():
    torch.manual_seed(0)
    logits, answer = bench.answers(bench.encoder_decoder(), bench.reversals(3))
    assert logits.shape[:2] == answer.shape == (3, bench.DIGITS)


@pytest.fixture
def record(tmp_path, monkeypatch) -> Path:
    """A record that is not there yet, of tasks with two updates."""
    whole = bench.task
    monkeypatch.setattr(bench, "RECORD", tmp_path / "since.json")
    monkeypatch.setattr(bench, "task", lambda name: replace(whole(name), steps=2, warmup=1))
    return tmp_path / "since.json"


def measure(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["since_2017", *arguments])
    bench.main()


@pytest.mark.slow
def test_a_record_grows_by_what_it_lacks(record, monkeypatch):
    measure(monkeypatch, "rms", "--seeds", "1", "--task", "toy")
    (first,) = json.loads(record.read_text())["runs"]
    measure(monkeypatch, "rms", "longer", "--seeds", "1", "--task", "toy")
    assert json.loads(record.read_text())["runs"][0] == first  # not run again
    measure(monkeypatch, "rms", "--seeds", "1", "--peak", "2")
    runs = json.loads(record.read_text())["runs"]
    assert [bench.identity(entry) for entry in runs] == [
        ("toy", "rms", 0, 1.0), ("toy", "longer", 0, 1.0), ("letters", "rms", 0, 2.0)
    ]  # fmt: skip
    assert {"tokens", "sequences"} < runs[0].keys() and {"loss", "loss_long", "loss_dev"} < runs[2].keys()


def test_rates_are_chosen_on_the_development_split_by_one_seed_of_three(record, monkeypatch):
    best = {"rms": 1.0, "gate": 8.0}  # beyond what is tried at first, on either side

    def run(on, name, seed, factor):
        loss = abs(math.log2(factor / best[name]))
        scores = {"loss_dev": loss, "loss": -loss}  # the test split would choose otherwise
        return {"task": on, "row": name, "seed": seed, "peak": factor, **scores}

    monkeypatch.setattr(bench, "run", run)
    measure(monkeypatch, "rms", "gate", "--choose")
    entries = json.loads(record.read_text())["runs"]
    for name, factor in best.items():
        at_best = {entry["seed"] for entry in entries if (entry["row"], entry["peak"]) == (name, factor)}
        assert at_best == {bench.CHOOSER, 0, 1}
    tried = {name: {entry["peak"] for entry in entries if entry["row"] == name} for name in best}
    assert tried == {"rms": {0.5, 1.0, 2.0, 4.0}, "gate": {2.0, 4.0, 8.0, 16.0}}


def test_the_record_has_three_seeds_of_each_row_at_the_rates_that_one_of_them_chose():
    runs = [entry for entry in load_record("since-2017")["runs"] if entry["task"] == "letters"]
    for row in bench.task("letters").rows:
        tried = {e["peak"]: e["loss_dev"] for e in runs if (e["row"], e["seed"]) == (row, bench.CHOOSER)}
        best = min(tried, key=tried.__getitem__)
        assert min(tried) < best < max(tried)
        assert {e["seed"] for e in runs if (e["row"], e["peak"]) == (row, best)} >= {0, 1, bench.CHOOSER}
