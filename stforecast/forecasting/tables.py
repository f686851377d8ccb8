"""Forecasts after the end of a history, as tables in the data's own units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words

DIGITS = 7
"""Significant digits of written forecasts: those of float32, in which models compute."""


class Interval(NamedTuple):
    """Bounds of a forecast, each a table like the forecast itself."""

    lower: pd.DataFrame
    upper: pd.DataFrame


def long_table(
    forecast: pd.DataFrame, interval: Interval | None, digits: int = DIGITS
) -> pd.DataFrame:
    """Return forecasts in some digits, and bounds in seven, one row for each cell and time.

    Rounding keeps bounds around a forecast.
    """
    bounds = {} if interval is None else interval._asdict()
    tables = {forecast.attrs["service"]: (forecast, digits)}
    tables |= {name: (table, DIGITS) for name, table in bounds.items()}
    steps, cells = np.arange(len(forecast)), forecast.columns
    long = {"time": forecast.index[np.tile(steps, len(cells))], "cell": cells.repeat(len(steps))}
    rounded = {
        name: [in_digits(v, n) for v in table.to_numpy().T.ravel().tolist()]
        for name, (table, n) in tables.items()
    }
    return pd.DataFrame({**long, **rounded})


def in_digits(value: float, digits: int = DIGITS) -> float:
    """Round a number to as many digits as are written."""
    return float(f"{value:.{digits}g}")


def as_predicted(forecasts: xr.Dataset) -> xr.Dataset:
    """Return tested forecasts as `predict` gives them: within the limits of the service."""
    limits = (forecasts.attrs.get(name) for name in ("lower_limit", "upper_limit"))
    return forecasts.assign(y_hat=forecasts["y_hat"].clip(*limits, keep_attrs=True))


def tidy(forecasts: xr.Dataset) -> pd.DataFrame:
    """Return the variables of `forecasts.nc`, a row for each cell, target and step ahead."""
    names = [name for name, v in forecasts.items() if v.dims == ("cell", "time", "horizon")]
    table = forecasts[names].reset_coords(drop=True).to_dataframe().reset_index()
    step = pd.Timedelta(minutes=float(forecasts.attrs["step_minutes"]))
    times = table["time"] + step * (table["horizon"] - 1)
    if zone := forecasts.attrs.get("time_zone"):
        times = times.dt.tz_localize("UTC").dt.tz_convert(zone)
    return table.assign(time=times)


def on_clock(table: pd.DataFrame, clock: str) -> pd.DataFrame:
    """Return a forecast of a cube with its times in `utc`, or in the cube's own zone (`local`)."""
    if clock == "local":
        return table
    if pd.DatetimeIndex(table.index).tz is None:
        raise InputError(
            "the history's times are local without an offset, so they cannot be written in UTC; ",
            Words("leave out {clock:utc}"),
        )
    return table.tz_convert("UTC")
