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
from typing import Any

import public_names
import pytest
import repository
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import transformer
from transformer.files import read_record

ROOT = Path(__file__).resolve().parents[1]

README, CONTRIBUTING = ((ROOT / name).read_text(encoding="utf8") for name in ("README.md", "CONTRIBUTING.md"))
SITE = repository.project()["urls"]["Homepage"]
PUBLIC = [name for name in transformer.__all__ if not name.startswith("__")]

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
    """And a model is built and accelerated without a compiler, which torch loads in seconds, wherever it
    decomposes an operation on a device without numbers."""
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
modules = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
config = transformer.TransformerConfig(9, 9, d_model=8, n_heads=2, n_layers=1)
transformer.accelerate(transformer.Transformer(config))
print(json.dumps([cost, modules, "torch._dynamo" in sys.modules]))
""")
        cost, modules, compiles = json.loads(printed)
        costs.append(cost)
        if cost <= 0.15:  # of what torch costs; 0.09 to 0.11 in a dozen runs on one machine
            break
    assert min(costs) <= 0.15 and not compiles
    assert set(modules) - sys.stdlib_module_names - {"torch"} == {"transformer"}


def test_package_says_that_it_is_typed():
    assert (ROOT / "transformer" / "py.typed").exists()


def test_public_names_are_described():
    """In a sentence of their own; their types are `test_types.py`'s."""
    things = [(name, getattr(transformer, name)) for name in PUBLIC]
    described = [name for name, thing in things if inspect.isroutine(thing) or inspect.isclass(thing)]
    undescribed = [
        name
        for name in described
        if not re.match(r"\S.*[.:]", getattr(transformer, name).__doc__ or "", re.S)
    ]
    assert described and not undescribed


@pytest.mark.parametrize("name", ["embedding", "attention", "layers", "model", "loss", "decoding", "toy"])
def test_the_plain_model_knows_no_trick_of_speed(name):
    text = (ROOT / "transformer" / f"{name}.py").read_text(encoding="utf8")
    tricks = "transformer.speed.kernels transformer.speed.fast mkldnn onednn is_compiling is_traced"
    for word in tricks.split():
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


def test_metadata_asks_for_ranges_and_for_nothing_that_torch_does_not_bring_but_two():
    package = installed_package()
    needs = [Requirement(text) for text in package.requires]
    names = [need.name for need in needs if need.marker is None]
    assert names == ["torch", "numpy", "filelock", "safetensors"] and "filelock" in needed_by("torch")
    assert not any(specifier.operator == "==" for need in needs for specifier in need.specifier)


# Libraries that only a part needs -------------------------------------------------------------------


def brought_by(extra: str) -> set[str]:
    """Return the libraries that an extra brings, with those of the extras that it names."""
    extras = repository.project()["optional-dependencies"]
    needs = [Requirement(text) for text in extras[extra]]
    own = {need.name for need in needs if need.name != "transformer-book"}
    return own.union(*(brought_by(name) for need in needs for name in need.extras))


