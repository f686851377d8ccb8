"""Find the columns of times of a table, and the rows that have none.

A date and a time of day in two columns become one time; times that name columns become rows. Rows
that are no records are left out and named: totals, notes, repeated names.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import polars as pl

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.readers.columns import (
    DATE_PARTS,
    HOURS,
    MINUTES,
    TIMES,
    looks_like_values,
    named,
    no_column,
    which_of,
)
from data_prep.readers.head import times_across
from data_prep.readers.options import TIME, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table
from data_prep.readers.written_times import CLOCK_LIKE, MONTH, SIX_DIGITS, TIME_LIKE

CLOCK = "hour"
"""Name of a column of times of day that were the names of columns."""

HOUR_NAME = rf"(?i)({CLOCK_LIKE})|^(hour|hr|h)[ _]?([01]?\d|2[0-4])$|^([01]?\d|2[0-4])h$"
SPAN_NAME = r"([01]\d|2[0-4]):?([0-5]\d) ?[-–_] ?(?:[01]\d|2[0-9]):?[0-5]\d"
FEWEST_ACROSS = 12
"""Times of day that make columns a day's values rather than services or cells."""

PARTS_OF_A_DAY = (24, 48, 96, 144, 288)
"""Numbers of columns that may be the steps of a day."""

SEEN = 2000
"""Number of values that show whether a column holds times."""

MOST = 0.8
"""Share of values above which a column is one of times, as totals and notes stand among them."""

MIDNIGHT = r"[T ]0?0:00(:00(\.0+)?)?$"

TOTAL = (
    r"(?i)^\s*(grand |sub-?)?(total|sum|average|avg|mean|overall|summe|gesamt|mittelwert|totale|"
    r"somme|moyenne|promedio|media|minimum|maximum|min|max|durchschnitt|合计|总计|平均)s?\b.{0,30}$"
    r"|^.{1,60} (sub-?)?(total|ergebnis|gesamt)$"
    r"|^\s*[øØΣ∑]\s*$"
)
"""Pattern of what names a row or cell of totals."""

log = StepLog("rows")


def times_down(table: Table) -> Table:
    """Return a long table of one that has a column for each time, or for each hour of a day."""
    across, name = times_across(table.names), TIME
    if across and TIME in table:
        if kind_of(table[TIME]) not in ("clock", "hour") or CLOCK in table:
            return table  # Its rows have times already.
        table = table.rename({TIME: CLOCK})
    if not across:
        hours = [c for c in table.names if re.match(HOUR_NAME, c)]
        clocks = {c: re.sub(r"(?i)^(hour|hr|h)[ _]?|h$", "", c) for c in hours}
        if len(hours) < FEWEST_ACROSS:
            clocks = _spans_of_a_day(table.names, table.origin) or _numbered(table.columns)
        if not clocks or CLOCK in table:
            return table
        table, across, name = table.rename(clocks), list(clocks.values()), CLOCK
    what = "times" if name == TIME else "times of day"
    log.info(table.origin, "%d columns are %s, %s to %s", len(across), what, across[0], across[-1])
    others = [name for name in table.names if name not in across]
    if totals := _totals(table.columns.select(others), table.columns.select(across)):
        log.warning(table.origin, "left out as totals of a row: %s", some(totals, 5))
        others = [name for name in others if name not in totals]
    texts = table.columns.with_columns(pl.col(across).cast(pl.String))
    long = texts.unpivot(across, index=others, variable_name=name, value_name="value")
    rows = np.tile(np.arange(len(table)), len(across))
    return table.with_(columns=long, origin=table.origin.of_rows(rows), beside=others)


