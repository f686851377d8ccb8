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
wall clock (`on_wall_clock`, `off_wall_clock`). Closeness counts steps.

Rules of imputation read the past only; an input that is missing still becomes 0.0. Targets are
never imputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, choose
from data_prep.base.limits import check_size
from stforecast.data.anchors import LEVEL, without_anchors
from stforecast.data.clock import Calendar, calendar_inputs, holiday_inputs
from stforecast.data.dates import DAY, WEEK
from stforecast.data.weekly_profile import WeeklyProfile, fill_forward
from stforecast.data.window_spec import MARGIN, Impute, WindowSpec

IMPUTE = get_args(Impute)

RECENT = pd.Timedelta(hours=1)
"""Age up to which the last reading is better than the weekly profile."""


def impute(
    series: np.ndarray, how: str, steps_per_week: int = 0, shifts: np.ndarray | int = 0
) -> np.ndarray:
    """Fill the gaps of a series by the rule `how`; they stay NaN where there is no earlier value.

    The rule `last-week` needs the steps of a week and `Calendar.shifts`, `(steps,)`.

    >>> impute(np.array([[1.0], [np.nan], [3.0]]), "ffill").ravel().tolist()
    [1.0, 1.0, 3.0]
    """
    if how not in IMPUTE:
        raise choose("impute", how, IMPUTE)
    if how == "none":
        return series
    if how in ("ffill", "newest"):  # Only a window knows its newest input.
        return fill_forward(series)
    table = pd.DataFrame(series)
    return table.groupby((np.arange(len(series)) + shifts) % steps_per_week).ffill().to_numpy()


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

    @classmethod
    def of(cls, starts: np.ndarray, spec: WindowSpec, calendar: Calendar | None) -> Sources:
        """Return the sources of the windows whose first targets are `starts`."""
        starts = np.asarray(starts, dtype=np.intp)
        steps = source_steps(starts, (*spec.lags, *spec.further_lags), spec, calendar)
        known = np.empty((len(starts), 0), dtype=np.float32)
        if calendar and spec.n_known:
            times = calendar.local_times(starts)
            known = calendar_inputs(times, spec.calendar)
            if spec.holidays:
                known = np.concatenate([known, holiday_inputs(times, spec.holidays)], axis=1)
        return cls(starts, steps, known)


def make_windows(
    series: np.ndarray,
    starts: np.ndarray | Sources,
    spec: WindowSpec,
    slot_of_step: np.ndarray,
    calendar: Calendar | None = None,
    *,
    filled: np.ndarray | None = None,
    profile: WeeklyProfile | None = None,
    with_next: bool = False,
) -> Windows:
    """Cut the windows whose first targets are `starts`, in their order.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` indices of first target steps, or their sources, if already computed.
        spec: the windows' shape.
        slot_of_step: `(steps,)` position of each step in the period, from `day_slots`.
        calendar: the series' wall clock, for windows that read it.
        filled: result of `fill_gaps` for the series, if already computed.
        profile: result of `profile_of` for the series, if already computed.
        with_next: whether to make `x_next`.

    Raises:
        InputError: if a window would reach outside the series.
    """
    sources = starts if isinstance(starts, Sources) else Sources.of(starts, spec, calendar)
    profile = profile_of(series, spec, calendar) if profile is None else profile
    filled = fill_gaps(series, spec, calendar, profile) if filled is None else filled
    x = _cut_inputs(filled, sources, spec, calendar, profile)
    y, mask = training_targets(series, sources.starts, spec, calendar)
    x_next = None
    if with_next:
        following = Sources.of(sources.starts + 1, spec, calendar)
        x_next = _cut_inputs(filled, following, spec, calendar, profile)
    return Windows(x, x_next, y, mask, np.asarray(slot_of_step)[sources.starts])


def input_windows(
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar | None = None,
    profile: WeeklyProfile | None = None,
) -> np.ndarray:
    """Cut the inputs of windows, `(cells, windows, n_inputs)` float32 with 0.0 where missing.

    The series is read before each start only, which may be the step just after the series.
    `profile` is the result of `profile_of` for the series, if already computed.
    """
    profile = profile_of(series, spec, calendar) if profile is None else profile
    filled = fill_gaps(series, spec, calendar, profile)
    return _cut_inputs(filled, Sources.of(starts, spec, calendar), spec, calendar, profile)


def fill_gaps(
    series: np.ndarray,
    spec: WindowSpec,
    calendar: Calendar | None,
    profile: WeeklyProfile | None = None,
) -> np.ndarray:
    """Fill the gaps of a series `(steps, cells)` by the rule `impute` of the windows.

    With `profile`, its `profile_of`, the rule `newest` takes that in long gaps, see `WindowSpec`.
    """
    if calendar is None and (spec.n_known or spec.impute == "last-week"):
        raise InputError("windows that read the calendar need the series' wall clock")
    if calendar and profile and spec.impute == "newest" and np.isnan(series).any():
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
    if calendar is None or spec.impute != "last-week":
        return impute(series, spec.impute)
    shifts = calendar.shifts(np.arange(len(series)))
    return impute(series, spec.impute, calendar.steps_in(WEEK), shifts)


def profile_of(
    series: np.ndarray, spec: WindowSpec, calendar: Calendar | None
) -> WeeklyProfile | None:
    """Return the weekly profile of a series `(steps, cells)`, if its windows read it."""
    if calendar is None or spec.profile == "none":
        return None
    return WeeklyProfile.of(series, spec.horizon, calendar)


