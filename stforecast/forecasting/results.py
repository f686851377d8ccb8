"""A run on disk: settings, errors, rounds, forecasts and the model, in open formats.

A run folder holds

- `run.json`: settings, data, versions, seconds; written last, so it marks the run as complete;
- `metrics.csv`: one row per error in long form, columns `METRIC_COLUMNS`;
- `rounds.csv`: one row per round (`stforecast.federated.engine.rounds.RoundReport`);
- `refits.csv`: with `--refit`, one row per refit: its windows and costs;
- `forecasts.nc`: forecasts of the test part by every selection, with their bounds if any, those of
  seasonal naive, and the observed targets, in the data's units (`Forecaster.test_forecasts`),
  rounded by less than 0.0005 of the deviation of their cell's values, and compressed;
- `model/`: the saved forecaster, which `Forecaster.load` reads.

An unfinished run holds `settings.json` and `checkpoints/`, from which
`stforecast.forecasting.runs.resume` continues. Figures and tables read finished runs without torch,
which takes seconds to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import xarray as xr

from data_prep.base.errors import InputError, Words, reading
from data_prep.cube import check_axes, check_values
from data_prep.netcdf import open_netcdf
from data_prep.readers.hdf5 import open_hdf5
from stforecast.bench.run_groups import pooled, select
from stforecast.federated.runs.run_folder import AGAIN, LINES, Run

MODEL = "forecaster.json"
"""File of a saved forecaster with its settings and cells."""

FORECASTS = "forecasts.nc"
"""File of the forecasts of the test part."""

SUMS = "sums.nc"
"""File of the sums of errors of a run without forecasts, see `stforecast.comparison.sums`."""

METRIC_COLUMNS = (
    "method", "data", "service", "seed", "client", "horizon", "split", "selection", "metric",
    "value",
)  # fmt: skip
"""Columns of `metrics.csv`."""

ROUND_COLUMNS = ("round", "train_task_loss", "validation_loss", "bytes_down", "bytes_up")
"""Columns of `rounds.csv` that figures and tables read."""

REFIT_COLUMNS = ("windows", "rounds", "bytes_down", "bytes_up", "seconds")
"""Numbers in `refits.csv`, beside `time`."""


CELLS = 512
"""Cells whose forecasts are read at a time."""

SMALL = 2**21
"""Bytes of a file of forecasts up to which it is kept in memory: tables and figures reopen it."""


def _open(path: Path) -> xr.Dataset:
    with open_hdf5(path, "as netCDF4", AGAIN) as file:
        check_axes(file, path)
        ds = open_netcdf(path)
    for name in ("y_hat", "y"):
        if name not in ds or ds[name].dims != ("cell", "time", "horizon"):
            raise InputError(f"{path}: no {name!r} with dimensions (cell, time, horizon); {AGAIN}")
        check_values(ds[name], str(path))
    return ds


def bounds_of(forecasts: xr.Dataset) -> dict[float, tuple[xr.DataArray, xr.DataArray]]:
    """Return the bounds of each interval by its nominal coverage, from narrow to wide."""
    found = {
        float(lower.attrs["coverage"]): (lower, forecasts[str(name).replace("lower", "upper")])
        for name, lower in forecasts.items()
        if str(name).startswith("lower")
    }
    return dict(sorted(found.items()))


def without_bounds(forecasts: xr.Dataset) -> xr.Dataset:
    """Return forecasts without the bounds of intervals."""
    return forecasts.drop_vars([n for n in forecasts if str(n).startswith(("lower", "upper"))])


@lru_cache(maxsize=64)
def _loaded(path: Path, changed: int, size: int) -> xr.Dataset:
    """Return what a file holds; another time of change or size is another file."""
    with _open(path) as ds, reading(str(path), "whole", AGAIN):
        return ds.load()


@dataclass(frozen=True)
class ForecastRun(Run):
    """A finished run of a forecaster."""

    command = "stforecast run"
    entries = MappingProxyType({"data": str, "service": str, "units": str})

    def facts(self) -> dict[str, str]:
        """Name of the data and the service, and the backtest that the run is a fold of."""
        found = {"data": Path(self.about["data"]).stem, "service": self.about["service"]}
        # Its folds differ in the split, and are averaged nevertheless.
        return {**found, "split": self.about["backtest"]} if self.fold else found

    @property
    def fold(self) -> int:
        """Number of its fold in a backtest, from 1; 0 for a run by itself."""
        return int(self.about.get("fold", 0))

    @property
    def test_span(self) -> tuple[str, str] | None:
        """First and last target of the test part, in local time."""
        test = (self.about.get("parts") or {}).get("test")
        return (test["first"], test["last"]) if test else None

    @property
    def table(self) -> str:
        """Name of the table that it stands in; empty for that of the main methods."""
        return str(self.about.get("table", ""))

    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`; clients and horizons are text."""
        table = self.read_table("metrics.csv", ("value",), METRIC_COLUMNS[4:-1])
        return table.assign(fold=self.fold) if self.fold else table

    def rounds(self) -> pd.DataFrame:
        """`rounds.csv`; empty for reference forecasters."""
        return self.read_table("rounds.csv", ROUND_COLUMNS)

    def refits(self) -> pd.DataFrame:
        """`refits.csv`; empty where nothing was refitted."""
        if "refits.csv" not in self.about[LINES]:
            return pd.DataFrame()
        return self.read_table("refits.csv", REFIT_COLUMNS)

    def forecasts(self) -> xr.Dataset:
        """`forecasts.nc`: `y_hat` and `y` with dimensions `(cell, time, horizon)`."""
        with self.open_forecasts() as ds, self.reading(ds):
            return ds.load()

    def means(self) -> xr.Dataset:
        """`forecasts` without the bounds of intervals, which would take as much memory again."""
        with self.open_forecasts() as ds, self.reading(ds):
            return without_bounds(ds).load()

    def reading(self, forecasts: xr.Dataset) -> AbstractContextManager[None]:
        """Refuse the file of opened forecasts if it turns out damaged within the context."""
        return reading(forecasts.encoding.get("source", self.folder), "whole", AGAIN)

    def in_blocks(self, forecasts: xr.Dataset) -> Iterator[xr.Dataset]:
        """Yield opened forecasts by blocks of cells, as all may not fit into the memory."""
        for i in range(0, forecasts.sizes["cell"], CELLS):
            with self.reading(forecasts):
                block = forecasts.isel(cell=slice(i, i + CELLS)).load()
            yield block

    def open_forecasts(self) -> xr.Dataset:
        """Open `forecasts`: a small file once; a large one is read where it is used."""
        if self.kept:
            raise InputError(
                f"{self.folder}: its forecasts are gone, only sums of its errors are kept; run its "
                "row of the benchmark again, with ",
                Words("{row}", row=self.label),
            )
        path = self.folder / FORECASTS
        if path.is_file() and (found := path.stat()).st_size <= SMALL:
            return _loaded(path, found.st_mtime_ns, found.st_size).copy()
        return _open(path)

    def kept_sums(self) -> xr.Dataset:
        """`sums.nc` of a run without forecasts."""
        path = self.folder / SUMS
        with reading(path, "as sums of errors", AGAIN), open_netcdf(path) as ds:
            return ds.load()

    @property
    def kept_round(self) -> str:
        """Round of the model that it keeps and `predict` uses: `best` or `last`."""
        return str(self.settings.get("select", "best"))

    def selection(self, view: str = "") -> str:
        """Return the name of the model that tables, intervals and figures judge.

        Args:
            view: one of the method's further models, such as "(global)"; by default its first.
        """
        return f"{self.kept_round} {view}".strip()

    def score(
        self,
        metric: str = "mse",
        selection: str | None = None,
        split: str = "test",
        table: pd.DataFrame | None = None,
    ) -> float:
        """Return one error, pooled over all clients and steps; by default of `selection()`.

        The table is that of `metrics`, if it was read already.
        """
        chosen = select(
            self.metrics() if table is None else table,
            metric=metric,
            selection=selection or self.selection(),
            split=split,
        )
        row = pooled(chosen)
        return float(row["value"].iloc[0]) if len(row) else float("nan")


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a saved forecaster by itself, without results."""
    return (folder / MODEL).is_file()


def tested_forecasts(folder: Path) -> xr.Dataset | None:
    """Open a run's tested forecasts; None for a model without any."""
    path = folder / FORECASTS
    return _open(path) if path.is_file() else None


def data_of(about: Mapping[str, Any]) -> Path:
    """Return the path of a run's cube, whatever the working folder."""
    typed = Path(str(about["data"]))
    full = Path(str(about.get("data_path", typed)))
    # The path as typed reads better in messages, while it still leads to the same file.
    return typed if typed.absolute() == full or not full.exists() else full


def units_of(run: ForecastRun) -> str:
    """Return the units of a run's data; "data units" if the data do not name them."""
    units = str(run.about["units"])
    return "data units" if units == "1" else units
