"""Change the repository's address wherever the book, its package and its programs name it.

    python book/repository.py                                   # print the address
    python book/repository.py https://github.com/OWNER/NAME     # change it everywhere

The address of record is `Repository` under `[project.urls]` in pyproject.toml. Links that are made of it, to
Colab and to the published pages, change with it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORM = re.compile(r"https://github\.com/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")


def current(root: Path = ROOT) -> str:
    """Return the address of record."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))["project"]["urls"][
        "Repository"
    ]


def forms(address: str) -> tuple[str, ...]:
    """Return what is made of `address`: itself, the path that Colab uses, the published pages."""
    match = FORM.fullmatch(address)
    if match is None:
        raise ValueError(f"the address must look like https://github.com/OWNER/NAME, got {address!r}")
    owner, name = match["owner"], match["name"]
    return f"github.com/{owner}/{name}", f"com/github/{owner}/{name}", f"{owner.lower()}.github.io/{name}"


def files(root: Path = ROOT) -> list[Path]:
    """Return the files in which the address may stand."""
    named = [root / name for name in ("pyproject.toml", "README.md", "CITATION.cff", "_config.yml")]
    return named + sorted((root / "book").glob("*.md")) + sorted((root / "book").glob("*.ipynb"))


def change(address: str, root: Path = ROOT) -> list[Path]:
    """Put `address` in the place of the address of record, and return the files that changed."""
    pairs = list(zip(forms(current(root)), forms(address), strict=True))
    changed = []
    for path in files(root):
        before = after = path.read_bytes()
        for old, new in pairs:
            # A longer name that begins with the old one is another repository.
            after = re.sub(re.escape(old.encode()) + rb"(?![\w-])", new.encode(), after)
        if after != before:
            path.write_bytes(after)
            changed.append(path)
    return changed


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    if not arguments:
        print(current())
        return 0
    try:
        changed = change(arguments[0])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in changed:
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
