"""Bar charts of curves, critical difference diagrams of mean ranks, and scores by one setting.

Demšar: Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006, Figure 1.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from data_prep.base.errors import InputError, Words, choose
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import (
    CHARACTERS_PER_INCH,
    SMALL,
    TWO_COLUMNS,
    PlainFigure,
    add_legend,
    panels,
)
from stforecast.bench.kind import usual_settings
from stforecast.bench.run_groups import R, grouped
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


AXIS, TICK, BAR, GAP = 0.6, 0.07, 0.09, 0.06
"""Inches from the top to the axis, of a tick, from bar to bar, and around texts."""

OVERHANG = 0.03
"""Inches by which a bar is longer than from its first rank to its last, on either side."""

To_x = Callable[[float], float]
"""Turns a rank into inches from the left."""


def draw_ranks(ranking: Ranking, names: Sequence[str], width: float = TWO_COLUMNS) -> PlainFigure:
    """Draw mean ranks on an axis, and bars across methods that do not differ (Nemenyi).

    1, the best rank, is at the left. The ruler above the axis is as long as the critical
    difference. Names of the better half are on the left, the others on the right.
    """
    n = len(ranking.ranks)
    if len(names) != n:
        raise InputError(f"{len(names)} names for {n} mean ranks; give one each")
    # Unbreakable spaces keep a rank on one line with the end of its name.
    gap = "\N{NO-BREAK SPACE}" * 2
    texts = [f"{name}{gap}{rank:.2f}" for name, rank in zip(names, ranking.ranks, strict=True)]
    # The names on either side take at most 36 % of the width.
    n_characters = min(max(map(len, texts)), int(0.36 * width * CHARACTERS_PER_INCH))
    labels = [textwrap.fill(text, n_characters) for text in texts]
    margin = n_characters / CHARACTERS_PER_INCH + GAP
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
    for (start, end), level in zip(bars, levels, strict=True):
        y = AXIS + TICK + BAR * (level + 0.3)
        ends = (start - OVERHANG, end + OVERHANG)
        ax.plot(ends, (y, y), color="0.1", linewidth=2.5, solid_capstyle="butt", gid="bar")
    for places, end, align in ((left, to_x(1), "right"), (right, to_x(n), "left")):
        _draw_names(ax, labels, x, places, top, end, align)
    return fig


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
    apart = 0.2  # Inches from one labelled rank to the next.
    step = next(step for step in (1, 2, 5, 10, 20, 50, n) if step * inches >= apart or step >= n)
    for rank in range(1, n + 1):
        labelled = rank == 1 or rank % step == 0
        x, reach = to_x(rank), TICK if labelled else TICK / 2
        ax.plot((x, x), (AXIS - reach, AXIS), color="0.1", linewidth=0.8)
        if labelled and (rank == 1 or (rank - 1) * inches >= apart):
            ax.text(x, AXIS - TICK - 0.02, str(rank), fontsize=SMALL, ha="center", va="bottom")


def _draw_ruler(ax: Axes, difference: float, to_x: To_x) -> None:
    """Draw the critical difference from rank 1 on, above the axis."""
    y, ends = AXIS - TICK - 0.25, (to_x(1), to_x(1 + difference))
    ax.plot(ends, (y, y), color="0.1", linewidth=1, gid="critical difference")
    for end in ends:
        ax.plot((end, end), (y - 0.03, y + 0.03), color="0.1", linewidth=1)
    text = f"critical difference {difference:.2f} (Nemenyi, {LEVEL})"
    ax.text(ends[0], y - 0.06, text, fontsize=SMALL, ha="left", va="bottom")


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
        ax.plot(
            (x[place], x[place], end + outwards / 2),
            (AXIS, middle, middle),
            color="0.35",
            linewidth=0.7,
        )
        text = ax.text(end + outwards, middle, labels[place], fontsize=SMALL, ha=align, va="center")
        text.set(multialignment=align)


def draw_sweep(
    runs: Sequence[R],
    setting: str | None,
    score: Callable[[Sequence[R]], np.ndarray],
    y_name: Callable[[bool], str],
    width: float,
) -> PlainFigure:
    """Draw scores against one setting, such as tau, with one line for each method.

    Each point is the mean of the runs that differ only in the seed, in a band of one standard
    deviation (with n - 1). Runs are grouped into lines by method and other settings, not by label.
    A method without the setting is a horizontal line. Without a setting, the only number in which
    the runs differ is taken. `y_name` is given whether a point has several seeds.
    """
    as_curves(runs)
    setting = setting or _swept(runs)
    values = _values(runs, setting)
    curves = as_curves(
        [
            dataclasses.replace(
                run,  # Without the setting, and without its label, which is likely to name it.
                about={k: v for k, v in run.about.items() if k != "label"}
                | {"settings": {k: v for k, v in run.settings.items() if k != setting}},
            )
            for run in runs
        ]
    )
    lines = [(curve, _points(curve, values, score)) for curve in curves]
    if not any(len(points) > 1 for _, points in lines):
        raise InputError(
            f"no two of these runs differ in {setting} alone; give runs of a method with several "
            "values of it, all else equal"
        )
    fig, (ax,) = panels(width, 2.3)
    for curve, points in lines:
        _draw(ax, curve, points, setting)
    swept = sorted({value for _, points in lines for value in points if value is not None})
    _scale(ax, swept)
    having = [curve.group.runs[0] for curve, points in lines if None not in points]
    defaults = [usual_settings(run).get(setting) for run in having]
    note = _mark_defaults(ax, [d for d in defaults if _is_number(d)], swept)
    ax.set_xlabel(setting)
    ax.set_ylabel(y_name(any(len(of) > 1 for _, points in lines for of in points.values())))
    add_legend(fig, note)
    return fig


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(runs: Sequence[R]) -> dict[str, set[float]]:
    """Return the values of every numeric setting."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for name, value in run.settings.items():
            if name not in run.no_difference and _is_number(value):
                found.setdefault(name, set()).add(value)
    return found


