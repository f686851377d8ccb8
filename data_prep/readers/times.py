"""Parse times and find the regular time axis that they lie on."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, NoReturn, get_args
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, close_to, in_minutes
from data_prep.base.limits import check_size
from data_prep.readers.columns import frequency, refuse_empty
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.written_times import (
    SIX_DIGITS,
    SPAN,
    TIME_LIKE,
    date_formats,
    next_days,
    plain_times,
)

Clock = Literal["utc", "local"]
CLOCKS = get_args(Clock)

# The years 1985 to 2030 in seconds; outside them digits may be a date such as 2031010100.
EPOCH_SECONDS = (5e8, 1.9e9)
YEARS = (1985, 2030)
SERIALS = (31_048, 47_849)
"""These years in days since 1899-12-30, as Excel stores times."""

ORDERS = {"day/month/year": "dayfirst", "month/day/year": "monthfirst"}
DIGITS = {8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}

NUMBER = r"\d+(\.\d+)?"
COMPACT = r"^(\d{4})(\d\d)(\d\d)[T. ]?(\d\d)(\d\d)(\d\d)?(Z|[+-]\d\d:?\d\d)$"
"""Pattern of a text such as 202403040015+0100, with an offset from UTC."""

OFFSET = r"[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)\s*$"
"""Pattern of a text with the time of day and an offset from UTC."""

log = StepLog("times")


def counts_rows(df: pd.DataFrame) -> bool:
    """Return whether the index counts rows, as after `read_csv`, `reset_index` and `concat`.

    >>> counts_rows(pd.DataFrame({"ds": ["2024-01-01"], "y": [1.0]}))
    True
    """
    whole = types.is_integer_dtype(df.index.dtype) and len(df) > 0
    return whole and max(df.index) < EPOCH_SECONDS[0]


def read_times(
    column: pd.Series,
    clock: str,
    origin: Origin,
    time_format: str = "",
    time_zone: str | None = None,
) -> tuple[pd.DatetimeIndex, str | None]:
    """Parse times `(rows,)`; return them without a zone, and the name of their zone, if any.

    They are dates, texts, or seconds since 1970 or their thousandths to billionths. Texts are ISO
    8601 or in a `time_format` of strptime, `"dayfirst"` or `"monthfirst"`; without one, also other
    dates that allow only one reading. `clock` says what times without a zone mean. Equal texts are
    read once. A notice says that offsets change, unless the `time_zone` of the place is known.
    """
    refuse_empty(column, "time", origin)
    if types.is_datetime64_any_dtype(column):
        times = pd.DatetimeIndex(column)
        if time_format:
            unread = Words("{time_format} is not used", time_format=time_format)
            log.info(origin, "times are no texts here; ", unread)
    else:
        codes, distinct = pd.factorize(column)
        first = np.zeros(len(distinct), dtype=np.int64)
        first[codes[::-1]] = np.arange(len(codes))[::-1]
        rows = first if origin.rows is None else origin.rows[first]
        at_first = dataclasses.replace(origin, rows=rows)
        times = _parse_distinct(pd.Series(distinct), at_first, time_format).take(codes)
        if times.tz is not None and not time_zone:
            _say_changes(pd.Series(distinct), origin)
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


def _say_changes(column: pd.Series, origin: Origin) -> None:
    """Log that texts have several offsets, as those of a place that changes its clock."""
    if types.is_numeric_dtype(column):
        return
    offsets = column.astype(str).str.extract(r"([+-]\d{2}:?\d{2})\s*$")[0].dropna().unique()
    if len(offsets) > 1:
        log.warning(
            origin,
            f"times have the offsets {', '.join(sorted(offsets))}, as where a clock "
            "changes; they become UTC, and so do the hours and days that a model knows; ",
            Words("name the place's zone with {time_zone:Europe/Berlin}"),
        )


def _parse_distinct(column: pd.Series, origin: Origin, time_format: str) -> pd.DatetimeIndex:
    if are_of_day(column):
        raise InputError(
            f"{origin.at(0)}: {column.iloc[0]!r} is a time of day without a date; ",
            Words(
                "name the column of dates, too, as in {time:Date,Time}, or give the time of the "
                "first row and the step, as in {start:2024-01-01T00:00} {step:1h}"
            ),
        )
    if time_format:
        return parse_times(column.astype(str), time_format, origin)
    if types.is_numeric_dtype(column) and len(str(int(column.iloc[0]))) not in DIGITS:
        return _from_epoch(column.to_numpy(dtype=np.float64), origin)
    return _from_text(column.astype(str).str.removesuffix(".0"), origin)  # of a float


def are_of_day(column: pd.Series) -> bool:
    """Return whether all of a column, without any missing, are times of a day, such as 08:15."""
    return not types.is_numeric_dtype(column) and bool(
        column.astype(str)
        .str.fullmatch(r"\s*\d{1,2}:\d\d(:\d\d(\.0*)?)?(\s*[AaPp]\.?[Mm]\.?)?\s*")
        .all()
    )


def _from_epoch(numbers: np.ndarray, origin: Origin) -> pd.DatetimeIndex:
    """Convert seconds, or a thousandth to a billionth, since 1970, by their size, to UTC times."""
    low, high = EPOCH_SECONDS
    of_second = (1.0, 1e3, 1e6, 1e9)
    fits = [(low * n <= numbers) & (numbers < high * n) for n in of_second]
    per_unit = np.select(fits, [1000 / n for n in of_second], default=0)
    odd = np.flatnonzero((per_unit == 0) | (per_unit != per_unit[0]))
    if odd.size:
        serial = SERIALS[0] <= numbers.min() and numbers.max() < SERIALS[1]
        raise InputError(
            f"{origin.at(odd[0])}: time {numbers[odd[0]]:.15g} is ambiguous, expected whole "
            "seconds, or milli-, micro- or nanoseconds, since 1970 (years 1985 to 2030, one unit "
            "in all rows); ",
            Words("pass {time_format:excel} for days since 1899-12-30, or " if serial else ""),
            "write ISO 8601 such as 2013-11-01T00:00+01:00",
        )
    milliseconds = np.rint(numbers * per_unit).astype(np.int64)
    return pd.DatetimeIndex(pd.to_datetime(milliseconds, unit="ms", utc=True))


def _from_digits(texts: pd.Series, origin: Origin) -> pd.DatetimeIndex:
    """Read digits as dates such as 20240131 or 202401310015 where they fit, else since 1970."""
    lengths = texts.str.len().unique()
    if len(lengths) == 1 and lengths[0] in DIGITS:
        form = DIGITS[lengths[0]]
        times = pd.to_datetime(texts, format=form, errors="coerce")
        if times.notna().all() and times.dt.year.between(*YEARS).all():
            log.info(origin, f"times are read as {form}, such as {texts.iloc[0]}")
            return pd.DatetimeIndex(times)
    if texts.str.fullmatch(r"\d{6}").all():
        dates = texts.str.replace(SIX_DIGITS, r"\1-\2-\3", regex=True)
        return _in_only_order(dates, np.zeros(1, dtype=int), origin)
    return _from_epoch(texts.to_numpy(dtype=np.float64), origin)


def _from_text(texts: pd.Series, origin: Origin) -> pd.DatetimeIndex:
    """Parse ISO 8601 texts, to UTC if all have an offset, or other usual ones, or numbers."""
    texts = texts.str.strip()
    texts = texts.str.replace(r"(?<=\d) ?(UTC|GMT)$", "+00:00", regex=True)
    texts = texts.str.replace(r"(?<=[\dZ])\[[A-Za-z_/+-]+\]$", "", regex=True)
    first = next(iter(texts), "")
    if re.fullmatch(NUMBER, first) and texts.str.fullmatch(NUMBER).all():
        return _from_digits(texts, origin)
    if _are_spans(texts):
        texts = texts.str.replace(SPAN, r"\1", regex=True)
    if re.match(COMPACT, first) and texts.str.fullmatch(COMPACT).all():
        texts = texts.str.replace(COMPACT, r"\1-\2-\3T\4:\5:\6\7", regex=True)
        texts = texts.str.replace(r":(?=Z|[+-])", ":00", regex=True)
    offset = texts.str.contains(OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        row = int(np.argmax(offset != offset[0]))
        raise InputError(
            f"{origin.at(row)}: time {texts.iloc[row]!r} and {texts.iloc[0]!r} ({origin.at(0)}) "
            "mix time zones, one has an offset and one has none; write all with an offset"
        )
    times = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=bool(offset.all()))
    wrong = np.flatnonzero(times.isna())
    return pd.DatetimeIndex(times) if not wrong.size else _in_only_order(texts, wrong, origin)


def _are_spans(texts: pd.Series) -> bool:
    """Return whether what follows a minus is no offset but the end of a span, always as long.

    >>> _are_spans(pd.Series(["2024-03-04 08:00-08:15", "2024-03-04 23:45-24:00"]))
    True
    >>> _are_spans(pd.Series(["2024-03-04 08:00-05:00", "2024-03-04 09:00-05:00"]))
    False
    """
    pattern = r"[T ](\d{1,2}):(\d{2})(?::00)? ?- ?(\d{1,2}):(\d{2})$"
    if not re.search(pattern, next(iter(texts), "")):
        return False
    found = texts.str.extract(pattern)
    if found.isna().to_numpy().any():
        return False
    hour, minute, end_hour, end_minute = found.astype(int).to_numpy().T
    begin, end = 60 * hour + minute, 60 * end_hour + end_minute
    return len(np.unique(begin)) > 1 and len(np.unique((end - begin) % (24 * 60))) == 1


def _in_only_order(texts: pd.Series, wrong: np.ndarray, origin: Origin) -> pd.DatetimeIndex:
    """Parse dates that allow only one order of day and month; refuse others.

    Of two orders that are valid, the one in which the dates follow each other evenly is right.
    """
    plain, later = plain_times(texts)
    known = date_formats(plain.unique().tolist())
    readings = {}
    for order, form in known:
        times = pd.DatetimeIndex(pd.to_datetime(plain, format=form, errors="coerce")) + later
        if not times.hasnans and pd.Series(times.year).between(*YEARS).all():
            readings[order, form] = times
    even = [key for key, times in readings.items() if _follow_evenly(times)]
    why = "; only so do the dates follow each other evenly"
    if not even and plain.str.contains(r"^\d{1,2}\.\d{1,2}\.").all():
        even, why = [key for key in readings if key[0] == "day/month/year"], "; points say so"
    if len(readings) == 1 or len(even) == 1:
        order, form = even[0] if len(even) == 1 else next(iter(readings))
        log.info(origin, f"times are read as {order} ({form}){(why if len(readings) > 1 else '')}")
        return readings[order, form]
    if not readings and not known and (plain != texts).any():
        with suppress(InputError):
            return _from_text(plain, origin) + later
    _ask_for_order(texts, int(wrong[0]), list(readings), origin)


def _follow_evenly(times: pd.DatetimeIndex) -> bool:
    """Return whether at least three dates, or times of at least two, are equally far apart."""
    days, all_times = np.unique(times.normalize().asi8), np.unique(times.asi8)
    even_days = len(days) > 2 and len(np.unique(np.diff(days))) == 1
    return even_days or (1 < len(days) < len(all_times) and len(np.unique(np.diff(all_times))) == 1)


def _ask_for_order(
    texts: pd.Series, wrong: int, known: Sequence[tuple[str, str]], origin: Origin
) -> NoReturn:
    like = texts.str.match(TIME_LIKE)
    if like.any() and not like.all():
        row = int(np.argmin(like))
        raise InputError(
            f"{origin.at(row)}: {texts.iloc[row]!r} is no time, expected one such as "
            f"{texts[like].iloc[0]!r} in every row; correct it or remove the row"
        )
    found = f"{origin.at(wrong)}: cannot read time {texts.iloc[wrong]!r}"
    if known:
        options = " or ".join(f"{{time_format:{ORDERS.get(o, f)}}}" for o, f in known)
        first, *others = (form for _, form in known)
        advice = origin.either(
            Words(f"pass {options}"), f"{_conversion(first)}  # or {', '.join(map(repr, others))}"
        )
        raise InputError(f"{found}: day and month cannot be told apart; ", advice)
    example = "%d %b %Y %H:%M"
    option = "{time_format}"
    # The name of a zone may mean one offset or a wall clock; Java writes the second form.
    iso_and_zone = r"\d{4}-\d\d-\d\d([ T])\d\d:\d\d(:\d\d)?( ?[A-Z]{3,4})"
    of_java = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ([A-Z]{3,4}) \d{4}"
    of_iso, of_unix = (re.fullmatch(p, texts.iloc[wrong]) for p in (iso_and_zone, of_java))
    if of_iso:
        example = f"%Y-%m-%d{of_iso[1]}%H:%M{':%S' * bool(of_iso[2])}{of_iso[3]}"
    elif of_unix:
        example = f"%a %b %d %H:%M:%S {of_unix[1]} %Y"
    if of_iso or of_unix:
        option += " and, for the clock of a place, its {time_zone:Europe/Berlin} {clock:local}"
    raise InputError(
        f"{found}, expected ISO 8601 such as 2013-11-01T00:00+01:00; give its own format, such as ",
        origin.either(Words(option, time_format=example), _conversion(example)),
    )


def _conversion(form: str) -> str:
    return f"df.index = pd.to_datetime(df.index, format={form!r})"


def from_serials(days: np.ndarray) -> pd.DatetimeIndex:
    """Convert days since 1899-12-30 `(rows,)`, as Excel stores times, to times of full seconds."""
    return pd.DatetimeIndex(pd.to_datetime(days, unit="D", origin="1899-12-30")).round("s")


def parse_times(texts: pd.Series, time_format: str, origin: Origin) -> pd.DatetimeIndex:
    """Parse texts `(rows,)` in a format of strptime, `"dayfirst"`, `"monthfirst"` or `"excel"`."""
    form = time_format
    if form == "excel":
        days = pd.to_numeric(texts.str.replace(",", "."), errors="coerce").to_numpy(dtype=float)
        return from_serials(days) if np.isfinite(days).all() else _from_text(texts, origin)
    texts, later = (plain_times if form in ORDERS.values() else next_days)(texts)
    if form in ORDERS.values():
        order = next(order for order, option in ORDERS.items() if option == form)
        form = dict(date_formats(texts.unique().tolist())).get(order, "")
        if not form:
            raise InputError(
                f"{origin.at(0)}: times such as {texts.iloc[0]!r} are not all {order}; ",
                Words("give their strptime format, such as {time_format:%d/%m/%y %H:%M}"),
            )
    elif "%" not in form:
        raise InputError(
            f"time_format is {form!r}; give dayfirst, monthfirst, excel or a strptime format such "
            "as '%d/%m/%Y %H:%M'"
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
    return pd.DatetimeIndex(times) + later


def zone_name(zone: str) -> str | None:
    """Return the IANA name of a zone; None for an offset such as UTC+01:00."""
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError, OSError):
        return None


def to_wall(times: pd.DatetimeIndex, zone: str) -> pd.DatetimeIndex:
    """Convert UTC times to the wall clock of a zone, both without a zone."""
    return times.tz_localize("UTC").tz_convert(zone).tz_localize(None)


def check_time_zone(name: str) -> None:
    """Check that `name` is an IANA time zone."""
    if zone_name(name) is None:
        close = close_to(name, available_timezones())
        raise InputError(
            f"unknown time zone {name!r}; give an IANA name such as Europe/Rome{close}"
        )


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
        months = np.diff(12 * unique.year + unique.month)
        same = len(set(unique.day)) == 1 or bool(unique.is_month_end.all())
        if same and len(set(unique.time)) == 1 and months.min() > 0:
            what = "month" if (months % 12).any() else "year"
            raise of_unequal(f"{name}: its records are a {what} or more apart, and", what)
        i = int(uneven[0])
        raise InputError(
            f"{name}: time steps are not even: {unique[i]} to {unique[i + 1]} is "
            f"{pd.Timedelta(gaps[i])}, most steps are {in_minutes(length)} ({len(uneven)} of "
            f"{len(gaps)} are not a multiple of it); ",
            *_to_even(gaps, uneven, length),
        )
    n_steps = int((unique[-1] - unique[0]) // length) + 1
    check_size(64 * n_steps, f"{name}: an axis of {n_steps} time steps")  # Its index included.
    axis = pd.date_range(unique[0], unique[-1], freq=length)
    return axis, axis.get_indexer(times)


def of_unequal(found: str, what: str) -> InputError:
    """Return the error for records of months or years."""
    return InputError(
        f"{found} {what}s are not equally long, expected even steps; give records of days or weeks"
    )


def _to_even(gaps: np.ndarray, uneven: np.ndarray, length: pd.Timedelta) -> tuple[Words, ...]:
    """Return advice on gaps between times if some are no multiple of a usual length."""
    rest = gaps[uneven] % length.to_timedelta64()
    off = np.minimum(rest, length.to_timedelta64() - rest).max()
    is_close = off <= 0.1 * length  # Polls may be that late or early.
    step = length if len(uneven) <= len(gaps) / 4 else longer_step(gaps, length)
    seconds = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
    usual = [pd.Timedelta(seconds=n) for n in (*seconds, *(3600 * h for h in (1, 2, 3, 6, 12, 24)))]
    resample = Words(
        "put the records into even steps with {resample} {agg:mean} if they are levels, {agg:sum} "
        "if they are counts, {agg:count} if each row is an event, {agg:total} for the sum of its "
        "values",
        resample=frequency(min(usual, key=lambda s: abs(s - length)) if is_close else step),
    )
    if length % pd.Timedelta("1D") or off > pd.Timedelta("1h"):
        return (resample,)
    days = "if they are days of a place that changes its clock, name its {time_zone:Europe/Berlin}"
    return Words(f"{days}; else "), resample


def longer_step(gaps: np.ndarray, length: pd.Timedelta) -> pd.Timedelta:
    """Return a usual step that holds several records at uneven times."""
    least = 10 * pd.Timedelta(np.median(gaps))
    usual = (pd.Timedelta(step) for step in ("1min", "5min", "15min", "1h", "1D"))
    return next((step for step in usual if step >= least), length)


def usual_step(unique: pd.DatetimeIndex) -> pd.Timedelta:
    """Return the most frequent difference of times `(steps,)`, which increase."""
    lengths, counts = np.unique(np.diff(unique), return_counts=True)
    return pd.Timedelta(lengths[counts.argmax()])
