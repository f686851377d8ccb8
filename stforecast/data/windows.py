"""Sliding windows over a series: inputs x and targets y.

A window is identified by its first target step k. Its inputs are the closeness part
cv = (v[k-c], …, v[k-1]) and the periodic part pv = (v[k-qp], …, v[k-p]), as in FUELS (Liu et al.,
AAAI-25, arXiv 2404.03702, section 2); its targets are v[k], …, v[k+horizon-1].

A series is `(steps, cells)` with NaN where nothing was recorded. Windows put the cell, which is the
client, on the first axis. A missing input becomes 0.0, the training mean of a z-scored series, or
is imputed by `stforecast.data.imputation`. Beyond the paper, a window may read further lags, such
as those of last week, the calendar and events known in advance.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pandas as pd
from annotated_types import Le
from pydantic import NonNegativeInt, PositiveInt

from data_prep.errors import InputError
from data_prep.limits import check_size
from data_prep.text import counted
from stforecast.data.anchors import LEVEL, Target, without_anchors
from stforecast.data.calendar import (
    CALENDAR_INPUTS,
    calendar_inputs,
    holiday_inputs,
    public_holidays,
)
from stforecast.data.durations import UNITS, WEEK, in_steps, natural_period, steps_in, unit_of
from stforecast.data.events import Events
from stforecast.data.imputation import impute
from stforecast.data.lags import AUTO, AUTO_WEEKDAYS, auto_calendar, auto_lags
from stforecast.federated.options import CheckedOptions

if TYPE_CHECKING:
    import xarray as xr

MONDAY = pd.Timestamp("1970-01-05")

LAG = rf"[0-9]{{1,7}}(-[0-9]{{1,7}}|{'|'.join(UNITS)})?"
LAGS = rf"({LAG}(, *{LAG})*|{AUTO})?"
"""Format of `extra_lags`."""

MOST_STEPS = 10**6
"""Maximum of any setting of a window in steps: nine years of steps of five minutes."""

Steps = Annotated[NonNegativeInt, Le(MOST_STEPS)]
"""A number of steps, or none."""


@dataclass(frozen=True)
class WindowSpec(CheckedOptions):
    """Input and target steps of a window.

    The defaults are those of FUELS on its hourly data (appendix D.1). A plain window of 12 in and
    12 out is `WindowSpec(closeness=12, periods=0, horizon=12)`.

    >>> WindowSpec(period=24).lags
    (3, 2, 1, 72, 48, 24)
    >>> WindowSpec(period=24, newest_first=True).lags
    (1, 2, 3, 24, 48, 72)

    Attributes:
        closeness: number of steps just before the first target (c).
        periods: number of steps one, two, … periods before the first target (q).
        period: length of a period in steps (p); 0 is a day, whatever the step, or a week where a
            day is a single step or not a whole number of steps.
        horizon: number of target steps; periodic lags refer to the first of them.
        newest_first: order each part from newest to oldest, as the FedDA code does.
        extra_lags: further lags to read, counted from the first target: steps, as in "167,168,169"
            or "145-168", or times, as in "30min,23h,7d". Lags before the series count as missing,
            so they cost no training windows. `auto` chooses them from the step and the length of
            the training part, see `stforecast.data.lags`.
        calendar: inputs from the local time of the first target: none, day (sine and cosine of one
            and two cycles a day), week (as day, and indicators of weekend and Sunday), weekdays
            (as day, and an indicator of each weekday); or chosen like the lags: auto, day or week,
            and auto-weekdays, weekdays where training is two weeks or longer.
        holidays: region whose public holidays are an input: an indicator of whether the first
            target lies on one. ISO 3166 code such as IT, IT-MI (Milan) or US-CA; none by default.
        events: table of events known in advance, a .csv file with the columns kind, start and end
            (or date) and, for some cells only, cells; for each kind, the share of each target step
            that its events take is an input. A fitted model names the kinds instead.
        inputs: further services of the cube to read, as in "sms,call": their newest steps before
            the first target.
        input_steps: number of newest steps of each of these services.
        static: columns of the cells to read, one number for each cell, as in "area,lon,lat".
        impute: replacement of a missing input: none (0.0, the training mean), ffill (the cell's
            last reading), newest (as ffill; where there is none, the window's newest input) or
            last-week (its last reading at that weekday and time). Targets are never imputed.
        target: what a model learns: level (the value itself), its difference from the last value
            before the window (change) or from that of the same time one day or one week before
            (day, week), or the one of these with the lowest MSE on the validation part
            (validation).

    Raises:
        InputError: naming the field that is out of range.
    """

    closeness: Steps = 3
    periods: Steps = 3
    period: Steps = 0
    horizon: Annotated[PositiveInt, Le(MOST_STEPS)] = 1
    newest_first: bool = False
    extra_lags: str = ""
    calendar: Literal["none", "day", "week", "weekdays", "auto", "auto-weekdays"] = "none"
    holidays: str = ""
    events: str = ""
    inputs: str = ""
    input_steps: Annotated[PositiveInt, Le(1000)] = 3
    static: str = ""
    impute: Literal["none", "ffill", "newest", "last-week"] = "none"
    target: Target = LEVEL

    def __post_init__(self) -> None:
        """Refuse unknown regions, invalid lags and windows without inputs."""
        super().__post_init__()
        if self.holidays:
            public_holidays(self.holidays)
        if not re.fullmatch(LAGS, self.extra_lags) or not self._lags_can_be():
            raise InputError(
                f"extra_lags is {self.extra_lags!r:.200}; give positive whole numbers like "
                f"167,168,169, ranges like 145-168 or times like 23h,7d, {MOST_STEPS} lags at most"
                "; or auto"
            )
        if not self.closeness and not self.periods:
            raise InputError("closeness and periods are both 0: a window needs at least one input")

    def chosen(self, step: pd.Timedelta, n_training: int) -> WindowSpec:
        """Choose lags and calendar where they are `auto`.

        >>> spec = WindowSpec(closeness=1, extra_lags="auto", calendar="auto")
        >>> spec = spec.chosen(pd.Timedelta("1h"), n_training=480)
        >>> spec.extra_lags, spec.calendar
        ('2-168', 'week')

        Args:
            step: length of a step.
            n_training: steps from the begin of the series to the end of its training part.
        """
        spec = self
        if spec.extra_lags == AUTO:
            lags = auto_lags(step, spec.horizon, n_training, spec.closeness)
            spec = dataclasses.replace(spec, extra_lags=lags)
        if spec.calendar in (AUTO, AUTO_WEEKDAYS):
            calendar = auto_calendar(step, n_training, spec.calendar)
            spec = dataclasses.replace(spec, calendar=calendar)
        return spec

    def at(self, step: pd.Timedelta) -> WindowSpec:
        """Convert a period of 0 and times among `extra_lags` to steps.

        The properties below that count steps require a spec without times, and with lags `chosen`.

        >>> spec = WindowSpec(period=0, extra_lags="3,23h,7d").at(pd.Timedelta("30min"))
        >>> spec.period, spec.extra_lags
        (48, '3,46,336')

        Args:
            step: length of a step.

        Raises:
            InputError: naming a time that is not a whole number of steps, or if neither a day nor a
                week can be the period.
        """
        if self.period and not any(map(unit_of, self._lag_texts())):
            return self
        lags = ",".join(_lag_in_steps(text, step) for text in self._lag_texts())
        lags = AUTO if self.extra_lags == AUTO else lags
        period = self.period or natural_period(step)
        return dataclasses.replace(self, period=period, extra_lags=lags)

    @property
    def lags(self) -> tuple[int, ...]:
        """Steps back from the first target, in input order: closeness, then periodic."""
        closeness = range(1, self.closeness + 1)
        last = self.periods * self.period
        periodic = range(self.period, last + 1, self.period) if self.periods else range(0)
        if self.newest_first:
            return (*closeness, *periodic)
        return (*reversed(closeness), *reversed(periodic))

    @property
    def further_lags(self) -> tuple[int, ...]:
        """Values of `extra_lags`, in steps."""
        return tuple(lag for text in self._lag_texts() for lag in _lag_range(text))

    def _lag_texts(self) -> list[str]:
        if self.extra_lags in ("", AUTO):
            return []
        return [text.strip() for text in self.extra_lags.split(",")]

    def _lags_can_be(self) -> bool:
        ranges = [_lag_range(text.rstrip("".join(UNITS))) for text in self._lag_texts()]
        return all(len(r) and r.start for r in ranges) and sum(map(len, ranges)) <= MOST_STEPS

    @property
    def n_inputs(self) -> int:
        """Number of inputs of a window: `lags`, `further_lags` and those of `n_known`."""
        further = sum(1 if unit_of(text) else len(_lag_range(text)) for text in self._lag_texts())
        return self.closeness + self.periods + further + self.n_known

    @property
    def n_known(self) -> int:
        """Number of the last inputs: of calendar, holiday, events and covariates."""
        in_advance = CALENDAR_INPUTS[self.calendar] + bool(self.holidays) + self.n_events
        return in_advance + self.n_covariates

    @property
    def n_events(self) -> int:
        """Number of inputs from `events`: one for each target step and kind."""
        return self.horizon * len(self.kinds)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of events, once `events` names them."""
        return _names(self.events)

    @property
    def n_covariates(self) -> int:
        """Number of inputs from `inputs` and `static`; see `stforecast.data.covariates`."""
        return len(self.services) * self.input_steps + len(self.columns)

    @property
    def services(self) -> tuple[str, ...]:
        """Further services."""
        return _names(self.inputs)

    @property
    def columns(self) -> tuple[str, ...]:
        """Static columns."""
        return _names(self.static)

    @property
    def max_lag(self) -> int:
        """Steps of history that the first window needs; further lags may lie before it."""
        return max(self.closeness, self.periods * self.period)

    @property
    def reach(self) -> int:
        """Steps back to the furthest input."""
        return max(self.max_lag, *self.further_lags, 0)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _lag_range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def _lag_in_steps(lag: str, step: pd.Timedelta) -> str:
    """A lag as a number of steps.

    Raises:
        InputError: if it is a time that is not a whole number of steps.
    """
    if not unit_of(lag):
        return lag
    n_steps = in_steps(lag, step)
    if n_steps is None:
        raise InputError(
            f"extra_lags: {lag} is not a whole number of steps of "
            f"{step / pd.Timedelta(minutes=1):g} minutes; give lags that are, or count steps "
            "(--extra-lags 1,2)"
        )
    return str(n_steps)


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


def make_windows(
    series: np.ndarray,
    starts: np.ndarray,
    spec: WindowSpec,
    slot_of_step: np.ndarray,
    calendar: Calendar | None = None,
    *,
    filled: np.ndarray | None = None,
    with_next: bool = False,
) -> Windows:
    """Cut the windows whose first targets are `starts`.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` indices of first target steps.
        spec: the windows' shape.
        slot_of_step: `(steps,)` position of each step in the period, from `day_slots`.
        calendar: the series' wall clock, for windows that read it.
        filled: result of `fill_gaps` for the series, if already computed.
        with_next: whether to make `x_next`.

    Returns:
        The windows, in the order of `starts`.

    Raises:
        InputError: if a window would reach outside the series.
    """
    starts = np.asarray(starts, dtype=np.intp)
    filled = fill_gaps(series, spec, calendar) if filled is None else filled
    x = _cut_inputs(filled, starts, spec, calendar)
    y, mask = training_targets(series, starts, spec, calendar)
    x_next = _cut_inputs(filled, starts + 1, spec, calendar) if with_next else None
    return Windows(x, x_next, y, mask, np.asarray(slot_of_step)[starts])


def input_windows(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar | None = None
) -> np.ndarray:
    """Cut the inputs of windows; a start may be the step just after the series.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing; read before each start only.
        starts: `(windows,)` indices of first target steps.
        spec: the windows' shape.
        calendar: the series' wall clock, for windows that read it.

    Returns:
        `(cells, windows, n_inputs)` float32 with 0.0 where missing.

    Raises:
        InputError: if a window would reach outside the series, or they do not fit in memory.
    """
    starts = np.asarray(starts, dtype=np.intp)
    return _cut_inputs(fill_gaps(series, spec, calendar), starts, spec, calendar)


def fill_gaps(series: np.ndarray, spec: WindowSpec, calendar: Calendar | None) -> np.ndarray:
    """Fill the gaps of a series `(steps, cells)` by the rule `impute` of the windows.

    Raises:
        InputError: if the rule needs a calendar but none is given.
    """
    if calendar is None and (spec.n_known or spec.impute == "last-week"):
        raise InputError("windows that read the calendar need the series' wall clock")
    per_week = calendar.steps_in(WEEK) if calendar and spec.impute == "last-week" else 0
    return impute(series, spec.impute, per_week)


def _cut_inputs(
    filled: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar | None
) -> np.ndarray:
    """Cut the inputs of windows, as `input_windows`, from a series whose gaps are filled."""
    n_cells = filled.shape[1]
    check_size(
        8 * len(starts) * spec.n_inputs * n_cells,
        f"{len(starts)} windows of {spec.n_inputs} inputs of {n_cells} cells",
    )
    parts = [_gather(filled, starts[:, None] - np.asarray(spec.lags))]
    if spec.further_lags:
        steps = starts[:, None] - np.asarray(spec.further_lags)
        parts.append(np.where(steps < 0, np.nan, _gather(filled, steps.clip(0))))
    if spec.impute == "newest":
        newest = parts[0][..., [spec.lags.index(min(spec.lags))]]
        parts = [np.where(np.isnan(part), newest, part) for part in parts]
    if calendar and spec.n_known:
        known = _known_inputs(calendar.local_times(starts), spec)
        parts.append(np.broadcast_to(known, (n_cells, *known.shape)))
        if spec.n_events:
            parts.append(calendar.event_inputs(starts, spec))
        if spec.n_covariates:
            parts.append(calendar.covariate_inputs(starts, spec))
    x = np.concatenate(parts, axis=-1, dtype=np.float32)
    x[np.isnan(x)] = 0.0
    return x


def _known_inputs(local_times: pd.DatetimeIndex, spec: WindowSpec) -> np.ndarray:
    """Return inputs of the calendar and of holidays `(windows, inputs)`, the first of n_known."""
    known = calendar_inputs(local_times, spec.calendar)
    if spec.holidays:
        known = np.concatenate([known, holiday_inputs(local_times, spec.holidays)], axis=1)
    return known


def target_windows(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the targets of windows.

    Args:
        series: `(steps, cells)`, z-scored, NaN where missing.
        starts: `(windows,)` indices of first target steps.
        spec: the windows' shape.

    Returns:
        `(cells, windows, horizon)` float32 with 0.0 where missing, and a bool mask of the same
        shape, True where observed.

    Raises:
        InputError: if a window would reach outside the series.
    """
    steps = np.asarray(starts, dtype=np.intp)[:, None] + np.arange(spec.horizon)
    y = _gather(series, steps)
    mask = ~np.isnan(y)
    y[~mask] = 0.0
    return y, mask


def training_targets(
    series: np.ndarray, starts: np.ndarray, spec: WindowSpec, calendar: Calendar | None
) -> tuple[np.ndarray, np.ndarray]:
    """Cut the targets of windows as a model learns them, less their anchors.

    Arguments and result are those of `target_windows`; `calendar` is the series' wall clock.

    Raises:
        InputError: as `target_windows`, or if there are anchors but no calendar.
    """
    y, mask = target_windows(series, starts, spec)
    if spec.target == LEVEL:
        return y, mask
    if calendar is None:
        raise InputError(f"target is {spec.target!r}, which needs the series' wall clock")
    return np.where(mask, without_anchors(y, series, starts, spec.target, calendar), 0.0), mask


def _gather(series: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Gather `series` at `steps` (windows, entries) as float32 (cells, windows, entries)."""
    n_steps = len(series)
    if steps.size and (steps.min() < 0 or steps.max() >= n_steps):
        raise InputError(
            f"a window reads steps {steps.min()} to {steps.max()} of a series that has steps 0 to "
            f"{n_steps - 1}; start later, end earlier or give a longer series"
        )
    by_cell = np.ascontiguousarray(np.transpose(series), dtype=np.float32)
    return np.take(by_cell, steps, axis=1)


def day_slots(
    local_times: pd.DatetimeIndex, period: int, step: pd.Timedelta | None = None
) -> np.ndarray:
    """Return the slot of each step: steps since a Monday's local midnight, modulo `period`.

    With a period of one day, or a part of it, slot 0 is at local midnight; with a period of a week,
    on Monday at midnight. Changes to and from daylight saving time skip or repeat slots.

    >>> day_slots(pd.date_range("2013-11-01 22:00", periods=4, freq="1h"), period=24).tolist()
    [22, 23, 0, 1]

    Args:
        local_times: `(steps,)` local time at the start of each step.
        period: steps in a period.
        step: length of a step; by default the most common difference of the times.

    Returns:
        `(steps,)` int64, 0 … period - 1.

    Raises:
        InputError: if there is only one time and no `step`.
    """
    if step is None:
        if len(local_times) < 2:
            raise InputError(f"{counted(len(local_times), 'time step')}; slots need at least two")
        step = pd.Series(local_times).diff().mode().iloc[0]
    return np.asarray((local_times - MONDAY) // step % period, dtype=np.int64)


@dataclass(frozen=True)
class Calendar:
    """Local time of an evenly spaced series and the events at its cells, also beyond its end.

    Attributes:
        start: time of step 0, without a zone: UTC if `time_zone` is given, else local.
        step: length of a step.
        time_zone: IANA name of the time zone, or None if `start` is local time already.
        events: events known in advance, or None if no table was read.
    """

    start: pd.Timestamp
    step: pd.Timedelta
    time_zone: str | None = None
    events: Events | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_cube(cls, ds: xr.Dataset) -> Calendar:
        """Build the calendar of a cube.

        Raises:
            InputError: if the cube has a single time step.
        """
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

    def time(self, step: int) -> pd.Timestamp:
        """Return the time of a step on the series' clock; it may lie beyond the series."""
        return self.start + step * self.step

    def of_cells(self, position: np.ndarray) -> Calendar:
        """Return the calendar of some cells."""
        events = self.events and self.events.of_cells(position)
        return dataclasses.replace(self, events=events)

    def event_inputs(self, starts: np.ndarray, spec: WindowSpec) -> np.ndarray:
        """Return the share of each target step that events of each kind take, times their scale.

        Args:
            starts: `(windows,)` indices of first target steps.
            spec: the windows' shape.

        Returns:
            `(cells, windows, spec.n_events)` float32.

        Raises:
            InputError: if no table of events was read.
        """
        if self.events is None:
            raise InputError("windows read events, but the data were read without a table of them")
        first = int(starts.min()) if len(starts) else 0
        steps = starts[:, None] + np.arange(spec.horizon) - first
        n_steps = int(steps.max(initial=-1)) + 1
        shares = self.events.shares(self.time(first), self.step, n_steps)
        if self.events.scale is not None:
            shares *= self.events.scale.astype(np.float32)
        return shares[:, steps].reshape(len(shares), len(starts), spec.n_events)

    def covariate_inputs(self, starts: np.ndarray, spec: WindowSpec) -> np.ndarray:
        """Return the covariates of windows, which a calendar alone does not have.

        Args:
            starts: `(windows,)` indices of first target steps.
            spec: the windows' shape.

        Returns:
            `(cells, windows, spec.n_covariates)` float32, NaN where missing.

        Raises:
            InputError: if there are none.
        """
        raise InputError(
            "windows read further services or static columns, but the data were read without them"
        )

    def steps_in(self, span: pd.Timedelta) -> int:
        """Number of steps in `span`.

        Raises:
            InputError: if it is not a whole number.
        """
        return steps_in(span, self.step)