def source_steps(
    starts: np.ndarray, lags: tuple[int, ...], spec: WindowSpec, calendar: Calendar | None
) -> np.ndarray:
    """Return the steps that lags read, `(windows, lags)`, below 0 before the series.

    A lag that reaches back about a day from the last target follows the wall clock, so that it
    leads to the same time of day across a change of daylight saving time; see `Calendar.before`.
    Shorter ones, closeness, and all without a calendar count steps. No lag leads to the first
    target or later.
    """
    first, back = np.asarray(starts, dtype=np.intp)[:, None], np.asarray(lags, dtype=np.intp)
    plain = first - back
    if calendar is None:
        return plain
    shortest = max(spec.closeness, DAY // calendar.step - spec.horizon - MARGIN)
    steps = np.minimum(calendar.before(first, back), first - 1)
    return np.where(back > shortest, steps, plain)


def _cut_inputs(
    filled: np.ndarray,
    sources: Sources,
    spec: WindowSpec,
    calendar: Calendar | None,
    profile: WeeklyProfile | None,
) -> np.ndarray:
    """Cut the inputs of windows, as `input_windows`, from a series whose gaps are filled."""
    n_cells, starts = filled.shape[1], sources.starts
    check_size(
        8 * len(starts) * spec.n_inputs * n_cells,
        f"{len(starts)} windows of {spec.n_inputs} inputs of {n_cells} cells",
    )
    x = np.empty((n_cells, len(starts), spec.n_inputs), dtype=np.float32)
    _cut_readings(filled, sources.steps, spec, x)
    parts = [np.broadcast_to(sources.known, (n_cells, *sources.known.shape))]
    if calendar and spec.n_events:
        if calendar.events is None:
            raise InputError("windows read events, but the data were read without a table of them")
        events = calendar.events.inputs(starts, spec.horizon, calendar)
        events = on_wall_clock(events, starts, calendar)
        parts.append(events.reshape(n_cells, len(starts), spec.n_events))
    if calendar and spec.n_covariates:
        if calendar.covariates is None:
            raise InputError(
                "windows read further services or static columns, but the data were read without "
                "them"
            )
        parts.append(calendar.covariates.inputs(starts, spec))
    if calendar and profile:
        inputs = profile.inputs(starts, spec.horizon, calendar)
        change = on_wall_clock(inputs[..., : spec.horizon], starts, calendar)
        parts += [change, inputs[..., spec.horizon :]]
    place = sources.steps.shape[1]
    for part in parts:
        x[..., place : place + part.shape[-1]] = np.where(np.isnan(part), 0.0, part)
        place += part.shape[-1]
    return x


def _cut_readings(filled: np.ndarray, steps: np.ndarray, spec: WindowSpec, x: np.ndarray) -> None:
    """Write the readings at `steps` `(windows, readings)` to the first inputs of windows."""
    n_lags = len(spec.lags)
    _check_steps(steps[:, :n_lags], len(filled))
    _check_steps(steps.clip(0), len(filled))
    by_cell = _by_cell(filled)
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
    y = np.take(_by_cell(series), steps, axis=1)
    mask = ~np.isnan(y)
    y[~mask] = 0.0
    return y, mask


def training_targets(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar | None
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the targets of windows as a model learns them, less anchors; see `target_windows`."""
    y, mask = target_windows(series, starts, spec)
    if calendar is None:
        if spec.target != LEVEL:
            raise InputError(f"target is {spec.target!r}, which needs the series' wall clock")
        return y, mask
    if spec.target != LEVEL:
        y = np.where(mask, without_anchors(y, series, starts, spec.target, calendar), 0.0)
    return on_wall_clock(y, starts, calendar), on_wall_clock(mask, starts, calendar)


def on_wall_clock(y: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
    """Order the targets of windows by the wall clock, as a model learns them.

    Entry j becomes the target j steps after the first one on the wall clock. It differs from
    target j only if daylight saving time changes between them: an hour that the clock shows twice
    is there once, and the one before an hour that it skips is there twice. A target beyond the
    window is replaced by its last one. The targets `(cells, windows, horizon)` may have a further
    axis.
    """
    return _reordered(y, starts, calendar, -1)


def off_wall_clock(y_hat: np.ndarray, starts: np.ndarray, calendar: Calendar) -> np.ndarray:
    """Order forecasts by steps; arguments as `on_wall_clock`, which it reverses."""
    return _reordered(y_hat, starts, calendar, 1)


def _reordered(values: np.ndarray, starts: np.ndarray, calendar: Calendar, way: int) -> np.ndarray:
    horizon = values.shape[2]
    first, ahead = np.asarray(starts)[:, None], np.arange(horizon)
    moved = calendar.shifts(first + ahead) - calendar.shifts(first)
    if not moved.any():
        return values
    entries = (ahead + way * moved).clip(0, horizon - 1)
    return np.take_along_axis(values, entries.reshape(1, *moved.shape, *[1] * (values.ndim - 3)), 2)


def _by_cell(series: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.transpose(series), dtype=np.float32)


def _check_steps(steps: np.ndarray, n_steps: int) -> None:
    """Refuse windows that reach outside a series."""
    if steps.size and (steps.min() < 0 or steps.max() >= n_steps):
        raise InputError(
            f"a window reads steps {steps.min()} to {steps.max()} of a series that has steps 0 to "
            f"{n_steps - 1}; start later, end earlier or give a longer series"
        )
