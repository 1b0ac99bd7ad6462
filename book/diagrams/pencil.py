"""A small pencil: boxes, arrows, labels and grids that become an SVG of a few kilobytes.

    drawing = Diagram(420, 90)
    words = drawing.box(70, 45, "ids", kind="plain")
    table = drawing.box(300, 45, "table", kind="weight", width=120)
    drawing.arrow(words.right, table.left, label="[B, S]")

Lengths are CSS pixels, x grows to the right and y downward, and whatever is placed is placed by its center. A
drawing is at most 480 wide and its letters at least 13 high: the 342 pixels of a phone show them nine high.

A kind is a color, and means the same in every drawing: see `KINDS`. In the file the colors follow the
reader's system; on a page of the book, where the drawing stands in the page itself, they follow the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from math import hypot

Point = tuple[float, float]

# What a color means: (fill, line) on a light page and on a dark one.
KINDS = {
    "plain": ("#f1f4f7", "#5b6b7c", "#232b35", "#93a3b5"),
    "query": ("#d7e8f8", "#1f5f99", "#173650", "#7db8ea"),
    "key": ("#eadcf6", "#74399b", "#37224a", "#c79be8"),
    "value": ("#d6f0e0", "#1a7446", "#143d29", "#74cf9d"),
    "memory": ("#fce5c3", "#a05a00", "#4a3009", "#eeb25c"),
    "logits": ("#fadcdd", "#b02c38", "#4d1c21", "#f0959c"),
    "weight": ("#f3eebf", "#6b6410", "#3b3710", "#d3c95e"),
    "attention": ("#d2efef", "#0f6b70", "#103c3f", "#6fcdd0"),
    "norm": ("#ffffff", "#5b6b7c", "#14181e", "#93a3b5"),
}
PAGE = ("#ffffff", "#14181e")  # the ground, where no page gives one
INK = ("#1f2a37", "#e6ebf0")
LARGEST_WIDTH, SMALLEST_LETTERS = 480, 13
CODE_LETTER = 8.5  # the width of one on a phone, where letters are larger

STYLE = """\
.diagram {{ {light} font: 14px var(--pst-font-family-base, system-ui, sans-serif); }}
@media screen and (prefers-color-scheme: dark) {{
  :root:not([data-theme]) .diagram, .diagram:root {{ {dark} }} }}
