"""A run on disk: settings, errors, rounds, forecasts and the model, in open formats.

A run folder holds

- `run.json`: settings, data, versions, seconds; written last, so its presence says "complete";
- `metrics.csv`: one row an error, long form, columns `METRIC_COLUMNS`;
- `rounds.csv`: one row a round (`stforecast.federated.rounds.RoundReport`);
- `forecasts.nc`: forecasts of the test part beside what was observed, in the data's units;
- `model/`: what `Forecaster.load` reads.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import xarray as xr

from data_prep.cube import atomic_path
from data_prep.errors import InputError, reading
from data_prep.hdf5 import open_hdf5
from data_prep.limits import check_size
from stforecast.federated.privacy import epsilon
from stforecast.federated.rounds import RoundReport
from stforecast.forecaster import Forecaster

METRIC_COLUMNS = (
    "method", "data", "service", "seed", "client", "horizon", "split", "selection", "metric",
    "value",
)  # fmt: skip
"""Columns of `metrics.csv`."""

ROUND_COLUMNS = ("round", "train_task_loss", "validation_loss", "bytes_down", "bytes_up")
"""Columns of `rounds.csv` that figures and tables read."""

ABOUT: dict[str, type] = {"settings": dict, "data": str, "service": str}
"""Entries of `run.json` that name a run, and their types."""

AGAIN = "delete the folder and run it again"

PACKAGES = ("stforecast", "torch", "numpy", "pandas", "scikit-learn", "xarray")


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        folder: where it lies.
        about: contents of `run.json`.
    """

    folder: Path
    about: dict[str, Any]

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.about["settings"]["method"])

    @property
    def label(self) -> str:
        """What to call the run in a legend."""
        return str(self.about.get("label", self.method))

    def metrics(self) -> pd.DataFrame:
        """`metrics.csv`; clients and horizons are text."""
        return _read_csv(self.folder / "metrics.csv", METRIC_COLUMNS[4:], ("value",))

    def rounds(self) -> pd.DataFrame:
        """`rounds.csv`; empty for reference forecasters."""
        return _read_csv(self.folder / "rounds.csv", ROUND_COLUMNS, ROUND_COLUMNS)

    def forecasts(self) -> xr.Dataset:
        """`forecasts.nc`: `y_hat` and `y` with dimensions `(cell, time, horizon)`."""
        with self.open_forecasts() as ds, reading(ds.encoding["source"], "whole", AGAIN):
            return ds.load()

    def open_forecasts(self) -> xr.Dataset:
        """`forecasts`, lazily: values are read when they are used."""
        path = self.folder / "forecasts.nc"
        with open_hdf5(path, "as netCDF4", AGAIN):
            ds = xr.open_dataset(path, engine="h5netcdf")
        for name in ("y_hat", "y"):
            if name not in ds or ds[name].dims != ("cell", "time", "horizon"):
                raise InputError(
                    f"{path}: no {name!r} with dimensions (cell, time, horizon); {AGAIN}"
                )
            check_size(ds[name].size * 8, f"{path}: {name}")
        return ds

    def score(self, metric: str = "mse", selection: str = "best", split: str = "test") -> float:
        """One pooled error, over all clients and the whole horizon."""
        table = self.metrics()
        row = table[
            (table["metric"] == metric)
            & (table["selection"] == selection)
            & (table["split"] == split)
            & (table["client"] == "all")
            & (table["horizon"] == "all")
        ]
        return float(row["value"].iloc[0]) if len(row) else float("nan")


