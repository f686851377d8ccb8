"""Find the columns that name the cells of a table."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import polars as pl

from data_prep.base.errors import Words
from data_prep.readers.columns import CALENDAR, CELLS, HOURS, named, which_of
from data_prep.readers.flags import is_flag
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table, as_numbers, is_float, is_text, n_known
from data_prep.readers.written_times import CLOCK_LIKE, are_times

log = StepLog("cells")


def cells_of(table: Table, cell: str) -> tuple[str, ...]:
    """Return the column of cells, or those whose names are joined by commas."""
    parts = tuple(part.strip() for part in cell.split(","))
    several = cell not in table and len(parts) > 1 and all(part in table for part in parts)
    return parts if several else (cell,)


START = r"(?i)^(start(ed)?|begin|from|origin|pick-?up|pu)[_ ]*(?=.{2})"
"""Begin of a name of what belongs to the begin of a trip."""


SHOWN_CELLS = 5

AREAS = frozenset({
    "area", "communityarea", "borough", "district", "neighborhood", "neighbourhood", "ward",
    "censustract", "suburb", "municipality", "geohash",
})  # fmt: skip
"""Usual names of places where trips begin or end; cells have further ones."""


def named_after_start(columns: Sequence[str]) -> list[str]:
    """Return the columns that are named like cells, at the begin of a trip.

    >>> named_after_start(["start_station_name", "end_station_name", "PULocationID"])
    ['start_station_name', 'PULocationID']
    """
    bare = {c: re.sub(START, "", c) for c in columns}
    return [c for c, name in bare.items() if name != c and named([name], CELLS | AREAS)]


def find_cells(table: Table) -> tuple[str, ...]:
    """Return the column of cells, or several; none if the table has one cell.

    It is the one with a usual name, else one of text that makes times unique; of several, the one
    with the fewest ids, and the first of those that name the same cells.
    """
    time = table.time
    others = [c for c in table.names if c != time]
    usual = named(others, CELLS) or named_after_start(others)
    usual = [c for c in usual if not is_float(table[c])]
    if len(others) == 1 and may_be_values(table, others[0]):
        return ()
    repeats = table.repeats(time)
    if not repeats and not usual:
        return ()
    found: list[tuple[str, ...]] = [(c,) for c in usual]
    again = table.share_repeated(time, *usual) if repeats else 0.0
    if len(usual) != 1 or len(others) == 1 or again > MOST_AGAIN:
        texts = [c for c in others if is_text(table[c]) and may_be_ids(table[c])]
        texts = [c for c in texts if not (is_flag(c) or named([c], HOURS))]
        candidates = list(dict.fromkeys([*usual, *texts]))
        found = _distinguishing(table, candidates)
        if len(found) > 1 or (not found and len(usual) > 1):
            names = [",".join(parts) for parts in found] or usual
            raise which_of(f"{table.origin.name}: %s may name the cells; ", "cell", names)
        found = found or [(c,) for c in usual]
    if not found:
        return ()
    say_cell(table, found[0])
    return found[0]


def say_cell(table: Table, parts: Sequence[str]) -> None:
    """Log the columns of cells, with ids as the file has them."""
    rows = table.columns.select(parts).with_row_index("").drop_nulls()
    first = rows.unique(parts, keep="first", maintain_order=True)
    shown = table.take(first[""].head(SHOWN_CELLS).to_numpy())
    ids = []
    for part in parts:
        column = shown[part]
        if not is_text(column) and (texts := shown.origin.as_written(part)) is not None:
            column = texts
        whole = column.dtype.is_float() and is_whole(column)
        ids.append((column.cast(pl.Int64) if whole else column).to_list())
    names = ["/".join(map(str, row)) for row in zip(*ids, strict=True)]
    more = f", … ({len(first)} in all)" if len(first) > SHOWN_CELLS else ""
    other = Words("pass {cell} for another")
    if len(parts) > 1:
        other = Words("pass {cell} {duplicates:sum} to add up the others", cell=parts[0])
    log.info(
        table.origin,
        f"using column {','.join(parts)!r} for the cells: "
        f"{', '.join(f'{name:.59}…' if len(name) > 60 else name for name in names)}{more}; ",
        other,
    )


def may_be_ids(texts: pl.Series) -> bool:
    """Return whether texts occur several times and are neither times nor durations."""
    distinct = texts.unique(maintain_order=True)
    known = distinct.drop_nulls().head(SOME_TIMES).cast(pl.String).to_list()
    clocks = all(re.match(CLOCK_LIKE, text) for text in known)
    return len(distinct) < len(texts) and not (clocks or are_times(known))


def _distinguishing(table: Table, candidates: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns, or several together, that tell apart rows of one time.

    They have the fewest ids. Those that name the same cells as an earlier one, such as an id beside
    a name, are left out.
    """
    single = [c for c in candidates if not table.repeats(table.time, c)]
    if not single:
        several = _distinguishing_together(table, candidates)
        return [several] if several else []
    counts = {c: n_known(table[c]) for c in single}
    fewest = [c for c in single if counts[c] == min(counts.values())]
    begins = {c: str(next(iter(table[c].head(1)), "")) for c in fewest}
    fewest.sort(key=lambda c: (begins[c].isdigit(), "cell" not in c.lower()))
    first, *rest = fewest
    return [(c,) for c in [first, *(c for c in rest if table.n_unique(first, c) > counts[c])]]