def optional_libraries() -> dict[str, set[str]]:
    """Return what the modules import when it is needed and torch does not bring, by module."""
    found, brought = {}, needed_by("torch") | sys.stdlib_module_names | {"transformer", "safetensors"}
    for path in (ROOT / "transformer").rglob("*.py"):
        tree = ast.parse(path.read_text("utf8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        given = [call.args[0] for call in calls if ast.unparse(call.func) == "optional_import"]
        names = [name.value for name in given if isinstance(name, ast.Constant)]  # or a loop
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        names += [alias.name for node in imports if node not in tree.body for alias in node.names]
        module = path.relative_to(ROOT / "transformer").with_suffix("").as_posix()
        found[module] = {name.partition(".")[0] for name in names} - brought
    return found


@pytest.mark.slow
def test_an_extra_suffices_for_its_task():
    libraries = optional_libraries()
    assert libraries["plots"] <= brought_by("plots")
    language = set().union(*(found for name, found in libraries.items() if name.startswith("language/")))
    assert language <= brought_by("text")
    exchange = set().union(*(found for name, found in libraries.items() if name.startswith("exchange/")))
    # The extra interchange is large, and so not in all; what reads and writes files is in text as well.
    assert exchange <= brought_by("interchange") | brought_by("text")
    assert libraries["commands/serve"] <= brought_by("serve")
    commands = (found for name, found in libraries.items() if name.startswith(("commands/", "__main__")))
    assert set().union(*commands) - brought_by("all") == set()
    rest = set().union(*libraries.values()) - brought_by("interchange")
    assert rest == brought_by("all") >= brought_by("train")


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
    # Without it, pip takes gigabytes of CUDA on Linux.
    assert workflow("test.yml")["env"]["PIP_EXTRA_INDEX_URL"].endswith("/whl/cpu")
    needs = {need.name: need for need in map(Requirement, repository.project()["dependencies"])}
    oldest = [Requirement(text) for leg in legs for text in leg.get("torch", "").split()]
    assert {need.name for need in oldest} == {"torch", "numpy"}
    for need in oldest:
        assert str(needs[need.name].specifier).removeprefix(">=") in str(need.specifier)


def test_make_and_the_program_know_the_same_commands():
    import tasks

    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(encoding="utf8"), re.M)[1].split()
    assert set(phony) == {"help", *tasks.COMMANDS}
    table = re.findall(r"^\| `([a-z-]+)[^`]*` \| `([a-z-]+)[^`]*` \|", CONTRIBUTING, re.M)[1:]
    assert [make for make, _ in table] == [program for _, program in table]
    assert sorted(make for make, _ in table) == sorted(tasks.COMMANDS)


def pins(*names: str) -> dict[str, str]:
    """The version of each library that the files pin."""
    lines = "\n".join((ROOT / name).read_text(encoding="utf8") for name in names).splitlines()
    found = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {pin.name: str(pin.specifier).removeprefix("==") for pin in found}


def test_what_the_package_and_its_extras_ask_for_is_pinned_within_their_ranges():
    project, versions = repository.project(), pins("requirements.txt", "tests/requirements-extras.txt")
    asked = [*project["dependencies"], *sum(project["optional-dependencies"].values(), [])]
    for need in map(Requirement, asked):
        assert need.name == "transformer-book" or versions[need.name] in need.specifier, need


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a clone holds before anything is built, as far as `book/tasks.py` asks for it."""
    for name in ("benchmarks", "book", "tests", "transformer"):
        (tmp_path / name).mkdir()
    for name in ("requirements.txt", "pyproject.toml", "book/tasks.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def task(root: Path, *words: str) -> tuple[int, str]:
    """The status of a task and what it says."""
    program = [sys.executable, root / "book" / "tasks.py", *words]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr


def test_clean_removes_what_was_built_and_not_what_a_link_leads_to(clone):
    before = sorted(clone.rglob("*"))
    for name in ("_build/html", "dist", "a.egg-info", "transformer/__pycache__"):
        (clone / name).mkdir(parents=True)
    kept = [clone / "elsewhere", clone / "elsewhere" / "file"]
    kept[0].mkdir()
    kept[1].touch()
    for name in ("build", "b.egg-info", "tests/__pycache__"):
        (clone / name).symlink_to(kept[0])
    (clone / "c.egg-info").symlink_to("nowhere")
    (clone / "d.egg-info").touch()
    assert task(clone, "clean") == (0, "")
    assert sorted(clone.rglob("*")) == sorted(before + kept)


# The page that opens the repository ----------------------------------------------------------------


@pytest.mark.slow
def test_program_of_the_readme_works_as_pasted(tmp_path):
    """But for the number of updates."""
    programs = re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)
    assert all(len(program.splitlines()) <= 15 for program in programs)
    program = "\n".join(programs)  # the second goes on from the first
    assert "range(200)" in program
    printed = run_python(program.replace("range(200)", "range(10)"), folder=tmp_path)
    assert "->" in printed and ", 0 FAIL" in printed


@pytest.mark.slow
def test_own_data_of_the_readme_trains(tmp_path, monkeypatch, capsys):
    """As pasted, but for the number of updates."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    days = [f"{day} of May {year}" for day in range(1, 29) for year in range(1990, 2000)]
    (tmp_path / "train.src").write_text("\n".join(days) + "\n", encoding="utf8")
    (tmp_path / "train.tgt").write_text("\n".join(days) + "\n", encoding="utf8")
    program = re.search(r"^```py\n(.*?)^```", README, re.M | re.S)[1]
    assert "recipe_for(pairs)\n" in program
    few = "changed(recipe_for(pairs), steps=4, evaluate_every=2, warmup_steps=1)\n"
    program = "from transformer.commands.recipes import changed\n" + program.replace(
        "recipe_for(pairs)\n", few
    )
    names: dict[str, Any] = {}
    exec(program, names)
    same = transformer.Translator.load("runs/python/translator")
    assert same.translate(days[:2]) == names["translator"].translate(days[:2])
    assert capsys.readouterr().out.startswith("[")


def test_every_record_is_as_it_was_written():
    paths = sorted((ROOT / "transformer" / "records").rglob("*.json"))
    sealed = [path for path in paths if '"sha256"' in path.read_text(encoding="utf8")]
    assert sealed
    for path in sealed:
        read_record(path)  # which holds its checksum against it


def test_figures_of_the_readme_are_those_of_the_records():
    toy, talks = (transformer.training.load_record(name) for name in ("toy", "ted-best"))
    factors = []
    for name in ("speed-second", "speed"):
        steps = transformer.training.load_record(name)["training"]["steps"]
        engines = next(step["engines"] for step in steps if step["precision"] == "float32")
        now = engines["ours" if name == "speed" else "ours, F.linear"]["ours"]["median"]  # chosen there now
        gain = engines["torch.nn, no inner dropout"]["ours"]["median"] / now  # the same work
        factors.append(f"{gain:.1f} ×")
    for figure in (
        f"{100 * toy['test']['sequences']:.2f}%",
        f"| {talks['scores']['test']['tuned']['BLEU-tok']['score']:.1f} |",
        ", ".join(factors),
    ):
        assert figure in README


def test_readme_lists_the_chapters_of_the_book_in_their_order():
    parts = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))["parts"]
    files = [chapter["file"] for part in parts for chapter in part["chapters"]]
    listed = re.search(r"^\| part \| chapters \|$(.*?)^$", README, flags=re.M | re.S)[1]
    read = "under-the-hood|playground"  # and not the back matter
    chapters = [file for file in files if (ROOT / f"{file}.ipynb").exists() or re.search(read, file)]
    assert re.findall(rf"\({re.escape(SITE)}(book/[^)]+)\.html\)", listed) == chapters