def _swept(runs: Sequence[R]) -> str:
    """Return the only numeric setting in which the runs differ."""
    differing = [name for name, values in _numbers(runs).items() if len(values) > 1]
    if len(differing) == 1:
        return differing[0]
    found = f"differ in {', '.join(differing)}" if differing else "differ in no number"
    raise InputError(
        f"these runs {found}; ", Words("choose one with {setting}, and runs that differ in it")
    )


def _values(runs: Sequence[R], setting: str) -> dict[Path, float | None]:
    """Return the value of the setting of each run, by folder."""
    numbers = _numbers(runs)
    settings = {run.folder: run.settings.get(setting) for run in runs}
    for run in runs:
        value = settings[run.folder]
        if setting in run.no_difference or not (value is None or _is_number(value)):
            raise InputError(
                f"{run.folder}: {setting} is {value!r}; a sweep needs a number that makes a "
                "difference"
            )
    if setting not in numbers:
        raise choose("setting", setting, numbers)
    return settings


def _points(
    curve: Curve[R],
    values: Mapping[Path, float | None],
    score: Callable[[Sequence[R]], np.ndarray],
) -> dict[float | None, np.ndarray]:
    """Return the scores `(runs,)` of a method by value of the setting, None without the setting."""
    groups = grouped(curve.group.runs, lambda run: values[run.folder])
    if (without := groups.get(None)) and len(groups) > 1:
        raise InputError(
            f"{without[0].folder}: lacks the setting that other runs of {curve.group.name} have; "
            "run it again, or leave it out"
        )
    order = sorted(groups, key=lambda value: value or 0.0)
    return {value: score(groups[value]) for value in order}


def _draw(
    ax: Axes, curve: Curve[R], points: Mapping[float | None, np.ndarray], setting: str
) -> None:
    mean, spread = np.array([mean_and_spread(scores) for scores in points.values()]).T
    low, high, style, band = mean - spread, mean + spread, curve.line, curve.band
    name = curve.group.name
    label = name if np.isfinite(mean).all() else f"{name}, not finite everywhere"
    if None in points:
        ax.axhline(mean[0], label=f"{label}, has no {setting}", **style)
        ax.axhspan(low[0], high[0], **band)
        return
    x = np.array(list(points))
    ax.plot(x, mean, label=label, marker=curve.marker, markersize=3.5, **style)
    ax.fill_between(x, low, high, **band)


def _scale(ax: Axes, values: Sequence[float]) -> None:
    """Make the x axis logarithmic if necessary; linear around 0 if the values include 0."""
    sizes = [abs(value) for value in values if value]
    if not sizes or max(sizes) <= 100 * min(sizes):
        return
    if values[0] > 0:
        ax.set_xscale("log")
    else:
        ax.set_xscale("symlog", linthresh=min(sizes))
    ax.xaxis.set_major_formatter("{x:g}")
    if len(values) <= 8:
        ax.xaxis.set_major_locator(FixedLocator(values))
        ax.xaxis.set_minor_locator(NullLocator())


def _mark_defaults(ax: Axes, defaults: Sequence[float], values: Sequence[float]) -> str:
    """Draw a vertical line at each default; return a note on those outside the values."""
    outside = []
    for default in dict.fromkeys(defaults):
        if values[0] <= default <= values[-1]:
            dots = (0, (1, 1.5))
            ax.axvline(default, color="0.5", linestyle=dots, label=f"default: {default:g}")
        else:
            outside.append(f"{default:g}")
    return f"Default, not in this range: {', '.join(outside)}" if outside else ""
