"""Draw the book's diagrams: `python book/diagrams` writes them to `book/_static/diagrams/`.

    python book/diagrams            # write the files that changed
    python book/diagrams --check    # write nothing, and fail if a file is not what would be written

A drawing is a function without arguments in `model.py` (Chapters 1 to 5) or `running.py` (the rest) that
returns a `Diagram`; its file has its name, with hyphens. To show it in a chapter or a Markdown page:

    > ![What a person sees who cannot see the picture.](_static/diagrams/scaled-scores.svg)
    >
    > What the picture is meant to show.

Outside the book that is an ordinary picture, and in the book `_ext/drawn.py` puts the drawing into the page.
"""

from __future__ import annotations

import argparse
import sys
from inspect import getmembers, isfunction
from pathlib import Path

import model
import running

FOLDER = Path(__file__).resolve().parents[1] / "_static" / "diagrams"


def drawings() -> dict[str, str]:
    """Return the name of each file and what it should hold."""
    functions = {}
    for module in (model, running):
        functions |= {
            name: f for name, f in getmembers(module, isfunction) if f.__module__ == module.__name__
        }
    return {
        f"{name.replace('_', '-')}.svg": function().svg()
        for name, function in functions.items()
        if not name.startswith("_")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing, and fail if a file is not current"
    )
    check = parser.parse_args().check
    wanted = drawings()
    present = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    stale = sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))
    if check and stale:
        sys.exit(f"not current: {', '.join(stale)}; run python book/diagrams")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in wanted:
            (FOLDER / name).write_text(wanted[name], encoding="utf-8", newline="\n")
        else:
            (FOLDER / name).unlink()


if __name__ == "__main__":
    main()
