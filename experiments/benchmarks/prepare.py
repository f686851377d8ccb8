"""Compare this project's reader of raw days with a plain pandas reader.

    python -m experiments.benchmarks.prepare --files 3 --out FOLDER

Generates days of the published size (10,000 cells, about 4.9 million rows and 290 MB each), turns
them into an hourly cube with each reader in a separate process, and prints CPU and wall-clock
seconds per file, peak memory and the largest difference of the two cubes. Imports are not counted.
The pandas reader checks nothing; ours computes checksums and makes all its checks.
"""

from __future__ import annotations

import datetime
import multiprocessing
import resource
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

import click
import numpy as np
import pandas as pd
import polars as pl
import tabulate
import xarray as xr

from data_prep import cube, milan
from data_prep.telecom_italia.cdr import SERVICES
from data_prep.telecom_italia.raw_day import INTERVAL, RawDay

Result = TypeVar("Result")

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


def measure(prepare: Callable[[Path, Path], Path], raw: Path, out: Path) -> dict[str, float]:
    """Measure one reader in this process.

    Returns:
        `cpu` and `wall` seconds of the call, and `peak` memory of the process in MB.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    prepare(raw, out)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"cpu": cpu, "wall": wall, "peak": peak}


def largest_difference(ours: Path, theirs: Path) -> float:
    """Return the largest relative difference of two cubes over the published services."""
    with cube.open_cube(ours) as a, cube.open_cube(theirs) as b:
        return max(
            float((abs(a[s] - b[s].values) / np.maximum(abs(b[s].values), 1e-300)).max())
            for s in SERVICES
        )


def in_own_process(function: Callable[..., Result], *args: object) -> Result:
    """Call `function` in a new process, to measure its memory and CPU time alone."""
    # A child's peak starts at its parent's memory, so this process must stay small.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


@click.command()
@click.option("--files", default=3, show_default=True, help="Days to generate.")
@click.option("--cells", default=10_000, show_default=True, help="Cells a day.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A new folder.")
@click.option("--keep", is_flag=True, help="Keep the generated files.")
def main(files: int, cells: int, out: Path, keep: bool) -> None:
    """Compare this project's reader of raw days with a plain pandas one."""
    if out.exists():
        raise click.BadParameter(f"{out} exists; give a new folder, which is removed at the end")
    raw = out / "raw"
    in_own_process(generate, raw, files, cells)
    size = sum(p.stat().st_size for p in raw.iterdir()) / files / 1e6
    engines = {"stforecast": milan.prepare, "pandas": prepare_with_pandas}
    rows = []
    for name, prepare in engines.items():
        cost = in_own_process(measure, prepare, raw, out / f"{name}.nc")
        rows.append([name, cost["cpu"] / files, cost["wall"] / files, cost["peak"]])
    headers = ["reader", "CPU s/file", "wall s/file", "peak MB"]
    click.echo(f"{files} files of {size:.0f} MB, {cells} cells, to hourly sums")
    click.echo(tabulate.tabulate(rows, headers, floatfmt=(".0f", ".2f", ".2f", ".0f")))
    difference = largest_difference(*(out / f"{name}.nc" for name in engines))
    click.echo(f"largest relative difference of the sums: {difference:.1e}")
    if not keep:
        shutil.rmtree(out)


if __name__ == "__main__":
    main()