def _totals(others: pl.DataFrame, values: pl.DataFrame) -> list[str]:
    """Return the columns of numbers that are the sum or the mean of most rows of values.

    >>> values = pl.DataFrame({"h0": [1, 2], "h1": [3, 5]})
    >>> _totals(pl.DataFrame({"id": [4, 4], "sum": [4, 7], "mean": [2.0, 3.5]}), values)
    ['sum', 'mean']
    """
    numbers = values.cast(pl.Float64, strict=False)
    rows = numbers.sum_horizontal().to_numpy(), numbers.mean_horizontal().to_numpy()
    known = np.isfinite(rows[1]) & (rows[0] != 0)
    found = []
    for column in others.iter_columns():
        own = column.cast(pl.Float64, strict=False).to_numpy()[known]
        if any(len(own) > 1 and np.isclose(own, r[known], atol=0.01).mean() > MOST for r in rows):
            found.append(column.name)
    return found


def _spans_of_a_day(columns: Sequence[str], origin: Origin) -> dict[str, str]:
    """Return the begins of columns such as 0500-0515, equally far apart; empty without them.

    After midnight a day of traffic goes on: there 00:15 is 24:15 of the row's date.

    >>> names = [f"{h % 24:02}00-{(h + 1) % 24:02}00" for h in range(5, 26)]
    >>> list(_spans_of_a_day(["Station", *names], Origin()).items())[-2:]
    [('0000-0100', '24:00'), ('0100-0200', '25:00')]
    """
    found = {c: match for c in columns if (match := re.fullmatch(SPAN_NAME, c.strip()))}
    minutes = np.array([60 * int(m[1]) + int(m[2]) for m in found.values()])
    lengths = np.unique(np.diff(minutes) % (24 * 60))
    if len(found) < FEWEST_ACROSS or len(lengths) > 1:
        return {}
    if later := [c for c, ends in zip(found, minutes < minutes[0], strict=True) if ends]:
        log.warning(
            origin,
            "columns %s to %s follow the end of the day and are of the day after the row's date",
            later[0],
            later[-1],
        )
    minutes += 24 * 60 * (minutes < minutes[0])
    return {c: f"{m // 60:02}:{m % 60:02}" for c, m in zip(found, minutes, strict=True)}


