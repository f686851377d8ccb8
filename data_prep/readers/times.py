"""Parse times and find the regular time axis that they lie on."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, in_minutes
from data_prep.base.limits import check_size
from data_prep.readers.columns import date_formats, frequency, refuse_empty

if TYPE_CHECKING:
    from data_prep.readers.columns import Origin


# The years 1985 to 2030 in seconds; outside them digits may be a date such as 2031010100.
EPOCH_SECONDS = (5e8, 1.9e9)
BYTES_PER_STEP = 64  # memory of a time axis, including its index
ORDERS = {"dayfirst": "day/month/year", "monthfirst": "month/day/year"}

OFFSET = r"[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)\s*$"
"""Pattern of a text with the time of day and an offset from UTC."""

log = logging.getLogger(__name__)


def read_times(
    column: pd.Series, clock: str, origin: Origin, time_format: str = ""
) -> tuple[pd.DatetimeIndex, str | None]:
    """Parse times `(rows,)`; return them without a zone, and the name of their zone, if any.

    They are dates, texts, or seconds or milliseconds since 1970. Texts are ISO 8601 or in a
    `time_format` of strptime, `"dayfirst"` or `"monthfirst"`; without one, also dates that allow
    only one order of day and month. `clock` says what times without a zone mean.
    """
    refuse_empty(column, "time", origin)
    if types.is_datetime64_any_dtype(column):
        times = pd.DatetimeIndex(column)
    elif time_format:
        times = parse_times(column.astype(str), time_format, origin)
    elif types.is_numeric_dtype(column):
        times = _from_epoch(column.to_numpy(dtype=np.float64), origin)
    else:
        times = _from_text(column.astype(str), origin)
    try:
        times = times.as_unit("ns")
    except pd.errors.OutOfBoundsDatetime as e:
        raise InputError(f"{origin.name}: {e}, expected years 1678 to 2261; correct it") from e
    if times.tz is None:
        return times, None
    if clock == "local":
        raise InputError(
            f"{origin.at(0)}: time {column.iloc[0]} has an offset or counts from 1970 UTC, but "
            "the clock is set to local; ",
            Words("leave out {clock:local}"),
        )
    return times.tz_convert("UTC").tz_localize(None), zone_name(str(times.tz))


def _from_epoch(numbers: np.ndarray, origin: Origin) -> pd.DatetimeIndex:
    """Convert seconds or milliseconds since 1970, distinguished by their size, to UTC times."""
    low, high = EPOCH_SECONDS
    seconds = (low <= numbers) & (numbers < high)
    milliseconds = (low * 1000 <= numbers) & (numbers < high * 1000)
    per_unit = np.select([seconds, milliseconds], [1000, 1], default=0)
    odd = np.flatnonzero((per_unit == 0) | (per_unit != per_unit[0]))
    if odd.size:
        raise InputError(
            f"{origin.at(odd[0])}: time {numbers[odd[0]]:.15g} is ambiguous, expected whole "
            "seconds or milliseconds since 1970 (years 1985 to 2030, one unit in all rows); write "
            "ISO 8601 such as 2013-11-01T00:00+01:00"
        )
    result: pd.DatetimeIndex = pd.to_datetime(
        np.rint(numbers * per_unit).astype(np.int64), unit="ms", utc=True
    )
    return result


def _from_text(texts: pd.Series, origin: Origin) -> pd.DatetimeIndex:
    """Parse ISO 8601 texts, to UTC if all have an offset, or numbers since 1970."""
    if texts.str.fullmatch(r"\d+(\.\d+)?").all():
        return _from_epoch(texts.to_numpy(dtype=np.float64), origin)
    offset = texts.str.contains(OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        row = int(np.argmax(offset != offset[0]))
        raise InputError(
            f"{origin.at(row)}: time {texts.iloc[row]!r} and {texts.iloc[0]!r} ({origin.at(0)}) "
            "mix time zones, one has an offset and one has none; write all with an offset"
        )
    times = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=bool(offset.all()))
    wrong = np.flatnonzero(times.isna())
    if not wrong.size:
        return pd.DatetimeIndex(times)
    return _in_only_order(texts, int(wrong[0]), origin)


def _in_only_order(texts: pd.Series, wrong: int, origin: Origin) -> pd.DatetimeIndex:
    """Parse dates that allow only one order of day and month; refuse others."""
    known = date_formats(texts.unique().tolist())
    if len(known) == 1:
        (order, form) = known[0]
        log.info("%s: times are read as %s (%s)", origin.name, order, form)
        return parse_times(texts, form, origin)
    found = f"{origin.at(wrong)}: cannot read time {texts.iloc[wrong]!r}"
    if known:
        first, other = (form for _, form in known)
        advice = origin.either(
            Words("pass {time_format:dayfirst} or {time_format:monthfirst}"),
            f"{_conversion(first)}  # or {other!r}",
        )
        raise InputError(f"{found}: day and month cannot be told apart; ", advice)
    example = "%d %b %Y %H:%M"
    raise InputError(
        f"{found}, expected ISO 8601 such as 2013-11-01T00:00+01:00; give its own format, such as ",
        origin.either(Words("{time_format}", time_format=example), _conversion(example)),
    )


def _conversion(form: str) -> str:
    return f"df.index = pd.to_datetime(df.index, format={form!r})"


def parse_times(texts: pd.Series, time_format: str, origin: Origin) -> pd.DatetimeIndex:
    """Parse texts `(rows,)` in a format of strptime, `"dayfirst"` or `"monthfirst"`."""
    form = time_format
    if form in ORDERS:
        known = dict(date_formats(texts.unique().tolist()))
        form = known.get(ORDERS[form], "")
        if not form:
            raise InputError(
                f"{origin.at(0)}: times such as {texts.iloc[0]!r} are not all "
                f"{ORDERS[time_format]} with a year of four digits; ",
                Words("give their strptime format, such as {time_format:%d/%m/%y %H:%M}"),
            )
    elif "%" not in form:
        raise InputError(
            f"time_format is {form!r}; give dayfirst, monthfirst or a strptime format such as "
            "'%d/%m/%Y %H:%M'"
        )
    try:
        times = pd.to_datetime(texts, format=form, errors="coerce", utc="%z" in form)
    except (ValueError, re.error) as e:
        raise InputError(f"time_format {form!r}: {e}; give a strptime format") from e
    wrong = np.flatnonzero(times.isna())
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"{origin.at(row)}: time {texts.iloc[row]!r} is not {form}, the format of the others; ",
            Words("correct it or give another {time_format}"),
        )
    return pd.DatetimeIndex(times)


def zone_name(zone: str) -> str | None:
    """Return the IANA name of a zone; None for an offset such as UTC+01:00."""
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError, OSError):
        return None


def check_time_zone(name: str) -> None:
    """Check that `name` is an IANA time zone."""
    if zone_name(name) is None:
        raise InputError(f"unknown time zone {name!r}; give an IANA name such as Europe/Rome")


def regular_steps(
    times: pd.DatetimeIndex, name: str, step: pd.Timedelta | None = None
) -> tuple[pd.DatetimeIndex, np.ndarray]:
    """Return the regular time axis `(steps,)` of times, and the position of each on it, `(rows,)`.

    Times may be in any order and repeated. A step is by default their most frequent difference.
    """
    unique = times.unique().sort_values()
    if len(unique) == 1:
        return unique, np.zeros(len(times), dtype=np.int64)
    gaps = np.diff(unique)
    length = usual_step(unique) if step is None else step
    uneven = np.flatnonzero(gaps % length.to_timedelta64())
    if uneven.size:
        i = int(uneven[0])
        raise InputError(
            f"{name}: time steps are not even: {unique[i]} to {unique[i + 1]} is "
            f"{pd.Timedelta(gaps[i])}, most steps are {in_minutes(length)} ({len(uneven)} of "
            f"{len(gaps)} are not a multiple of it); ",
            Words(
                "put the records into even steps with {resample} {agg:mean} (or sum), a "
                "DataFrame with df.resample",
                resample=frequency(length),
            ),
        )
    n_steps = int((unique[-1] - unique[0]) // length) + 1
    check_size(BYTES_PER_STEP * n_steps, f"{name}: an axis of {n_steps} time steps")
    axis = pd.date_range(unique[0], unique[-1], freq=length)
    return axis, axis.get_indexer(times)


def usual_step(unique: pd.DatetimeIndex) -> pd.Timedelta:
    """Return the most frequent difference of times `(steps,)`, which increase."""
    lengths, counts = np.unique(np.diff(unique), return_counts=True)
    return pd.Timedelta(lengths[counts.argmax()])
