import numpy as np
import pandas as pd
import pytest

from data_prep.errors import InputError
from stforecast import Forecaster
from stforecast.config import defaults, resolve


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    hours = pd.date_range("2013-11-01", periods=24 * 14, freq="h")
    daily = np.sin(2 * np.pi * hours.hour / 24)
    values = daily.to_numpy()[:, None] + 0.1 * rng.normal(size=(len(hours), 3))
    return pd.DataFrame(values, hours, ["a", "b", "c"])


def test_it_comes_with_the_settings_that_it_is_made_for():
    config = resolve("fedlean")
    assert (config.run.model, config.loss.loss) == ("mlp", "huber")
    assert (config.window.n_inputs, config.training.schedule) == (20, "cosine")
    assert resolve("fedlean", model="dual_gru", extra_lags="", calendar="none").window.n_inputs == 9
    assert defaults("fuels") == {"model": "dual_gru"}
    assert resolve("fuels").run.model == "dual_gru"


def test_only_the_encoder_is_sent_and_shared(table):
    forecaster = Forecaster("fedlean", split="days:8,3,3", rounds=2).fit(table)
    floats = forecaster.rounds_["bytes_up"] / 3 / 4
    assert set(floats) == {20 * 64 + 64 + 64 * 32 + 32} == {3424}
    clients = forecaster._fitted["last"].snapshot.clients.params
    assert not (clients["head.weight"] == clients["head.weight"][:1]).all()


def test_a_history_must_reach_as_far_back_as_the_inputs(table):
    forecaster = Forecaster("fedlean", split="days:8,3,3", rounds=1).fit(table)
    assert len(forecaster.predict(table[-169:])) == 1
    with pytest.raises(InputError, match="has 168 steps; the model reads 169 steps back"):
        forecaster.predict(table[-168:])


def test_it_forecasts_what_a_saved_one_forecasts(table, tmp_path):
    forecaster = Forecaster("fedlean", split="days:8,3,3", rounds=2).fit(table)
    again = Forecaster.load(forecaster.save(tmp_path))
    pd.testing.assert_frame_equal(again.predict(table, 3), forecaster.predict(table, 3))


def test_on_hours_its_lags_are_what_they_were_when_they_counted_steps(table):
    settings = {"split": "days:8,3,3", "rounds": 2}
    forecaster = Forecaster("fedlean", **settings).fit(table)
    steps = Forecaster("fedlean", period=24, extra_lags="23,25,167,168,169", **settings).fit(table)
    assert forecaster.config.window == steps.config.window
    pd.testing.assert_frame_equal(forecaster.predict(table), steps.predict(table), check_exact=True)


def test_yesterday_and_last_week_are_a_day_and_a_week_on_other_steps(table):
    finer = table.resample("30min").interpolate()
    forecaster = Forecaster("fedlean", split="windows:0.7,0.1,0.2", rounds=1).fit(finer)
    window = forecaster.config.window
    assert window.lags[-3:] == (144, 96, 48)
    assert window.further_lags == (46, 50, 334, 336, 338)
    forecaster.fit(table)
    assert forecaster.config.window.further_lags == (23, 25, 167, 168, 169)


def test_a_series_without_a_week_before_a_window_is_refused_with_what_to_type(table):
    with pytest.raises(InputError, match=r"none can read 169 steps .* --extra-lags 23"):
        Forecaster("fedlean", split="days:6,1,2").fit(table[: 24 * 9])
    Forecaster("fedlean", split="days:6,1,2", rounds=1, extra_lags="23,25").fit(table[: 24 * 9])
