"""Your own table: CSV or Parquet, long (time, cell, values) or wide (time × cell).

- Files: `.csv`, `.tsv`, `.csv.gz` (separator `,`, `;` or tab, decimal point, UTF-8) and `.parquet`.
- Long: one row per (time, cell), one variable per value column. Wide: one column per cell. The time
  column of a wide table may be unnamed if it is the first, as `DataFrame.to_csv` writes it.
- Times: ISO 8601. Times with an offset (`+01:00`, `Z`) are converted to UTC; those without one are
  interpreted by `clock`. Whole numbers are seconds or milliseconds since 1970, distinguished by
  their size; a number outside the years 1985 to 2030 in both units (`20240101`, `202401010000`) is
  refused.
- Missing: an empty field, `NA`, `N/A`, `NaN`, `nan` or `null`. Negative values are kept.
- Cells: ids read as text become integers if all are whole numbers without leading zero or sign
  (not `007`), else stay text. A long table's cells are sorted; a wide table's keep their order.
- Rows may be in any order. Nothing is dropped, padded or averaged unless an option asks for it; a
  column without numbers is left out with a warning unless `values` names it.
- Trap: a wall clock repeats an hour in autumn and skips one in spring. Write times with their
  offset, or set `duplicates` and `allow_gaps` for a local clock.
- Units are an option; the licence is stored as "not stated". The cube keeps the file's name and
  SHA-256.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
import polars as pl

from data_prep.checksum import checksum
from data_prep.cube import write_cube
from data_prep.errors import InputError, choose, close_to
from data_prep.tabular.advice import START
from data_prep.tabular.columns import MAX_NAMES, value_columns
from data_prep.tabular.file import Origin, read_table, whole_numbers
from data_prep.tabular.frames import TableOptions, from_frame, from_long
from data_prep.text import some

SOURCES: tuple = ()
LAYOUTS = ("auto", "long", "wide")
CELL = "cell"
logger = logging.getLogger(__name__)


def prepare(
    raw: Path,
    out: Path,
    *,
    layout: Literal["auto", "long", "wide"] = "auto",
    time: str = "time",
    cell: str = CELL,
    values: str | None = None,
    name: str = "value",
    units: str = "1",
    time_zone: str | None = None,
    clock: Literal["utc", "local"] = "utc",
    zero_is_missing: bool = False,
    allow_gaps: bool = False,
    duplicates: Literal["error", "sum", "mean"] = "error",
    progress: bool = False,
) -> Path:
    """Turn a CSV or Parquet table into a cube.

    Args:
        raw: The table, a .csv, .tsv, .csv.gz or .parquet file.
        out: The cube to write, a .nc file.
        layout: "long", "wide", or "auto": long if there is a column of cells.
        time: Name of the column of times.
        cell: Name of the column of cell ids in a long table.
        values: Comma-separated value columns to take, by default every column that holds numbers.
        name: Name of the variable that a wide table holds.
        units: Unit of the values, "1" for none.
        time_zone: IANA name of the place's time zone, by default the table's own or UTC.
        clock: Whether times without an offset are "utc" or the "local" wall clock of the zone.
        zero_is_missing: Treat 0 as missing.
        allow_gaps: Leave NaN where a row is missing instead of refusing the table.
        duplicates: Treatment of several rows for one time and cell: "error", "sum" or "mean".
        progress: No effect; a table is read at once.

    Returns:
        The path of the cube.

    Raises:
        InputError: if the table is invalid; names the file and the line.
    """
    raw = Path(raw)
    if layout not in LAYOUTS:
        raise choose("layout", layout, LAYOUTS)
    df, origin = read_table(raw, text_columns=("", time), id_column=cell)
    chosen = None if values is None else [v.strip() for v in values.split(",")]
    options = TableOptions(
        units=units,
        time_zone=time_zone,
        clock=clock,
        zero_is_missing=zero_is_missing,
        allow_gaps=allow_gaps,
        duplicates=duplicates,
        title=f"Table {raw.name}",
        source=raw.name,
        checksums={raw.name: checksum(raw)},
        origin=origin,
    )
    _require_time(df, time, cell, origin)
    if layout == "long" or (layout == "auto" and (cell in df.columns or cell != CELL)):
        ds = from_long(df, time=time, cell=cell, values=chosen, options=options)
        hint = "choose others with --values"
        _log_columns(origin, "services", list(ds.data_vars), chosen, hint)
    else:
        wide = _set_time_and_cells(df, time, chosen, origin)
        ds = from_frame(wide, name=name, options=options)
        one_cell = origin.advice("df.insert(0, 'cell', 'A')")
        hint = f"if they are services of one cell, add a column of cells: {one_cell}"
        _log_columns(origin, "cells", list(wide.columns), chosen, hint)
    return write_cube(ds, out)


def _require_time(df: pd.DataFrame, time: str, cell: str, origin: Origin) -> None:
    """Refuse a table without a column of times; the message says how to name or add one."""
    if time in df.columns or df.columns[0] == "":
        return
    axis = f"pd.date_range({START!r}, periods=len(df), freq='1h')"
    if cell in df.columns:
        axis = f"pd.Timestamp({START!r}) + df.groupby({cell!r}).cumcount() * pd.Timedelta('1h')"
    names = ", ".join(map(repr, df.columns[:20]))[:MAX_NAMES]
    raise InputError(
        f"{origin.name}: no column {time!r} among {names}{close_to(time, df.columns)}; "
        "name the column of times with --time or, if there is none, add one with your start and "
        f"step: {origin.advice(f'df.insert(0, {time!r}, {axis})')}"
    )


def _log_columns(
    origin: Origin, what: str, names: Sequence[object], chosen: Sequence[str] | None, other: str
) -> None:
    """Log how columns were interpreted, unless `values` named them."""
    if chosen is None and len(names) > 1:
        logger.info("%s: took %d columns for %d %s: %s; %s", origin.name, len(names), len(names),
                    what, some(names, 12), other)  # fmt: skip


def _set_time_and_cells(
    df: pd.DataFrame, time: str, values: Sequence[str] | None, origin: Origin
) -> pd.DataFrame:
    """Return a wide table as a frame with times as index and cell ids as columns."""
    unnamed = time not in df.columns and df.columns[0] == ""
    time = "" if unnamed else time
    columns = value_columns(df, [time], values, origin)
    ids = whole_numbers(pl.Series(columns, dtype=pl.String)).to_list()
    return df.set_index(time)[columns].set_axis(ids, axis="columns")
