"""Compare this project's reader of raw days, also over Ray, with plain polars and pandas readers.

Each reader turns generated days into an hourly cube in a process of its own, several times in
turns; the fastest counts. Imports are not counted. The plain readers check nothing; ours computes
checksums and makes all its checks. Ray is left out where it is not installed.
"""

from __future__ import annotations

import datetime
import importlib.util
import itertools
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr

from data_prep import cube
from data_prep.base.errors import InputError
from data_prep.sets import milan
from data_prep.sets.table import read as read_own_table
from data_prep.sets.telecom_italia.cdr import SERVICES
from data_prep.sets.telecom_italia.raw_day import INTERVAL, RawDay
from experiments.benchmarks import frame
from stforecast.bench.ray import cluster, do_each, ray_map
from stforecast.cli.info import describe

ONE_THREAD = "stforecast, one thread"

COLUMNS = {
    "reader": ("reader", ""),
    "cpu": ("CPU s a file", ".2f"),
    "wall": ("s a file", ".2f"),
    "start": ("s to start", ".1f"),
    "peak": ("peak MB", ".0f"),
}

FIRST_DAY = datetime.date(2013, 11, 1)
HOME = 39
COUNTRIES = np.array([0, 1, 7, 20, 33, 34, HOME, 40, 41, 44, 46, 49, 86, 91, 380, 420])


