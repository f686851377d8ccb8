"""Convert a pandas frame, long or wide, to a cube, and choose its cells: `--cells`."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from pandas.api import types

from data_prep.base.errors import InputError, Words, close_to, counted, some
from data_prep.base.limits import check_size
from data_prep.cube import make_cube
from data_prep.notices import warn_of_speeds_of_0
from data_prep.readers.columns import (
    Origin,
    cell_ids,
    factorize,
    is_text,
    numbers,
    value_columns,
)
from data_prep.readers.counters import increments, readings, refuse_levels
from data_prep.readers.options import TableOptions
from data_prep.readers.resampling import Resampling, check_periods, check_steps
from data_prep.readers.sites import read_places, read_properties
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


ALL_BUT = "not:"


def keep_cells(text: str, cells: Collection[Any] | np.ndarray, name: str) -> np.ndarray:
    """Return which cells to keep, `(cells,)` bool.

    The text holds ids and ranges of whole numbers, separated by commas; after `not:`, those to
    leave out.

    >>> keep_cells("not:1-2", [1, 2, 3], "a.csv")
    array([False, False,  True])
    """
    known = {str(cell): cell for cell in cells}
    chosen: set[Any] = set()
    for part in text.removeprefix(ALL_BUT).split(","):
        chosen |= _among(part.strip(), known, name)
    named = np.array([cell in chosen for cell in cells])
    kept = ~named if text.startswith(ALL_BUT) else named
    if not kept.any():
        raise InputError(f"{name}: ", Words("{cells} leaves no cell; leave out fewer", cells=text))
    return kept


def _among(part: str, known: dict[str, Any], name: str) -> set[Any]:
    if part in known:
        return {known[part]}
    span = re.fullmatch(r"(\d{1,18})\s*-\s*(\d{1,18})", part)
    if span:
        low, high = int(span[1]), int(span[2])
        found = {c for c in known.values() if isinstance(c, int | np.integer) and low <= c <= high}
        if (absent := high - low + 1 - len(found)) and found:
            log.info("%s: of cells %s, %d occur and %d do not", name, part, len(found), absent)
        if found:
            return found
    raise InputError(
        f"{name}: no cell {part!r} among its {len(known)} cells, such as "
        f"{next(iter(known))!r}{close_to(part, known)}; ",
        Words("give {cells} as ids and ranges, such as 5,11-20"),
    )


SHOWN = 5
RESERVED = ("time", "cell", "lon", "lat")
ABOUT = ("title", "source", "license", "zero_is_missing", "checksums")
"""Options that are attributes of the cube."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CubeOptions:
    """Metadata and options that a table does not contain.

    Args:
        units: unit of the values, or of each variable by name; `"1"` for none.
        time_zone: IANA name of the place's zone; None takes the table's own, else UTC.
        clock: meaning of times without a zone, `"utc"` or `"local"`; those with one become UTC, and
            so do those on the wall clock of `time_zone`, except for steps such as days.
        zero_is_missing: whether 0 means "not recorded".
        allow_gaps: leave NaN where a row is missing instead of raising.
        duplicates: treatment of several rows for one time and cell, before any resampling:
            `"error"`, or the `"sum"` or `"mean"` of the recorded values.
        time_format: format of times that are text, see `readers.times.read_times`.
        resampling: longer even steps to put the records into, or None.
        title: title of the data.
        source: origin of the data.
        license: licence of the data.
        checksums: source file name to checksum.
        origin: location of the table's rows, for errors.
    """

    units: str | Mapping[str, str] = "1"
    time_zone: str | None = None
    clock: str = "utc"
    zero_is_missing: bool = False
    allow_gaps: bool = False
    duplicates: str = "error"
    time_format: str = ""
    resampling: Resampling | None = None
    title: str = "A table"
    source: str = "a pandas DataFrame"
    license: str = "not stated"
    checksums: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)

    @classmethod
    def of(cls, options: TableOptions, **known: Any) -> CubeOptions:
        """Return the options of a table with what is known of it."""
        names = {f.name for f in fields(cls)} - {"origin", *ABOUT} | {"zero_is_missing"}
        return cls(**{name: getattr(options, name) for name in names} | known)

    def unit_of(self, variable: str) -> str:
        """Return the unit of a variable in its usual spelling, `"1"` for none."""
        units = self.units
        return usual(units if isinstance(units, str) else units.get(variable, "1"))

    @property
    def gaps(self) -> bool:
        """Whether missing rows are left as NaN; resampled tables report the missing values."""
        return self.allow_gaps or self.resampling is not None