def run(
    method: str,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: dict[str, Any],
    *,
    label: str | None = None,
    after_round: Callable[[RoundReport], None] | None = None,
) -> Run:
    """Fit a forecaster, judge it and write the run folder.

    Args:
        method: name of a method.
        data: path of a cube.
        out: run folder; made if it is not there.
        settings: flat settings, see `stforecast.config`.
        label: what to call the run in tables and legends; by default the method.
        after_round: called with each round's report.

    Raises:
        InputError: if data or settings do not fit, or `out` is a file or holds a finished run.
    """
    out = Path(out)
    _check_new(out)
    start = time.perf_counter()
    forecaster = Forecaster(method, **settings).fit(data, after_round)
    _write_results(forecaster, Path(data).stem, out)
    about = {
        "settings": forecaster.config.flat(),
        "label": label or method,
        "data": str(data),
        "service": forecaster.service,
        "clients": len(forecaster.cells),
        "federated": forecaster.config.federated,
        "seconds": round(time.perf_counter() - start, 3),
        **_privacy(forecaster),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in PACKAGES}},
    }
    with atomic_path(out / "run.json") as part:
        part.write_text(json.dumps(about, indent=2) + "\n")
    return Run(out, about)


def _privacy(forecaster: Forecaster) -> dict[str, Any]:
    """What the Gaussian mechanism on uploads guarantees, where it was used."""
    uplink, uploads = forecaster.config.uplink, len(forecaster.rounds_)
    if not uplink.private or not uploads:
        return {}
    guarantee = {"epsilon": epsilon(uplink, uploads), "delta": uplink.privacy_delta}
    return {"privacy": {**guarantee, "of": "a client's whole training series", "uploads": uploads}}


def _check_new(out: Path) -> None:
    """Make sure before the work that its results can be written."""
    if (out / "run.json").exists():
        raise InputError(f"{out} already holds a finished run; choose another --out or delete it")
    nearest = next(path for path in (out, *out.parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest} is a file; choose a folder for --out")


def _write_results(forecaster: Forecaster, data: str, out: Path) -> None:
    """Everything but `run.json`."""
    forecaster.save(out / "model")
    metrics = forecaster.evaluate().assign(
        method=forecaster.config.method,
        data=data,
        service=forecaster.service,
        seed=forecaster.config.run.seed,
    )
    write_csv(metrics[list(METRIC_COLUMNS)], out / "metrics.csv")
    rounds = forecaster.rounds_
    write_csv(rounds if len(rounds) else _no_rounds(), out / "rounds.csv")
    with atomic_path(out / "forecasts.nc") as part:
        forecaster.test_forecasts().to_netcdf(part, engine="h5netcdf")


def open_run(folder: str | os.PathLike[str]) -> Run:
    """A finished run.

    Raises:
        InputError: if the folder is none.
    """
    folder = Path(folder)
    try:
        about = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError, RecursionError) as e:
        raise InputError(
            f"{folder}: not a finished run ({type(e).__name__} at run.json); give a folder that "
            "`stforecast run` wrote"
        ) from e
    for name, kind in ABOUT.items():
        found = about.get(name) if isinstance(about, dict) else None
        if not isinstance(found, kind) or (kind is dict and "method" not in found):
            raise InputError(
                f"{folder / 'run.json'}: no {name} in it; `stforecast run` writes them"
            )
    return Run(folder, about)


def _read_csv(path: Path, columns: Sequence[str], numbers: Sequence[str]) -> pd.DataFrame:
    """A table of a run, with at least these columns; `numbers` are those that hold numbers."""
    with reading(path, "as a table", AGAIN):
        table = pd.read_csv(path, dtype={"client": str, "horizon": str})
    for name in columns:
        numeric = name not in numbers or table.get(name, pd.Series(dtype=str)).dtype.kind in "iuf"
        if name not in table or not (numeric or table.empty):
            problem = "no column" if name not in table else "no numbers in column"
            raise InputError(f"{path}: {problem} {name!r}; {AGAIN}")
    return table


def find_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Run]:
    """Every finished run in the given folders and below them, in order of name.

    Raises:
        InputError: naming a folder that holds none.
    """
    runs = []
    for folder in map(Path, folders):
        found = sorted(folder.rglob("run.json")) if folder.is_dir() else []
        if not found:
            raise InputError(f"{folder}: no finished run here; `stforecast run` writes one")
        runs += [open_run(path.parent) for path in found]
    return runs


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table whole or not at all."""
    with atomic_path(path) as part:
        table.to_csv(part, index=False)


def _no_rounds() -> pd.DataFrame:
    return pd.DataFrame(columns=list(RoundReport.__dataclass_fields__))
