"""A second rendering of every plot, for screens as narrow as a phone's.

`execute.py` loads this into the kernels that run the chapters. Whenever a cell shows a figure, the figure is
drawn once more, 340 CSS pixels wide: panels stand below each other, letters keep a size at which they can be
read, titles break into lines, and legends move below their axes. The drawing goes into the metadata of the
output, where Jupyter, GitHub and Colab show nothing of it; `book/_ext/plots.py` puts it into the page.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

KIND = "image/svg+xml"
WIDTH = 340 / 96  # inches, as all lengths here
SMALL, LARGE = 8, 9  # points; the page's letters are a little larger than Matplotlib's
HEIGHT, TALLEST = 2.3, 2.9  # of a panel that is no map
ROOM = 0.04  # beside a line of text
LINE, LETTER = 0.15, 0.065  # of the labels of a map: from one to the next, and along one


NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d{2,}(?![\w%])")


def load_ipython_extension(shell: Any) -> None:
    """Have every figure that this kernel shows as an SVG drawn in its narrow form too."""
    from IPython.core import pylabtools

    pylabtools.print_figure = with_narrow_form(pylabtools.print_figure)


def with_narrow_form(print_figure: Callable) -> Callable:
    """Return a `print_figure` that gives an SVG together with the metadata of the output."""

    def print_both(fig: Figure, fmt: str = "png", **options: Any) -> Any:
        wide = print_figure(fig, fmt=fmt, **options)
        if fmt != "svg" or wide is None:
            return wide
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a warning would stand under the cell
                return wide, {"narrow": draw(fig)}
        except Exception as error:  # IPython would show no picture at all; execute.py says it and stops
            return wide, {"error": f"{type(error).__name__}: {error}"}

    return print_both


def draw(figure: Figure) -> str:
    """Lay `figure` out anew, for good, and return it as an SVG of one line."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.transforms import Bbox

    if not hasattr(figure.canvas, "get_renderer"):
        FigureCanvasAgg(figure)  # a figure made without pyplot has nothing to measure its letters with
    stack(figure)
    legends = [*filter(None, (ax.get_legend() for ax in figure.axes)), *figure.legends]
    for legend in legends:
        legend.set_in_layout(False)
    for text in figure.findobj(is_text):
        text.set_fontsize(SMALL if text.get_fontsize() < LARGE else LARGE)
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        sizes = {label.get_fontsize() for label in axis.get_ticklabels()}
        if len(sizes) == 1:
            axis.set_tick_params(labelsize=sizes.pop())  # of ticks that are made later, too
    for _ in range(2):  # what the first pass changes, the second sees
        figure.draw_without_rendering()
        for ax in figure.axes:
            spread(ax)
        wrap(figure)
        shrink(figure)
    for legend in legends:
        move(figure, legend)
    figure.draw_without_rendering()
    drawn = figure.get_tightbbox()
    page = StringIO()
    whole = Bbox([[0, drawn.y0 - 0.04], [WIDTH, drawn.y1 + 0.04]])
    figure.savefig(page, format="svg", bbox_inches=whole, metadata={"Date": None})
    return compact(page.getvalue())


def is_text(artist: Any) -> bool:
    return hasattr(artist, "get_fontsize") and hasattr(artist, "get_text")


# Panels ----------------------------------------------------------------------------------------------


def place_of(ax: Axes) -> tuple[int, int] | None:
    """The row and the column of a panel, or none of what stands beside one, such as a scale of colors."""
    spec = ax.get_subplotspec()
    if spec is None or ax.get_label() == "<colorbar>":
        return None
    spec = spec.get_topmost_subplotspec()
    return spec.rowspan.start, spec.colspan.start


def panels_of(figure: Figure) -> tuple[list[list[Axes]], int]:
    """The panels in reading order, each with the axes that lie on it, and the number of rows."""
    found: dict[tuple[int, int], list[Axes]] = {}
    for ax in figure.axes:
        if (place := place_of(ax)) is not None and ax.get_visible():
            found.setdefault(place, []).append(ax)
    return [found[place] for place in sorted(found)], len({row for row, _ in found}) or 1


def is_map(ax: Axes) -> bool:
    return bool(ax.images) and ax.get_aspect() != "auto"


