"""Test errors by hour of local time and by time ahead, and the calibration of intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator

from stforecast.bench.charts import bar_panel
from stforecast.bench.curves import (
    HUES,
    MOST_TOGETHER,
    Curve,
    as_curves,
    best_first,
    columns,
    draw_curves,
    outer_labels,
    small_panels,
    title_panel,
)
from stforecast.bench.drawing import ONE_COLUMN, TWO_COLUMNS, add_legend, panels
from stforecast.bench.run_groups import by_step
from stforecast.bench.tables import plus_minus, short
from stforecast.comparison import names
from stforecast.comparison.errors import (
    SEASONAL,
    SEASONAL_METHODS,
    ModelErrors,
    busy_hours,
    hour_spans,
    hour_title,
    hourly_load,
)
from stforecast.comparison.rows import by_seed, joined_coverages, joined_errors, joined_targets
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.figure import figure
from stforecast.plots.forecasts import with_intervals


@figure
def hours(
    runs: Sequence[ForecastRun], *, metric: str = "raw_mae", width: float = TWO_COLUMNS
) -> Figure:
    """Test error by hour of local time, above the mean load of the hours.

    Runs that differ only in the seed are drawn as their mean, in a band of one standard deviation;
    for a backtest, the folds of a seed are pooled. A target counts in the hour in which it lies.
    Busy hours, whose mean load is above the mean of all hours, are shaded; for speeds, those below
    the mean. The legend gives the error over the targets in busy hours and over the others, the
    lowest error in busy hours first. More than six methods have a panel each, without the load.

    Args:
        runs: runs tested on the same targets.
        metric: name of the error; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    names.refuse_different_tests(runs)
    first = joined_targets(runs)
    busy = busy_hours(first)
    tables = [_by_hour(curve, metric, busy) for curve in curves]
    curves, tables = best_first(curves, tables, lambda found: next(iter(found[1].values())))
    labels = []
    for curve, (_, split) in zip(curves, tables, strict=True):
        more = [f"{part} {plus_minus(error, 0.0)}" for part, error in split.items()]
        labels.append(f"{curve.group.label}: {', '.join(more)}")
    axis = hour_title(first.attrs.get("time_zone"))
    name = f"test {names.error_name(metric, runs)}"
    if len(curves) > MOST_TOGETHER:

        def draw(ax: Axes, curve: Curve[ForecastRun], table: pd.DataFrame, label: str) -> None:
            curve.draw_mean(ax, table, label=label)

        by_hour = [table for table, _ in tables]
        fig, axes = draw_curves(curves, by_hour, labels, draw, width)
        outer_labels(axes, axis, name, width)
    else:
        fig, axes = panels(width, 1.6, 2, sharex=True, height_ratios=(2.5, 1))
        for curve, (table, _), label in zip(curves, tables, labels, strict=True):
            curve.draw_mean(axes[0], table, label=label)
        axes[0].set_ylabel(name)
        load, mean = hourly_load(first), f"mean observed {names.quantity(runs[:1])}"
        axes[1].bar(load.index, load, width=1, color="0.6", linewidth=0, label=mean)
        axes[1].axhline(load.mean(), color="0.3", linestyle=":", linewidth=0.9, label="its mean")
        axes[1].set_ylim(bottom=min(0.0, load.min()))
        axes[1].set_ylabel("observed")
        axes[1].set_xlabel(axis)
        fig.align_ylabels(axes)
    for ax in axes:
        hour_axis(ax, busy)
    add_legend(fig)
    return fig


