"""Read a time that stands in several columns, or as Excel's number of days."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words
from data_prep.readers.columns import TIMES, named, no_column
from data_prep.readers.options import TIME, TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.resampling import step_length
from data_prep.readers.table import Table
from data_prep.readers.time_columns import MIDNIGHT, SEEN, kind_of
from data_prep.readers.times import SERIALS, are_of_day, from_serials
from data_prep.readers.written_times import SIX_DIGITS, date_formats

DATE_NAME = r"(?i)date|datum|fecha|日期"
"""Pattern of the name of a column of dates."""

OFF = 0.08
"""Most minutes between a time and its number with four decimals or more."""

log = StepLog("times")


def apply(table: Table, options: TableOptions) -> Table:
    """Give a table one column of times, made of their parts, or of the first time and a step."""
    table = join_times(table)
    if options.start and options.step:
        table = _set_times(table, options)
    elif not table.times:
        raise InputError(
            no_column(options.time, table.names, table.origin),
            Words(
                "name the column of times with {time} or, if there is none, give the first time "
                "and the step, such as {start:2024-01-01T00:00} {step:1h}"
            ),
        )
    return table.deciding(time_format=options.time_format or _format_of_dates(table))


def _format_of_dates(table: Table) -> str:
    """Return the only format of dates as text, of which a short later table may allow two."""
    texts = table.codes(table.time)[1] if table[table.time].dtype == pl.String else []
    if not texts or re.match(r"\d{4}-", texts[0]):
        return ""  # ISO 8601 has one reading.
    known = date_formats(texts)
    return known[0][1] if len(known) == 1 else ""


def _set_times(table: Table, options: TableOptions) -> Table:
    """Insert a column of times, which count the rows, or the rows of each cell."""
    name, origin = table.time if table.times else options.time, table.origin
    of_day = None
    if name in table and are_of_day(table.series(name)):
        of_day, table = table.series(name).astype(str), table.without([name])
    if name in table:
        raise InputError(
            f"{origin.name}: has times in column {name!r}; ",
            Words("leave out {start} and {step}, or name the columns with {values} and {time}"),
        )
    start = str(options.start)
    length = step_length(str(options.step), "step")
    first = pd.to_datetime(start, format="ISO8601", errors="coerce")
    if not start[:4].isdigit() or pd.isna(first):  # In 01/02/2024, the month may be either.
        raise InputError(f"start is {start!r}; write it like 2024-01-01T00:00")
    rows = pl.int_range(pl.len())
    row = table.columns.select(rows.over(options.cell) if options.cell in table else rows)
    times = pd.DatetimeIndex(first + row.to_series().to_numpy() * length)
    if of_day is not None:
        shown = pd.DatetimeIndex(pd.to_datetime(of_day, format="mixed"))
        if (wrong := np.flatnonzero(shown - shown.normalize() != times - times.normalize())).size:
            raise InputError(
                f"{origin.at(wrong[0])}: time {of_day.iloc[wrong[0]]}, expected the time of "
                f"{times[wrong[0]]}; ",
                Words("correct {start} or {step}, or add the rows that are missing"),
            )
    column = pl.Series(name, times.to_numpy(dtype="datetime64[ns]"))
    if times.tz is not None:
        column = column.dt.replace_time_zone("UTC")
    columns = table.columns.select(column, pl.all())
    return table.with_(columns=columns, times=(name,))


def read_serials(table: Table, time: str) -> Table:
    """Write numbers of days since 1899-12-30, as Excel stores times, as ISO 8601.

    They stand in a column of times by its name, are of the years 1985 to 2030, where days since
    other usual dates are not, and all of full minutes. Without a fraction the name says dates.

    >>> table = Table(pl.DataFrame({"Time": ["45292,041667", "45292,083333", "Total"]}))
    >>> read_serials(table, "time")["Time"].to_list()
    ['2024-01-01 01:00', '2024-01-01 02:00', 'Total']
    """
    for name in dict.fromkeys(c for c in (*named(table.names, TIMES), time) if c in table):
        column = table[name]
        begin = column.head(SEEN).cast(pl.String)
        if column.dtype.is_temporal() or not begin.str.contains(r"^\s*\d{5}([.,]\d+)?\s*$").any():
            continue
        texts = column.cast(pl.String).str.strip_chars()
        days = texts.str.replace(",", ".", literal=True).cast(pl.Float64, strict=False)
        known = days.drop_nulls().unique().to_numpy()
        whole = bool((known % 1 == 0).all())
        if len(known) < 2 or not _are_serials(known) or (whole and not re.search(DATE_NAME, name)):
            continue
        written = pl.Series(from_serials(days.to_numpy()).round("min").to_numpy())
        log.info(
            table.origin,
            "column %r counts days since 1899-12-30, as Excel does, %s is %s; %s",
            *(name, texts[0], written[0], Words("pass {time} for another column")),
        )
        form = "%Y-%m-%d" if whole else "%Y-%m-%d %H:%M"
        iso = written.dt.strftime(form)
        table = table.with_columns(iso.zip_with(days.is_not_null(), texts).alias(name))
    return table


def _are_serials(days: np.ndarray) -> bool:
    """Return whether all numbers are days of Excel, of full minutes."""
    minutes = days * 24 * 60
    of_minutes = np.abs(minutes - np.rint(minutes)).max() <= OFF
    return bool(of_minutes and days.min() >= SERIALS[0] and days.max() < SERIALS[1])


def fill_labels(table: Table, keys: Container[str]) -> Table:
    """Write dates, times and cells that stand once above their rows, as in a pivot table, in each.

    A column of such labels is blank in half of the rows or more, its neighbouring labels differ,
    and below each of them no two rows are alike in the times and cells to its right.

    >>> columns = pl.DataFrame({"Cell": ["A", None, "B", None], "Hour": [0, 1, 0, 1]})
    >>> fill_labels(Table(columns, times=("Hour",)), ["Cell"])["Cell"].to_list()
    ['A', 'A', 'B', 'B']
    """
    ordered = [c for c in table.names if c in table.times or c in keys]
    for i in reversed(range(len(ordered) - 1)):
        labels, right = table[ordered[i]], ordered[i + 1 :]
        if 2 * labels.null_count() < len(labels) or not len(labels) or labels[0] is None:
            continue
        known = labels.drop_nulls()
        groups = labels.is_not_null().cum_sum().alias("")
        below = table.columns.select(right).with_columns(groups)
        if (known.slice(1) != known.slice(0, len(known) - 1)).all() and below.is_unique().all():
            log.info(table.origin, "column %r has each label once, above its rows", labels.name)
            table = table.with_columns(labels.forward_fill())
    return table


def join_times(table: Table) -> Table:
    """Return the table with one column of times, made of their parts.

    The parts are a date and a time of day; year, month and day; or one of these with hour and
    minute.
    """
    times = table.times
    if len(times) < 2:
        return table
    parts = [table[name] for name in times]
    if len(times) > 3 or (len(times) == 3 and kind_of(parts[0]) != "date"):
        day, clock = _joined_date(parts[:3]), parts[3:]
    else:
        day, clock = _date(parts[0]), parts[1:]
    joined = day + " " + _clock(clock) if clock else day
    name = TIME if TIME not in table or TIME in times else times[0]
    columns = table.columns.drop(times).insert_column(0, joined.alias(name))
    return table.with_(columns=columns, times=(name,))


def _date(date: pl.Series) -> pl.Series:
    """Return dates as text, without a time of day."""
    day = date.dt.strftime("%Y-%m-%d") if date.dtype.is_temporal() else date.cast(pl.String)
    day = day.str.strip_chars().str.replace(MIDNIGHT, "")
    for digits in (r"^(\d{4})(\d\d)(\d\d)$", SIX_DIGITS):
        if day.str.contains(digits).all():
            day = day.str.replace(digits, "$1-$2-$3")
    return day


def _whole(numbers: pl.Series) -> pl.Series:
    """Return whole numbers as text of two digits or more; other texts stay."""
    texts = numbers.cast(pl.String).str.strip_chars().str.replace(r"\.0+$", "")
    return texts.str.replace(r"^(\d)$", "0$1")


def _joined_date(parts: Sequence[pl.Series]) -> pl.Series:
    """Return dates as text, of years, months, which may be named, and days."""
    year, month, day = map(_whole, parts)
    if month.str.contains(r"^\d*$").all():
        return year + "-" + month + "-" + day
    return day + " " + month + " " + year


def _clock(parts: Sequence[pl.Series]) -> pl.Series:
    """Return times of day as text, of a column or of hours and minutes."""
    if len(parts) == 2:
        return _whole(parts[0]) + ":" + _whole(parts[1])
    if parts[0].dtype.is_temporal():
        return parts[0].dt.strftime("%H:%M:%S")
    hour = parts[0].cast(pl.String).str.strip_chars()
    hour = hour.str.replace(r"\s*(-|–|~|to|bis|a)\s*\d.*$", "")
    hour = hour.str.replace(r"^(\d{1,2})(\.0)?$", "$1:00")
    return hour.str.replace(r"^(\d:)", "0$1")
