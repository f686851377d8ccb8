"""A run's test part as a task of fev, with the run's forecasts in it.

Format: Shchur et al., "fev-bench: A Realistic Benchmark for Time Series Forecasting", 2025, arXiv
2509.26468; `fev.Task` of github.com/autogluon/fev (Apache-2.0). A task is a table with a list of
times and values for each series, and the settings of its windows; each window begins where the one
before ends. fev itself is not needed to write it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.base.files import atomic_path
from stforecast.data.dates import DAY
from stforecast.data.series import Series, as_series
from stforecast.forecasting.results import ForecastRun, data_of

DATA, TASK, FORECASTS = "data.parquet", "task.yaml", "forecasts.parquet"
"""Files of a task: what it reads, its settings, and the run's forecasts in each window."""


def export_fev(run: ForecastRun, folder: Path) -> int:
    """Write a run's test part as a task of fev.

    Args:
        run: a finished run.
        folder: gets `data.parquet`, `task.yaml`, and `forecasts.parquet` with the columns `window`,
            `id`, `predictions` and, with bounds, a column for each quantile.

    Returns:
        Number of windows.

    Raises:
        InputError: if the data no longer hold the values of the test part.
    """
    series = as_series(data_of(run.about), run.about["service"])
    with run.open_forecasts() as forecasts, run.reading(forecasts):
        windows = forecasts.isel(time=slice(None, None, forecasts.sizes["horizon"])).load()
    _check(series, windows, run.folder)
    folder.mkdir(parents=True, exist_ok=True)
    ids = np.argsort(series.cells.astype(str))  # fev sorts them as text, too.
    # Lists of one length: those of any length come from polars in a type that fev refuses.
    ns = np.tile(series.times.to_numpy().astype("datetime64[ns]").astype(np.int64), (len(ids), 1))
    times = pl.Series(ns).cast(pl.Array(pl.Datetime("ns"), len(series.times)))
    frame = {
        "id": series.cells[ids].astype(str),
        "timestamp": times,
        "target": series.values.T[ids],
    }
    _write(pl.DataFrame(frame), folder / DATA)
    _write(_forecasts_of(windows), folder / FORECASTS)
    with atomic_path(folder / TASK) as part:
        part.write_text(json.dumps({"tasks": [_task(run, series, windows, folder)]}, indent=2))
    return windows.sizes["time"]


def _check(series: Series, windows: xr.Dataset, folder: Path) -> None:
    """Refuse data with other values than those that the run was tested on."""
    first = series.times.get_indexer(windows["time"].to_index())
    steps = first[:, None] + np.arange(windows.sizes["horizon"])
    y = windows["y"].transpose("time", "horizon", "cell").to_numpy()
    own = series.select(windows["cell"].to_numpy()).values
    rounding = 1e-5 * np.nanmax(np.abs(y))
    there = first.min() >= 0 and steps.max() < len(own)
    if not there or not np.allclose(own[steps], y, atol=rounding, equal_nan=True):
        raise InputError(
            f"{series.name} has changed since {folder} was run: its values are not those of the "
            "run's test part; give the run its data back, or run it again"
        )


def _task(run: ForecastRun, series: Series, windows: xr.Dataset, folder: Path) -> dict[str, object]:
    """Return the settings of the task, as the arguments of `fev.Task`."""
    first = pd.Timestamp(windows["time"].to_numpy()[0])
    return {
        "dataset_path": str((folder / DATA).resolve()),
        "task_name": f"{Path(series.name).stem} {series.service}",
        "horizon": windows.sizes["horizon"],
        "num_windows": windows.sizes["time"],
        "initial_cutoff": int(series.times.searchsorted(first)),
        "seasonality": max(1, DAY // series.calendar.step),
        "eval_metric": "MASE",
        "extra_metrics": ["MAE", "RMSE", *(["WQL"] if _quantiles(windows) else [])],
        "quantile_levels": list(_quantiles(windows)),
    }


def _quantiles(windows: xr.Dataset) -> dict[float, str]:
    """Return the variable of each quantile; none without bounds."""
    if "lower" not in windows:
        return {}
    outside = (1 - float(windows.attrs["coverage"])) / 2
    return {round(outside, 6): "lower", round(1 - outside, 6): "upper"}


def _forecasts_of(windows: xr.Dataset) -> pl.DataFrame:
    """Return a row for each window and cell, cells in the order of their ids as text."""
    ids = windows["cell"].to_numpy().astype(str)
    by_id = windows.isel(cell=np.argsort(ids)).transpose("time", "cell", "horizon", ...)
    names = {"predictions": "y_hat"} | {str(q): name for q, name in _quantiles(windows).items()}
    n_windows, horizon = windows.sizes["time"], windows.sizes["horizon"]
    return pl.DataFrame(
        {
            "window": np.repeat(np.arange(n_windows), len(ids)),
            "id": np.tile(np.sort(ids), n_windows),
            **{name: by_id[v].to_numpy().reshape(-1, horizon) for name, v in names.items()},
        }
    )


def _write(frame: pl.DataFrame, path: Path) -> None:
    with atomic_path(path) as part:
        frame.write_parquet(part)
