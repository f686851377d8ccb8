"""Errors of one model on its test part, by day, hour, step ahead and cell; load and busy hours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np
import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, choose
from data_prep.readers.units import is_speed
from stforecast.bench.run_groups import ALL
from stforecast.bench.statistics.estimate import Finalise
from stforecast.federated.runs.run_folder import AGAIN
from stforecast.forecasting.results import bounds_of
from stforecast.metrics import INTERVAL_METRICS, METRICS, find_metric
from stforecast.metrics.metric import mean

SEASONAL = "seasonal naive"
"""Name of the model that repeats the day or the week before, which every run forecasts with."""

SEASONAL_METHODS = ("seasonal_day", "seasonal_week")
"""Methods that may forecast as seasonal naive."""

SCALES = MappingProxyType({"mae": "seasonal_mae", "rmse": "seasonal_rmse"})
"""Variables of `forecasts.nc` that scaled metrics divide by."""


@dataclass(frozen=True, eq=False)
class ModelErrors:
    """Errors of a model on its test part, as sums that are not yet divided.

    Attributes:
        total: `(cells, windows, horizon)` sums, such as squared errors.
        weight: divisor of their sums, of the same shape; 0 where nothing was observed.
        times: `(windows,)` local time of the first target, with its zone if that is known.
        step: length of a step.
        finalise: function from the sums of totals and of weights to the error.
    """

    total: np.ndarray
    weight: np.ndarray
    times: pd.DatetimeIndex
    step: pd.Timedelta
    finalise: Finalise

    @cached_property
    def days(self) -> pd.DatetimeIndex:
        """Local days in which first targets lie, without a zone."""
        return pd.DatetimeIndex(self.times.tz_localize(None).normalize().unique())

    def by_day(self) -> tuple[np.ndarray, np.ndarray]:
        """Return totals and weights `(cells, days)`; a window belongs to its first target's day."""
        place = self.days.get_indexer(self.times.tz_localize(None).normalize())
        return summed_by(self.total.sum(axis=2), place), summed_by(self.weight.sum(axis=2), place)

    @cached_property
    def hours(self) -> np.ndarray:
        """Hours of local time in which targets lie, `(windows, horizon)`."""
        return target_hours(self.times, self.step, self.total.shape[2])

    def by_cell_and_hour(self) -> tuple[np.ndarray, np.ndarray]:
        """Return totals and weights `(cells, 24)` of the targets in each hour of local time."""
        place = self.hours.ravel()
        total, weight = (
            np.stack([np.bincount(place, of_cell.ravel(), minlength=24) for of_cell in values])
            for values in (self.total, self.weight)
        )
        return total, weight

    def by_hour(self) -> pd.Series:
        """Return the error of each hour of local time in which targets lie, over all cells."""
        sums = [values.sum(axis=0) for values in self.by_cell_and_hour()]
        return pd.Series(self.finalise(*sums), pd.RangeIndex(24, name="hour"))

    def in_hours(self, hours: Collection[int]) -> float:
        """Return the error over the targets in some hours of local time, over all cells."""
        chosen = np.isin(self.hours, list(hours))
        return float(self.finalise(*(v[:, chosen].sum() for v in (self.total, self.weight))))

    def by_step(self) -> pd.Series:
        """Return the error of each step ahead, over all cells."""
        errors = self.finalise(self.total.sum(axis=(0, 1)), self.weight.sum(axis=(0, 1)))
        return pd.Series(errors, pd.RangeIndex(1, len(errors) + 1, name="horizon"))

    def by_cell(self) -> np.ndarray:
        """Return the error of each cell `(cells,)`, over all steps ahead."""
        return self.finalise(self.total.sum(axis=(1, 2)), self.weight.sum(axis=(1, 2)))

    def by_cell_and_step(self) -> np.ndarray:
        """Return the error of each cell at each step ahead `(cells, horizon)`."""
        return self.finalise(self.total.sum(axis=1), self.weight.sum(axis=1))


def model_errors(forecasts: xr.Dataset, metric: str, selection: str | None = None) -> ModelErrors:
    """Compute errors from the contents of `forecasts.nc`.

    The metric is named as in `metrics.csv`: `mse` of z-scores, `raw_mse` in the data's units. The
    model is a selection, such as `last`, or `SEASONAL`; by default the one that the run selected.
    """
    found = find_metric(metric)
    known = variables(forecasts)
    if selection is not None and selection not in known:
        raise choose("selection", selection, known)
    y, y_hat = (forecasts[n].to_numpy() for n in ("y", known[selection] if selection else "y_hat"))
    by = np.ones((1, 1, 1))
    if scale := scale_variable(metric):
        if scale not in forecasts:
            raise _outdated(forecasts, scale)
        by = forecasts[scale].to_numpy()[:, None, None]
    seen = np.isfinite(y) & np.isfinite(by)
    total, weight = found.sums(y_hat / by, np.where(seen, y / by, 0.0), seen, ())
    times, step = local_times(forecasts)
    return ModelErrors(total, weight, times, step, found.finalise)


def local_times(forecasts: xr.Dataset) -> tuple[pd.DatetimeIndex, pd.Timedelta]:
    """Return the local time of each window's first target, and the length of a step.

    Times have the zone of the forecasts, if they give one: a step added to such a time stays right
    when the clock is changed.
    """
    if "step_minutes" not in forecasts.attrs:
        raise _outdated(forecasts, "step_minutes")
    times = pd.DatetimeIndex(forecasts.indexes["time"])
    step = pd.Timedelta(minutes=float(forecasts.attrs["step_minutes"]))
    if zone := forecasts.attrs.get("time_zone"):
        times = times.tz_localize("UTC").tz_convert(zone)
    return times, step


