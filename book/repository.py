"""Change the repository's address, or the version, wherever the book, its package and its programs name it.

    python book/repository.py                                   # print both
    python book/repository.py https://github.com/OWNER/NAME     # change the address everywhere
    python book/repository.py --version 0.3.0                   # begin a release: version, date, tag
    python book/repository.py --cells                           # write the first cell of each notebook again

Both stand in pyproject.toml: the address is `Repository` under `[project.urls]`. Links that are made of it,
to Colab and to the published pages, change with it. A notebook in Colab is the one of the last release, and
installs the package of that release by its tag: `v` and the version.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
import tomllib
from pathlib import Path

import execute
import nbformat

ROOT = Path(__file__).resolve().parents[1]
FORM = re.compile(r"https://github\.com/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
NAMED = (
    *("pyproject.toml", "README.md", "CITATION.cff", "CHANGELOG.md", "CONTRIBUTING.md", "_config.yml"),
    *(".github/ISSUE_TEMPLATE/config.yml", "transformer/__init__.py"),
)

FIRST_ID, FIRST_TAGS = "colab", ["remove-cell", "nbval-skip"]
FIRST_CELL = """\
import importlib.util

if importlib.util.find_spec("transformer") is None:
    %pip install -q "transformer-book[all] @ git+{address}@v{version}"
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


def first_cell(root: Path = ROOT) -> str:
    """Return the source of every notebook's first code cell."""
    return FIRST_CELL.format(address=current(root), version=project(root)["version"])


def forms(address: str) -> tuple[str, ...]:
    """Return what is made of `address`: itself, the path that Colab uses, the published pages."""
    match = FORM.fullmatch(address)
    if match is None:
        raise ValueError(f"the address must look like https://github.com/OWNER/NAME, got {address!r}")
    owner, name = match["owner"], match["name"]
    return f"github.com/{owner}/{name}", f"com/github/{owner}/{name}", f"{owner.lower()}.github.io/{name}"


def files(root: Path = ROOT) -> list[Path]:
    """Return the files in which address or version may stand."""
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


def change(address: str, root: Path = ROOT) -> list[Path]:
    """Put `address` in the place of the address of record, and return the files that changed."""
    pairs = zip(forms(current(root)), forms(address), strict=True)
    # A longer name that begins with the old one is another repository.
    return substitute([(re.escape(old) + r"(?![\w-])", new) for old, new in pairs], root)


def release(version: str, date: datetime.date, root: Path = ROOT) -> list[Path]:
    """Make `version` the version, released on `date`, and return the files that changed."""
    if not VERSION.fullmatch(version):
        raise ValueError(f"the version must look like 1.2.3 or 1.2.3rc1, got {version!r}")
    old = re.escape(project(root)["version"])
    # It stands at the start of a line in three files, in the README's BibTeX, and as a tag behind an address.
    assignment = rf"^((?:version|__version__|  note   )(?: = \"|: |= {{Version )){old}(?=[\"}}]?,?$)"
    tag = rf"(?<=[@/])v{old}(?=[\"/\\])|(?<=^  branch: )v{old}$"
    dated = r"(?<=^date-released: )\S+$"
    pairs = [(assignment, rf"\g<1>{version}"), (tag, f"v{version}"), (dated, date.isoformat())]
    return substitute(pairs, root)


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", nargs="?", help="the new address")
    parser.add_argument("--version", help="the new version")
    parser.add_argument("--cells", action="store_true", help="only write the first cell of each notebook")
    options = parser.parse_args(arguments)
    changed: list[Path] = []
    try:
        if options.address:
            changed += change(options.address)
        if options.version:
            changed += release(options.version, datetime.date.today())
        if options.cells:
            changed += write_first_cells()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not arguments:
        print(current(), project()["version"])
    for path in dict.fromkeys(changed):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
