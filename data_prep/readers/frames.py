"""Put the rows of a table, long or wide, into even steps: a cube."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr
from pandas.api import types

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.base.limits import check_size
from data_prep.cube import make_cube
from data_prep.notices import warn_of_speeds_of_0
from data_prep.readers.cells import ALL_BUT, whole_numbers
from data_prep.readers.columns import cell_ids, factorize, numbers
from data_prep.readers.counters import increments, readings, refuse_levels
from data_prep.readers.options import TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.resampling import check_periods, check_steps
from data_prep.readers.sites import read_places, read_properties
from data_prep.readers.table import Table, is_text
from data_prep.readers.time_axis import TimeAxis, may_be_shown_twice, place_times
from data_prep.readers.times import EPOCH_SECONDS, read_times
from data_prep.readers.units import is_level, usual


def counts_rows(df: pd.DataFrame) -> bool:
    """Return whether the index counts rows, as those of `read_csv`, `reset_index` and `concat` do.

    >>> counts_rows(pd.DataFrame({"ds": ["2024-01-01"], "y": [1.0]}))
    True
    """
    whole = types.is_integer_dtype(df.index.dtype) and len(df) > 0
    return whole and max(df.index) < EPOCH_SECONDS[0]


SHOWN = 5
RESERVED = ("time", "cell", "lon", "lat")

log = StepLog("steps")


def apply(table: Table, options: TableOptions) -> xr.Dataset:
    """Turn a table whose cells are known into a cube."""
    _check_not_empty(*table.columns.shape, table.origin)
    if table.kind != "wide":
        return _from_long(table, options)
    ids = pd.Index(whole_numbers(pl.Series(table.values, dtype=pl.String)).to_list())
    columns = [table.series(c).rename(id_) for c, id_ in zip(table.values, ids, strict=True)]
    return _from_wide(table.series(table.time), columns, ids, table, options)


def from_frame(
    df: pd.DataFrame,
    *,
    name: str = "value",
    options: TableOptions | None = None,
    title: str = "A table",
) -> xr.Dataset:
    """Turn a wide frame, one row per time and one column per cell, into a cube.

    Args:
        df: `(time, cell)` values, with times as index and cell ids as columns.
        name: name of the variable.
        options: units, time zone, clock and the treatment of gaps.
        title: title of the cube.

    >>> index = pd.date_range("2024-01-01", periods=2, freq="h", tz="Europe/Rome")
    >>> ds = from_frame(pd.DataFrame({7: [1.0, 2.0]}, index=index), name="net")
    >>> str(ds.time.values[0]), ds.attrs["time_zone"]
    ('2023-12-31T23:00:00.000000000', 'Europe/Rome')
    """
    options = dataclasses.replace(options or TableOptions(), name=name)
    about = {"title": title, "source": "a pandas DataFrame"}
    table = Table(units={name: options.units}, about=about)
    _check_not_empty(*df.shape, table.origin)
    columns = [df.iloc[:, i] for i in range(df.shape[1])]
    return _from_wide(df.index.to_series(), columns, df.columns, table, options)


def _from_wide(
    column_of_times: pd.Series,
    columns: Sequence[pd.Series],
    ids: pd.Index,
    table: Table,
    options: TableOptions,
) -> xr.Dataset:
    """Return the cube of a column of values for each cell."""
    origin, name, resampling = table.origin, options.name, options.resampling
    cells = cell_ids(ids, origin)
    times, zone = _times(column_of_times, origin, options)
    axis = place_times(times, np.zeros(len(times), dtype=np.int64), zone, origin, options)
    values = pd.DataFrame(dict(enumerate(columns))) if _first_repeat(axis.times) else None
    if values is not None and (copies := _copies(values, times, axis.times, zone, options)).any():
        table = table.with_(origin=_without(copies, origin))
        kept = [column[~copies] for column in columns]
        return _from_wide(column_of_times[~copies], kept, ids, table, options)
    steps, at = axis.steps, axis.at
    if resampling is None:
        check_steps(axis.shown, at, origin, options.gaps)
    repeat = _first_repeat(axis.times)
    if repeat and options.duplicates == "error":
        advice = _to_read_hour_twice(times, axis.times, zone, options) or origin.either(
            Words(
                "name the column of cells with {cell} if the table is long; else remove one, or "
                "pass {duplicates:sum} or {duplicates:mean}"
            ),
            "give df.reset_index() if the table is long; else remove one, or pass "
            "duplicates='sum' or duplicates='mean' to open_cube(df, …)",
        )
        raise InputError(
            f"{origin.at(repeat[1])}: time {times[repeat[0]]} is already in {origin.unit} "
            f"{origin.number(repeat[0])}, expected one row per time; ",
            advice,
        )
    if options.of_counters:
        counters = [(readings(column, origin), axis.times) for column in columns]
        cube, axis = _increases({name: counters}, axis, cells, table, options)
        return _make_cube(cube, axis, cells, table, options)
    grid = np.column_stack([numbers(column, origin) for column in columns])
    _warn_of_averaged_zeros(grid, name, table, options)
    rows, record = _records(axis.times)
    grid = _place(grid, record, len(rows), origin, options, options.duplicates)
    placed = _place(grid, at[rows], len(steps), origin, options)
    if resampling:
        seen = (rows[s] for s in _seen(grid, options).T)
        records = ((axis.times[s], at[s]) for s in seen)
        placed = resampling.merge_cells(placed, records, axis, cells, origin.name)
    return _make_cube({name: placed}, axis, cells, table, options)


def _times(
    column: pd.Series, origin: Origin, options: TableOptions
) -> tuple[pd.DatetimeIndex, str | None]:
    """Return the times of rows without a zone, `(rows,)`, and the name of their zone, if any."""
    return read_times(column, options.clock, origin, options.time_format, options.time_zone)


def _from_long(table: Table, options: TableOptions) -> xr.Dataset:
    """Return the cube of a row for each time and cell, with one variable per column of values."""
    origin, time, cell = table.origin, table.time, table.cells[0]
    properties = read_properties(table, [time, cell, *table.values])
    columns = [c for c in table.values if c not in properties]
    times, zone = _times(table.series(time), origin, options)
    cells, cell_at = factorize(table.series(cell), origin)
    axis = place_times(times, cell_at, zone, origin, options)
    same = axis.at * len(cells) + cell_at
    if options.resampling is not None:
        same = np.unique(axis.times, return_inverse=True)[1] * len(cells) + cell_at
    repeat = None if options.of_events else _first_repeat(same)
    if repeat and options.duplicates == "error":
        of_rows = table.with_(columns=table.columns.select(columns)).frame()
        if (copies := _copies(of_rows, times, same, zone, options)).any():
            whole = table.columns.filter(~copies)
            table = table.with_(columns=whole, origin=_without(copies, origin))
            return _from_long(table, options)
        raise InputError(
            f"{origin.at(repeat[1])}: time {times[repeat[0]]}, cell {cells[cell_at[repeat[0]]]} "
            f"is already in {origin.place(repeat[0])}, expected one row for each; ",
            _to_read_hour_twice(times, same, zone, options)
            or Words(
                "remove one or pass {duplicates:sum} or {duplicates:mean}; if each row is an "
                "event, count them with {resample:1h} {agg:count}"
            ),
        )
    if options.resampling is None:
        check_periods(axis.shown, axis.at, cells, cell_at, origin, options.gaps)
    if options.of_counters:
        of_cells = _rows_of_cells(cell_at, len(cells))
        series = {c: readings(table.series(c), origin) for c in columns}
        counters = {c: [(v[i], axis.times[i]) for i in of_cells] for c, v in series.items()}
        cube, axis = _increases(counters, axis, cells, table, options)
    else:
        cube = _in_steps(table, columns, same, cell_at, axis, cells, options)
    places = read_places(table, cell_at)
    for name in properties:
        log.info(origin, f"column {name} has one value for each cell and is kept")
    made = _make_cube(cube, axis, cells, table, options, places)
    first = np.unique(cell_at, return_index=True)[1]
    return made.assign_coords({n: ("cell", _of_cells(table[n][first])) for n in properties})


def _in_steps(
    table: Table,
    columns: Sequence[str],
    same: np.ndarray,
    cell_at: np.ndarray,
    axis: TimeAxis,
    cells: np.ndarray,
    options: TableOptions,
) -> dict[str, np.ndarray]:
    """Put the values of rows into steps of cells, each `(steps, cells)`.

    Equal numbers in `same`, `(rows,)`, are rows of one record.
    """
    shape, origin = (len(axis.steps), len(cells)), table.origin
    resampling, cube = options.resampling, {}
    at = same if resampling is None else axis.at * len(cells) + cell_at
    rows, record = _records(same)
    repeated = len(rows) < len(same)
    places = at[rows] if repeated else at
    n_events = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape)
    for c in columns:
        column = numbers(table.series(c), origin)
        _warn_of_averaged_zeros(column, c, table, options)
        if repeated:
            column = _place(column, record, len(rows), origin, options, options.duplicates)
        cube[c] = _place(column, places, shape[0] * shape[1], origin, options).reshape(shape)
        if resampling and resampling.of_events:
            gaps = options.allow_gaps
            cube[c] = resampling.fill(cube[c], n_events, axis, origin, gaps)
        elif resampling:
            seen = np.where(_seen(column, options), cell_at[rows], -1)
            of_cells = (rows[i] for i in _rows_of_cells(seen, len(cells)))
            records = ((axis.times[i], axis.at[i]) for i in of_cells)
            name = f"{origin.name}, {c}"
            cube[c] = resampling.merge_cells(cube[c], records, axis, cells, name)
    return cube


def _increases(
    counters: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
    axis: TimeAxis,
    cells: np.ndarray,
    table: Table,
    options: TableOptions,
) -> tuple[dict[str, np.ndarray], TimeAxis]:
    """Return the increments `(steps, cells)` of counters, and the steps from the first to the last.

    Each counter has the readings and times of each cell.
    """
    found = {}
    for name, of_cells in counters.items():
        seen = [_seen(values, options) for values, _ in of_cells]
        known = [(v[s], t[s]) for (v, t), s in zip(of_cells, seen, strict=True)]
        found[name] = increments(known, axis)
    refuse_levels(found, table.origin)
    for name, own in found.items():
        own.say(cells, f"{table.origin.name}, {name}")
    any_known = [np.isfinite(own.values).any(axis=1) for own in found.values()]
    steps = np.flatnonzero(np.any(any_known, axis=0))
    if not steps.size:
        raise InputError(
            f"{table.origin.name}: no step lies between two readings of a counter; ",
            Words("give a longer {resample}"),
        )
    span = slice(steps[0], steps[-1] + 1)
    whole = {name: own.values[span] for name, own in found.items()}
    return whole, dataclasses.replace(axis, steps=axis.steps[span])


def _check_not_empty(n_rows: int, n_columns: int, origin: Origin) -> None:
    if not (n_rows and n_columns):
        raise InputError(
            f"{origin.name}: {n_rows} rows and {n_columns} columns of data, expected at "
            "least one of each; give the table that holds the records"
        )


def _first_repeat(at: np.ndarray) -> tuple[int, int] | None:
    """Return two rows with the same position, or None."""
    if (np.diff(at) > 0).all():  # As most tables are, which spares to sort them.
        return None
    order = np.argsort(at, kind="stable")
    repeats = np.flatnonzero(np.diff(at[order]) == 0)
    if not repeats.size:
        return None
    return int(order[repeats[0]]), int(order[repeats[0] + 1])


def _copies(
    values: pd.DataFrame,
    times: pd.DatetimeIndex,
    same: np.ndarray,
    zone: str | None,
    options: TableOptions,
) -> np.ndarray:
    """Return which rows repeat a row of the same time and cell with the same values, `(rows,)`.

    None, where a treatment of duplicates was given or a clock may have shown an hour twice; the
    arguments are those of `_to_read_hour_twice`.
    """
    repeated = pd.Series(same).duplicated().to_numpy()
    if options.duplicates != "error" or not repeated.any():
        return np.zeros(len(values), dtype=bool)
    if _to_read_hour_twice(times, same, zone, options):
        return np.zeros(len(values), dtype=bool)
    found: np.ndarray = values.assign(**{"": same}).duplicated().to_numpy()
    return found


def _without(copies: np.ndarray, origin: Origin) -> Origin:
    """Return the place of rows without copies; say how many they are."""
    n, first = counted(int(copies.sum()), "repeated row"), origin.place(int(copies.argmax()))
    log.warning(origin, f"left out {n}, the first in {first}")
    return origin.of_rows(np.flatnonzero(~copies))


def _to_read_hour_twice(
    times: pd.DatetimeIndex, same: np.ndarray, zone: str | None, options: TableOptions
) -> Words | None:
    """Return advice if repeated times may be the hour that a wall clock shows twice, else None.

    `same` `(rows,)` are equal numbers for rows of the same time and cell; `zone` is that of times
    with an offset.
    """
    repeated = times[pd.Series(same).duplicated().to_numpy()]
    if zone is not None or not may_be_shown_twice(repeated, options.time_zone or None):
        return None
    return Words(
        "if they are two hours that a clock shows alike, as daylight saving time ends, pass "
        "{clock:local} and {time_zone}; else remove one, or pass {duplicates:sum} or "
        "{duplicates:mean}"
    )


def _records(same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each record, and each row's record; equal numbers are one record."""
    if _first_repeat(same) is None:
        return np.arange(len(same)), np.arange(len(same))
    return np.unique(same, return_index=True, return_inverse=True)[1:]


