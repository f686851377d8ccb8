import numpy as np
import pandas as pd
import pytest

from stforecast.baselines.tree_inputs import inputs_of_steps
from stforecast.data.clock import Calendar

NEWEST = 24
"""Newest readings that are inputs."""

HOURLY = Calendar(pd.Timestamp("2013-11-04"), pd.Timedelta("1h"))  # a Monday
START = 400


def inputs(values, horizon=30, start=START, calendar=HOURLY):
    return np.stack(list(inputs_of_steps(values, np.array([start]), horizon, calendar)))[:, :, 0]


def test_inputs_are_recent_readings_differences_means_and_earlier_days_and_weeks():
    steps = np.arange(START, dtype=float)[:, None]
    for ahead, of_cell in enumerate(inputs(steps)):
        (x,) = of_cell
        newest, target = START - 1, START + ahead
        np.testing.assert_array_equal(x[:NEWEST], np.arange(newest, newest - NEWEST, -1))
        np.testing.assert_array_equal(x[NEWEST : NEWEST + 2], [24, 168])
        means = [newest - (width - 1) / 2 for width in (3, 6, 12, 12, 24, 48, 168) if width]
        means.pop(2)  # Half a day is twelve hours.
        first = NEWEST + 3
        np.testing.assert_allclose(x[first : first + 6], means)
        assert x[first + 6] == pytest.approx(np.std(np.arange(24), ddof=1), rel=1e-4)
        day, week = (target - season * (ahead // season + 1) for season in (24, 168))
        two_days = day - 24 * (ahead // 24 + 1)
        expected = [day - 1, day, day + 1, week - 1, week, week + 1, two_days, week - 168]
        expected = np.minimum(expected, newest)
        np.testing.assert_array_equal(x[first + 7 : first + 15], expected)
        np.testing.assert_array_equal(x[first + 15 : first + 17], expected[[1, 4]] - newest)
        assert x[-2:].tolist() == [ahead, 0]
        weekday = (target // 24) % 7
        assert x[-9:-2].tolist() == [float(weekday == of) for of in range(7)]


def test_the_weekly_profile_is_the_mean_of_the_same_time_of_earlier_weeks():
    week = np.random.default_rng(0).normal(size=(168, 2))
    for ahead, x in enumerate(inputs(np.tile(week, (3, 1))[:START], horizon=3)):
        profile = x[:, NEWEST + 3 + 7 + 8 + 2]
        change = x[:, NEWEST + 3 + 7 + 8 + 3]
        before = x[:, 0] - x[:, NEWEST + 2]
        np.testing.assert_allclose(profile - before, change, atol=1e-5)
        far = np.abs(profile - week[(START + ahead) % 168])
        assert (far < np.abs(week - week.mean(axis=0)).max()).all()


@pytest.mark.parametrize("horizon", [1, 30, 170])
def test_inputs_read_nothing_from_their_start_on(horizon):
    values = np.random.default_rng(0).normal(size=(640, 2))
    altered = values.copy()
    altered[START:] = 100.0
    rome = Calendar(pd.Timestamp("2013-10-12"), pd.Timedelta("1h"), "Europe/Rome")
    for calendar in (HOURLY, rome):
        np.testing.assert_array_equal(
            inputs(values, horizon, calendar=calendar), inputs(altered, horizon, calendar=calendar)
        )


def test_readings_before_the_series_are_missing():
    x = inputs(np.ones((30, 1)), horizon=1, start=20)[0, 0]
    assert np.isnan(x[20:NEWEST]).all()
    assert not np.isnan(x[:20]).any()
