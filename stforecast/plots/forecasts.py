"""Forecasts, their intervals and observations over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from data_prep.base.errors import InputError, Words
from stforecast.bench.curves import (
    MOST_TOGETHER,
    UNNAMED,
    Curve,
    as_curves,
    columns,
    outer_labels,
    small_panels,
    title_panel,
)
from stforecast.bench.drawing import SMALL, TWO_COLUMNS, add_legend, date_axis, panels
from stforecast.bench.tables import short
from stforecast.comparison.names import quantity, time_ahead
from stforecast.forecasting.results import ForecastRun
from stforecast.plots.excerpt import Span, named_cells, take_cells
from stforecast.plots.figure import figure


@figure
def predictions(
    runs: Sequence[ForecastRun],
    *,
    cells: str | None = None,
    horizon: int = 1,
    hours: int | None = None,
    start: str | None = None,
    end: str | None = None,
    width: float = TWO_COLUMNS,
) -> Figure:
    """Forecasts and observations of the test part, in the data's units, one panel per cell.

    Each run is a line; runs that differ only in the seed have the same colour. More than six
    methods have a panel each, of one cell. Gaps are missing observations. Forecasts are as
    `predict` gives them: none is below 0 where the training data were never negative. As in
    Figure 3 (top) of FUELS (arXiv 2404.03702).

    Args:
        runs: runs tested on the same data.
        cells: ids of the cells to draw, separated by commas; by default four, from the lowest mean
            to the highest, or only the highest if there are more than six methods.
        horizon: step ahead to draw, from 1.
        hours: hours of the test part to draw, from its start; by default all.
        start: first local time to draw, such as 2013-12-24 or "2013-12-24 06:00".
        end: end of the times to draw (exclusive).
        width: width of the figure in inches.
    """
    curves = as_curves(runs)
    runs = [run for curve in curves for run in curve.group.runs]
    span = Span(hours, start, end)
    tested = [forecasts_ahead(run, horizon, span) for run in runs]
    _check_same_data(runs, tested)
    if len(curves) > MOST_TOGETHER:
        by_folder = {run.folder: ds for run, ds in zip(runs, tested, strict=True)}
        return _each_alone(curves, by_folder, cells, horizon, width)
    styles = [{"label": c.group.label, **c.line} for c in curves for _ in c.group.runs]
    titles = cell_titles(tested[0]["y"], cells)
    tested = [take_cells(ds, list(titles), run) for ds, run in zip(tested, runs, strict=True)]
    observed = reduce(xr.DataArray.combine_first, [ds["y"] for ds in tested])
    unit = quantity(runs)
    fig, axes = panels(width, 1.2, len(titles), sharex=True)
    for ax, (cell, title) in zip(axes, titles.items(), strict=True):
        ax.set_title(title, fontsize=SMALL, loc="left")
        ax.set_ylabel(unit)
        ax.margins(x=0)
        _trace(ax, observed.sel(cell=cell), label="observed", color="black", linewidth=1.4)
        for ds, style in zip(tested, styles, strict=True):
            _trace(ax, ds["y_hat"].sel(cell=cell), **style)
    fig.align_ylabels(axes)
    time_axis(axes[-1], tested[0])
    add_legend(fig, f"{time_ahead(horizon, runs[0])} ahead")
    return fig


def _each_alone(
    curves: Sequence[Curve[ForecastRun]],
    tested: Mapping[Path, xr.Dataset],
    cells: str | None,
    horizon: int,
    width: float,
) -> Figure:
    """Draw each method in a panel of its own, at one cell, the lowest mean absolute error first."""
    titles = cell_titles(next(iter(tested.values()))["y"], cells)
    if cells is None:
        titles = dict(list(titles.items())[-1:])
    if len(titles) > 1:
        raise InputError(
            f"{len(curves)} methods have a panel each, for one cell only; give one cell, or fewer "
            "methods"
        )
    (cell, title), first = next(iter(titles.items())), curves[0].group.runs[0]
    chosen = {f: ds.sel(cell=cell) for f, ds in tested.items() if cell in ds.indexes["cell"]}
    error_of = {f: float(abs(ds["y_hat"] - ds["y"]).mean()) for f, ds in chosen.items()}
    errors = [np.mean([error_of[run.folder] for run in curve.group.runs]) for curve in curves]
    fig, axes = small_panels(width, len(curves))
    for ax, i in zip(axes, np.argsort(errors, kind="stable"), strict=True):
        group = curves[i].group
        _trace(ax, chosen[first.folder]["y"], label="observed", color="black", linewidth=0.9)
        for run in group.runs:
            _trace(ax, chosen[run.folder]["y_hat"], label=UNNAMED, **curves[i].alone.line)
        title_panel(ax, f"{group.label}: MAE {short(errors[i])}", width / columns(width))
        ax.margins(x=0)
    time_axis(axes[-1], chosen[first.folder], most_ticks=4)
    outer_labels(axes, axes[-1].get_xlabel(), quantity([first]), width)
    add_legend(fig, f"{title}; {time_ahead(horizon, first)} ahead")
    return fig


def time_axis(ax: Axes, ds: xr.Dataset, most_ticks: int = 8) -> None:
    """Format the x axis in local time where `forecasts.nc` knows the zone, and name the clock."""
    zone = ds.attrs.get("time_zone", "UTC")
    clocks = {
        "utc": f"local time ({zone})" if zone != "UTC" else "time (UTC)",
        "local": "local time",
    }
    date_axis(
        ax, clocks.get(ds.attrs.get("clock", ""), "time on the data's clock"), zone, most_ticks
    )


def forecasts_ahead(run: ForecastRun, horizon: int, span: Span) -> xr.Dataset:
    """Return `y`, `y_hat` and any bounds `(cell, time)` of one step ahead, by target time.

    Forecasts are those that `predict` would give.
    """
    from stforecast.forecasting.tables import as_predicted  # imports torch

    with run.open_forecasts() as ds:
        steps, times = ds.indexes["horizon"], ds.indexes["time"]
        if horizon not in steps:
            raise InputError(
                f"{run.folder}: no forecasts {horizon} steps ahead; choose a horizon of "
                f"{steps[0]} to {steps[-1]}"
            )
        if len(times) < 2:
            raise InputError(
                f"{run.folder}: a single test window cannot be drawn as a line; test on more"
            )
        targets = times + (horizon - 1) * (times[1] - times[0])
        shown = span.mask(targets, ds.attrs.get("time_zone"), run.folder)
        chosen = as_predicted(ds.sel(horizon=horizon).isel(time=shown).load())
    return chosen.assign_coords(time=targets[shown])


def _check_same_data(runs: Sequence[ForecastRun], tested: Sequence[xr.Dataset]) -> None:
    """Refuse runs that share no cell and time with the first, or have other observations there."""
    first = runs[0]
    for run, ds in zip(runs[1:], tested[1:], strict=True):
        y, other = xr.align(tested[0]["y"], ds["y"], join="inner")
        rounding = 1e-4 * np.fmax.reduce(np.abs(y.to_numpy()), axis=None, initial=0.0)
        if not y.size or not np.allclose(y, other, rtol=0, atol=rounding, equal_nan=True):
            raise InputError(
                f"{run.folder} was tested on other data or times ({run.about['data']}, "
                f"{run.about['service']}) than {first.folder} ({first.about['data']}, "
                f"{first.about['service']}); draw them in separate figures"
            )


def cell_titles(y: xr.DataArray, wanted: str | None) -> dict[Any, str]:
    """Return the cells to draw of observations `(cell, time)`, and their titles."""
    if wanted is not None:
        return {cell: f"cell {cell}" for cell in named_cells(y.indexes["cell"], wanted)}
    # Evenly spread over the ranks of mean observed traffic.
    means = y.mean("time").to_series().dropna().sort_values(kind="stable")
    if means.empty:
        raise InputError("nothing was observed in the test part; there is nothing to draw")
    last = len(means) - 1
    ranks = np.unique(np.linspace(0, last, 4).round().astype(int))
    places = {rank: f", mean at quantile {rank / max(1, last):.2f}" for rank in ranks}
    places |= {0: ", lowest mean", last: ", highest mean"} if last else {0: ""}
    return {means.index[rank]: f"cell {means.index[rank]}{places[rank]}" for rank in ranks}


def _trace(ax: Axes, values: xr.DataArray, **style: Any) -> None:
    ax.plot(values["time"].to_numpy(), values.to_numpy(), **style)


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
    """
    curves, note = with_intervals(as_curves(runs))
    span = Span(hours, start, end)
    steps = [horizon] if horizon is not None else []
    if horizon is None:
        with curves[0].group.runs[0].open_forecasts() as forecasts:
            last = int(forecasts.indexes["horizon"][-1])
        steps = sorted({1, (last + 1) // 2, last})
    tested = {
        (step, i): forecasts_ahead(curve.group.runs[0], step, span)
        for step in steps
        for i, curve in enumerate(curves)
    }
    titles = cell_titles(tested[steps[0], 0]["y"], cells)
    if cells is None and (len(steps) > 1 or len(curves) > MOST_TOGETHER):
        titles = dict(list(titles.items())[-1:])
    fig, axes = panels(width, 1.25, len(titles) * len(tested), sharex=True)
    places = [(cell, title, *key) for cell, title in titles.items() for key in tested]
    ahead = {step: f"{time_ahead(step, curves[0].group.runs[0])} ahead" for step in steps}
    for ax, (cell, title, step, i) in zip(axes, places, strict=True):
        ds = take_cells(tested[step, i], [cell], curves[i].group.runs[0]).sel(cell=cell)
        inside = _band(ax, ds, curves[i])
        named = (title, ahead[step] * (len(steps) > 1), curves[i].group.base * (len(curves) > 1))
        name = "; ".join(filter(None, named))
        ax.set_title(f"{name}: {inside:.0%} inside", fontsize=SMALL, loc="left")
        ax.set_ylabel(quantity([curves[i].group.runs[0]]))
    fig.align_ylabels(axes)
    time_axis(axes[-1], tested[steps[-1], 0])
    add_legend(fig, "\n".join(filter(None, (ahead[steps[0]] * (len(steps) == 1), note))))
    return fig


def with_intervals(
    curves: Sequence[Curve[ForecastRun]],
) -> tuple[list[Curve[ForecastRun]], str]:
    """Return the curves of runs with intervals, which some must have, and a note on the others."""
    known = [curve for curve in curves if all(map(_has_intervals, curve.group.runs))]
    if not known:
        raise InputError(
            f"{curves[0].group.runs[0].folder}: a run without intervals; ",
            Words("train it with {intervals:normalised}"),
        )
    others = ", ".join(curve.group.label for curve in curves if curve not in known)
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
    label = f"{ds.attrs['coverage']:.0%} interval, {curve.group.base}"
    ax.margins(x=0)
    ax.fill_between(time, lower, upper, color=curve.color, alpha=0.25, linewidth=0, label=label)
    ax.plot(time, ds["y_hat"], label=curve.group.base, color=curve.color, linewidth=1.0)
    ax.plot(time, y, label="observed", color="black", linewidth=0.9)
    outside = observed & ~inside
    label = "observed, outside"
    ax.plot(time[outside], y[outside], ".", label=label, color="#c00000", markersize=5)
    return float(inside[observed].mean()) if observed.any() else float("nan")
