"""Any table of your own: CSV or Parquet, long (time, cell, values) or wide (time × cell).

- Files: `.csv`, `.tsv`, `.csv.gz` (separator `,`, `;` or tab, decimal point, UTF-8) and `.parquet`.
- Long: one row per (time, cell), one variable per value column. Wide: one column per cell. The time
  column of a wide table may be unnamed if it is the first, as `DataFrame.to_csv` writes it.
- Times: ISO 8601. With an offset (`+01:00`, `Z`) they become UTC; without one they are what `clock`
  says. Whole numbers are seconds or milliseconds since 1970, told apart by their size; those that
  fall outside the years 1985 to 2030 in both units (`20240101`, `202401010000`) are refused.
- Missing: an empty field, `NA`, `N/A`, `NaN`, `nan` or `null`. Negative values are kept.
- Cells: ids read as text become integers if all are whole numbers without leading zero or sign
  (not `007`), else stay text. A long table's cells are sorted; a wide table's keep their order.
- Rows may come in any order. Nothing is dropped, padded or averaged unless an option says so; a
  column without a single number is left out with a warning unless `values` names it.
- Trap: a wall clock repeats an hour in autumn and skips one in spring. Write times with their
  offset, or choose for a local clock what `duplicates` and `allow_gaps` should do.
- Units, licence and source are yours to state; the file's name and SHA-256 are kept in the cube.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import logging
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr
from pandas.api import types

from data_prep.cube import CLOCKS, make_cube, write_cube
from data_prep.errors import InputError, choose

SOURCES: tuple = ()
LAYOUTS = ("auto", "long", "wide")
DUPLICATES = ("error", "sum", "mean")
SUFFIXES = (".csv", ".tsv", ".csv.gz", ".parquet")
MISSING = ["", "NA", "N/A", "NaN", "nan", "null"]
RESERVED = ("time", "cell", "lon", "lat")
# The years 1985 to 2030 in seconds: beyond them digits may also be a date such as 2031010100.
EPOCH_SECONDS = (5e8, 1.9e9)
_WHOLE_NUMBER = r"^(0|[1-9]\d{0,17})$"
_OFFSET = r"[T ]\d{2}.*(?:Z|[+-]\d{2}(?::?\d{2})?)\s*$"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """Where the rows of a table stand, to name them in errors.

    Args:
        name: the file or object.
        unit: what its rows are called.
        first: number of the first row of data.

    >>> Origin("speed.csv", "line", 2).at(3)
    'speed.csv, line 5'
    """

    name: str = "the DataFrame"
    unit: str = "row"
    first: int = 0

    def at(self, row: int) -> str:
        """Name and number of a row, counted from 0."""
        return f"{self.name}, {self.unit} {self.first + int(row)}"


@dataclass(frozen=True)
class TableOptions:
    """What a cube must know that a table does not say.

    Args:
        units: unit of the values; `"1"` for none.
        time_zone: IANA name of the place's zone; None takes the table's own, else UTC.
        clock: what times without a zone are, `"utc"` or `"local"`; those with one become UTC.
        zero_is_missing: whether 0 says "not recorded".
        allow_gaps: leave NaN where a row is missing instead of raising.
        duplicates: what to do with several rows for one place of the cube: `"error"`, or the
            `"sum"` or `"mean"` of what was recorded.
        title: what the data are.
        source: where they come from.
        license: their licence.
        checksums: source file name to checksum.
        origin: what to call the table and its rows in errors.

    Raises:
        InputError: listing the valid names if one is unknown.
    """

    units: str = "1"
    time_zone: str | None = None
    clock: str = "utc"
    zero_is_missing: bool = False
    allow_gaps: bool = False
    duplicates: str = "error"
    title: str = "A table"
    source: str = "a pandas DataFrame"
    license: str = "not stated"
    checksums: Mapping[str, str] = field(default_factory=dict)
    origin: Origin = Origin()

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise choose("clock", self.clock, CLOCKS)
        if self.duplicates not in DUPLICATES:
            raise choose("choice for duplicates", self.duplicates, DUPLICATES)
        if self.time_zone is not None:
            check_time_zone(self.time_zone)


def prepare(
    raw: Path,
    out: Path,
    *,
    layout: str = "auto",
    time: str = "time",
    cell: str = "cell",
    values: str | None = None,
    name: str = "value",
    units: str = "1",
    time_zone: str | None = None,
    clock: str = "utc",
    zero_is_missing: bool = False,
    allow_gaps: bool = False,
    duplicates: str = "error",
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
        zero_is_missing: Whether a 0 says that nothing was recorded.
        allow_gaps: Leave NaN where a row is missing instead of refusing the table.
        duplicates: What to do with several rows for one time and cell: "error", "sum" or "mean".
        progress: Accepted as for every data set; a table is read in one go.

    Returns:
        The path of the cube.

    Raises:
        InputError: naming the file, the line and what is wrong with it.
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
    if layout == "long" or (layout == "auto" and cell in df.columns):
        ds = from_long(df, time=time, cell=cell, values=chosen, options=options)
    else:
        wide = _set_time_and_cells(df, time, chosen, origin)
        ds = from_frame(wide, name=name, options=options)
    return write_cube(ds, out)


def from_frame(
    df: pd.DataFrame, *, name: str = "value", options: TableOptions = TableOptions()
) -> xr.Dataset:
    """Turn a wide frame, one row per time and one column per cell, into a cube.

    Args:
        df: `(time, cell)`; its index holds the times, its columns the cell ids.
        name: name of the variable.
        options: units, time zone, clock and what to do about gaps.

    Returns:
        The cube, cells in the order of the columns.

    Raises:
        InputError: naming the row and what is wrong with it.

    >>> index = pd.date_range("2024-01-01", periods=2, freq="h", tz="Europe/Rome")
    >>> ds = from_frame(pd.DataFrame({7: [1.0, 2.0]}, index=index), name="net")
    >>> str(ds.time.values[0]), ds.attrs["time_zone"]
    ('2023-12-31T23:00:00.000000000', 'Europe/Rome')
    """
    origin = options.origin
    _refuse_nothing(df, origin)
    cells = _cell_ids(df.columns, origin)
    times, zone = _read_times(df.index.to_series(), options.clock, origin)
    axis, at = regular_steps(times, origin.name, allow_gaps=options.allow_gaps)
    repeat = _first_repeat(at)
    if repeat and options.duplicates == "error":
        raise InputError(
            f"{origin.at(repeat[1])}: time {times[repeat[0]]} stands already in {origin.unit} "
            f"{origin.first + repeat[0]}, expected one row per time; name the column of cells with "
            "--cell if the table is long, or pass --duplicates sum or mean"
        )
    columns = np.column_stack([numbers(df.iloc[:, i], origin) for i in range(df.shape[1])])
    values = {name: _place(columns, at, len(axis), options)}
    return _make_cube(values, axis, cells, zone, options)


def from_long(
    df: pd.DataFrame,
    *,
    time: str = "time",
    cell: str = "cell",
    values: Sequence[str] | None = None,
    options: TableOptions = TableOptions(),
) -> xr.Dataset:
    """Turn a long frame, one row per (time, cell), into a cube with one variable per value column.

    Args:
        df: columns of times, cells and values.
        time: name of the column of times.
        cell: name of the column of cell ids, integers or text.
        values: the value columns; None takes every other column that holds numbers.
        options: units, time zone, clock and what to do about gaps.

    Returns:
        The cube, cells sorted.

    Raises:
        InputError: naming the row and what is wrong with it.
    """
    origin = options.origin
    _refuse_nothing(df, origin)
    columns = _value_columns(df, [time, cell], values, origin)
    times, zone = _read_times(df[time], options.clock, origin)
    cells, cell_at = _factorize(df[cell], origin)
    axis, time_at = regular_steps(times, origin.name, allow_gaps=options.allow_gaps)
    at = time_at * len(cells) + cell_at
    repeat = _first_repeat(at)
    if repeat and options.duplicates == "error":
        raise InputError(
            f"{origin.at(repeat[1])}: time {times[repeat[0]]}, cell {cells[cell_at[repeat[0]]]} "
            f"stands already in {origin.unit} {origin.first + repeat[0]}, expected one row for "
            "each; remove one or pass --duplicates sum or mean"
        )
    _check_holes(at, axis, cells, options)
    shape = len(axis), len(cells)
    grids = {c: _place(numbers(df[c], origin), at, shape[0] * shape[1], options) for c in columns}
    return _make_cube({c: g.reshape(shape) for c, g in grids.items()}, axis, cells, zone, options)


def regular_steps(
    times: pd.DatetimeIndex, name: str, *, allow_gaps: bool = False
) -> tuple[pd.DatetimeIndex, np.ndarray]:
    """Find the even time axis that times lie on; its step is the most frequent difference.

    Args:
        times: `(rows,)` in any order, repeated or not.
        name: what to call them in errors.
        allow_gaps: log steps without a row instead of raising.

    Returns:
        The axis `(steps,)` and the position of each time on it, `(rows,)`.

    Raises:
        InputError: if a time lies off the axis, or a step has no row and `allow_gaps` is False.
    """
    unique = times.unique().sort_values()
    if len(unique) == 1:
        return unique, np.zeros(len(times), dtype=np.int64)
    gaps = np.diff(unique)
    lengths, counts = np.unique(gaps, return_counts=True)
    step = lengths[counts.argmax()]
    uneven = np.flatnonzero(gaps % step)
    if uneven.size:
        i = int(uneven[0])
        raise InputError(
            f"{name}: time steps are not even: {unique[i]} to {unique[i + 1]} is "
            f"{pd.Timedelta(gaps[i])}, most steps are {pd.Timedelta(step)}; resample to even steps"
        )
    axis = pd.date_range(unique[0], unique[-1], freq=pd.Timedelta(step))
    if len(axis) > len(unique):
        i = int(np.argmax(gaps > step))
        message = (
            f"{name}: {len(axis) - len(unique)} of {len(axis)} time steps have no row, the first "
            f"after {unique[i]} (next row {unique[i + 1]})"
        )
        _refuse_or_log(message, allow_gaps)
    return axis, axis.get_indexer(times)


def read_table(
    path: Path, *, text_columns: Sequence[str] = (), id_column: str | None = None
) -> tuple[pd.DataFrame, Origin]:
    """Read a CSV or Parquet file whole.

    Args:
        path: a file with one of the `SUFFIXES`.
        text_columns: columns of a CSV to keep as text, so that nothing is guessed about them.
        id_column: a column of ids: integers if every one reads like an integer, else text.

    Returns:
        The table, NaN or None where a field is empty, and what to call its rows in errors.

    Raises:
        InputError: if the file cannot be read or a line has too few or too many fields.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise InputError(f"{path}: no table here (found {found}); give {' or '.join(SUFFIXES)}")
    if not path.name.endswith(SUFFIXES):
        raise InputError(
            f"{path.name}: unknown kind of file {path.suffix!r}, expected one of "
            f"{', '.join(SUFFIXES)}; save the table as one of them"
        )
    parquet = path.suffix == ".parquet"
    texts = [*text_columns, *([id_column] if id_column is not None else [])]
    try:
        table = pl.read_parquet(path) if parquet else _read_text(path, texts)
    except (pl.exceptions.PolarsError, OSError, EOFError, zlib.error) as e:
        reason = str(e).partition("\n")[0]
        kind = "Parquet" if parquet else "a table in UTF-8"
        raise InputError(f"{path.name}: cannot be read as {kind} ({reason}); save it again") from e
    if id_column in table.columns:
        table = table.with_columns(_whole_numbers(table[id_column]))
    df = pd.DataFrame({name: _to_pandas(table[name]) for name in table.columns})
    return df, Origin(path.name, "row", 1) if parquet else Origin(path.name, "line", 2)