def from_frame(
    df: pd.DataFrame, *, name: str = "value", options: CubeOptions = CubeOptions()
) -> xr.Dataset:
    """Turn a wide frame, one row per time and one column per cell, into a cube.

    Args:
        df: `(time, cell)` values, with times as index and cell ids as columns.
        name: name of the variable.
        options: units, time zone, clock and the treatment of gaps.

    >>> index = pd.date_range("2024-01-01", periods=2, freq="h", tz="Europe/Rome")
    >>> ds = from_frame(pd.DataFrame({7: [1.0, 2.0]}, index=index), name="net")
    >>> str(ds.time.values[0]), ds.attrs["time_zone"]
    ('2023-12-31T23:00:00.000000000', 'Europe/Rome')
    """
    origin = options.origin
    _check_not_empty(df, origin)
    cells = cell_ids(df.columns, origin)
    times, zone = read_times(
        df.index.to_series(), options.clock, origin, options.time_format, options.time_zone
    )
    axis = place_times(times, np.zeros(len(times), dtype=np.int64), zone, options)
    if (copies := _copies(df, times, axis.times, zone, options)).any():
        df, options = _without(df, copies, options)
        return from_frame(df, name=name, options=options)
    steps, at = axis.steps, axis.at
    if options.resampling is None:
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
    if options.resampling and options.resampling.of_counters:
        counters = [(readings(df.iloc[:, i], origin), axis.times) for i in range(df.shape[1])]
        cube, axis = _increases({name: counters}, axis, cells, options)
        return _make_cube(cube, axis, cells, options)
    columns = np.column_stack([numbers(df.iloc[:, i], origin) for i in range(df.shape[1])])
    _warn_of_averaged_zeros(columns, name, options)
    rows, record = _records(axis.times)
    columns = _place(columns, record, len(rows), options, options.duplicates)
    values = _place(columns, at[rows], len(steps), options)
    if options.resampling:
        seen = (rows[s] for s in _seen(columns, options).T)
        records = ((axis.times[s], at[s]) for s in seen)
        values = options.resampling.merge_cells(values, records, axis, cells, origin.name)
    return _make_cube({name: values}, axis, cells, options)


def from_long(
    df: pd.DataFrame,
    *,
    time: str = "time",
    cell: str = "cell",
    values: Sequence[str] | None = None,
    options: CubeOptions = CubeOptions(),
) -> xr.Dataset:
    """Turn a long frame, one row per (time, cell), into a cube with one variable per value column.

    Value columns are by default all others that hold numbers. Cells are sorted.
    """
    origin = options.origin
    _check_not_empty(df, origin)
    properties = read_properties(df, [time, cell, *(values or ())])
    columns = value_columns(df.drop(columns=list(properties)), [time, cell], values, origin)
    times, zone = read_times(
        df[time], options.clock, origin, options.time_format, options.time_zone
    )
    cells, cell_at = factorize(df[cell], origin)
    axis = place_times(times, cell_at, zone, options)
    same = axis.at * len(cells) + cell_at
    if options.resampling is not None:
        same = np.unique(axis.times, return_inverse=True)[1] * len(cells) + cell_at
    of_events = options.resampling is not None and options.resampling.of_events
    if not of_events and (copies := _copies(df[columns], times, same, zone, options)).any():
        df, options = _without(df, copies, options)
        return from_long(df, time=time, cell=cell, values=values, options=options)
    repeat = _first_repeat(same)
    if repeat and options.duplicates == "error" and not of_events:
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
    if options.resampling and options.resampling.of_counters:
        of_cells = _rows_of_cells(cell_at, len(cells))
        series = {c: readings(df[c], origin) for c in columns}
        counters = {c: [(v[i], axis.times[i]) for i in of_cells] for c, v in series.items()}
        cube, axis = _increases(counters, axis, cells, options)
    else:
        cube = _in_steps(df[columns], same, cell_at, axis, cells, options)
    places = read_places(df, cell_at, origin)
    for kept in properties:
        log.info("%s: column %s has one value for each cell and is kept", origin.name, kept)
    made = _make_cube(cube, axis, cells, options, places)
    return made.assign_coords({n: ("cell", _of_cells(v, cells)) for n, v in properties.items()})


