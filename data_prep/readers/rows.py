"""Make the rows of a table records: times across become rows, labels above rows fill them.

Rows that are no records are left out and named: totals, notes, repeated names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence

import numpy as np
import polars as pl

from data_prep.base.errors import Words, counted, some
from data_prep.readers.columns import TIMES, named
from data_prep.readers.head import times_across
from data_prep.readers.options import CLOCK, TIME, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.table import Table
from data_prep.readers.time_columns import MOST, SEEN, are_ends, find_times, kind_of
from data_prep.readers.times import SERIALS, from_serials
from data_prep.readers.written_times import CLOCK_LIKE, MONTH, TIME_LIKE

FEWEST_ACROSS = 12
"""Times of day that make columns a day's values rather than services or cells."""

TOTAL = (
    r"(?i)^\s*(grand |sub-?)?(total|sum|average|avg|mean|overall|summe|gesamt|mittelwert|totale|"
    r"somme|moyenne|promedio|media|minimum|maximum|min|max|durchschnitt|合计|总计|平均)s?\b.{0,30}$"
    r"|^.{1,60} (sub-?)?(total|ergebnis|gesamt)$"
    r"|^\s*([ap]\.?m\.? )?peak (hour|period|volume)\b.{0,30}$"
    r"|^\s*[øØΣ∑]\s*$"
)
"""Pattern of what names a row or cell of totals."""

log = StepLog("rows")


def apply(tables: Sequence[Table], options: TableOptions) -> list[Table]:
    """Return tables of records, with the columns of their times; all have those of the first."""
    found: list[Table] = []
    for table in tables:
        table = times_down(read_serials(table, options.time))
        times = found[0].times if found else ()
        if not times or not set(times) <= set(table.names):
            times = tuple(find_times(table, options))
        if "" in table and "" not in times:
            log.info(table.origin, "the first column has no name and is left out")
            table = table.without([""])
        found.append(fill_labels(drop_rows(table.with_(times=times)), options.keys))
        log.note(table.origin, counted(len(found[-1]), "record"))
    return found


def times_down(table: Table) -> Table:
    """Return a long table of one that has a column for each time, or for each hour of a day."""
    across, name, spans = times_across(table.names), TIME, {}
    if across and TIME in table:
        if kind_of(table[TIME]) not in ("clock", "hour") or CLOCK in table:
            return table  # Its rows have times already.
        table = table.rename({TIME: CLOCK})
    if not across:
        hour = rf"(?i)({CLOCK_LIKE})|^(hour|hr|h)[ _]?([01]?\d|2[0-4])$|^([01]?\d|2[0-4])h$"
        hours = [c for c in table.names if re.match(hour, c)]
        clocks = {c: re.sub(r"(?i)^(hour|hr|h)[ _]?|h$", "", c) for c in hours}
        if len(hours) < FEWEST_ACROSS:
            spans = _spans_of_a_day(table.names, table.origin)
            clocks = spans or _numbered(table.columns)
        if not clocks or CLOCK in table:
            return table
        table, across, name = table.rename(clocks), list(clocks.values()), CLOCK
    what = "times" if name == TIME else "times of day"
    log.info(table.origin, f"{len(across)} columns are {what}, {across[0]} to {across[-1]}")
    others = [name for name in table.names if name not in across]
    if totals := _totals(table.columns.select(others), table.columns.select(across)):
        log.warning(table.origin, f"left out as totals of a row: {some(totals, 5)}")
        others = [name for name in others if name not in totals]
    texts = table.columns.with_columns(pl.col(across).cast(pl.String))
    long = texts.unpivot(across, index=others, variable_name=name, value_name="value")
    rows = np.tile(np.arange(len(table)), len(across))
    ends = across[-1] if not spans and are_ends(across) else ""
    return table.with_(columns=long, origin=table.origin.of_rows(rows), beside=others, ends=ends)


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
    span = r"([01]\d|2[0-4]):?([0-5]\d) ?[-–_] ?(?:[01]\d|2[0-9]):?[0-5]\d"
    found = {c: match for c in columns if (match := re.fullmatch(span, c.strip()))}
    minutes = np.array([60 * int(m[1]) + int(m[2]) for m in found.values()])
    lengths = np.unique(np.diff(minutes) % (24 * 60))
    if len(found) < FEWEST_ACROSS or len(lengths) > 1:
        return {}
    if later := [c for c, ends in zip(found, minutes < minutes[0], strict=True) if ends]:
        log.warning(
            origin,
            f"columns {later[0]} to {later[-1]} follow the end of the day and are of the "
            "day after the row's date",
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
    if (
        n not in (24, 48, 96, 144, 288)
        or first > 1
        or [*numbers.values()] != [*range(first, first + n)]
    ):
        return {}
    if not any(kind_of(c) == "date" and c.is_duplicated().any() for c in table.iter_columns()):
        return {}
    minutes = {c: number * (24 * 60 // n) for c, number in numbers.items()}
    return {c: f"{m // 60:02}:{m % 60:02}" for c, m in minutes.items()}


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
        of_minutes = np.abs(known * 24 * 60 - np.rint(known * 24 * 60)) <= 0.08  # Four decimals.
        are_serials = of_minutes & (known >= SERIALS[0]) & (known < SERIALS[1])
        dates = re.search(r"(?i)date|datum|fecha|日期", name)
        if len(known) < 2 or not are_serials.all() or (whole and not dates):
            continue
        written = pl.Series(from_serials(days.to_numpy()).round("min").to_numpy())
        log.info(
            table.origin,
            f"column {name!r} counts days since 1899-12-30, as Excel does, {texts[0]} is "
            f"{written[0]}; ",
            Words("pass {time} for another column"),
        )
        form = "%Y-%m-%d" if whole else "%Y-%m-%d %H:%M"
        iso = written.dt.strftime(form)
        table = table.with_columns(iso.zip_with(days.is_not_null(), texts).alias(name))
    return table


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
            log.info(table.origin, f"column {labels.name!r} has each label once, above its rows")
            table = table.with_columns(labels.forward_fill())
    return table


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
            f"left out {counted(len(rows), 'row')}: {reason}, the first in "
            f"{table.origin.unit} "
            f"{table.origin.number(rows[0])}{(f' ({shown:.50})' if shown else '')}",
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
