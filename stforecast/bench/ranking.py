"""Bar charts of curves, and critical difference diagrams of mean ranks.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, Figure 1.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from data_prep.base.errors import InputError
from stforecast.bench.curves import Curve
from stforecast.bench.drawing import CHARACTERS_PER_INCH, SMALL, TWO_COLUMNS, PlainFigure, panels
from stforecast.bench.run_groups import R
from stforecast.bench.statistics.estimate import LEVEL, Ranking
from stforecast.bench.tables import mean_and_spread, plus_minus

LINE_HEIGHT = 0.12
"""Inches from line to line of small text."""


def score_bars(
    curves: Sequence[Curve[R]], scores: Sequence[np.ndarray], width: float
) -> tuple[PlainFigure, Axes]:
    """Draw the means of each curve's scores `(runs,)` as bars, with whiskers of one deviation."""
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

    A whisker is one length, or two `(2, 1)` to the left and right.
    """
    labels = [textwrap.fill(curve.group.label, int(8 * width)) for curve in curves]
    slots = np.array([label.count("\n") + 1.6 for label in labels])
    middles = slots.cumsum() - slots / 2
    fig, (ax,) = panels(width, 0.5 + LINE_HEIGHT * slots.sum())
    for middle, curve, value, reach, text in zip(
        middles, curves, values, whiskers, texts, strict=True
    ):
        ax.barh(middle, value, 1.2, xerr=reach, color=curve.color, ecolor="0.3", capsize=2)
        beside = ax.get_yaxis_transform()
        ax.text(1.01, middle, text, va="center_baseline", fontsize=SMALL, transform=beside)
    ax.set_yticks(middles, labels)
    ax.set_ylim(slots.sum(), 0)
    ax.grid(visible=False, axis="y")
    ax.tick_params(axis="y", length=0)
    return fig, ax


NAMES = 0.36
"""Maximum share of the figure's width for the names on either side."""

AXIS, TICK, BAR, GAP = 0.6, 0.07, 0.09, 0.06
"""Inches from the top to the axis, of a tick, from bar to bar, and around texts."""

OVERHANG = 0.03
"""Inches by which a bar is longer than from its first rank to its last, on either side."""

LABEL = 0.2
"""Minimum number of inches from one labelled rank to the next."""

LINE: dict[str, Any] = {"color": "0.35", "linewidth": 0.7}

To_x = Callable[[float], float]
"""Turns a rank into inches from the left."""


