"""Sizes, colors, lines and markers of figures for papers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from offbeat.errors import OffbeatError

if TYPE_CHECKING:
    from offbeat.report.figure import InlineFigure as Figure

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7A5195", "#000000")
"""Okabe and Ito's colors without yellow, and purple: distinguishable with a color vision deficiency."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")  # 11 and 8 have no common factor
COLUMN, PAGE = 3.4, 7.0  # inches
SMALL, TEXT = 7, 8  # points
DPI = 300

_first: ContextVar[int] = ContextVar("first", default=0)


def inches(width: str) -> float:
    """Return a width in inches, given as column, page or a number of centimeters."""
    if width in ("column", "page"):
        return COLUMN if width == "column" else PAGE
    try:
        found = float(width) / 2.54
    except ValueError:
        found = 0.0
    if not 1 <= found <= 40:
        raise OffbeatError(f"--width: {width!r} is not column, page or a number of centimeters from 2.54 to 101.6")
    return found


def series_style(place: int) -> dict[str, Any]:
    """Return color, line style and marker of a series; the first 88 differ."""
    return {
        "color": COLORS[place % len(COLORS)],
        "linestyle": DASHES[place // len(COLORS) % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


@contextlib.contextmanager
def colors_from(place: int) -> Iterator[None]:
    """Begin the colors of new figures at that of an experiment."""
    token = _first.set(place % len(COLORS))
    try:
        yield
    finally:
        _first.reset(token)


def new_figure(width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure in the size of print, and its axes."""
    from offbeat.report.figure import InlineFigure  # matplotlib takes a moment to import

    figure = InlineFigure(figsize=(width, height), dpi=DPI, layout="constrained")
    return figure, styled(figure.add_subplot())


def styled(axes: Any) -> Any:
    """Return axes with the colors and the text of a figure in the size of print."""
    axes.set_prop_cycle(color=COLORS[_first.get() :] + COLORS[: _first.get()])
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=SMALL)
    for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
        text.set_fontsize(TEXT)
    return axes


def resized(figure: Figure, width: float) -> Figure:
    """Return a figure with another width and the same proportions; the text keeps its size."""
    old, height = figure.get_size_inches()
    figure.set_size_inches(width, height * width / old)
    return figure


def outer_legend(figure: Figure, title: str | None = None) -> None:
    """Add a legend above the axes, where it covers no data."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    longest = max((len(label) for label in labels), default=1)
    columns = int((figure.get_size_inches()[0] - 0.2) / (0.5 + 0.058 * longest))  # a character of 7 points, a handle
    figure.legend(
        handles, labels, loc="outside upper center", ncols=max(1, min(columns, len(labels))), title=title,
        frameon=False, fontsize=SMALL, title_fontsize=SMALL, columnspacing=1.2, handlelength=2.4, borderaxespad=0.1,
    )  # fmt: skip


def whole_numbers(*axes: Any) -> None:
    """Put ticks at integers only; `axes` are those of matplotlib's Axes, such as `axes.xaxis`."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def byte_ticks(axis: Any) -> None:
    """Label the ticks of an axis with kB, MB and so on."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(unit="B"))
