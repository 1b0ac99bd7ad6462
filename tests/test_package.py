"""The package as one who installs it meets it: what its import costs and needs, what it says of itself."""

from __future__ import annotations

import ast
import datetime
import doctest
import importlib
import inspect
import json
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import nbformat
import pytest
import repository
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import transformer

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf8")
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
begin = time.process_time()
import torch
before = set(sys.modules)
start = time.process_time()
import transformer
cost = (time.process_time() - start) / (start - begin)
print(json.dumps([cost, sorted({name.partition(".")[0] for name in set(sys.modules) - before})]))
""")
        cost, modules = json.loads(printed)
        costs.append(cost)
        if cost <= 0.1:  # of what torch costs, on any machine
            break
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
    torchs = inspect.isclass(thing) and getattr(thing.__init__, "__module__", "").startswith("torch.")
    assert untyped == [] or torchs
    if not inspect.isclass(thing):
        assert signature.return_annotation is not signature.empty


@pytest.mark.parametrize("name", ["embedding", "attention", "layers", "model", "loss", "decoding", "toy"])
def test_the_plain_model_knows_no_trick_of_speed(name):
    text = (ROOT / "transformer" / f"{name}.py").read_text(encoding="utf8")
    for word in ("transformer.kernels", "transformer.fast", "mkldnn", "onednn", "is_compiling", "is_traced"):
        assert word not in text.lower(), word


def package_files() -> set[str]:
    """Return what belongs to the package, as paths from the root."""
    files = [path for path in (ROOT / "transformer").rglob("*") if path.is_file()]
    return {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What the archives are built from, in a place of its own."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    for name in ("transformer", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    return source


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(tmp_path, source):
    pip_wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip_wheel, "--wheel-dir", tmp_path, source], check=True, stdin=subprocess.DEVNULL, timeout=300
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == package_files()


@pytest.mark.slow
def test_source_archive_holds_the_package_and_no_tests_and_is_built_without_a_warning(tmp_path, source):
    program = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, tmp_path],
        cwd=source, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert "warning" not in ran.stderr.lower()
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames() if packed.getmember(name).isfile()}
    assert package_files() <= names
    assert not any(name.startswith("tests") for name in names)


def installed_package() -> Distribution:
    """Return what is installed, and not what a build has left in the repository."""
    (found,) = distributions(name="transformer-book", path=[sysconfig.get_path("purelib")])
    return found


def test_metadata_asks_for_ranges_and_for_nothing_that_torch_does_not_bring_but_numpy():
    package = installed_package()
    needs = [Requirement(text) for text in package.requires]
    assert [need.name for need in needs if need.marker is None] == ["torch", "numpy", "filelock"]
    assert "filelock" in needed_by("torch")
    assert not any(specifier.operator == "==" for need in needs for specifier in need.specifier)


def test_metadata_names_author_and_pages():
    package = installed_package()
    assert package.version == transformer.__version__
    assert package.metadata["Author"]
    pages = dict(text.split(", ") for text in package.metadata.get_all("Project-URL"))
    assert {"Homepage", "Repository", "Issues", "Changelog"} <= set(pages)
    commands = [point for point in package.entry_points if point.group == "console_scripts"]
    assert [command.name for command in commands] == ["transformer-book"]
    assert commands[0].load() is sys.modules["transformer.__main__"].main


# Libraries that only a part needs -------------------------------------------------------------------


def brought_by(extra: str) -> set[str]:
    """Return the libraries that an extra brings, with those of the extras that it names."""
    extras = repository.project()["optional-dependencies"]
    needs = [Requirement(text) for text in extras[extra]]
    own = {need.name for need in needs if need.name != "transformer-book"}
    return own.union(*(brought_by(name) for need in needs for name in need.extras))


def optional_libraries() -> dict[str, set[str]]:
    """Return what the modules import when it is needed and torch does not bring, by module."""
    found, brought = {}, needed_by("torch") | sys.stdlib_module_names | {"transformer"}
    for path in (ROOT / "transformer").glob("*.py"):
        tree = ast.parse(path.read_text("utf8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        given = [call.args[0] for call in calls if ast.unparse(call.func) == "optional_import"]
        names = [name.value for name in given if isinstance(name, ast.Constant)]  # or a loop
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        names += [alias.name for node in imports if node not in tree.body for alias in node.names]
        found[path.stem] = {name.partition(".")[0] for name in names} - brought
    return found


def test_message_names_the_extra_that_brings_the_library():
    libraries = set().union(*optional_libraries().values())
    assert libraries == set(transformer.validation._EXTRAS)
    for library, extra in transformer.validation._EXTRAS.items():
        assert library in brought_by(extra)


def test_an_extra_suffices_for_its_task():
    libraries = optional_libraries()
    assert libraries["plots"] <= brought_by("plots")
    progress = {"tqdm"}  # is left out where it is missing
    assert libraries["text"] | libraries["translation"] | {"safetensors"} <= brought_by("text") | progress
    # The extra interchange is large, and so not in all; what reads and writes files is in text as well.
    assert libraries["interop"] <= brought_by("interchange") | brought_by("text")
    assert libraries["serve"] <= brought_by("serve")
    rest = set().union(*libraries.values()) - brought_by("interchange") - libraries["serve"]
    assert rest == brought_by("train") == brought_by("all")


# What runs the tests --------------------------------------------------------------------------------

WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict:
    return yaml.load((WORKFLOWS / name).read_text(encoding="utf8"), yaml.BaseLoader)


def test_the_workflow_runs_what_the_metadata_promise():
    legs = workflow("test.yml")["jobs"]["elsewhere"]["strategy"]["matrix"]["include"]
    book = workflow("test.yml")["jobs"]["book"]["steps"]
    (pinned,) = (step["with"]["python-version"] for step in book if "setup-python" in step.get("uses", ""))
    named = [text.rpartition(" ")[2] for text in repository.project()["classifiers"] if ":: 3." in text]
    assert {pinned, *(leg["python"] for leg in legs)} == set(named)
    assert SpecifierSet(repository.project()["requires-python"]) == SpecifierSet(f">={named[0]}")
    assert {leg["os"].partition("-")[0] for leg in legs} == {"ubuntu", "macos", "windows"}
    needs = {need.name: need for need in map(Requirement, repository.project()["dependencies"])}
    oldest = [Requirement(text) for leg in legs for text in leg.get("torch", "").split()]
    assert {need.name for need in oldest} == {"torch", "numpy"}
    for need in oldest:
        assert str(needs[need.name].specifier).removeprefix(">=") in str(need.specifier)


def test_pages_and_archives_are_published_after_all_tests():
    tests, release = workflow("test.yml"), workflow("release.yml")
    assert set(tests["jobs"]["publish"]["needs"]) == set(tests["jobs"]) - {"publish"}
    assert tests["on"]["push"] == {"branches": ["main"]}  # a pull request's branch is tested once
    assert (
        release["jobs"]["test"]["uses"].endswith("test.yml") and release["jobs"]["index"]["needs"] == "test"
    )


def test_make_and_the_program_know_the_same_commands():
    import tasks

    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(encoding="utf8"), re.M)[1].split()
    assert set(phony) == {"help", *tasks.COMMANDS}
    table = set(re.findall(r"^\| `[^`]+` \| `([a-z-]+)", README, re.M)) - {"python"}
    assert table <= set(tasks.COMMANDS)
    assert set(tasks.COMMANDS) - table <= {"setup", "style", "html"}


# The page that opens the repository ----------------------------------------------------------------


@pytest.mark.slow
def test_program_of_the_readme_works_as_pasted(tmp_path):
    programs = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert all(len(program.splitlines()) <= 14 for program in programs)
    printed = run_python("\n".join(programs), folder=tmp_path)  # the second goes on from the first
    assert "->" in printed and ", 0 FAIL" in printed


def test_the_readme_shows_what_the_command_prints(tmp_path):
    """But for digits, which depend on the processor."""
    program = re.search(r"^# faulty\.py\n.*?^```", README, flags=re.M | re.S)[0].rstrip("`")
    command, shown = re.search(
        r"^\$ transformer-book (check \S+) \| grep -A1 \^FAIL\n(.*?)^```", README, flags=re.M | re.S
    ).groups()
    (tmp_path / "faulty.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-m", "transformer", *command.split()],
        cwd=tmp_path, capture_output=True, encoding="utf8", env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert ran.returncode == 1 and ran.stderr == ""
    found = re.findall(r"^FAIL.*\n.*\n", ran.stdout, flags=re.M)
    assert re.sub(r"\d+", "0", "".join(found)) == re.sub(r"\d+", "0", shown)


def test_figures_of_the_readme_are_those_of_the_records():
    toy, talks, longer = (transformer.load_record(name) for name in ("toy", "ted-small", "ted-longer"))
    scores = [run["scores"]["test, unseen"]["tuned"]["BLEU-detok"]["score"] for run in (talks, longer)]
    factors = []
    for name in ("speed-second", "speed", "speed-avx2"):
        steps = transformer.load_record(name)["training"]["steps"]
        engines = next(step["engines"] for step in steps if step["precision"] == "float32")
        factors.append(f"{engines['torch.nn, no inner dropout']['ours']['median']:.1f} ×")  # the same work
    for figure in (
        f"{100 * toy['test']['sequences']:.2f}%",
        f"| {scores[0]:.1f}, {scores[1]:.1f} |",
        f"after {talks['seconds'] / 3600:.1f} and after {longer['seconds'] / 3600:.1f} hours",
        ", ".join(factors),
    ):
        assert figure in README


def test_readme_lists_the_chapters_of_the_book_in_their_order():
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))["parts"]
    files = [chapter["file"] for part in parts for chapter in part["chapters"]]
    listed = re.search(r"^## The chapters$(.*?)^## ", README, flags=re.M | re.S)[1]
    chapters = [file for file in files if (ROOT / f"{file}.ipynb").exists()]
    assert re.findall(r"\((book/[^)]+)\.ipynb\)", listed) == chapters


def test_files_that_the_readme_names_exist():
    targets = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(r'(?:src|href)="([^"#]+)"', README)
    local = [target for target in targets if not target.startswith("http")]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_readme_names_both_ways_to_the_commands():
    assert {"make book", "make test"} <= set(re.findall(r"make [a-z-]+", README))
    assert {"tasks.py book", "tasks.py test"} <= set(re.findall(r"tasks.py [a-z-]+", README))


# The repository's address --------------------------------------------------------------------------


def test_address_is_the_same_everywhere():
    address = repository.current()
    assert yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["repository"]["url"] == address
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))["repository-code"] == address
    assert f"git+{address}" in README
    assert transformer.__book__ == address
    for path in (ROOT / "book").glob("*.ipynb"):
        assert f"git+{address}" in path.read_text(encoding="utf8"), path.name


def copy_named_files(folder: Path) -> None:
    for path in repository.files():
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def test_one_command_changes_the_address_everywhere(tmp_path):
    copy_named_files(tmp_path)
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


# The version ----------------------------------------------------------------------------------------


def test_version_is_the_same_everywhere():
    version = repository.project()["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert transformer.__version__ == citation["version"] == version
    assert citation["date-released"] <= datetime.date.today()
    branch = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["repository"]["branch"]
    assert branch == f"v{version}"
    assert set(re.findall(r"blob/([^/]+)/", README)) == {branch}
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.M)
    newest = headings[headings[0] == "Unreleased"]  # what is to come may stand above it
    assert newest == version


def test_one_command_makes_a_release_everywhere(tmp_path):
    copy_named_files(tmp_path)
    old = repository.project()["version"]
    repository.release("12.3.4", datetime.date(2031, 5, 6), tmp_path)
    assert repository.project(tmp_path)["version"] == "12.3.4"
    citation = yaml.safe_load((tmp_path / "CITATION.cff").read_text(encoding="utf8"))
    assert (citation["version"], citation["date-released"]) == ("12.3.4", datetime.date(2031, 5, 6))
    assert '__version__ = "12.3.4"\n' in (tmp_path / "transformer" / "__init__.py").read_text("utf8")
    assert "  branch: v12.3.4\n" in (tmp_path / "_config.yml").read_text("utf8")
    readme = (tmp_path / "README.md").read_text("utf8")
    assert "/blob/v12.3.4/" in readme and "{Version 12.3.4}" in readme and old not in readme
    assert f"## {old}" in (tmp_path / "CHANGELOG.md").read_text("utf8")  # what was released stays
    for path in (tmp_path / "book").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        assert repository.first_cell(tmp_path) in [cell.source for cell in cells]
    assert repository.write_first_cells(tmp_path) == []
    with pytest.raises(ValueError, match="the version must look like 1.2.3"):
        repository.release("v1", datetime.date.today(), tmp_path)


# The first cell of a notebook -------------------------------------------------------------------------

COLAB = """
class Shell:
    def run_line_magic(self, name, line):
        print(name, line)
        (HERE / "transformer.py").write_text("__book__ = 1")