def numbers(column: pd.Series, origin: Origin) -> np.ndarray:
    """A column as `(rows,)` float64, NaN where empty.

    Raises:
        InputError: naming the first row that holds something else than a finite number.
    """
    values = _coerce(column)
    wrong = np.flatnonzero((np.isnan(values) & column.notna().to_numpy()) | np.isinf(values))
    if wrong.size:
        row = int(wrong[0])
        raise InputError(
            f"{origin.at(row)}: column {column.name!r} holds {str(column.iloc[row])!r}, expected a "
            "finite number; correct it, leave it empty if missing, or choose other columns"
        )
    return values


def require_columns(df: pd.DataFrame, columns: Iterable[str], origin: Origin) -> None:
    """Check that a table has all of `columns`.

    Raises:
        InputError: naming the first that is missing and those that are there.
    """
    for column in columns:
        if column not in df.columns:
            found = ", ".join(map(repr, df.columns[:20]))
            raise InputError(
                f"{origin.name}: no column {column!r} among {found}; rename one or choose another"
            )


def check_time_zone(name: str) -> None:
    """Check that `name` is an IANA time zone.

    Raises:
        InputError: if it is not.
    """
    if _zone_name(name) is None:
        raise InputError(f"unknown time zone {name!r}; give an IANA name such as Europe/Rome")


