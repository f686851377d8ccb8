"""The pretrained network: its inputs by hand, what it may read, and what it is refused for."""

import numpy as np
import pandas as pd
import pytest
import torch

from data_prep.base.errors import InputError
from stforecast.baselines.pretrained import Past, Perceptron, Pretrained, WallClock, trained_arrays
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import WindowSpec

HOURS = Calendar(pd.Timestamp("2013-10-07"), pd.Timedelta("1h"), "Europe/Rome")
START = 600
"""First target of most windows: after 25 days, an hour after the clock was set back."""


@pytest.fixture
def series():
    """Two cells, `(steps, cells)`, with gaps."""
    values = np.random.default_rng(0).normal(size=(700, 2)).cumsum(0)
    values[START - 3, 0] = values[START - 30 : START - 20, 1] = np.nan
    return values


def inputs(series, start=START, ahead=(1, 30), calendar=HOURS):
    past = Past(torch.tensor(series), WallClock.of(calendar))
    return past.inputs(torch.tensor([start]), torch.tensor(ahead))


def test_inputs_of_a_window_are_relative_to_its_last_seven_days(series):
    found = inputs(series)
    week = series[START - 168 : START]
    np.testing.assert_allclose(found.mean[:, 0], np.nanmean(week, axis=0))
    np.testing.assert_allclose(found.spread[:, 0], np.nanstd(week, axis=0))
    z = (series - np.nanmean(week, axis=0)) / np.nanstd(week, axis=0)
    window = found.window[1, 0].numpy()
    hours = z[START - 24 : START, 1][::-1]  # An hour is a step, so both parts are the same.
    np.testing.assert_allclose(window[:24], np.nan_to_num(hours), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(window[24:48], window[:24])
    days = [np.nanmean(z[START - 24 * d : START - 24 * (d - 1), 1]) for d in range(1, 8)]
    np.testing.assert_allclose(window[48:55], days, rtol=1e-4, atol=1e-5)
    assert window[55:79].tolist() == (~np.isnan(hours)).tolist()


def test_inputs_of_a_target_are_around_its_time_on_former_days(series):
    """Cell 0 at 10:00 on 31 October: the clock was set back four days before."""
    start = 24 * 24 + 11
    assert str(HOURS.local_times(np.array([start]))[0]) == "2013-10-31 12:00:00"
    found = inputs(series, start, ahead=(1,))
    z = (series[:, 0] - found.mean[0, 0].item()) / found.spread[0, 0].item()
    target = found.target[0, 0, 0].numpy()
    of_days = target[:35].reshape(7, 5)
    for day in range(1, 8):
        at = start - 24 * day - (day > 4)  # An hour earlier on the series' clock.
        expected = z[at - 2 : at + 3].copy()
        expected[np.arange(at - 2, at + 3) >= start] = 0.0
        np.testing.assert_allclose(of_days[day - 1], expected.clip(-8, 8), rtol=1e-4, atol=1e-4)
        assert target[35 + day - 1] == pytest.approx(np.mean(z[at - 1 : at + 2]), abs=1e-4)


def test_a_window_reads_nothing_from_its_start_on(series):
    later = series.copy()
    later[START:] = 99.0
    for first, second in zip(inputs(series), inputs(later), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    unknown = inputs(series).target[0, 0, 1, :5]  # A day before the target 30 hours ahead.
    assert unknown.tolist() == [0.0] * 5


def test_the_network_is_two_layers_beside_a_linear_map():
    rng = np.random.default_rng(0)
    shapes = {
        "window.weight": (3, 4), "window.bias": (3,), "target.weight": (3, 5),
        "hidden.weight": (2, 2), "hidden.bias": (2,), "output.weight": (1, 2),
    }  # fmt: skip
    w = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    window, target = rng.normal(size=4), rng.normal(size=(6, 5))
    both = target @ w["target.weight"].T + w["window.weight"] @ window + w["window.bias"]
    first = both[:, 1:].clip(0)
    second = first + (first @ w["hidden.weight"].T + w["hidden.bias"]).clip(0)
    expected = both[:, 0] + second @ w["output.weight"][0]
    network = Perceptron.from_arrays(w)
    found = network(torch.tensor(window).float(), torch.tensor(target).float())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def fitted(horizon=24, calendar=HOURS):
    spec = WindowSpec(closeness=1, periods=0, horizon=horizon)
    return Pretrained().fit(np.zeros((600, 1)), np.array([300]), spec, calendar)


def test_it_forecasts_any_cell_however_little_is_known_of_it():
    series = np.full((400, 4), np.nan)
    series[:, 0] = np.sin(2 * np.pi * np.arange(400) / 24)
    series[-1, 1] = 3.0
    series[:, 2] = 2.0
    found = fitted().predict(series, np.array([1, 200, 400]), HOURS)
    assert found.shape == (4, 3, 24)
    assert np.isfinite(found).all()
    wave = np.sin(2 * np.pi * np.arange(400, 424) / 24)
    assert np.abs(found[0, 2] - wave).mean() < 0.2
    assert np.abs(found[2, 2] - 2.0).max() < 0.1


def test_blocks_of_windows_do_not_change_forecasts(series, monkeypatch):
    forecaster, starts = fitted(), np.arange(300, 340)
    whole = forecaster.predict(series, starts, HOURS)
    monkeypatch.setattr("stforecast.baselines.pretrained.BLOCK", 1)
    np.testing.assert_allclose(forecaster.predict(series, starts, HOURS), whole, atol=1e-5)


@pytest.mark.parametrize("step", ["7min", "4h"])
def test_a_step_that_it_was_not_trained_for_is_refused(step):
    with pytest.raises(InputError, match=r"pretrained: .*(7|240) minutes"):
        fitted(calendar=Calendar(pd.Timestamp("2013-10-07"), pd.Timedelta(step)))


def test_the_weights_are_small_and_finite():
    arrays = trained_arrays()
    assert sum(a.nbytes for a in arrays.values()) < 2e6
    assert all(np.isfinite(a).all() and a.dtype == np.float16 for a in arrays.values())