def _numbered(table: pl.DataFrame) -> dict[str, str]:
    """Return the time of day of columns such as V00 to V95, which fill a day; empty without them.

    Dates stand several times, so the columns are no cells.

    >>> names = {f"V{i:02}": [1.0, 2.0] for i in range(48)}
    >>> list(_numbered(pl.DataFrame({"date": ["2024-01-31"] * 2, **names})).values())[:3]
    ['00:00', '00:30', '01:00']
    """
    found = {c: match for c in table.columns if (match := re.fullmatch(r"(\D{0,12})(\d{1,3})", c))}
    prefixes = Counter(match[1] for match in found.values())
    prefix, n = prefixes.most_common(1)[0] if prefixes else ("", 0)
    numbers = {c: int(match[2]) for c, match in found.items() if match[1] == prefix}
    first = min(numbers.values(), default=0)
    if n not in PARTS_OF_A_DAY or first > 1 or [*numbers.values()] != [*range(first, first + n)]:
        return {}
    if not any(kind_of(c) == "date" and c.is_duplicated().any() for c in table.iter_columns()):
        return {}
    minutes = {c: number * (24 * 60 // n) for c, number in numbers.items()}
    return {c: f"{m // 60:02}:{m % 60:02}" for c, m in minutes.items()}


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
    hours = texts.str.contains(r"^([01]?\d|2[0-4])(\.0)?$")
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
        found += _minutes(table)
    if not found and len(usual or dates) > 1:
        unclear = usual or dates
        clocks = named(unclear, HOURS)
        if len(unclear) == 2 and len(clocks) == 1:
            unclear = [*unclear, ",".join(sorted(unclear, key=lambda c: c in clocks))]
        raise which_of(f"{table.origin.name}: %s may hold the times; ", "time", unclear)
    if found and found != [TIME]:
        *others, last = map(repr, found)
        log.info(
            table.origin,
            "using column%s %s for the times; %s",
            "s" * (len(found) > 1),
            f"{', '.join(others)} and {last}" if others else last,
            Words("pass {time} for another"),
        )
        if ends := [c for c in found if _ends_steps(table[c])]:
            log.info(
                table.origin,
                "%s names the ends of steps, which are kept: the value of 08:00 is of what came "
                "before",
                ends[-1],
            )
    return found or ([TIME] if TIME in columns else [])


def _ends_steps(column: pl.Series) -> bool:
    """Return whether a column holds the ends of steps: by its name, or as hours 1 to 24.

    >>> _ends_steps(pl.Series("Stunde", [1, 24])), _ends_steps(pl.Series("Period End", ["08:00"]))
    (True, True)
    >>> _ends_steps(pl.Series("hour", [0, 23])), _ends_steps(pl.Series("Weekend", ["08:00"]))
    (False, False)
    """
    if re.search(r"(?i)(^|[^a-z])(end|ending|ende|fin)([^a-z]|$)", column.name):
        return True
    return _are_within(column, 1, 24) and bool(column.head(SEEN).cast(pl.String).eq("24").any())


def _minutes(table: Table) -> list[str]:
    """Return the column of minutes of an hour, if there is one."""
    found = [c for c in named(table.names, MINUTES) if _are_within(table[c], 0, 59)]
    return found if len(found) == 1 else []


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


def drop_rows(table: Table) -> Table:
    """Leave out rows that are no records, and log what they are and how many.

    Such a row has no time, and is empty, repeats the names of the columns, has a word such as
    Total, or is a note: text in one column. In a table without times it begins with such a word.
    """
    odd = pl.Series(np.zeros(len(table), dtype=bool))
    if not table.times and table.names and table.columns.dtypes[0] == pl.String:
        odd = table.columns.to_series(0).str.contains(TOTAL).fill_null(value=False)
    for column in (table[name] for name in table.times):
        odd |= column.is_null()
        if column.dtype == pl.String:
            distinct = column.unique().drop_nulls()
            like = distinct.str.contains(rf"{TIME_LIKE}|{CLOCK_LIKE}|{MONTH}")
            wrong = distinct.filter(~like & ~distinct.str.contains(r"^\s*\d+([.,]\d+)?\s*$"))
            if len(wrong):
                odd |= column.is_in(wrong.implode())
    if not odd.any():
        return table
    reasons: dict[str, list[int]] = {}
    for row in np.flatnonzero(odd.to_numpy()).tolist():
        if reason := _no_record(table.names, table.columns.row(row), table.times):
            reasons.setdefault(reason, []).append(row)
    if not reasons:
        return table
    for reason, rows in reasons.items():
        first = table.columns.row(rows[0])
        shown = " ".join(" ".join(str(f) for f in first if f is not None).split())
        say = log.info if reason == "empty" else log.warning
        say(
            table.origin,
            "left out %s: %s, the first in %s %d%s",
            counted(len(rows), "row"),
            reason,
            table.origin.unit,
            table.origin.number(rows[0]),
            f" ({shown:.50})" if shown else "",
        )
    left = np.concatenate([*reasons.values()])
    return table.take(np.setdiff1d(np.arange(len(table)), left))


def _no_record(names: Sequence[str], row: Sequence[object], times: Sequence[str]) -> str:
    """Return why a row without a time is no record; empty if it may be one."""
    filled = {name: str(value) for name, value in zip(names, row, strict=True) if value is not None}
    if not filled:
        return "empty"
    if all(name.endswith(value.strip()) for name, value in filled.items()):
        return "the columns' names again"
    words = [v for v in filled.values() if re.search(r"[^\W\d_]{3}", v)]
    if any(re.match(TOTAL, value) for value in filled.values()):
        return "totals"
    if words and len(filled) == 1 and {*filled} <= {*times[:1], names[0]}:
        return "notes"
    return ""
