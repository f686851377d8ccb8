"""Sliding windows over a series: inputs x and targets y.

A window is identified by its first target step k. Its inputs are the closeness part
cv = (v[k-c], …, v[k-1]) and the periodic part pv = (v[k-qp], …, v[k-p]), as in FUELS (Liu et al.,
AAAI-25, arXiv 2404.03702, section 2); its targets are v[k], …, v[k+horizon-1].

A series is `(steps, cells)` with NaN where nothing was recorded. Windows put the cell, which is the
client, on the first axis. A missing input becomes 0.0, the training mean of a z-scored series, or
is imputed. Beyond the paper, a window may read further lags, such as last week's, the
calendar and events known in advance.

Where daylight saving time changes, windows follow the wall clock: lags of a day and more lead to
the same time of day (`source_steps`), and a model learns and forecasts the target at a time of the
wall clock (`Calendar.on_wall_clock`, `Calendar.off_wall_clock`). Closeness counts steps.

Rules of imputation read the past only; an input that is missing still becomes 0.0. Targets are
never imputed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError
from data_prep.base.limits import check_size
from stforecast.data.anchors import LEVEL, without_anchors
from stforecast.data.clock import Calendar, calendar_inputs, day_slots, holiday_inputs
from stforecast.data.dates import DAY, WEEK
from stforecast.data.weekly_profile import WeeklyProfile, fill_forward
from stforecast.data.window_spec import MARGIN, WindowSpec

RECENT = pd.Timedelta(hours=1)
"""Age up to which the last reading is better than the weekly profile."""


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of every cell, aligned in time.

    Attributes:
        x: `(cells, windows, n_inputs)` float32 inputs, 0.0 where missing.
        x_next: the inputs of the window one step later, same shape, for temporal-shift augmentation
            (Liu et al., "When do contrastive learning signals help spatio-temporal graph
            forecasting?", SIGSPATIAL 2022). Its newest closeness input is the first target, so it
            is for training only. None unless requested.
        y: `(cells, windows, horizon)` float32 targets as a model learns them, less their anchors
            unless `target` is level; 0.0 where `mask` is False.
        mask: `(cells, windows, horizon)` bool, True where the target was observed.
        slot: `(windows,)` position of the first target in the period, 0 … period - 1.
    """

    x: np.ndarray
    x_next: np.ndarray | None
    y: np.ndarray
    mask: np.ndarray
    slot: np.ndarray


@dataclass(frozen=True, eq=False)
class Sources:
    """What the inputs of windows read, whatever the cell.

    Attributes:
        starts: `(windows,)` first target steps.
        steps: `(windows, readings)` steps of all lags, below 0 before the series.
        known: `(windows, inputs)` inputs of the calendar and of holidays.
    """

    starts: np.ndarray
    steps: np.ndarray
    known: np.ndarray