def _place(
    values: np.ndarray,
    at: np.ndarray,
    size: int,
    origin: Origin,
    options: TableOptions,
    merge: str = "",
) -> np.ndarray:
    """Place rows at their positions among `size`, NaN elsewhere; merge repeated positions.

    They are merged to their sum or mean; the default is the aggregate of the resampling.
    """
    check_size(8 * size * math.prod(values.shape[1:]), f"{origin.name}: the cube")
    out = np.full((size, *values.shape[1:]), np.nan)
    if _first_repeat(at) is None:
        out[at] = values
        return out
    seen = _seen(values, options)
    count, total = np.zeros_like(out), np.zeros_like(out)
    np.add.at(count, at, seen)
    with np.errstate(over="ignore"):  # `write_cube` checks for overflow
        np.add.at(total, at, np.where(seen, values, 0.0))
    merge = merge or (options.resampling.agg if options.resampling else "")
    merged = total / np.maximum(count, 1) if merge == "mean" else total
    return np.where(count > 0, merged, np.nan)


def _seen(values: np.ndarray, options: TableOptions) -> np.ndarray:
    """Return which values were recorded, in their shape."""
    result: np.ndarray = ~np.isnan(values) & ((values != 0) | (not options.zero_is_missing))
    return result


def _rows_of_cells(cell_at: np.ndarray, n_cells: int) -> list[np.ndarray]:
    """Return the rows of each cell; those at position -1 are of none."""
    order = np.argsort(cell_at, kind="stable")
    return np.split(order, np.searchsorted(cell_at[order], np.arange(n_cells + 1)))[1:-1]


