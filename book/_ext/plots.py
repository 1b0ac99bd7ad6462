"""A plot stands in the page itself: on its ground, in its ink and its letters, in the light and in the dark.

The notebooks keep what Matplotlib drew, in its own style and with every letter as a path. When the book is
built, the letters become text again; black becomes the page's ink and white its ground; grays lie between;
Matplotlib's ten colors become the book's, which a color-blind reader can tell apart; and the frame around the
axes becomes two thin lines. A map, whose tones are its values, keeps them, as if printed on paper. With
whole paths and few digits a plot weighs a quarter of what it did. `book.css` has the colors, and on a screen
as narrow as a phone's it shows, instead of a plot, the narrow form that the notebook keeps beside it.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from html import escape, unescape
from io import BytesIO
from math import cos, radians, sin
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import nbformat
from docutils import nodes
from PIL import Image
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

KIND = "image/svg+xml"
SVG, HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
PIXELS = 4 / 3  # in a point
SMALL = 460  # points, about one panel: on a phone such a plot can be narrower
WHITE = 240  # of 255, or lighter
SIZE = 10  # Matplotlib's letters, in points; the style sheet gives those of the page as high an x
LEAST = 0.88  # of them: smaller could not be read on a tablet, and the page's letters are narrower
CYCLE = "1f77b4 ff7f0e 2ca02c d62728 9467bd 8c564b e377c2 7f7f7f bcbd22 17becf".split()
# What Matplotlib would write for itself and a page need not read.
DEFAULTS = {
    "fill": "currentcolor",
    "stroke": "none",
    "stroke-dashoffset": "0",
    "stroke-linecap": "butt",
    "stroke-linejoin": "round",
}
# What lies on the paper of a map, beside its axes.
ON_PAPER = {
    "", "image", "line2d", "patch", "text", "legend", "LineCollection", "PathCollection", "QuadContourSet",
}  # fmt: skip
SIGNS = {r"\times": "×", r"\cdot": " · ", r"\,": "\u2009", r"\varepsilon": "ε", r"\sqrt": "√"}


def style_of(element: Element) -> dict[str, str]:
    pairs = (item.partition(":") for item in element.get("style", "").split(";"))
    return {name.strip(): value.strip() for name, _, value in pairs if value}


def number(value: float | str) -> str:
    """Write a length in points without the digits that nobody sees."""
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def rounded(text: str) -> str:
    return re.sub(r"-?\d+\.\d+(?:e-?\d+)?", lambda found: number(found[0]), text)


def outline(path: str) -> str:
    """Write the commands of a path, each once for all points that follow it."""
    written, before = [], ""
    for command, points in re.findall(r"([A-Za-z])([^A-Za-z]*)", rounded(path)):
        goes_on = command == before and command in "LQC"
        written += [" " if goes_on else command, " ".join(points.split())]
        before = command
    return "".join(written)


def paint(color: str) -> str:
    """Say a color of Matplotlib's in the colors of the page."""
    digits = color.removeprefix("#")
    if digits in CYCLE and digits != "7f7f7f":
        return f"var(--plot-{CYCLE.index(digits)})"
    if digits == "ffffff":
        return "var(--plot-ground)"
    if len(digits) == 6 and digits[:2] == digits[2:4] == digits[4:]:
        share = 100 - int(digits[:2], 16) / 2.55
        mixed = f"color-mix(in srgb,currentcolor {share:.0f}%,var(--plot-ground))"
        return "currentcolor" if share == 100 else mixed
    return color


def look(style: dict[str, str]) -> str:
    """Write a style as an attribute, in the colors of the page."""
    said = []
    for name, value in style.items():
        written = paint(value) if name in ("fill", "stroke") else rounded(value)
        if DEFAULTS.get(name) != written:
            said.append(f"{name}:{written}")
    return f' style="{";".join(said)}"' if said else ""


# Labels ----------------------------------------------------------------------------------------------


def shifted(sign: str, text: str) -> str:
    """A subscript or a superscript; after it, the line goes on where it was."""
    drop = 0.22 if sign == "_" else -0.38
    back = f'<tspan dy="{-0.83 * drop:.3g}em">\u200b</tspan>'
    return f'<tspan dy="{drop}em" class="shifted">{text}</tspan>{back}'