def checksum(path: Path) -> str:
    """SHA-256 of a file, as `"sha256:…"`."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _make_cube(
    values: Mapping[str, np.ndarray],
    axis: pd.DatetimeIndex,
    cells: np.ndarray,
    zone: str | None,
    options: TableOptions,
) -> xr.Dataset:
    odd = [name for name in values if name in RESERVED or "/" in name]
    if odd:
        raise InputError(
            f"{options.origin.name}: a variable cannot be named {odd[0]!r} (nor hold a '/'); "
            "rename it or choose columns with --values"
        )
    return make_cube(
        values,
        axis,
        cells,
        title=options.title,
        source=options.source,
        license=options.license,
        units=options.units,
        time_zone=options.time_zone or zone or "UTC",
        clock=options.clock,
        zero_is_missing=options.zero_is_missing,
        checksums=options.checksums,
    )


def _refuse_nothing(df: pd.DataFrame, origin: Origin) -> None:
    if df.empty:
        raise InputError(
            f"{origin.name}: {df.shape[0]} rows and {df.shape[1]} columns of data, expected at "
            "least one of each; give the table that holds the records"
        )


def _value_columns(
    df: pd.DataFrame, keys: Sequence[str], values: Sequence[str] | None, origin: Origin
) -> list[str]:
    """The columns to read: those named, else all but `keys` that hold at least one number."""
    require_columns(df, (*keys, *(values or ())), origin)
    others = [c for c in df.columns if c not in keys]
    columns = list(values) if values else [c for c in others if _holds_numbers(df[c])]
    if not columns:
        raise InputError(f"{origin.name}: no column of numbers beside {', '.join(keys)}; add one")
    if values is None and len(columns) < len(others):
        text = [c for c in others if c not in columns]
        logger.warning("%s: columns without numbers are left out: %s", origin.name, text)
    return columns


def _holds_numbers(column: pd.Series) -> bool:
    return bool(column.isna().all()) or not bool(np.isnan(_coerce(column)).all())


def _set_time_and_cells(
    df: pd.DataFrame, time: str, values: Sequence[str] | None, origin: Origin
) -> pd.DataFrame:
    """A wide file as a frame with the times as index and the cell ids as columns."""
    unnamed = time not in df.columns and df.columns[0] == ""
    time = "" if unnamed else time
    columns = _value_columns(df, [time], values, origin)
    ids = _whole_numbers(pl.Series(columns, dtype=pl.String)).to_list()
    return df.set_index(time)[columns].set_axis(ids, axis="columns")


def _whole_numbers(ids: pl.Series) -> pl.Series:
    """Text ids as integers if every one reads like an integer, else unchanged."""
    if ids.dtype != pl.String:
        return ids
    return ids.cast(pl.Int64) if ids.str.contains(_WHOLE_NUMBER).all() else ids


def _cell_ids(ids: pd.Index, origin: Origin) -> np.ndarray:
    if ids.has_duplicates:
        raise InputError(
            f"{origin.name}: cell {ids[ids.duplicated()][0]!r} occurs more than once among the "
            "columns, expected one column per cell; rename or merge them"
        )
    if types.is_integer_dtype(ids):
        return ids.to_numpy(dtype=np.int64)
    odd = [i for i in ids if not isinstance(i, str)]
    if odd:
        raise InputError(
            f"{origin.name}: cell id {odd[0]!r} is a {type(odd[0]).__name__}, expected integers "
            "or text throughout; convert the ids"
        )
    return np.array(list(ids), dtype=str)


def _factorize(cells: pd.Series, origin: Origin) -> tuple[np.ndarray, np.ndarray]:
    """Sorted cell ids `(cells,)` and the position of each row's among them, `(rows,)`."""
    _refuse_empty(cells, "cell id", origin)
    codes, ids = pd.factorize(cells)
    named = _cell_ids(pd.Index(ids), origin)
    order = np.argsort(named)
    return named[order], np.argsort(order)[codes]


