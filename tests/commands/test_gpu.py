"""`gpu`: the right commands, in processes that cannot harm one another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import transformer.commands.gpu
from benchmarks.bench import SECTIONS
from benchmarks.bench import read_arguments as bench_arguments
from transformer.__main__ import main, parser
from transformer.commands.gpu import GPU_SECTIONS, gpu_steps
from transformer.files import read_record
from transformer.runs.folder import run_facts

ROOT = Path(__file__).parents[2]


@pytest.fixture
def device(monkeypatch, tmp_path):
    """A GPU of the imagination, which runs in `ran` what it is given; `ends` says how."""
    ran, ends = [], {}
    monkeypatch.chdir(ROOT)
    facts = run_facts("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    told = lambda device: facts | {"device": "cuda: one that is made up"}
    monkeypatch.setattr(transformer.commands.gpu, "run_facts", told)

    def run(command, timeout):
        ran.append((command, timeout))
        ending = next((ends[word] for word in ends if word in command), 0)
        if isinstance(ending, BaseException):
            raise ending
        return SimpleNamespace(returncode=ending)

    monkeypatch.setattr(subprocess, "run", run)
    return SimpleNamespace(ran=ran, ends=ends, folder=tmp_path / "gpu")


def test_each_step_is_a_command_that_its_program_understands(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tests, *benches, train = gpu_steps(Path("there"), "ted-small", 60.0)
    assert tests.arguments[:2] == ["-m", "pytest"] and (ROOT / tests.arguments[-1]).exists()
    assert [step.arguments[-1] for step in benches] == list(GPU_SECTIONS)
    assert set(GPU_SECTIONS) < set(SECTIONS)
    for step in benches:
        assert step.arguments[:2] == ["-m", "benchmarks.bench"]
        options = bench_arguments(step.arguments[2:])
        assert options.device.type == "cuda" and options.output == Path("there", "bench-cuda.json")
    assert train.arguments[:2] == ["-m", "transformer"]
    options = parser().parse_args(train.arguments[2:])
    assert (options.recipe, options.device, options.max_minutes) == ("ted-small", "cuda", 30.0)
    assert options.directory == Path("there", "ted-small")


def test_all_steps_run_one_after_the_other_and_leave_a_record(device, capsys):
    assert main(["gpu", "--directory", str(device.folder), "--max-minutes", "10"]) == 0
    wanted = [[sys.executable, *step.arguments] for step in gpu_steps(device.folder, "ted-small", 10.0)]
    assert [command for command, _ in device.ran] == wanted
    assert all(0 < timeout <= 300 for _, timeout in device.ran[:-1])  # half of the time
    assert device.ran[-1][1] == 600
    record = read_record(device.folder / "gpu.json")
    assert record["device"] == "cuda: one that is made up"
    assert [step["status"] for step in record["steps"]] == [0] * len(wanted)
    assert all(step["command"].startswith("python -m ") for step in record["steps"])
    said = capsys.readouterr().out
    assert "one that is made up" in said and f"all {len(wanted)} steps are done" in said


def test_a_step_that_fails_leaves_the_records_of_the_others(device, capsys):
    device.ends |= {
        "tests/test_cuda.py": 1,
        "levers": subprocess.TimeoutExpired("python", 5),
        "peak": OSError("no memory for a process"),
    }
    assert main(["gpu", "--directory", str(device.folder)]) == 1
    ended = {step["name"]: step["status"] for step in read_record(device.folder / "gpu.json")["steps"]}
    assert len(ended) == len(GPU_SECTIONS) + 2 == len(device.ran)
    failed = {name: status for name, status in ended.items() if status != 0}
    assert failed == {"tests": 1, "bench levers": None, "bench peak": None}
    assert "failed: tests, bench levers, bench peak" in capsys.readouterr().out


def test_what_was_recorded_stays_where_a_step_is_interrupted(device):
    device.ends["compiled"] = KeyboardInterrupt()
    assert main(["gpu", "--directory", str(device.folder)]) == 130
    names = [step["name"] for step in read_record(device.folder / "gpu.json")["steps"]]
    assert names == ["tests", "bench roofline", "bench training"]


def test_without_a_gpu_it_says_what_it_would_do(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu", "--directory", str(tmp_path / "gpu")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "only cpu" in said and "--dry-run" in said
    assert not (tmp_path / "gpu").exists()
    assert main(["gpu", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(GPU_SECTIONS) + 2
    assert lines[0] == "tests: python -m pytest -q tests/test_cuda.py"


def test_outside_of_the_book_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["gpu"]) == 2
    assert "gpu must be called in the folder of the book" in capsys.readouterr().err
