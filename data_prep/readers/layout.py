"""Recognise the layout of a table: what its columns are, or what to ask."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, some
from data_prep.readers.columns import (
    CALENDAR,
    CELLS,
    Origin,
    is_text,
    named,
    no_column,
    number_cells,
    value_columns,
    which_of,
)
from data_prep.readers.options import CELL
from data_prep.readers.sites import read_properties
from data_prep.readers.time_columns import TOTAL
from data_prep.readers.units import is_service
from data_prep.readers.written_times import CLOCK_LIKE, are_times

log = logging.getLogger(__name__)

SHOWN = 12


@dataclass(frozen=True)
class Layout:
    """Meaning of the columns of a table.

    Args:
        kind: `"long"`, one row per time and cell; `"wide"`, one column per cell; `"services"`, one
            column per service of a single cell; or `"auto"` if it is still to be found.
        time: column of times.
        cell: column of cells of a long table, or several that name them together.
        values: the other columns to take.
    """

    kind: str
    time: str
    cell: str
    values: list[str]


def no_time(df: pd.DataFrame, time: str, origin: Origin) -> InputError:
    """Return the error for a table without a column of times."""
    return InputError(
        no_column(time, df.columns, origin),
        Words(
            "name the column of times with {time} or, if there is none, give the first time and "
            "the step, such as {start:2024-01-01T00:00} {step:1h}"
        ),
    )


def unfold(
    df: pd.DataFrame, kind: str, time: str, cell: str, origin: Origin
) -> tuple[pd.DataFrame, str]:
    """Return a long table of one whose columns have two names, of a cell and of a service.

    Also return the kind of the layout, `"long"` if it was such a table.
    """
    levels = {c: origin.levels[c] for c in df.columns if c in origin.levels and c != time}
    keys = [c for c in df.columns if c not in levels]
    if not levels or kind in ("long", "wide", "services") or cell in keys:
        return df, kind
    if kind == "auto" and named([k for k in keys if k != time], CELLS):
        return df, "long"
    upper, lower = ({pair[i] for pair in levels.values()} for i in (0, 1))
    above, below = (sum(map(is_service, names)) / len(names) for names in (upper, lower))
    if kind == "auto" and (above > 0.5) == (below > 0.5):
        raise InputError(
            f"{origin.name}: two rows of names, {some(sorted(upper), 4)} above "
            f"{some(sorted(lower), 4)}; ",
            Words(
                "pass {layout:cells-above} if the upper ones are cells, {layout:services-above} if "
                "they are services, {layout:wide} if each column is a cell"
            ),
        )
    cells_above = kind == "cells-above" or (kind == "auto" and below > 0.5)
    at, other = (0, 1) if cells_above else (1, 0)
    frames = []
    for name in dict.fromkeys(pair[at] for pair in levels.values()):
        own = {c: pair[other] for c, pair in levels.items() if pair[at] == name}
        frames.append(df[[*keys, *own]].rename(columns=own).assign(**{CELL: name}))
    log.info(
        "%s: two rows of names: the %s are cells (%s), the others services; %s",
        origin.name,
        "upper" if cells_above else "lower",
        some(sorted(upper if cells_above else lower), 5),
        Words("pass {layout:services-above}" if cells_above else "pass {layout:cells-above}"),
    )
    return pd.concat(frames, ignore_index=True), "long"


def find_layout(
    df: pd.DataFrame, kind: str, time: str, cell: str, values: Sequence[str] | None, origin: Origin
) -> Layout:
    """Recognise a table's layout, and log it; ask for options if the columns leave it open."""
    if kind == "auto":
        _ask_if_wide(df, time, cell, origin)
        if cell in df.columns or cell != CELL:
            kind = "long"
        elif (found := _find_cell(df, time, origin)) is not None:
            kind, cell = "long", found
    elif kind == "long" and cell == CELL and cell not in df.columns:
        cell = _find_cell(df, time, origin) or cell
    keys = [time, *cells_of(df, cell)] if kind == "long" else [time]
    properties = read_properties(df, [*keys, *(values or ())]) if kind == "long" else {}
    columns = value_columns(df.drop(columns=list(properties)), keys, values, origin)
    reason = ""
    if kind == "auto" and (total := total_among(df, columns)):
        kind, reason = "wide", f"{total} is the sum of the others"
    elif kind == "auto":
        ids = [c for c in columns if is_named_id(c) and df[c].duplicated().any()]
        kind, reason = _of_wide(columns, ids, origin)
    if values is None:
        _show(kind, columns, reason, origin)
    return Layout(kind, time, cell, columns)


def cells_of(df: pd.DataFrame, cell: str) -> list[str]:
    """Return the column of cells, or those whose names are joined by commas."""
    parts = [part.strip() for part in cell.split(",")]
    several = cell not in df.columns and len(parts) > 1 and set(parts) <= set(df.columns)
    return parts if several else [cell]


START = r"(?i)^(start(ed)?|begin|from|origin|pick-?up|pu)[_ ]*(?=.{2})"
"""Begin of a name of what belongs to the begin of a trip."""


SHOWN_CELLS = 5

