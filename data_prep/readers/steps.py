"""Put the rows of a table, long or wide, into even steps: a cube."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr

from data_prep.base.errors import InputError, Words, counted, some
from data_prep.base.limits import check_size
from data_prep.cube import make_cube, with_places
from data_prep.notices import warn_of_speeds_of_0
from data_prep.readers.cells import ALL_BUT, whole_numbers
from data_prep.readers.columns import cell_ids, either, factorize, numbers
from data_prep.readers.counters import increments, readings, refuse_levels
from data_prep.readers.ids import MOST_AGAIN, SHOWN_CELLS, may_name_cells
from data_prep.readers.join import named_above
from data_prep.readers.options import FILE, TableOptions
from data_prep.readers.origin import Origin, StepLog
from data_prep.readers.places import read_places, read_properties
from data_prep.readers.resampling import DAY, check_periods, check_steps
from data_prep.readers.table import Table, is_text
from data_prep.readers.time_axis import TimeAxis, may_be_shown_twice, place_times
from data_prep.readers.times import read_times
from data_prep.readers.units import is_level, usual

SHOWN = 5
LISTED = 30  # Cells in an option; with more, an ellipsis that no command takes for a cell.

log = StepLog("steps")


def apply(table: Table, options: TableOptions) -> xr.Dataset:
    """Turn a table whose cells are known into a cube."""
    _check_not_empty(*table.columns.shape, table.origin)
    times = table.series(table.time)
    if table.kind == "wide":
        ids = pd.Index(whole_numbers(pl.Series(table.values, dtype=pl.String)).to_list())
        columns = [table.series(c).rename(id_) for c, id_ in zip(table.values, ids, strict=True)]
        return _Rows(table, times, columns, cell_ids(ids, table.origin), None, options).cube()
    cell = table.cells[0]
    properties = read_properties(table, [table.time, cell, *table.values])
    columns = [table.series(c) for c in table.values if c not in properties]
    cells, cell_at = factorize(table.series(cell), table.origin)
    cube = _Rows(table, times, columns, cells, cell_at, options).cube()
    places = read_places(table, cell_at)
    for name in properties:
        log.info(table.origin, f"column {name} has one value for each cell and is kept")
    first = np.unique(cell_at, return_index=True)[1]
    cube = cube if places is None else with_places(cube, *places)
    of_cells = {n: table[n][first] for n in properties}
    known = {n: np.array([*v], str) if is_text(v) else v.to_numpy() for n, v in of_cells.items()}
    return cube.assign_coords({n: ("cell", values) for n, values in known.items()})


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
    table = Table(units={name: options.units or "1"}, about=about)
    _check_not_empty(*df.shape, table.origin)
    columns = [df.iloc[:, i] for i in range(df.shape[1])]
    cells = cell_ids(df.columns, table.origin)
    return _Rows(table, df.index.to_series(), columns, cells, None, options).cube()


@dataclass(frozen=True)
class _Rows:
    """Rows to put into steps.

    Attributes:
        table: where they stand, and the units.
        written_times: `(rows,)` times as they are written.
        columns: `(rows,)` values of each variable, or, without `cell_at`, of each cell.
        cells: `(cells,)` ids.
        cell_at: `(rows,)` position of each row's cell; None if columns are cells.
        options: how to read times, and what to do with gaps and repeated rows.
    """

    table: Table
    written_times: pd.Series
    columns: Sequence[pd.Series]
    cells: np.ndarray
    cell_at: np.ndarray | None
    options: TableOptions

    @property
    def origin(self) -> Origin:
        """Where the rows stand."""
        return self.table.origin

    def cube(self) -> xr.Dataset:
        """Return the cube of the rows."""
        options, origin = self.options, self.origin
        times, zone = read_times(
            self.written_times, options.clock, origin, options.time_format, options.time_zone
        )
        _ask_for_files(times, self.table, options)
        cell_at = np.zeros(len(times), dtype=np.int64) if self.cell_at is None else self.cell_at
        axis = place_times(times, cell_at, zone, origin, options, self.table.ends)
        at = axis.at
        if options.resampling is not None:
            at = np.unique(axis.times, return_inverse=True)[1]
        n_apart = 1 if self.cell_at is None else len(self.cells)
        same = at * n_apart + cell_at
        if options.resampling is None and self.cell_at is None:
            check_steps(axis.shown, axis.at, origin, options.gaps)
        repeat = None if options.of_events else _first_repeat(same)
        if repeat and options.duplicates == "error":
            again = times[pd.Series(same).duplicated().to_numpy()]
            twice = zone is None and may_be_shown_twice(again, options.time_zone or None)
            columns = (column.reset_index(drop=True) for column in self.columns)
            rows = pd.concat([pd.Series(same), *columns], axis=1, ignore_index=True)
            copies = rows.duplicated().to_numpy()
            if copies.any() and not twice:
                return self._without(copies).cube()
            raise self._repeated(repeat, times, same, twice)
        if options.resampling is None and self.cell_at is not None:
            check_periods(axis.shown, axis.at, self.cells, cell_at, origin, options.gaps)
        if options.of_counters:
            values, axis = self._increases(axis)
        else:
            even = options.resampling is None
            slots = same if even else axis.at * n_apart + cell_at
            values = self._in_steps(same, slots, axis)
        first, last = str(axis.shown[0]), str(axis.shown[-1])
        log.note(origin, f"{counted(len(axis.steps), 'step')} from {first} to {last}")
        return _make_cube(values, axis, self.cells, self.table, options)

    def _without(self, copies: np.ndarray) -> _Rows:
        """Return the rows that are no copies; say how many were left out."""
        n, first = counted(int(copies.sum()), "repeated row"), int(copies.argmax())
        log.warning(self.origin, f"left out {n}, the first in {self.origin.place(first)}")
        return dataclasses.replace(
            self,
            table=self.table.with_(origin=self.origin.of_rows(np.flatnonzero(~copies))),
            written_times=self.written_times[~copies],
            columns=[column[~copies] for column in self.columns],
            cell_at=None if self.cell_at is None else self.cell_at[~copies],
        )

    def _repeated(
        self, repeat: tuple[int, int], times: pd.DatetimeIndex, same: np.ndarray, twice: bool
    ) -> InputError:
        """Return the error for two rows of one time and cell."""
        (first, second), origin = repeat, self.origin
        where = ""
        if self.table.kind == "long" and self.cell_at is not None:
            where = f"cell {self.cells[self.cell_at[first]]}"
        found = (
            f"{origin.at(second)}: time {', '.join(filter(None, (str(times[first]), where)))} is "
            f"already in {origin.place(first)}, expected one row for each; "
        )
        two_hours = Words(
            "if they are two hours that a clock shows alike, as daylight saving time ends, pass "
            "{clock:local} and {time_zone}; else remove one, or pass {duplicates:sum} or "
            "{duplicates:mean}"
        )
        return InputError(found, *([two_hours] if twice else self._ways_to_merge(same)))

    def _ways_to_merge(self, same: np.ndarray) -> list[str | Words]:
        """Return advice on rows of one time and cell, which sums and means merge only if few."""
        origin, table = self.origin, self.table
        if not table.times:  # of a frame
            long = "give df.reset_index() if the table is long; else remove one, or pass "
            return [f"{long}duplicates='sum' or duplicates='mean' to open_cube(df, …)"]
        ways: list[str | Words] = []
        if origin.stack and FILE not in table:
            known = table.cells if table.kind == "long" else ()
            ways.append(Words("if files are cells, pass {cell}; ", cell=",".join((*known, FILE))))
        few = len(same) - len(np.unique(same)) <= MOST_AGAIN * len(same)
        if not few and (found := may_name_cells(table)[:SHOWN_CELLS]):
            names = [Words("{cell}", cell=name) for name in found]
            ways += ["if a column tells cells apart, pass ", *either(names), "; "]
        merged = Words(" or pass {duplicates:sum} or {duplicates:mean}") if few else " in each case"
        ways += ["remove one", merged]
        if not few:
            ways.append(Words("; count rows with {resample:1h} {agg:count} if each is an event"))
        return ways

    def _values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each variable's values, `(rows,)`, or `(rows, cells)` if columns are cells."""
        if self.cell_at is None:
            grid = np.column_stack([numbers(column, self.origin) for column in self.columns])
            yield self.options.name, grid
        else:
            for column in self.columns:
                yield str(column.name), numbers(column, self.origin)

    def _in_steps(
        self, same: np.ndarray, slots: np.ndarray, axis: TimeAxis
    ) -> dict[str, np.ndarray]:
        """Put the values of rows into steps of cells, each `(steps, cells)`.

        Equal numbers in `same`, `(rows,)`, are rows of one record; `slots` are the records' places.
        """
        shape, options, origin = (len(axis.steps), len(self.cells)), self.options, self.origin
        size = shape[0] if self.cell_at is None else math.prod(shape)
        resampling, cube = options.resampling, {}
        rows = record = np.arange(len(same))
        if _first_repeat(same) is not None:
            _, rows, record = np.unique(same, return_index=True, return_inverse=True)
        repeated = len(rows) < len(same)
        places = slots[rows] if repeated else slots
        for name, values in self._values():
            if resampling and resampling.agg == "mean" and not options.zero_is_missing:
                # They are not seen any more in means.
                warn_of_speeds_of_0(values, f"{origin.name}: {name}", _unit_of(name, self.table))
            if repeated:
                values = _place(values, record, len(rows), origin, options, options.duplicates)
            cube[name] = _place(values, places, size, origin, options).reshape(shape)
            if resampling and resampling.of_events:
                n_events = np.bincount(slots, minlength=size).reshape(shape)
                gaps = options.allow_gaps
                cube[name] = resampling.fill(cube[name], n_events, axis, origin, gaps)
            elif resampling:
                seen = _seen(values, options)
                if self.cell_at is None:
                    of_cells = (rows[known] for known in seen.T)
                else:
                    own = np.where(seen, self.cell_at[rows], -1)
                    of_cells = (rows[i] for i in _split(own, len(self.cells)))
                records = ((axis.times[i], axis.at[i]) for i in of_cells)
                what = origin.name if self.cell_at is None else f"{origin.name}, {name}"
                cube[name] = resampling.merge_cells(cube[name], records, axis, self.cells, what)
        return cube

    def _counters(
        self, axis: TimeAxis
    ) -> Iterator[tuple[str, list[tuple[np.ndarray, np.ndarray]]]]:
        """Yield the readings and times of each cell's counter, of each variable."""
        if self.cell_at is None:
            found = [(readings(column, self.origin), axis.times) for column in self.columns]
            yield self.options.name, found
        else:
            of_cells = _split(self.cell_at, len(self.cells))
            for column in self.columns:
                known = readings(column, self.origin)
                yield str(column.name), [(known[i], axis.times[i]) for i in of_cells]

    def _increases(self, axis: TimeAxis) -> tuple[dict[str, np.ndarray], TimeAxis]:
        """Return the increments `(steps, cells)` of counters, and the steps first to last."""
        found = {}
        for name, of_cells in self._counters(axis):
            seen = [_seen(values, self.options) for values, _ in of_cells]
            known = [(v[s], t[s]) for (v, t), s in zip(of_cells, seen, strict=True)]
            found[name] = increments(known, axis)
        refuse_levels(found, self.origin)
        for name, own in found.items():
            own.say(self.cells, f"{self.origin.name}, {name}")
        any_known = [np.isfinite(own.values).any(axis=1) for own in found.values()]
        steps = np.flatnonzero(np.any(any_known, axis=0))
        if not steps.size:
            raise InputError(
                f"{self.origin.name}: no step lies between two readings of a counter; ",
                Words("give a longer {resample}"),
            )
        span = slice(steps[0], steps[-1] + 1)
        whole = {name: own.values[span] for name, own in found.items()}
        return whole, dataclasses.replace(axis, steps=axis.steps[span])


