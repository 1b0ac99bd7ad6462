"""The list of faults: each applies and changes the program."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS, Fault
from mutants import Copy, files_for

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "transformer"
FILES = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")}
SOURCES = {name: path.read_text(encoding="utf8") for name, path in FILES.items()}


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


def test_every_fault_has_one_name_and_says_what_is_wrong():
    assert max(Counter(fault.id for fault in FAULTS).values()) == 1
    assert max(Counter((f.module, f.place, f.before, f.after) for f in FAULTS).values()) == 1
    assert all(fault.mistake for fault in FAULTS)


def test_a_fault_that_no_longer_applies_is_named():
    fault = Fault("gone", "", "perplexity", "no such text", "", module="loss")
    with pytest.raises(
        ValueError, match="loss/gone: 'no such text' must stand once in perplexity in loss, not 0"
    ):
        fault.applied(SOURCES["loss"])
    with pytest.raises(ValueError, match="not [0-9]+ times"):
        Fault("twice", "", "teacher_forced_loss", "tgt", "").applied(SOURCES["loss"])
    with pytest.raises(ValueError, match="there is no nobody"):
        Fault("nowhere", "", "nobody", "tgt", "").applied(SOURCES["loss"])


@pytest.mark.slow
def test_a_fault_is_caught_in_the_copy_and_a_comment_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("mutants.files_for", lambda module: ("test_validation.py",))
    copy = Copy(tmp_path / "copy")

    def tried(after: str, equivalent: str = ""):
        fault = Fault("x", "", "check_size", "size >= minimum, sizes)", after, equivalent, "validation")
        return copy.try_fault(fault)

    wrong = tried("size >= minimum - 1, sizes)")
    assert wrong.verdict == "caught" and wrong.test.startswith("test_validation.py::test_")
    unimportable = tried("size > minimum, sizes)")  # the recipes, made at import, are refused
    assert (unimportable.verdict, unimportable.test) == ("caught", "test_validation.py")
    comment = tried("size >= minimum, sizes)  # or too small")
    assert (comment.verdict, comment.test) == ("survived", "") and comment.passed >= 5
    assert tried("size >= minimum - 1, sizes)", "no reason").verdict == "misjudged"
    assert tried("size >=").verdict == "broken"
    assert (copy.folder / "transformer" / "validation.py").read_text(encoding="utf8") == SOURCES["validation"]
