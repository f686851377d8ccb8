"""Bar charts with one bar for each curve and a text next to it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from stforecast.bench.curves import Curve
from stforecast.bench.drawing import SMALL, panels
from stforecast.bench.numbers import mean_and_spread, plus_minus
from stforecast.bench.plain_figure import PlainFigure
from stforecast.bench.run_groups import R

LINE_HEIGHT = 0.12
"""Inches from line to line of small text."""


def score_bars(
    curves: Sequence[Curve[R]], scores: Sequence[np.ndarray], width: float
) -> tuple[PlainFigure, Axes]:
    """Draw means of scores as bars, with whiskers of one standard deviation (with n - 1) and texts.

    Args:
        curves: curves to draw as bars.
        scores: `(runs,)` scores of each curve.
        width: width of the figure in inches.
    """
    found = [mean_and_spread(some) for some in scores]
    whiskers = [None if len(s) == 1 else reach for s, (_, reach) in zip(scores, found, strict=True)]
    means, texts = np.array([mean for mean, _ in found]), [plus_minus(*score) for score in found]
    return bar_panel(curves, means, whiskers, texts, width)


def bar_panel(
    curves: Sequence[Curve[R]],
    values: np.ndarray,
    whiskers: Sequence[float | np.ndarray | None],
    texts: Sequence[str],
    width: float,
) -> tuple[PlainFigure, Axes]:
    """Draw one bar for each curve, the first on top, and a column of texts to their right.

    Args:
        curves: curves to draw as bars.
        values: `(curves,)` lengths.
        whiskers: lengths of each bar's whiskers `(2, 1)`, to the left and right, or None.
        texts: text to the right of each bar.
        width: width of the figure in inches.
    """
    labels = [textwrap.fill(curve.label, int(8 * width)) for curve in curves]
    slots = np.array([label.count("\n") + 1.6 for label in labels])
    middles = slots.cumsum() - slots / 2
    fig, (ax,) = panels(width, 0.5 + LINE_HEIGHT * slots.sum())
    for middle, curve, value, reach, text in zip(
        middles, curves, values, whiskers, texts, strict=True
    ):
        ax.barh(middle, value, 1.2, xerr=reach, color=curve.color, ecolor="0.3", capsize=2)
        ax.text(
            1.01,
            middle,
            text,
            va="center_baseline",
            fontsize=SMALL,
            transform=ax.get_yaxis_transform(),
        )
    ax.set_yticks(middles, labels)
    ax.set_ylim(slots.sum(), 0)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return fig, ax