AREAS = frozenset({
    "area", "communityarea", "borough", "district", "neighborhood", "neighbourhood", "ward",
    "censustract", "suburb", "municipality", "geohash",
})  # fmt: skip
"""Usual names of places where trips begin or end, beside those of cells."""


def named_after_start(columns: Sequence[str]) -> list[str]:
    """Return the columns that are named like cells, at the begin of a trip.

    >>> named_after_start(["start_station_name", "end_station_name", "PULocationID"])
    ['start_station_name', 'PULocationID']
    """
    bare = {c: re.sub(START, "", c) for c in columns}
    return [c for c, name in bare.items() if name != c and named([name], CELLS | AREAS)]


def _find_cell(df: pd.DataFrame, time: str, origin: Origin) -> str | None:
    """Return the column of cells, or two joined by a comma; None if the table has one cell.

    It is the one with a usual name, else one of text that makes times unique; of several, the one
    with the fewest ids, and the first of those that name the same cells.
    """
    others = [c for c in df.columns if c != time]
    usual = named(others, CELLS) or named_after_start(others)
    usual = [c for c in usual if not types.is_float_dtype(df[c])]
    if len(others) == 1 and _may_be_values(df, time, others[0]):
        return None
    repeats = bool(df[time].duplicated().any())
    if not repeats and not usual:
        return None
    found = usual
    again = df[[time, *usual]].duplicated().mean() if repeats else 0.0
    if len(usual) != 1 or len(others) == 1 or again > MOST_AGAIN:
        texts = [c for c in others if is_text(df[c]) and may_be_ids(df[c])]
        candidates = list(dict.fromkeys([*usual, *texts]))
        found = _distinguishing(df, time, candidates)
        if len(found) > 1 or (not found and len(usual) > 1):
            raise which_of(f"{origin.name}: %s may name the cells; ", "cell", found or usual)
        found = found or usual
    if not found:
        return None
    say_cell(df, found[0], origin)
    return found[0]


def say_cell(df: pd.DataFrame, joined: str, origin: Origin) -> None:
    """Log the column of cells, or those joined by a comma, with ids as the file has them."""
    parts = cells_of(df, joined)
    first = np.flatnonzero(~df[parts].duplicated() & df[parts].notna().all(axis="columns"))
    ids = df[parts].iloc[first[:SHOWN_CELLS]].convert_dtypes()
    shown = origin.of_rows(first[:SHOWN_CELLS])
    for part in parts:
        if types.is_numeric_dtype(ids[part]) and (texts := shown.as_written(part)) is not None:
            ids[part] = texts.to_list()
    names = ["/".join(map(str, row)) for row in ids.itertuples(index=False)]
    more = f", … ({len(first)} in all)" if len(first) > SHOWN_CELLS else ""
    other = Words("pass {cell} for another")
    if len(parts) > 1:
        other = Words("pass {cell} {duplicates:sum} to add up the others", cell=parts[0])
    log.info(
        "%s: using column %r for the cells: %s%s; %s",
        origin.name,
        joined,
        ", ".join(f"{name:.59}…" if len(name) > 60 else name for name in names),
        more,
        other,
    )


def may_be_ids(texts: pd.Series) -> bool:
    """Return whether texts occur several times and are neither times nor durations."""
    known = texts.dropna().unique().astype(str)[:SOME_TIMES].tolist()
    clocks = all(re.match(CLOCK_LIKE, text) for text in known)
    return bool(texts.duplicated().any()) and not (clocks or are_times(known))


def _distinguishing(df: pd.DataFrame, time: str, candidates: Sequence[str]) -> list[str]:
    """Return the columns, or pair of them, that tell apart rows of one time, with the fewest ids.

    Those that name the same cells as an earlier one, such as an id beside a name, are left out.
    """
    single = [c for c in candidates if not df[[time, c]].duplicated().any()]
    if not single:
        several = _distinguishing_together(df, time, candidates)
        return [",".join(several)] if several else []
    counts = {c: df[c].nunique() for c in single}
    fewest = [c for c in single if counts[c] == min(counts.values())]
    fewest.sort(
        key=lambda c: (df[c].head(1).astype(str).str.isdigit().any(), "cell" not in c.lower())
    )
    first, *rest = fewest
    return [first, *(c for c in rest if len(df[[first, c]].drop_duplicates()) > counts[c])]


MOST_PARTS = 3
"""Columns that name a cell together, such as a station, a direction and a lane."""

MOST_CANDIDATES = 8

LEAST_PRESENT = 0.8
"""Share of rows that a table has at least if whole numbers are ids and no values by chance."""

SOME_TIMES = 20
"""Times whose rows are looked at before all."""

MOST_AGAIN = 0.03
"""Share of rows whose time and id stand earlier, as in the hour that a clock shows twice."""


