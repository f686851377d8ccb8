"""Lengths of time, such as 30min, 23h or 7d, and parts of a series as spans of local time.

Dates are compared with the local time at which a step begins. A time that the clock shows twice, at
the end of daylight saving time, is the first of the two; one that it skips is the step after it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from data_prep.base.errors import InputError, Words, counted

DAY, WEEK = pd.Timedelta(days=1), pd.Timedelta(days=7)

UNITS = {"min": pd.Timedelta(minutes=1), "h": pd.Timedelta(hours=1), "d": DAY}
"""Units of a length of time."""

DURATION = rf"[0-9]{{1,7}}({'|'.join(UNITS)})"
"""Format of a length of time."""


def unit_of_span(text: str) -> str:
    """Return the unit of a length of time; empty for a number of steps, or a range of them."""
    return text.lstrip("0123456789-")


def in_steps(text: str, step: pd.Timedelta) -> int | None:
    """Convert a length of time to steps; None if it is not a whole number of them.

    >>> in_steps("7d", pd.Timedelta("1h")), in_steps("90min", pd.Timedelta("1h"))
    (168, None)
    """
    unit = unit_of_span(text)
    n_steps, rest = divmod(int(text.removesuffix(unit)) * _ns(UNITS[unit]), _ns(step))
    return None if rest else n_steps


def in_words(n_steps: int, step: pd.Timedelta) -> str:
    """Format the length of a number of steps, in the largest unit that it is a multiple of.

    >>> [in_words(n, pd.Timedelta("30min")) for n in (48, 50, 51)]
    ['1 day', '25 hours', '1530 minutes']
    """
    length = n_steps * _ns(step)
    for unit, name in ((DAY, "day"), (UNITS["h"], "hour")):
        if length % _ns(unit) == 0:
            return counted(length // _ns(unit), name)
    return f"{length / _ns(UNITS['min']):.10g} minutes"


def steps_in(span: pd.Timedelta, step: pd.Timedelta) -> int:
    """Return the number of steps in `span`; refuse a span that is not a whole number of them."""
    if span % step != pd.Timedelta(0):
        raise InputError(
            f"a step of {in_words(1, step)} does not divide {in_words(1, span)}; resample to one "
            "that does"
        )
    return int(span // step)


def divides_a_day(step: pd.Timedelta) -> bool:
    """Return whether days have a whole number of steps."""
    return bool(DAY % step == pd.Timedelta(0))


def natural_period(step: pd.Timedelta) -> int:
    """Return the steps of a day, or of a week where a day is not several whole steps.

    >>> [natural_period(pd.Timedelta(step)) for step in ("10min", "1h", "1D", "7h")]
    [144, 24, 7, 24]
    """
    for span in (DAY, WEEK):
        n_steps, rest = divmod(_ns(span), _ns(step))
        if n_steps > 1 and not rest:
            return n_steps
    raise InputError(
        f"steps are {in_words(1, step)} long: neither a day nor a week is several whole steps; ",
        Words("give the steps of a period, such as {period} for a year of weeks", period=52),
    )


def period_warning(step: pd.Timedelta, period: int) -> str | None:
    """Return a warning if the period is not a whole number of days, else None.

    >>> period_warning(pd.Timedelta("1h"), 24)
    >>> period_warning(pd.Timedelta("5min"), 24)
    'a period of 24 steps of 5 minutes is 2 hours, not whole days; a day is 288 steps'
    """
    length = period * _ns(step)
    if length % _ns(DAY) == 0:
        return None
    minutes, hours = step / UNITS["min"], length / _ns(UNITS["h"])
    return (
        f"a period of {period} steps of {minutes:g} minutes is {hours:g} hours, not whole days; "
        f"a day is {DAY / step:g} steps"
    )


def _ns(span: pd.Timedelta) -> int:
    return span.as_unit("ns").value  # A Python integer, which cannot overflow.


PARTS = ("training", "validation", "test")

Span = tuple[pd.Timestamp | None, pd.Timestamp | None]
"""First time of a part and first time after it; None is the begin or the end of the data."""


def parse_dates(text: str) -> dict[str, Span]:
    """Read the spans of training, validation and test of `dates:VALIDATION,TEST` or of intervals.

    Intervals are `dates:FROM/TO,FROM/TO,FROM/TO`; if there are two, there is no validation.

    >>> parse_dates("dates:2013-11-21,2013-11-26")["training"]
    (None, Timestamp('2013-11-21 00:00:00'))
    """
    fields = [field.strip() for field in text.partition(":")[2].split(",")]
    spans: dict[str, Span]
    if len(fields) == 2 and "/" not in text:
        validation, test = (_read(field, text) for field in fields)
        ends = (None, validation, test, None)
        spans = dict(zip(PARTS, pairwise(ends), strict=True))
    elif len(fields) in (2, 3) and all(field.count("/") == 1 for field in fields):
        names = PARTS if len(fields) == 3 else (PARTS[0], PARTS[2])
        intervals = [[_read(end, text) for end in field.split("/")] for field in fields]
        spans = {name: (first, end) for name, (first, end) in zip(names, intervals, strict=True)}
    else:
        raise InputError(
            f"split {text!r}: expected the first times of validation and test, like "
            "dates:2013-11-21,2013-11-26, or two or three intervals FROM/TO"
        )
    _check_order(spans, text)
    return spans


def _read(date: str, text: str) -> pd.Timestamp:
    try:
        found = datetime.datetime.fromisoformat(date.strip())
    except ValueError as e:
        raise InputError(
            f"split {text!r}: {date.strip()!r} is not a date; write it like 2013-11-21 or "
            "2013-11-21T06:00"
        ) from e
    if found.tzinfo is not None:
        raise InputError(
            f"split {text!r}: {date.strip()!r} has a time zone; give the local time of the data, "
            "without one"
        )
    return pd.Timestamp(found)


def _check_order(spans: Mapping[str, Span], text: str) -> None:
    for name, (first, end) in spans.items():
        if first is not None and end is not None and end <= first:
            raise InputError(
                f"split {text!r}: the {name} part ends at {end}, not after it begins ({first}); "
                "give times in order"
            )
    for (before, (_, end)), (name, (first, _)) in pairwise(spans.items()):
        if first is not None and end is not None and first < end:
            raise InputError(
                f"split {text!r}: the {name} part begins at {first}, before the {before} part ends "
                f"({end}); give parts in order that do not overlap"
            )


def find_steps(
    spans: Mapping[str, Span], local_times: pd.DatetimeIndex, step: pd.Timedelta, text: str
) -> dict[str, range]:
    """Find the steps of spans of local time."""
    data = local_times.min(), end_of(local_times, step)
    found = {}
    for name, span in spans.items():
        times = [time or default for time, default in zip(span, data, strict=True)]
        if outside := [str(time) for time in times if not data[0] <= time <= data[1]]:
            raise InputError(
                f"split {text!r}: {outside[0]} is outside of the data, whose first step begins at "
                f"{data[0]} and last at {local_times.max()}, local time"
            )
        found[name] = range(*(step_at(time, local_times) for time in times))
    return found


def step_at(time: pd.Timestamp, local_times: pd.DatetimeIndex) -> int:
    """Return the first step at or after a local time; the number of steps if there is none.

    >>> step_at(pd.Timestamp("2013-11-02"), pd.date_range("2013-11-01", periods=48, freq="1h"))
    24
    """
    latest = np.maximum.accumulate(local_times.to_numpy())  # The clock may be set back.
    return int(np.searchsorted(latest, time.to_datetime64()))


def end_of(local_times: pd.DatetimeIndex, step: pd.Timedelta) -> pd.Timestamp:
    """Return the first local time after the data."""
    return local_times.max() + step
