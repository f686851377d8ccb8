"""Measure forecasts of few cells: the default beside what needs no others.

    python -m experiments.benchmarks.few_cells milan1h.nc milan88.nc het.nc --out few-cells.csv

Cells are drawn from each cube three times, and every method is fitted to them alone, one step and a
day ahead; with steps of less than ten minutes, an hour ahead stands for the day. What is in the
file already is not measured again. `python -m experiments.docs` makes the table of
docs/results/default.md from docs/results/default/few-cells.csv.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import pandas as pd
import tabulate
import xarray as xr

from data_prep.base.text import counted
from data_prep.cube import open_cube, services_of, step_of
from stforecast.bench.statistics.estimate import Variation
from stforecast.cli.options import HELP, help_text
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.forecaster import Forecaster

CELLS, DRAWS = (1, 2, 4), 3
"""Numbers of cells, and how often they are drawn."""

SPLIT = "time:0.65,0.15,0.2"

MANY = 10**6
"""A limit of rounds for each cell that is never reached."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedlean": ("fedlean", {}),
    "fedlean, all 40 rounds": ("fedlean", {"rounds_per_cell": MANY}),
    "fedlean, no network": ("fedlean", {"rounds": 1}),
    "ridge, same inputs": (
        "ridge",
        {"closeness": 1, "periods": 0, "extra_lags": "auto", "calendar": "auto", "tune": True},
    ),
    "lightgbm": ("lightgbm", {}),
    "seasonal_day": ("seasonal_day", {}),
}  # fmt: skip
"""Name in the table, method and settings."""

LONGEST = 24
"""Steps of the longer forecast; with steps under ten minutes, those of an hour."""


class Run(NamedTuple):
    """A fit: columns of the file, but for the error."""

    data: str
    cells: int
    draw: int
    horizon: int
    method: str


def horizons(cube: xr.Dataset) -> tuple[int, int]:
    """Return one step, and a day of hours or an hour of shorter steps."""
    step = step_of(cube)
    return 1, LONGEST if step >= pd.Timedelta("10min") else pd.Timedelta("1h") // step


def runs(data: str, cube: xr.Dataset) -> Iterator[Run]:
    """Return the fits to a cube, all of one draw before the next."""
    orders = range(DRAWS), CELLS, horizons(cube), METHODS
    for draw, cells, horizon, method in itertools.product(*orders):
        yield Run(data, cells, draw, horizon, method)


def measure(cube: xr.Dataset, run: Run) -> float:
    """Return the MSE of z-scores on the test part."""
    rng = np.random.default_rng([run.cells, run.draw])
    cells = np.sort(rng.choice(cube.sizes["cell"], run.cells, replace=False))
    method, settings = METHODS[run.method]
    services = services_of(cube)
    service = "internet" if "internet" in services else services[0]
    forecaster = Forecaster(method, horizon=run.horizon, split=SPLIT, service=service, **settings)
    errors = forecaster.fit(cube.isel(cell=cells).load()).evaluate()
    wanted = {"client": "all", "horizon": "all", "split": "test", "metric": "mse"}
    found = errors[np.all([errors[n].astype(str) == v for n, v in wanted.items()], axis=0)]
    return float(found.set_index("selection")["value"]["last"])


def above_default(rows: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Return by how many per cent each method's error is above the default's, by what is ahead.

    Geometric means over the cubes, of which each has the mean of its draws, with intervals of
    Student's t: draws from one cube are not independent of each other.
    """
    rows = rows.assign(ahead=np.where(rows["horizon"] == 1, "one step", "a day"))
    logs = np.log(rows.set_index([*Run._fields[:-1], "ahead", "method"])["mse"]).unstack("method")
    above = logs.sub(logs["fedlean"], axis=0)
    return {
        method: {
            f"{ahead}, {counted(n, 'cell')}": above_by_data(
                above[method].xs((n, ahead), level=["cells", "ahead"])
            )
            for ahead, n in itertools.product(("one step", "a day"), CELLS)
        }
        for method in list(METHODS)[1:]
    }


def table_of(rows: pd.DataFrame) -> str:
    """Tabulate the same."""
    table = [{"% above fedlean": method, **row} for method, row in above_default(rows).items()]
    return tabulate.tabulate(table, headers="keys", tablefmt="github")


def above_by_data(logs: pd.Series) -> str:
    """Return the mean of logarithms of ratios as per cent, with its 95 % interval.

    Args:
        logs: logarithms, with a level "data" in the index; each data set counts once.
    """
    means = logs.groupby("data").mean()
    variance, freedom = means.var() / len(means), len(means) - 1
    mean = Variation(means.mean(), variance, ((variance, freedom),))
    return str(mean.estimate(0.95, lambda log: 100 * math.expm1(log)))


@click.command(help=help_text(__doc__), context_settings=HELP)
@click.argument("data", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="CSV file to write.")
def main(data: tuple[Path, ...], out: Path) -> None:
    """Fit all methods to few cells of each cube DATA."""
    rows: list[dict[str, Any]] = []
    if out.is_file():
        rows = pd.read_csv(out).to_dict("records")  # type: ignore[assignment]
    known = {Run(*(row[name] for name in Run._fields)) for row in rows}
    cubes = {path.stem: open_cube(path) for path in data}
    todo = [run for name, cube in cubes.items() for run in runs(name, cube) if run not in known]
    for run in sorted(todo, key=lambda run: run.draw):
        rows.append({**run._asdict(), "mse": measure(cubes[run.data], run)})
        write_csv(pd.DataFrame(rows), out)
    click.echo(table_of(pd.DataFrame(rows)))


if __name__ == "__main__":
    main()