def _refuse_empty(column: pd.Series, what: str, origin: Origin) -> None:
    empty = np.flatnonzero(column.isna())
    if empty.size:
        raise InputError(
            f"{origin.at(empty[0])}: empty {what} ({empty.size} in all), expected one in every "
            "row; fill it in or remove the row"
        )


def _coerce(column: pd.Series) -> np.ndarray:
    """A column as `(rows,)` float64, NaN where it holds no number."""
    if types.is_bool_dtype(column) or types.is_datetime64_any_dtype(column):
        return np.full(len(column), np.nan)
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _first_repeat(at: np.ndarray) -> tuple[int, int] | None:
    """Two rows with the same position, or None."""
    order = np.argsort(at, kind="stable")
    repeats = np.flatnonzero(np.diff(at[order]) == 0)
    if not repeats.size:
        return None
    return int(order[repeats[0]]), int(order[repeats[0] + 1])


def _check_holes(
    at: np.ndarray, axis: pd.DatetimeIndex, cells: np.ndarray, options: TableOptions
) -> None:
    """Refuse or log cells that have no row at a time when others have one."""
    present = np.zeros((len(axis), len(cells)), dtype=bool)
    present.flat[at] = True
    holes = ~present & present.any(axis=1, keepdims=True)
    if holes.any():
        step, cell = divmod(int(holes.argmax()), len(cells))
        message = (
            f"{options.origin.name}: {holes.sum()} of {holes.size} (time, cell) pairs have no row, "
            f"the first is {axis[step]}, cell {cells[cell]}"
        )
        _refuse_or_log(message, options.allow_gaps)