def _in_steps(
    df: pd.DataFrame,
    same: np.ndarray,
    cell_at: np.ndarray,
    axis: TimeAxis,
    cells: np.ndarray,
    options: CubeOptions,
) -> dict[str, np.ndarray]:
    """Put the values of rows into steps of cells, each `(steps, cells)`.

    Equal numbers in `same`, `(rows,)`, are rows of one record.
    """
    shape = len(axis.steps), len(cells)
    resampling, cube = options.resampling, {}
    at = same if resampling is None else axis.at * len(cells) + cell_at
    rows, record = _records(same)
    repeated = len(rows) < len(same)
    places = at[rows] if repeated else at
    n_events = np.bincount(at, minlength=shape[0] * shape[1]).reshape(shape)
    for c in df.columns:
        column = numbers(df[c], options.origin)
        _warn_of_averaged_zeros(column, str(c), options)
        if repeated:
            column = _place(column, record, len(rows), options, options.duplicates)
        cube[c] = _place(column, places, shape[0] * shape[1], options).reshape(shape)
        if resampling and resampling.of_events:
            gaps = options.allow_gaps
            cube[c] = resampling.fill(cube[c], n_events, axis, options.origin, gaps)
        elif resampling:
            seen = np.where(_seen(column, options), cell_at[rows], -1)
            of_cells = (rows[i] for i in _rows_of_cells(seen, len(cells)))
            records = ((axis.times[i], axis.at[i]) for i in of_cells)
            name = f"{options.origin.name}, {c}"
            cube[c] = resampling.merge_cells(cube[c], records, axis, cells, name)
    return cube


def _increases(
    counters: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
    axis: TimeAxis,
    cells: np.ndarray,
    options: CubeOptions,
) -> tuple[dict[str, np.ndarray], TimeAxis]:
    """Return the increments `(steps, cells)` of counters, and the steps from the first to the last.

    Each counter has the readings and times of each cell.
    """
    found = {}
    for name, of_cells in counters.items():
        seen = [_seen(values, options) for values, _ in of_cells]
        known = [(v[s], t[s]) for (v, t), s in zip(of_cells, seen, strict=True)]
        found[name] = increments(known, axis)
    refuse_levels(found, options.origin)
    for name, own in found.items():
        own.say(cells, f"{options.origin.name}, {name}")
    any_known = [np.isfinite(own.values).any(axis=1) for own in found.values()]
    steps = np.flatnonzero(np.any(any_known, axis=0))
    if not steps.size:
        raise InputError(
            f"{options.origin.name}: no step lies between two readings of a counter; ",
            Words("give a longer {resample}"),
        )
    span = slice(steps[0], steps[-1] + 1)
    whole = {name: own.values[span] for name, own in found.items()}
    return whole, dataclasses.replace(axis, steps=axis.steps[span])