from pathlib import Path
HERE = Path.cwd()
get_ipython = Shell
"""


def first_cell_in(folder: Path) -> subprocess.CompletedProcess:
    """Run the first cell as a kernel does, in a folder, and with `%pip` putting a package there."""
    cell = TransformerManager().transform_cell(repository.first_cell())
    program = folder / "notebook.py"
    program.write_text(COLAB + cell)
    # -I: this environment's start-up files are kept out, and with them the installed package.
    start = f"import sys, runpy; sys.path[:] = [{str(folder)!r}, *sys.path]; sys.dont_write_bytecode = True\n"
    start += "sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f)]\n"
    start += f"runpy.run_path({str(program)!r})"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", start], cwd=folder, capture_output=True, text=True
    )


def test_first_cell_fetches_the_release_that_it_belongs_to(tmp_path):
    ran = first_cell_in(tmp_path)
    version, address = repository.project()["version"], repository.current()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f'pip install -q "transformer-book[all] @ git+{address}@v{version}"\n'


def test_first_cell_leaves_the_book_s_own_package_alone(tmp_path):
    (tmp_path / "transformer.py").write_text(f"__book__ = {repository.current()!r}")
    ran = first_cell_in(tmp_path)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


@pytest.mark.parametrize("stranger", ["transformer.py", "transformer/__init__.py", "transformer/notes.txt"])
def test_first_cell_takes_no_other_package_for_the_book_s(tmp_path, stranger):
    path = tmp_path / stranger
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    ran = first_cell_in(tmp_path)
    said = ran.stderr.splitlines()[-1]
    assert ran.returncode == 1 and ran.stdout == ""
    assert said.startswith("ImportError: ") and str(tmp_path / "transformer") in said
    assert said.endswith("hides the package of this book: rename it, or uninstall it")


@pytest.mark.parametrize("name", [found.name for found in pkgutil.iter_modules(transformer.__path__)])
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(f"transformer.{name}"))
    assert found.failed == 0


def test_the_most_used_names_have_an_example():
    shown = [name for name in CALLABLES if ">>> " in (getattr(transformer, name).__doc__ or "")]
    assert len(shown) >= 20, shown


def test_every_public_name_stands_on_the_api_page_once():
    page = (ROOT / "book" / "api.md").read_text(encoding="utf8")
    listed = re.findall(r"^\.\. (?:autofunction|autoclass|py:data):: transformer\.([\w.]+)$", page, re.M)
    public = [
        each if each in PUBLIC else f"{found.name}.{each}"
        for found in pkgutil.iter_modules(transformer.__path__)
        for each in getattr(importlib.import_module(f"transformer.{found.name}"), "__all__", [])
    ]
    assert sorted(listed) == sorted(public)
