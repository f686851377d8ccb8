"""Compare this project's reader of raw days, also over Ray, with plain polars and pandas readers.

    python -m experiments.benchmarks.prepare --files 4 --raw EMPTY --out FOLDER

Generates days of the published size (10,000 cells, about 4.9 million rows and 290 MB each) in a new
folder, which is removed at the end. Each reader turns them into an hourly cube in a process of its
own, several times in turns; the fastest counts. Prints CPU and wall-clock seconds per file, seconds
of starting Ray, peak memory and the largest difference of the cubes. Imports are not counted. The
plain readers check nothing; ours computes checksums and makes all its checks. Ray is left out
where it is not installed. With `--out` the results are also written, as prepare.json.
"""

from __future__ import annotations

import datetime
import importlib.util
import multiprocessing
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
import numpy as np
import pandas as pd
import polars as pl
import tabulate
import xarray as xr

from data_prep import cube
from data_prep.sets import milan
from data_prep.sets.telecom_italia.cdr import SERVICES
from data_prep.sets.telecom_italia.raw_day import INTERVAL, RawDay
from experiments.benchmarks.processes import processor_time
from experiments.benchmarks.results import processor, save
from stforecast.bench.ray import cluster, each, ray_map

Result = TypeVar("Result")

ONE_THREAD = "stforecast, one thread"

FIRST_DAY = datetime.date(2013, 11, 1)
HOME = 39
COUNTRIES = np.array([0, 1, 7, 20, 33, 34, HOME, 40, 41, 44, 46, 49, 86, 91, 380, 420])


def generate_day(path: Path, date: datetime.date, n_cells: int) -> None:
    """Write a raw day with the published layout, order and share of empty fields.

    Args:
        path: file to write.
        date: the local day.
        n_cells: number of cells, each with about 490 rows.
    """
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


class Cost(NamedTuple):
    """Cost of a reader.

    Attributes:
        cpu: CPU seconds of the call, of all processes.
        wall: its wall-clock seconds.
        start: wall-clock seconds before, in which Ray's processes start and import.
        peak: peak memory in MB, of one process; None for several.
    """

    cpu: float
    wall: float
    start: float = 0.0
    peak: float | None = None


def measure(prepare: Callable[[Path, Path], Path], raw: Path, out: Path) -> Cost:
    """Measure one reader in this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    prepare(raw, out)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Cost(cpu, wall, peak=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measure_ray(workers: int, raw: Path, out: Path) -> Cost:
    """Measure this project's reader over Ray's workers on this machine."""
    start, meeting = time.perf_counter(), out.with_suffix(".workers").resolve()
    meeting.mkdir()
    with cluster(workers):
        each(_meet, [(meeting, workers)] * workers, "workers")
        wall, cpu = time.perf_counter(), processor_time([os.getpid()])
        milan.prepare(raw, out, spread=ray_map)
        cpu = processor_time([os.getpid()]) - cpu
        return Cost(cpu, time.perf_counter() - wall, wall - start)


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Let polars have one thread in processes that are started here."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["POLARS_MAX_THREADS"]


def in_own_process(function: Callable[..., Result], *args: object) -> Result:
    """Call `function` in a new process, to measure its memory and CPU time alone."""
    # A child's peak starts at its parent's memory, so this process must stay small.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def table_of(rows: Sequence[dict[str, Any]]) -> str:
    """Tabulate readers.

    Args:
        rows: name of the reader and the values of `Cost`, by name.
    """
    headers = ["reader", "CPU s a file", "s a file", "s to start", "peak MB"]
    formats = ("", ".2f", ".2f", ".1f", ".0f")
    values = [list(row.values()) for row in rows]
    return tabulate.tabulate(values, headers, "github", floatfmt=formats, missingval="-")


@click.command()
@click.option("--files", default=4, show_default=True, help="Days to generate.")
@click.option("--cells", default=10_000, show_default=True, help="Cells a day.")
@click.option("--workers", default=2, show_default=True, help="Workers of Ray.")
@click.option("--repeat", default=3, show_default=True, help="Times of each; the fastest counts.")
@click.option("--raw", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder of results.")
@click.option("--keep", is_flag=True, help="Keep the generated files.")
def main(
    files: int, cells: int, workers: int, repeat: int, raw: Path, out: Path | None, keep: bool
) -> None:
    """Compare readers of raw days."""
    if raw.exists():
        raise click.BadParameter(f"{raw} exists; give a new folder, which is removed at the end")
    days = raw / "days"
    in_own_process(generate, days, files, cells)
    size = sum(p.stat().st_size for p in days.iterdir()) / files / 1e6
    readers = {
        "stforecast": partial(measure, milan.prepare),
        ONE_THREAD: partial(measure, milan.prepare),
    }
    if importlib.util.find_spec("ray"):
        readers[f"stforecast, {workers} workers of Ray"] = partial(measure_ray, workers)
    readers["plain polars"] = partial(measure, prepare_with_polars)
    readers["plain pandas"] = partial(measure, prepare_with_pandas)
    costs: dict[str, list[Cost]] = {name: [] for name in readers}
    for i in range(repeat):
        for k, (name, reader) in enumerate(readers.items()):
            with one_thread() if name == ONE_THREAD else nullcontext():
                costs[name].append(in_own_process(reader, days, raw / f"{i}-{k}.nc"))
    rows = []
    for name, found in costs.items():
        cost = min(found, key=lambda c: c.wall)
        of_a_file = cost._replace(cpu=cost.cpu / files, wall=cost.wall / files)
        rows.append({"reader": name, **of_a_file._asdict()})
    cubes = [raw / f"0-{k}.nc" for k in range(len(readers))]
    difference = max(largest_difference(cubes[0], other) for other in cubes[1:])
    click.echo(f"{processor()}; {files} files of {size:.0f} MB, {cells} cells, to hourly sums")
    click.echo(table_of(rows))
    click.echo(f"largest relative difference of the sums: {difference:.1e}")
    if out:
        about = {"files": files, "cells": cells, "file_mb": round(size, 1), "repeat": repeat}
        about |= {"difference": difference}
        save({**about, "rows": rows}, out / "prepare.json")
    if not keep:
        shutil.rmtree(raw)


if __name__ == "__main__":
    main()
