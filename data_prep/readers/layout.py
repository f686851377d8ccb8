"""Recognise the layout of a table: what its columns are, or what to ask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api import types

from data_prep.base.errors import InputError, Words, close_to, some
from data_prep.readers.columns import (
    CELLS,
    LATITUDES,
    LONGITUDES,
    MAX_NAMES,
    TIMES,
    Origin,
    has_comma,
    is_text,
    looks_like_values,
    named,
    number_cells,
    value_columns,
)

log = logging.getLogger(__name__)

KEPT = ("", "time", "cell", "cell_to", "lon", "lat", "adjacency")
"""Names of a cube's own variables."""


def read_places(
    df: pd.DataFrame, cell_at: np.ndarray, origin: Origin
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the longitude and latitude of each cell, `(cells,)` each; None if not known.

    `cell_at` is the position of each row's cell, `(rows,)`.
    """
    columns = [c for c in df.columns if isinstance(c, str)]
    pairs = named(columns, LONGITUDES), named(columns, LATITUDES)
    if [len(found) for found in pairs] != [1, 1]:
        return None
    degrees = [pd.to_numeric(df[found[0]], errors="coerce").to_numpy(float) for found in pairs]
    spans = [pd.Series(d).groupby(cell_at).agg(["min", "max"]) for d in degrees]
    fixed = all((span["min"] == span["max"]).all() for span in spans)
    if not fixed or any(np.abs(d).max() > most for d, most in zip(degrees, (180, 90), strict=True)):
        log.warning(
            "%s: columns %s and %s are not one place in degrees for each cell; left out",
            origin.name,
            pairs[0][0],
            pairs[1][0],
        )
        return None
    log.info("%s: %s and %s place the cells on a map", origin.name, pairs[0][0], pairs[1][0])
    lon, lat = (span["min"].to_numpy() for span in spans)
    return lon, lat


def read_properties(df: pd.DataFrame, keys: Sequence[str]) -> dict[str, pd.Series]:
    """Return the columns of text that have the same value in all rows of a cell.

    Such a column, for example `operator`, is kept as a coordinate of the cube. The first two `keys`
    are the columns of times and cells; those after them are no properties. A series has the cells
    as index.
    """
    if keys[1] not in df:
        return {}
    found = {}
    for name in df.columns:
        column = df[name]
        if name in keys or not _could_be_property(name, column):
            continue
        by_cell = column.groupby(df[keys[1]].to_numpy())
        if (by_cell.nunique() == 1).all():
            found[name] = by_cell.first()
    return found


def _could_be_property(name: object, column: pd.Series) -> bool:
    """Return whether a column holds text in all rows, and a variable can have its name."""
    usable = isinstance(name, str) and name.isprintable() and name not in KEPT and "/" not in name
    if not usable or not len(column) or not is_text(column):
        return False
    texts = column.unique()
    return all(
        isinstance(t, str) and t and "\0" not in t and not has_comma(t) for t in texts
    ) and bool(pd.to_numeric(pd.Series(texts), errors="coerce").isna().all())


CELL, TIME = "cell", "time"
LAYOUTS = ("auto", "long", "wide", "services")
SHOWN = 12


@dataclass(frozen=True)
class Layout:
    """Meaning of the columns of a table.

    Args:
        kind: `"long"`, one row per time and cell; `"wide"`, one column per cell; `"services"`, one
            column per service of a single cell.
        time: column of times.
        cell: column of cells of a long table.
        values: the other columns to take.
    """

    kind: Literal["long", "wide", "services"]
    time: str
    cell: str
    values: list[str]


def find_time(df: pd.DataFrame, time: str, origin: Origin, *, header: bool) -> str:
    """Return the column of times: the named one, else one with a usual name.

    The first column is taken if it has no name, as `DataFrame.to_csv` writes an index, or if the
    table has no header and the column holds times.
    """
    if time in df.columns:
        return time
    if df.columns[0] == "" or (not header and looks_like_values([str(df.iloc[0, 0])])):
        return str(df.columns[0])
    found = named(df.columns, TIMES) if time == TIME else []
    if len(found) == 1:
        another = Words("pass {time} for another")
        log.info("%s: using column %r for the times; %s", origin.name, found[0], another)
        return found[0]
    names = ", ".join(map(repr, df.columns[:20]))[:MAX_NAMES]
    raise InputError(
        f"{origin.name}: no column {time!r} among {names}{close_to(time, df.columns)}; ",
        Words(
            "name the column of times with {time} or, if there is none, give the first time and "
            "the step, such as {start:2024-01-01T00:00} {step:1h}"
        ),
    )


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
    keys = [time, cell] if kind == "long" else [time]
    properties = read_properties(df, [*keys, *(values or ())]) if kind == "long" else {}
    columns = value_columns(df.drop(columns=list(properties)), keys, values, origin)
    if kind == "auto":
        kind = _of_wide(columns, origin)
    if values is None:
        _show(kind, columns, origin)
    return Layout(kind, time, cell, columns)  # type: ignore[arg-type]  # one of the three by now


def _find_cell(df: pd.DataFrame, time: str, origin: Origin) -> str | None:
    """Return the column of cells, by its name or as the only text that makes times unique."""
    others = [c for c in df.columns if c != time]
    usual = [c for c in named(others, CELLS) if not types.is_float_dtype(df[c])]
    if len(others) == 1 and _may_be_values(df, time, others[0]):
        return None
    if len(usual) == 1 and len(others) > 1:
        found = usual
    elif not df[time].duplicated().any() and not usual:
        return None
    else:
        texts = [c for c in others if is_text(df[c]) and df[c].duplicated().any()]
        found = usual or [c for c in texts if not df[[time, c]].duplicated().any()]
    if len(found) == 1:
        ids = some(df[found[0]].dropna().unique(), 5)
        log.info(
            "%s: using column %r for the cells: %s; %s",
            origin.name,
            found[0],
            ids,
            Words("pass {cell} for another"),
        )
        return found[0]
    if usual or found:
        raise InputError(
            f"{origin.name}: {some(map(repr, found or usual), SHOWN)} may name the cells; ",
            Words("choose one with {cell}"),
        )
    return None


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


def _of_wide(columns: list[str], origin: Origin) -> str:
    """Return the kind of a table without cells, if the names of its columns leave no doubt."""
    if len(columns) == 1 or number_cells(columns):
        return "wide"
    raise InputError(
        f"{origin.name}: {len(columns)} columns ({some(columns, SHOWN)}) and no column of cells; ",
        Words(
            "say what they are: {layout:wide} if each is a cell, {layout:services} if they are "
            "services of one cell, or name the column of cells with {cell}"
        ),
    )


def _show(kind: str, columns: list[str], origin: Origin) -> None:
    """Log how columns were understood."""
    if len(columns) > 1:
        what = "cells" if kind == "wide" else "services"
        log.info(
            "%s: using %d columns as %s: %s; %s",
            origin.name,
            len(columns),
            what,
            some(columns, SHOWN),
            Words("pass {values} to choose columns"),
        )
