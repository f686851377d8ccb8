"""The time axis of a table: even steps in UTC, or on the wall clock of its time zone."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from data_prep.tabular.completeness import even_step
from data_prep.tabular.resampling import DAY
from data_prep.tabular.times import regular_steps
from data_prep.tabular.wall_clock import HOUR, begin_in_utc, to_utc, to_wall
from data_prep.text import in_minutes

if TYPE_CHECKING:
    from data_prep.tabular.frames import TableOptions

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """The steps of a table and the places of its rows.

    Attributes:
        steps: `(steps,)` start of each step on the clock, without a zone.
        at: `(rows,)` position of each row's step.
        times: `(rows,)` time of each row, in ns.
        clock: `"utc"` or `"local"`.
        zone: IANA name of the time zone.
        lengths: `(steps,)` length of each step, in ns.
    """

    steps: pd.DatetimeIndex
    at: np.ndarray
    times: np.ndarray
    clock: str
    zone: str
    lengths: np.ndarray

    @property
    def shown(self) -> pd.DatetimeIndex:
        """The steps for messages, with the offset of their zone where it is known."""
        if self.clock == "local" or self.zone == "UTC":
            return self.steps
        return self.steps.tz_localize("UTC").tz_convert(self.zone)


def place_times(
    times: pd.DatetimeIndex, cell_at: np.ndarray, zone: str | None, options: TableOptions
) -> TimeAxis:
    """Put rows on even steps.

    Times on the wall clock of a given zone become UTC, unless their steps are even only on that
    clock, such as days. Longer steps of whole days are days on the zone's clock; other longer steps
    are even in UTC.

    Args:
        times: `(rows,)` times without a zone.
        cell_at: `(rows,)` position of each row's cell.
        zone: the table's own zone, if any.
        options: the table's options.

    Raises:
        InputError: if a time is not on the axis, or was never shown by the clock.
    """
    name, clock = options.origin.name, options.clock
    zone = options.time_zone or zone or "UTC"
    if clock == "local" and options.time_zone and not _is_even_on_wall(times, zone):
        times = to_utc(times, cell_at, zone, options.origin, options.gaps)
        clock = "utc"
    if options.resampling is None:
        steps, at = regular_steps(times, name)
        length = steps[1] - steps[0] if len(steps) > 1 else DAY
        return _axis(steps, at, times, clock, zone, length)
    length = options.resampling.step
    if clock == "local" or zone == "UTC":
        steps, at = options.resampling.place(times, name)
        return _axis(steps, at, times, clock, zone, length)
    wall = to_wall(times, zone)
    if length % DAY:
        offset = wall[0] - times[0]
        steps, at = options.resampling.place(times + offset, name)
        if length > HOUR and (wall - times).nunique() > 1:
            log.warning(
                "%s: steps of %s begin at other hours of %s where daylight saving time changes, as "
                "they stay even in UTC", name, in_minutes(length), zone,
            )  # fmt: skip
        return _axis(steps - offset, at, times, clock, zone, length)
    steps, at = options.resampling.place(wall, name)
    bounds = begin_in_utc(pd.DatetimeIndex([*steps, steps[-1] + length]), zone)
    return TimeAxis(steps, at, times.as_unit("ns").asi8, "local", zone, np.diff(bounds.asi8))


def _axis(
    steps: pd.DatetimeIndex,
    at: np.ndarray,
    times: pd.DatetimeIndex,
    clock: str,
    zone: str,
    length: pd.Timedelta,
) -> TimeAxis:
    lengths = np.full(len(steps), length.value)
    return TimeAxis(steps, at, times.as_unit("ns").asi8, clock, zone, lengths)


def _is_even_on_wall(times: pd.DatetimeIndex, zone: str) -> bool:
    """Return whether steps longer than an hour are even on the wall clock and not in UTC."""
    step = even_step(np.unique(times.as_unit("ns").asi8))
    if step is None or step <= HOUR.value:
        return False
    return step % DAY.value == 0 or (times - begin_in_utc(times, zone)).nunique() > 1
