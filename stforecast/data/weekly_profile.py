"""Weekly profile of each cell: its mean at the same time of earlier weeks, as inputs of windows.

The profile at a step is the mean of a cell's readings at the same time of the same weekday in all
earlier weeks. With few weeks it is drawn to the mean of all workdays, or of Saturday and Sunday, at
that time. It follows the wall clock and reads readings a week old or older only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from stforecast.data.dates import DAY, WEEK

if TYPE_CHECKING:
    from stforecast.data.clock import Calendar

N_ANOMALIES = 3
"""Inputs from anomalies: the newest, and the means of a day and of a week."""

SHRINKAGE = 1.0
"""Weeks of readings that the mean of all workdays, or of the weekend, counts as."""

AT_ONCE = 512
"""Cells whose profiles are computed at a time, which takes many times as much as they do."""


class WeeklyProfile(NamedTuple):
    """Profiles of a series and the anomalies of its readings, which are their distances to them.

    Attributes:
        profile: `(cells, steps)` float32, also for the steps of a horizon beyond the series; 0.0,
            the training mean, where there are no earlier readings.
        newest: `(cells, steps)` the profile of the newest reading up to each step.
        anomalies: `(cells, steps, 3)` the anomaly of the newest reading, and the mean anomalies of
            the last day and of the last week.
    """

    profile: np.ndarray
    newest: np.ndarray
    anomalies: np.ndarray

    @classmethod
    def of(cls, series: np.ndarray, horizon: int, calendar: Calendar) -> WeeklyProfile:
        """Compute the profiles of a series `(steps, cells)`, z-scored, NaN where missing."""
        if (n_cells := series.shape[1]) > AT_ONCE:
            blocks = (series[:, i : i + AT_ONCE] for i in range(0, n_cells, AT_ONCE))
            whole = zip(*(cls.of(block, horizon, calendar) for block in blocks), strict=True)
            return cls(*map(np.concatenate, whole))
        profile = profile_by_step(series, horizon, calendar)
        anomaly = series - profile[: len(series)]
        newest = fill_forward(np.where(np.isnan(series), np.nan, profile[: len(series)]))
        means = _means_of_last(anomaly, [calendar.steps_in(span) for span in (DAY, WEEK)])
        anomalies = np.stack([fill_forward(part) for part in (anomaly, *means)], axis=-1)
        parts = (profile.T, newest.T, anomalies.swapaxes(0, 1))
        return cls(*(part.astype(np.float32) for part in parts))

    def of_cells(self, position: np.ndarray) -> WeeklyProfile:
        """Return the profiles of some cells."""
        return WeeklyProfile(*(part[position] for part in self))

    def inputs(self, starts: np.ndarray, horizon: int, calendar: Calendar) -> np.ndarray:
        """Return inputs of windows, `(cells, windows, horizon + 3)` float32, NaN without readings.

        They are the profile at each target, in the order of the wall clock, less the profile at the
        newest reading, and the anomalies.
        """
        now = np.asarray(starts) - 1
        change = at_targets(self.profile, starts, horizon, calendar) - self.newest[:, now, None]
        change = calendar.on_wall_clock(change, starts)
        return np.concatenate([change, self.anomalies[:, now]], axis=-1)


def fill_forward(values: np.ndarray) -> np.ndarray:
    """Return `values` `(steps, cells)` with the last value before each gap, NaN without any.

    >>> fill_forward(np.array([[np.nan], [1.0], [np.nan]])).ravel().tolist()
    [nan, 1.0, 1.0]
    """
    gaps = np.asarray(np.isnan(values).any(axis=0))
    if not gaps.any():
        return values
    found = values.copy()
    found[:, gaps] = pd.DataFrame(values[:, gaps]).ffill().to_numpy()
    return found


def _means_of_last(values: np.ndarray, spans: list[int]) -> Iterator[np.ndarray]:
    """Yield means of the last steps of `values` `(steps, cells)` up to each; NaN without values.

    >>> [of.ravel().tolist() for of in _means_of_last(np.array([[1.0], [np.nan], [5.0]]), [1, 3])]
    [[1.0, nan, 5.0], [1.0, 1.0, 3.0]]
    """
    known = np.isfinite(values)
    totals = [np.cumsum(of, axis=0) for of in (np.where(known, values, 0.0), known)]
    for span in spans:
        total, n = (np.concatenate([of[:span], of[span:] - of[:-span]]) for of in totals)
        yield np.where(n > 0, total, np.nan) / np.fmax(n, 1)


def at_targets(
    profile: np.ndarray, starts: np.ndarray, horizon: int, calendar: Calendar
) -> np.ndarray:
    """Return a profile `(cells, steps)` at the targets of windows, `(cells, windows, horizon)`.

    A target six days ahead or later has the profile of a week before, which is known already.
    """
    week = calendar.steps_in(WEEK)
    first, ahead = np.asarray(starts)[:, None], np.arange(horizon)
    weeks = (ahead + calendar.steps_in(DAY)) // week
    steps = np.where(weeks > 0, calendar.before(first + ahead, week * weeks), first + ahead)
    return profile[:, steps.clip(0)]


def profile_by_step(series: np.ndarray, horizon: int, calendar: Calendar) -> np.ndarray:
    """Return the profile `(steps + horizon, cells)` of a series `(steps, cells)`."""
    steps = np.arange(len(series) + horizon)
    times = calendar.local_times(steps)
    weekend = (times.day_of_week >= 5).astype(int)
    of_week = (steps + calendar.shifts(steps)) % calendar.steps_in(WEEK)
    of_day = (steps + calendar.shifts(steps)) % calendar.steps_in(DAY)
    readings = pd.DataFrame(series).reindex(steps)
    sums, counts = readings.fillna(0.0), readings.notna().astype(float)

    def before(table: pd.DataFrame, groups: np.ndarray) -> pd.DataFrame:
        """Sum the steps of the same group up to the same time of the week before."""
        return table.groupby(groups).cumsum().groupby(of_week).shift(1, fill_value=0.0)

    kind = 2 * of_day + weekend
    usual = before(sums, kind) / before(counts, kind).clip(lower=1.0)
    profile = (before(sums, of_week) + SHRINKAGE * usual) / (before(counts, of_week) + SHRINKAGE)
    return profile.to_numpy()