def _ask_for_files(times: pd.DatetimeIndex, table: Table, options: TableOptions) -> None:
    """Raise an error if files below each other are of one cell, and not named by their dates."""
    origin = table.origin
    of_one = table.kind == "services" or len(table.values) == 1
    given = options.layout != "auto" or options.of_events or FILE in table
    if not origin.stack or given or table.kind == "long" or not of_one:
        return
    at = origin.rows if origin.rows is not None else np.arange(len(times))
    parts = np.searchsorted([start for start, _ in origin.stack], at, side="right") - 1
    files = [part.name for _, part in origin.stack]
    if all(_is_dated(file, times[parts == i]) for i, file in enumerate(files)):
        return
    raise InputError(
        f"{origin.name}: {len(files)} tables ({some(files, 3)}) without a column of cells; ",
        Words(
            "pass {cell:file} if each is a cell, {layout} if they are spans of one cell",
            layout=table.kind,
        ),
        *(Words(", {}", way) for way in named_above(table)),
    )


def _is_dated(file: str, times: pd.DatetimeIndex) -> bool:
    """Return whether a file's name holds a date near the times of its rows.

    >>> day = pd.date_range("2024-05-10", periods=24, freq="h")
    >>> [_is_dated(f, day) for f in ("a20240510.csv", "10.05.24.csv", "2024-05", "2023-05-10")]
    [True, True, True, False]
    """
    of_iso = re.finditer(r"((19|20)\d\d)[-_. ]?(0[1-9]|1[0-2])(?:[-_. ]?([0-3]\d))?", file)
    dates = [(m[1], m[3], m[4]) for m in of_iso]
    day_first = r"([0-3]\d)[-_. ]([01]\d)[-_. ]((?:20)?\d\d)"
    for first, second, year in re.findall(day_first, file):
        dates += [(year, second, first), (year, first, second)]
    if not len(times):
        return bool(dates)
    for year, month, day in dates:
        begin = pd.to_datetime(
            f"{year[-2:]}-{month}-{day or '01'}", format="%y-%m-%d", errors="coerce"
        )
        end = begin + (pd.Timedelta(days=1) if day else pd.offsets.MonthEnd())
        if begin <= times.max() + DAY and end >= times.min() - DAY:
            return True
    return False


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
    merged = total / np.maximum(count, 1) if (merge or options.agg) == "mean" else total
    return np.where(count > 0, merged, np.nan)


