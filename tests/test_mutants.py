"""The list of faults: each applies and changes the program."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from faults import FAULTS
from mutants import files_for

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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_fault_applies_and_changes_the_program(fault):
    changed = fault.applied(SOURCES[fault.module])
    compile(changed, fault.module, "exec")
    assert program(changed) != program(SOURCES[fault.module])
    assert all((ROOT / "tests" / name).exists() for name in files_for(fault.module))


def test_every_fault_has_one_name_and_says_what_is_wrong():
    assert max(Counter(fault.id for fault in FAULTS).values()) == 1
    assert max(Counter((f.module, f.place, f.before, f.after) for f in FAULTS).values()) == 1
    assert all(fault.mistake for fault in FAULTS)
