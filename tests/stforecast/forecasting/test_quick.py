"""A forecast in one call: what it accepts, it finishes, saves and loads, for any horizon."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from stforecast import Forecaster, forecast
from stforecast.forecasting import fit
from stforecast.forecasting.trained_method import train

STEPS = ("1min", "7min", "15min", "30min", "1h", "90min", "4h", "7h", "8h", "12h", "1D")


def daily(n_steps, step):
    """Return a table of two cells with a profile of the day."""
    times = pd.date_range("2024-03-04", periods=n_steps, freq=step, name="time")
    angle = 2 * np.pi * (times.hour + times.minute / 60) / 24
    noise = np.random.default_rng(0).normal(0, 5, (n_steps, 2))
    return pd.DataFrame((100 + 50 * np.sin(angle).to_numpy()[:, None] + noise), times, ["a", "b"])


def check_round_trip(result, table, horizon, folder):
    """Check that a forecast is finite, and the same after the model was saved and loaded."""
    assert result.forecast.shape == (horizon, 2)
    assert np.isfinite(result.forecast).all(axis=None)
    result.forecaster.save(folder)
    loaded = Forecaster.load(folder)
    again = [loaded.predict(table), *loaded.predict_interval(table)]
    for found, before in zip(again, [result.forecast, *result.interval], strict=True):
        np.testing.assert_array_equal(found.to_numpy(), before.to_numpy())


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("n_steps", "step", "horizon"),
    [(12 * 24, "1h", 72), (28 * 24, "1h", 168), (14 * 96, "15min", 400), (24, "1D", 3)],
)
def test_a_horizon_longer_than_what_a_window_reads_loads(n_steps, step, horizon, tmp_path):
    table = daily(n_steps, step)
    check_round_trip(forecast(table, horizon), table, horizon, tmp_path)


@pytest.mark.parametrize("split", [{}, {"split": "steps:0.5,0.25,0.25"}])
def test_a_history_shorter_than_its_forecasts_read_is_refused_before_training(split, monkeypatch):
    monkeypatch.setattr(fit, "train", None)
    with pytest.raises(InputError, match=r"20 steps.*few"):
        forecast(daily(20, "7min"), 2, **split)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STEPS), st.integers(10, 2000), st.floats(0.003, 0.5))
def test_what_is_accepted_is_finished_saved_and_loaded(tmp_path_factory, step, n_steps, share):
    table, horizon = daily(n_steps, step), max(1, int(n_steps * share))
    trained = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "train", lambda *args: trained.append(args) or train(*args))
        try:
            result = forecast(table, horizon)
        except InputError:
            assert not trained
            return
    check_round_trip(result, table, horizon, tmp_path_factory.mktemp("model"))
