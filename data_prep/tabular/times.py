"""Parse times and find the regular time axis that they lie on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.errors import InputError
from data_prep.limits import check_size
from data_prep.tabular.advice import date_formats, frequency
from data_prep.tabular.columns import refuse_empty

if TYPE_CHECKING:
    from data_prep.tabular.file import Origin

# The years 1985 to 2030 in seconds; outside them digits may be a date such as 2031010100.
EPOCH_SECONDS = (5e8, 1.9e9)
BYTES_PER_STEP = 64  # memory of a time axis, including its index
_OFFSET = r"[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)\s*$"
logger = logging.getLogger(__name__)


def read_times(
    column: pd.Series, clock: str, origin: Origin
) -> tuple[pd.DatetimeIndex, str | None]:
    """Parse times `(rows,)`; return them without a zone, and the name of their zone, if any.

    Args:
        column: `(rows,)` dates, ISO 8601 texts, or seconds or milliseconds since 1970.
        clock: meaning of times without a zone, `"utc"` or `"local"`.
        origin: location of the rows, for errors.

    Raises:
        InputError: if a row is empty, ambiguous or not a time.
    """
    refuse_empty(column, "time", origin)
    if types.is_datetime64_any_dtype(column):
        times = pd.DatetimeIndex(column)
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
            f"{origin.at(0)}: time {column.iloc[0]} has an offset or counts from 1970 UTC, but the "
            "clock is set to local; leave out --clock local"
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
    return pd.to_datetime(np.rint(numbers * per_unit).astype(np.int64), unit="ms", utc=True)


def _from_text(texts: pd.Series, origin: Origin) -> pd.DatetimeIndex:
    """Parse ISO 8601 texts, to UTC if all have an offset, or numbers since 1970."""
    if texts.str.fullmatch(r"\d+(\.\d+)?").all():
        return _from_epoch(texts.to_numpy(dtype=np.float64), origin)
    offset = texts.str.contains(_OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        row = int(np.argmax(offset != offset[0]))
        raise InputError(
            f"{origin.at(row)}: time {texts.iloc[row]!r} and {texts.iloc[0]!r} ({origin.at(0)}) "
            "mix time zones, one has an offset and one has none; write all with an offset"
        )
    times = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=bool(offset.all()))
    wrong = np.flatnonzero(times.isna())
    if wrong.size:
        raise InputError(
            f"{origin.at(wrong[0])}: cannot read time {texts.iloc[wrong[0]]!r}, expected ISO 8601 "
            f"such as 2013-11-01T00:00+01:00; {_rewrite(texts, origin)}"
        )
    return pd.DatetimeIndex(times)


def _rewrite(texts: pd.Series, origin: Origin) -> str:
    """Return advice on times in another format, with that format if it can be guessed."""
    name = texts.name or "Unnamed: 0"  # as pandas calls a column without a name
    at = f"df[{name!r}]" if origin.reader else "df.index"
    known = date_formats(texts.tolist())
    lines = [
        origin.advice(f"{at} = pd.to_datetime({at}, format={form!r})")
        for _, form in known or [("", "%d %b %Y %H:%M")]
    ]
    if not known:
        return f"convert it by its own format, such as with {lines[0]}"
    if len(known) == 1:
        return f"this is {known[0][0]}, convert it with {lines[0]}"
    ways = "; ".join(f"if {known[i][0]}, with {line}" for i, line in enumerate(lines))
    return f"day and month cannot be told apart, convert it: {ways}"


def zone_name(zone: str) -> str | None:
    """Return the IANA name of a zone; None for an offset such as UTC+01:00."""
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError, OSError):
        return None


def check_time_zone(name: str) -> None:
    """Check that `name` is an IANA time zone.

    Raises:
        InputError: if it is not.
    """
    if zone_name(name) is None:
        raise InputError(f"unknown time zone {name!r}; give an IANA name such as Europe/Rome")


def regular_steps(
    times: pd.DatetimeIndex, name: str, *, allow_gaps: bool = False
) -> tuple[pd.DatetimeIndex, np.ndarray]:
    """Find the regular time axis of some times; its step is their most frequent difference.

    Args:
        times: `(rows,)` in any order, repeated or not.
        name: name of the table in errors.
        allow_gaps: log steps without a row instead of raising.

    Returns:
        The axis `(steps,)` and the position of each time on it, `(rows,)`.

    Raises:
        InputError: if a time is not on the axis, or a step has no row and `allow_gaps` is False.
    """
    unique = times.unique().sort_values()
    if len(unique) == 1:
        return unique, np.zeros(len(times), dtype=np.int64)
    gaps = np.diff(unique)
    lengths, counts = np.unique(gaps, return_counts=True)
    step = lengths[counts.argmax()]
    uneven = np.flatnonzero(gaps % step)
    if uneven.size:
        i = int(uneven[0])
        raise InputError(
            f"{name}: time steps are not even: {unique[i]} to {unique[i + 1]} is "
            f"{pd.Timedelta(gaps[i])}, most steps are {pd.Timedelta(step)} "
            f"({len(uneven)} of {len(gaps)} are not a multiple of it); resample to even steps, "
            "such as with `df.assign(time=pd.to_datetime(df['time'])).set_index('time').resample("
            f"'{frequency(pd.Timedelta(step))}').mean()`, for a long table with "
            "`.groupby('cell')` before `.resample`"
        )
    n_steps = int((unique[-1] - unique[0]) // pd.Timedelta(step)) + 1
    if n_steps > len(unique):
        i = int(np.argmax(gaps > step))
        message = (
            f"{name}: {n_steps - len(unique)} of {n_steps} time steps have no row, the first "
            f"after {unique[i]} (next row {unique[i + 1]})"
        )
        refuse_gap(message, allow_gaps)
    check_size(BYTES_PER_STEP * n_steps, f"{name}: an axis of {n_steps} time steps")
    axis = pd.date_range(unique[0], unique[-1], freq=pd.Timedelta(step))
    return axis, axis.get_indexer(times)


def refuse_gap(message: str, allow_gaps: bool, remedy: str = "add what is missing") -> None:
    """Raise for missing rows, or log a warning if gaps are allowed.

    Raises:
        InputError: if gaps are not allowed.
    """
    if not allow_gaps:
        raise InputError(f"{message}; {remedy} or pass --allow-gaps to leave NaN there")
    logger.warning("%s; left as NaN", message)
