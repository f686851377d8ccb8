"""Tables whose rows are events, such as trips, calls and sessions: their cells, and what to ask."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, some
from data_prep.readers.columns import CELLS, ID_NAME, Origin, is_text, named, which_of
from data_prep.readers.layout import (
    AREAS,
    START,
    Layout,
    cells_of,
    find_layout,
    is_named_id,
    is_whole,
    may_be_ids,
    named_after_start,
    say_cell,
)
from data_prep.readers.options import CELL

COUNT = "count"
"""Name of the number of records of a step and cell."""

END = r"(?i)^(end(ed)?|stop|to|dest(ination)?|drop-?off|do)[_ ]*(?=.{2})"
"""Begin of a name of what belongs to the end of a trip."""

END_TIME = r"(?i)(^|[^a-z])(end|ended|stop|finish|finished|drop-?off|release|ende|fin)([^a-z]|$)"
DURATION = r"(?i)duration|dauer|durée|duracion|holding.?time|trip.?(seconds|time)|elapsed"
"""Patterns of names of the end and of the length of an event."""

MOST_FILLED = 0.5
"""Share of times and cells with a row up to which rows at even times may be events."""

SOME_ROWS = 200
"""Rows that show whether events last equally long."""

log = logging.getLogger(__name__)


def find_records(
    df: pd.DataFrame, layout: Layout, values: Sequence[str] | None, origin: Origin, *, counts: bool
) -> tuple[pd.DataFrame, Layout, Origin]:
    """Return the events of a table, their layout and where their rows stand.

    Those that are counted get a column of ones. Cells are named by the given column, by one with a
    usual name, also of a trip's begin, or by the only one of repeated texts or ids; a table without
    any has one cell. Events without a cell are left out and counted in a notice.

    Args:
        df: the table.
        layout: what was given: the kind or `"auto"`, the columns of times and of cells.
        values: columns to add up, or None for all.
        origin: where its rows stand.
        counts: whether events are counted instead of added up.

    Raises:
        InputError: if several columns may name the cells, or the layout has no records.
    """
    if layout.kind not in ("auto", "long"):
        remedy = Words("leave out {layout}, or give {agg:sum}", layout=layout.kind)
        raise InputError(f"{origin.name}: events are rows of a long table only; ", remedy)
    time, cell = layout.time, layout.cell
    found = [cell] if cell in df.columns or cell != CELL else cells_of_events(df, time)
    if len(found) > 1:
        raise which_of(f"{origin.name}: %s may name the cells of the records; ", "cell", found)
    if found:
        empty = df[cells_of(df, found[0])].isna().any(axis=1).to_numpy()
        df, origin = _without_cell(df, empty, found[0], origin)
    for name in found if cell == CELL else ():
        say_cell(df, name, origin)
    kind, where = "long" if found else "services", found[0] if found else cell
    if counts:
        return df.assign(**{COUNT: 1.0}), Layout(kind, time, where, [COUNT]), origin
    places = [c for c in df.columns if c not in (time, *cells_of(df, where)) and _is_place(c)]
    places = [c for c in places if c not in (values or ())]
    if places:
        log.info("%s: not taken as values: %s", origin.name, ", ".join(places))
    df = df.drop(columns=places)
    return df, find_layout(df, kind, time, where, values, origin), origin


def _without_cell(
    df: pd.DataFrame, empty: np.ndarray, cell: str, origin: Origin
) -> tuple[pd.DataFrame, Origin]:
    """Leave out events whose place is not known, unless no event has one."""
    if not empty.any() or empty.all():
        return df, origin
    first = int(empty.argmax())
    log.warning(
        "%s: left out %d of %d events without a cell in column %r, the first in %s",
        origin.name, empty.sum(), len(df), cell, origin.place(first),
    )  # fmt: skip
    rows = np.flatnonzero(~empty)
    return df.iloc[rows].reset_index(drop=True), origin.of_rows(rows)


def cells_of_events(df: pd.DataFrame, time: str) -> list[str]:
    """Return the columns that may name the cells of events, without those that name the same."""
    others = [c for c in df.columns if c != time and df[c].notna().any()]
    found = named(others, CELLS) or named_after_start(others)
    ids = [c for c in others if is_text(df[c]) or (is_whole(df[c]) and is_named_id(c))]
    found = found or [c for c in ids if may_be_ids(df[c]) and df[c].nunique() > 1]
    counts = {c: df[c].nunique() for c in found}
    return [
        c
        for i, c in enumerate(found)
        if not any(len(df[[f, c]].drop_duplicates()) == counts[c] for f in found[:i])
    ]


def _is_place(column: str) -> bool:
    """Return whether a column holds ids or degrees of the begin or end of a trip.

    >>> [_is_place(c) for c in ("end_station_id", "Pickup Centroid Latitude", "start_lat", "Fare")]
    [True, True, True, False]
    """
    bare = re.sub(END, "", re.sub(START, "", column))
    of_trip = bare != column and bool(named([bare], CELLS | AREAS))
    return (
        of_trip or re.search(r"(?i)(^|[_ ])(lat|lon|lng|latitude|longitude)$", column) is not None
    )


def ask_for_events(
    error: InputError, df: pd.DataFrame, found: Layout, cell: str, origin: Origin
) -> InputError | None:
    """Return an error that shows how to count events or add them up; None if no row looks like one.

    `error` is what is wrong if each row is a record of an even step.
    """
    time = found.time
    sign = _sign_of_event(df, time)
    if not sign or not any(map(error.names, ("allow_gaps", "resample", "duplicates"))):
        return None
    parts = cells_of(df, found.cell) if found.kind == "long" else []
    places = df[time].nunique() * (len(df[parts].drop_duplicates()) if parts else 1)
    if not error.names("resample") and len(df) > MOST_FILLED * places:
        return None
    cells = cells_of_events(df, time) if cell == CELL and cell not in df.columns else []
    numbers = [c for c in df.columns if types.is_numeric_dtype(df[c]) and not _is_place(c)]
    total = Words(", add up their values with {resample:1h} {agg:total}") if numbers else ""
    which: list[str | Words] = []
    if len(cells) > 1:
        which = [Words(", and {cell}", cell=cells[0]), f" or another ({some(cells[1:], 3)})"]
    return InputError(
        f"{origin.name}: rows look like events, such as trips or sessions: {sign}; ",
        Words("count them with {resample:1h} {agg:count}"),
        total,
        *which,
        "; if they are none: ",
        error,
    )


def _sign_of_event(df: pd.DataFrame, time: str) -> str:
    """Return what shows that each row is an event: its own id, its end, or how long it lasts."""
    for c in (c for c in df.columns if c != time):
        if re.search(ID_NAME, c) and len(df) > 1 and df[c].notna().all() and df[c].is_unique:
            return f"each has its own {c!r}"
        if re.search(DURATION, c) and types.is_numeric_dtype(df[c]) and df[c].nunique() > 1:
            return f"each has a {c!r}"
        if re.search(END_TIME, c) and _lasts_differ(df[time], df[c]):
            return f"each has its own {c!r}"
    return ""


def _lasts_differ(begin: pd.Series, end: pd.Series) -> bool:
    """Return whether spans between two columns of times are not always equally long."""
    times = [
        pd.to_datetime(c.head(SOME_ROWS).astype(str), format="mixed", errors="coerce", utc=True)
        for c in (begin, end)
    ]
    spans = (times[1] - times[0]).dropna()
    return len(spans) > len(begin.head(SOME_ROWS)) / 2 and spans.nunique() > 1