def locations(forecasts: xr.Dataset) -> np.ndarray | None:
    """Return the cells' longitude and latitude `(cells, 2)`; None if unknown."""
    places = [forecasts[name].to_numpy() for name in ("lon", "lat") if name in forecasts]
    return np.stack(places, axis=1) if places else None


def target_hours(times: pd.DatetimeIndex, step: pd.Timedelta, horizon: int) -> np.ndarray:
    """Return the hour of each target `(windows, horizon)`, from `local_times`."""
    return np.stack([(times + step * ahead).hour for ahead in range(horizon)], axis=1)


def variables(forecasts: xr.Dataset) -> dict[str, str]:
    """Return the variable of each model in `forecasts.nc`, by its selection or `SEASONAL`."""
    found = {
        selection: str(name)
        for name, values in forecasts.items()
        for selection in filter(None, str(values.attrs.get("selection", "")).split(", "))
    }
    return found | ({SEASONAL: "seasonal_naive"} if "seasonal_naive" in forecasts else {})


def naive_name(forecasts: xr.Dataset) -> str:
    """Return what seasonal naive repeats, such as "value one week before"."""
    return str(
        forecasts[variables(forecasts)[SEASONAL]].attrs.get("long_name", "value one day before")
    )


def bias_in_words(share: float) -> str:
    """Return by how much sums of forecasts are off, as a share of the sum of the values' sizes.

    >>> bias_in_words(-0.0312), bias_in_words(0.02)
    ('sums are 3.1% too low', 'sums are 2.0% too high')
    >>> bias_in_words(-0.0004)
    'sums are right within 0.1%'
    """
    if abs(share) < 0.0005:
        return "sums are right within 0.1%"
    return f"sums are {abs(share):.1%} too {'high' if share >= 0 else 'low'}"


def coverages(forecasts: xr.Dataset) -> dict[float, ModelErrors]:
    """Return which targets lie inside the bounds, by nominal coverage from narrow to wide.

    It has shares of targets inside instead of errors. Without bounds, it is empty.
    """
    times, step = local_times(forecasts)
    y = forecasts["y"].to_numpy()
    seen = np.isfinite(y)
    found = {}
    for nominal, (lower, upper) in bounds_of(forecasts).items():
        inside = seen & (lower.to_numpy() <= y) & (y <= upper.to_numpy())
        totals = inside.astype(float), seen.astype(float)
        found[nominal] = ModelErrors(*totals, times, step, mean)
    return found


def scale_variable(metric: str) -> str | None:
    """Return the variable of `forecasts.nc` that a metric divides by; None for errors in units."""
    kind = metric.removeprefix("raw_")
    found = INTERVAL_METRICS.get(kind) or METRICS.find(kind)
    if found.scaled_by:
        return SCALES[found.scaled_by]
    return "std" if metric == found.name and not found.relative else None


def _outdated(forecasts: xr.Dataset, absent: str) -> InputError:
    source = forecasts.encoding.get("source", "the forecasts")
    return InputError(f"{source}: no {absent!r}, as older versions wrote it; {AGAIN}")


def summed_by(values: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Sum `(cells, windows)` over the windows `(windows,)` of each place, `(cells, places)`.

    A sum that is not finite may make the cell's others NaN.
    """
    belongs = place[:, None] == np.arange(place.max() + 1)
    with np.errstate(invalid="ignore"):  # Where the method diverged.
        return values @ belongs.astype(np.float64)


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


def targets_by_hour(forecasts: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return sum and number of the targets in each hour of local time `(24,)`.

    As for errors, each window counts once.
    """
    y = forecasts["y"].transpose("cell", "time", "horizon").to_numpy()
    hours = target_hours(*local_times(forecasts), y.shape[2])
    seen = np.isfinite(y)
    totals = [np.where(seen, y, 0.0).sum(axis=0), seen.sum(axis=0)]
    total, count = (np.bincount(hours.ravel(), v.ravel(), minlength=24) for v in totals)
    return total, count


def hourly_load(forecasts: xr.Dataset) -> pd.Series:
    """Return the mean target of each hour of local time `(24,)`, NaN where there is none."""
    load = mean(*targets_by_hour(forecasts))
    return pd.Series(load, pd.RangeIndex(24, name="hour"), name="load")


def busy_hours(forecasts: xr.Dataset) -> tuple[int, ...]:
    """Return the `busiest` hours of forecasts' targets."""
    return busiest(hourly_load(forecasts).to_numpy(), of_speed=are_of_speed(forecasts))


def busiest(load: np.ndarray, *, of_speed: bool) -> tuple[int, ...]:
    """Return the hours of local time whose mean load `(24,)` lies above the mean of all hours.

    Of a speed, the hours below the mean: roads are slow when they are busy.
    """
    above = load - np.nanmean(load)
    return tuple(np.flatnonzero(above < 0 if of_speed else above > 0).tolist())


def are_of_speed(forecasts: xr.Dataset) -> bool:
    """Return whether forecasts are of the speed of vehicles, which is low when roads are busy."""
    units = str(forecasts["y"].attrs.get("units", "1"))
    return is_speed(str(forecasts.attrs.get("service", "")), units)


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

    A row for each of three metrics, client (and "all") and hour with targets has the columns
    `client`, `hour`, `metric` and `value`.
    """
    clients = pd.Index([*map(str, forecasts["cell"].to_numpy()), ALL], name="client")
    tables = []
    for metric in ("raw_mae", "mse", "mase"):
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
