"""Shape of a window: lags, horizon and further inputs, and their choice from the step."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

import pandas as pd
from annotated_types import Le
from pydantic import NonNegativeInt, PositiveInt

from data_prep.base.errors import InputError, Words
from stforecast.data.anchors import LEVEL, Target
from stforecast.data.clock import CALENDAR_INPUTS, public_holidays
from stforecast.data.dates import DAY, UNITS, WEEK, in_steps, natural_period, unit_of_span
from stforecast.data.weekly_profile import N_ANOMALIES
from stforecast.federated.core.options import CheckedOptions, ReadIf

AUTO = "auto"
"""Value of `extra_lags`, `calendar` and `profile` that chooses them from the data."""

AUTO_DAYS = "auto-days"
"""Value of `extra_lags` that reads each target's value of one day and one week before."""

AUTO_WEEKDAYS = "auto-weekdays"
"""Value of `calendar` that chooses an indicator of each weekday where training is long enough."""

HOUR = pd.Timedelta(hours=1)

MARGIN = 2
"""Steps before and after the same time of another day that are lags, too."""


def auto_lags(step: pd.Timedelta, horizon: int, n_training: int, closeness: int = 0) -> str:
    """Choose `extra_lags` that a week's rhythm needs, and no more than the training part can teach.

    Series with steps of one to five hours read the whole last week, or two days if training is
    shorter than two weeks. Finer steps read the newest steps, and the steps around each target one
    day and one week before, as far as training is twice as long. Steps of six hours or longer read
    up to 28, a quarter of the training part. `n_training` counts the steps from the begin of the
    series to the end of its training part, and `closeness` the newest lags that the windows read
    already.

    >>> auto_lags(pd.Timedelta("1h"), horizon=24, n_training=20 * 24)
    '1-168'
    >>> auto_lags(pd.Timedelta("5min"), horizon=12, n_training=4 * 288, closeness=1)
    '2-36,275-290'
    """
    day, week = (max(1, span // step) for span in (DAY, WEEK))
    if week <= 28:
        spans = [(1, min(28, n_training // 4))]
    elif step >= HOUR:
        spans = [(1, week if n_training >= 2 * week else min(2 * day, n_training // 2))]
    else:
        others = [lag for lag in (day, week) if n_training >= 2 * lag]
        # The newest 36 steps are three hours of steps of five minutes.
        spans = [(1, 36), *((lag - horizon + 1 - MARGIN, lag + MARGIN) for lag in others)]
    ranges, end = [], closeness
    for first, last in spans:
        if last > end:
            ranges.append(f"{max(first, end + 1)}-{last}")
            end = last
    return ",".join(ranges)


def days_lags(step: pd.Timedelta, horizon: int, n_training: int, taken: Sequence[int] = ()) -> str:
    """Choose the lags of each target one day and one week before, and the lags an hour around them.

    Those that no training window can read are left out, and `taken` ones, which windows read
    already.

    >>> days_lags(pd.Timedelta("1h"), horizon=1, n_training=480, taken=(24,))
    '23,25,167,168,169'
    """
    hour = max(1, HOUR // step)
    found = {
        lag
        for span in (max(1, DAY // step), max(1, WEEK // step))
        for lag in (span + hour, *range(span - horizon + 1, span + 1), span - horizon + 1 - hour)
        if 0 < lag < n_training
    }
    return ",".join(map(str, sorted(found - set(taken))))


def auto_calendar(
    step: pd.Timedelta, n_training: int, kind: str = AUTO
) -> Literal["day", "week", "weekdays"]:
    """Choose calendar inputs: `week`, or `day` if training is shorter than nine days.

    Under `auto-weekdays` they are `weekdays` if training has each weekday twice. Steps of a day or
    longer have no time of day; they read the weekday.

    >>> auto_calendar(pd.Timedelta("1h"), 20 * 24), auto_calendar(pd.Timedelta("5min"), 4 * 288)
    ('week', 'day')
    """
    length = n_training * step
    if step >= DAY or (kind == AUTO_WEEKDAYS and length >= 2 * WEEK):
        return "weekdays"
    return "week" if length >= pd.Timedelta(days=9) else "day"


LAG = rf"[0-9]{{1,7}}(-[0-9]{{1,7}}|{'|'.join(UNITS)})?"
"""Format of an entry of `extra_lags`."""

MOST_STEPS = 10**6
"""Maximum of any setting of a window in steps: nine years of steps of five minutes."""

Impute = Literal["none", "ffill", "newest", "last-week"]
"""Rules for missing inputs, see `WindowSpec.impute`."""

Steps = Annotated[NonNegativeInt, Le(MOST_STEPS)]
"""A number of steps, or none."""


@dataclass(frozen=True)
class WindowSpec(CheckedOptions):
    """Input and target steps of a window.

    The defaults are FUELS's on its hourly data (appendix D.1). A plain window of 12 in and
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
            the training part, auto-days the lags of each target one day and one week before; see
            `stforecast.data.window_spec`.
        calendar: inputs from the local time of the first target: none, day (sine and cosine of one
            and two cycles a day), week (as day, and indicators of weekend and Sunday), weekdays
            (as day, and an indicator of each weekday); or chosen like the lags: auto takes day or
            week, and auto-weekdays takes weekdays where training is two weeks or longer.
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
            last reading), newest (as ffill, but after an hour its weekly profile, if windows read
            it; where there is none, the window's newest input) or last-week (its last reading at
            that weekday and time). Targets are never imputed.
        profile: inputs from the cell's weekly profile, its mean at the same time of earlier weeks:
            none, week or auto. They are the profile at each target less the profile at the newest
            reading, and how far the newest reading, the last day and the last week were from it.
            auto takes them if training is two weeks or longer and a day is a whole number of steps.
        target: quantity that a model learns: level (the value itself), its difference from the last
            value before the window (change) or from the value one day or one week before
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
    input_steps: Annotated[
        PositiveInt, Le(1000), ReadIf("inputs names services", lambda s: bool(s["inputs"]))
    ] = 3
    static: str = ""
    impute: Impute = "none"
    profile: Literal["none", "week", "auto"] = "none"
    target: Target = LEVEL

    def __post_init__(self) -> None:
        """Refuse unknown regions, invalid lags and windows without inputs."""
        super().__post_init__()
        if self.holidays:
            public_holidays(self.holidays)
        known = re.fullmatch(rf"({LAG}(, *{LAG})*|{AUTO}|{AUTO_DAYS})?", self.extra_lags)
        texts = self._lag_texts() if known else []
        ranges = [_lag_range(text.rstrip("".join(UNITS))) for text in texts]
        many = sum(map(len, ranges)) > MOST_STEPS
        if not known or many or not all(len(r) and r.start for r in ranges):
            raise InputError(
                f"extra_lags is {self.extra_lags!r:.200}; give positive whole numbers like "
                f"167,168,169, ranges like 145-168 or times like 23h,7d, {MOST_STEPS} lags at most"
                "; or auto or auto-days"
            )
        if not self.closeness and not self.periods:
            raise InputError("closeness and periods are both 0: a window needs at least one input")

    def chosen(self, step: pd.Timedelta, n_training: int) -> WindowSpec:
        """Choose lags, calendar and profile where they are `auto`.

        >>> spec = WindowSpec(closeness=1, extra_lags="auto", calendar="auto")
        >>> spec = spec.chosen(pd.Timedelta("1h"), n_training=480)
        >>> spec.extra_lags, spec.calendar
        ('2-168', 'week')
        """
        found: dict[str, Any] = {}
        if self.extra_lags == AUTO:
            found["extra_lags"] = auto_lags(step, self.horizon, n_training, self.closeness)
        if self.extra_lags == AUTO_DAYS:
            taken = self.at(step).lags
            found["extra_lags"] = days_lags(step, self.horizon, n_training, taken)
        if self.calendar in (AUTO, AUTO_WEEKDAYS):
            found["calendar"] = auto_calendar(step, n_training, self.calendar)
        if self.profile == AUTO:
            repeats = not DAY % step and n_training * step >= 2 * WEEK
            found["profile"] = "week" if repeats else "none"
        if self.profile == "week" and DAY % step:
            raise InputError(
                f"profile is week, but a day is not a whole number of steps of {step}; ",
                Words("give {profile:none}"),
            )
        return dataclasses.replace(self, **found)

    def at(self, step: pd.Timedelta) -> WindowSpec:
        """Convert a period of 0 and times among `extra_lags` to steps.

        The properties below that count steps require a spec without times, and with lags `chosen`.

        >>> spec = WindowSpec(period=0, extra_lags="3,23h,7d").at(pd.Timedelta("30min"))
        >>> spec.period, spec.extra_lags
        (48, '3,46,336')
        """
        if self.period and not any(map(unit_of_span, self._lag_texts())):
            return self
        lags = ",".join(_lag_in_steps(text, step) for text in self._lag_texts())
        lags = self.extra_lags if self.extra_lags in (AUTO, AUTO_DAYS) else lags
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

    @property
    def all_lags(self) -> tuple[int, ...]:
        """Steps back of all readings, in input order: `lags`, then `further_lags`."""
        return (*self.lags, *self.further_lags)

    def _lag_texts(self) -> list[str]:
        if self.extra_lags in ("", AUTO, AUTO_DAYS):
            return []
        return [text.strip() for text in self.extra_lags.split(",")]

    @property
    def n_inputs(self) -> int:
        """Number of inputs of a window: `n_readings`, then `n_known` others."""
        return self.n_readings + self.n_known

    @property
    def n_readings(self) -> int:
        """Number of readings of a window: of `lags` and `further_lags`."""
        further = sum(
            1 if unit_of_span(text) else len(_lag_range(text)) for text in self._lag_texts()
        )
        return self.closeness + self.periods + further

    @property
    def n_known(self) -> int:
        """Number of the last inputs: of calendar, holiday, events, covariates and profile."""
        return CALENDAR_INPUTS[self.calendar] + self.n_special + self.n_covariates + self.n_profile

    @property
    def n_special(self) -> int:
        """Number of inputs of holidays and events."""
        return bool(self.holidays) + self.n_events

    @property
    def special(self) -> slice:
        """Places of the inputs of holidays and events."""
        first = self.n_readings + CALENDAR_INPUTS[self.calendar]
        return slice(first, first + self.n_special)

    @property
    def n_profile(self) -> int:
        """Number of inputs from the weekly profile, the last of all."""
        return 0 if self.profile == "none" else self.n_targets + N_ANOMALIES

    @property
    def n_events(self) -> int:
        """Number of inputs from `events`: one for each target step and kind."""
        return self.n_targets * len(self.kinds)

    @property
    def n_targets(self) -> int:
        """Number of target steps."""
        return self.horizon

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


@dataclass(frozen=True)
class ModelWindow(WindowSpec):
    """A window as a model of quantiles is built for it: `horizon` counts outputs.

    Attributes:
        n_levels: outputs for each target step.
    """

    n_levels: int = 1

    @property
    def n_targets(self) -> int:
        """Number of target steps."""
        return self.horizon // self.n_levels


@cache
def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _lag_range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def _lag_in_steps(lag: str, step: pd.Timedelta) -> str:
    """A lag as a number of steps."""
    if not unit_of_span(lag):
        return lag
    n_steps = in_steps(lag, step)
    if n_steps is None:
        raise InputError(
            f"extra_lags: {lag} is not a whole number of steps of "
            f"{step / pd.Timedelta(minutes=1):g} minutes; ",
            Words("give lags that are, or count steps ({extra_lags:1,2})"),
        )
    return str(n_steps)