def typeset(formula: str) -> str:
    """Write the little TeX that a label has."""
    text = re.sub(r"\\math(?:default|rm)", "", formula)
    for command, sign in SIGNS.items():
        text = text.replace(command, sign)
    if "\\" in text:
        raise ValueError(f"book/_ext/plots.py cannot read {formula!r} in the label of a plot")
    text = re.sub(r" *· *", " · ", text)
    text = re.sub(r"(?<![a-z{])([a-z])(?![a-z])", r"<i>\1</i>", text)
    text = re.sub(
        r"([_^])(?:\{([^{}]*)\}|(<i>.</i>|.))", lambda part: shifted(part[1], part[2] or part[3]), text
    )
    text = re.sub(r"<i>(.)</i>", r'<tspan font-style="italic">\1</tspan>', text)
    return re.sub(r"[{}]", "", text)


def words(label: str) -> str:
    """A label, as Matplotlib notes it in a comment, as the text of an SVG; between dollars stand formulas."""
    parts = escape(unescape(label).strip()).split("$")
    return "".join(typeset(part) if place % 2 else part for place, part in enumerate(parts))


class Letters:
    """Where the labels of a drawing lie, which are drawn glyph by glyph."""

    def __init__(self, root: Element) -> None:
        glyphs = [path for path in root.iter(f"{SVG}path") if path.get("transform") == f"scale({1 / 64})"]
        self.widths = {
            glyph.get("id"): max((x for x, _ in points_of(glyph)), default=0) / 64 for glyph in glyphs
        }

    def width(self, label: Element) -> float:
        """The width of a label before it is scaled."""
        ends = [0.0]
        for glyph in label.iter(f"{SVG}use"):
            given = {name: values[0] for name, values in transform_of(glyph).items()}
            width = self.widths[glyph.get(HREF, "")[1:]]
            ends.append(given.get("translate", 0) + given.get("scale", 1) * width)
        return max(ends)

    def text(self, comment: str, label: Element, anchor: float, inherited: dict[str, str]) -> str:
        """Write a label as text that is held at its beginning (0), its middle (0.5) or its end (1)."""
        x, y, turn, scale = place(label)
        along = anchor * self.width(label) * scale
        x, y = number(x + along * cos(radians(turn))), number(y + along * sin(radians(turn)))
        where = f'transform="translate({x} {y}) rotate({number(turn)})"' if turn else f'x="{x}" y="{y}"'
        size = max(LEAST, 100 * scale / SIZE)
        fonts = " ".join(glyph.get(HREF, "") for glyph in label.iter(f"{SVG}use"))
        font = "code" if "Mono" in fonts else "bold" if "Bold" in fonts else ""
        attributes = [
            where,
            f'text-anchor="{("start", "middle", "end")[round(2 * anchor)]}"' if anchor else "",
            f'class="{font}"' if font else "",
            f'font-size="{number(size)}em"' if abs(size - 1) > 0.01 else "",
        ]
        style = look(inherited | style_of(label))
        return f"<text {' '.join(filter(None, attributes))}{style}>{words(comment)}</text>"


def transform_of(element: Element) -> dict[str, list[float]]:
    found = re.findall(r"(\w+)\(([^)]*)\)", element.get("transform", ""))
    return {name: [float(value) for value in values.split()] for name, values in found}


def place(label: Element) -> tuple[float, float, float, float]:
    """Where a label begins, how far it is turned, and how it is scaled."""
    found = transform_of(label)
    x, y = found["translate"]
    return x, y, found.get("rotate", [0])[0], found["scale"][0]


# Drawings --------------------------------------------------------------------------------------------


def kind(element: Element) -> str:
    """What Matplotlib calls a group, without its number."""
    return re.sub(r"_\d+$", "", element.get("id", "")) if isinstance(element.tag, str) else ""


def is_map(axes: Element) -> bool:
    """Tell whether axes hold what shows values by tones: a picture, or filled areas between contours."""
    contours = [
        path for group in axes if kind(group) == "QuadContourSet" for path in group.iter(f"{SVG}path")
    ]
    filled = any(style_of(path).get("fill", "none") != "none" for path in contours)
    return filled or axes.find(f".//{SVG}image") is not None


def is_white(axes: Element) -> bool:
    """Tell whether a map has white for nothing, as ours of attention have, not a color for every value."""
    images = [image.get(HREF, "").partition("base64,")[2] for image in axes.iter(f"{SVG}image")]
    return bool(images) and all(brightest(image) >= WHITE for image in images)