def generate_day(path: Path, date: datetime.date, n_cells: int) -> None:
    """Write a raw day with the published layout, order and share of empty fields."""
    rng = np.random.default_rng(date.toordinal())
    cells = np.arange(1, n_cells + 1)
    day = RawDay(path, date, cells)
    occurs = rng.random((n_cells * day.n_intervals, len(COUNTRIES)), dtype=np.float32) < 0.16
    occurs[:, COUNTRIES == HOME] = True
    place, which = np.nonzero(occurs)
    country = COUNTRIES[which]
    cell, interval = np.divmod(place, day.n_intervals)
    interval_ms = day.start_ms + interval * (INTERVAL // pd.Timedelta("1ms"))
    rows = {"cell": cells[cell], "interval": interval_ms, "country": country}
    home = country == HOME
    activity = {
        service: pl.Series(np.where(home, 10.0, 1.0) * rng.gamma(1.0, 0.3, len(place))).set(
            pl.Series(~home & (rng.random(len(place)) < 0.88)), None
        )
        for service in SERVICES
    }
    pl.DataFrame(rows | activity).write_csv(path, include_header=False, separator="\t")


def generate(raw: Path, n_files: int, n_cells: int) -> None:
    """Write `n_files` raw days into the folder `raw`."""
    raw.mkdir(parents=True)
    for i in range(n_files):
        date = FIRST_DAY + datetime.timedelta(days=i)
        generate_day(raw / f"{milan.MILAN.prefix}{date}.txt", date, n_cells)


def prepare_with_pandas(raw: Path, out: Path) -> Path:
    """Convert raw days with plain pandas: sum each file by a group-by, join all in memory."""
    names = ["cell", "time", "country", *SERVICES]
    days = []
    for path in sorted(raw.iterdir()):
        rows = pd.read_csv(path, sep="\t", header=None, names=names)
        rows["time"] //= 3_600_000
        days.append(rows.groupby(["time", "cell"])[list(SERVICES)].sum())
    hourly = xr.Dataset.from_dataframe(pd.concat(days)).fillna(0)
    hourly["time"] = hourly["time"].values.astype("datetime64[h]").astype("datetime64[ns]")
    hourly.to_netcdf(out, engine="h5netcdf")
    return out


def prepare_with_polars(raw: Path, out: Path) -> Path:
    """Convert raw days with plain polars: sum each file by a group-by, join all in memory."""
    names = ["cell", "time", "country", *SERVICES]
    days = []
    for path in sorted(raw.iterdir()):
        rows = pl.scan_csv(path, separator="\t", has_header=False, new_columns=names)
        hour = pl.from_epoch(pl.col("time") // 3_600_000 * 3600).cast(pl.Datetime("ns"))
        sums = rows.group_by(hour, "cell").agg(pl.col(*SERVICES).sum())
        days.append(sums.collect(engine="streaming"))
    table = pd.DataFrame({column.name: column.to_numpy() for column in pl.concat(days)})
    hourly = xr.Dataset.from_dataframe(table.set_index(["time", "cell"]).sort_index())
    hourly.fillna(0).to_netcdf(out, engine="h5netcdf")
    return out


@frame.benchmark()
def prepare(
    results: frame.Results,
    *,
    raw: Path,
    files: int = 4,
    cells: int = 10_000,
    workers: int = 2,
    repeat: int = 3,
) -> str:
    """Compare readers of raw days.

    Generates days of the published size (10,000 cells, about 4.9 million rows and 290 MB each) in a
    new folder. Tells CPU and wall-clock seconds per file, seconds of starting Ray, peak memory and
    the largest difference of the cubes.

    Args:
        results: gets a row for each reader.
        raw: a new folder, which is removed at the end.
        files: days to generate.
        cells: cells a day.
        workers: workers of Ray.
        repeat: turns of each reader.
    """
    if raw.exists():
        raise InputError(f"{raw} exists; give a new folder, which is removed at the end")
    days = raw / "days"
    frame.in_own_process(generate, days, files, cells)
    size = sum(p.stat().st_size for p in days.iterdir()) / files / 1e6
    readers: dict[str, Callable[[Path, Path], Cost]] = {
        "stforecast": partial(measure_reader, milan.prepare),
        ONE_THREAD: partial(measure_reader, milan.prepare),
    }
    if importlib.util.find_spec("ray"):
        readers[f"stforecast, {workers} workers of Ray"] = partial(measure_ray, workers)
    readers["plain polars"] = partial(measure_reader, prepare_with_polars)
    readers["plain pandas"] = partial(measure_reader, prepare_with_pandas)

    outs = (raw / f"{i}.nc" for i in itertools.count())

    def read(name: str) -> Cost:
        threads = {"POLARS_MAX_THREADS": "1"} if name == ONE_THREAD else {}
        with mock.patch.dict(os.environ, threads):  # The new process takes it over.
            return frame.in_own_process(readers[name], days, next(outs))

    turns = frame.in_turns({name: partial(read, name) for name in readers}, repeat)
    cubes = [raw / f"{i}.nc" for i in range(len(readers))]
    difference = max(largest_difference(cubes[0], other) for other in cubes[1:])
    results.about |= {"file_mb": round(size, 1), "difference": difference}
    for name, found in turns.items():
        cost = min(found, key=lambda c: c.wall)
        of_a_file = cost._replace(cpu=cost.cpu / files, wall=cost.wall / files)
        results.add({"reader": name, **of_a_file._asdict()})
    shutil.rmtree(raw)
    return (
        f"{files} files of {size:.0f} MB, {cells} cells, to hourly sums\n"
        f"{frame.table(results.rows, COLUMNS)}\n"
        f"largest relative difference of the sums: {difference:.1e}"
    )


def generate_table(path: Path, n_cells: int, n_hours: int) -> None:
    """Write a long table of three services."""
    rng = np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=n_hours, freq="h").strftime("%Y-%m-%d %H:%M:%S")
    cells = [f"SITE{i // 3:04}_{i % 3}" for i in range(n_cells)]
    n = n_cells * n_hours
    columns = {
        "time": np.repeat(times.to_numpy(), n_cells),
        "cell": np.tile(cells, n_hours),
        "dl": rng.gamma(2, 3, n).round(4),
        "ul": rng.gamma(2, 1, n).round(4),
        "users": rng.poisson(20, n),
    }
    pl.DataFrame(columns).write_csv(path)


def _table_by_polars(path: Path) -> object:
    # A pivot of thousands of cells takes minutes; no row is missing.
    rows = pl.read_csv(path, try_parse_dates=True).sort("time", "cell")
    n_cells = rows["cell"].n_unique()
    return [rows[name].to_numpy().reshape(-1, n_cells) for name in rows.columns[2:]]


def _table_by_pandas(path: Path) -> object:
    return pd.read_csv(path, parse_dates=["time"]).set_index(["time", "cell"]).unstack()


@frame.benchmark()
def prepare_table(
    results: frame.Results, *, raw: Path, cells: int = 1200, hours: int = 3500, repeat: int = 3
) -> str:
    """Compare readers of a table of one's own: to arrays of time and cell, without writing.

    The table is long, with three services; the plain readers recognise and check nothing.

    Args:
        results: gets a row for each reader.
        raw: a table to write, which is removed at the end.
        cells: its cells.
        hours: its hours.
        repeat: turns of each reader.
    """
    frame.in_own_process(generate_table, raw, cells, hours)
    size = raw.stat().st_size / 1e6
    readers = {
        "stforecast": read_own_table,
        "stforecast info": describe,
        "plain polars": _table_by_polars,
        "plain pandas": _table_by_pandas,
    }
    turns = frame.in_turns(
        {n: partial(frame.in_own_process, measure_reader, r, raw) for n, r in readers.items()},
        repeat,
    )
    raw.unlink()
    results.about |= {"file_mb": round(size, 1)}
    for name, found in turns.items():
        results.add({"reader": name, **min(found, key=lambda c: c.cpu)._asdict()})
    return f"a table of {size:.0f} MB\n{frame.table(results.rows, COLUMNS)}"


class Cost(NamedTuple):
    """CPU seconds of a reader's processes, seconds, those to start Ray, and one process's MB."""

    cpu: float
    wall: float
    start: float = 0.0
    peak: float | None = None


def measure_reader(reader: Callable[..., object], *paths: Path) -> Cost:
    """Measure one reader in this process, with the paths that it takes."""
    _, wall, cpu = frame.timed(reader, *paths)
    return Cost(cpu, wall, peak=frame.own_memory("VmHWM") / 1024)


def measure_ray(workers: int, raw: Path, out: Path) -> Cost:
    """Measure this project's reader over Ray's workers on this machine."""
    start, meeting = time.perf_counter(), out.with_suffix(".workers").resolve()
    meeting.mkdir()
    with cluster(workers):
        do_each(_meet, [(meeting, workers)] * workers, "workers")
        started = time.perf_counter() - start
        read = partial(milan.prepare, spread=ray_map)
        _, wall, cpu = frame.timed(read, raw, out, cpu=partial(frame.processor_time, [os.getpid()]))
        return Cost(cpu, wall, started)


def _meet(item: tuple[Path, int]) -> None:
    """Import the reader, and wait until as many workers have, so that none starts later."""
    folder, workers = item
    importlib.import_module("data_prep.sets.milan")
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < workers:
        time.sleep(0.1)


def largest_difference(ours: Path, theirs: Path) -> float:
    """Return the largest relative difference of two cubes over the published services."""
    with cube.open_cube(ours) as a, cube.open_cube(theirs) as b:
        return max(
            float((abs(a[s] - b[s].values) / np.maximum(abs(b[s].values), 1e-300)).max())
            for s in SERVICES
        )
