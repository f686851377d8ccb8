"""Local time of a series: slots of a period, inputs of the calendar, a clock beyond its end."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Container
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, needing
from stforecast.data.dates import steps_in
from stforecast.data.events import Events

if TYPE_CHECKING:
    import xarray as xr

    from stforecast.data.covariates import Covariates


def day_slots(local_times: pd.DatetimeIndex, period: int, step: pd.Timedelta) -> np.ndarray:
    """Return the slots of steps since a Monday's local midnight, modulo `period`, `(steps,)`.

    With a period of one day, or a part of it, slot 0 is at local midnight; with a period of a week,
    on Monday at midnight. Changes to and from daylight saving time skip or repeat slots.

    >>> hour = pd.Timedelta("1h")
    >>> day_slots(pd.date_range("2013-11-01 22:00", periods=4, freq=hour), 24, hour).tolist()
    [22, 23, 0, 1]
    """
    monday = pd.Timestamp("1970-01-05")
    return np.asarray((local_times - monday) // step % period, dtype=np.int64)


@dataclass(frozen=True)
class Calendar:
    """Local time of an evenly spaced series and the events at its cells, also beyond its end.

    Attributes:
        start: time of step 0, without a zone: UTC if `time_zone` is given, else local.
        step: length of a step.
        time_zone: IANA name of the time zone, or None if `start` is local time already.
        events: events known in advance, or None if no table was read.
        covariates: z-scored covariates of the steps of the series, or None if none were read.
        shows_week: whether windows read the time of day and the weekday, or 0 for them.
        shows_holidays: whether windows read holidays, or 0 for them.
    """

    start: pd.Timestamp
    step: pd.Timedelta
    time_zone: str | None = None
    events: Events | None = field(default=None, repr=False, compare=False)
    covariates: Covariates | None = field(default=None, repr=False, compare=False)
    shows_week: bool = True
    shows_holidays: bool = True

    @classmethod
    def from_cube(cls, ds: xr.Dataset) -> Calendar:
        """Build the calendar of a cube."""
        from data_prep.cube import step_of  # slow: it imports the file formats of cubes

        local = ds.attrs.get("clock", "utc") == "local"
        zone = None if local else ds.attrs.get("time_zone", "UTC")
        return cls(pd.Timestamp(ds.indexes["time"][0]), step_of(ds), zone)

    def local_times(self, steps: np.ndarray) -> pd.DatetimeIndex:
        """Return the local time of `steps` `(n,)`, which may lie beyond the series."""
        offsets = np.asarray(steps) * self.step.to_timedelta64()
        return self.local(pd.DatetimeIndex(self.start.to_datetime64() + offsets))

    def local(self, times: pd.DatetimeIndex) -> pd.DatetimeIndex:
        """Return the local time of times on the series' clock."""
        if self.time_zone is None:
            return times
        return times.tz_localize("UTC").tz_convert(self.time_zone).tz_localize(None)

    def shifts(self, steps: np.ndarray) -> np.ndarray:
        """Return how many whole steps the wall clock is ahead of the series' clock, int64.

        Only differences count: they are not 0 where daylight saving time changes in between. A
        change of less than half a step counts as none. The steps, in any shape, may lie outside the
        series.

        >>> rome = Calendar(pd.Timestamp("2013-10-27"), pd.Timedelta("1h"), "Europe/Rome")
        >>> rome.shifts(np.array([0, 1]))
        array([2, 1])
        """
        if self.time_zone is None or not np.size(steps):
            return np.zeros(np.shape(steps), dtype=np.int64)
        first, last = int(np.min(steps)), int(np.max(steps))
        plain = Calendar(self.start, self.step, self.time_zone)
        return _shifts(plain, first, last)[np.asarray(steps) - first]

    def before(self, steps: np.ndarray, lags: np.ndarray | int) -> np.ndarray:
        """Return the steps at which the wall clock shows what it shows at `steps`, less `lags`.

        Without a change of the clock in between these are `steps - lags`. For a time that the
        clock skips it is the step after the gap; of a time that it shows twice, the step with the
        offset of `steps`. A step before the series is replaced by `steps - lags`.
        """
        plain = np.asarray(steps) - np.asarray(lags)
        found = plain + self.shifts(steps) - self.shifts(plain)
        return np.where(found < 0, plain, found)

    def on_wall_clock(self, y: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Order the targets of windows by the wall clock, as a model learns them.

        Entry j becomes the target j steps after the first one on the wall clock. It differs from
        target j only if daylight saving time changes between them: an hour that the clock shows
        twice is there once, and the one before an hour that it skips is there twice. A target
        beyond the window is replaced by its last one. The targets `(cells, windows, horizon)` may
        have a further axis.
        """
        return self._reordered(y, starts, -1)

    def off_wall_clock(self, y_hat: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Order forecasts by steps; arguments as `on_wall_clock`, which it reverses."""
        return self._reordered(y_hat, starts, 1)

    def _reordered(self, values: np.ndarray, starts: np.ndarray, way: int) -> np.ndarray:
        horizon = values.shape[2]
        first, ahead = np.asarray(starts)[:, None], np.arange(horizon)
        moved = self.shifts(first + ahead) - self.shifts(first)
        if not moved.any():
            return values
        entries = (ahead + way * moved).clip(0, horizon - 1)
        entries = entries.reshape(1, *moved.shape, *[1] * (values.ndim - 3))
        return np.take_along_axis(values, entries, 2)

    def time(self, step: int) -> pd.Timestamp:
        """Return the time of a step on the series' clock; it may lie beyond the series."""
        return self.start + step * self.step

    def of_cells(self, position: np.ndarray) -> Calendar:
        """Return the calendar of some cells."""
        events = self.events and self.events.of_cells(position)
        covariates = self.covariates and self.covariates.of_cells(position)
        return dataclasses.replace(self, events=events, covariates=covariates)

    def steps_in(self, span: pd.Timedelta) -> int:
        """Number of steps in `span`."""
        return steps_in(span, self.step)


@lru_cache(maxsize=16)
def _shifts(calendar: Calendar, first: int, last: int) -> np.ndarray:
    """Return `calendar.shifts` of the steps from `first` to `last`, which windows ask for often."""
    span = calendar.step.to_timedelta64() * np.arange(first, last + 1)
    times = pd.DatetimeIndex(calendar.start.to_datetime64() + span)
    ahead = (calendar.local(times) - times) / calendar.step
    return np.rint(ahead.to_numpy()).astype(np.int64)


CALENDAR_INPUTS = {"none": 0, "day": 4, "week": 6, "weekdays": 11}
"""Number of inputs of each kind of calendar."""


def calendar_inputs(local_times: pd.DatetimeIndex, kind: str) -> np.ndarray:
    """Encode time of day and weekday of each first target, `(windows, inputs)` float32.

    The kind `day` is sine and cosine of one and two cycles a day; `week` adds indicators of weekend
    and Sunday; `weekdays` adds an indicator of each weekday instead.
    """
    if kind == "none":
        return np.empty((len(local_times), 0), dtype=np.float32)
    angle = 2 * np.pi * ((local_times - local_times.normalize()) / pd.Timedelta(days=1)).to_numpy()
    columns = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    weekday = local_times.day_of_week
    if kind == "week":
        columns += [weekday >= 5, weekday == 6]
    elif kind == "weekdays":
        columns += [weekday == day for day in range(7)]
    return np.stack(columns, axis=-1).astype(np.float32)


def holiday_inputs(local_times: pd.DatetimeIndex, region: str) -> np.ndarray:
    """Return 1.0 for local times on a public holiday, else 0.0, `(windows, 1)` float32.

    >>> holiday_inputs(pd.DatetimeIndex(["2013-12-07", "2013-12-09"]), "IT-MI").ravel().tolist()
    [1.0, 0.0]
    """
    days = public_holidays(region)
    return np.array([[day in days] for day in local_times.date], dtype=np.float32).reshape(-1, 1)


def public_holidays(region: str) -> Container[datetime.date]:
    """Return the public holidays of a country or a part of it, from the library `holidays`.

    The region is the ISO 3166 code of the country, and of its part after a hyphen: IT, IT-MI
    (Milan), US-CA (California).
    """
    with needing("holidays", f"holidays is {region!r}, which needs a library"):
        import holidays
    country, _, part = region.partition("-")
    try:
        return holidays.country_holidays(country, subdiv=part or None)
    except NotImplementedError as e:
        raise InputError(
            f"holidays is {region!r}: {e}; give an ISO 3166 code such as IT, IT-MI or US-CA"
        ) from e