def _by_hour(
    curve: Curve[ForecastRun], metric: str, busy: Sequence[int]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return errors by hour `(24, runs)`, and the mean over runs in busy and in other hours."""
    errors = [joined_errors(r, metric) for r in by_seed(curve.group.runs)]
    others = [hour for hour in range(24) if hour not in busy]
    split = {
        name: float(np.mean([found.in_hours(chosen) for found in errors]))
        for name, chosen in (("busy", busy), ("other", others))
        if chosen
    }
    return pd.concat([found.by_hour() for found in errors], axis=1), split


def hour_axis(ax: Axes, busy: Sequence[int], every: int = 3) -> None:
    """Format the x axis for the hours of a day, and shade busy ones."""
    for begin, end in hour_spans(busy):
        # Pale, so that no line is lost on it, in print without colour too.
        span = ax.axvspan(begin - 0.5, end - 0.5, color="#fbe6c2", linewidth=0, zorder=0.5)
        span.set_label("busy hours")
    ax.set_xlim(-0.5, 23.5)
    ax.set_xticks(range(0, 24, every))


NAIVE: dict[str, Any] = {
    "label": SEASONAL,
    "color": HUES[-1],
    "linestyle": (0, (1, 1)),
    "linewidth": 1.0,
}
"""Style of the line of seasonal naive."""


@figure
def horizon(
    runs: Sequence[ForecastRun], *, metric: str = "raw_mae", width: float = ONE_COLUMN
) -> Figure:
    """Test error by time ahead, pooled over clients; with one step, a bar for each curve.

    Runs that differ only in the seed are drawn as their mean, with whiskers from lowest to highest.
    Curves are sorted by their mean error, the best first; more than six have a panel each. A dotted
    grey line is seasonal naive, which repeats the day or the week before. It is left out if the
    runs have different targets, or if one of them is of `seasonal_day` or `seasonal_week`.

    Args:
        runs: finished runs.
        metric: name of the error; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    tables = []
    for curve in curves:
        errors = [by_step(names.error_rows(run, metric)) for run in curve.group.runs]
        steps = [t.set_index(t["horizon"].astype(int))["value"].sort_index() for t in errors]
        tables.append(pd.concat(steps, axis=1))
    curves, tables = best_first(curves, tables, lambda table: _mean(table).mean())
    name = f"test {names.error_name(metric, runs)}"
    repeated = any(run.method in SEASONAL_METHODS for run in runs)
    naive = None if repeated else names.seasonal_errors(runs, metric)
    levels = None if naive is None else naive.by_step()
    if all(len(table) == 1 for table in tables):
        return _bars(curves, tables, levels, name, width)
    places, axis, locator = axis_ahead(runs, max(table.index.max() for table in tables))
    labels = [
        curve.group.label + ("" if np.isfinite(_mean(table)).all() else ", not finite everywhere")
        for curve, table in zip(curves, tables, strict=True)
    ]

    def draw(ax: Axes, curve: Curve[ForecastRun], table: pd.DataFrame, label: str) -> None:
        points = {} if curve.faint else {"marker": curve.marker, "markersize": 3.5}
        whiskers = None if curve.faint else _whiskers(table)
        x = places[curve.group.runs[0].folder][table.index - 1]
        ax.errorbar(x, _mean(table), whiskers, label=label, **{**curve.line, **points})

    fig, axes = draw_curves(curves, tables, labels, draw, width)
    for ax in axes:
        if levels is not None:
            ax.plot(places[runs[0].folder][levels.index - 1], levels, **NAIVE)
        ax.xaxis.set_major_locator(locator())
    outer_labels(axes, axis, name, width)
    add_legend(fig)
    return fig


def _bars(
    curves: Sequence[Curve[ForecastRun]],
    tables: Sequence[pd.DataFrame],
    naive: pd.Series | None,
    name: str,
    width: float,
) -> Figure:
    """Draw the errors of the only step ahead."""
    means = np.concatenate([_mean(table) for table in tables])
    texts = [short(mean) for mean in means]
    fig, ax = bar_panel(curves, means, [_whiskers(table) for table in tables], texts, width)
    ahead = {names.time_ahead(1, run) for curve in curves for run in curve.group.runs} - {"step 1"}
    ax.set_xlabel(f"{name}, {ahead.pop()} ahead" if len(ahead) == 1 else name)
    if naive is not None:
        style = {**NAIVE, "label": f"{SEASONAL}: {short(naive.iloc[0])}"}
        ax.axvline(naive.iloc[0], **style)
        add_legend(fig)
    return fig


def axis_ahead(
    runs: Sequence[ForecastRun], n_steps: int
) -> tuple[dict[Path, np.ndarray], str, Callable[[], Locator]]:
    """Return an axis of minutes or hours ahead, or of steps if their length is not known.

    It consists of the places of the steps 1 to `n_steps` on it by the run's folder, its label, and
    what makes its ticks.
    """
    whole = partial(MaxNLocator, "auto", integer=True, steps=[1, 2, 3, 6, 10], min_n_ticks=1)
    steps = np.arange(1, n_steps + 1)
    lengths = {run.folder: float(run.about.get("step_minutes", math.nan)) for run in runs}
    if not all(map(math.isfinite, lengths.values())):
        return dict.fromkeys(lengths, steps), "steps ahead", whole
    minutes = {folder: steps * length for folder, length in lengths.items()}
    longest = n_steps * max(lengths.values())
    if longest > 120:
        hours = {folder: places / 60 for folder, places in minutes.items()}
        return hours, "hours ahead", whole
    return minutes, "minutes ahead", partial(MultipleLocator, 15 if longest > 30 else 5)


def _mean(table: pd.DataFrame) -> np.ndarray:
    """Return the mean over runs `(horizon,)`; NaN where a run has no error."""
    return table.mean(axis=1, skipna=False).to_numpy()


def _whiskers(table: pd.DataFrame) -> np.ndarray | None:
    """Return the distances of the lowest and highest run from the mean, `(2, horizon)`."""
    if table.shape[1] == 1:
        return None
    mean = _mean(table)
    reach = np.array([mean - table.min(axis=1), table.max(axis=1) - mean])
    return reach.clip(min=0)  # The mean of equal numbers may be off by its rounding.


IDEAL: dict[str, Any] = {"color": "0.3", "linestyle": "--", "linewidth": 0.9}
"""Style of the line at which coverage is as promised."""


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
    names.refuse_different_tests(runs)
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
        ax.yaxis.set_major_formatter(_per_cent)
    add_legend(fig, note)
    return fig


def _per_cent(share: float, _: object = None) -> str:
    """Label a tick, such as 77.5% between 75% and 80%."""
    return f"{100 * share:.4g}%"


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
        ax.yaxis.set_major_formatter(_per_cent)
    outer_labels(axes, hour, "coverage", width)
    add_legend(fig, note)
    return fig


def _draw_levels(
    ax: Axes, curves: Sequence[Curve[ForecastRun]], found: Sequence[dict[float, ModelErrors]]
) -> None:
    """Draw observed against nominal coverage, with bars from the lowest client to the highest."""
    levels = sorted({level for by_level in found for level in by_level})
    apart = 0.008  # Between two methods' bars on the axis of nominal coverages.
    margin = apart * (len(curves) + 4)
    ends = (levels[0] - margin, levels[-1] + margin)
    ax.plot(ends, ends, label="as promised", **IDEAL)
    for i, (curve, by_level) in enumerate(zip(curves, found, strict=True)):
        # Beside each other, so that the bars of several methods can be told apart.
        x = np.array(list(by_level)) + apart * (i - (len(curves) - 1) / 2)
        clients = [coverage.by_cell() for coverage in by_level.values()]
        ax.vlines(x, np.nanmin(clients, axis=1), np.nanmax(clients, axis=1), **curve.line)
        pooled = [c.finalise(c.total.sum(), c.weight.sum()) for c in by_level.values()]
        ax.plot(x, pooled, curve.marker, color=curve.color, markersize=4, label=curve.group.label)
    ax.set_xticks(levels, [_per_cent(level) for level in levels])
    ax.set_xlim(*ends)
    ax.set_xlabel("nominal coverage")
    ax.set_ylabel("coverage of clients and of all")


def _draw_hours(ax: Axes, curve: Curve[ForecastRun], coverage: ModelErrors) -> None:
    """Draw coverage by hour: all clients as a line, the middle 80 % of them as a band."""
    by_hour = coverage.by_hour()
    ax.plot(by_hour.index, by_hour, **curve.line)
    total, weight = coverage.by_cell_and_hour()
    known = np.flatnonzero(weight.any(axis=0))
    bounds = np.full((2, len(by_hour)), np.nan)
    shares = coverage.finalise(total, weight)[:, known]
    bounds[:, known] = np.nanquantile(shares, (0.1, 0.9), axis=0)
    ax.fill_between(by_hour.index, *bounds, **curve.band)
