"""Calibration of prediction intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from stforecast.bench.curves import (
    MOST_TOGETHER,
    PANEL,
    Curve,
    as_curves,
    columns,
    outer_labels,
    small_panels,
    title_panel,
)
from stforecast.bench.drawing import TWO_COLUMNS, add_legend, panels
from stforecast.comparison.errors import ModelErrors, busy_hours, hour_title
from stforecast.comparison.rows import joined_coverages, joined_targets
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure
from stforecast.plots.forecasts import with_intervals
from stforecast.plots.scores import refuse_different_tests
from stforecast.plots.times import hour_axis

IDEAL: dict[str, Any] = {"color": "0.3", "linestyle": "--", "linewidth": 0.9}
"""Style of the line at which coverage is as promised."""

MIDDLE = (0.1, 0.9)
"""Quantiles of clients between which the bands lie."""

APART = 0.008
"""Distance of two methods' bars on the axis of nominal coverages."""


@figure
def calibration(runs: Sequence[ForecastRun], *, width: float = TWO_COLUMNS) -> Figure:
    """Coverage of the intervals on the test part, observed against nominal, and by hour.

    On the left the nominal and the observed coverage of each interval, one for each pair of
    --quantiles; bars reach from the lowest client to the highest. On the right the coverage of the
    widest interval by hour of local time: a line for all clients, and a band in which the middle
    80 % of clients lie. Busy hours, as in `hours`, are shaded. More than six methods have a panel
    each, with the coverage by hour only, the method closest to its nominal coverage first. Runs
    that differ only in the seed and the folds of a backtest are pooled.

    Args:
        runs: runs with intervals (`--intervals`, or `--loss quantile`) tested on the same targets.
        width: width of the figure in inches.
    """
    curves, note = with_intervals(as_curves(runs))
    runs = [run for curve in curves for run in curve.group.runs]
    refuse_different_tests(runs)
    found = [joined_coverages(curve.group.runs) for curve in curves]
    forecasts = joined_targets(runs)
    hour = hour_title(forecasts.attrs.get("time_zone"))
    if len(curves) > MOST_TOGETHER:
        return _each_alone(curves, found, busy_hours(forecasts), hour, note, width)
    fig, (left, right) = panels(width, 2.4, 2, n_columns=2)
    _draw_levels(left, curves, found)
    for curve, by_level in zip(curves, found, strict=True):
        right.axhline(max(by_level), **IDEAL)
        _draw_hours(right, curve, by_level[max(by_level)])
    hour_axis(right, busy_hours(forecasts))
    right.set_xlabel(hour)
    right.set_ylabel("coverage of the widest interval")
    for ax in (left, right):
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    add_legend(fig, note)
    return fig


def _each_alone(
    curves: Sequence[Curve[ForecastRun]],
    found: Sequence[dict[float, ModelErrors]],
    busy: Sequence[int],
    hour: str,
    note: str,
    width: float,
) -> Figure:
    """Draw the coverage by hour of each method in a panel of its own, the closest one first."""
    widest = [(max(by_level), by_level[max(by_level)]) for by_level in found]
    pooled = [float(c.finalise(c.total.sum(), c.weight.sum())) for _, c in widest]
    misses = [abs(share - level) for share, (level, _) in zip(pooled, widest, strict=True)]
    fig, axes = small_panels(width, len(curves))
    for ax, i in zip(axes, np.argsort(misses, kind="stable"), strict=True):
        level, coverage = widest[i]
        ax.axhline(level, label="as promised", **IDEAL)
        _draw_hours(ax, curves[i].alone, coverage)
        text = f"{curves[i].group.label}: {pooled[i]:.1%} of {level:.0%}"
        title_panel(ax, text, width / columns(width))
        hour_axis(ax, busy, every=6)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    outer_labels(axes, hour, "coverage", width, PANEL)
    add_legend(fig, note)
    return fig


def _draw_levels(
    ax: Axes, curves: Sequence[Curve[ForecastRun]], found: Sequence[dict[float, ModelErrors]]
) -> None:
    """Draw observed against nominal coverage, with bars from the lowest client to the highest."""
    levels = sorted({level for by_level in found for level in by_level})
    margin = APART * (len(curves) + 4)
    ends = (levels[0] - margin, levels[-1] + margin)
    ax.plot(ends, ends, label="as promised", **IDEAL)
    for i, (curve, by_level) in enumerate(zip(curves, found, strict=True)):
        # Beside each other, so that the bars of several methods can be told apart.
        x = np.array(list(by_level)) + APART * (i - (len(curves) - 1) / 2)
        clients = [coverage.by_cell() for coverage in by_level.values()]
        ax.vlines(x, np.nanmin(clients, axis=1), np.nanmax(clients, axis=1), **curve.line)
        pooled = [c.finalise(c.total.sum(), c.weight.sum()) for c in by_level.values()]
        ax.plot(x, pooled, curve.marker, color=curve.color, markersize=4, label=curve.group.label)
    ax.set_xticks(levels, [f"{100 * level:g}%" for level in levels])
    ax.set_xlim(*ends)
    ax.set_xlabel("nominal coverage")
    ax.set_ylabel("coverage of clients and of all")


def _draw_hours(ax: Axes, curve: Curve[ForecastRun], coverage: ModelErrors) -> None:
    """Draw coverage by hour: all clients as a line, the middle 80 % of them as a band."""
    by_hour = coverage.by_hour()
    ax.plot(by_hour.index, by_hour, **curve.line)
    total, weight = coverage.by_cell_and_hour()
    known = np.flatnonzero(weight.any(axis=0))
    clients = coverage.finalise(total, weight)[:, known]
    low, high = np.nanquantile(clients, MIDDLE, axis=0)
    ax.fill_between(known, low, high, **curve.band)
