"""Curves in one panel, or as small multiples where they are too many to be told apart."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from stforecast.bench.curves import MOST_TOGETHER, Curve
from stforecast.bench.drawing import CHARACTERS_PER_INCH, ONE_COLUMN, SMALL, panels
from stforecast.bench.plain_figure import PlainFigure
from stforecast.bench.run_groups import R

PANEL = 1.25
"""Height of a small panel in inches."""

UNNAMED = "_"
"""Label of what does not appear in a legend."""

Draw = Callable[[Axes, Curve[R], str], None]
"""Draws a curve with a label."""


def draw_curves(
    curves: Sequence[Curve[R]],
    labels: Sequence[str],
    draw: Draw[R],
    width: float,
    height: float,
    *,
    sharey: bool = True,
    behind: Callable[[Curve[R], Curve[R]], bool] = lambda curve, other: True,
) -> tuple[PlainFigure, list[Axes]]:
    """Draw curves together; more than six each in a panel of its own, the others behind it in grey.

    Args:
        curves: the curves.
        labels: text of each in the legend, or the title of its panel.
        draw: draws one curve.
        width: width of the figure in inches.
        height: height of a single panel in inches.
        sharey: whether small panels have one y axis.
        behind: whether the second curve is drawn behind the first.
    """
    if len(curves) <= MOST_TOGETHER:
        fig, (ax,) = panels(width, height)
        for curve, label in zip(curves, labels, strict=True):
            draw(ax, curve, label)
        return fig, [ax]
    fig, axes = small_panels(width, len(curves), sharey=sharey)
    for ax, curve, label in zip(axes, curves, labels, strict=True):
        for other in curves:
            if other is not curve and behind(curve, other):
                draw(ax, other.behind, UNNAMED)
        draw(ax, curve.alone, UNNAMED)
        title_panel(ax, label, width / columns(width))
    return fig, axes


def small_panels(
    width: float, n: int, *, sharey: bool = True, height: float = PANEL
) -> tuple[PlainFigure, list[Axes]]:
    """Create small panels that share their x axis."""
    return panels(width, height, n, n_columns=columns(width), sharex=True, sharey=sharey)


def columns(width: float) -> int:
    """Return the number of small panels in a row."""
    return 3 if width > ONE_COLUMN else 2


def title_panel(ax: Axes, text: str, width: float) -> None:
    """Write a title above a small panel, in lines of its width in inches."""
    n_characters = int(0.85 * width * CHARACTERS_PER_INCH)
    ax.set_title(textwrap.fill(text, n_characters), fontsize=SMALL - 0.5, loc="left")


def outer_labels(axes: Sequence[Axes], x: str, y: str, width: float, height: float) -> None:
    """Label the axes at the left and in the last row of a grid of panels.

    Panels above a gap in the last row have numbers alone.

    Args:
        axes: the panels, row by row.
        x: label of the x axes.
        y: label of the y axes, in lines as long as a panel is high.
        width: width of the figure in inches.
        height: height of a single panel in inches.
    """
    in_row = columns(width) if len(axes) > 1 else 1
    lines = textwrap.fill(y, int(CHARACTERS_PER_INCH * (PANEL if len(axes) > 1 else height) * 0.8))
    x = textwrap.fill(x, int(CHARACTERS_PER_INCH * width / in_row * 0.85))
    for i, ax in enumerate(axes):
        ax.set_xlabel(x if i // in_row == (len(axes) - 1) // in_row else "")
        ax.tick_params(axis="x", labelbottom=i + in_row >= len(axes))
        ax.set_ylabel("" if i % in_row else lines)
