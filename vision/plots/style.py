"""Sizes, colours and panels that the figures share."""

from __future__ import annotations

import math

from matplotlib.axes import Axes

from stforecast.federated.plain_figure import PlainFigure

ONE_COLUMN, TWO_COLUMNS = 3.5, 7.16
"""Widths in inches of one column and of both in a two-column paper (IEEE)."""

TEXT, SMALL = 8, 7
"""Font sizes in points: of axis labels, and of ticks, titles and the legend."""

COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")
"""Told apart by all kinds of colour vision (Okabe and Ito, jfly.uni-koeln.de/color)."""

MARKERS = "osD^vP*X"
"""More classes than colours differ in their markers."""

STYLES = ("-", "--", ":", "-.")
"""More lines than colours differ in their dashes."""


def panels(
    width: float, height: float, n: int = 1, *, n_columns: int = 1, sharey: bool = False
) -> tuple[PlainFigure, list[Axes]]:
    """A figure with `n` plain panels.

    Args:
        width: width of the figure in inches.
        height: height of a row of panels in inches.
        n: number of panels.
        n_columns: panels in a row.
        sharey: whether all have one y axis.
    """
    n_rows = math.ceil(n / n_columns)
    fig = PlainFigure(figsize=(width, height * n_rows), layout="constrained")
    axes = list(fig.subplots(n_rows, n_columns, squeeze=False, sharey=sharey).flat)
    for ax in axes[n:]:
        ax.remove()
    for ax in axes[:n]:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=SMALL)
        ax.grid(color="0.92", linewidth=0.6)
        ax.set_axisbelow(True)
    return fig, axes[:n]


def class_look(place: int) -> tuple[str, str]:
    """Colour and marker of the points of the class at a place."""
    return COLORS[place % len(COLORS)], MARKERS[place // len(COLORS) % len(MARKERS)]


def line_look(place: int) -> tuple[str, str]:
    """Colour and dashes of the line at a place in the legend."""
    return COLORS[place % len(COLORS)], STYLES[place // len(COLORS) % len(STYLES)]


def legend_below(fig: PlainFigure) -> None:
    """Put a legend of the figure's labelled artists under it, and make room for it."""
    labels = [a.get_legend_handles_labels()[1] for a in fig.axes]
    longest = max((len(label) for some in labels for label in some), default=0)
    # A label takes a handle of four letters, and a letter some half of the font's size.
    width = (longest + 6) * 0.55 * SMALL / 72
    n_columns = max(1, int(fig.get_figwidth() / width))
    legend = fig.legend(loc="outside lower center", ncols=n_columns, frameon=False, fontsize=SMALL)
    fig.write_plainly()
    fig.set_figheight(fig.get_figheight() + legend.get_window_extent().height / fig.dpi)
