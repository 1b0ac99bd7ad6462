"""The package as one who installs it meets it: what its import costs and needs, what it says of itself."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
import repository
import yaml
from packaging.requirements import Requirement

import transformer

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = [name for name in transformer.__all__ if not name.startswith("__")]
CALLABLES = [
    name
    for name in PUBLIC
    if inspect.isroutine(getattr(transformer, name)) or inspect.isclass(getattr(transformer, name))
]

# Hides every package but torch, what torch needs, and this one, as if they were not installed.
ONLY_TORCH = """
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top.startswith("_sysconfigdata") or top in ALLOWED:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hide, sys.meta_path)
"""


def needed_by(name: str) -> set[str]:
    """Return the import names of the packages that `name` cannot do without, itself included."""
    found, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        try:
            requirements = map(Requirement, distribution(name).requires or [])
        except ModuleNotFoundError:
            continue
        found.add(name)
        waiting += [
            requirement.name
            for requirement in requirements
            if requirement.name not in found
            and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        ]
    return {name.lower().replace("-", "_") for name in found}


def run_python(program: str, *, folder: Path = ROOT) -> str:
    """Run `program` in a fresh interpreter that sees this package and torch, and return what it prints."""
    allowed = needed_by("torch") | {"transformer", "torchgen"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        [sys.executable, "-c", f"ALLOWED = {sorted(allowed)!r}\n{ONLY_TORCH}\n{program}"],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_import_needs_only_torch_and_costs_little_beyond_it():
    costs = []
    for _ in range(3):
        printed = run_python("""
import json, time
import torch
before = set(sys.modules)
start = time.process_time()
import transformer
cost = time.process_time() - start
print(json.dumps([cost, sorted({name.partition(".")[0] for name in set(sys.modules) - before})]))
""")
        cost, modules = json.loads(printed)
        costs.append(cost)
    assert min(costs) <= 0.1
    assert set(modules) - sys.stdlib_module_names - {"torch"} == {"transformer"}


def test_package_says_that_it_is_typed():
    assert (ROOT / "transformer" / "py.typed").exists()


@pytest.mark.parametrize("name", CALLABLES)
def test_public_name_is_typed_and_described(name):
    thing = getattr(transformer, name)
    description = inspect.getdoc(thing) or ""
    assert re.match(r"\S.*[.:]", description, flags=re.S), f"{name} has no docstring"
    signature = inspect.signature(thing.__init__ if inspect.isclass(thing) else thing)
    untyped = [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.annotation is parameter.empty
        and parameter.name != "self"
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    assert untyped == []
    if not inspect.isclass(thing):
        assert signature.return_annotation is not signature.empty


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "transformer", source / "transformer", ignore=shutil.ignore_patterns("__pycache__")
    )
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip_wheel, "--wheel-dir", tmp_path, source], check=True, stdin=subprocess.DEVNULL, timeout=300
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "transformer").rglob("*") if path.is_file()
    }
    assert packed == {name for name in files if "__pycache__" not in name}


def test_metadata_asks_for_ranges_and_only_for_torch():
    package = distribution("transformer-book")
    needs = [Requirement(text) for text in package.requires]
    assert [need.name for need in needs if need.marker is None] == ["torch"]
    assert not any(specifier.operator == "==" for need in needs for specifier in need.specifier)


# The page that opens the repository ----------------------------------------------------------------

README = (ROOT / "README.md").read_text(encoding="utf8")


@pytest.mark.slow
def test_program_of_the_readme_works_as_pasted(tmp_path):
    programs = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert all(len(program.splitlines()) <= 14 for program in programs)
    printed = run_python("\n".join(programs), folder=tmp_path)  # the second goes on from the first
    assert "->" in printed and ", 0 FAIL" in printed


def test_files_that_the_readme_names_exist():
    targets = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'(?:src|href)="([^"#]+)"', README)
    local = [target for target in targets if not target.startswith("http")]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_readme_names_the_commands():
    assert {"make book", "make test", "make test-fast"} <= set(re.findall(r"make [a-z-]+", README))


# The repository's address --------------------------------------------------------------------------


def test_address_is_the_same_everywhere():
    address = repository.current()
    assert yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["repository"]["url"] == address
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))["repository-code"] == address
    assert f"git+{address}" in README
    for path in (ROOT / "book").glob("*.ipynb"):
        assert f"git+{address}" in path.read_text(encoding="utf8"), path.name


def test_one_command_changes_the_address_everywhere(tmp_path):
    (tmp_path / "book").mkdir()
    for path in repository.files():
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    old = repository.current()
    changed = repository.change("https://github.com/Somebody/attention-book", tmp_path)
    assert repository.current(tmp_path) == "https://github.com/Somebody/attention-book"
    assert {"pyproject.toml", "README.md", "CITATION.cff", "_config.yml"} <= {path.name for path in changed}
    left = [
        path.name
        for path in repository.files(tmp_path)
        if old.removeprefix("https://") in path.read_text(encoding="utf8")
    ]
    assert left == []
    repository.change(old, tmp_path)
    assert all(
        (tmp_path / path.relative_to(ROOT)).read_bytes() == path.read_bytes() for path in repository.files()
    )


@pytest.mark.parametrize("address", ["github.com/a/b", "https://gitlab.com/a/b", "https://github.com/a", ""])
def test_address_of_another_form_is_refused(address):
    with pytest.raises(ValueError, match="must look like https://github.com/OWNER/NAME"):
        repository.change(address)


def test_every_public_name_stands_on_the_api_page_once():
    page = (ROOT / "book" / "api.md").read_text(encoding="utf8")
    listed = re.findall(r"^\.\. (?:autofunction|autoclass|py:data):: transformer\.(\w+)$", page, re.M)
    assert sorted(listed) == sorted(transformer.__all__)
