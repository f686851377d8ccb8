"""What readings were expected to be, and how rare they are."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from stforecast.service.expected import (
    Expected,
    Tails,
    expect,
    forecast_for,
    rarity_of,
    usual_error,
    weeks_before,
)

HOURS = pd.date_range("2024-01-01", periods=96, freq="h")


def forecasts(starts, horizon=24):
    """Forecasts of two cells: the day of the month of their start, plus the step ahead."""
    times = pd.DatetimeIndex(starts)
    ahead = np.arange(horizon, dtype=float)
    y_hat = np.broadcast_to(times.day.to_numpy()[:, None] * 100 + ahead, (2, len(times), horizon))
    dims = ("cell", "time", "horizon")
    found = {"y_hat": (dims, y_hat), "y": (dims, y_hat + 1.0)}
    found |= {"lower": (dims, y_hat - 10), "upper": (dims, y_hat + 20)}
    coords = {"time": times, "cell": ["a", "b"], "horizon": np.arange(horizon) + 1}
    return xr.Dataset(found, coords, {"step_minutes": 60, "service": "load"})


def test_the_newest_forecast_before_a_reading_counts():
    found = forecast_for(forecasts(["2024-01-02", "2024-01-02 12:00", "2024-01-04"]), HOURS)
    assert found.values[24, 0] == 200  # The first step of the first forecast.
    assert found.values[35, 0] == 211
    assert found.values[36, 0] == 200  # The second begins.
    assert not found.forecast[:24].any()
    assert not found.forecast[60:72].any()
    assert found.distances(np.full((96, 2), 250.0))[24, 0] == 50 / 20
    assert found.distances(np.full((96, 2), 195.0))[24, 0] == -5 / 10


def test_an_infinite_bound_leaves_the_other_bounds_of_its_cell():
    issued = forecasts(["2024-01-02", "2024-01-03"])
    issued["upper"] = issued["upper"].where(issued["time"] != HOURS[24], np.inf)
    found = forecast_for(issued, HOURS)
    assert np.isnan(found.above[24:48]).all()
    assert (found.above[48:72] == 20).all()
    assert np.isnan(found.distances(np.full((96, 2), 250.0))[24:48]).all()


def test_beyond_all_forecasts_the_weeks_before_say_what_is_expected():
    values = np.arange(1.0, 6.0).repeat(7)[:, None] * [1.0, 10.0]
    expected, error = weeks_before(values, 3, 7)
    assert np.isnan(expected[:7]).all()
    assert expected[7:14, 0].tolist() == [1] * 7
    assert expected[28:35, 0].tolist() == [2.5] * 7  # The median of 1 to 4.
    # The median of 2 to 5, at the level of the last week, 5 of 2.5.
    assert expected[35:, 1].tolist() == [70.0] * 3
    assert (error[:, 1] == 10 * error[:, 0]).all()


def test_the_weeks_before_are_their_median_whatever_is_missing():
    values = np.random.default_rng(1).normal(size=(7 * 6, 40))
    values[np.random.default_rng(2).random(values.shape) < 0.4] = np.nan
    found, _ = weeks_before(values, 0, 7)
    lags = np.stack([values[7 * (5 - week) : 7 * (6 - week)] for week in (1, 2, 3, 4)])
    some = ~np.isnan(lags).all(axis=0)
    np.testing.assert_array_equal(found[-7:][some], np.nanmedian(lags[:, some], axis=0))
    assert np.isnan(found[-7:][~some]).all()


def test_a_history_without_forecasts_is_measured_by_its_weeks():
    history = pd.DataFrame(
        np.ones((24 * 21, 2)), pd.date_range("2024-01-01", periods=504, freq="h")
    )
    found = expect(forecasts([]), history, history.index[-1] + pd.Timedelta(hours=5))
    assert len(found.times) == 509
    assert not found.forecast.any()
    assert (found.values[-5:] == 1).all()


@pytest.mark.parametrize("freedom", [2, 3, 30])
def test_one_reading_of_a_thousand_is_as_rare_as_that(freedom):
    rng = np.random.default_rng(0)
    known, fresh = rng.standard_t(freedom, 20_000), rng.standard_t(freedom, 400_000)
    rare = Tails.of(known).rarity(fresh)
    for one_in in (100, 1000):
        assert 0.6 < (rare >= one_in).mean() * one_in < 1.6
    assert np.isnan(Tails.of(known).rarity(np.array([np.nan]))).all()


def test_few_readings_are_measured_by_their_bounds():
    rare = Tails.of(np.array([0.5, -0.2])).rarity(np.array([0.1, 1.0, 10.0, -10.0]))
    assert rare[0] == 1
    assert rare[1] == pytest.approx(10)  # Bounds of 90 %.
    assert rare[2] == rare[3] > 1000


def test_a_zero_is_rare_only_where_it_was_not_expected():
    wide = np.full((1, 2), 10.0)
    expected = Expected(HOURS[:1], np.array([[100.0, 0.0]]), wide, wide, wide > 0)
    rare = Tails.of(np.random.default_rng(0).normal(0, 0.6, 20_000))
    far = rare.rarity(expected.distances(np.zeros((1, 2))))
    assert far[0, 0] > 1e6
    assert far[0, 1] == 1


def test_usual_errors_of_days():
    expected = np.ones((10, 4, 3))
    readings = expected.copy()
    readings[:, :, 0] = 1.3
    total, apart = usual_error(readings, expected)
    assert total == pytest.approx(0.3 / 3.3)
    assert apart == 0.0  # The median cell is as the median.


def test_rarity_that_is_not_asked_changes_none_that_is():
    rng = np.random.default_rng(1)
    hours = pd.date_range("2024-01-01", periods=24 * 40, freq="h")
    history = pd.DataFrame(rng.gamma(4.0, 50.0, (960, 2)), hours, ["a", "b"])
    issued = forecasts(hours[24 * 36 :: 24])
    of_all = rarity_of(issued, issued, history, history)
    asked = rarity_of(issued, issued, history, history, hours[24 * 35], least=20.0)
    n = len(asked.listed)
    assert n == 24 * 5
    np.testing.assert_array_equal(asked.listed, of_all.listed[-n:])
    np.testing.assert_array_equal(asked.surely >= 20, of_all.surely[-n:] >= 20)
    late = rarity_of(issued, issued, history, history, hours[-1] + pd.Timedelta(days=9))
    np.testing.assert_array_equal(late.surely, of_all.surely[-24:])