def stack(figure: Figure) -> None:
    """Put the panels below each other; of small maps two stand in a row."""
    panels, rows = panels_of(figure)
    width, height = figure.get_size_inches()
    natural = height / rows
    across = len(panels) / rows  # panels in a row of the wide form
    maps = all(is_map(axes[0]) for axes in panels)
    beside = (3, 2) if maps else ()
    columns = next((number for number in beside if fits(panels, number, width / across)), 1)
    if len(panels) > 1 and across > 1:
        number = -(-len(panels) // columns)
        grid = figure.add_gridspec(number, columns)
        for order, axes in enumerate(panels):
            for ax in axes:
                put(ax, grid[order // columns, order % columns])
                if not maps:
                    ax.xaxis.set_tick_params(labelbottom=True)
                if columns == 1 or order % columns == 0:
                    ax.yaxis.set_tick_params(labelleft=True)
        rows = number
    if not maps and len(panels) > 1 and across > 1:
        natural = min(max(natural, HEIGHT), TALLEST)
    elif maps:
        natural = max(axes_ratio(axes[0]) for axes in panels) * WIDTH / columns + 0.8
    figure.set_layout_engine("constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.04, hspace=0.04 if rows > 1 else 0, wspace=0.02)
    figure.set_size_inches(WIDTH, natural * rows + (0.3 if figure._suptitle else 0))


def fits(panels: list[list[Axes]], number: int, width: float) -> bool:
    """Tell whether so many maps can stand side by side, with all their labels and not much smaller."""
    if len(panels) < number or width > 1.4 * WIDTH / number:
        return False
    beside = max(label_length(axes[0].get_yticklabels()) for axes in panels)
    across = max(len([text for text in axes[0].get_xticklabels() if text.get_text()]) for axes in panels)
    titles = max(len(axes[0].get_title()) for axes in panels)
    return max(LETTER * beside + LINE * across, LETTER * titles / 2) <= WIDTH / number


def label_length(labels: list[Text]) -> int:
    return max((len(label.get_text()) for label in labels), default=0)


def put(ax: Axes, spec: Any) -> None:
    """Give a panel its place; one that shares it with its scale of colors brings that along."""
    inner = ax.get_subplotspec().get_gridspec()
    if hasattr(inner, "_subplot_spec"):
        inner._subplot_spec = spec
    else:
        ax.set_subplotspec(spec)


def axes_ratio(ax: Axes) -> float:
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    return abs((high - low) / (right - left))


def shrink(figure: Figure) -> None:
    """Take out the height that maps, whose cells are square, leave empty in their rows."""
    panels, _ = panels_of(figure)
    slack: dict[int, float] = {}
    for axes in panels:
        ax = axes[0]
        row = ax.get_subplotspec().get_topmost_subplotspec().rowspan.start
        given, taken = ax.get_position(original=True), ax.get_position()
        slack[row] = min(slack.get(row, 1), given.height - taken.height)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height * (1 - max(0, sum(slack.values()))))
    figure.draw_without_rendering()


# Letters ---------------------------------------------------------------------------------------------


def width_of(artist: Any) -> float:
    """The width of what was drawn, in inches."""
    return artist.get_window_extent().width / artist.get_figure(root=True).dpi


def pieces(text: str) -> list[str]:
    """The words of a label; a formula between dollars is one."""
    return re.findall(r"(?:\$[^$]*\$|[^\s$])+", text)


def broken(text: Text, room: float) -> None:
    """Break a label into lines that are as wide as `room`."""
    if width_of(text) <= room or "\n" in text.get_text():
        return
    lines = [""]
    for word in pieces(text.get_text()):
        text.set_text(f"{lines[-1]} {word}".strip())
        if lines[-1] and width_of(text) > room:
            lines.append(word)
        else:
            lines[-1] = text.get_text()
    text.set_text("\n".join(lines))


def wrap(figure: Figure) -> None:
    """Break titles and the labels of axes that are longer than there is room."""
    columns = max(1, len({place[1] for ax in figure.axes if (place := place_of(ax))}))
    room = WIDTH / columns - 2 * ROOM
    if figure._suptitle:
        broken(figure._suptitle, WIDTH - 2 * ROOM)
    for ax in figure.axes:
        if place_of(ax) is None:
            continue
        box = ax.get_window_extent()
        dpi = figure.dpi
        middle = (box.x0 + box.x1) / 2 / dpi
        left, right = (middle - room / 2, middle + room / 2) if columns > 1 else (ROOM, WIDTH - ROOM)
        half = 2 * min(middle - left, right - middle)
        for text in (ax.title, ax.xaxis.label):
            broken(text, half)
        stand(ax.yaxis.label, box.height / dpi + 0.3)


def stand(label: Text, room: float) -> None:
    """Break a label that stands beside an axis, by the height that it has."""
    height = label.get_window_extent().height / label.get_figure(root=True).dpi
    if height <= room or "\n" in label.get_text():
        return
    words = pieces(label.get_text())
    halves = [(" ".join(words[:cut]), " ".join(words[cut:])) for cut in range(1, len(words))]
    if halves:
        label.set_text("\n".join(min(halves, key=lambda pair: max(map(len, pair)))))


def spread(ax: Axes) -> None:
    """Leave out or turn labels of ticks that run into each other."""
    labels = [label for label in ax.get_xticklabels() if label.get_text() and label.get_visible()]
    boxes = [label.get_window_extent() for label in labels]
    gap = 3 if all(is_number(label.get_text()) for label in labels) else 5
    if not any(one.x1 + gap > two.x0 for one, two in zip(boxes, boxes[1:]) if one.x0 <= two.x0):
        return
    if all(label.get_rotation() % 180 == 90 for label in labels):
        return
    if gap == 3:
        thin(ax, labels)
    else:
        ax.tick_params(axis="x", labelrotation=90)


def is_number(text: str) -> bool:
    return bool(re.fullmatch(r"\$?[\s\d.,%+\-−–{}^\\a-z×]*\$?k?", text)) and bool(re.search(r"\d", text))


def thin(ax: Axes, labels: list[Text]) -> None:
    """Label every other tick."""
    ticks, texts = list(ax.get_xticks()), [label.get_text() for label in ax.get_xticklabels()]
    if ax.xaxis.get_scale() != "linear" or len(ticks) != len(texts):
        return
    ax.set_xticks(ticks[::2], texts[::2])


# Legends ---------------------------------------------------------------------------------------------


def move(figure: Figure, legend: Legend) -> None:
    """Put a legend below its axes, or below all of them, in as many columns as there is room for."""
    handles, labels = legend.legend_handles, [text.get_text() for text in legend.get_texts()]
    owner, title = legend.axes, legend.get_title().get_text()
    legend.remove()
    look = {
        "fontsize": SMALL, "title_fontsize": SMALL, "title": title or None, "edgecolor": "none",
        "handlelength": 1.4, "handletextpad": 0.5, "columnspacing": 1.0, "labelspacing": 0.25,
        "borderaxespad": 0, "borderpad": 0.2,
    }  # fmt: skip
    for columns in range(len(labels), 0, -1):
        if owner is None:
            made = figure.legend(handles, labels, loc="outside lower center", ncols=columns, **look)
        else:
            made = owner.legend(handles, labels, loc="upper center", ncols=columns, **look)
        if columns == 1 or width_of(made) <= WIDTH - 2 * ROOM:
            break
        made.remove()
    if owner is not None:
        below(figure, owner, made)


def below(figure: Figure, ax: Axes, legend: Legend) -> None:
    """Hang a legend under the labels of the horizontal axis, in the middle of the page."""
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    axis = ax.xaxis.get_tightbbox(figure.canvas.get_renderer())
    depth = (ax.get_window_extent().y0 - axis.y0) / figure.dpi + 0.06 if axis else 0.06
    place = blended_transform_factory(figure.transFigure, ax.transAxes)
    legend.set_bbox_to_anchor((0.5, 0), place + ScaledTranslation(0, -depth, figure.dpi_scale_trans))


# The file --------------------------------------------------------------------------------------------


def compact(svg: str) -> str:
    """Leave out what `plots.py` does not read: of a letter it needs the width, of a number few digits."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'(<path id="[^"]*" d=")([^"]*)(" transform="scale\(0\.015625\)"/>)', flat_letter, svg)
    svg = re.sub(
        r"<[^!][^>]*>", lambda tag: NUMBER.sub(short, tag[0]), svg
    )  # not in a comment, which is a label
    return re.sub(r">\s+<", "><", " ".join(svg.split()))


def flat_letter(letter: re.Match[str]) -> str:
    across = [float(x) for x, _ in re.findall(r"(-?[\d.]+) (-?[\d.]+)", letter[2])]
    return f"{letter[1]}M {max(across, default=0):.0f} 0{letter[3]}"


def short(found: re.Match[str]) -> str:
    """A tenth of a point is nothing on a screen; where it is a share of a small thing, a hundredth is."""
    number = found[0]
    digits = 1 if abs(float(number)) >= 10 else 2
    return number if number == "0.015625" else f"{float(number):.{digits}f}".rstrip("0").rstrip(".")