def test_links_of_the_readme_lead_somewhere_on_the_package_index_too():
    """They are absolute, and what they name of this repository or of its pages exists."""
    links = re.findall(r"\]\(([^)\s]+)\)", README) + re.findall(r'(?:src|srcset|href)="([^"]+)"', README)
    assert len(links) > 40
    headings = {re.sub(r"\W+", "-", title.lower()) for title in re.findall(r"^#+ (.*)$", README, re.M)}
    named, pages = rf"{re.escape(repository.current())}/(?:blob|tree)/main/(.+)", rf"{re.escape(SITE)}(.+)"
    for link in links:
        assert re.match(r"https://[\w-]+\.[\w.-]+/|#", link), link
        if link.startswith("#"):
            assert link[1:] in headings
        elif found := re.fullmatch(named, link):
            assert (ROOT / found[1]).exists(), link
        elif found := re.fullmatch(pages, link):
            place = found[1].replace("_static/", "book/_static/")
            sources = [place.replace(".html", kind) for kind in (".ipynb", ".md")]
            assert any((ROOT / source).exists() for source in sources), link


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
        if path.suffix == ".ipynb" and not path.name.startswith(("01", "02")):
            continue  # two chapters stand for all
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


# The version ----------------------------------------------------------------------------------------


def test_version_is_the_same_everywhere():
    version = repository.project()["version"]
    released = repository.ref(version) != repository.BRANCH
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert transformer.__version__ == citation["version"] == version
    assert ("date-released" in citation) == released
    branch = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))["repository"]["branch"]
    assert {branch} == {repository.ref(version)} == set(re.findall(r"/blob/([^/]+)/book/\S+ipynb", README))
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf8"), re.M)[1]
    assert newest == (version if released else "Unreleased")


