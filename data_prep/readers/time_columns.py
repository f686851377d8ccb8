"""Find the columns of times of a table, and make one of them.

A date and a time of day in two columns become one time. A table without times counts its rows.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words
from data_prep.readers.columns import (
    CALENDAR,
    DATE_PARTS,
    HOURS,
    MINUTES,
    TIMES,
    looks_like_values,
    named,
    no_column,
    which_of,
)
from data_prep.readers.ids import may_be_ids
from data_prep.readers.options import CLOCK, TIME, TableOptions
from data_prep.readers.origin import FIRST, StepLog
from data_prep.readers.resampling import step_length
from data_prep.readers.table import Table
from data_prep.readers.times import are_of_day, of_unequal
from data_prep.readers.written_times import (
    CLOCK_LIKE,
    MONTH,
    MONTH_OF_YEAR,
    SIX_DIGITS,
    TIME_LIKE,
    date_formats,
)

SEEN = 2000
"""Number of values that show whether a column holds times."""

MOST = 0.8
"""Share of values above which a column is one of times, as totals and notes stand among them."""

MIDNIGHT = r"[T ]0?0:00(:00(\.0+)?)?$"

ENDS = (
    r"(?i)((^|[^a-z])|time|date|hour|period|interval|hora|fecha|heure|ora|data)"
    r"(end(ing|e)?|fine?|final|fim|bis|until)([^a-z]|(time|date|stamp|zeit|datum).*|$)"
    r"|(?-i:[a-z]End([^a-z]|$))|结束|终止|截止"
)
"""Pattern of the name of a column of ends of steps or periods."""

log = StepLog("times")


def apply(table: Table, options: TableOptions) -> Table:
    """Give a table one column of times, made of their parts, or of the first time and a step."""
    table = join_times(_with_ends(table))
    if options.start and options.step and "start" not in table.decided:
        table = _set_times(table, options)
    elif not table.times:
        months = [c for c in table.names if _share_of(table[c], MONTH_OF_YEAR)]
        if months or all(map(named, 2 * [table.names], DATE_PARTS[:2])):
            raise of_unequal(f"{table.origin.name}: it has months without days, and", "month")
        found = no_column(options.time, table.names, table.origin)
        named_so = Words("name the column of times with {time}")
        raise InputError(found, named_so, *_to_count(table, options))
    first = next(iter(table[table.time]), "")
    log.note(table.origin, f"column {table.time!r}, first {first}")
    form, is_text = options.time_format, table[table.time].dtype == pl.String
    if not form and is_text and not re.match(r"\d{4}-", str(first)):  # ISO 8601 has one reading.
        known = date_formats(table.codes(table.time)[1])
        form = known[0][1] if len(known) == 1 else ""
    return table.deciding(time_format=form)


def _to_count(table: Table, options: TableOptions) -> list[str | Words]:
    """Return advice on counting the rows of a table whose rows may be in the order of time."""
    cells, example = _texts_of_cells(table), Words("{start:2024-01-01T00:00} {step:1h}")
    if not cells or options.cell in table:
        return [" or, if there is none, give the first time and the step, such as ", example]
    if CLOCK not in table:
        return []
    of_cell = Words(" {cell}", cell=cells[0])
    return [" or, for times of a day, give the first and the step, such as ", example, of_cell]


def _texts_of_cells(table: Table) -> list[str]:
    """Return the columns of texts that may name cells of a table without times."""
    others = [c for c in table.names if c not in table.times and not named([c], CALENDAR)]
    return [c for c in others if table[c].dtype == pl.String and may_be_ids(table[c])]


def _ask_for_cells(table: Table, options: TableOptions) -> None:
    """Raise an error if rows that are to be counted may be of several cells, or lack the first."""
    name, given = table.origin.name, options.layout != "auto" or options.cell in table
    if given or not table.origin.is_file:
        return
    if cells := _texts_of_cells(table):
        raise InputError(
            f"{name}: column {cells[0]!r} may name the cells, whose rows are counted apart; ",
            Words("pass {cell} if it does, {layout:wide} if not", cell=cells[0]),
        )
    numbers = all(re.fullmatch(r"\d+", c) and table[c].dtype.is_numeric() for c in table.names)
    if numbers and len(table.names) > 1 and not options.no_header:
        most = table.columns.select(pl.max_horizontal(pl.all().max())).item()
        if max(map(int, table.names)) <= (most or 0):
            raise InputError(
                f"{name}: the names of columns are numbers like the values below; ",
                Words(
                    "pass {no_header} if they are values, {layout:wide} if they name cells",
                    no_header=True,
                ),
            )


def _set_times(table: Table, options: TableOptions) -> Table:
    """Insert a column of times, which count the rows, or the rows of each cell."""
    _ask_for_cells(table, options)
    name, origin = table.time if table.times else options.time, table.origin
    if CLOCK in table and not table.times:
        name = CLOCK
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


def kind_of(column: pl.Series) -> str:
    """Return what most values are: `"time"`, `"date"`, `"clock"`, `"hour"`, or `""`."""
    if column.dtype == pl.Date:
        return "date"
    if column.dtype == pl.Time:
        return "clock"
    if isinstance(column.dtype, pl.Datetime):
        midnight = datetime.time()
        return "date" if bool((column.drop_nulls().dt.time() == midnight).all()) else "time"
    texts = column.head(SEEN).drop_nulls().cast(pl.String).str.strip_chars()
    if not len(texts):
        return ""
    if named([column.name], TIMES) and texts.str.contains(SIX_DIGITS).all():
        return "date"
    hours = texts.str.contains(r"^([01]?\d|2[0-4])(\.0|\s*[-–]\s*([01]?\d|2[0-4]))?$")
    if named([column.name], HOURS) and _share(hours) > MOST:
        return "hour"
    if column.dtype.is_float() or _share(texts.str.contains(TIME_LIKE)) <= MOST:
        is_clock = column.dtype == pl.String and _share(texts.str.contains(CLOCK_LIKE)) > MOST
        return "clock" if is_clock else ""
    if column.dtype == pl.String and not texts.str.contains(r"^\d{8}\.?\d").any():
        plain = texts.str.replace(MIDNIGHT, "")
        return "time" if plain.str.contains(r"^.{5,}[T_ ,]\s*\d{1,2}(:|$)").any() else "date"
    return "date" if _share(texts.str.contains(r"^\d{8}$")) > MOST else "time"


def _share(mask: pl.Series) -> float:
    """Return the share of true values."""
    return float(mask.to_numpy().mean())


def find_times(table: Table, options: TableOptions) -> list[str]:
    """Return the column of times, or those of their parts; empty if none is found.

    It is the named one, else one with a usual name, else the only one that holds times. The first
    column is taken if it has no name, as `DataFrame.to_csv` writes an index. Parts are a date and a
    time of day, which may be an hour and a minute, or the three numbers of the date.
    """
    columns, time = table.names, options.time
    if "," in time and time not in columns:
        return [_named(part.strip(), table) for part in time.split(",")]
    if time != TIME:
        return [_named(time, table)]
    unnamed_first = "" in columns[:1] and (kind_of(table[""]) or not named(columns, TIMES))
    first = str(table.columns[0, 0]) if options.no_header and len(table) else ""
    if unnamed_first or (first and looks_like_values([first])):
        return [columns[0]]
    kinds = {name: kind_of(table[name]) for name in columns}
    exact = [name for name, kind in kinds.items() if kind == "time"]
    usual = named(exact, TIMES) or _finer(table, exact, named(columns, TIMES))
    dates = [name for name, kind in kinds.items() if kind == "date"]
    clocks = [name for name, kind in kinds.items() if kind in ("clock", "hour")]
    found = _earlier(table, usual)
    if not usual and dates and clocks:
        dates, clocks = named(dates, TIMES) or dates, named(clocks, TIMES) or clocks
        both = [_earlier(table, dates) or dates, _earlier(table, clocks) or clocks]
        found = [one[0] for one in both if len(one) == 1]
    elif not usual and not dates and (date := _date_parts(table)):
        found = [*date, *(clocks if len(clocks) == 1 else [])]
    elif not usual:
        dates = named(columns, TIMES) or dates
        found = _earlier(table, dates)
    if len(found) > 1 and kinds[found[-1]] == "hour":
        minutes = [c for c in named(columns, MINUTES) if _are_within(table[c], 0, 59)]
        found += minutes if len(minutes) == 1 else []
    if not found and len(usual or dates) > 1:
        unclear = usual or dates
        clocks = named(unclear, HOURS)
        if len(unclear) == 2 and len(clocks) == 1:
            unclear = [*unclear, ",".join(sorted(unclear, key=lambda c: c in clocks))]
        raise which_of(f"{table.origin.name}: %s may hold the times; ", "time", unclear)
    if found and found != [TIME]:
        *others, last = map(repr, found)
        shown = f"columns {', '.join(others)} and {last}" if others else f"column {last}"
        other = Words("pass {time} for another")
        log.info(table.origin, f"using {shown} for the times; ", other)
    return found or ([TIME] if TIME in columns else [])


def are_ends(texts: Sequence[str]) -> bool:
    """Return whether times of a day are the ends of steps: 24:00 is the last one, and 0:00 is none.

    >>> are_ends(["1", "24"]), are_ends(["0", "24"]), are_ends(["4.3.2024 24:00", "5.3.2024 1:00"])
    (True, False, True)
    >>> are_ends(["23:00-24:00", "05:00-06:00"]), are_ends(["24:00", "25:00"])
    (False, False)
    """
    first, last = _bounds(texts)
    return last == 24 * 60 and first != 0


def _bounds(texts: Sequence[str]) -> tuple[int, int]:
    """Return the first and last minute of the day of texts, -1 of texts without a time of day."""
    clock = r"(?:^\s*|[T\s,_])(\d{1,2})(?:(?:\.0)?\s*$|\s?(?::|[hH]|Uhr|[时時시点])\s?([0-5]\d)?)"
    parts = pl.Series(texts, dtype=pl.String).str.extract_groups(clock).struct.unnest()
    hours, minutes = (parts[c].fill_null("0").cast(pl.Int64) for c in parts.columns)
    found = (60 * hours + minutes).filter(parts[parts.columns[0]].is_not_null()).to_list()
    return min(found, default=-1), max(found, default=-1)


def _with_ends(table: Table) -> Table:
    """Return a table with the column of times that are ends of steps: by its name, or its times."""
    if table.ends is not None:
        return table
    clocks = [c for c in table.times if table[c].dtype == pl.String or kind_of(table[c]) == "hour"]
    ends = [c for c in table.times if re.search(ENDS, c)]
    texts = {c: [str(v) for v in table.codes(c)[1]] for c in clocks}
    ends += [c for c in clocks if are_ends(texts[c])]
    for c in (c for c in clocks if kind_of(table[c]) == "hour"):
        low, high = (minute // 60 for minute in _bounds(texts[c]))
        if high - low >= 24:
            raise InputError(
                f"{table.origin.name}: column {c!r} has the hours {low} to {high}, expected 24; "
                "write times with their offset, such as 2024-10-27T02:00+02:00, if a clock went "
                "back then"
            )
    if not ends and FIRST.get({}).get("ends"):
        if midnight := [c for c in clocks if _bounds(texts[c])[0] == 0]:
            raise InputError(
                f"{table.origin.name}: column {midnight[0]!r} has 0:00, expected 24:00 as in the "
                "first records, whose times are the ends of steps; write the times as there"
            )
        ends = [*table.times]
    return table.with_(ends=next(iter(ends), ""))


def _date_parts(table: Table) -> list[str]:
    """Return the columns of years, months, which may be named, and days; empty without them."""
    years, months, days = (named(table.names, names) for names in DATE_PARTS)
    years = [c for c in years if _are_within(table[c], 1985, 2030)]
    months = [c for c in months if _are_within(table[c], 1, 12) or _share_of(table[c], MONTH)]
    days = [c for c in days if _are_within(table[c], 1, 31)]
    found = [*years, *months, *days]
    return found if len(years) == len(months) == len(days) == 1 else []


def _are_within(column: pl.Series, low: int, high: int) -> bool:
    """Return whether most values are whole numbers in a range."""
    numbers = column.head(SEEN).drop_nulls().cast(pl.Float64, strict=False)
    fits = (numbers.is_between(low, high) & (numbers % 1 == 0)).fill_null(value=False)
    return len(fits) > 0 and _share(fits) > MOST


def _share_of(column: pl.Series, pattern: str) -> bool:
    """Return whether most values are texts of a pattern."""
    texts = column.head(SEEN).drop_nulls().cast(pl.String)
    return len(texts) > 0 and _share(texts.str.contains(pattern)) > MOST


def _finer(table: Table, exact: list[str], usual: list[str]) -> list[str]:
    """Return the columns of exact times unless one of a usual name has dates that they refine."""
    if len(usual) != 1:
        return exact
    days, *times = (
        table[name].head(SEEN).cast(pl.String).str.replace_all(r"\D", "").str.head(8)
        for name in (*usual, *exact)
    )
    return [name for name, own in zip(exact, times, strict=True) if bool((own == days).all())]


def _named(name: str, table: Table) -> str:
    if name in table:
        return name
    words = Words("name the column of times with {time}")
    raise InputError(no_column(name, table.names, table.origin), words)


def _earlier(table: Table, names: Sequence[str]) -> list[str]:
    """Return the first of two columns whose times begin and end spans, or one of one; else none."""
    if len(names) != 2:
        return list(names) if len(names) == 1 else []
    first, second = (table[name].head(SEEN).cast(pl.String) for name in names)
    shifted = first.slice(1) == second.head(len(second) - 1)
    if bool((first == second).all()) or (len(shifted) and _share(shifted) > 0.5):
        return [names[0]]
    words = [re.search(r"(?i)start|begin|from|von|debut|inicio|pick-?up", name) for name in names]
    return [name for name, word in zip(names, words, strict=True) if word][:1]


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
        (year, month, day), clock = map(_whole, parts[:3]), parts[3:]
        named_so = not month.str.contains(r"^\d*$").all()
        day = day + " " + month + " " + year if named_so else year + "-" + month + "-" + day
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
