"""Forecasts and their intervals over time."""

from __future__ import annotations

from collections.abc import Sequence

import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.errors import InputError
from stforecast.bench.curves import MOST_TOGETHER, Curve, as_curves
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, add_legend, panels
from stforecast.comparison.steps import time_ahead
from stforecast.plots.figure import figure
from stforecast.plots.forecasts import cell_titles, forecasts_ahead, time_axis
from stforecast.plots.part import Span, take_cells
from stforecast.plots.scores import quantity
from stforecast.results import ForecastRun

OUTSIDE = "#c00000"
"""Colour of observations outside an interval."""


@figure
def intervals(
    runs: Sequence[ForecastRun],
    *,
    cells: str | None = None,
    horizon: int | None = None,
    hours: int | None = None,
    start: str | None = None,
    end: str | None = None,
    width: float = TWO_COLUMNS,
) -> Figure:
    """Forecasts, their intervals and the observations of the test part.

    One panel per cell, step ahead and run, in the data's units: the forecast as a line in a band,
    observations as a black line with red dots outside the band. The title gives the share of the
    drawn observations inside the band. Of runs that differ only in the seed, the first is drawn.

    Args:
        runs: runs (`--intervals`, or `--loss quantile`; others are named, not drawn).
        cells: ids of the cells to draw, separated by commas; by default four, from the lowest mean
            to the highest, or only the highest if there are several steps or more than six methods.
        horizon: step ahead to draw, from 1; by default the first, the middle and the last.
        hours: hours of the test part to draw, from its start; by default all.
        start: first local time to draw, such as 2013-12-24 or "2013-12-24 06:00".
        end: end of the times to draw (exclusive).
        width: width of the figure in inches.

    Raises:
        InputError: if no run has intervals, or a cell or step is unknown.
    """
    curves, note = with_intervals(as_curves(runs))
    span = Span(hours, start, end)
    steps = _steps(curves[0].runs[0]) if horizon is None else [horizon]
    tested = {(step, i): forecasts_ahead(curve.runs[0], step, span)
              for step in steps for i, curve in enumerate(curves)}  # fmt: skip
    titles = cell_titles(tested[steps[0], 0]["y"], cells)
    if cells is None and (len(steps) > 1 or len(curves) > MOST_TOGETHER):
        titles = dict(list(titles.items())[-1:])
    fig, axes = panels(width, 1.25, len(titles) * len(tested), sharex=True)
    places = [(cell, title, *key) for cell, title in titles.items() for key in tested]
    ahead = {step: f"{time_ahead(step, curves[0].runs[0])} ahead" for step in steps}
    for ax, (cell, title, step, i) in zip(axes, places, strict=True):
        ds = take_cells(tested[step, i], [cell], curves[i].runs[0]).sel(cell=cell)
        inside = _band(ax, ds, curves[i])
        named = (title, ahead[step] * (len(steps) > 1), curves[i].base * (len(curves) > 1))
        name = "; ".join(filter(None, named))
        ax.set_title(f"{name}: {inside:.0%} inside", fontsize=SMALL, loc="left")
        ax.set_ylabel(quantity([curves[i].runs[0]]))
    fig.align_ylabels(axes)
    time_axis(axes[-1], tested[steps[-1], 0])
    add_legend(fig, "\n".join(filter(None, (ahead[steps[0]] * (len(steps) == 1), note))))
    return fig


def _steps(run: ForecastRun) -> list[int]:
    """Return the first, the middle and the last step ahead of a run."""
    with run.open_forecasts() as forecasts:
        last = int(forecasts.indexes["horizon"][-1])
    return sorted({1, (last + 1) // 2, last})


def with_intervals(
    curves: Sequence[Curve[ForecastRun]],
) -> tuple[list[Curve[ForecastRun]], str]:
    """Return the curves of runs with intervals, and a note that names the others.

    Raises:
        InputError: if no run has intervals.
    """
    known = [curve for curve in curves if all(map(_has_intervals, curve.runs))]
    if not known:
        raise InputError(
            f"{curves[0].runs[0].folder}: a run without intervals; train it with --intervals "
            "normalised"
        )
    others = ", ".join(curve.label for curve in curves if curve not in known)
    return known, f"Not drawn, as they have no intervals: {others}" if others else ""


def _has_intervals(run: ForecastRun) -> bool:
    with run.open_forecasts() as forecasts:
        return "lower" in forecasts


def _band(ax: Axes, ds: xr.Dataset, curve: Curve[ForecastRun]) -> float:
    """Draw one cell and return the share of its observations inside the band."""
    time = ds["time"].to_numpy()
    y, lower, upper = (ds[name].to_numpy() for name in ("y", "lower", "upper"))
    observed = ds["y"].notnull().to_numpy()
    inside = (lower <= y) & (y <= upper)
    label = f"{ds.attrs['coverage']:.0%} interval, {curve.base}"
    ax.margins(x=0)
    ax.fill_between(time, lower, upper, color=curve.color, alpha=0.25, linewidth=0, label=label)
    ax.plot(time, ds["y_hat"], label=curve.base, color=curve.color, linewidth=1.0)
    ax.plot(time, y, label="observed", color="black", linewidth=0.9)
    outside = observed & ~inside
    ax.plot(time[outside], y[outside], ".", label="observed, outside", color=OUTSIDE, markersize=5)
    return float(inside[observed].mean()) if observed.any() else float("nan")
