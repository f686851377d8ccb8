"""Forecasts after the end of a history, as tables in the data's own units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words
from stforecast.data.anchors import season_of_anchors
from stforecast.data.series import Series
from stforecast.history import (
    missing_inputs,
    warn_of_far_bounds,
    warn_of_missing,
    warn_of_past_events,
)
from stforecast.intervals.bands import Bands, raw_bands
from stforecast.limits import Limits
from stforecast.saved_forecaster import SavedForecaster

DIGITS = 7
"""Significant digits of written forecasts: those of float32, in which models compute."""


class Interval(NamedTuple):
    """Bounds of a forecast, each a table like the forecast itself."""

    lower: pd.DataFrame
    upper: pd.DataFrame


def reach(model: SavedForecaster) -> int:
    """Number of steps back that a model reads."""
    window = model.config.window
    return max(window.reach, season_of_anchors(window.target, model.step))


def forecast_table(
    model: SavedForecaster, series: Series, steps: int | None, limits: Limits
) -> pd.DataFrame:
    """Forecast what follows a history; see `Forecaster.predict`.

    Args:
        model: the fitted model.
        series: the history of the fitted cells.
        steps: number of steps; None for the horizon.
        limits: lowest and highest possible value; forecasts outside become these.

    Raises:
        InputError: if `steps` is below 1, no input was observed, or a forecast is not finite.
    """
    steps = model.config.window.horizon if steps is None else steps
    if steps < 1:
        raise InputError(f"steps is {steps}; forecast at least 1")
    missing = missing_inputs(series, model.config.window, model.predictor.reads_windows)
    unknown = _without_forecast(model, missing)
    warn_of_missing(series, missing, unknown)
    warn_of_past_events(series)
    z, n_steps = model.scaler.transform(series.values), len(series.values)
    calendar = model.scaler.calendar(series)
    while len(z) < n_steps + steps:
        y_hat = model.predictor.predict(z, np.array([len(z)]), calendar)
        z = np.concatenate([z, y_hat[:, 0].T])
    table = _table(model, z[n_steps : n_steps + steps], series, unknown)
    odd = ~np.isfinite(table.to_numpy()).all(axis=0) & ~unknown
    if odd.any():
        raise InputError(
            f"{series.name}: the forecast of cell {model.cells[odd][0]} is not finite; look for "
            "readings that are far too large, or fit the model again"
        )
    table.attrs["limits"] = tuple(limits)
    return table.clip(*limits)


def bound_tables(
    model: SavedForecaster, series: Series, steps: int | None, limits: Limits
) -> Interval | None:
    """Return bounds around `forecast_table`'s values; None if the model has no intervals."""
    config, calibration = model.config, model.calibration
    if calibration is None:
        return None
    coverage, horizon = config.coverage, config.window.horizon
    missing = missing_inputs(series, config.window, model.predictor.reads_windows)
    unknown = _without_forecast(model, missing)
    z = model.scaler.transform(series.values)
    start, calendar = np.array([len(z)]), model.scaler.calendar(series)
    bands = raw_bands(model.predictor, z, start, calendar, config.coverages)
    asked = Bands(bands.centre, {coverage: bands.bounds[coverage]})
    bounds = calibration.calibrated(asked, z, start, calendar).bounds[coverage]
    tables = []
    for part in bounds:
        values = np.full((steps or horizon, len(model.cells)), np.nan)
        values[:horizon] = part[:, 0].T[: len(values)]
        table = _table(model, values, series, unknown)
        table.attrs["coverage"] = coverage
        tables.append(table.clip(*limits))
    interval = Interval(*tables)
    lowest, highest = interval.lower.min().to_numpy(), interval.upper.max().to_numpy()
    warn_of_far_bounds(series, lowest, highest)
    return interval


def _without_forecast(model: SavedForecaster, missing: np.ndarray) -> np.ndarray:
    """Return the cells without any input; an adapted model forecasts these, too, `(cells,)`."""
    return np.asarray(missing.all(axis=0)) & (not model.adapted)


def _table(
    model: SavedForecaster, z: np.ndarray, series: Series, unknown: np.ndarray
) -> pd.DataFrame:
    """Return forecast z-scores as a table in the data's units.

    Args:
        model: the fitted model.
        z: `(steps, cells)` z-scores.
        series: the history before them.
        unknown: `(cells,)` bool, cells without any observed input; their values become NaN.
    """
    times = pd.DatetimeIndex(series.times[-1] + model.step * np.arange(1, len(z) + 1), name="time")
    table = pd.DataFrame(
        np.where(unknown, np.nan, model.scaler.inverse(z, cell_axis=1)),
        times if series.zone is None else times.tz_localize("UTC").tz_convert(series.zone),
        pd.Index(model.cells, name="cell"),
    )
    table.attrs = {"service": model.service, "units": model.units}
    return table


def long_table(forecast: pd.DataFrame, interval: Interval | None) -> pd.DataFrame:
    """Return forecasts and bounds in seven digits, one row for each cell and time.

    Returns:
        Columns `time`, `cell`, the service, and `lower` and `upper` if there are bounds.
    """
    bounds = {} if interval is None else interval._asdict()
    tables = {forecast.attrs["service"]: forecast, **bounds}
    long = forecast.melt(ignore_index=False).reset_index()[["time", "cell"]]
    return long.assign(**{name: _rounded(table) for name, table in tables.items()})


def _rounded(table: pd.DataFrame) -> list[float]:
    """Return the values of one cell after the other; rounding keeps bounds around a forecast."""
    return [float(f"{value:.{DIGITS}g}") for value in table.melt()["value"]]


def as_predicted(forecasts: xr.Dataset) -> xr.Dataset:
    """Return tested forecasts as `predict` gives them: within the limits of the service.

    Args:
        forecasts: result of `Forecaster.test_forecasts`, of one time ahead or all.
    """
    limits = [forecasts.attrs.get(name) for name in ("lower_limit", "upper_limit")]
    if forecasts.attrs.get("non_negative"):  # Runs before there were limits.
        limits[0] = 0.0
    return forecasts.assign(y_hat=forecasts["y_hat"].clip(*limits, keep_attrs=True))


def tidy(forecasts: xr.Dataset) -> pd.DataFrame:
    """Return the variables of `forecasts.nc`, a row for each cell, target and step ahead.

    Args:
        forecasts: contents of the file; see `Forecaster.to_frame`.
    """
    names = [name for name, v in forecasts.items() if v.dims == ("cell", "time", "horizon")]
    table = forecasts[names].reset_coords(drop=True).to_dataframe().reset_index()
    step = pd.Timedelta(minutes=float(forecasts.attrs["step_minutes"]))
    times = table["time"] + step * (table["horizon"] - 1)
    if zone := forecasts.attrs.get("time_zone"):
        times = times.dt.tz_localize("UTC").dt.tz_convert(zone)
    return table.assign(time=times)


def on_clock(table: pd.DataFrame, clock: str) -> pd.DataFrame:
    """Return a forecast with its times on a clock.

    Args:
        table: forecast of a cube.
        clock: `utc`, or `local` for the cube's own time zone.

    Raises:
        InputError: for `utc`, if the cube's times are local without an offset.
    """
    if clock == "local":
        return table
    if pd.DatetimeIndex(table.index).tz is None:
        raise InputError(
            "the history's times are local without an offset, so they cannot be written in UTC; ",
            Words("leave out {clock:utc}"),
        )
    return table.tz_convert("UTC")