def _warn_of_empty(variable: str, cells: np.ndarray, origin: Origin) -> None:
    """Log the cells without a value, which no model can be trained for."""
    if not cells.size:
        return
    advice = origin.either(
        Words("{cells}", cells=f"{ALL_BUT}{','.join(map(str, cells[:SHOWN]))}"),
        f"df.drop(columns={cells[:SHOWN].tolist()})",
    )
    shown = f"{counted(cells.size, 'cell')} without a value of {variable}: {some(cells, SHOWN)}"
    log.warning(origin, f"{shown}; leave out by ", advice)


def _warn_of_averaged_zeros(
    values: np.ndarray, variable: str, table: Table, options: TableOptions
) -> None:
    """Log speeds of 0 that are going to be part of means, where they are not seen any more."""
    averaged = options.resampling is not None and options.resampling.agg == "mean"
    if averaged and not options.zero_is_missing:
        name = f"{table.origin.name}: {variable}"
        warn_of_speeds_of_0(values, name, _unit_of(variable, table))


def _unit_of(variable: str, table: Table) -> str:
    """Return the unit of a variable in its usual spelling, `"1"` for none."""
    return usual(table.units.get(variable, "1"))


def _warn_of_summed_levels(variables: Sequence[str], table: Table, options: TableOptions) -> None:
    """Log the variables that an option adds up, and that are likely levels such as speeds."""
    levels = [v for v in variables if is_level(v, _unit_of(v, table))]
    summed = options.resampling is not None and options.resampling.agg == "sum"
    if levels and (summed or options.duplicates == "sum"):
        log.warning(
            table.origin,
            f"sums of {some(levels, SHOWN)}, which are likely levels or rates; prepare "
            "these apart, with ",
            Words("{agg:mean}") if summed else Words("{duplicates:mean}"),
        )


