"""A small town: three cells, ten days of hours; and finished runs of given forecasts."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from small_files import write_netcdf

from data_prep.cube import make_cube, write_cube
from stforecast.bench.grid import load_grid
from stforecast.cli.main import main
from stforecast.federated.engine.rounds import RoundReport
from stforecast.federated.runs.run_folder import write_csv
from stforecast.forecasting.results import METRIC_COLUMNS, ROUND_COLUMNS, ForecastRun
from stforecast.methods import METHODS


@pytest.fixture
def stforecast(capsys):
    """Runs the command; gives its exit code, output and error output."""

    def call(*words):
        capsys.readouterr()  # What was printed before.
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        return done.value.code or 0, *capsys.readouterr()

    return call


@pytest.fixture(scope="session")
def table():
    """Wide table (time × cell): a daily wave, noise of its own in each cell."""
    hours = pd.date_range("2013-11-01", periods=240, freq="h", name="time")
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    values = np.array([100.0, 50.0, 400.0]) * (wave[:, None] + 0.1 * rng.normal(size=(240, 3)))
    return pd.DataFrame(values, hours, pd.Index([11, 22, 33], name="cell"))


@pytest.fixture
def drifting_table():
    """Wide table of three weeks: the same daily wave in each cell, and a level that drifts."""
    rng = np.random.default_rng(0)
    hours = pd.date_range("2013-11-01", periods=24 * 21, freq="h")
    daily = np.sin(2 * np.pi * hours.hour / 24)
    noise = rng.normal(size=(len(hours), 3)).cumsum(0)
    return pd.DataFrame(daily.to_numpy()[:, None] + 0.1 * noise, hours, ["a", "b", "c"])


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


@pytest.fixture(scope="session")
def written_cube(cube, tmp_path_factory):
    return write_cube(cube, tmp_path_factory.mktemp("cube") / "town.nc")


@pytest.fixture
def cube_path(written_cube, tmp_path):
    return Path(shutil.copy(written_cube, tmp_path))


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
        named = {"label": label, "data": data, "service": service, "units": units, "lines": {}}
        named["step_minutes"] = step_minutes
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
        ds = xr.Dataset(
            values,
            {"cell": ids, "time": times, "horizon": np.arange(1, horizon + 1)},
            {"step_minutes": step_minutes, **clock, **(attrs or {})},
        )
        write_netcdf(ds, out / "forecasts.nc")
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


def write_forecasts(path, models, cells, n_days, horizon=1, kept="best"):
    """Writes forecasts of zeros, every twelve hours; their squared errors are those of each cell.

    Seasonal naive has a squared error of 4.
    """
    times = pd.date_range("2013-11-01", periods=2 * n_days, freq="12h")
    shape = (len(cells), len(times), horizon)
    values = {"y": np.zeros(shape), "seasonal_naive": np.full(shape, 2.0)}
    about = {}
    for selection, errors in models.items():
        name = "y_hat" if selection == kept else f"y_hat_{len(values)}"
        values[name] = np.broadcast_to(np.sqrt(errors)[:, None, None], shape)
        about[name] = {"selection": selection}
    scales = dict.fromkeys(("std", "seasonal_mae", "seasonal_rmse"), ("cell", np.ones(len(cells))))
    dims = ("cell", "time", "horizon")
    ds = xr.Dataset(
        {n: (dims, v, about.get(n, {})) for n, v in values.items()} | scales,
        {"cell": cells, "time": times, "horizon": np.arange(1, horizon + 1)},
        {"step_minutes": 720.0},
    )
    write_netcdf(ds, path)


@pytest.fixture
def tables():
    """Reads the Markdown tables in a text: rows of texts, header first."""

    def read(text):
        found = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
        return [
            [[cell.strip() for cell in line.strip("|").split("|")] for line in (rows[0], *rows[2:])]
            for rows in found
        ]

    return read


@pytest.fixture
def make_run(tmp_path):
    """Writes a run folder without training.

    `scores` are the test errors of `selections`; `clients` are errors by client of the kept round.
    """

    def make(
        method="fuels",
        label=None,
        *,
        scores=(1.0, 2.0),
        selections=("best", "last"),
        data="data/milan.nc",
        service="internet",
        clients=None,
        about=None,
        rounds=((3.0, 0, 100), (2.0, 200, 100), (2.5, 200, 100)),
        federated=True,
        seconds=1.0,
        failed=0,
        n_days=3,
        **settings,
    ):
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        horizon = settings.get("horizon", 1)
        defaults = {
            "seed": 1, "split": "fuels", "horizon": 1, "scale": "cell", "rounds": 3,
            "select": "best",
        }  # fmt: skip
        kept = settings.get("select", "best")
        about = {
            **(about or {}),
            "settings": {"method": method, **defaults, **settings},
            "label": label or method,
            "data": data,
            "service": service,
            "units": "1",
            "lines": {},
            "clients": 25,
            "federated": federated,
            "seconds": seconds + 1,
            "train_seconds": seconds,
            "predict_seconds": seconds / 10,
        }
        out.mkdir()
        (out / "run.json").write_text(json.dumps(about))
        rows = [
            {"client": "all", "horizon": step, "split": split, "selection": selection,
             "metric": metric, "value": value * factor if split == "test" else 99.0}
            for step in (["1", "all"] if horizon == 1 else ["all"])
            for selection, value in zip(selections, scores, strict=True)
            for metric, factor in (("mse", 1), ("mae", 10), ("raw_mae", 1000), ("mase", 2))
            for split in ("test", "validation")
        ]  # fmt: skip
        rows += [
            {"client": client, "horizon": "all", "split": "test", "selection": kept,
             "metric": "mse", "value": value}
            for client, value in (clients or {}).items()
        ]  # fmt: skip
        write_csv(pd.DataFrame(rows).reindex(columns=list(METRIC_COLUMNS)), out / "metrics.csv")
        reports = [
            RoundReport(i + 1, 1.0, 1.0, loss, 5, 4 * 5 * down, 4 * (5 - failed) * up, 0.1, failed)
            for i, (loss, down, up) in enumerate(rounds if federated else ())
        ]
        columns = list(RoundReport.__dataclass_fields__)
        write_csv(pd.DataFrame([vars(r) for r in reports], columns=columns), out / "rounds.csv")
        cells = list(clients or "abc")
        models = {s: [v] * len(cells) for s, v in zip(selections, scores, strict=True)}
        models |= {kept: list(clients.values())} if clients else {}
        write_forecasts(out / "forecasts.nc", models, cells, n_days, horizon, kept)
        return ForecastRun.open(out)

    return make


@pytest.fixture(scope="session")
def tiny_settings():
    """Settings of a benchmark, as TOML, that train in well under a second."""
    return 'split = "days:7,1,2"\nrounds = 1\nhidden_size = 8\ndevice = "cpu"\n'


@pytest.fixture
def write(tmp_path, town, tiny_settings):
    """Writes a benchmark, with settings of training if a row trains, and reads it."""

    def make(methods='["ridge", "last_value"]', more="", settings=tiny_settings, data=None):
        path = tmp_path / "bench.toml"
        if not METHODS.keys() & set(re.findall(r'"(\w+)"', methods)):
            settings = re.sub(r"^(rounds|hidden_size|device) = .*\n", "", settings, flags=re.M)
        cubes = data or f'["{town}"]'
        path.write_text(f"data = {cubes}\nmethods = {methods}\n{more}\n[settings]\n{settings}")
        return load_grid(path)

    return make
