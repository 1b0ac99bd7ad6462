"""`grade`: three students, of whom one is right, one has a mistake, and one hangs and ends the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from transformer.__main__ import main
from transformer.study.workbook import pieces

MASK, CAUSAL = (pieces()[f"03-attention/{name}"] for name in ("padding_mask", "causal_mask"))
WRONG = MASK.code.replace("!= pad_id", "== pad_id")


def hand_in(path: Path, *cells: tuple[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [
        {"cell_type": "code", "metadata": {"workbook": [key]} if key else {}, "source": [code]}
        for key, code in cells
    ]
    path.write_text(json.dumps({"cells": made}), encoding="utf8")
    return path


@pytest.mark.slow
def test_a_piece_that_hangs_or_ends_its_process_is_told_and_the_others_are_judged(tmp_path, capsys):
    key = "03-attention/scaled_dot_product_attention"
    outside = ("", "raise SystemExit(9)")  # a cell of no piece does not run
    right = hand_in(
        tmp_path / "ana" / "03-attention.ipynb", outside, (MASK.key, MASK.code), (CAUSAL.key, CAUSAL.code)
    )
    one = hand_in(tmp_path / "ben" / "03-attention.ipynb", (MASK.key, WRONG), (CAUSAL.key, CAUSAL.code))
    ends = (key, "import os; print('spoiled'); os._exit(3)")
    blank = "def causal_mask(length):\n    raise NotImplementedError"
    hanging = (MASK.key, "def padding_mask(ids, pad_id=0):\n    while True: pass")
    both = hand_in(tmp_path / "cat" / "03-attention.ipynb", ends, hanging, (CAUSAL.key, blank))
    assert main(["grade", str(right), str(one), str(both), "--seconds", "30"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split() for line in said[:5]] == [
        ["ana", "ben", "cat"],
        [MASK.key, "✓", "✗", "✗"],
        [CAUSAL.key, "✓", "✓", "○"],
        [key, "✗"],
        ["right", "2", "of", "2", "1", "of", "2", "0", "of", "3"],
    ]
    assert len({line.rindex(mark) for line, mark in zip(said, ("cat", "✗", "○", "✗", "3"))}) <= 3
    assert f"✗ ben, {MASK.key}: your mask hides what may be seen: True means may attend" in said
    assert f"✗ cat, {key}: its process ended with status 3" in said
    assert f"✗ cat, {MASK.key}: did not end within 30 s" in said


@pytest.mark.slow
def test_notebooks_of_one_chapter_in_one_folder_are_students(tmp_path, capsys):
    paths = [hand_in(tmp_path / f"{name}.ipynb", (MASK.key, MASK.code)) for name in ("ana", "ben")]
    assert main(["grade", *map(str, paths)]) == 0
    assert capsys.readouterr().out.split()[:2] == ["ana", "ben"]


def test_what_is_no_notebook_of_the_workbook_is_told(tmp_path, capsys):
    (tmp_path / "damaged.ipynb").write_text("{", encoding="utf8")
    other = hand_in(tmp_path / "other.ipynb", ("", "1 + 1"))
    missing = tmp_path / "missing.ipynb"
    assert main(["grade", str(tmp_path / "damaged.ipynb"), str(other), str(missing)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 3 and all(line.endswith("is no notebook of the workbook") for line in said)