def _make_cube(
    values: Mapping[str, np.ndarray],
    axis: TimeAxis,
    cells: np.ndarray,
    table: Table,
    options: TableOptions,
    places: tuple[np.ndarray, np.ndarray] | None = None,
) -> xr.Dataset:
    odd = [n for n in values if not n.isprintable() or n in ("", *RESERVED) or "/" in n]
    if odd:
        raise InputError(
            f"{table.origin.name}: a variable cannot be named {odd[0]!r} (nor hold a '/'); ",
            Words("rename it or choose columns with {values}"),
        )
    seen = {variable: _seen(grid, options).any(axis=0) for variable, grid in values.items()}
    if not any(cells_seen.any() for cells_seen in seen.values()):
        raise InputError(
            f"{table.origin.name}: all values of {some(list(values))} are missing, expected "
            "numbers; correct the table or ",
            Words("choose other columns with {values}"),
        )
    if empty := [variable for variable, cells_seen in seen.items() if not cells_seen.any()]:
        log.warning(table.origin, f"without a value in any cell: {some(empty, 6)}")
    for variable in (v for v in values if v not in empty):
        _warn_of_empty(variable, cells[~seen[variable]], table.origin)
    _warn_of_summed_levels(list(values), table, options)
    if options.resampling:
        options.resampling.report(values, table.origin.name)
    lon, lat = places or (None, None)
    return make_cube(
        values,
        axis.steps,
        cells,
        **table.about,
        license="not stated",
        units={variable: _unit_of(variable, table) for variable in values},
        time_zone=axis.zone,
        clock=axis.clock,
        zero_is_missing=options.zero_is_missing,
        lon=lon,
        lat=lat,
    )


def _of_cells(values: pl.Series) -> np.ndarray:
    """Return a property of each cell, `(cells,)`, as text or numbers."""
    return np.array(values.to_list(), str) if is_text(values) else values.to_numpy()
