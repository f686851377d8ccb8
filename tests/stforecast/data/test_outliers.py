"""What is believed and what is learnt, of faults and of levels that really moved."""

import numpy as np
import pandas as pd
import pytest
import torch

from stforecast.data.outliers import MEMORY, NO_LIMIT, Bounds, learnable
from stforecast.data.prepared import prepare
from stforecast.data.scaling import Scaler
from stforecast.data.series import as_series
from stforecast.data.window_spec import WindowSpec

DAY, TRAINED = 24, 24 * 21
LENGTHS = {"step": 1, "four hours": 4, "day": 24, "week": 168}
FAR = {
    "x1000": lambda v: 1000 * v,
    "65535": lambda v: np.full_like(v, 65535.0),
    "2^32-1": lambda v: np.full_like(v, 2.0**32 - 1),
    "-1": lambda v: np.full_like(v, -1.0),
    "0": lambda v: np.zeros_like(v),
    "noise": lambda v: 1e5 * np.random.default_rng(1).standard_normal(v.shape),
}
BEGINS = {"training": 200, "newest": 24 * 28}


def traffic(days=42, cells=3, sigma=0.1, seed=0):
    """Daily waves of 40 to 200 with noise, `(steps, cells)`."""
    hour = np.arange(24 * days)[:, None] % 24
    wave = 40 + 160 * np.exp(-((hour - 15) ** 2) / 20)
    return wave * np.random.default_rng(seed).lognormal(sigma=sigma, size=(24 * days, cells))


def believed(values, day=DAY, trained=TRAINED):
    return Bounds.of(values[:trained], day).believed(values)


@pytest.mark.parametrize("sigma", [0.1, 0.6, 1.5])
def test_readings_of_traffic_and_of_bursts_are_believed(sigma):
    values = 100 * np.random.default_rng(0).lognormal(sigma=sigma, size=(500, 4))
    np.testing.assert_array_equal(believed(values, trained=300), values)


