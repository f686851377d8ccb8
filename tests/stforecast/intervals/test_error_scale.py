"""Size of errors by time."""

import numpy as np
import pandas as pd
import pytest

from stforecast.data.clock import Calendar
from stforecast.intervals.radii import ErrorScale, scale_shapes

HOURLY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1h"))


def noise(n_steps=480, n_cells=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n_steps, n_cells))


def fitted(series, errors=None, y_hat=None, horizon=2):
    """Fit to the first ten days as training part, and errors of the next five."""
    starts = np.arange(240, 360)
    y_hat = np.zeros((series.shape[1], 120, horizon)) if y_hat is None else y_hat
    errors = np.ones(y_hat.shape) if errors is None else errors
    return ErrorScale.fit(series, slice(0, 240), HOURLY, starts, y_hat, errors)


def test_equal_errors_have_one_scale():
    series, y_hat = noise(), noise(120, 3)[None].repeat(2, 0).transpose(2, 1, 0)
    found = fitted(series, y_hat=y_hat).at(series, np.arange(360, 400), y_hat[:, :40], HOURLY)
    np.testing.assert_allclose(found, 1.0, atol=1e-6)


def test_errors_that_grow_with_the_level_get_scales_that_do():
    y_hat = np.random.default_rng(1).uniform(-1, 1, size=(3, 120, 2))
    clients = np.array([1.0, 10.0, 0.1])[:, None, None]
    scale = fitted(np.zeros((480, 3)), clients * np.exp(y_hat), y_hat)
    # The last value is always 0, so "move" is |y_hat|.
    low, high = (
        scale.at(np.zeros((480, 3)), np.array([400]), np.full((3, 1, 2), level), HOURLY)
        for level in (-1.0, 1.0)
    )
    # A prior of 20 errors against 720 shrinks the exponent from 2 to no less than 1.8.
    np.testing.assert_allclose(np.log(high / low), 2.0, atol=0.2)
    assert np.ptp(low) < 1e-12, "clients differ in the radius, not in the scale"


def test_errors_that_follow_the_hour_get_scales_that_do():
    hours = np.arange(480) % 24
    series = noise() * np.where(hours == 8, 5.0, 1.0)[:, None]
    errors = np.abs(series[240:360]).T[..., None]
    scale = fitted(series, errors, np.zeros((3, 120, 1)))
    np.testing.assert_array_equal(scale.by_hour.argmax(axis=0), 8)
    at = scale.at(series, np.arange(384, 408), np.zeros((3, 24, 1)), HOURLY)[..., 0]
    assert (at[:, 8] > 2 * np.median(at, axis=1)).all()


def test_the_profile_is_that_of_the_training_part_by_hand():
    # Each hour is ± 1 around its median on alternate days, hour 3 is ± 24.
    days, hours = np.divmod(np.arange(480), 24)
    sizes = np.where(hours == 3, 24.0, 1.0)
    series = (100.0 + (-1.0) ** days * sizes)[:, None]
    series[240:] = 1e6
    expected = np.where(np.arange(24) == 3, 24.0, 1.0) / (47 / 24)
    np.testing.assert_allclose(fitted(series).by_hour[:, 0], expected)


def test_a_scale_reads_nothing_at_or_after_the_start():
    series, starts = noise(), np.arange(360, 380)
    y_hat = np.random.default_rng(2).normal(size=(3, 20, 2))
    errors = np.random.default_rng(3).exponential(size=(3, 120, 2))
    known = np.random.default_rng(4).normal(size=(3, 120, 2))
    scale = fitted(series, errors, known)
    before = scale.at(series, starts, y_hat, HOURLY)
    changed = series.copy()
    changed[370:] = 1e3
    after = scale.at(changed, starts, y_hat, HOURLY)
    np.testing.assert_array_equal(before[:, :11], after[:, :11])
    assert (before[:, 11] != after[:, 11]).all(), "the latest change is read"


def test_series_with_gaps_and_constant_cells_have_a_scale():
    series = noise()
    series[:, 1] = 0.0
    series[np.arange(480) % 24 == 5, 2] = np.nan
    errors = np.random.default_rng(3).exponential(size=(3, 120, 2))
    errors[0, ::3] = np.nan
    errors[1] = 0.0
    scale = fitted(series, errors)
    at = scale.at(series, np.array([0, 1, 300, 480]), np.zeros((3, 4, 2)), HOURLY)
    assert np.isfinite(at).all()
    assert (at > 0).all()
    assert np.isfinite(fitted(series, np.full((3, 120, 2), np.nan)).weights).all()


@pytest.mark.parametrize("n_cells", [1, 4])
def test_arrays_have_the_shapes_that_are_told(n_cells):
    found = vars(fitted(noise(n_cells=n_cells)))
    assert {name: values.shape for name, values in found.items()} == scale_shapes(n_cells)
