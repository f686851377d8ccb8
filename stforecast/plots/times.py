"""Test errors by hour of local time and by time ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator

from stforecast.bench.curves import (
    HUES,
    MOST_TOGETHER,
    PANEL,
    Curve,
    as_curves,
    draw_curves,
    outer_labels,
)
from stforecast.bench.drawing import ONE_COLUMN, TWO_COLUMNS, add_legend, panels
from stforecast.bench.ranking import bar_panel
from stforecast.bench.run_groups import by_step
from stforecast.bench.tables import plus_minus, short
from stforecast.comparison.errors import (
    SEASONAL,
    SEASONAL_METHOD,
    busy_hours,
    hour_spans,
    hour_title,
    hourly_load,
)
from stforecast.comparison.names import time_ahead
from stforecast.comparison.rows import by_seed, joined_errors, joined_targets
from stforecast.forecasting.results import ForecastRun
from stforecast.plots import scores
from stforecast.plots.figure import figure

BUSY = "#fbe6c2"
"""Background of busy hours: pale, so that no line is lost on it, in print without colour too."""


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
    scores.refuse_different_tests(runs)
    first = joined_targets(runs)
    busy = busy_hours(first)
    tables = [_by_hour(curve, metric, busy) for curve in curves]
    order = np.argsort([next(iter(split.values())) for _, split in tables], kind="stable")
    curves, tables = [curves[i] for i in order], [tables[i] for i in order]
    labels = [_label(curve, split) for curve, (_, split) in zip(curves, tables, strict=True)]
    name = f"test {scores.error_name(metric, runs)}"
    if len(curves) > MOST_TOGETHER:
        table_of = {c.group.name: table for c, (table, _) in zip(curves, tables, strict=True)}

        def draw(ax: Axes, curve: Curve[ForecastRun], label: str) -> None:
            curve.draw_mean(ax, table_of[curve.group.name], label=label)

        fig, axes = draw_curves(curves, labels, draw, width, PANEL)
        outer_labels(axes, _axis(first), name, width, PANEL)
    else:
        fig, axes = panels(width, 1.6, 2, sharex=True, height_ratios=(2.5, 1))
        for curve, (table, _), label in zip(curves, tables, labels, strict=True):
            curve.draw_mean(axes[0], table, label=label)
        axes[0].set_ylabel(name)
        _draw_load(axes[1], first, scores.quantity(runs[:1]))
        axes[1].set_xlabel(_axis(first))
        fig.align_ylabels(axes)
    for ax in axes:
        hour_axis(ax, busy)
    add_legend(fig)
    return fig


def _label(curve: Curve[ForecastRun], split: Mapping[str, float]) -> str:
    more = [f"{part} {plus_minus(error, 0.0)}" for part, error in split.items()]
    return f"{curve.group.label}: {', '.join(more)}"


def _axis(forecasts: xr.Dataset) -> str:
    return hour_title(forecasts.attrs.get("time_zone"))


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
        style: dict[str, Any] = {"color": BUSY, "linewidth": 0, "zorder": 0.5}
        ax.axvspan(begin - 0.5, end - 0.5, label="busy hours", **style)
    ax.set_xlim(-0.5, 23.5)
    ax.set_xticks(range(0, 24, every))


def _draw_load(ax: Axes, forecasts: xr.Dataset, name: str) -> None:
    load = hourly_load(forecasts)
    ax.bar(load.index, load, width=1, color="0.6", linewidth=0, label=f"mean observed {name}")
    ax.axhline(load.mean(), color="0.3", linestyle=":", linewidth=0.9, label="its mean")
    ax.set_ylim(bottom=min(0.0, load.min()))
    ax.set_ylabel("observed")


NAIVE: dict[str, Any] = {"label": SEASONAL, "color": HUES[-1], "linestyle": (0, (1, 1))}
NAIVE["linewidth"] = 1.0
"""Style of the line of seasonal naive."""

MOST_MINUTES = 120
"""Longest time ahead on an axis of minutes."""

HEIGHT = 2.3
"""Height of a single panel in inches."""


@figure
def horizon(
    runs: Sequence[ForecastRun], *, metric: str = "raw_mae", width: float = ONE_COLUMN
) -> Figure:
    """Test error by time ahead, pooled over clients; with one step, a bar for each curve.

    Runs that differ only in the seed are drawn as their mean, with whiskers from lowest to highest.
    Curves are sorted by their mean error, the best first; more than six have a panel each. A dotted
    grey line is seasonal naive, which repeats the day before. It is left out if the runs have
    different targets, or if one of them is of `seasonal_day`, which is the same method.

    Args:
        runs: finished runs.
        metric: name of the error; raw_… is in the data's units.
        width: width of the figure in inches.
    """
    unsorted = as_curves(runs)
    tables = [pd.concat([_step_errors(r, metric) for r in c.group.runs], axis=1) for c in unsorted]
    order = np.argsort([_mean(table).mean() for table in tables], kind="stable")
    curves, tables = [unsorted[i] for i in order], [tables[i] for i in order]
    name = f"test {scores.error_name(metric, runs)}"
    repeated = any(run.method == SEASONAL_METHOD for run in runs)
    naive = None if repeated else scores.seasonal_errors(runs, metric)
    levels = None if naive is None else naive.by_step()
    if all(len(table) == 1 for table in tables):
        return _bars(curves, tables, levels, name, width)
    places, axis = axis_ahead(runs, max(table.index.max() for table in tables))
    table_of = {curve.group.name: table for curve, table in zip(curves, tables, strict=True)}
    labels = [
        curve.group.label + ("" if np.isfinite(_mean(table)).all() else ", not finite everywhere")
        for curve, table in zip(curves, tables, strict=True)
    ]

    def draw(ax: Axes, curve: Curve[ForecastRun], label: str) -> None:
        table = table_of[curve.group.name]
        points = {} if curve.faint else {"marker": curve.marker, "markersize": 3.5}
        whiskers = None if curve.faint else _whiskers(table)
        x = places[curve.group.runs[0].folder][table.index - 1]
        ax.errorbar(x, _mean(table), whiskers, label=label, **{**curve.line, **points})

    fig, axes = draw_curves(curves, labels, draw, width, HEIGHT)
    for ax in axes:
        if levels is not None:
            ax.plot(places[runs[0].folder][levels.index - 1], levels, **NAIVE)
        ax.xaxis.set_major_locator(axis.locator())
    outer_labels(axes, axis.label, name, width, HEIGHT)
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
    ahead = {time_ahead(1, run) for curve in curves for run in curve.group.runs} - {"step 1"}
    ax.set_xlabel(f"{name}, {ahead.pop()} ahead" if len(ahead) == 1 else name)
    if naive is not None:
        style = {**NAIVE, "label": f"{SEASONAL}: {short(naive.iloc[0])}"}
        ax.axvline(naive.iloc[0], **style)
        add_legend(fig)
    return fig


class AheadAxis(NamedTuple):
    """Label and ticks of an axis of times ahead."""

    label: str
    locator: Callable[[], Locator]


def axis_ahead(
    runs: Sequence[ForecastRun], n_steps: int
) -> tuple[dict[Path, np.ndarray], AheadAxis]:
    """Return an axis of minutes or hours ahead, or of steps if their length is not known.

    With it come the places of the steps 1 to `n_steps` on it, by the run's folder.
    """
    whole = partial(MaxNLocator, "auto", integer=True, steps=[1, 2, 3, 6, 10], min_n_ticks=1)
    steps = np.arange(1, n_steps + 1)
    lengths = {run.folder: float(run.about.get("step_minutes", math.nan)) for run in runs}
    if not all(map(math.isfinite, lengths.values())):
        return dict.fromkeys(lengths, steps), AheadAxis("steps ahead", whole)
    minutes = {folder: steps * length for folder, length in lengths.items()}
    longest = n_steps * max(lengths.values())
    if longest > MOST_MINUTES:
        hours = {folder: places / 60 for folder, places in minutes.items()}
        return hours, AheadAxis("hours ahead", whole)
    return minutes, AheadAxis("minutes ahead", partial(MultipleLocator, 15 if longest > 30 else 5))


def _step_errors(run: ForecastRun, metric: str) -> pd.Series:
    table = by_step(scores.error_rows(run, metric))
    return table.set_index(table["horizon"].astype(int))["value"].sort_index()


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