def draw_ranks(ranking: Ranking, names: Sequence[str], width: float = TWO_COLUMNS) -> PlainFigure:
    """Draw mean ranks on an axis, and bars across methods that do not differ (Nemenyi).

    1, the best rank, is at the left. The ruler above the axis is as long as the critical
    difference. Names of the better half stand at the left, those of the others at the right.
    """
    n = len(ranking.ranks)
    if len(names) != n:
        raise InputError(f"{len(names)} names for {n} mean ranks; give one each")
    labels, margin = _labels(ranking, names, width)
    difference = ranking.critical_difference
    # The ruler must fit, too: of few clients it is longer than the axis.
    length = min(width - 2 * margin, (width - margin - 2 * GAP) * (n - 1) / difference)

    def to_x(rank: float) -> float:
        return margin + length * (rank - 1) / (n - 1)

    order = [int(place) for place in np.argsort(ranking.ranks, kind="stable")]
    left, right = order[: (n + 1) // 2], order[(n + 1) // 2 :][::-1]
    x = [to_x(rank) for rank in ranking.ranks]
    bars = [(x[group[0]], x[group[-1]]) for group in ranking.indistinct_groups()]
    levels = _levels(bars)
    top = AXIS + TICK + BAR * (max(levels, default=0) + 1)
    height = top + max(sum(_height(labels[i]) for i in side) for side in (left, right)) + GAP

    fig, (ax,) = panels(width, height)
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    _draw_axis(ax, n, to_x)
    _draw_ruler(ax, difference, to_x)
    _draw_bars(ax, bars, levels)
    for places, end, align in ((left, to_x(1), "right"), (right, to_x(n), "left")):
        _draw_names(ax, labels, x, places, top, end, align)
    return fig


def _labels(ranking: Ranking, names: Sequence[str], width: float) -> tuple[list[str], float]:
    """Return names with their mean ranks, in lines, and the inches that they need on one side."""
    # Unbreakable spaces keep a rank on one line with the end of its name.
    gap = "\N{NO-BREAK SPACE}" * 2
    texts = [f"{name}{gap}{rank:.2f}" for name, rank in zip(names, ranking.ranks, strict=True)]
    n_characters = min(max(map(len, texts)), int(NAMES * width * CHARACTERS_PER_INCH))
    labels = [textwrap.fill(text, n_characters) for text in texts]
    return labels, n_characters / CHARACTERS_PER_INCH + GAP


def _height(label: str) -> float:
    return LINE_HEIGHT * (label.count("\n") + 1.3)


def _levels(bars: Sequence[tuple[float, float]]) -> list[int]:
    """Return a level for each bar, such that bars of one level have a gap between them."""
    ends: list[float] = []
    levels = []
    for start, end in bars:
        free = (level for level, last in enumerate(ends) if last + 4 * OVERHANG < start)
        level = next(free, len(ends))
        ends[level : level + 1] = [end]
        levels.append(level)
    return levels


def _draw_axis(ax: Axes, n: int, to_x: To_x) -> None:
    """Draw the axis of ranks 1 to `n`, with labels as dense as they are readable."""
    ax.plot((to_x(1), to_x(n)), (AXIS, AXIS), color="0.1", linewidth=1)
    inches = to_x(2) - to_x(1)
    step = next(step for step in (1, 2, 5, 10, 20, 50, n) if step * inches >= LABEL or step >= n)
    for rank in range(1, n + 1):
        labelled = rank == 1 or rank % step == 0
        x, reach = to_x(rank), TICK if labelled else TICK / 2
        ax.plot((x, x), (AXIS - reach, AXIS), color="0.1", linewidth=0.8)
        if labelled and (rank == 1 or (rank - 1) * inches >= LABEL):
            ax.text(x, AXIS - TICK - 0.02, str(rank), fontsize=SMALL, ha="center", va="bottom")


def _draw_ruler(ax: Axes, difference: float, to_x: To_x) -> None:
    """Draw the critical difference from rank 1 on, above the axis."""
    y, ends = AXIS - TICK - 0.25, (to_x(1), to_x(1 + difference))
    ax.plot(ends, (y, y), color="0.1", linewidth=1, gid="critical difference")
    for end in ends:
        ax.plot((end, end), (y - 0.03, y + 0.03), color="0.1", linewidth=1)
    text = f"critical difference {difference:.2f} (Nemenyi, {LEVEL})"
    ax.text(ends[0], y - 0.06, text, fontsize=SMALL, ha="left", va="bottom")


def _draw_bars(ax: Axes, bars: Sequence[tuple[float, float]], levels: Sequence[int]) -> None:
    """Draw the bars below the axis, each at its level."""
    for (start, end), level in zip(bars, levels, strict=True):
        y = AXIS + TICK + BAR * (level + 0.3)
        ends = (start - OVERHANG, end + OVERHANG)
        ax.plot(ends, (y, y), color="0.1", linewidth=2.5, solid_capstyle="butt", gid="bar")


def _draw_names(
    ax: Axes,
    labels: Sequence[str],
    x: Sequence[float],
    places: Sequence[int],
    top: float,
    end: float,
    align: str,
) -> None:
    """Draw the names of one side, from the top, and lines from the axis to them."""
    outwards = GAP if align == "left" else -GAP
    for place in places:
        middle = top + _height(labels[place]) / 2
        top += _height(labels[place])
        ax.plot((x[place], x[place], end + outwards / 2), (AXIS, middle, middle), **LINE)
        text = ax.text(end + outwards, middle, labels[place], fontsize=SMALL, ha=align, va="center")
        text.set(multialignment=align)
