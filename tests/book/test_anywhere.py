"""`make anywhere`: its record is whole and free of failures, the book quotes it, and failures are noticed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import anywhere
import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = json.loads(anywhere.RECORD.read_text(encoding="utf8"))["runs"] if anywhere.RECORD.exists() else []
NOTEBOOKS = anywhere.execute.find_notebooks([])
CHAPTERS = [path.stem for path in NOTEBOOKS]


def test_conditions_are_those_that_the_book_promises():
    assert {"default", "avx2", ""} <= {condition.capability for condition in anywhere.CONDITIONS}
    assert {1, 2} <= {condition.threads for condition in anywhere.CONDITIONS}
    assert len({condition.shift for condition in anywhere.CONDITIONS}) > 10


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["processor"])
def test_recorded_runs_did_not_fail(run):
    assert run["failures"] == []
    assert run["conditions"] == [condition.name for condition in anywhere.CONDITIONS]
    assert re.fullmatch(r"[0-9a-f]{40}", run["commit"]) and run["processor"]


@pytest.mark.parametrize("processor", sorted({run["processor"] for run in RUNS}))
def test_record_has_no_chapter_twice(processor):
    chapters = [name for run in RUNS if run["processor"] == processor for name in run["chapters"]]
    assert len(chapters) == len(set(chapters)) and set(chapters) <= set(CHAPTERS)


def test_a_run_takes_the_place_of_earlier_ones_of_its_chapters(tmp_path, monkeypatch):
    monkeypatch.setattr(anywhere, "RECORD", tmp_path / "anywhere.json")
    run = lambda processor, *chapters: {
        "processor": processor,
        "chapters": dict.fromkeys(chapters, "code"),
        "failures": [{"chapter": name} for name in chapters],
    }
    for part in (run("one", "01", "02"), run("other", "01"), run("one", "02", "03"), run("one", "01")):
        anywhere.keep(part)
    runs = json.loads(anywhere.RECORD.read_text())["runs"]
    assert runs == [run("other", "01"), run("one", "02", "03"), run("one", "01")]


def test_book_quotes_the_record():
    text = " ".join((ROOT / "book" / "intro.md").read_text(encoding="utf8").split())
    assert f"all {len(CHAPTERS)} notebooks under {len(anywhere.CONDITIONS)} conditions" in text
    present = {path.stem: anywhere.code_of(nbformat.read(path, 4)) for path in NOTEBOOKS}
    covered = {name for run in RUNS for name, code in run["chapters"].items() if code == present[name]}
    how_many, whose = f"So far, {len(covered)} have", "their"
    if covered == set(CHAPTERS):
        how_many, whose = "Each of the notebooks has", "its"
    assert f"{how_many} a recorded run of {whose} present code, and in none of them did a cell fail" in text


@pytest.mark.slow
def test_what_fails_under_a_condition_is_found(tmp_path, monkeypatch):
    cells = {
        "global-seed": "import torch\ntorch.manual_seed(5)\nassert torch.initial_seed() == 5",
        "own-seed": "assert torch.Generator().manual_seed(5).initial_seed() == 5",
        "type": "assert isinstance(torch.default_generator, torch.Generator)",
        "draw": "assert torch.rand(3, generator=torch.Generator().manual_seed(1)).sum() > 0",
        "child": "import subprocess, sys\n"
        "program = 'import torch; torch.manual_seed(5); print(torch.initial_seed())'\n"
        "assert subprocess.check_output([sys.executable, '-c', program], text=True) == '5\\n'",
        "threads": "assert torch.get_num_threads() == 1",
        "kernels": "assert torch.backends.cpu.get_cpu_capability() != 'DEFAULT'",
        "text": "print('new')",
        "meant": "raise ValueError",
        "skipped": "raise ValueError",
    }
    notebook = nbformat.v4.new_notebook()
    for name, source in cells.items():
        tags = {"meant": ["raises-exception"], "skipped": ["nbval-skip"]}.get(name, [])
        notebook.cells.append(nbformat.v4.new_code_cell(source, id=name, metadata={"tags": tags}))
    chapter = tmp_path / "chapter.ipynb"
    nbformat.write(notebook, chapter)

    def failed(**changes):
        condition = anywhere.Condition("tried", **changes)
        return set(anywhere.failures(chapter, condition, timeout=120))

    assert failed() == {"text"}
    assert failed(shift=3) == {"global-seed", "own-seed", "child"}
    assert failed(threads=2, capability="default") == {"text", "threads", "kernels"}
