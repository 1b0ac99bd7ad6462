"""The list of faults: each applies and changes the program, and the recorded run covers all."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS, Fault
from mutants import RECORD, Copy, files_for

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {path.stem: path.read_text(encoding="utf8") for path in (ROOT / "transformer").glob("*.py")}
BY_NAME = {fault.id: fault for fault in FAULTS}


def program(source: str) -> str:
    """What a source does, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


PROGRAMS = {name: program(source) for name, source in SOURCES.items()}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_applies_and_changes_the_program(fault):
    changed = fault.applied(SOURCES[fault.module])
    compile(changed, fault.module, "exec")
    assert program(changed) != PROGRAMS[fault.module]
    assert all((ROOT / "tests" / name).exists() for name in files_for(fault.module))


def test_faults_are_many_and_each_has_one_name():
    assert len(BY_NAME) == len(FAULTS) >= 60
    assert len({(fault.module, fault.before, fault.after) for fault in FAULTS}) == len(FAULTS)
    assert all(fault.mistake for fault in FAULTS)
    rich = Counter(fault.module for fault in FAULTS)
    assert min(rich[module] for module in ("attention", "layers", "model", "training", "decoding")) >= 20


def test_a_fault_that_no_longer_applies_is_named():
    fault = Fault("loss", "gone", "", "no such text", "")
    with pytest.raises(ValueError, match="loss/gone: 'no such text' must stand .* once, not 0 times"):
        fault.applied(SOURCES["loss"])
    with pytest.raises(ValueError, match="not [0-9]+ times"):
        Fault("loss", "twice", "", "pad_id", "").applied(SOURCES["loss"])


def test_record_covers_all_faults_and_leaves_none_unexplained():
    record = json.loads(RECORD.read_text(encoding="utf8"))
    assert record["commit"] and record["command"].startswith("python tests/mutants.py")
    verdicts = {}
    for entry in record["faults"]:
        verdict, test = entry.pop("verdict"), entry.pop("caught by")
        fault = Fault(**entry)
        assert fault == BY_NAME[fault.id], f"{fault.id} is not as it was recorded: make mutants"
        assert verdict in (("equivalent",) if fault.equivalent else ("caught", "timeout")), fault.id
        assert bool(test) == (verdict == "caught")
        verdicts[fault.id] = verdict
    assert verdicts.keys() == BY_NAME.keys(), "the list has changed since it was recorded: make mutants"
    totals = record["totals"]
    assert totals == {"faults": len(FAULTS), **Counter(verdicts.values())}


@pytest.mark.slow
def test_a_fault_is_caught_in_the_copy_and_a_comment_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("mutants.files_for", lambda module: ("test_validation.py",))
    copy = Copy(tmp_path / "copy")
    before = "if size < minimum:"
    wrong = copy.try_fault(Fault("validation", "wrong", "", before, "if size <= minimum:"))
    assert wrong.verdict == "caught" and wrong.test.startswith("test_validation.py::test_")
    comment = copy.try_fault(Fault("validation", "comment", "", before, f"{before}  # too small"))
    assert (comment.verdict, comment.test) == ("survived", "") and comment.passed > 10
    excused = copy.try_fault(Fault("validation", "x", "", before, "if size <= minimum:", "no reason"))
    assert excused.verdict == "misjudged"
    broken = copy.try_fault(Fault("validation", "broken", "", before, "if size <"))
    assert broken.verdict == "broken"
    assert (copy.folder / "transformer" / "validation.py").read_text(encoding="utf8") == SOURCES["validation"]
