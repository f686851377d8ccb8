"""What models learn: differences from anchors, by hand and as identities."""

import numpy as np
import pandas as pd
import pytest
from cut_windows import cut_windows

from data_prep.base.errors import InputError
from stforecast.baselines import BASELINES
from stforecast.baselines.ridge import Ridge, RidgeConfig
from stforecast.data.anchors import anchors, targets, with_anchors, without_anchors
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import target_windows, training_targets
from stforecast.forecasting.leaks import forecast_leaks

SIX_HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("6h"))
HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))
NAN = np.nan
TINY = np.array([1.0, 2.0, NAN, 4.0, 5.0, NAN, 7.0, 8.0, NAN])[:, None]
"""Two days of four steps, and the first step of a third."""


def of_tiny(target, start, horizon):
    return anchors(TINY, np.array([start]), horizon, target, SIX_HOURLY).ravel().tolist()


@pytest.mark.parametrize(
    ("target", "start", "expected"),
    [
        ("change", 3, [2, 2, 2]),  # The last value is missing, so the one before it.
        ("change", 8, [8, 8, 8]),
        ("change", 0, [0, 0, 0]),
        ("day", 8, [5, 2, 7, 8, 5, 2]),  # Step 5 is missing, step 1 is not; then the same again.
        ("day", 9, [2, 7, 8, 5, 2]),  # The missing target at step 8 is no anchor.
        ("day", 6, [0, 4, 5, 2]),  # Neither step 2 nor any before it was observed.
        ("day", 2, [0, 0, 1, 2, 0, 0, 1]),
        ("week", 8, [0, 0]),
    ],
)
def test_anchors_by_hand(target, start, expected):
    assert of_tiny(target, start, len(expected)) == expected


def test_each_cell_and_window_has_its_own():
    series = np.arange(20.0).reshape(10, 2)
    found = anchors(series, np.array([5, 9]), 2, "day", SIX_HOURLY)
    assert found.dtype == np.float32
    assert found.tolist() == [[[2, 4], [10, 12]], [[3, 5], [11, 13]]]


def test_a_week_before():
    series = np.arange(400.0)[:, None]
    found = anchors(series, np.array([300]), 200, "week", HOURLY).ravel()
    # Beyond a week, the value two weeks before the target.
    np.testing.assert_array_equal(found, [*range(132, 300), *range(132, 164)])


def test_a_step_that_divides_no_day_has_changes_only():
    step = pd.Timedelta("7h")
    assert targets(step) == ["level", "change", "week"]
    with pytest.raises(InputError, match="divide 1 day"):
        anchors(TINY, np.array([3]), 1, "day", Calendar(SIX_HOURLY.start, step))


@pytest.mark.parametrize("target", ["level", "change", "day", "week"])
def test_what_is_subtracted_is_added_again(target):
    rng = np.random.default_rng(0)
    series = rng.normal(size=(400, 3))
    series[rng.random(series.shape) < 0.1] = NAN
    spec = WindowSpec(closeness=3, periods=0, horizon=30, target=target)
    starts = np.arange(200, 360)
    y, mask = target_windows(series, starts, spec)
    learned, same_mask = training_targets(series, starts, spec, HOURLY)
    np.testing.assert_array_equal(mask, same_mask)
    assert not learned[~mask].any()
    assert learned.dtype == np.float32
    again = with_anchors(learned, series, starts, target, HOURLY)
    np.testing.assert_allclose(again[mask], y[mask], rtol=0, atol=1e-5)
    # Quantiles move all alike.
    quantiles = np.stack([learned - 1, learned + 1], axis=-1)
    moved = with_anchors(quantiles, series, starts, target, HOURLY)
    np.testing.assert_allclose(moved.mean(-1)[mask], y[mask], rtol=0, atol=1e-5)
    assert (target == "level") == np.array_equal(learned, y)
    windows = cut_windows(series, starts, spec, HOURLY)
    np.testing.assert_array_equal(windows.y, learned)


@pytest.mark.parametrize(
    ("target", "naive"),
    [("change", "last_value"), ("day", "seasonal_day"), ("week", "seasonal_week")],
)
def test_a_forecast_of_no_difference_is_the_naive_one(target, naive):
    rng = np.random.default_rng(0)
    series, starts = rng.normal(size=(400, 2)), np.arange(200, 370)
    series[rng.random(series.shape) < 0.1] = NAN
    expected = BASELINES[naive]().fit(series, starts, WindowSpec(horizon=30), HOURLY)
    zero = np.zeros((2, len(starts), 30), np.float32)
    np.testing.assert_array_equal(
        with_anchors(zero, series, starts, target, HOURLY),
        expected.predict(series, starts, HOURLY),
    )
    learned = without_anchors(zero, series, starts, target, HOURLY)
    np.testing.assert_array_equal(learned, -expected.predict(series, starts, HOURLY))


def test_a_linear_map_of_the_last_value_learns_level_and_change_alike():
    """If an anchor is among the inputs, least squares only shifts its coefficient by 1."""
    series, starts = np.random.default_rng(0).normal(size=(300, 2)), np.arange(30, 250)

    def forecast(target):
        spec = WindowSpec(closeness=3, periods=1, period=24, horizon=2, target=target)
        ridge = Ridge(RidgeConfig(alpha=1e-9)).fit(series, starts, spec, HOURLY)
        return ridge.predict(series, np.arange(250, 300), HOURLY), ridge.state()["weights"]

    (level, weights), (change, moved) = forecast("level"), forecast("change")
    np.testing.assert_allclose(change, level, rtol=0, atol=1e-5)
    shift = np.array([0, 0, 0, 1, 0])  # Closeness is from old to new, after the intercept.
    np.testing.assert_allclose(moved + shift, weights, rtol=0, atol=1e-5)


@pytest.mark.quick(3)
@pytest.mark.parametrize("target", ["change", "day"])
@pytest.mark.parametrize("name", ["ridge", "boosting"])
def test_forecasts_read_nothing_from_their_start_on(name, target):
    series = np.random.default_rng(0).normal(size=(200, 2))
    series[::3] = NAN
    spec = WindowSpec(closeness=3, periods=0, horizon=30, target=target)
    kind = BASELINES[name]
    options = {"max_iter": 3} if name == "boosting" else {}
    fitted = kind(kind.Options(**options)).fit(series, np.arange(30, 120), spec, HOURLY)
    starts = np.arange(150, 201)
    assert forecast_leaks(fitted, series, starts, spec, HOURLY) == []
    assert fitted.predict(series, starts, HOURLY).shape == (2, 51, 30)


def test_an_anchor_after_the_start_is_found(monkeypatch):
    """A planted leak: the anchor is the first target itself."""

    def late(series, starts, horizon, target, calendar):
        return np.repeat(np.append(series, series[-1:], 0)[starts].T[..., None], horizon, axis=2)

    series = np.random.default_rng(0).normal(size=(200, 2))
    spec = WindowSpec(closeness=3, periods=0, target="change")
    fitted = Ridge().fit(series, np.arange(30, 120), spec, HOURLY)
    monkeypatch.setattr("stforecast.data.anchors.anchors", late)
    leaks = forecast_leaks(fitted, series, np.arange(150, 200), spec, HOURLY)
    assert {leak.what for leak in leaks} == {"forecast"}