def _seen(values: np.ndarray, options: TableOptions) -> np.ndarray:
    """Return which values were recorded, in their shape."""
    return np.asarray(~np.isnan(values) & ((values != 0) | (not options.zero_is_missing)))


def _split(cell_at: np.ndarray, n_cells: int) -> list[np.ndarray]:
    """Return the rows of each cell; those at position -1 are of none."""
    order = np.argsort(cell_at, kind="stable")
    return np.split(order, np.searchsorted(cell_at[order], np.arange(n_cells + 1)))[1:-1]


def _unit_of(variable: str, table: Table) -> str:
    """Return the unit of a variable in its usual spelling, `"1"` for none."""
    return usual(table.units.get(variable, "1"))


def _make_cube(
    values: Mapping[str, np.ndarray],
    axis: TimeAxis,
    cells: np.ndarray,
    table: Table,
    options: TableOptions,
) -> xr.Dataset:
    reserved = ("", "time", "cell", "lon", "lat")
    if odd := [n for n in values if not n.isprintable() or n in reserved or "/" in n]:
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
    for variable in (v for v in values if v not in empty and not seen[v].all()):
        absent = cells[~seen[variable]]  # No model can be trained for them.
        listed = absent.tolist() if absent.size <= LISTED else [*absent[:SHOWN].tolist(), "…"]
        advice = table.origin.either(
            Words("{cells}", cells=f"{ALL_BUT}{','.join(map(str, listed))}"),
            f"df.drop(columns={listed})",
        )
        shown = f"{counted(absent.size, 'cell')} without a value of {variable}"
        log.warning(table.origin, f"{shown}: {some(absent, SHOWN)}; leave out by ", advice)
    levels = [v for v in values if is_level(v, _unit_of(v, table))]
    if levels and "sum" in (options.agg, options.duplicates):
        log.warning(
            table.origin,
            f"sums of {some(levels, SHOWN)}, which are likely levels or rates; prepare "
            "these apart, with ",
            Words("{agg:mean}" if options.agg == "sum" else "{duplicates:mean}"),
        )
    if options.resampling:
        options.resampling.report(values, table.origin.name)
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
    )
