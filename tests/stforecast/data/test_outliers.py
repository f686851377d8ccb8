import numpy as np
import pytest

from stforecast.data.scaling import IN_A_ROW, NO_LIMIT, believed, largest_believed


def traffic(seed=0, sigma=0.6):
    return 100 * np.random.default_rng(seed).lognormal(sigma=sigma, size=(500, 4))


@pytest.mark.parametrize("sigma", [0.1, 0.6, 1.5])
def test_readings_of_traffic_and_of_bursts_are_believed(sigma):
    values = traffic(sigma=sigma)
    assert believed(values, largest_believed(values[:300])) is values


@pytest.mark.parametrize("factor", [100.0, -1000.0])
def test_spikes_and_resets_are_not_believed(factor):
    values = traffic()
    # Never two in a row.
    hit = np.zeros(values.shape, dtype=bool)
    hit[::40] = values[::40] > 50
    spoilt = np.where(hit, factor * values, values)
    found = believed(spoilt, largest_believed(spoilt[:300]))
    np.testing.assert_array_equal(found, np.where(hit, np.nan, values))


def test_limits_scale_with_readings_and_ignore_zeros_and_gaps():
    values = traffic()
    limits = largest_believed(values)
    np.testing.assert_allclose(largest_believed(-7 * values), 7 * limits)
    spread = np.full((1000, 4), np.nan)
    spread[::2], spread[1::4] = values, 0.0
    np.testing.assert_array_equal(largest_believed(spread), limits)
    assert (largest_believed(np.zeros((100, 2))) == NO_LIMIT).all()
    assert (largest_believed(np.full((100, 2), np.nan)) == NO_LIMIT).all()


def test_a_new_level_is_believed_once_it_lasts():
    values, n = np.ones((20, 1)), IN_A_ROW
    values[10:] = 500.0
    expected = values.copy()
    expected[10 : 10 + n - 1] = np.nan
    np.testing.assert_array_equal(believed(values, np.array([10.0])), expected)


def test_what_is_believed_does_not_depend_on_later_readings():
    values = np.where(np.random.default_rng(1).random((60, 3)) < 0.5, 500.0, 1.0)
    whole = believed(values, np.full(3, 10.0))
    for n in range(1, 60):
        np.testing.assert_array_equal(believed(values[:n], np.full(3, 10.0)), whole[:n])
