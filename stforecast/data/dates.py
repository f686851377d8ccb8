"""Parts of a series as spans of local time, written as ISO 8601 dates and intervals.

Dates are compared with the local time at which a step begins. A time that the clock shows twice, at
the end of daylight saving time, is the first of the two; one that it skips is the step after it.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd

from data_prep.errors import InputError

PARTS = ("training", "validation", "test")

Span = tuple[pd.Timestamp | None, pd.Timestamp | None]
"""First time of a part and first time after it; None is the begin or the end of the data."""


def parse_dates(text: str) -> dict[str, Span]:
    """Read the dates of a split.

    >>> parse_dates("dates:2013-11-21,2013-11-26")["training"]
    (None, Timestamp('2013-11-21 00:00:00'))

    Args:
        text: the split: `dates:VALIDATION,TEST` or `dates:FROM/TO,FROM/TO,FROM/TO`.

    Returns:
        Span of `training`, `validation` and `test`; no `validation` if there are two intervals.

    Raises:
        InputError: if it has another form, or the parts are not in order of time.
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
    """Find the steps of spans of local time.

    Args:
        spans: the spans, from `parse_dates`.
        local_times: `(steps,)` local time of each step.
        step: length of a step.
        text: the split, for errors.

    Raises:
        InputError: naming a date outside of the data.
    """
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
