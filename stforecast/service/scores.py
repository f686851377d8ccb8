"""Errors of the forecasts that a service has made, over its last days."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.comparison.errors import model_errors
from stforecast.data.anchors import repeat_season
from stforecast.data.series import Series
from stforecast.forecasting.evaluate import season_of
from stforecast.forecasting.tables import Interval


@dataclass(frozen=True, eq=False)
class Scores:
    """Errors over some days, in all or `(cells,)`; NaN where nothing could be scored.

    Attributes:
        mase: mean absolute error by that of the value one day before in training.
        bias: mean of forecast less value, in the data's units.
        mae: mean absolute error in the data's units.
        coverage: share of the values within their bounds.
        mean: mean of the values.
        n: number of values.
    """

    mase: np.ndarray
    bias: np.ndarray
    mae: np.ndarray
    coverage: np.ndarray
    mean: np.ndarray
    n: np.ndarray


def target_times(issued: xr.Dataset) -> np.ndarray:
    """Return the time of each target, `(windows, horizon)`, on the clock of the forecasts."""
    step = pd.Timedelta(minutes=float(issued.attrs["step_minutes"])).to_timedelta64()
    first = issued.indexes["time"].to_numpy()
    return first[:, None] + step * np.arange(issued.sizes["horizon"])


def since(issued: xr.Dataset, end: pd.Timestamp, days: float) -> xr.Dataset:
    """Return the forecasts with the targets of the last days before `end` alone, others NaN."""
    recent = target_times(issued) > np.datetime64(end - pd.Timedelta(days=days))
    y = issued["y"].where(xr.DataArray(recent, dims=("time", "horizon")))
    return issued.assign(y=y.transpose("cell", "time", "horizon"))


def scores(issued: xr.Dataset, *, by_cell: bool = False) -> Scores:
    """Return the errors of all scored targets, over all cells or for each."""
    y, y_hat = (issued[name].to_numpy() for name in ("y", "y_hat"))
    seen = np.isfinite(y) & np.isfinite(y_hat)
    axis = (1, 2) if by_cell else (0, 1, 2)
    n = seen.sum(axis=axis)
    inside = np.full(y.shape, np.nan)
    if "lower" in issued:
        inside = (issued["lower"].to_numpy() <= y) & (y <= issued["upper"].to_numpy())

    def mean(values: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            found: np.ndarray = np.where(seen, values, 0.0).sum(axis=axis) / n
        return found

    errors = model_errors(issued.assign(y=issued["y"].where(seen)), "mase")
    total, weight = (v.sum(axis=axis) for v in (errors.total, errors.weight))
    with np.errstate(invalid="ignore", divide="ignore"):
        mase = errors.finalise(total, weight)
    error = y_hat - y
    return Scores(mase, mean(error), mean(np.abs(error)), mean(inside), mean(y), n)


def issue(
    issued: xr.Dataset, series: Series, table: pd.DataFrame, interval: Interval | None
) -> xr.Dataset:
    """Return the forecasts with one more, which replaces one of the same time."""
    start, horizon = len(series.values), issued.sizes["horizon"]
    begin = series.times[-1] + series.calendar.step
    season = issued["seasonal_naive"].attrs.get("season_steps", season_of(series.calendar))
    naive = repeat_season(series.values, np.array([start]), horizon, int(season), series.calendar)
    found = {"y_hat": table.to_numpy().T[:, None], "seasonal_naive": naive}
    if interval is not None:
        found |= {name: bound.to_numpy().T[:, None] for name, bound in interval._asdict().items()}
    found["y"] = np.full(naive.shape, np.nan)
    dims = ("cell", "time", "horizon")
    windows = [str(name) for name, v in issued.items() if v.dims == dims]
    one = xr.Dataset(
        {name: (dims, found[name], issued[name].attrs) for name in windows},
        {"time": [begin], "cell": issued["cell"], "horizon": issued["horizon"]},
    )
    earlier = issued[windows].sel(time=issued.indexes["time"] < begin)
    joined = xr.concat([earlier, one], "time", join="override", combine_attrs="override")
    return issued.drop_dims("time").assign(joined.data_vars).assign_coords(time=joined["time"])


def with_values(issued: xr.Dataset, series: Series) -> xr.Dataset:
    """Return the forecasts with the values of a history as `y`, without those before it."""
    issued = issued.sel(time=issued.indexes["time"] >= series.times[0])
    at = (target_times(issued) - series.times[0].to_datetime64()) // np.timedelta64(
        series.calendar.step
    )
    known = (at >= 0) & (at < len(series.values))
    y = np.where(known, series.values[np.where(known, at, 0)].transpose(2, 0, 1), np.nan)
    return issued.assign(y=(("cell", "time", "horizon"), y, issued["y"].attrs))


def rounded(scores: Scores) -> dict[str, float]:
    """Return scores in all as numbers of four digits, for a line of JSON or a table."""
    found = {n: float(f"{float(v):.4g}") for n, v in dataclasses.asdict(scores).items()}
    return found | {"n": int(scores.n)}