@pytest.mark.parametrize("begin", BEGINS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", FAR)
def test_a_faults_readings_and_no_others_are_not_believed(kind, length, begin):
    values, first, n = traffic(), BEGINS[begin], LENGTHS[length]
    hit = np.zeros(values.shape, dtype=bool)
    hit[first : first + n, 0] = True
    spoilt = values.copy()
    spoilt[hit] = FAR[kind](values[hit])
    found = believed(spoilt)
    np.testing.assert_array_equal(found[:, 1:], values[:, 1:])
    small = kind == "noise" and n > 1  # A few of its values are like traffic.
    assert np.isnan(found[hit]).mean() >= (0.9 if small else 1.0)
    after = np.isnan(found) & ~hit
    assert not after[:first].any()
    assert not after[first + n + DAY // 2 :].any(), "normal readings are believed the next day"


def test_ten_times_a_weeks_readings_are_mostly_not_believed():
    values = traffic()
    values[-192:-24, 0] *= 10
    found = np.isnan(believed(values)[:, 0])
    assert found[-192:-24].mean() > 0.5
    assert not found[-12:].any()
    assert not found[:-192].any()


@pytest.mark.parametrize("factor", [0.3, 0.5, 2.0])
def test_a_level_that_moved_is_read_and_learnt_at_once(factor):
    values = traffic()
    values[TRAINED + 50 :] *= factor
    np.testing.assert_array_equal(believed(values), values)
    mean, std = values[:TRAINED].mean(0), values[:TRAINED].std(0)
    z = (values - mean) / std
    assert np.isnan(learnable(z, slice(0, TRAINED), DAY)).mean() < 0.05


def test_growth_of_600_per_cent_over_weeks_is_believed():
    values = traffic(days=70)
    values[TRAINED:] *= np.linspace(1, 7, len(values) - TRAINED)[:, None]
    assert not np.isnan(believed(values)).any()


@pytest.mark.parametrize("factor", [20.0, 1000.0, 0.0])
def test_a_level_beyond_the_bound_is_believed_once_it_lasts(factor):
    values = traffic()
    values[TRAINED:] *= factor
    wild = np.isnan(believed(values))
    assert wild[TRAINED + DAY : TRAINED + MEMORY * DAY // 2].all() or factor == 20.0
    assert wild[TRAINED : TRAINED + 168].any()
    assert not wild[TRAINED + (MEMORY + 1) * DAY // 2 + 1 :].any()


def test_zeros_are_believed_where_they_are_usual():
    """As of shops that close on Sundays, and of counts at night."""
    values = traffic()
    values[(np.arange(len(values)) // 24) % 7 == 6] = 0.0
    assert believed(values) is values
    night = np.arange(len(values)) % 24 < 5
    assert not np.isnan(believed(np.where(night[:, None], 0.0, traffic()))).any()


def test_negative_readings_are_believed_in_a_cell_that_has_them():
    values = traffic() - 120
    found = believed(values)
    assert found is values
    values[-5, 1] = -1e5
    assert np.isnan(believed(values)).sum() == 1


def test_a_bad_week_of_the_training_part_does_not_raise_the_bound_far():
    values, spoilt = traffic(), traffic()
    spoilt[200:368, 0] *= 1000
    clean, found = (Bounds.of(of[:TRAINED], DAY).upper for of in (values, spoilt))
    assert (found <= 3 * clean).all()


def test_bounds_scale_with_readings_and_ignore_zeros_and_gaps():
    values = traffic(cells=4)
    bounds, larger = (Bounds.of(of, DAY) for of in (values, 7 * values))
    np.testing.assert_allclose(larger.upper, 7 * bounds.upper)
    gappy = np.full((2 * len(values), 4), np.nan)
    gappy[::2], gappy[1::4] = values, 0.0
    np.testing.assert_allclose(Bounds.of(gappy, 2 * DAY).upper, bounds.upper)
    for nothing in (0.0, np.nan):
        assert (Bounds.of(np.full((100, 2), nothing), DAY).upper == NO_LIMIT).all()


def test_what_is_believed_does_not_depend_on_later_readings():
    values = traffic(days=30)
    values[np.random.default_rng(1).random(values.shape) < 0.3] = 1e5
    bounds = Bounds.of(values[:TRAINED], DAY)
    whole = bounds.believed(values)
    for n in range(1, len(values), 37):
        np.testing.assert_array_equal(bounds.believed(values[:n]), whole[:n])


def test_a_bound_of_an_earlier_version_is_restored():
    """It has the largest size alone."""
    bounds = Bounds.from_state({"largest": np.array([10.0])})
    found = bounds.believed(np.array([[1.0], [-50.0], [1.0], [50.0], [50.0], [50.0]]))
    np.testing.assert_array_equal(found[:, 0], [1, np.nan, 1, np.nan, np.nan, np.nan])
    assert Bounds.from_state({}) is None


def test_bounds_survive_saving():
    bounds = Bounds.of(traffic()[:TRAINED], DAY)
    scaler = Scaler(np.zeros(3), np.ones(3), bounds=bounds)
    restored = Scaler.from_state(scaler.state()).bounds
    assert restored.state().keys() == bounds.state().keys()
    for name, values in bounds.state().items():
        np.testing.assert_array_equal(restored.state()[name], values)


def prepared(values, outliers="missing"):
    index = pd.date_range("2024-01-01", periods=len(values), freq="h")
    window = WindowSpec(closeness=3, periods=0, period=24)
    series = as_series(pd.DataFrame(values, index), None, window)
    return prepare(series, window, "time:0.5,0.2,0.3", "cell", outliers=outliers)


def test_readings_far_beyond_the_training_part_are_read_but_not_learnt():
    values = traffic()
    values[24 * 35 :, 0] *= 6  # A level that is not believed only where it is highest.
    data = prepared(values)
    far = np.isnan(data.learnt) & ~np.isnan(data.z)
    assert far[:, 0].any()
    assert not far[:, 1:].any()
    furthest = np.nanmax(np.abs(data.z[data.split.fit]), axis=0)
    assert (np.nanmax(np.abs(data.learnt), axis=0) <= 2 * furthest).all()
    assert prepared(traffic()).learnt is not None
    kept = prepared(values, "keep")
    assert kept.learnt is kept.z
    windows = data.windows(data.split.test)
    assert np.abs(windows.y).max() <= 2 * furthest.max()
    assert not windows.mask.all()


def test_the_rule_is_the_same_in_torch():
    values = traffic()
    values[-100:-50, 0] = 1e6
    bounds = Bounds.of(values[:TRAINED], DAY)
    wild = bounds.wild(torch.from_numpy(values)).numpy()
    np.testing.assert_array_equal(np.isnan(bounds.believed(values)), wild)


def test_a_forecast_does_not_read_the_first_hours_of_a_fault_that_lasts():
    """Which a rule that only looks back believes until it has seen four of them."""
    values = traffic(days=30)
    values[-6:, 0] = high = 5 * values.max()
    bounds = Bounds.of(values[:TRAINED], DAY)
    looking_back, at_end = (bounds.believed(values, at_end=now)[-7:, 0] for now in (False, True))
    assert np.isnan(looking_back).tolist() == [False] * 4 + [True] * 3
    assert np.isnan(at_end).tolist() == [False] + [True] * 6
    np.testing.assert_array_equal(bounds.believed(values, at_end=True)[:, 1:], values[:, 1:])
    values[-60:-2, 0] = high
    assert np.isnan(bounds.believed(values, at_end=True)[-60:, 0]).all(), "and normal ones after"
    brief = values[:-57]
    np.testing.assert_array_equal(bounds.believed(brief, at_end=True), brief)
