import multiprocessing
import sys

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.baselines.statistical import StatisticalOptions
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.leaks import forecast_leaks

pytest.importorskip("statsforecast", reason="the extra peers is not installed")
models = pytest.importorskip("statsforecast.models")

NAMES = ["auto_ets", "auto_arima", "mstl"]
SPEC = WindowSpec(closeness=2, periods=0, horizon=6, period=24)
SIX_HOURS = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("6h"))
TRAIN, TEST = np.arange(2, 75), np.arange(80, 90)
LIBRARY = {"auto_ets": "AutoETS", "auto_arima": "AutoARIMA", "mstl": "MSTL"}
ONE_JOB = StatisticalOptions()


def series(noise=0.3, n_steps=100):
    """One cell with a season of a day of four steps."""
    rng = np.random.default_rng(0)
    day = np.tile([-1.0, 0.5, 1.0, -0.5], n_steps // 4)
    return (day + noise * rng.normal(size=n_steps))[:, None]


def fitted(name, values=None, config=ONE_JOB):
    values = series() if values is None else values
    return BASELINES[name](config).fit(values, TRAIN, SPEC, SIX_HOURS)


@pytest.mark.parametrize("name", NAMES)
def test_just_after_the_training_part_it_is_the_library(name):
    values, end = series(), TRAIN[-1] + SPEC.horizon
    library = getattr(models, LIBRARY[name])(season_length=4).fit(values[:end, 0])
    y_hat = fitted(name).predict(values, np.array([end]), SIX_HOURS)
    np.testing.assert_allclose(y_hat[0, 0], library.predict(h=6)["mean"], atol=1e-5)


@pytest.mark.parametrize("name", ["auto_ets", "mstl"])
def test_a_season_without_noise_is_repeated(name):
    values = series(noise=0)
    y_hat = fitted(name, values).predict(values, TEST, SIX_HOURS)
    expected = values[TEST[:, None] + np.arange(SPEC.horizon), 0]
    np.testing.assert_allclose(y_hat[0], expected, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_forecasts_read_nothing_from_their_start_on(name):
    assert forecast_leaks(fitted(name), series(), TEST, SPEC, SIX_HOURS) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_state_forecasts_the_same(name):
    baseline = fitted(name)
    restored = BASELINES[name].from_state(baseline.state(), SPEC, ONE_JOB)
    np.testing.assert_array_equal(
        restored.predict(series(), TEST, SIX_HOURS), baseline.predict(series(), TEST, SIX_HOURS)
    )


def test_gaps_are_filled_with_the_last_reading():
    gaps = series()
    gaps[[0, 20, 21, 79]] = np.nan
    filled = pd.DataFrame(gaps).ffill().fillna(0.0).to_numpy()
    np.testing.assert_array_equal(
        fitted("auto_ets", gaps).predict(gaps, TEST, SIX_HOURS),
        fitted("auto_ets", filled).predict(filled, TEST, SIX_HOURS),
    )


def test_a_history_may_begin_at_another_time_of_day():
    values = series(noise=0)
    later = Calendar(SIX_HOURS.start + pd.Timedelta("18h"), SIX_HOURS.step)
    y_hat = fitted("auto_ets", values).predict(values[3:], TEST - 3, later)
    expected = values[TEST[:, None] + np.arange(SPEC.horizon), 0]
    np.testing.assert_allclose(y_hat[0], expected, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_short_history_is_lengthened(name):
    y_hat = fitted(name).predict(series()[:1], np.array([1]), SIX_HOURS)
    assert np.isfinite(y_hat).all()


@pytest.mark.slow
def test_processes_change_nothing():
    two = np.hstack([series(), 2 * series()])
    one, parallel = (fitted("auto_ets", two, StatisticalOptions(n_jobs=n)) for n in (1, 2))
    np.testing.assert_array_equal(
        one.predict(two, TEST, SIX_HOURS), parallel.predict(two, TEST, SIX_HOURS)
    )


def test_it_stops_at_the_time_limit_between_cells():
    two = np.hstack([series(), series()])
    with pytest.raises(InputError, match=r"auto_ets: .*1e-06 s .*1"):
        fitted("auto_ets", two, StatisticalOptions(n_jobs=1, time_limit=1e-6))


def test_processes_are_ended_at_the_time_limit():
    """No process starts, imports the library and fits a cell within so short a time."""
    two = np.hstack([series(), series()])
    with pytest.raises(InputError, match=r"limit .*0.05 s .*0 of 2 "):
        fitted("auto_arima", two, StatisticalOptions(n_jobs=2, time_limit=0.05))
    assert multiprocessing.active_children() == []


def test_other_cells_are_refused():
    with pytest.raises(InputError, match=r"auto_ets: .*1 cells, .*2"):
        fitted("auto_ets").predict(np.hstack([series(), series()]), TEST, SIX_HOURS)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_names_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "statsforecast", None)
    with pytest.raises(InputError, match=rf"^{name} .*'stforecast\[peers\]'$"):
        BASELINES[name]()
