"""What cells print in columns: tables on the page, and no word of them lost."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest
import tables
from docutils import nodes

ROOT = Path(__file__).resolve().parents[2]

PATHS = sorted((ROOT / "book").glob("*.ipynb"))
GAP = re.compile(r"(?<=\S) {2,}(?=\S)")
NOT_A_TABLE = {"", "[", "✓"}  # what begins an empty line, a tensor, a check
SENTENCES = {"exercise-2-solution"}  # one below the other, with numbers that are aligned


def printed(path: Path) -> list[tuple[str, str]]:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [(cell.id, output) for cell in cells for output in cell.get("outputs", [])]
    return [(name, output.text) for name, output in outputs if output.output_type == "stream"]


def in_columns(lines: list[str]) -> bool:
    """Tell whether a gap goes through lines, each of which has text on both of its sides."""
    gaps = [{place for gap in GAP.finditer(line) for place in range(*gap.span())} for line in lines]
    through = set.intersection(*gaps)
    return any({place, place + 1} <= through for place in through)


def aligned(text: str) -> list[str]:
    """Return lines of which three that follow one another stand in columns."""
    lines = text.split("\n")
    threes = (lines[place : place + 3] for place in range(len(lines) - 2))
    rows = [three for three in threes if all(line.strip()[:1] not in NOT_A_TABLE for line in three)]
    return [line for three in rows if in_columns(three) and "tensor" not in three[0] for line in three]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_stands_in_columns_is_a_table_and_no_word_is_lost(path):
    for name, text in printed(path):
        parts = list(tables.parts(text))
        raw = "\n".join(part for part in parts if isinstance(part, str))
        assert name in SENTENCES or not set(aligned(text)) & set(raw.split("\n")), name
        shown = [part if isinstance(part, str) else " ".join(words(part)) for part in parts]
        rules = Counter(re.findall(r"-{8,}", text))
        words_of = lambda text: Counter(tables.in_print(text).split())
        assert words_of(" ".join(shown)) == words_of(text) - rules, name


def words(table: tables.Table) -> list[str]:
    """Return all texts of a woven table."""
    return [
        text.astext()
        for node in tables.woven(table, nodes.literal_block())
        for text in node.findall(nodes.Text)
    ]


RUNS = """losses of runs
run      three seeds     beside
one      1.2 1.3 1.4    -0.1 +0.2 +0.3
no two   1.1 1.2 1.3    -0.2 +0.1 +0.1
--------------------------------------
all      0.1 0.2 0.3    +1.0 +1.0 +1.0
in all, three runs  of each
"""


def test_a_name_reaches_over_columns_a_rule_parts_rows_and_prose_stays_prose():
    table, prose = tables.parts(RUNS)
    assert prose == "in all, three runs  of each"
    assert table.caption == "losses of runs"
    assert table.header == [("run", 1), ("three seeds", 3), ("beside", 3)]
    caption, woven = tables.woven(table, nodes.literal_block())
    rows = list(woven.findall(nodes.row))
    assert [entry.astext() for entry in rows[1]] == ["one", "1.2", "1.3", "1.4", "−0.1", "+0.2", "+0.3"]
    assert ["ruled" in row["classes"] for row in rows] == [False, False, False, True]
    assert ["right" in entry["classes"] for entry in rows[1]] == [False] + [True] * 6
    assert tables.in_print("-2.5e-16 of 1e+04, 3e+00 and f(-x)") == "−2.5·10⁻¹⁶ of 1·10⁴, 3 and f(-x)"
    sentences = "4 of them: 121 of 960\n5 of them:  15 of 960\n6 of them:   1 of 960"
    assert list(tables.parts(sentences)) == [sentences]