def test_what_the_notebooks_install_exists():
    """The branch, or a tag that git knows."""
    tags = repository.git("tag", "--list").split()
    assert repository.ref(repository.project()["version"]) in [repository.BRANCH, *tags]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a release changes, as the branch of a repository of its own that has a remote."""
    root = tmp_path / "checkout"
    copy_named_files(root)
    repository.git("init", "--quiet", "--bare", str(tmp_path / "remote.git"), root=tmp_path)
    repository.git("init", "--quiet", "--initial-branch", repository.BRANCH, root=root)
    for name, value in (("user.name", "A"), ("user.email", "a@example.org"), ("core.autocrlf", "false")):
        repository.git("config", name, value, root=root)
    repository.git("remote", "add", "origin", str(tmp_path / "remote.git"), root=root)
    repository.git("add", "--all", root=root)
    repository.git("commit", "--quiet", "--message", "Before", root=root)
    return root


def state(clone: Path) -> tuple[dict, str, set[str], str]:
    """Citation, the branch of the pages, what first cells and the README name, and the newest changes."""
    branch = yaml.safe_load((clone / "_config.yml").read_text(encoding="utf8"))["repository"]["branch"]
    notebooks = [path.read_text(encoding="utf8") for path in (clone / "book").glob("*.ipynb")]
    named = {re.search(r"git\+https://[^@\s]+@([\w.]+)", text)[1] for text in notebooks}
    named |= set(re.findall(r"/blob/([^/]+)/book/\S+ipynb", (clone / "README.md").read_text("utf8")))
    headings = re.findall(r"^## (\S+)", (clone / "CHANGELOG.md").read_text(encoding="utf8"), re.M)
    assert repository.write_first_cells(clone) == []
    return yaml.safe_load((clone / "CITATION.cff").read_text("utf8")), branch, named, headings


@pytest.mark.slow
def test_one_command_makes_a_release(tmp_path, checkout):
    """Two commits and a tag, which one more command publishes: what is cloned then agrees with its name."""
    before = state(checkout)
    command = repository.release("12.3.4", checkout)
    subprocess.run(command.split(), cwd=checkout, check=True, capture_output=True)
    clones = {}
    for name in ("v12.3.4", "main"):
        clones[name] = tmp_path / name
        remote = str(tmp_path / "remote.git")
        clone = ("-c", "advice.detachedHead=false", "clone", "--quiet", "--branch", name, remote, name)
        repository.git(*clone, root=tmp_path)
    citation, branch, named, headings = state(clones["v12.3.4"])
    assert (citation["version"], citation["date-released"]) == ("12.3.4", datetime.date.today())
    assert (branch, named) == ("v12.3.4", {"v12.3.4"})
    assert headings == ["12.3.4", *before[3][1:]]  # what was released stays
    assert repository.project(clones["v12.3.4"])["version"] == "12.3.4"
    assert '__version__ = "12.3.4"\n' in (clones["v12.3.4"] / "transformer" / "__init__.py").read_text("utf8")
    citation, branch, named, headings = state(clones["main"])
    assert citation["version"] == repository.project(clones["main"])["version"] == "12.4.0.dev0"
    assert "date-released" not in citation and (branch, named) == ("main", {"main"})
    assert headings == ["Unreleased", "12.3.4", *before[3][1:]]
    assert repository.git("status", "--porcelain", root=checkout) == ""
    with pytest.raises(ValueError, match="CHANGELOG.md says nothing under Unreleased"):
        repository.release("12.3.5", checkout)


@pytest.mark.slow
def test_a_release_that_cannot_be_made_changes_nothing(checkout):
    def refused(version: str, message: str) -> None:
        before = repository.git("rev-parse", "HEAD", root=checkout)
        with pytest.raises(ValueError, match=message):
            repository.release(version, checkout)
        assert repository.git("rev-parse", "HEAD", root=checkout) == before

    refused("v1", "the version must look like 1.2.3, got 'v1'")
    refused("0.2.0", "the version must be above 0.2.0, got '0.2.0'")
    repository.git("tag", "v12.0.0", root=checkout)
    refused("12.0.0", "there is a tag v12.0.0 already")
    (checkout / "README.md").write_text("other")
    refused("12.1.0", "a release needs a clean checkout; not committed:\n ?M README.md")
    repository.git("checkout", "--quiet", "README.md", root=checkout)
    repository.git("switch", "--quiet", "--create", "other", root=checkout)
    refused("12.1.0", "a release is made on main, not on other")


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


def test_first_cell_fetches_the_state_that_it_belongs_to(tmp_path):
    ran = first_cell_in(tmp_path)
    ref, address = repository.ref(repository.project()["version"]), repository.current()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == f'pip install -q "transformer-book[all] @ git+{address}@{ref}"\n'


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


MODULES = [found.name for found in pkgutil.walk_packages(transformer.__path__, "transformer.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_the_api_pages_hold_every_public_name_once_the_model_and_the_translator_first():
    pages = [ROOT / "book" / "api.md", *sorted((ROOT / "book" / "api").glob("*.md"))]
    listed = [public_names.ASKED.sub(public_names.listed, page.read_text(encoding="utf8")) for page in pages]
    found = re.findall(r"^\.\. (?:auto\w+|py:data):: transformer\.([\w.]+)$", "\n".join(listed), re.M)
    assert found[:2] == ["Transformer", "Translator"] and len(found) == len(set(found))
    assert set(found) >= set(PUBLIC)
    homes = {name.rpartition(".")[0] for name in set(found) - set(PUBLIC)}
    inner = re.compile(r"transformer\.(?:commands\.(?!recipes|data)|validation|__main__)")
    assert homes == {
        name.removeprefix("transformer.")
        for name in MODULES
        if not inner.match(name) and set(getattr(importlib.import_module(name), "__all__", [])) - set(PUBLIC)
    }
