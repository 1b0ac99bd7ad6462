"""The trials of Chapter 16: their record is of the chapter's own faults, model and training."""

import pytest

from experiments.case_book import FAULTS, chapter, run
from transformer.training import load_record


@pytest.fixture(scope="module")
def names():
    return chapter()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_recorded_curve_begins_as_the_chapter_does(names, fault):
    """Ten updates: on another processor the last digits differ, and later the curves part."""
    begun = run(names, fault, seed=1, steps=10)["losses"]
    recorded = load_record("case-book")["trials"][fault]
    assert begun == [(step, pytest.approx(loss, abs=0.01)) for step, loss in recorded[1]["losses"][:1]]
    assert begun != [tuple(point) for point in recorded[0]["losses"][:1]]


@pytest.mark.slow
def test_a_fault_ends_with_its_trial(names):
    right = run(names, "right", seed=0, steps=10)
    assert run(names, "no positions", seed=0, steps=10)["losses"] != right["losses"]
    assert run(names, "right", seed=0, steps=10) == right