def _refuse_or_log(message: str, allow_gaps: bool) -> None:
    if not allow_gaps:
        raise InputError(f"{message}; add what is missing or pass --allow-gaps to leave NaN there")
    logger.warning("%s; left as NaN", message)


def _place(values: np.ndarray, at: np.ndarray, size: int, options: TableOptions) -> np.ndarray:
    """Put rows at their positions among `size`, NaN elsewhere; repeated positions are merged."""
    out = np.full((size, *values.shape[1:]), np.nan)
    if _first_repeat(at) is None:
        out[at] = values
        return out
    seen = ~np.isnan(values) & ((values != 0) | (not options.zero_is_missing))
    count, total = np.zeros_like(out), np.zeros_like(out)
    np.add.at(count, at, seen)
    np.add.at(total, at, np.where(seen, values, 0.0))
    merged = total / np.maximum(count, 1) if options.duplicates == "mean" else total
    return np.where(count > 0, merged, np.nan)


def _read_times(
    column: pd.Series, clock: str, origin: Origin
) -> tuple[pd.DatetimeIndex, str | None]:
    """Times `(rows,)` without a zone, and the name of the zone they had, if any."""
    _refuse_empty(column, "time", origin)
    if types.is_datetime64_any_dtype(column):
        times = pd.DatetimeIndex(column)
    elif types.is_numeric_dtype(column):
        times = _from_epoch(column.to_numpy(dtype=np.float64), origin)
    else:
        times = _from_text(column.astype(str), origin)
    try:
        times = times.as_unit("ns")
    except pd.errors.OutOfBoundsDatetime as e:
        raise InputError(f"{origin.name}: {e}, expected years 1678 to 2261; correct it") from e
    if times.tz is None:
        return times, None
    if clock == "local":
        raise InputError(
            f"{origin.at(0)}: time {column.iloc[0]} has an offset or counts from 1970 UTC, but the "
            "clock is said to be local; leave out --clock local"
        )
    return times.tz_convert("UTC").tz_localize(None), _zone_name(str(times.tz))