def _distinguishing_together(df: pd.DataFrame, time: str, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the fewest columns of text or of whole numbers that tell apart rows of one time.

    Whole numbers are ids if most times have a row for each of them, or if they are named so.
    """
    n_times = max(df[time].nunique(), 1)  # All may be missing, which is refused later.
    most = len(df) / (LEAST_PRESENT * n_times)
    numbers = [
        c
        for c in df.columns
        if c not in (time, *texts)
        and is_whole(df[c])
        and (is_named_id(c) or (n_times > 2 and not named([c], CALENDAR)))
        and 1 < df[c].nunique() <= (len(df) / 2 if is_named_id(c) else most)
    ]
    columns = [c for c in (*texts, *numbers) if "," not in c][:MOST_CANDIDATES]
    of_some_times = df[df[time].isin(df[time].unique()[:SOME_TIMES])]
    for again in (0.0, MOST_AGAIN):
        for n in range(1, MOST_PARTS + 1):
            for found in itertools.combinations(columns, n):
                if any(t[[time, *found]].duplicated().mean() > again for t in (of_some_times, df)):
                    continue
                full = len(df[[*found]].drop_duplicates()) <= most
                if full or all(c in texts or is_named_id(c) for c in found):
                    return found
    return ()


def is_whole(column: pd.Series) -> bool:
    """Return whether a column holds whole numbers without a gap, also as floats of a workbook."""
    if not types.is_float_dtype(column):
        return types.is_integer_dtype(column)
    return all(bool((c == np.floor(c)).all()) for c in (column.head(100), column))


def is_named_id(name: str) -> bool:
    """Return whether a name ends like one of an id: `PULocationID`, `Stationsnr`, `node_no`."""
    return re.search(r"(?i)id$|nr$|[ _.]no$|code$|[ _]site$|[ _]detector$", name) is not None


def _ask_if_wide(df: pd.DataFrame, time: str, cell: str, origin: Origin) -> None:
    """Raise an error if a column is named like one of cells' ids, but may be a cell itself."""
    if cell != CELL or len(df.columns) < 3:
        return
    usual = named([c for c in df.columns if c != time], CELLS)
    if found := [c for c in usual if _may_be_values(df, time, c)]:
        raise InputError(
            f"{origin.name}: {some(map(repr, found), SHOWN)} may hold the ids of cells or be a "
            "cell itself, as its numbers change and no time occurs twice; ",
            Words("say {layout:wide} if each column is a cell, {layout:long} if it holds ids"),
        )


def _may_be_values(df: pd.DataFrame, time: str, column: str) -> bool:
    """Return whether a column may be a series: no time occurs twice, and its numbers change."""
    if df[time].duplicated().any():
        return False
    found = pd.to_numeric(df[column], errors="coerce")
    return bool(found.notna().any() and found[df[column].notna()].notna().all()) and (
        found.nunique() > 1
    )


MANY = 8
"""Number of columns of one kind from which they are certainly cells."""

MOST_SERVICES = 12


def _of_wide(columns: list[str], ids: Sequence[str], origin: Origin) -> tuple[str, str]:
    """Return the kind of a table without cells and why, if its columns leave no doubt.

    Some columns may be named as `ids`, for the error.
    """
    n = len(columns)
    if n == 1 or number_cells(columns):
        return "wide", "names of cells" if n > 1 else ""
    share = sum(map(is_service, columns)) / n
    alike = len({re.sub(r"\d+", "#", column) for column in columns}) == 1
    if n >= MANY and (alike or share < 1 / 3):
        why = "alike but for numbers" if alike else "none" if share == 0 else "few"
        return "wide", why if alike else f"many beside one of times, {why} named like a quantity"
    if n <= MOST_SERVICES and share > 2 / 3 and not alike:
        return "services", "named by units or as quantities"
    raise InputError(
        f"{origin.name}: {n} columns ({some(columns, SHOWN)}) and no column of cells; ",
        Words(
            "say what they are: {layout:wide} if each is a cell, {layout:services} if they are "
            "services of one cell, or name the column of cells with {cell}",
            cell=next(iter(ids), None),
        ),
    )


def total_among(df: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return the column that is named as a total and is the sum of all others, if these are cells.

    >>> df = pd.DataFrame({"A": [1, 2], "B": [3, 5], "Grand Total": [4, 7]})
    >>> total_among(df, df.columns)
    'Grand Total'
    """
    others = [c for c in columns if not re.match(TOTAL, c)]
    if len(others) < 2 or any(map(is_service, others)):
        return ""
    for name in (c for c in columns if c not in others):
        numbers = df[list(columns)].apply(pd.to_numeric, errors="coerce")
        sums = numbers.drop(columns=name).sum(axis=1)
        if np.allclose(numbers[name], sums, atol=0.01) and sums.any():
            return name
    return ""


def _show(kind: str, columns: list[str], reason: str, origin: Origin) -> None:
    """Log how columns were understood, and why."""
    if len(columns) < 2:
        return
    what, other = ("cells", "services") if kind == "wide" else ("services", "wide")
    choose = Words("pass {values} to choose columns")
    if reason:
        choose = Words(
            "{}; pass {layout} for the other reading, {values} to choose", reason, layout=other
        )
    log.info(
        "%s: using %d columns as %s: %s; %s",
        origin.name,
        len(columns),
        what,
        some(columns, SHOWN),
        choose,
    )
