"""Test errors by hour of local time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError
from data_prep.registry import listed
from stforecast.bench.curves import Curve, as_curves
from stforecast.bench.drawing import TWO_COLUMNS, add_legend, panels
from stforecast.bench.numbers import plus_minus
from stforecast.comparison.folds import by_seed, joined_errors, joined_targets
from stforecast.comparison.hours import busy_hours, hourly_load
from stforecast.plots.scores import different_tests, error_name, quantity
from stforecast.results import ForecastRun

BUSY = "#fbe6c2"
"""Background of busy hours: pale, so that no line is lost on it, in print without colour too."""


@listed
def hours(
    runs: Sequence[ForecastRun], *, metric: str = "raw_mae", width: float = TWO_COLUMNS
) -> Figure:
    """Test error by hour of local time, above the mean load of the hours.

    Runs that differ only in the seed are drawn as their mean, in a band of one standard deviation;
    of a backtest, the folds of a seed are pooled.
    A target counts in the hour in which it lies. Busy hours, whose mean load is above the mean of
    all hours, are shaded; of a speed, those below it. The legend gives the error over the targets
    in busy hours and over the others, the lowest error in busy hours first.

    Args:
        runs: runs tested on the same targets.
        metric: name of the error; raw_… is in the data's units.
        width: width of the figure in inches.

    Raises:
        InputError: if the metric is unknown, or the runs were tested on different targets.
    """
    curves = as_curves(runs)
    if different_tests(runs):
        raise InputError(
            "these runs were tested on different targets; draw those of one data set, --split and "
            "--horizon"
        )
    first = joined_targets(runs)
    busy = busy_hours(first)
    tables = [_by_hour(curve, metric, busy) for curve in curves]
    fig, (ax, below) = panels(width, 1.6, 2, sharex=True, height_ratios=(2.5, 1))
    for panel in (ax, below):
        for start, end in spans(busy):
            panel.axvspan(start, end, color=BUSY, linewidth=0, zorder=0.5, label="busy hours")
    for i in np.argsort([next(iter(split.values())) for _, split in tables], kind="stable"):
        curve, (table, split) = curves[i], tables[i]
        more = [f"{part} {plus_minus(error, 0.0)}" for part, error in split.items()]
        curve.draw_mean(ax, table, label=f"{curve.label}: {', '.join(more)}")
    ax.set_ylabel(f"test {error_name(metric, runs)}")
    _draw_load(below, first, quantity(runs[:1]))
    fig.align_ylabels()
    add_legend(fig)
    return fig


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
    ax.axhline(load.mean(), color="0.3", linestyle="--", linewidth=0.9, label="its mean")
    ax.set_ylim(bottom=min(0.0, load.min()))
    ax.set_xlim(-0.5, 23.5)
    ax.set_xticks(range(0, 24, 3))
    ax.set_ylabel("observed")
    zone = forecasts.attrs.get("time_zone")
    ax.set_xlabel(f"hour of local time ({zone})" if zone else "hour of local time")