def _zone_name(zone: str) -> str | None:
    """IANA name of a zone; None for a mere offset such as UTC+01:00."""
    try:
        return ZoneInfo(zone).key
    except (KeyError, ValueError, OSError):
        return None


def _from_epoch(numbers: np.ndarray, origin: Origin) -> pd.DatetimeIndex:
    """Seconds or milliseconds since 1970, told apart by their size, as UTC."""
    low, high = EPOCH_SECONDS
    seconds = (low <= numbers) & (numbers < high)
    milliseconds = (low * 1000 <= numbers) & (numbers < high * 1000)
    per_unit = np.select([seconds, milliseconds], [1000, 1], default=0)
    odd = np.flatnonzero((per_unit == 0) | (per_unit != per_unit[0]))
    if odd.size:
        raise InputError(
            f"{origin.at(odd[0])}: time {numbers[odd[0]]:.15g} is ambiguous, expected whole "
            "seconds or milliseconds since 1970 (years 1985 to 2030, one unit in all rows); write "
            "ISO 8601 such as 2013-11-01T00:00+01:00"
        )
    return pd.to_datetime(np.rint(numbers * per_unit).astype(np.int64), unit="ms", utc=True)


def _from_text(texts: pd.Series, origin: Origin) -> pd.DatetimeIndex:
    """ISO 8601 texts, all with an offset (UTC then) or all without, or digits since 1970."""
    if texts.str.fullmatch(r"\d+(\.\d+)?").all():
        return _from_epoch(texts.to_numpy(dtype=np.float64), origin)
    offset = texts.str.contains(_OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        row = int(np.argmax(offset != offset[0]))
        raise InputError(
            f"{origin.at(row)}: time {texts.iloc[row]!r} and {texts.iloc[0]!r} ({origin.at(0)}) "
            "mix time zones, one has an offset and one has none; write all with an offset"
        )
    times = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=bool(offset.all()))
    wrong = np.flatnonzero(times.isna())
    if wrong.size:
        raise InputError(
            f"{origin.at(wrong[0])}: cannot read time {texts.iloc[wrong[0]]!r}, expected ISO 8601 "
            "such as 2013-11-01T00:00+01:00; rewrite the column"
        )
    return pd.DatetimeIndex(times)


def _to_pandas(column: pl.Series) -> np.ndarray | pd.DatetimeIndex:
    values = column.to_numpy()
    if isinstance(column.dtype, pl.Datetime) and column.dtype.time_zone:
        return pd.DatetimeIndex(values).tz_localize("UTC").tz_convert(column.dtype.time_zone)
    return values


def _read_text(path: Path, text_columns: Iterable[str]) -> pl.DataFrame:
    with _open(path) as file:
        header = file.readline()
    separator = max(",;\t", key=header.count)
    names = next(csv.reader([header], delimiter=separator), [])
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated or not names:
        found = f"column {repeated[0]!r} more than once" if repeated else "nothing"
        raise InputError(f"{path.name}, line 1: {found}, expected column names; write one for each")
    try:
        table = pl.read_csv(
            path,
            separator=separator,
            infer_schema_length=None,
            null_values=MISSING,
            schema_overrides={name: pl.String for name in text_columns if name in names},
        )
    except pl.exceptions.PolarsError:
        _check_field_counts(path, separator, len(names))
        raise
    # Polars fills a row that was cut short with nulls, so its last field is one.
    if table[table.columns[-1]].null_count():
        _check_field_counts(path, separator, len(names))
    return table


def _check_field_counts(path: Path, separator: str, expected: int) -> None:
    with _open(path) as file:
        reader = csv.reader(file, delimiter=separator)
        for row in reader:
            if len(row) != expected:
                raise InputError(
                    f"{path.name}, line {reader.line_num}: {len(row)} fields, expected {expected} "
                    "as in line 1; complete or remove the line"
                )


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")