@dataclass(frozen=True, eq=False)
class History:
    """A series that windows are cut from, with what all of them read.

    Attributes:
        z: `(steps, cells)`, z-scored, NaN where missing.
        window: shape of the windows.
        calendar: the series' wall clock, with its events and covariates if windows read them.
        profile: the weekly profile, if windows read it.
        filled: `(steps, cells)` values whose gaps are filled, see `fill_gaps`.
    """

    z: np.ndarray
    window: WindowSpec
    calendar: Calendar
    profile: WeeklyProfile | None
    filled: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, window: WindowSpec, calendar: Calendar) -> History:
        """Compute the weekly profile of a series, and fill its gaps."""
        profile = WeeklyProfile.of(z, window.horizon, calendar) if window.n_profile else None
        return cls(z, window, calendar, profile, fill_gaps(z, window, calendar, profile))

    def of_cells(self, position: np.ndarray) -> History:
        """Return the history of some cells."""
        return dataclasses.replace(
            self,
            z=self.z[:, position],
            calendar=self.calendar.of_cells(position),
            profile=self.profile and self.profile.of_cells(position),
            filled=self.filled[:, position],
        )

    def sources(self, starts: np.ndarray) -> Sources:
        """Return the sources of the windows whose first targets are `starts`."""
        starts = np.asarray(starts, dtype=np.intp)
        times = self.calendar.local_times(starts)
        known = calendar_inputs(times, self.window.calendar) * self.calendar.shows_week
        if self.window.holidays:
            holidays = holiday_inputs(times, self.window.holidays) * self.calendar.shows_holidays
            known = np.concatenate([known, holidays], axis=1)
        return Sources(starts, source_steps(starts, self.window, self.calendar), known)

    def windows(self, sources: Sources, *, with_next: bool = False) -> Windows:
        """Cut windows, in the order of their sources, with `x_next` if asked.

        Raises:
            InputError: if a window would reach outside the series.
        """
        starts, window, calendar = sources.starts, self.window, self.calendar
        x = self.inputs(sources)
        y, mask = training_targets(self.z, starts, window, calendar)
        x_next = self.inputs(self.sources(starts + 1)) if with_next else None
        slots = day_slots(calendar.local_times(starts), window.period, calendar.step)
        return Windows(x, x_next, y, mask, slots)

    def inputs(self, sources: Sources) -> np.ndarray:
        """Cut the inputs of windows, as `input_windows`."""
        shape = self.z.shape[1], len(sources.starts), self.window.n_inputs
        check_size(
            8 * math.prod(shape),
            f"{shape[1]} windows of {shape[2]} inputs of {shape[0]} cells",
        )
        x = np.empty(shape, dtype=np.float32)
        _cut_readings(self.filled, sources.steps, self.window, x)
        place = sources.steps.shape[1]
        for part in self._known(sources):
            x[..., place : place + part.shape[-1]] = np.where(np.isnan(part), 0.0, part)
            place += part.shape[-1]
        return x

    def _known(self, sources: Sources) -> Iterator[np.ndarray]:
        """Yield the inputs after the readings, of all cells or each, NaN where missing."""
        starts, window, calendar = sources.starts, self.window, self.calendar
        yield sources.known
        if window.n_events:
            if calendar.events is None:
                raise InputError(
                    "windows read events, but the data were read without a table of them"
                )
            events = calendar.events.inputs(starts, window.horizon, calendar)
            yield events.reshape(*events.shape[:2], window.n_events)
        if window.n_covariates:
            if calendar.covariates is None:
                raise InputError(
                    "windows read further services or static columns, but the data were read "
                    "without them"
                )
            yield calendar.covariates.inputs(starts, window)
        if self.profile:
            yield self.profile.inputs(starts, window.horizon, calendar)


def input_windows(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar
) -> np.ndarray:
    """Cut the inputs of windows, `(cells, windows, n_inputs)` float32 with 0.0 where missing.

    The series is read before each start only, which may be the step just after the series.
    """
    history = History.of(series, spec, calendar)
    return history.inputs(history.sources(starts))


