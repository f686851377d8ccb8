"""Tables whose rows are events, such as trips, calls and sessions: their cells, and what to ask."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, Words, some
from data_prep.readers.columns import CELLS, ID_NAME, named, require_columns, which_of
from data_prep.readers.ids import (
    AREAS,
    START,
    cells_of,
    is_named_id,
    is_whole,
    may_be_ids,
    named_after_start,
    say_cell,
)
from data_prep.readers.options import CELL, TableOptions
from data_prep.readers.origin import StepLog
from data_prep.readers.table import Table, is_text, n_known
from data_prep.readers.units import is_service

COUNT = "count"
"""Name of the number of records of a step and cell."""

DURATION = r"(?i:duration|dauer|durée|duracion|holding.?time|trip.?(seconds|time)|elapsed)"
"""Pattern of names of the length of an event."""

log = StepLog("layout")


def find_events(table: Table, options: TableOptions) -> Table:
    """Return the events of a table, with its cells.

    Those that are counted get a column of ones. Cells are named by the given column, by one with a
    usual name, also of a trip's begin, or by the only one of repeated texts or ids; a table without
    any has one cell. Events without a cell are left out and counted in a notice.

    Raises:
        InputError: if several columns may name the cells, or the layout has no records.
    """
    cell, values, origin = options.cell, options.chosen, table.origin
    if table.kind not in ("auto", "long"):
        remedy = Words("leave out {layout}, or give {agg:sum}", layout=table.kind)
        raise InputError(f"{origin.name}: events are rows of a long table only; ", remedy)
    found = [cell] if cell in table or cell != CELL else cells_of_events(table)
    if len(found) > 1:
        raise which_of(f"{origin.name}: %s may name the cells of the records; ", "cell", found)
    where = cells_of(table, found[0] if found else cell)
    if found:
        require_columns(table.names, where, origin)
        no_cell = pl.any_horizontal(pl.col(where).is_null())
        empty = table.columns.select(no_cell).to_series().to_numpy()
        if empty.any() and not empty.all():
            log.warning(
                origin,
                f"left out {empty.sum()} of {len(table)} events without a cell in column "
                f"{','.join(where)!r}, the first in {origin.place(int(empty.argmax()))}",
            )
            table = table.take(np.flatnonzero(~empty))
    if found and cell == CELL:
        say_cell(table, where)
    kind = "long" if found else "services"
    if options.agg == COUNT:
        table = table.with_columns(pl.Series(COUNT, np.ones(len(table))))
        return table.with_(kind=kind, cells=where, values=(COUNT,))
    places = [c for c in table.names if c not in (table.time, *where) and _is_place(c)]
    places = [c for c in places if c not in (values or ())]
    if places:
        log.info(origin, f"not taken as values: {', '.join(places)}")
    return table.without(places).with_(kind=kind, cells=where)


def cells_of_events(table: Table) -> list[str]:
    """Return the columns that may name the cells of events, without those that name the same."""
    others = [c for c in table.names if c not in (table.time, *table.cells)]
    others = [c for c in others if table[c].null_count() < len(table)]
    found = named(others, CELLS) or named_after_start(others)
    ids = [c for c in others if is_text(table[c]) or (is_whole(table[c]) and is_named_id(c))]
    found = found or [c for c in ids if may_be_ids(table[c]) and n_known(table[c]) > 1]
    counts = {c: n_known(table[c]) for c in found}
    return [
        c
        for i, c in enumerate(found)
        if not any(table.n_unique(f, c) == counts[c] for f in found[:i])
    ]


def _is_place(column: str) -> bool:
    """Return whether a column holds ids or degrees of the begin or end of a trip.

    >>> [_is_place(c) for c in ("end_station_id", "Pickup Centroid Latitude", "start_lat", "Fare")]
    [True, True, True, False]
    """
    end = r"(?i)^(end(ed)?|stop|to|dest(ination)?|drop-?off|do)[_ ]*(?=.{2})"
    bare = re.sub(end, "", re.sub(START, "", column))
    of_trip = bare != column and bool(named([bare], CELLS | AREAS))
    return (
        of_trip or re.search(r"(?i)(^|[_ ])(lat|lon|lng|latitude|longitude)$", column) is not None
    )


def ask_for_events(error: InputError, table: Table, cell: str) -> InputError | None:
    """Return an error that shows how to count events or add them up; None if no row looks like one.

    `error` is what is wrong if each row is a record of an even step, `cell` is the option.
    """
    sign = _sign_of_event(table)
    if not sign or not any(map(error.names, ("allow_gaps", "resample", "duplicates"))):
        return None
    parts = table.cells if table.kind == "long" else ()
    places = n_known(table[table.time]) * (table.n_unique(*parts) if parts else 1)
    if not error.names("resample") and 2 * len(table) > places:  # Most have a row.
        return None
    unnamed = cell == CELL and (cell not in table or table.kind == "services")
    cells = cells_of_events(table) if unnamed else []
    others = [c for c in table.names if c not in table.cells and not _is_place(c)]
    sizes = r"(?i:fare|cost|price|amount|distance|miles|km|weight|length|tip|toll|total)"
    amounts = [c for c in others if is_service(c) or re.search(rf"{DURATION}|{sizes}", c)]
    numbers = any(table[c].dtype.is_numeric() for c in amounts)
    total = Words(", add up their values with {resample:1h} {agg:total}") if numbers else ""
    which: list[str | Words] = []
    if len(cells) > 1:
        which = [Words(", and {cell}", cell=cells[0]), f" or another ({some(cells[1:], 3)})"]
    tail: list[str | InputError] = ["; if they are none: ", error]
    return InputError(
        f"{table.origin.name}: rows look like events, such as trips or sessions: {sign}; ",
        Words("count them with {resample:1h} {agg:count}"),
        total,
        *which,
        *([] if "names events" in sign else tail),
    )


def _sign_of_event(table: Table) -> str:
    """Return what shows that each row is an event: its own id, its end, or how long it lasts."""
    ends = r"(?i)(^|[^a-z])(end|ended|stop|finish|finished|drop-?off|release|ende|fin)([^a-z]|$)"
    for c in (c for c in table.names if c != table.time):
        column = table[c]
        if re.search(r"(?i)(^|[^a-z])event", c) and 1 < 10 * n_known(column) <= len(table):
            return f"column {c!r} names events"
        known = not column.null_count() and len(table) > 1
        if re.search(ID_NAME, c) and known and not table.repeats(c):
            return f"each has its own {c!r}"
        if re.search(DURATION, c) and column.dtype.is_numeric() and n_known(column) > 1:
            return f"each has a {c!r}"
        if re.search(ends, c) and _lasts_differ(table[table.time], column):
            return f"each has its own {c!r}"
    return ""


def _lasts_differ(begin: pl.Series, end: pl.Series) -> bool:
    """Return whether spans between two columns of times are not always equally long."""
    times = []
    for column in (begin.head(200), end.head(200)):
        texts = pd.Series(column.cast(pl.String).to_list(), dtype=object)
        times.append(pd.to_datetime(texts, format="mixed", errors="coerce", utc=True))
    spans = (times[1] - times[0]).dropna()
    return len(spans) > len(times[0]) / 2 and spans.nunique() > 1
