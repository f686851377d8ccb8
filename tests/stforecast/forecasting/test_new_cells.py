"""The week before the first reading of a new cell, filled from the mean week of others."""

import numpy as np
import pandas as pd
import pytest
import torch

from stforecast import Forecaster
from stforecast.data.clock import Calendar
from stforecast.forecasting import trained_method
from stforecast.forecasting.new_cells import expected_week, fill_before, filled_weight
from stforecast.methods.mixing import EXPECTED, WEEK

CALENDAR = Calendar(pd.Timestamp("2013-11-06"), pd.Timedelta("1h"))
"""It begins on a Wednesday."""

HOURS = np.arange(168)
SHARED = np.sin(2 * np.pi * HOURS / 24) - (HOURS >= 120)


def test_a_cell_of_many_days_is_expected_to_follow_its_own_line_and_hours():
    steps = np.arange(168 * 40)
    own = 3.0 + 0.5 * SHARED + (HOURS % 24 == 0) - (HOURS % 24 == 12)
    z = own[(steps + 48) % 168, None]
    expected = expected_week(np.concatenate([z, np.full_like(z, np.nan)], 1), CALENDAR, SHARED)
    np.testing.assert_allclose(expected[0], own, atol=0.02)
    assert not expected[1].any()


def test_a_reading_alone_gives_the_level_of_the_mean_week():
    expected = expected_week(np.array([[2.0]]), CALENDAR, SHARED)
    np.testing.assert_allclose(expected[0], 2.0 + SHARED - SHARED[48], atol=1e-9)


@pytest.mark.parametrize("step", ["10min", "3h"])
def test_steps_of_other_lengths_read_the_hour_that_they_begin_in(step):
    calendar = Calendar(CALENDAR.start, pd.Timedelta(step))
    day = calendar.steps_in(pd.Timedelta("1D"))
    hours = np.arange(day * 2) * 24 // day
    z = SHARED[48 + hours][:, None]
    expected = expected_week(z, calendar, SHARED)
    np.testing.assert_allclose(expected[0], SHARED, atol=1e-6)
    gap = np.full((day, 1), np.nan)
    filled, until = fill_before(np.concatenate([gap, z[day:]]), calendar, expected)
    np.testing.assert_allclose(filled, z, atol=1e-6)
    assert until.tolist() == [8 * day]


def test_only_the_week_before_the_first_reading_of_a_new_cell_is_filled():
    series = np.full((400, 3), np.nan)
    series[300:, :2] = 1.0
    series[350] = np.nan
    expected = np.stack([SHARED + 5, 0 * SHARED, SHARED + 5])
    filled, until = fill_before(series, CALENDAR, expected)
    assert until.tolist() == [300 + 168, 0, 400 + 168]
    assert np.isnan(filled[:132, 0]).all()
    np.testing.assert_array_equal(filled[132:300, 0], expected[0][(np.arange(132, 300) + 48) % 168])
    np.testing.assert_array_equal(filled[300:, 0], series[300:, 0])
    np.testing.assert_array_equal(filled[:, 1], series[:, 1])


@pytest.fixture(scope="module")
def weekly():
    """Table of five cells and five weeks: quiet weekends, noise of its own in each cell."""
    times = pd.date_range("2013-11-04", periods=24 * 35, freq="h")
    rng = np.random.default_rng(0)
    shape = 2 + np.sin(2 * np.pi * times.hour / 24) - 1.5 * (times.day_of_week >= 5)
    values = (
        shape.to_numpy()[:, None] * [10, 20, 30, 40, 50] * (1 + 0.1 * rng.normal(size=(840, 5)))
    )
    return pd.DataFrame(values, times, [1, 2, 3, 4, 5])


@pytest.fixture(scope="module")
def fitted(weekly):
    settings = {"rounds": 2, "pretrained": "none", "device": "cpu", "horizon": 6}
    return Forecaster("fedlean", split="days:21,3,4", **settings).fit(weekly[[1, 2, 3, 4]][:672])