def fill_gaps(
    series: np.ndarray, spec: WindowSpec, calendar: Calendar, profile: WeeklyProfile | None = None
) -> np.ndarray:
    """Fill the gaps of a series `(steps, cells)` by the rule `impute` of the windows.

    They stay NaN where there is no earlier value. With the series' `profile`, the rule `newest`
    takes that in long gaps, see `WindowSpec`.

    >>> hours = Calendar(pd.Timestamp("2013-11-04"), pd.Timedelta("1h"))
    >>> gap = np.array([[1.0], [np.nan], [3.0]])
    >>> fill_gaps(gap, WindowSpec(impute="ffill"), hours).ravel().tolist()
    [1.0, 1.0, 3.0]
    """
    if spec.impute == "none":
        return series
    if spec.impute == "last-week":
        steps = np.arange(len(series))
        of_week = (steps + calendar.shifts(steps)) % calendar.steps_in(WEEK)
        return pd.DataFrame(series).groupby(of_week).ffill().to_numpy()
    if profile and spec.impute == "newest" and np.isnan(series).any():
        # The first hour of a gap has the last reading, the rest the weekly profile, moved by the
        # mean distance to it in the week before. A time of the week that was never observed has
        # the last reading, too.
        gaps, found = np.flatnonzero(np.isnan(series).any(axis=0)), series.copy()
        table, own = pd.DataFrame(series[:, gaps]), profile.of_cells(gaps)
        recent = table.ffill(limit=max(1, RECENT // calendar.step))
        usual = own.profile[:, : len(series)].T
        usual = np.where(usual == 0.0, np.nan, usual + own.anomalies[..., -1].T)
        found[:, gaps] = recent.fillna(pd.DataFrame(usual)).fillna(table.ffill()).to_numpy()
        return found
    return fill_forward(series)


def source_steps(starts: np.ndarray, spec: WindowSpec, calendar: Calendar) -> np.ndarray:
    """Return the steps that lags read, `(windows, lags)`, below 0 before the series.

    A lag that reaches back about a day from the last target follows the wall clock, so that it
    leads to the same time of day across a change of daylight saving time; see `Calendar.before`.
    Shorter ones and closeness count steps. No lag leads to the first target or later.
    """
    first, back = np.asarray(starts, dtype=np.intp)[:, None], np.asarray(spec.all_lags, np.intp)
    shortest = max(spec.closeness, DAY // calendar.step - spec.horizon - MARGIN)
    steps = np.minimum(calendar.before(first, back), first - 1)
    return np.where(back > shortest, steps, first - back)


def _cut_readings(filled: np.ndarray, steps: np.ndarray, spec: WindowSpec, x: np.ndarray) -> None:
    """Write the readings at `steps` `(windows, readings)` to the first inputs of windows."""
    n_lags = len(spec.lags)
    _check_steps(steps[:, :n_lags], len(filled))
    _check_steps(steps.clip(0), len(filled))
    by_cell = np.ascontiguousarray(np.transpose(filled), dtype=np.float32)
    gaps = bool(np.isnan(by_cell).any()) or bool((steps < 0).any())
    for of_cell, values in zip(x, by_cell, strict=True):  # One cell's stay in the cache.
        readings = values.take(steps, mode="clip")
        if gaps:
            readings[steps < 0] = np.nan
            if spec.impute == "newest":
                newest = readings[:, [spec.lags.index(min(spec.lags))]]
                readings = np.where(np.isnan(readings), newest, readings)
            readings[np.isnan(readings)] = 0.0
        of_cell[:, : steps.shape[1]] = readings


def target_windows(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the targets of windows and whether they were observed, `(cells, windows, horizon)`.

    Missing ones are 0.0.
    """
    steps = np.asarray(starts, dtype=np.intp)[:, None] + np.arange(spec.horizon)
    _check_steps(steps, len(series))
    y = np.take(np.ascontiguousarray(series.T, dtype=np.float32), steps, axis=1)
    mask = ~np.isnan(y)
    y[~mask] = 0.0
    return y, mask


def training_targets(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the targets of windows as a model learns them, less anchors; see `target_windows`."""
    y, mask = target_windows(series, starts, spec)
    if spec.target != LEVEL:
        y = np.where(mask, without_anchors(y, series, starts, spec.target, calendar), 0.0)
    return calendar.on_wall_clock(y, starts), calendar.on_wall_clock(mask, starts)


def _check_steps(steps: np.ndarray, n_steps: int) -> None:
    """Refuse windows that reach outside a series."""
    if steps.size and (steps.min() < 0 or steps.max() >= n_steps):
        raise InputError(
            f"a window reads steps {steps.min()} to {steps.max()} of a series that has steps 0 to "
            f"{n_steps - 1}; start later, end earlier or give a longer series"
        )
