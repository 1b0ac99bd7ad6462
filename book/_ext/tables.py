"""What a cell prints in columns is a table on the page, not a picture of a terminal.

Columns are what blanks in every line keep apart; a name in the header may reach over several. The line above
a table is its caption. Prose, logs and checks stay as they were printed, as all of it does in the notebook.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from docutils import nodes
from sphinx.application import Sphinx

PIECE = re.compile(r"\S+(?: \S+)*")  # what two blanks or more keep apart
ROW = re.compile(r"^(?!✓).*(?:\S {2,}\S|\d\.\d+ [-+]?\d+\.\d+$)")  # may be a line of a table
RULE = re.compile(r"-{8,}")  # a line across a table
FIGURE = re.compile(r"[-+±−×]?\d|(?:nan|inf|-|–)$")  # begins what a column of numbers holds
NUMBER = re.compile(r"[-+−]?[\d.,]+%?")
# As programs print them.
MINUS, POWER = re.compile(r"(?<![\w.)])-(?=[\d.])"), re.compile(r"(?<=\d)e([-+]\d+)\b")
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
# Between these a single blank is enough.
BEFORE, AFTER = re.compile(r"(?:\d\.\d+|:) *$"), re.compile(r" *[-+]?\d+\.\d+(?: |$)")
LEAST = 6  # cells of the smallest table
LONG = 24  # letters that no narrow screen has room for in a cell
MANY, ROWS = 6, 8  # columns that a phone shows in small letters; rows of which more may be sorted

Edges = tuple[int, int]
Line = str | None  # None is a rule


class Table(NamedTuple):
    """A printed table: the names in its header, with how many columns each reaches over, and its rows."""

    caption: str
    header: list[tuple[str, int]]
    columns: list[Edges]
    lines: list[Line]


def pieces(line: str) -> list[tuple[str, Edges]]:
    return [(found[0], found.span()) for found in PIECE.finditer(line)]


def cells(line: str, columns: list[Edges]) -> list[str]:
    return [" ".join(line[start:end].split()) for start, end in columns]


def is_blank(lines: list[str], place: int) -> bool:
    return not any(line[place : place + 1].strip() for line in lines)


def columns_of(lines: list[str]) -> list[Edges]:
    """Return where the columns of lines begin and end."""
    filled = ""
    for place in range(max(map(len, lines), default=0)):
        parts = all(BEFORE.search(line[:place]) and AFTER.match(line[place:]) for line in lines)
        filled += "x" if not is_blank(lines, place) else "\t" if parts else " "
    return [edges for _, edges in pieces(filled)]


def shared(one: Edges, other: Edges) -> int:
    """Return how many places two stretches share, or else minus how many lie between them."""
    return min(one[1], other[1]) - max(one[0], other[0])


def is_header(line: str, body: list[str]) -> bool:
    """Tell whether a line names the columns below it: words above numbers, or whole numbers in order."""
    columns = parted(columns_of(body), line, body)
    if not columns:
        return False
    held = dict(zip(columns, zip(*(cells(one, columns) for one in body))))
    named = [(text, max(columns, key=lambda column: shared(column, edges))) for text, edges in pieces(line)]
    above = [(text, held[column]) for text, column in named if is_numeric(held[column])]
    if not above or len({column for _, column in named}) < 2:
        return False
    if all(text.isdecimal() for text, _ in above):
        in_order = all(int(one) < int(other) for (one, _), (other, _) in pairwise(above))
        return in_order and any("." in cell for below in held.values() for cell in below)
    return not any(NUMBER.fullmatch(text) or words(text) in map(words, below) for text, below in above)


def is_numeric(column: Iterable[str]) -> bool:
    return all(FIGURE.match(cell) for cell in column if cell)


def words(text: str) -> str:
    """Return a text without its numbers; of numbers alone, the text."""
    return re.sub(r"[\d.,\s]+", "", text) or text


def parted(columns: list[Edges], line: str, body: list[str]) -> list[Edges]:
    """Part a column that two names stand above, where a blank goes through the body."""
    found = []
    for start, end in columns:
        above = [edges for _, edges in pieces(line) if shared(edges, (start, end)) > 0]
        for left, right in pairwise(above):
            gaps = [place for place in range(left[1], min(right[1], end)) if is_blank(body, place)]
            if gaps:
                gap = min(
                    gaps, key=lambda at: sum(len(f"{one[:at].rstrip()}{one[at:].lstrip()}") for one in body)
                )
                found.append((start, gap))
                start = gap + 1
        found.append((start, end))
    return found


def owners_of(named: list[tuple[str, Edges]], columns: list[Edges]) -> list[int | None]:
    """Return which name stands above each column."""
    found: list[int | None] = []
    for column in columns:
        best = max(range(len(named)), key=lambda number: shared(named[number][1], column))
        found.append(best if shared(named[best][1], column) > 0 else None)
    return found


def header_of(line: str, columns: list[Edges], body: list[str]) -> tuple[list[tuple[str, int]], str]:
    """Return the names above columns, and what stands beside all of them.

    Columns of numbers that have no name share the one before them, evenly, or where they stand nearer to it.
    A name above several ends where one of them does.
    """
    *named, last = pieces(line)
    beside = last[0] if named and last[1][0] >= columns[-1][1] else ""
    line = line[: last[1][0]] if beside else line
    named = pieces(line)
    owners = owners_of(named, columns)
    each, odd = divmod(len(columns) - 1, max(len(named) - 1, 1))
    if None in owners[1:] and not odd and is_numeric(cells(one, columns)[-1] for one in body):
        owners = [0, *(1 + place // each for place in range(len(columns) - 1))]
    else:
        ends = {end for _, end in columns[1:-1]}
        signs = ("\t" if sign == " " and place in ends else sign for place, sign in enumerate(line))
        named = pieces("".join(signs))
        owners = owners_of(named, columns)
    texts = [text for text, _ in named]
    for number in set(range(len(named))) - set(owners):
        nearest = max(range(len(columns)), key=lambda place: shared(columns[place], named[number][1]))
        if owners[nearest] is None:
            owners[nearest] = number
        else:
            texts[owners[nearest]] += f" {texts[number]}"
    gaps = [after[0] - before[1] for before, after in pairwise(columns)]
    for place in range(1, len(columns) - 1):
        if owners[place] is None and gaps[place - 1] < gaps[place]:
            owners[place] = owners[place - 1]
    runs = [(owner, len(list(run))) for owner, run in groupby(owners)]
    return [("" if owner is None else texts[owner], width) for owner, width in runs], beside


def table_of(lines: list[Line]) -> Table | None:
    """Return the table that lines are, if they are one."""
    if not all(line is None or ROW.search(line) for line in lines):
        return None
    first, *rest = lines
    body = [line for line in rest if line is not None]
    if first is None or not body:
        return None
    if is_header(first, body):
        columns = parted(columns_of(body), first, body)
        header, beside = header_of(first, columns, body)
    else:
        header, beside, rest, body = [], "", lines, [first, *body]
        columns = columns_of(body)
        if is_header(first, body[1:2]) and not any(FIGURE.match(text) for text, _ in pieces(first)):
            return None
    rows = [cells(line, columns) for line in body]
    if min(sum(map(bool, row)) for row in rows) < 2 or len(columns) * (len(rows) + bool(header)) < LEAST:
        return None
    whole = all(cell.count("[") == cell.count("]") for row in rows for cell in row)
    return Table(beside, header, columns, rest) if whole else None


def longest(lines: list[Line]) -> tuple[int, int, Table] | None:
    """Return where the longest table in lines begins and ends; no other line of its kind stands beside it."""
    first = ["", *(line.split()[0] if line else "" for line in lines), ""]
    for length in range(len(lines), 1, -1):
        for start in range(len(lines) - length + 1):
            end = start + length
            cut = first[start] == first[start + 1] or first[end] == first[end + 1]
            if not cut and (table := table_of(lines[start:end])):
                return start, end, table
    return None


def grouped(lines: list[Line]) -> Iterator[Table | str]:
    """Yield the tables among lines without an empty one, and the lines that are in none."""
    first = set(pieces(lines[0] or "")) if lines else set()
    for place in range(2, len(lines) - 1):  # a second header begins a second table
        line, below = lines[place], lines[place + 1]
        if line and below and len(first & set(pieces(line))) > 1 and is_header(line, [below]):
            yield from grouped(lines[:place])
            yield from grouped(lines[place:])
            return
    if not (found := longest(lines)):
        yield from (line or "" for line in lines)
        return
    start, end, table = found
    yield from grouped(lines[:start])
    yield table
    yield from grouped(lines[end:])


def parts(text: str) -> Iterator[Table | str]:
    """Yield what a cell has printed: its tables, and the text between them."""
    plain: list[str] = []
    for empty, run in groupby(text.split("\n"), lambda line: not line.strip()):
        lines = [None if RULE.fullmatch(line) else line for line in run]
        for part in [""] * len(lines) if empty else grouped(lines):
            if isinstance(part, str):
                plain.append(part)
                continue
            above = ["", *plain][-2:]
            alone = above[-1].strip() and not above[0].strip() and "✓" not in above[-1]
            caption = plain.pop().strip() if alone else ""
            if any(plain):
                yield "\n".join(plain).strip("\n")
            plain = []
            yield part._replace(caption=f"{caption} {part.caption}".strip())
    if any(plain):
        yield "\n".join(plain).strip("\n")


# On the page -------------------------------------------------------------------------------------------


def in_print(text: str) -> str:
    """Return a text with its minus signs and powers of ten as they are set in print: -2e-16 is −2·10⁻¹⁶."""
    raised = lambda power: f"·10{str(int(power[1])).translate(RAISED)}" if int(power[1]) else ""
    return POWER.sub(raised, MINUS.sub("−", text))


def cell(text: str, kind: str, width: int = 1) -> nodes.entry:
    """Return a cell; what holds a long word may break it."""
    text = in_print(text)
    kind += " long" * any(len(word) > LONG for word in text.split())
    over = {"morecols": width - 1} if width > 1 else {}
    return nodes.entry("", nodes.paragraph(text, text), classes=kind.split(), **over)


def woven(table: Table | str, block: nodes.literal_block) -> Iterator[nodes.Element]:
    """Yield what a part of a block is on the page: text, or the caption of a table, and the table."""
    if isinstance(table, str):
        yield nodes.literal_block(table, table, **block.attributes)
        return
    if table.caption:
        yield nodes.paragraph(table.caption, table.caption, classes=["printed-caption"])
    rows = [line and cells(line, table.columns) for line in table.lines]
    kinds = ["right" if is_numeric(column) else "" for column in zip(*filter(None, rows))]
    head, body, place = nodes.row(), nodes.tbody(), 0
    for name, width in table.header:
        head += cell(name, kinds[place] if width == 1 else "over" if place else "", width)
        place += width
    for above, row in pairwise([[], *rows]):
        if row is not None:
            body += nodes.row("", *map(cell, row, kinds), classes=["ruled"] if above is None else [])
    columns = [nodes.colspec(colwidth=1) for _ in kinds]
    top = [nodes.thead("", head)] if table.header else []
    group = nodes.tgroup("", *columns, *top, body, cols=len(kinds))
    size = (["many"] if len(kinds) >= MANY else []) + (["sortable"] if len(body) > ROWS else [])
    yield nodes.table("", group, classes=["printed", *size])


def weave(app: Sphinx, doctree: nodes.document) -> None:
    """Put the tables that code cells have printed in the place of their text."""
    for block in list(doctree.findall(nodes.literal_block)):
        if block.parent.get("nb_element") == "cell_code_output":
            block.replace_self([one for part in parts(block.astext()) for one in woven(part, block)])


def setup(app: Sphinx) -> dict:
    app.connect("doctree-read", weave)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
