"""Make a release, and write what all notebooks begin with.

    python book/repository.py --cells               # write the first cell of each notebook again
    python book/repository.py --release 0.3.0       # make a release: two commits and a tag

Address and version stand in pyproject.toml. On `main` the version ends in `.dev0`, and a notebook that Colab
opens installs the package of `main`; in a release, it installs that release by its tag, `v` and the version.

A release commits the version, its date and its heading in the changelog, tags the commit, and commits the
next version's `.dev0` on top. Nothing leaves the machine: the last line printed is the command that publishes
all of it at once.
"""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import execute
import nbformat

ROOT = Path(__file__).resolve().parents[1]
RELEASE = re.compile(r"\d+\.\d+\.\d+")
BRANCH = "main"  # where the next release grows
UNRELEASED = "## Unreleased\n"
NAMED = (
    *("pyproject.toml", "README.md", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "_config.yml"),
    *(".github/ISSUE_TEMPLATE/config.yml", "transformer/__init__.py"),
)

FIRST_ID, FIRST_TAGS = "colab", ["remove-cell", "nbval-skip"]
FIRST_CELL = """\
import importlib.util

if importlib.util.find_spec("transformer") is None:
    %pip install -q "transformer-book[all] @ git+{address}@{ref}"
import transformer

if not hasattr(transformer, "__book__"):
    place = transformer.__file__ or transformer.__path__
    raise ImportError(f"{{place}} hides the package of this book: rename it, or uninstall it")\
"""


def project(root: Path = ROOT) -> dict:
    """Return what pyproject.toml says of the project."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]


def current(root: Path = ROOT) -> str:
    """Return the address of record."""
    return project(root)["urls"]["Repository"]


def ref(version: str) -> str:
    """Return what git calls the state of this version: a release has a tag, what comes next is a branch."""
    return f"v{version}" if RELEASE.fullmatch(version) else BRANCH


def first_cell(root: Path = ROOT) -> str:
    """Return the source of every notebook's first code cell."""
    return FIRST_CELL.format(address=current(root), ref=ref(project(root)["version"]))


def files(root: Path = ROOT) -> list[Path]:
    """Return the files in which the version may stand."""
    named = [root / name for name in NAMED if (root / name).is_file()]
    return named + sorted((root / "book").glob("*.md")) + sorted((root / "book").glob("*.ipynb"))


def substitute(pairs: list[tuple[str, str]], root: Path) -> list[Path]:
    """Put the second of each pair in the place of what the first, a pattern, finds; return what changed."""
    changed = []
    for path in files(root):
        before = after = path.read_text(encoding="utf8")
        for pattern, text in pairs:
            after = re.sub(pattern, text, after, flags=re.MULTILINE)
        if after != before:
            path.write_text(after, encoding="utf8", newline="\n")
            changed.append(path)
    return changed


def set_version(version: str, root: Path = ROOT) -> list[Path]:
    """Make `version` the version, released today if it is a release, and return the files that changed."""
    old = project(root)["version"]
    date = f"\ndate-released: {datetime.date.today()}" if RELEASE.fullmatch(version) else ""
    mark = re.escape(ref(old))
    pairs = [
        (rf'^((?:version|__version__) = "){re.escape(old)}"$', rf'\g<1>{version}"'),
        (rf"^version: {re.escape(old)}(?:\ndate-released: \S+)?$", f"version: {version}{date}"),
        # A tag or the branch, in an address and in the configuration of the pages.
        (rf"(?<=blob/){mark}(?=/book/\S+\.ipynb)|(?<=^  branch: ){mark}$", ref(version)),
    ]
    changed = substitute(pairs, root)
    return list(dict.fromkeys([*changed, *write_changelog(version, root), *write_first_cells(root)]))


def write_changelog(version: str, root: Path) -> list[Path]:
    """Name what is unreleased after a release; otherwise open a place for it. Return the file."""
    path = root / "CHANGELOG.md"
    text = path.read_text(encoding="utf8")
    if RELEASE.fullmatch(version):
        text = text.replace(UNRELEASED, f"## {version}\n", 1)
    elif UNRELEASED not in text:
        text = text.replace("\n## ", f"\n{UNRELEASED}\n## ", 1)
    path.write_text(text, encoding="utf8", newline="\n")
    return [path]


def write_first_cells(root: Path = ROOT) -> list[Path]:
    """Give every notebook the first code cell of this version, and return the files that changed."""
    changed = []
    for path in sorted((root / "book").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        first = next(cell for cell in notebook.cells if cell.cell_type == "code")
        if first.id != FIRST_ID:
            raise ValueError(
                f"{path.name}: the first code cell must have the id {FIRST_ID!r}, not {first.id!r}"
            )
        if (first.source, first.metadata) != (first_cell(root), {"tags": FIRST_TAGS}):
            first.source, first.metadata = first_cell(root), nbformat.from_dict({"tags": FIRST_TAGS})
            execute.write(path, notebook)
            changed.append(path)
    return changed


def git(*words: str, root: Path = ROOT) -> str:
    """Run git in the repository, and return what it prints."""
    ran = subprocess.run(["git", *words], cwd=root, capture_output=True, encoding="utf8")
    if ran.returncode:
        raise ValueError(f"git {words[0]}: {ran.stderr.strip() or ran.stdout.strip()}")
    return ran.stdout.strip()


def numbers_of(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def release(version: str, root: Path = ROOT) -> str:
    """Commit and tag a release, begin the next version, and return the command that publishes them.

    Raises:
        ValueError: `version` is not of the form 1.2.3, or not above the last one; the changelog has no news;
            the checkout is of another branch, or not clean. Nothing was changed then.
    """
    if not RELEASE.fullmatch(version):
        raise ValueError(f"the version must look like 1.2.3, got {version!r}")
    _, found, news = (root / "CHANGELOG.md").read_text(encoding="utf8").partition(UNRELEASED)
    if not found or not news.partition("\n## ")[0].strip():
        raise ValueError("CHANGELOG.md says nothing under Unreleased")
    last = re.search(r"^## (.*)$", news, re.MULTILINE)[1]
    if numbers_of(version) <= numbers_of(last):
        raise ValueError(f"the version must be above {last}, got {version!r}")
    if git("tag", "--list", ref(version), root=root):
        raise ValueError(f"there is a tag {ref(version)} already")
    if (branch := git("branch", "--show-current", root=root)) != BRANCH:
        raise ValueError(f"a release is made on {BRANCH}, not on {branch or 'a detached commit'}")
    if changes := git("status", "--porcelain", root=root):
        raise ValueError(f"a release needs a clean checkout; not committed:\n{changes}")
    set_version(version, root)
    git("commit", "--all", "--quiet", "--message", f"Version {version}", root=root)
    git("tag", "--annotate", ref(version), "--message", f"Version {version}", root=root)
    major, minor, _ = numbers_of(version)
    following = f"{major}.{minor + 1}.0.dev0"
    set_version(following, root)
    git("commit", "--all", "--quiet", "--message", f"Begin {following}", root=root)
    return f"git push --atomic origin {BRANCH} {ref(version)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", action="store_true", help="only write the first cell of each notebook")
    parser.add_argument("--release", metavar="VERSION", help="commit and tag this version")
    options = parser.parse_args(arguments)
    try:
        changed = write_first_cells() if options.cells else []
        command = release(options.release) if options.release else ""
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(path.relative_to(ROOT))
    if command:
        print(f"Committed and tagged. To publish:\n{command}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
