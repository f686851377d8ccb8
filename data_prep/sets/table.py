"""Your own table: CSV, Excel, Parquet or Arrow, long (time, cell, values) or wide (time × cell).

- Files: `.csv`, `.tsv`, `.txt`, `.csv.gz` (separator `,`, `;`, `|` or tab), `.jsonl`, `.parquet`,
  `.feather`, `.arrow`, `.h5` (of pandas, in its fixed format, without texts) and, with the extra
  `excel`, `.xlsx`; or several in a folder, a `.zip` or by a pattern.
- Long: one row per (time, cell), one variable per value column. Wide: one column per cell. The time
  column of a wide table may be unnamed if it is the first, as `DataFrame.to_csv` writes it.
  Services: one column per service of a single cell, which is named like the file.
- If only one reading fits, it is taken and reported: the usual names of the columns of times and
  cells (Timestamp, Station), dates such as 23/10/2017, decimal commas. If two fit, the error says
  which option to give. `--dry-run` shows what was understood and writes nothing.
- Times: ISO 8601, or `time_format`. Times with an offset (`+01:00`, `Z`) are converted to UTC;
  those without one are interpreted by `clock`. Whole numbers are seconds since 1970, or their
  thousandths to billionths, distinguished by their size, or dates such as `20240101`; a number
  that is neither of the years 1985 to 2030 is refused. A table without times takes `start` and
  `step`.
- Missing: an empty field, `NA`, `N/A`, `NaN`, `nan`, `null`, `NIL`, `None`, `-` or `--`, an
  error of Excel such as `#DIV/0!`, or a word such as `No data`.
  Negative values are kept. A cell with rows in only a part of the period is NaN in the rest.
- Cells: ids read as text become integers if all are whole numbers without leading zero or sign
  (not `007`), else stay text. A long table's cells are sorted; a wide table's keep their order.
  Columns such as lon and lat of a long table place the cells on a map.
- Rows may be in any order. Nothing is dropped, padded or averaged unless an option asks for it; a
  column without numbers, or of the calendar (HOUR, weekday), is left out with a notice unless
  `values` names it.
- Trap: a wall clock repeats an hour in autumn and skips one in spring. With `clock="local"` and a
  `time_zone`, times become UTC; the order of a cell's rows tells the equal hours apart. Steps that
  are even on the wall clock only, such as days, stay on it, and so do times without a `time_zone`.
- Units are an option; the licence is stored as "not stated". The cube keeps the file's name and
  SHA-256.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr
from pandas.api.types import is_numeric_dtype

from data_prep.base.errors import InputError, Words, some
from data_prep.base.files import checksum
from data_prep.cube import services_of, write_read
from data_prep.preparation import as_attribute
from data_prep.readers.columns import BINARY, Origin, is_text
from data_prep.readers.events import COUNT, ask_for_events, find_records
from data_prep.readers.exports import files_of, read_export
from data_prep.readers.files import to_pandas, whole_numbers
from data_prep.readers.frames import CubeOptions, from_frame, from_long, keep_cells
from data_prep.readers.layout import (
    Layout,
    cells_of,
    find_layout,
    no_time,
    unfold,
)
from data_prep.readers.options import CELL, TableOptions
from data_prep.readers.resampling import step_length
from data_prep.readers.sites import add_sites
from data_prep.readers.time_columns import TOTAL
from data_prep.readers.times import are_of_day
from data_prep.readers.units import common_unit, factor, unit_of, without_unit
from data_prep.readers.written_times import date_formats
from data_prep.sets.dcrnn import MetrLA, PemsBay

SOURCES: tuple[()] = ()

log = logging.getLogger(__name__)


def read(raw: Path | pd.DataFrame, **options: Any) -> xr.Dataset:
    """Read a table as a cube.

    Args:
        raw: The table, such as a .csv, .csv.gz, .xlsx, .parquet, .feather or .h5 file, or several:
            a folder, a .zip or a pattern such as 'exports/*.csv'; in Python also a frame, whose
            index is not read.
        **options: those of `TableOptions`.

    Raises:
        InputError: if the table is invalid or an option is needed; names the file and the line.
    """
    return _read(raw, TableOptions(**options))


def _read(raw: Path | pd.DataFrame, given: TableOptions) -> xr.Dataset:
    layout, cell, cells, name, resampling = (
        given.layout,
        given.cell,
        given.cells,
        given.name,
        given.resampling,
    )
    files = [] if isinstance(raw, pd.DataFrame) else files_of(raw := Path(raw))
    _warn_of_published(files)
    df, time, origin = read_export(raw, given)
    if given.start is not None and given.step is not None:
        time = _set_times(df, time, cell, given.start, given.step, origin)
    elif time not in df.columns:
        raise no_time(df, time, origin)
    options = CubeOptions.of(
        given,
        title=f"Table {origin.name}",
        source=origin.name,
        checksums={file.name: checksum(file) for file in files},
        origin=origin,
    )
    df, kind = unfold(df, layout, time, cell, origin)
    used = given
    if resampling is not None and resampling.of_events:
        asked, counts = Layout(kind, time, cell, []), resampling.agg == COUNT
        df, found, origin = find_records(df, asked, given.chosen, origin, counts=counts)
        options = dataclasses.replace(options, origin=origin)
    else:
        found = find_layout(df, kind, time, cell, given.chosen, origin)
    _check_read(found.kind, origin.name, given)
    ids = cells_of(df, found.cell) if found.kind == "long" and cell == CELL and files else []
    ids = [c for c in ids if is_numeric_dtype(df[c])]
    if ids and not origin.name.lower().endswith(BINARY):
        df = df.assign(**{c: _as_written(df[c], origin) for c in ids})
        used = dataclasses.replace(used, cell=found.cell)
    if found.kind == "wide":
        df, origin = _cells_in_one_unit(df, found.values, origin)
    if given.units == "1":
        options = dataclasses.replace(options, units=_units(found, name, origin))
    elif found.kind != "wide" and len(found.values) > 1:
        log.warning(
            "%s: %s is taken as the unit of %s; if that of one only, write units into the names of "
            "columns, such as 'speed (km/h)'",
            origin.name,
            given.units,
            some(found.values),
        )
    df, found, options = _without_slashes(df, found, options)
    if found.kind == "wide":
        ds = from_frame(_wide(df, found, cells, origin), name=name, options=options)
    else:
        try:
            ds = _long(df, found, cells, options)
        except InputError as e:
            events = None if resampling else ask_for_events(e, df, found, used.cell, origin)
            raise events or e from (e if events else None)
    ds = ds if cells else _without_totals(ds, origin)
    used = dataclasses.replace(
        used,
        layout=found.kind if kind == layout else layout,  # type: ignore[arg-type] # a kind is one
        time_format=given.time_format or _format_of_dates(df[found.time]),
        # Columns of a wide table are cells, of which a later one may have others.
        values=None if found.kind == "wide" else given.values,
    )
    ds = ds.assign_attrs(as_attribute("table", dataclasses.asdict(used)))
    return ds if given.sites is None else add_sites(ds, Path(given.sites), given.crs)


def _warn_of_published(files: Sequence[Path]) -> None:
    """Log files that are named like records of detectors with marks that no table tells."""
    for known in (MetrLA, PemsBay):
        if found := [file.name for file in files if file.name.lower() in known.records]:
            log.warning(
                "%s: named like the records of %s, in which 0 means missing and times are those of "
                "California; `stforecast prepare %s` reads them so, and takes the roads",
                found[0],
                known.title,
                known.name,
            )


def _as_written(ids: pd.Series, origin: Origin) -> pd.Series:
    """Return ids that were read as numbers: as text such as 007, or as the integers of a sheet."""
    texts = origin.as_written(str(ids.name))
    if texts is None:
        return ids if ids.isna().any() else ids.astype(int)
    return pd.Series(to_pandas(texts.alias("ids").to_frame())["ids"])


def _format_of_dates(column: pd.Series) -> str:
    """Return the only format of dates as text, of which a short later table may allow two."""
    texts = column.dropna().unique().tolist() if is_text(column) else []
    if not texts or re.match(r"\d{4}-", texts[0]):
        return ""  # ISO 8601 has one reading.
    known = date_formats(texts)
    return known[0][1] if len(known) == 1 else ""


prepare = partial(write_read, read)
Options = TableOptions


def _cells_in_one_unit(
    df: pd.DataFrame, cells: Sequence[str], origin: Origin
) -> tuple[pd.DataFrame, Origin]:
    """Convert columns of cells whose values are written in several units to one.

    Raises:
        InputError: if these do not convert, or some have none.
    """
    # One letter in brackets, as in Bridge (S), may be a direction.
    if not any(map(origin.units.get, cells)) and not all(len(unit_of(c)) > 1 for c in cells):
        return df, origin
    own = {c: origin.units.get(c) or unit_of(c) for c in cells}
    own = {c: unit for c, unit in own.items() if unit or df[c].fillna(0).any()}
    if len(set(own.values())) == 1:
        return df, origin
    first: dict[str, str] = {}
    for cell, unit in own.items():
        first.setdefault(unit, cell)
    shown = some((f"{unit or 'no unit'} ({cell!r})" for unit, cell in first.items()), 6)
    if (to := common_unit(sorted(first))) is None:
        raise InputError(f"{origin.name}: columns of cells are in {shown}; write one unit for all")
    log.warning("%s: columns of cells are in %s; converted to %s", origin.name, shown, to)
    scaled = {c: df[c] * factor(unit, to) for c, unit in own.items() if unit != to}
    units = {**origin.units, **dict.fromkeys(cells, to)}
    return df.assign(**scaled), dataclasses.replace(origin, units=units)


def _without_slashes(
    df: pd.DataFrame, layout: Layout, options: CubeOptions
) -> tuple[pd.DataFrame, Layout, CubeOptions]:
    """Name services without a slash, which no variable may have: Flow instead of Flow (veh/h)."""
    new: dict[str, str] = {}
    for name in layout.values if layout.kind != "wide" else ():
        bare = without_unit(name)
        known = {*df.columns, *new.values()}
        new[name] = (name if bare in known else bare).replace("/", " per ")
    new = {old: name for old, name in new.items() if "/" in old}
    if not new:
        return df, layout, options
    named = [f"{old!r} is named {name!r}" for old, name in new.items()]
    log.info("%s: %s", options.origin.name, some(named, 5))
    values = [new.get(name, name) for name in layout.values]
    units = options.units
    if not isinstance(units, str):
        units = {new.get(name, name): unit for name, unit in units.items()}
    options = dataclasses.replace(options, units=units)
    return df.rename(columns=new), dataclasses.replace(layout, values=values), options


def _units(layout: Layout, name: str, origin: Origin) -> dict[str, str]:
    """Return the unit of each variable, from the names of columns or a row of units."""
    found = {c: origin.units.get(c) or unit_of(c) or "1" for c in layout.values}
    if layout.kind == "wide":
        common = set(found.values())
        found = {name: common.pop() if len(common) == 1 else "1"}
    known = [f"{c}: {unit}" for c, unit in found.items() if unit != "1"]
    if known:
        log.info("%s: units %s; %s", origin.name, some(known, 5), Words("pass {units} for others"))
    return found


def _without_totals(ds: xr.Dataset, origin: Origin) -> xr.Dataset:
    """Leave out cells that are named as totals, and are the sum or the mean of all others."""
    ids = ds["cell"].to_numpy().astype(str)
    kept = np.ones(len(ids), dtype=bool)
    for at in np.flatnonzero([re.match(TOTAL, cell) is not None for cell in ids]):
        others = ds.isel(cell=np.delete(np.arange(len(ids)), at))
        own = ds.isel(cell=at)
        sums, means = others.sum("cell", skipna=False), others.mean("cell", skipna=False)
        if len(ids) > 2 and any(
            all(_nearly(own[n], made[n]) for n in services_of(ds)) for made in (sums, means)
        ):
            kept[at] = False
            log.warning("%s: cell %s is left out: the total of the others", origin.name, ids[at])
    return ds if kept.all() else ds.isel(cell=kept)


def _nearly(own: xr.DataArray, made: xr.DataArray) -> bool:
    """Return whether values are equal but for rounding where both are known, and some are."""
    known = (own.notnull() & made.notnull()).to_numpy()
    a, b = own.to_numpy()[known], made.to_numpy()[known]
    return bool(known.any()) and np.allclose(a, b, rtol=1e-3, atol=0.01 * float(np.abs(b).mean()))


def _check_read(kind: str, table: str, options: TableOptions) -> None:
    cell, name, sheet = options.cell, options.name, options.sheet
    other_layout = f"{table}, whose layout is {kind}, has no use for"
    if cell != CELL and kind != "long":
        remedy = Words("only a long table reads it; leave out {cell}, or give another {layout}")
        raise InputError(f"{other_layout} cell {cell!r}: ", remedy)
    if name != "value" and kind != "wide":
        remedy = Words("only a wide table reads it; leave out {name}, or give another {layout}")
        raise InputError(f"{other_layout} name {name!r}: ", remedy)
    if sheet and not table.lower().endswith(".xlsx"):
        remedy = Words("only an Excel file reads it; leave out {sheet}")
        raise InputError(f"{table} has no use for sheet {sheet!r}: ", remedy)


def _set_times(
    df: pd.DataFrame, time: str, cell: str, start: str, step: str, origin: Origin
) -> str:
    """Insert a column of times, which count the rows, or the rows of each cell."""
    of_day = df.pop(time).astype(str) if time in df.columns and are_of_day(df[time]) else None
    if time in df.columns:
        raise InputError(
            f"{origin.name}: has times in column {time!r}; ",
            Words("leave out {start} and {step}, or name the columns with {values} and {time}"),
        )
    length = step_length(step, "step")
    first = pd.to_datetime(start, format="ISO8601", errors="coerce")
    if not start[:4].isdigit() or pd.isna(first):  # In 01/02/2024, the month may be either.
        raise InputError(f"start is {start!r}; write it like 2024-01-01T00:00")
    row = df.groupby(cell).cumcount() if cell in df.columns else pd.Series(np.arange(len(df)))
    times = first + row * length
    if of_day is not None:
        shown = pd.DatetimeIndex(pd.to_datetime(of_day, format="mixed"))
        made = pd.DatetimeIndex(times)
        if (wrong := np.flatnonzero(shown - shown.normalize() != made - made.normalize())).size:
            raise InputError(
                f"{origin.at(wrong[0])}: time {of_day.iloc[wrong[0]]}, expected the time of "
                f"{times.iloc[wrong[0]]}; ",
                Words("correct {start} or {step}, or add the rows that are missing"),
            )
    df.insert(0, time, times)
    return time


def _long(df: pd.DataFrame, layout: Layout, cells: str | None, options: CubeOptions) -> xr.Dataset:
    """Return the cube of a long table, or of a table of services of one cell."""
    origin = options.origin
    if layout.kind == "services":
        df = df.assign(**{layout.cell: origin.name.partition(".")[0]})
    else:
        parts = cells_of(df, layout.cell)
        joined = reduce(
            lambda a, b: a.astype(str) + "/" + b.astype(str), (_ids(df[p]) for p in parts)
        )
        df = df.drop(columns=parts).assign(**{layout.cell: joined})
    if cells is not None:
        kept = keep_cells(cells, df[layout.cell].dropna().unique().tolist(), origin.name)
        ids = df[layout.cell].dropna().unique()[kept]
        rows = np.flatnonzero(df[layout.cell].isin(ids) | df[layout.cell].isna())
        df, origin = df.iloc[rows], origin.of_rows(rows)
        options = dataclasses.replace(options, origin=origin)
    return from_long(df, time=layout.time, cell=layout.cell, values=layout.values, options=options)


def _ids(column: pd.Series) -> pd.Series:
    """Return ids that were read as text as integers, if all of them look like integers."""
    if not is_text(column) or column.isna().all():
        return column
    at, texts = pd.factorize(column)
    if not len(texts):
        return column
    ids = whole_numbers(pl.Series(list(texts), dtype=pl.String))
    return column if ids.dtype == pl.String else pd.Series(ids.to_numpy()[at]).where(at >= 0)


def _wide(df: pd.DataFrame, layout: Layout, cells: str | None, origin: Origin) -> pd.DataFrame:
    """Return a wide table as a frame with times as index and cell ids as columns."""
    columns: Sequence[str] = layout.values
    ids = whole_numbers(pl.Series(columns, dtype=pl.String)).to_list()
    wide = df.set_index(layout.time)[columns].set_axis(ids, axis="columns")
    return wide if cells is None else wide.loc[:, keep_cells(cells, ids, origin.name)]
