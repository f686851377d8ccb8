"""Test errors by hour of local time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stforecast.bench.curves import MOST_TOGETHER, Curve, as_curves
from stforecast.bench.drawing import TWO_COLUMNS, add_legend, panels
from stforecast.bench.multiples import PANEL, draw_curves, outer_labels
from stforecast.bench.numbers import plus_minus
from stforecast.comparison.folds import by_seed, joined_errors, joined_targets
from stforecast.comparison.hours import busy_hours, hour_title, hourly_load
from stforecast.plots.figure import figure
from stforecast.plots.scores import error_name, quantity, refuse_different_tests
from stforecast.results import ForecastRun

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

    Raises:
        InputError: if the metric is unknown, or the runs were tested on different targets.
    """
    curves = as_curves(runs)
    refuse_different_tests(runs)
    first = joined_targets(runs)
    busy = busy_hours(first)
    tables = [_by_hour(curve, metric, busy) for curve in curves]
    order = np.argsort([next(iter(split.values())) for _, split in tables], kind="stable")
    curves, tables = [curves[i] for i in order], [tables[i] for i in order]
    labels = [_label(curve, split) for curve, (_, split) in zip(curves, tables, strict=True)]
    name = f"test {error_name(metric, runs)}"
    if len(curves) > MOST_TOGETHER:
        table_of = {c.name: table for c, (table, _) in zip(curves, tables, strict=True)}

        def draw(ax: Axes, curve: Curve[ForecastRun], label: str) -> None:
            curve.draw_mean(ax, table_of[curve.name], label=label)

        fig, axes = draw_curves(curves, labels, draw, width, PANEL)
        outer_labels(axes, _axis(first), name, width, PANEL)
    else:
        fig, axes = panels(width, 1.6, 2, sharex=True, height_ratios=(2.5, 1))
        for curve, (table, _), label in zip(curves, tables, labels, strict=True):
            curve.draw_mean(axes[0], table, label=label)
        axes[0].set_ylabel(name)
        _draw_load(axes[1], first, quantity(runs[:1]))
        axes[1].set_xlabel(_axis(first))
        fig.align_ylabels(axes)
    for ax in axes:
        for start, end in spans(busy):
            ax.axvspan(start, end, color=BUSY, linewidth=0, zorder=0.5, label="busy hours")
        ax.set_xlim(-0.5, 23.5)
        ax.set_xticks(range(0, 24, 3))
    add_legend(fig)
    return fig


def _label(curve: Curve[ForecastRun], split: Mapping[str, float]) -> str:
    more = [f"{part} {plus_minus(error, 0.0)}" for part, error in split.items()]
    return f"{curve.label}: {', '.join(more)}"


def _axis(forecasts: xr.Dataset) -> str:
    return hour_title(forecasts.attrs.get("time_zone"))


def _by_hour(
    curve: Curve[ForecastRun], metric: str, busy: Sequence[int]
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return errors by hour `(24, runs)`, and the mean over runs in busy and in other hours."""
    errors = [joined_errors(of_seed, metric) for of_seed in by_seed(curve.runs)]
    others = [hour for hour in range(24) if hour not in busy]
    split = {
        name: float(np.mean([found.in_hours(chosen) for found in errors]))
        for name, chosen in (("busy", busy), ("other", others))
        if chosen
    }
    return pd.concat([found.by_hour() for found in errors], axis=1), split


def spans(busy: Sequence[int]) -> Iterator[tuple[float, float]]:
    """Return start and end of successive hours.

    >>> list(spans([0, 1, 22]))
    [(-0.5, 1.5), (21.5, 22.5)]
    """
    for _, members in groupby(enumerate(busy), lambda item: item[1] - item[0]):
        of_span = [hour for _, hour in members]
        yield of_span[0] - 0.5, of_span[-1] + 0.5


def _draw_load(ax: Axes, forecasts: xr.Dataset, name: str) -> None:
    load = hourly_load(forecasts)
    ax.bar(load.index, load, width=1, color="0.6", linewidth=0, label=f"mean observed {name}")
    ax.axhline(load.mean(), color="0.3", linestyle=":", linewidth=0.9, label="its mean")
    ax.set_ylim(bottom=min(0.0, load.min()))
    ax.set_ylabel("observed")
