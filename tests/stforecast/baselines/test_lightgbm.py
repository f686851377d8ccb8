import sys

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.baselines import BASELINES
from stforecast.baselines.trees import LightGBM, LightGBMOptions, rich_lags
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows, target_windows
from stforecast.forecasting.leaks import forecast_leaks

lightgbm = pytest.importorskip("lightgbm", reason="the extra peers is not installed")

SPEC = WindowSpec(closeness=3, periods=1, horizon=2, period=24)
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
TRAIN, TEST = np.arange(24, 380), np.arange(400, 430)


def series(n_steps=432, n_cells=3):
    rng = np.random.default_rng(0)
    values = np.sin(2 * np.pi * np.arange(n_steps) / 24)[:, None] + np.arange(n_cells)
    values = values + 0.3 * rng.normal(size=(n_steps, n_cells))
    values[rng.random(values.shape) < 0.05] = np.nan
    return values


def fitted(**options):
    config = LightGBMOptions(**{"num_iterations": 5, **options})
    return LightGBM(config).fit(series(), TRAIN, SPEC, HOURLY)


def test_it_is_the_library_on_the_same_records():
    values, lags = series(), "2-24,167-168"
    assert rich_lags(2, HOURLY) == lags
    spec = WindowSpec(
        closeness=1, periods=0, horizon=2, extra_lags=lags, calendar="weekdays", period=24
    )

    def records(starts):
        x = input_windows(values, starts, spec, HOURLY)
        cell = np.repeat(np.arange(3.0), len(starts))[:, None]
        return np.hstack([x.reshape(-1, x.shape[-1]), cell])

    x, x_test = records(TRAIN), records(TEST)
    y, mask = (part.reshape(-1, 2) for part in target_windows(values, TRAIN, spec))
    y_hat = fitted().predict(values, TEST, HOURLY)
    for k in range(2):
        data = lightgbm.Dataset(
            x[mask[:, k]], y[mask[:, k], k], categorical_feature=[x.shape[1] - 1]
        )
        model = lightgbm.train({"verbosity": -1}, data, num_boost_round=5)
        np.testing.assert_allclose(
            y_hat[:, :, k], model.predict(x_test).reshape(3, -1), rtol=0, atol=1e-5
        )


def test_lags_may_be_chosen():
    one, two = (fitted(lags=lags).predict(series(), TEST, HOURLY) for lags in ("2", "24h"))
    assert np.abs(one - two).max() > 1e-3


def test_forecasts_read_nothing_from_their_start_on():
    values = series()
    assert forecast_leaks(fitted(), values, TEST, SPEC, HOURLY) == []


def test_other_cells_are_refused():
    with pytest.raises(InputError, match="lightgbm: fitted on 3 cells, the series has 2"):
        fitted().predict(series()[:, :2], TEST, HOURLY)


def test_it_stops_at_the_time_limit():
    expected = r"^lightgbm: stopped by its time limit of 1e-06 s after 0 of 2 target steps; raise "
    with pytest.raises(InputError, match=expected):
        fitted(time_limit=1e-6)


def test_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(InputError, match=r"^lightgbm needs .*; pip install 'stforecast\[peers\]'$"):
        BASELINES["lightgbm"]()


def test_a_saved_forecaster_forecasts_the_same(tmp_path):
    hours = pd.date_range("2013-11-01", periods=432, freq="h")
    table = pd.DataFrame(series(), hours, pd.Index(["a", "b", "c"]))
    forecaster = Forecaster("lightgbm", split="days:12,3,3", horizon=2, num_iterations=5).fit(table)
    loaded = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.predict(table), forecaster.predict(table))
