"""The yardsticks that skill and scaled errors are measured with."""

import numpy as np
import pandas as pd
import pytest

from stforecast import Forecaster
from stforecast.data.prepared import prepare
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec
from stforecast.forecasting.config import read_by
from stforecast.forecasting.evaluate import better_season, seasonal_forecast, seasonal_scale
from stforecast.forecasting.quick import check_forecasts


def prepared(table, split, horizon=1):
    return prepare(as_series(table), WindowSpec(horizon=horizon, period=24), split, "cell")


def test_the_scale_is_that_of_the_training_part_by_hand():
    hours = pd.date_range("2013-11-01", periods=24 * 10, freq="h")
    values = np.zeros((len(hours), 3))
    values[24:48, 0] = 2.0  # One day differs by 2: from the day before and from the day after.
    values[24 * 7 :, 0] = 99.0  # After the training part.
    values[:, 1] = hours.day  # Each day differs by 1 from the day before.
    values[30:36, 1] = np.nan
    scale = seasonal_scale(prepared(pd.DataFrame(values, hours), "days:5,2,3"))
    np.testing.assert_allclose(scale.mae[:2], [4 / 4, 1.0])
    np.testing.assert_allclose(scale.rmse[:2], [np.sqrt(8 / 4), 1.0])
    assert np.isnan([scale.mae[2], scale.rmse[2]]).all(), "a constant cell has no errors"


@pytest.mark.parametrize("horizon", [1, 26])
def test_seasonal_naive_is_the_reference_forecaster_of_that_name(table, horizon):
    data = prepared(table, "days:5,2,3", horizon)
    forecaster = Forecaster("seasonal_day", split="days:5,2,3", horizon=horizon).fit(table)
    ds = forecaster.test_forecasts()
    np.testing.assert_array_equal(ds.seasonal_naive, ds.y_hat)
    np.testing.assert_array_equal(
        data.scaler.inverse(seasonal_forecast(data, slice(None), 24), cell_axis=0), ds.y_hat
    )


def weekly(n_days, test_days=7):
    """Return noisy counts that are low on Sundays, and their split."""
    hours = pd.date_range("2024-01-01", periods=24 * n_days, freq="h")
    noise = np.random.default_rng(0).normal(size=len(hours))
    low = 50.0 * (hours.day_of_week == 6) + noise
    return pd.DataFrame({"a": 100 - low}, hours), f"days:{n_days - 2 * test_days},7,{test_days}"


@pytest.mark.parametrize("split", ["days:14,7,7", "days:7,14,7", "days:5,16,7"])
def test_seasonal_naive_is_the_nearer_of_day_and_week_in_the_test_part(split):
    table, _ = weekly(28)
    assert better_season(prepared(table, split)) == 168, "whatever the other parts"
    table.iloc[: -24 * 7] = 1.0
    table.iloc[-24 * 7 :] = np.repeat(np.arange(7.0), 24)[:, None]  # Each day is 1 above the last.
    assert better_season(prepared(table, split)) == 24


def test_a_week_that_is_not_known_before_the_first_window_is_no_yardstick():
    table, _ = weekly(14)
    assert better_season(prepared(table, "days:4,2,8")) == 24


def test_all_that_skill_is_measured_with_repeats_the_week():
    table, split = weekly(35)
    forecaster = Forecaster("seasonal_week", split=split).fit(table)
    ds = forecaster.test_forecasts()
    np.testing.assert_array_equal(ds.seasonal_naive, ds.y_hat)
    check = check_forecasts(ds)
    assert "0% below that of the value one week before" in str(check)
    assert forecaster.backtest(table, folds=2).estimates["skill"].value == 0


def test_the_yardstick_of_data_with_gaps_is_the_last_known_value():
    table, split = weekly(35)
    table.iloc[::24] = np.nan
    check = check_forecasts(Forecaster("seasonal_week", split=split).fit(table).test_forecasts())
    assert "last known value of the same time of the week" in str(check)


def test_the_day_before_is_the_yardstick_where_days_are_alike(table):
    assert better_season(prepared(table, "days:5,2,3")) == 24


def test_without_a_day_of_history_there_is_no_seasonal_naive():
    minutes = pd.date_range("2012-03-01", periods=300, freq="5min")
    rng = np.random.default_rng(1)
    table = pd.DataFrame(rng.normal(size=(300, 2)), minutes)
    settings = {"split": "steps:0.5,0.2,0.3", "periods": 0}
    ds = Forecaster("last_value", **read_by("last_value", settings)).fit(table).test_forecasts()
    assert "seasonal_naive" not in ds
    assert np.isnan(ds.seasonal_mae).all()


def test_forecasts_of_every_selection_stand_beside_those_of_the_chosen(cube, tiny):
    both = Forecaster("perfedavg", service="internet", **tiny).fit(cube)
    ds = both.test_forecasts()
    names = {n: v.attrs["selection"] for n, v in ds.items() if "selection" in v.attrs}
    assert names == {
        "y_hat": "best",
        "y_hat_last": "last",
        "y_hat_last_global": "last (global)",
        "y_hat_best_global": "best (global)",
    }
    errors = both.evaluate().query("split == 'test' and client == 'all' and horizon == 'all'")
    errors = errors.set_index(["selection", "metric"])["value"]
    for name, selection in names.items():
        off = (ds[name] - ds["y"]) / ds["std"]
        assert float((off**2).mean()) == pytest.approx(errors[selection, "mse"], rel=1e-5)
        mase = float((abs(ds[name] - ds["y"]) / ds["seasonal_mae"]).mean())
        assert mase == pytest.approx(errors[selection, "mase"], rel=1e-6)