def unfilled(adapted):
    """Return the forecaster without what its new cells expect."""
    memory = adapted.model_.predictor.snapshot.clients.memory
    memory[EXPECTED] = torch.zeros_like(memory[EXPECTED])
    return adapted


def test_a_young_cell_is_forecast_from_what_it_had_and_from_its_filled_week(
    fitted, weekly, monkeypatch, tmp_path
):
    history = weekly[[1, 5]][648 + 24 : 648 + 72]
    forecasts = {}
    weights = 0.0, 1.0, filled_weight(6, pd.Timedelta("1h"))
    for weight in weights:
        monkeypatch.setattr(trained_method, "filled_weight", lambda *_, weight=weight: weight)
        forecasts[weight] = fitted.adapt(history, 2).predict(history)
    plain, filled, both = forecasts.values()
    assert (plain[5] - filled[5]).abs().min() > 0
    np.testing.assert_allclose(both[5], plain[5] + weight * (filled[5] - plain[5]), rtol=1e-4)
    pd.testing.assert_series_equal(plain[1], filled[1])
    loaded = Forecaster.load(fitted.adapt(history, 2).save(tmp_path), device="cpu")
    pd.testing.assert_frame_equal(loaded.predict(history), both)
    same = unfilled(fitted.adapt(history, 2)).predict(history)
    pd.testing.assert_frame_equal(same, plain)


def test_a_cell_of_a_week_or_more_is_forecast_as_without_a_fill(fitted, weekly):
    history = weekly[[1, 5]].copy()
    history.loc[: history.index[-169], 5] = np.nan
    adapted = fitted.adapt(history, 7)
    assert adapted.model_.predictor.snapshot.clients.memory[EXPECTED][1].any()
    expected = adapted.predict(history)
    pd.testing.assert_frame_equal(unfilled(adapted).predict(history), expected)


def test_a_window_of_a_young_cell_reads_nothing_later_and_no_other_window(fitted, weekly):
    history = weekly[[1, 5]].copy()
    history.iloc[:720, 1] = np.nan
    adapted = fitted.adapt(history[:780], 2)
    tested = adapted.test_forecasts(history)["y_hat"].sel(cell=5, time=history.index[780])
    alone = adapted.predict(history[:780], limits=(-np.inf, np.inf))[5]
    np.testing.assert_allclose(tested, alone, rtol=1e-4)


def test_a_model_of_an_earlier_version_adapts_without_a_fill(fitted, weekly, tmp_path):
    loaded = Forecaster.load(fitted.save(tmp_path), device="cpu")
    for model in (loaded.model_.predictor, loaded.model_.predictor.former):
        del model.snapshot.server[WEEK]
    history = weekly[[1, 5]][-48:]
    expected = unfilled(fitted.adapt(history, 2)).predict(history)
    pd.testing.assert_frame_equal(loaded.adapt(history, 2).predict(history), expected)


def test_an_adapted_model_that_is_renewed_still_expects_a_week_of_its_new_cells(fitted, weekly):
    history = weekly[[1, 5]].copy()
    history.iloc[:-48, 1] = np.nan
    adapted = fitted.adapt(history[:-24], 1)
    before = adapted.model_.predictor.snapshot.clients.memory[EXPECTED].clone()
    renewed = adapted.update(history, days=2)
    kept = renewed.model_.predictor.snapshot.clients.memory[EXPECTED]
    torch.testing.assert_close(kept, before)  # The trial holds all readings of the new cell.
    learnt = renewed.learn_all(history)
    snapshot = learnt.model_.predictor.snapshot
    values = history.to_numpy()[:, [1]]
    z = (values - adapted.model_.scaler.mean[1]) / adapted.model_.scaler.std[1]
    week = snapshot.server[WEEK].numpy()
    expected = expected_week(z, Calendar(history.index[0], pd.Timedelta("1h")), week)
    now = snapshot.clients.memory[EXPECTED].numpy()
    np.testing.assert_allclose(now[1], expected[0], rtol=1e-4, atol=1e-4)
    assert not now[0].any()
    assert (learnt.predict(history)[5] != unfilled(learnt).predict(history)[5]).all()