def brightest(image: str) -> int:
    """The least of the three parts of the lightest color in a picture."""
    with Image.open(BytesIO(b64decode(image))) as picture:
        return max(
            min(color[:3]) for _, color in picture.convert("RGB").getcolors(picture.width * picture.height)
        )


def points_of(path: Element) -> list[tuple[float, float]]:
    """The points that a path names, corners and others."""
    return [(float(x), float(y)) for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.get("d", ""))]


def corners_of(patch: Element) -> list[tuple[float, float]]:
    return [point for path in patch.iter(f"{SVG}path") for point in points_of(path)]


def is_spine(group: Element) -> bool:
    """Tell whether a group is one of the four lines of a frame."""
    return kind(group) == "patch" and len(corners_of(group)) == 2


def is_on(group: Element, axis: int, value: float) -> bool:
    """Tell whether all points of a group have this coordinate."""
    return all(abs(corner[axis] - value) < 0.01 for corner in corners_of(group))


def without_black(axis: Element) -> Element:
    """Leave the color of an axis and of its ticks to the style sheet."""
    for element in axis.iter():
        if style_of(element).get("stroke") == "#000000":
            del element.attrib["style"]
    return axis


def without_frame(legend: Element) -> Element:
    """Leave of a legend's box the ground."""
    for path in legend[0].iter(f"{SVG}path"):
        path.set("style", re.sub(r"stroke: [^;]*", "stroke: none", path.get("style", "")))
    return legend


class Plot:
    """A drawing of Matplotlib's, about to be written for the page.

    Args:
        source: what a notebook holds.
        name: what the ids of the drawing begin with, on a page that has several.
    """

    def __init__(self, source: str, name: str) -> None:
        parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
        self.root = ElementTree.fromstring(source, parser)
        self.letters = Letters(self.root)
        used = re.findall(r'(?:url\(|xlink:href=")#([\w-]+)', source)
        self.ids = {old: f"{name}-{number}" for number, old in enumerate(dict.fromkeys(used))}

    def html(self, alt: str, form: str = "") -> str:
        """Write the drawing, which a screen reader announces as `alt`; of two forms a page shows one."""
        _, _, width, height = self.root.get("viewBox", "").split()
        classes = f"plot {form}".strip() + " small" * (form != "narrow" and float(width) <= SMALL)
        pixels = f'width="{float(width) * PIXELS:.0f}" height="{float(height) * PIXELS:.0f}"'
        begin = f'<svg class="{classes}" role="img" aria-label="{escape(alt)}" {pixels}'
        return f'{begin} viewBox="0 0 {number(width)} {number(height)}">{self.all(self.root)}</svg>'

    def part(self, element: Element, anchor: float = 0.5) -> str:
        """Write a group of the drawing, by what it is."""
        match kind(element):
            case "figure":
                return self.all(element[1:])  # the first of them is the ground
            case "axes":
                return self.axes(element)
            case "text":
                return self.label(element, anchor)
            case "legend":
                return self.all(without_frame(element), anchor=0)
            case "xtick" | "ytick":
                return self.all(element, anchor=self.side(element))
            case "matplotlib.axis" | "axis" | "edge":
                return f'<g class="axis">{self.all(without_black(element))}</g>'
        return self.shape(element, anchor)

    def all(self, elements: Iterable[Element], anchor: float = 0.5) -> str:
        return "".join(self.part(element, anchor) for element in elements)

    def axes(self, axes: Element) -> str:
        """Write axes: without their ground and the lines above and to the right, unless they hold a map."""
        ground = next((group for group in axes if kind(group) == "patch"), axes)
        corners = corners_of(ground)
        left, right = min(x for x, _ in corners), max(x for x, _ in corners)
        top, bottom = min(y for _, y in corners), max(y for _, y in corners)
        for group in axes:
            if is_spine(group):
                group.set("id", "edge_0" if is_on(group, 0, right) or is_on(group, 1, top) else "axis_0")
        if not is_map(axes):
            return self.all(group for group in axes if group is not ground and kind(group) != "edge")

        def is_inside(group: Element) -> bool:
            labels = [place(label) for label in group if "scale" in label.get("transform", "")]
            within = all(left <= x <= right and top <= y <= bottom for x, y, _, _ in labels)
            return within and kind(group) in ON_PAPER

        parts: dict[bool, list[Element]] = {True: [], False: []}
        for group in axes:
            parts[is_inside(group)].append(group)
        paper = "paper white" if is_white(axes) else "paper"
        return f'<g class="{paper}">{self.all(parts[True])}</g>{self.all(parts[False])}'

    def side(self, tick: Element) -> float:
        """Where a tick's label is held: at the end that is nearer to the tick, or at its middle under one."""
        label = next((group for group in tick.iter(f"{SVG}g") if "scale" in group.get("transform", "")), None)
        mark = tick.find(f".//{SVG}use[@x]")
        if label is None or mark is None:
            return 0.5
        x, y, turn, _ = place(label)
        if kind(tick) == "ytick":
            return float(x < float(mark.get("x", 0)))
        return float(y > float(mark.get("y", 0))) if turn else 0.5

    def label(self, group: Element, anchor: float) -> str:
        """Write the lines of a label: each is a comment with its words, and then its glyphs."""
        written, comment = [], None
        for child in group:
            if child.tag is ElementTree.Comment:
                comment = child.text
            elif comment is None:
                written.append(self.part(child))  # its box
            else:
                written.append(self.letters.text(comment, child, anchor, style_of(group)))
        return "".join(written)

    def shape(self, element: Element, anchor: float) -> str:
        """Write lines and areas, and what is around them where that has an effect."""
        tag = f"{element.tag}".removeprefix(SVG)
        if tag in ("metadata", "style") or element.get("id", "") in self.letters.widths:
            return ""
        attributes = "".join(self.attributes(element, tag))
        inner = self.all(element, anchor)
        if tag in ("g", "defs") and not (inner and attributes):
            return inner if tag == "g" or not inner else f"<defs>{inner}</defs>"
        return f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes}/>"

    def attributes(self, element: Element, tag: str) -> Iterator[str]:
        for name, value in element.items():
            if name == "id":
                if value in self.ids:
                    yield f' id="{self.ids[value]}"'
            elif name == "d":
                yield f' d="{outline(value)}"'
            elif name == HREF:
                yield f' href="{value if value.startswith("data:") else "#" + self.ids[value[1:]]}"'
            elif name == "clip-path":
                yield f' clip-path="url(#{self.ids[value[5:-1]]})"'
            elif name == "style":
                yield look(style_of(element))
            else:
                yield f' {name}="{rounded(value)}"'


