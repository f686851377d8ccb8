"""Read the hourly copy of Milan's first week that circulates on Kaggle.

Its files are named like the raw days, but end in .csv: comma-separated, with the header
`datetime,CellID,countrycode,smsin,smsout,callin,callout,internet`, one row per (hour, cell,
country), an empty field where no activity was recorded. A file holds the hours 00 to 23 of the day
in its name, so its times are local.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl

from data_prep.base.errors import InputError, reading, some
from data_prep.base.files import checksum
from data_prep.base.limits import CHUNK, check_size
from data_prep.sets.telecom_italia.cdr import SERVICES
from data_prep.sets.telecom_italia.folder import check_dates, n_cut, report_gap
from data_prep.sets.telecom_italia.raw_day import AGAIN

HEADER = "datetime,cellid,countrycode,smsin,smsout,callin,callout,internet"
HOURS = 24
HOUR = pd.Timedelta("1h")
_SCHEMA = {
    "time": pl.String,
    "cell": pl.Int64,
    "country": pl.Int64,
    **dict.fromkeys(SERVICES, pl.Float64),
}


@dataclass(frozen=True)
class HourlyDay:
    """A day of the hourly copy, summed over country codes.

    Args:
        path: its file.
        date: local midnight at its start, without a zone.
        cells: `(cell,)` ids that occur, ascending.
        values: `(service, hour, cell)` sums in the order of `SERVICES`; 0 where no activity was
            recorded, NaN in an hour without a row.
    """

    path: Path
    date: pd.Timestamp
    cells: np.ndarray
    values: np.ndarray

    @property
    def checksum(self) -> str:
        """Checksum of the file."""
        return checksum(self.path)


def find_files(raw: Path, prefix: str) -> list[Path]:
    """Return the files of an hourly copy; none if `raw` does not hold one."""
    files = sorted(raw.glob(f"{prefix}*")) if raw.is_dir() else [raw]
    return files if files and all(f.suffix == ".csv" and f.is_file() for f in files) else []


def read_days(
    files: list[Path], prefix: str, known: np.ndarray, allow_gaps: bool
) -> list[HourlyDay]:
    """Read and check the days of an hourly copy."""
    days = [_read_day(path, prefix, known) for path in files]
    for day in days:
        if (gone := np.flatnonzero(np.isnan(day.values[0]).all(axis=1))).size:
            hours = some((f"{hour:02d}:00" for hour in gone), 5)
            report_gap(
                f"{day.path}: {HOURS - gone.size} of {HOURS} hours (missing {hours})", allow_gaps
            )
    check_dates([day.date.date() for day in days], files[0].parent, allow_gaps)
    return days


def _read_day(path: Path, prefix: str, known: np.ndarray) -> HourlyDay:
    try:
        date = pd.to_datetime(path.name.removeprefix(prefix), format="%Y-%m-%d.csv")
    except ValueError as e:
        raise InputError(
            f"{path}: expected a name like {prefix}2013-11-01.csv; rename it, or move it away if "
            "it is not a day's file"
        ) from e
    check_size(4 * path.stat().st_size, path)
    _check_fields(path)
    with reading(path, "as the hourly copy of the raw days", AGAIN):
        table = pl.read_csv(path, has_header=False, skip_rows=1, schema=_SCHEMA, glob=False)
        table = table.with_columns(pl.col("time").str.to_datetime("%Y-%m-%d %H:%M:%S"))
    _check_rows(table, path, date, known)
    cells = table["cell"].unique().sort().to_numpy()
    _check_end(table, path, cells)
    hour = table["time"].dt.hour().to_numpy().astype(np.int64)
    at = hour * len(cells) + np.searchsorted(cells, table["cell"].to_numpy())
    size = HOURS * len(cells)
    sums = [np.bincount(at, table[s].fill_null(0.0).to_numpy(), size) for s in SERVICES]
    values = np.stack(sums).reshape(len(SERVICES), HOURS, len(cells))
    values[:, np.bincount(hour, minlength=HOURS) == 0] = np.nan
    return HourlyDay(path, date, cells, values)


def _check_fields(path: Path) -> None:
    """Check the header, and that no line lacks a field, which would be read as no activity."""
    with path.open("rb") as file:
        header = file.readline(CHUNK)
        text = header.decode("utf-8-sig", "replace").strip().replace('"', "").lower()
        if text != HEADER:
            raise InputError(f"{path}, line 1: {text!r:.100}, expected {HEADER!r}; {AGAIN}")
        n_lines = n_commas = 0
        last = b"\n"
        while part := file.read(CHUNK):
            n_lines += part.count(b"\n")
            n_commas += part.count(b",")
            last = part[-1:]
    n_lines += last != b"\n"
    if n_commas != (expected := HEADER.count(",") * n_lines):
        raise InputError(
            f"{path}: {n_commas} commas in {n_lines} lines, expected {expected}: a line lacks "
            f"fields or has too many; {AGAIN}"
        )


def _check_rows(table: pl.DataFrame, path: Path, date: pd.Timestamp, known: np.ndarray) -> None:
    services = [pl.col(s) for s in SERVICES]
    faults = {
        "lacks its time, cell or country": pl.any_horizontal(
            pl.col("time", "cell", "country").is_null()
        ),
        f"is not at a whole hour of {date:%Y-%m-%d}, the day in the file's name": (
            pl.col("time").dt.truncate("1h") != pl.col("time")
        )
        | (pl.col("time").dt.date() != date.date()),
        f"has a cell that is not one of the {len(known)} ids {known[0]} to {known[-1]}": ~pl.col(
            "cell"
        ).is_in(known.tolist()),
        "has an activity that is negative or not finite": pl.any_horizontal(
            (s < 0) | ~s.is_finite() for s in services
        ),
        "repeats the hour, cell and country of another": pl.struct(
            "time", "cell", "country"
        ).is_duplicated(),
    }
    for what, is_fault in faults.items():
        found = table.select(pl.arg_where(is_fault.fill_null(False))).to_series()
        if len(found):
            raise InputError(f"{path}, line {found[0] + 2}: {what}; {AGAIN}")
    if not len(table):
        raise InputError(f"{path}: no rows; {AGAIN}")


def _check_end(table: pl.DataFrame, path: Path, cells: np.ndarray) -> None:
    """Refuse a file that is cut between two lines: its last hour then lacks the last cells."""
    final = table.filter(pl.col("time") == table["time"][-1])["cell"]
    if not final.is_sorted():
        return
    if n_after := n_cut(cells, final[-1]):
        raise InputError(
            f"{path}: found no cell after {final[-1]} in its last hour, others have {n_after}: the "
            f"file is cut; {AGAIN}"
        )


def join_days(
    days: list[HourlyDay], cells: np.ndarray, time_zone: str
) -> tuple[pd.DatetimeIndex, np.ndarray]:
    """Join days on one time axis.

    Returns:
        The zoned hours `(step,)`, and values `(service, step, cell)`: NaN in missing days, 0 for a
        cell that does not occur in a day.
    """
    n_days = (days[-1].date - days[0].date).days + 1
    first = days[0].date.tz_localize(time_zone)
    end = (days[0].date + pd.Timedelta(days=n_days)).tz_localize(time_zone)
    hours = pd.date_range(first, end, freq=HOUR, inclusive="left")
    if len(hours) != HOURS * n_days:
        raise InputError(
            f"{days[0].path.parent}: the clock changes between {days[0].date:%Y-%m-%d} and "
            f"{days[-1].date:%Y-%m-%d}, which hourly files cannot show; download the raw files"
        )
    values = np.full((len(SERVICES), len(hours), len(cells)), np.nan)
    for day in days:
        start = HOURS * (day.date - days[0].date).days
        recorded = ~np.isnan(day.values[0]).all(axis=1)
        values[:, start : start + HOURS][:, recorded] = 0.0
        _, to, of = np.intersect1d(cells, day.cells, assume_unique=True, return_indices=True)
        values[:, start : start + HOURS, to] = day.values[:, :, of]
    return hours, values
