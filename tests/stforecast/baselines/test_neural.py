import os
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.baselines.neural import NeuralOptions
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.config import read_by
from stforecast.forecasting.leaks import forecast_leaks

try:
    import neuralforecast  # noqa: F401  # It fails to import beside packages of another torch.
    from neuralforecast.tsdataset import TimeSeriesDataset
except Exception as e:
    pytest.skip(f"the extra peers is not installed ({e})", allow_module_level=True)

NAMES = ["nhits", "dlinear", "patchtst"]
SPEC = WindowSpec(closeness=3, periods=1, horizon=4, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 120), np.arange(130, 150)


def series(gaps=True):
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(160) / 24)[:, None] * [0.5, 1.0]
    values = values + 0.1 * rng.normal(size=(160, 2))
    if gaps:
        values[rng.random(values.shape) < 0.05] = np.nan
    return values


def fitted(name, values=None, seed=1, **options):
    config = NeuralOptions(**{"input_size": 24, "max_steps": 3, **options})
    values = series() if values is None else values
    return BASELINES[name](config, seed).fit(values, TRAIN, SPEC, HOURLY)


@pytest.mark.parametrize("name", NAMES)
def test_a_forecast_is_that_of_the_library(name):
    values = series(gaps=False)
    baseline = fitted(name, values)
    past = values[:140].astype(np.float32)
    table = np.stack([past.T.ravel(), np.ones(past.size)], axis=1)
    dataset = TimeSeriesDataset(table, ["y", "available_mask"], np.arange(3) * 140, y_idx=0)
    expected = baseline.net.predict(dataset).reshape(2, 4)
    y_hat = baseline.predict(values, np.array([140]), HOURLY)
    np.testing.assert_allclose(y_hat[:, 0], expected, atol=1e-5)


def test_training_lowers_the_error():
    values = series(gaps=False)
    y = values[TEST[:, None] + np.arange(4)].transpose(2, 0, 1)
    few, many = (
        np.abs(fitted("dlinear", values, max_steps=n).predict(values, TEST, HOURLY) - y).mean()
        for n in (1, 300)
    )
    assert many < few


@pytest.mark.parametrize("name", NAMES)
def test_forecasts_read_nothing_from_their_start_on(name):
    assert forecast_leaks(fitted(name), series(), TEST, SPEC, HOURLY) == []


def test_the_seed_decides():
    one, again, other = (
        fitted("nhits", seed=seed).predict(series(), TEST, HOURLY) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-4


def test_steps_before_the_series_are_missing():
    y_hat = fitted("nhits").predict(series()[:3], np.array([3]), HOURLY)
    assert np.isfinite(y_hat).all()


def test_other_random_numbers_are_left_alone_and_no_file_is_written(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    drawn = torch.rand(1), np.random.rand()  # noqa: NPY002
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    fitted("nhits")
    assert (torch.rand(1), np.random.rand()) == drawn  # noqa: NPY002
    assert os.listdir() == []  # noqa: PTH208
    assert capfd.readouterr() == ("", "")


def test_a_saved_forecaster_forecasts_the_same(tmp_path):
    hours = pd.date_range("2013-11-01", periods=160, freq="h")
    table = pd.DataFrame(series(), hours, pd.Index(["a", "b"]))
    settings = {"split": "steps:0.7,0.1,0.2", "periods": 0, "input_size": 24, "max_steps": 2}
    forecaster = Forecaster("patchtst", **read_by("patchtst", settings)).fit(table)
    loaded = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))


def test_it_stops_at_the_time_limit():
    expected = r"^dlinear: stopped by its time limit of 1e-06 s after 1 of 3 training steps; raise"
    with pytest.raises(InputError, match=expected):
        fitted("dlinear", time_limit=1e-6)


def test_a_training_part_shorter_than_a_window_is_refused():
    with pytest.raises(InputError, match=r"123 steps, .*154"):
        fitted("nhits", input_size=150)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_names_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "neuralforecast", None)
    with pytest.raises(InputError, match=rf"^{name} .*'stforecast\[peers\]'$"):
        BASELINES[name]()