class TakeIn(SphinxTransform):
    """Replace the pictures that cells drew, before Sphinx collects the pictures of a page."""

    default_priority = 500

    def apply(self) -> None:
        images = [image for image in self.document.findall(nodes.image) if is_plot(image)]
        narrow_forms = read_narrow_forms(Path(self.env.doc2path(self.env.docname))) if images else {}
        for place, image in enumerate(images):
            source = Path(f"{self.env.srcdir}{image['uri']}").read_text(encoding="utf8")
            alt, narrow = image.get("alt", ""), narrow_forms.get(fingerprint(source))
            drawing = Plot(source, f"plot{place}").html(alt, "wide" if narrow else "")
            if narrow:
                drawing += Plot(narrow, f"plot{place}n").html(alt, "narrow")
            image.replace_self(nodes.raw("", f'<div class="picture">{drawing}</div>', format="html"))


def fingerprint(drawing: str) -> int:
    """What tells a drawing from the others on a page, however its lines end."""
    return hash(tuple(drawing.split()))


def read_narrow_forms(path: Path) -> dict[int, str]:
    """The narrow forms that a notebook keeps, by the plots that they belong to: see `book/narrow.py`."""
    if path.suffix != ".ipynb":
        return {}
    cells = nbformat.read(path, as_version=4).cells
    plots = [output for cell in cells for output in cell.get("outputs", []) if KIND in output.get("data", {})]
    forms = ((plot.data[KIND], plot.metadata.get(KIND, {}).get("narrow")) for plot in plots)
    return {fingerprint(wide): narrow for wide, narrow in forms if narrow}


def is_plot(image: nodes.image) -> bool:
    """Tell whether a picture is an output of a cell, which myst-nb keeps beside the book that it builds."""
    return "jupyter_execute" in image["uri"] and image["uri"].endswith(".svg")


def setup(app: Sphinx) -> dict:
    app.add_transform(TakeIn)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