@media screen {{ [data-theme="dark"] .diagram {{ {dark} }} }}
@media print {{ .diagram {{ --page: #ffffff; }} }}
.diagram .ground {{ fill: var(--page); }}
.diagram text {{ fill: var(--ink); text-anchor: middle; dominant-baseline: central;
  paint-order: stroke; stroke: none; }}
.diagram .over {{ stroke: var(--page); stroke-width: 5px; stroke-linejoin: round; }}
.diagram .code {{ font: 13px var(--pst-font-family-monospace, ui-monospace, monospace); }}
.diagram .bold {{ font-weight: 600; }}
.diagram .start {{ text-anchor: start; }}
.diagram .end {{ text-anchor: end; }}
.diagram .shape {{ fill: var(--fill); stroke: var(--line); stroke-width: 1.3px; }}
.diagram .wire {{ fill: none; stroke: var(--line); stroke-width: 1.6px; }}
.diagram .dashed {{ stroke-dasharray: 5 4; }}
.diagram .wide {{ stroke-width: 3.5px; }}
.diagram .tip {{ fill: var(--line); }}
.diagram .frame {{ fill: none; stroke: var(--plain-line); stroke-dasharray: 2 4; }}
"""


def colors(dark: bool) -> str:
    """Return the declarations of all colors of a theme."""
    pairs = {
        f"{kind}-{part}": KINDS[kind][2 * dark + i]
        for kind in KINDS
        for i, part in enumerate(("fill", "line"))
    }
    page = f"var(--pst-color-background, {PAGE[dark]})"
    return "".join(
        f"--{name}: {value}; " for name, value in {"page": page, "ink": INK[dark], **pairs}.items()
    ).strip()


def style() -> str:
    """Return the style sheet that every drawing carries."""
    kinds = "".join(
        f".diagram .{kind} {{ --fill: var(--{kind}-fill); --line: var(--{kind}-line); }}\n" for kind in KINDS
    )
    return STYLE.format(light=colors(False), dark=colors(True)) + kinds


def number(value: float) -> str:
    """Write a length without digits that nobody sees."""
    return f"{value:.1f}".removesuffix(".0")


def rich(text: str) -> str:
    """Write `d_{k}` with a subscript and `W^{Q}` with a superscript."""

    def shift(match: re.Match[str]) -> str:
        drop = 4 if match[1] == "_" else -5
        return f'<tspan dy="{drop}" font-size="12.5">{match[2]}</tspan><tspan dy="{-drop}">\u200b</tspan>'

    return re.sub(r"([_^])\{(.*?)\}", shift, escape(text))


@dataclass(frozen=True)
class Box:
    """A rectangle that arrows begin and end at: its center and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def left(self) -> Point:
        return self.x - self.width / 2, self.y

    @property
    def right(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def top(self) -> Point:
        return self.x, self.y - self.height / 2

    @property
    def bottom(self) -> Point:
        return self.x, self.y + self.height / 2


@dataclass
class Diagram:
    """A drawing of a given width and height; later pieces lie over earlier ones."""

    width: float
    height: float
    pieces: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, look: str = "", turn: float = 0) -> None:
        """Write a line of text, turned by degrees, in some of the looks bold, code, start, end and over."""
        place = f'x="{number(x)}" y="{number(y)}"'
        if turn:
            place += f' transform="rotate({number(turn)} {number(x)} {number(y)})"'
        elif "over" in look.split() and " " in text:  # a line must not show through a blank
            width = (CODE_LETTER if "code" in look else 6) * len(text)
            corner = f'x="{number(x - width / 2)}" y="{number(y - 6)}"'
            self.pieces.append(f'<rect {corner} width="{number(width)}" height="12" class="ground"/>')
        self.pieces.append(f'<text {place} class="{look}">{rich(text)}</text>')

    def box(
        self,
        x: float,
        y: float,
        text: str = "",
        kind: str = "plain",
        width: float = 130,
        height: float = 34,
        radius: float = 6,
        look: str = "",
    ) -> Box:
        """Draw a box, with as many lines of text as `text` has."""
        self._rect(x, y, width, height, f"shape {kind}", radius)
        self._lines(x, y, text, look)
        return Box(x, y, width, height)

    def tensor(
        self, x: float, y: float, name: str, kind: str, width: float, height: float, shape: str = ""
    ) -> Box:
        """Draw a tensor: a block with its name inside and its shape, if given, beneath."""
        block = self.box(x, y, name, kind, width, height, radius=0)
        if shape:
            self.text(x, y + height / 2 + 13, shape, "code")
        return block

    def grid(
        self,
        x: float,
        y: float,
        kinds: list[list[str]],
        size: float = 26,
        words: list[list[str]] | None = None,
    ) -> Box:
        """Draw a table of cells: rows of kinds, "" for an empty cell, with words in them if given."""
        rows, columns = len(kinds), len(kinds[0])
        for i, row in enumerate(kinds):
            for j, kind in enumerate(row):
                across, down = x + (j - (columns - 1) / 2) * size, y + (i - (rows - 1) / 2) * size
                self._rect(across, down, size - 2, size - 2, f"shape {kind}" if kind else "frame", 2)
                if words and words[i][j]:
                    self.text(across, down, words[i][j])
        return Box(x, y, columns * size, rows * size)

    def plus(self, x: float, y: float) -> Box:
        """Draw the sum that a residual connection ends in."""
        box = Box(x, y, 20, 20)
        self.pieces.append(f'<circle cx="{number(x)}" cy="{number(y)}" r="10" class="shape norm"/>')
        self._path(f"M{number(x - 5)} {number(y)}h10M{number(x)} {number(y - 5)}v10", "wire plain")
        return box

    def frame(self, x: float, y: float, width: float, height: float) -> Box:
        """Draw a dotted line around what belongs together."""
        self._rect(x, y, width, height, "frame", 12)
        return Box(x, y, width, height)

    def arrow(
        self,
        *points: Point,
        label: str = "",
        kind: str = "plain",
        at: Point | None = None,
        look: str = "code",
        dashed: bool = False,
        wide: bool = False,
        tip: bool = True,
    ) -> None:
        """Draw a line through points to its tip; its label stands at `at`, or on its longest piece."""
        shown = list(points)
        if tip:  # the line ends where the tip begins
            (x0, y0), (x1, y1) = points[-2:]
            length = hypot(x1 - x0, y1 - y0)
            across, down = (x1 - x0) / length, (y1 - y0) / length
            shown[-1] = (x1 - 6 * across, y1 - 6 * down)
        self._path(rounded(shown), f"wire {kind}" + " dashed" * dashed + " wide" * wide)
        if tip:
            back = (x1 - 8 * across, y1 - 8 * down)
            ends = [
                (x1, y1),
                (back[0] - 4 * down, back[1] + 4 * across),
                (back[0] + 4 * down, back[1] - 4 * across),
            ]
            self._path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in ends) + "z", f"tip {kind}")
        if label:
            (x0, y0), (x1, y1) = max(
                pairwise(points), key=lambda ends: hypot(ends[1][0] - ends[0][0], ends[1][1] - ends[0][1])
            )
            middle = ((x0 + x1) / 2, (y0 + y1) / 2)
            self.text(*(at or middle), label, f"{look} over")

    def svg(self) -> str:
        """Return the drawing as the text of a file."""
        size = f'width="{number(self.width)}" height="{number(self.height)}"'
        box = f'viewBox="0 0 {number(self.width)} {number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" class="diagram" {size} {box}>'
        ground = f'<rect {size} class="ground"/>'
        return "\n".join([head, f"<style>\n{style()}</style>", ground, *self.pieces, "</svg>", ""])

    def _rect(self, x: float, y: float, width: float, height: float, look: str, radius: float) -> None:
        corner = f'x="{number(x - width / 2)}" y="{number(y - height / 2)}"'
        size = f'width="{number(width)}" height="{number(height)}" rx="{number(radius)}"'
        self.pieces.append(f'<rect {corner} {size} class="{look}"/>')

    def _lines(self, x: float, y: float, text: str, look: str) -> None:
        lines = text.split("\n") if text else []
        for i, line in enumerate(lines):
            self.text(x, y + 17 * (i - (len(lines) - 1) / 2), line, look)

    def _path(self, path: str, look: str) -> None:
        self.pieces.append(f'<path d="{path}" class="{look}"/>')


def rounded(points: list[Point], radius: float = 8) -> str:
    """Return the path through points, its corners rounded."""
    path = f"M{number(points[0][0])} {number(points[0][1])}"
    for before, corner, after in zip(points, points[1:], points[2:]):
        near = [
            toward(corner, end, min(radius, hypot(corner[0] - end[0], corner[1] - end[1]) / 2))
            for end in (before, after)
        ]
        path += f"L{number(near[0][0])} {number(near[0][1])}"
        path += f"Q{number(corner[0])} {number(corner[1])} {number(near[1][0])} {number(near[1][1])}"
    return path + f"L{number(points[-1][0])} {number(points[-1][1])}"


def toward(start: Point, end: Point, distance: float) -> Point:
    """Return the point at a distance from `start` on the way to `end`."""
    share = distance / (hypot(end[0] - start[0], end[1] - start[1]) or 1)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])
