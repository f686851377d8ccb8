"""Errors and load by hour of local time, and busy hours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import xarray as xr

from stforecast.bench.run_groups import ALL
from stforecast.comparison.errors import local_times, model_errors, target_hours

HOURLY_METRICS = ("raw_mae", "mse", "mase")
"""Errors in `hourly_errors`."""

UNITS_OF_SPEED = frozenset({"mile/hour", "mile/h", "mph", "km/h", "kph", "m/s"})
"""Units of road traffic's speed, which is low when roads are busy."""


def clock_of(zone: str | None) -> str:
    """Name the clock of a time zone.

    >>> clock_of("Europe/Rome"), clock_of("UTC"), clock_of(None)
    ('local time (Europe/Rome)', 'UTC', 'local time')
    """
    if zone == "UTC":
        return "UTC"
    return f"local time ({zone})" if zone else "local time"


def hour_title(zone: str | None) -> str:
    """Return the title of an axis of the hours of a day.

    >>> hour_title("UTC")
    'hour of the day, UTC'
    """
    return f"hour of the day, {clock_of(zone)}"


def hourly_load(forecasts: xr.Dataset) -> pd.Series:
    """Return the mean observed value of each hour of local time `(24,)`, NaN where there is none.

    As for errors, each window counts once.
    """
    y = forecasts["y"].transpose("cell", "time", "horizon").to_numpy()
    hours = target_hours(*local_times(forecasts), y.shape[2])
    seen = np.isfinite(y)
    totals = [np.where(seen, y, 0.0).sum(axis=0), seen.sum(axis=0)]
    total, count = (np.bincount(hours.ravel(), v.ravel(), minlength=24) for v in totals)
    mean = np.divide(total, count, out=np.full(24, np.nan), where=count > 0)
    return pd.Series(mean, pd.RangeIndex(24, name="hour"), name="load")


def busy_hours(forecasts: xr.Dataset) -> tuple[int, ...]:
    """Return the hours of local time whose mean load lies above the mean of all hours.

    Of a speed, the hours below the mean: roads are slow when they are busy.
    """
    load = hourly_load(forecasts)
    above = load - load.mean()
    busy = above < 0 if forecasts["y"].attrs.get("units") in UNITS_OF_SPEED else above > 0
    return tuple(int(hour) for hour in load.index[busy])


def hour_spans(hours: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first hour of each span of successive hours, and the one after its last.

    >>> hour_spans([0, 1, 22])
    [(0, 2), (22, 23)]
    """
    begins = [hour for hour in hours if hour - 1 not in hours]
    ends = [hour + 1 for hour in hours if hour + 1 not in hours]
    return list(zip(begins, ends, strict=True))


def hourly_errors(forecasts: xr.Dataset) -> pd.DataFrame:
    """Tabulate the test errors of each hour of local time.

    A row for each metric of `HOURLY_METRICS`, client (and "all") and hour with targets has the
    columns `client`, `hour`, `metric` and `value`.
    """
    clients = pd.Index([*map(str, forecasts["cell"].to_numpy()), ALL], name="client")
    tables = []
    for metric in HOURLY_METRICS:
        errors = model_errors(forecasts, metric)
        total, weight = (
            np.concatenate([sums, sums.sum(axis=0, keepdims=True)])
            for sums in errors.by_cell_and_hour()
        )
        values = pd.DataFrame(errors.finalise(total, weight), clients).melt(
            var_name="hour", ignore_index=False
        )
        tables.append(values[(weight > 0).T.ravel()].reset_index().assign(metric=metric))
    return pd.concat(tables, ignore_index=True)[["client", "hour", "metric", "value"]]
