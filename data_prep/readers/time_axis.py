"""The time axis of a table: even steps in UTC, or on the wall clock of its time zone.

That clock skips and repeats an hour with daylight saving time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, in_minutes
from data_prep.readers.columns import frequency
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.resampling import DAY, even_step, refuse_gap
from data_prep.readers.times import regular_steps, to_wall, usual_step

HOUR = pd.Timedelta("1h")


def begin_in_utc(wall: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    """Return the UTC times at which a clock first shows some times, or the next later ones."""
    summer = np.ones(len(wall), dtype=bool)
    zoned = wall.tz_localize(zone, ambiguous=summer, nonexistent="shift_forward")
    return zoned.tz_convert("UTC").tz_localize(None).as_unit("ns")


def to_utc(
    times: pd.DatetimeIndex, cell_at: np.ndarray, zone: str, origin: Origin, allow_gaps: bool
) -> pd.DatetimeIndex:
    """Convert times on the wall clock of a zone to UTC, both without a zone.

    In the hour that the clock shows twice, the order of a cell's rows tells the times apart: the
    second hour begins where the clock does not advance from one row to the next. With `allow_gaps`
    the table may have such an hour only once.
    """
    first, second = (_localize(times, zone, summer=summer) for summer in (True, False))
    if first.hasnans:
        row = int(first.isna().argmax())
        before = times[row : row + 1] - pd.Timedelta("1D")
        offset = (before - begin_in_utc(before, zone))[0]
        raise InputError(
            f"{origin.at(row)}: time {times[row]} does not exist in {zone}, whose clock skips it "
            f"when daylight saving time begins; correct it{_unless_fixed(offset)}"
        )
    twice = np.asarray(first != second)
    if not twice.any():
        return first
    later = _in_second_hour(times, cell_at, twice, zone, origin)
    utc = first.where(~later, second)
    step = even_step(np.unique(times.as_unit("ns").asi8))
    for day in times[twice].normalize().unique():
        hour = twice & (times.normalize() == day)
        if step and not later[hour].any() and second[hour].max() <= utc.max():
            offset = (times[hour] - second[hour])[0]
            refuse_gap(
                f"the clock of {zone} shows {times[hour][0]} twice, as daylight saving time ends, "
                f"but the table has it once{_unless_fixed(offset)}",
                origin,
                allow_gaps,
            )
    return utc


def may_be_shown_twice(times: pd.DatetimeIndex, zone: str | None) -> bool:
    """Return whether a wall clock may repeat all these times, as daylight saving time ends.

    Without a zone, they may lie in the small hours of a Sunday of October, November or April.
    """
    if zone is None:
        months = times.month.isin([4, 10, 11])
        return bool((months & (times.day_of_week == 6) & (times.hour < 4)).all())
    first, second = (_localize(times, zone, summer=summer) for summer in (True, False))
    return bool((first.notna() & (first != second)).all())


def _localize(times: pd.DatetimeIndex, zone: str, *, summer: bool) -> pd.DatetimeIndex:
    """Convert wall times to UTC; NaT where the clock skips them, times shown twice as given."""
    ambiguous = np.full(len(times), summer)
    zoned = times.tz_localize(zone, ambiguous=ambiguous, nonexistent="NaT")
    return zoned.tz_convert("UTC").tz_localize(None)


def _in_second_hour(
    times: pd.DatetimeIndex, cell_at: np.ndarray, twice: np.ndarray, zone: str, origin: Origin
) -> np.ndarray:
    """Return which times are in the second of two equal hours, `(rows,)`."""
    days = times.normalize()
    near = np.flatnonzero(days.isin(days[twice]))
    near = near[np.lexsort((days[near], cell_at[near]))]
    same = (np.diff(cell_at[near]) == 0) & (np.diff(days[near]) == np.timedelta64(0))
    step = np.diff(times.asi8[near])
    if (step[same] < 0).sum() > (step[same] > 0).sum():  # the latest row comes first
        near, same, step = near[::-1], same[::-1], -step[::-1]
    stands = same & (step <= 0)
    jumps = np.concatenate([[0], np.cumsum(stands)])
    begin = np.concatenate([[True], ~same])
    jumps -= np.maximum.accumulate(np.where(begin, jumps, 0))
    wrong = np.flatnonzero(stands & ~(twice[near][1:] & (jumps[1:] == 1)))
    if wrong.size:
        row = near[wrong[0] + 1]
        raise InputError(
            f"{origin.at(row)}: time {times[row]} follows a later or equal one of the same cell, "
            f"on a day when the clock of {zone} shows an hour twice, as daylight saving time ends; "
            "only rows in the order of time, each once, tell the two hours apart: sort them, or "
            "write times with their offset, such as 2024-10-27T02:00+02:00"
        )
    later = np.zeros(len(times), dtype=bool)
    later[near] = twice[near] & (jumps > 0)
    return later


def _unless_fixed(offset: pd.Timedelta) -> str:
    """Return advice for clocks that are never changed, at an offset from UTC."""
    hours = offset / HOUR
    name = f"Etc/GMT{-hours:+.0f}" if hours % 1 == 0 else "one without daylight saving time"
    return f" (if the table's clock is never changed, its time zone is {name})"


log = StepLog("times")


@dataclass(frozen=True, eq=False)
class TimeAxis:
    """The steps of a table and the places of its rows.

    Attributes:
        steps: `(steps,)` start of each step on the clock, without a zone.
        at: `(rows,)` position of each row's step.
        times: `(rows,)` time of each row, in ns.
        begins: `(steps,)` begin of each step on the clock of `times`, in ns.
        clock: `"utc"` or `"local"`.
        zone: IANA name of the time zone.
        lengths: `(steps,)` length of each step, in ns.
    """

    steps: pd.DatetimeIndex
    at: np.ndarray
    times: np.ndarray
    begins: np.ndarray
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
    times: pd.DatetimeIndex,
    cell_at: np.ndarray,
    zone: str | None,
    origin: Origin,
    options: TableOptions,
    ends: str | None = None,
) -> TimeAxis:
    """Put rows on even steps.

    Times on the wall clock of a given zone become UTC, unless their steps are even only on that
    clock, such as days. Times with an offset that are so even are put on the clock. Longer steps of
    whole days are days on the zone's clock; other longer steps are even in UTC. Where a column
    holds the `ends` of steps, longer steps are of their begins.
    """
    name, clock = origin.name, options.clock
    if zone is None and clock == "utc" and options.time_zone not in ("", None, "UTC"):
        log.warning(
            name,
            f"times have no offset and are read as UTC, {times[0]} is "
            f"{to_wall(times[:1], options.time_zone)[0]} in {options.time_zone}; ",
            Words("with {clock:local} they are its wall clock"),
        )
    elif not zone and clock == "utc" and not options.time_zone and any(times != times.normalize()):
        log.info(
            name,
            "times have no offset and are read as UTC; ",
            Words("give {time_zone:Europe/Berlin} {clock:local} for the clock of a place"),
        )
    if ends == "":
        _warn_of_ends(times.unique().sort_values(), zone, origin)
    zone = options.time_zone or zone or "UTC"
    if clock == "local" and options.time_zone and not _is_even_on_wall(times, zone):
        times = to_utc(times, cell_at, zone, origin, options.gaps)
        clock = "utc"
    times = _begins(times, ends, options, origin) if ends else times
    if options.resampling is None:
        if clock == "utc" and zone != "UTC" and _are_days(wall := to_wall(times, zone), zone):
            times, clock = wall, "local"
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
                name,
                f"steps of {in_minutes(length)} begin at other hours of {zone} where daylight "
                "saving time changes, as they stay even in UTC",
            )
        return _axis(steps - offset, at, times, clock, zone, length)
    steps, at = options.resampling.place(wall, name)
    bounds = begin_in_utc(pd.DatetimeIndex([*steps, steps[-1] + length]), zone)
    begins, ns = bounds[:-1].asi8, times.as_unit("ns").asi8
    return TimeAxis(steps, at, ns, begins, "local", zone, np.diff(bounds.asi8))


def _warn_of_ends(unique: pd.DatetimeIndex, zone: str | None, origin: Origin) -> None:
    """Warn of times of whole days whose first is a step after midnight, as of ends of steps."""
    step = usual_step(unique) if len(unique) > 1 else DAY
    first, last = to_wall(unique[[0, -1]], zone) if zone else unique[[0, -1]]
    if step < DAY and first - step == first.normalize() and last == last.normalize():
        found = f"times are {first} to {last}, as of ends of steps"
        log.warning(origin, f"{found}; if they are, name their column so, such as 'time end'")


def _begins(
    times: pd.DatetimeIndex, ends: str, options: TableOptions, origin: Origin
) -> pd.DatetimeIndex:
    """Return times that are the ends of steps, as begins if they are put into longer steps."""
    found, unique = f"column {ends!r} holds the ends of steps", times.unique().sort_values()
    if len(unique) > 1 and options.agg in ("sum", "mean"):
        log.info(origin, f"{found}; the value of 08:00 is put into the step that ends then")
        return times - usual_step(unique)
    step = frequency(usual_step(unique)) if len(unique) > 1 else "1h"
    begins = Words("pass {resample} {agg:mean} for their begins", resample=step)
    log.info(origin, f"{found}, which are kept: the value of 08:00 is of the step before; ", begins)
    return times


def _axis(
    steps: pd.DatetimeIndex,
    at: np.ndarray,
    times: pd.DatetimeIndex,
    clock: str,
    zone: str,
    length: pd.Timedelta,
) -> TimeAxis:
    lengths = np.full(len(steps), length.value)
    begins, ns = steps.as_unit("ns").asi8, times.as_unit("ns").asi8
    return TimeAxis(steps, at, ns, begins, clock, zone, lengths)


def _is_even_on_wall(times: pd.DatetimeIndex, zone: str) -> bool:
    """Return whether steps longer than an hour are even on the wall clock and not in UTC."""
    step = even_step(np.unique(times.as_unit("ns").asi8))
    if step is None or step <= HOUR.value:
        return False
    return step % DAY.value == 0 or (times - begin_in_utc(times, zone)).nunique() > 1


def _are_days(wall: pd.DatetimeIndex, zone: str) -> bool:
    """Return whether times are even on a wall clock alone: days of a zone that changes its clock.

    They are on the clock in a part without a change, too, so that parts fit each other.
    """
    if not _is_even_on_wall(wall, zone):
        return False
    utc = begin_in_utc(wall, zone)
    year = pd.date_range(utc[0], periods=13, freq="30D")
    changes = (to_wall(year, zone) - year).nunique() > 1
    at_midnight = bool((wall == wall.normalize()).all())
    return (changes and at_midnight) or even_step(np.unique(utc.asi8)) is None
