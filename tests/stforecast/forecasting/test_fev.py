"""A task of fev holds the run's data, and its windows are those of the run's forecasts."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from stforecast.forecasting.fev import export_fev
from stforecast.forecasting.runs import run

HORIZON = 5


@pytest.fixture
def ran(cube_path, tmp_path):
    """A run whose test part is no whole number of windows."""
    settings = {"horizon": HORIZON, "split": "days:7,1,2", "intervals": "normalised"}
    return run("ridge", cube_path, tmp_path / "run", {**settings, "service": "internet"})


def test_windows_of_the_task_are_those_of_the_forecasts(ran, tmp_path):
    n_windows = export_fev(ran, tmp_path / "task")

    (task,) = json.loads((tmp_path / "task" / "task.yaml").read_text())["tasks"]
    data = pl.read_parquet(task["dataset_path"])
    found = pl.read_parquet(tmp_path / "task" / "forecasts.parquet")
    own = ran.forecasts()
    assert task["horizon"] == HORIZON
    assert task["num_windows"] == n_windows == -(-own.sizes["time"] // HORIZON)
    assert data["id"].to_list() == sorted(data["id"].to_list())
    for window in range(n_windows):
        cut = task["initial_cutoff"] + window * HORIZON
        at = own.isel(time=window * HORIZON)
        rows = found.filter(pl.col("window") == window)
        assert rows["id"].to_list() == data["id"].to_list()
        for cell, series, times, row in zip(
            data["id"], data["target"], data["timestamp"], rows.iter_rows(named=True), strict=True
        ):
            of_cell = at.sel(cell=int(cell))
            assert times[cut] == pd.Timestamp(of_cell["time"].item())
            np.testing.assert_allclose(series[cut : cut + HORIZON], of_cell["y"], rtol=1e-6)
            np.testing.assert_array_equal(row["predictions"], of_cell["y_hat"])
            np.testing.assert_array_equal(row["0.05"], of_cell["lower"])
            np.testing.assert_array_equal(row["0.95"], of_cell["upper"])


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.isel(time=slice(ds.sizes["time"] // 2)),
        lambda ds: ds.isel(cell=slice(None, None, -1)).assign_coords(cell=ds["cell"]),
        lambda ds: ds.assign(internet=ds["internet"] * 1.01),
    ],
    ids=["shorter", "cells exchanged", "one per cent more"],
)
def test_other_data_than_those_of_the_run_are_refused(change, ran, cube_path, tmp_path):
    with xr.open_dataset(cube_path, engine="h5netcdf") as ds:
        changed = change(ds.load())
    changed.to_netcdf(cube_path, engine="h5netcdf")
    with pytest.raises(InputError, match="has changed"):
        export_fev(ran, tmp_path / "task")
    assert not (tmp_path / "task").exists()
