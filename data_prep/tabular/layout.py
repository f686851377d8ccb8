"""Recognition of the layout of a table: what its columns are, or what to ask."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd
from pandas.api import types

from data_prep.errors import InputError, close_to
from data_prep.tabular.advice import looks_like_values
from data_prep.tabular.columns import MAX_NAMES, is_text, value_columns
from data_prep.tabular.names import CELLS, TIMES, named, number_cells
from data_prep.tabular.origin import Origin
from data_prep.tabular.places import read_properties
from data_prep.text import some

CELL, TIME = "cell", "time"
LAYOUTS = ("auto", "long", "wide", "services")
SHOWN = 12

log = logging.getLogger(__name__)


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

    Raises:
        InputError: if there is none, or several have usual names.
    """
    if time in df.columns:
        return time
    if df.columns[0] == "" or (not header and looks_like_values([str(df.iloc[0, 0])])):
        return str(df.columns[0])
    found = named(df.columns, TIMES) if time == TIME else []
    if len(found) == 1:
        log.info("%s: using column %r for the times; --time names another", origin.name, found[0])
        return found[0]
    names = ", ".join(map(repr, df.columns[:20]))[:MAX_NAMES]
    raise InputError(
        f"{origin.name}: no column {time!r} among {names}{close_to(time, df.columns)}; "
        "name the column of times with --time or, if there is none, give the first time and the "
        "step, such as --start 2024-01-01T00:00 --step 1h"
    )


def find_layout(
    df: pd.DataFrame,
    kind: str,
    time: str,
    cell: str,
    values: Sequence[str] | None,
    origin: Origin,
) -> Layout:
    """Recognise a table's layout, and log what was recognised.

    Args:
        df: the table.
        kind: one of `LAYOUTS`.
        time: its column of times.
        cell: name of its column of cells.
        values: columns to take; None takes all that hold numbers.
        origin: location of the rows.

    Raises:
        InputError: naming the options to choose with, if the columns leave it open.
    """
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
            "%s: using column %r for the cells: %s; --cell names another",
            origin.name,
            found[0],
            ids,
        )
        return found[0]
    if usual or found:
        raise InputError(
            f"{origin.name}: {some(map(repr, found or usual), SHOWN)} may name the cells; choose "
            "one with --cell"
        )
    return None


def _ask_if_wide(df: pd.DataFrame, time: str, cell: str, origin: Origin) -> None:
    """Raise an error if a column is named like one of cells' ids, but may be a cell itself.

    Raises:
        InputError: naming the options to choose with.
    """
    if cell != CELL or len(df.columns) < 3:
        return
    usual = named([c for c in df.columns if c != time], CELLS)
    if found := [c for c in usual if _may_be_values(df, time, c)]:
        raise InputError(
            f"{origin.name}: {some(map(repr, found), SHOWN)} may hold the ids of cells or be a "
            "cell itself, as its numbers change and no time occurs twice; say --layout wide if "
            "each column is a cell, --layout long if it holds ids"
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
        f"{origin.name}: {len(columns)} columns ({some(columns, SHOWN)}) and no column of cells; "
        "say what they are: --layout wide if each is a cell, --layout services if they are "
        "services of one cell, or --cell NAME if a column names the cells"
    )


def _show(kind: str, columns: list[str], origin: Origin) -> None:
    """Log how columns were understood."""
    if len(columns) > 1:
        what = "cells" if kind == "wide" else "services"
        log.info(
            "%s: using %d columns as %s: %s; --values names columns to take", origin.name,
            len(columns), what, some(columns, SHOWN),
        )  # fmt: skip
