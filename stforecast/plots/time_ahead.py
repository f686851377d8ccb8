"""Test errors by time ahead."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, MaxNLocator, MultipleLocator

from stforecast.bench.bars import bar_panel
from stforecast.bench.curves import HUES, Curve, as_curves
from stforecast.bench.drawing import ONE_COLUMN, add_legend
from stforecast.bench.multiples import draw_curves, outer_labels
from stforecast.bench.numbers import short
from stforecast.bench.run_groups import by_step
from stforecast.comparison.errors import SEASONAL, SEASONAL_METHOD
from stforecast.comparison.steps import time_ahead
from stforecast.plots.figure import figure
from stforecast.plots.scores import error_name, error_rows, seasonal_errors
from stforecast.results import ForecastRun

NAIVE: dict[str, Any] = {
    "label": SEASONAL, "color": HUES[-1], "linewidth": 1.0, "linestyle": (0, (1, 1)),
}  # fmt: skip
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

    Raises:
        InputError: if the metric is unknown, listing the known ones.
    """
    unsorted = as_curves(runs)
    tables = [pd.concat([_step_errors(r, metric) for r in c.runs], axis=1) for c in unsorted]
    order = np.argsort([_mean(table).mean() for table in tables], kind="stable")
    curves, tables = [unsorted[i] for i in order], [tables[i] for i in order]
    name = f"test {error_name(metric, runs)}"
    repeated = any(run.method == SEASONAL_METHOD for run in runs)
    naive = None if repeated else seasonal_errors(runs, metric)
    levels = None if naive is None else naive.by_step()
    if all(len(table) == 1 for table in tables):
        return _bars(curves, tables, levels, name, width)
    places, axis = axis_ahead(runs, max(table.index.max() for table in tables))
    table_of = {curve.name: table for curve, table in zip(curves, tables, strict=True)}
    labels = [
        curve.label if np.isfinite(_mean(table)).all() else f"{curve.label}, not finite everywhere"
        for curve, table in zip(curves, tables, strict=True)
    ]

    def draw(ax: Axes, curve: Curve[ForecastRun], label: str) -> None:
        table = table_of[curve.name]
        points = {} if curve.faint else {"marker": curve.marker, "markersize": 3.5}
        whiskers = None if curve.faint else _whiskers(table)
        x = places[curve.runs[0].folder][table.index - 1]
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
    curves: Sequence[Curve[ForecastRun]], tables: Sequence[pd.DataFrame], naive: pd.Series | None,
    name: str, width: float,
) -> Figure:  # fmt: skip
    """Draw the errors of the only step ahead."""
    means = np.concatenate([_mean(table) for table in tables])
    texts = [short(mean) for mean in means]
    fig, ax = bar_panel(curves, means, [_whiskers(table) for table in tables], texts, width)
    ahead = {time_ahead(1, run) for curve in curves for run in curve.runs} - {"step 1"}
    ax.set_xlabel(f"{name}, {ahead.pop()} ahead" if len(ahead) == 1 else name)
    if naive is not None:
        style = {**NAIVE, "label": f"{SEASONAL}: {short(naive.iloc[0])}"}
        ax.axvline(naive.iloc[0], **style)
        add_legend(fig)
    return fig


class TimeAxis(NamedTuple):
    """Label and ticks of an axis of times ahead."""

    label: str
    locator: Callable[[], Locator]


def axis_ahead(
    runs: Sequence[ForecastRun], n_steps: int
) -> tuple[dict[Path, np.ndarray], TimeAxis]:
    """Return an axis of minutes or hours ahead, or of steps if their length is not known.

    Returns:
        Places of the steps 1 to `n_steps` on the axis, by the run's folder; and the axis.
    """
    whole = partial(MaxNLocator, "auto", integer=True, steps=[1, 2, 3, 6, 10], min_n_ticks=1)
    steps = np.arange(1, n_steps + 1)
    lengths = {run.folder: float(run.about.get("step_minutes", math.nan)) for run in runs}
    if not all(map(math.isfinite, lengths.values())):
        return dict.fromkeys(lengths, steps), TimeAxis("steps ahead", whole)
    minutes = {folder: steps * length for folder, length in lengths.items()}
    longest = n_steps * max(lengths.values())
    if longest > MOST_MINUTES:
        hours = {folder: places / 60 for folder, places in minutes.items()}
        return hours, TimeAxis("hours ahead", whole)
    return minutes, TimeAxis("minutes ahead", partial(MultipleLocator, 15 if longest > 30 else 5))


def _step_errors(run: ForecastRun, metric: str) -> pd.Series:
    """Return the errors `(horizon,)` pooled over clients, by step."""
    table = by_step(error_rows(run, metric))
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