SOME_TIMES = 20
"""Times whose rows are looked at before all."""

MOST_AGAIN = 0.03
"""Share of rows whose time and id stand earlier, as in the hour that a clock shows twice."""


def _distinguishing_together(table: Table, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the fewest columns of text or of whole numbers that tell apart rows of one time.

    Three columns at most name a cell together, such as a station, a direction and a lane. Whole
    numbers are ids if 80 % of the times have a row for each of them, or if they are named so.
    """
    time = table.time
    n_times = max(n_known(table[time]), 1)  # All may be missing, which is refused later.
    most = len(table) / (0.8 * n_times)
    numbers = [
        c
        for c in table.names
        if c not in (time, *texts)
        and is_whole(table[c])
        and (is_named_id(c) or (n_times > 2 and not named([c], CALENDAR)))
        and (
            1 < table[c].n_unique() <= (len(table) / 2 if is_named_id(c) else most)
            or _differ_at_each_time(table, c)
        )
    ]
    columns = [c for c in (*texts, *numbers) if "," not in c][:8]
    some_times = table[time].unique(maintain_order=True).head(SOME_TIMES)
    few = table.columns.filter(table[time].is_in(some_times.implode()))
    of_some_times = table.with_(columns=few)
    for again in (0.0, MOST_AGAIN):
        for n in (1, 2, 3):
            for found in itertools.combinations(columns, n):
                parts = (of_some_times, table)
                if any(part.share_repeated(time, *found) > again for part in parts):
                    continue
                full = table.n_unique(*found) <= most
                if (
                    full
                    or all(c in texts or is_named_id(c) for c in found)
                    or (n == 1 and _differ_at_each_time(table, found[0]))
                ):
                    return found
    return ()


def _differ_at_each_time(table: Table, column: str) -> bool:
    """Return whether whole numbers are ids, as they differ at each time and are few.

    As many values by chance would repeat at some time: one that occurs in ten rows or more, with
    twenty pairs of rows of one time for each.
    """
    n_times, n_ids = n_known(table[table.time]), n_known(table[column])
    pairs = len(table) * (len(table) / max(1, n_times) - 1) / 2
    few = 10 * n_ids <= len(table) and pairs >= 20 * n_ids
    return few and not table.repeats(table.time, column)


def may_name_cells(table: Table) -> list[str]:
    """Return the columns that may tell apart rows of one time and cell."""
    known = table.cells if table.kind == "long" else ()
    others = [c for c in table.names if c not in (table.time, *known)]
    others = [c for c in others if 1 < n_known(table[c]) < len(table)]
    others = [c for c in others if "," not in c and not is_flag(c)]
    named_so = [c for c in others if is_text(table[c]) or is_named_id(c)]
    numbers = [c for c in table.names if c in table.values and not is_text(table[c])]
    others = named_so or [c for c in others if is_whole(table[c]) and numbers != [c]]
    again = table.share_repeated(table.time, *known)
    found = [c for c in others if table.share_repeated(table.time, *known, c) < again]
    return [",".join((*known, c)) for c in found]


def is_whole(column: pl.Series) -> bool:
    """Return whether a column holds whole numbers without a gap, also as floats of a workbook."""
    if column.null_count() or not column.dtype.is_float():
        return column.dtype.is_integer() and not column.null_count()
    return all(bool((c == c.floor()).all()) for c in (column.head(100), column))


def is_named_id(name: str) -> bool:
    """Return whether a name ends like one of an id: `PULocationID`, `Stationsnr`, `node_no`."""
    return re.search(r"(?i)id$|nr$|[ _.]no$|code$|[ _]site$|[ _]detector$", name) is not None


def may_be_values(table: Table, column: str) -> bool:
    """Return whether a column may be a series: no time occurs twice, and its numbers change."""
    if table.repeats(table.time):
        return False
    known = table[column].drop_nulls()
    found = as_numbers(known)
    return len(known) > 0 and not found.null_count() and found.n_unique() > 1
