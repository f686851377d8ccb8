"""A small town: three cells, ten days of hours; and finished runs of given forecasts."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.cube import make_cube, write_cube
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.results import METRIC_COLUMNS, ROUND_COLUMNS, ForecastRun


@pytest.fixture(scope="session")
def table():
    """Wide table (time × cell): a daily wave, noise of its own in each cell."""
    hours = pd.date_range("2013-11-01", periods=240, freq="h", name="time")
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    values = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + 0.1 * rng.normal(size=(240, 3)))
    return pd.DataFrame(values, hours, pd.Index([11, 22, 33], name="cell"))


@pytest.fixture(scope="session")
def cube(table):
    """The table as a cube of a place in Italy: two services, one reading is missing."""
    internet = table.to_numpy().copy()
    internet[100, 1] = np.nan
    return make_cube(
        {"internet": internet, "sms": 2 * table.to_numpy()},
        table.index,
        table.columns.to_numpy(),
        title="a small town",
        source="invented",
        license="none",
        units="MB",
        time_zone="Europe/Rome",
    )


@pytest.fixture
def cube_path(cube, tmp_path):
    return write_cube(cube, tmp_path / "town.nc")


@pytest.fixture(scope="session")
def tiny():
    """Settings that train in well under a second."""
    return {"split": "days:7,1,2", "rounds": 2, "hidden_size": 8, "device": "cpu"}


@pytest.fixture
def tested(tmp_path):
    """Writes a run folder with given targets and forecasts, and the errors that these have.

    Arrays are `(cells, times, horizon)`; z-scores are the values themselves.
    """

    def make(
        label, y_hat, y, *, seed=1, start="2013-11-04", step_minutes=60.0, zone=None, units="1",
        naive=None, data="milan.nc", service="internet", about=None, cells=None, attrs=None,
        **settings,
    ):  # fmt: skip
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        out.mkdir()
        y, y_hat = np.asarray(y, dtype=float), np.asarray(y_hat, dtype=float)
        horizon = y.shape[2]
        shared = {"method": label, "select": "best", "split": "fuels", "horizon": horizon}
        named = {"label": label, "data": data, "service": service, "step_minutes": step_minutes}
        contents = {"settings": {**shared, "seed": seed, **settings}, **named, **(about or {})}
        (out / "run.json").write_text(json.dumps(contents))
        write_csv(pd.DataFrame(columns=list(ROUND_COLUMNS)), out / "rounds.csv")
        ids = np.arange(len(y)) + 100 if cells is None else cells
        write_csv(_errors(y_hat, y, ids), out / "metrics.csv")
        dims, unit = ("cell", "time", "horizon"), {"units": units}
        values = {"y": (dims, y, unit), "y_hat": (dims, y_hat, {**unit, "selection": "best, last"})}
        if naive is not None:
            values["seasonal_naive"] = (dims, np.asarray(naive, dtype=float), unit)
        values |= {n: ("cell", np.ones(len(y))) for n in ("std", "seasonal_mae", "seasonal_rmse")}
        times = pd.date_range(start, periods=y.shape[1], freq=pd.Timedelta(minutes=step_minutes))
        clock = {"clock": "utc", "time_zone": zone} if zone else {"clock": "local"}
        xr.Dataset(
            values,
            {"cell": ids, "time": times, "horizon": np.arange(1, horizon + 1)},
            {"step_minutes": step_minutes, **clock, **(attrs or {})},
        ).to_netcdf(out / "forecasts.nc", engine="h5netcdf")
        return ForecastRun.open(out)

    return make


def _errors(y_hat, y, cells):
    """Errors of all, of clients and of steps, as in `metrics.csv`."""
    rows = []
    for metric, error in (("mse", (y_hat - y) ** 2), ("raw_mae", np.abs(y_hat - y))):
        seen = np.isfinite(y)
        total = np.where(seen, error, 0.0)
        rows += [("all", "all", metric, total.sum() / seen.sum())]
        with np.errstate(invalid="ignore"):  # A cell may have no target.
            by_cell = total.sum(axis=(1, 2)) / seen.sum(axis=(1, 2))
        rows += [(str(c), "all", metric, e) for c, e in zip(cells, by_cell, strict=True)]
        steps = total.sum(axis=(0, 1)) / seen.sum(axis=(0, 1))
        rows += [("all", str(h + 1), metric, e) for h, e in enumerate(steps)]
    table = pd.DataFrame(rows, columns=["client", "horizon", "metric", "value"])
    return table.assign(split="test", selection="best").reindex(columns=list(METRIC_COLUMNS))