def _check_not_empty(df: pd.DataFrame, origin: Origin) -> None:
    if df.empty:
        raise InputError(
            f"{origin.name}: {df.shape[0]} rows and {df.shape[1]} columns of data, expected at "
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
    options: CubeOptions,
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


def _without(
    df: pd.DataFrame, copies: np.ndarray, options: CubeOptions
) -> tuple[pd.DataFrame, CubeOptions]:
    """Return a frame without rows that are copies, and its options; say how many they are."""
    kept, origin = np.flatnonzero(~copies), options.origin
    log.warning(
        "%s: left out %s, the first in %s",
        origin.name,
        counted(int(copies.sum()), "repeated row"),
        origin.place(int(copies.argmax())),
    )
    return df.iloc[kept], dataclasses.replace(options, origin=origin.of_rows(kept))


def _to_read_hour_twice(
    times: pd.DatetimeIndex, same: np.ndarray, zone: str | None, options: CubeOptions
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
    values: np.ndarray, at: np.ndarray, size: int, options: CubeOptions, merge: str = ""
) -> np.ndarray:
    """Place rows at their positions among `size`, NaN elsewhere; merge repeated positions.

    They are merged to their sum or mean; the default is the aggregate of the resampling.
    """
    check_size(8 * size * math.prod(values.shape[1:]), f"{options.origin.name}: the cube")
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


def _seen(values: np.ndarray, options: CubeOptions) -> np.ndarray:
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
    log.warning(
        "%s: %s without a value of %s: %s; leave out by %s",
        origin.name,
        counted(cells.size, "cell"),
        variable,
        some(cells, SHOWN),
        advice,
    )


def _warn_of_averaged_zeros(values: np.ndarray, variable: str, options: CubeOptions) -> None:
    """Log speeds of 0 that are going to be part of means, where they are not seen any more."""
    averaged = options.resampling is not None and options.resampling.agg == "mean"
    if averaged and not options.zero_is_missing:
        name = f"{options.origin.name}: {variable}"
        warn_of_speeds_of_0(values, name, options.unit_of(variable))


def _warn_of_summed_levels(variables: Sequence[str], options: CubeOptions) -> None:
    """Log the variables that an option adds up, and that are likely levels such as speeds."""
    levels = [v for v in variables if is_level(v, options.unit_of(v))]
    summed = options.resampling is not None and options.resampling.agg == "sum"
    if levels and (summed or options.duplicates == "sum"):
        log.warning(
            "%s: sums of %s, which are likely levels or rates; prepare these apart, with %s",
            options.origin.name,
            some(levels, SHOWN),
            Words("{agg:mean}") if summed else Words("{duplicates:mean}"),
        )


def _make_cube(
    values: Mapping[str, np.ndarray],
    axis: TimeAxis,
    cells: np.ndarray,
    options: CubeOptions,
    places: tuple[np.ndarray, np.ndarray] | None = None,
) -> xr.Dataset:
    odd = [n for n in values if not n.isprintable() or n in ("", *RESERVED) or "/" in n]
    if odd:
        raise InputError(
            f"{options.origin.name}: a variable cannot be named {odd[0]!r} (nor hold a '/'); ",
            Words("rename it or choose columns with {values}"),
        )
    seen = {variable: _seen(grid, options).any(axis=0) for variable, grid in values.items()}
    if not any(cells_seen.any() for cells_seen in seen.values()):
        raise InputError(
            f"{options.origin.name}: all values of {some(list(values))} are missing, expected "
            "numbers; correct the table or ",
            Words("choose other columns with {values}"),
        )
    if empty := [variable for variable, cells_seen in seen.items() if not cells_seen.any()]:
        log.warning("%s: without a value in any cell: %s", options.origin.name, some(empty, 6))
    for variable in (v for v in values if v not in empty):
        _warn_of_empty(variable, cells[~seen[variable]], options.origin)
    _warn_of_summed_levels(list(values), options)
    if options.resampling:
        options.resampling.report(values, options.origin.name)
    lon, lat = places or (None, None)
    about = {name: getattr(options, name) for name in ABOUT}
    about["units"] = {variable: options.unit_of(variable) for variable in values}
    about |= {"time_zone": axis.zone, "clock": axis.clock, "lon": lon, "lat": lat}
    return make_cube(values, axis.steps, cells, **about)


def _of_cells(values: pd.Series, cells: np.ndarray) -> np.ndarray:
    """Return a property of each cell, `(cells,)`, as text or numbers."""
    found = values.loc[cells]
    return found.to_numpy(dtype=str) if is_text(found) else found.to_numpy()
