"""Weekly profiles: means of earlier weeks, and what windows read of them."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.data.clock import Calendar
from stforecast.data.weekly_profile import WeeklyProfile, _means_of_last
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

MONDAY = pd.Timestamp("2013-11-04")
EIGHT_HOURS = Calendar(MONDAY, pd.Timedelta("8h"))  # Three steps a day, 21 a week.
HOURS = Calendar(MONDAY, pd.Timedelta("1h"))


def by_hand(series, step, at):
    """The profile by its definition, from readings a week old or older."""
    times = pd.date_range(MONDAY, freq=step, periods=max(at + 1, len(series)))
    old = [i for i in range(len(series)) if times[at] - times[i] >= pd.Timedelta("7D")]
    old = [i for i in old if not np.isnan(series[i]) and times[i].time() == times[at].time()]
    alike = [series[i] for i in old if (times[i].weekday() > 4) == (times[at].weekday() > 4)]
    same = [series[i] for i in old if times[i].weekday() == times[at].weekday()]
    return (sum(same) + np.mean(alike)) / (len(same) + 1) if alike else 0.0


def test_a_profile_is_the_mean_of_earlier_weeks_drawn_to_the_mean_of_days_of_its_kind():
    series = np.random.default_rng(0).normal(size=(80, 1))
    series[[3, 24, 40]] = np.nan
    found = WeeklyProfile.of(series, 5, EIGHT_HOURS).profile[0]
    expected = [by_hand(series[:, 0], EIGHT_HOURS.step, at) for at in range(85)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_windows_read_the_change_of_the_profile_and_the_anomalies():
    series = np.random.default_rng(1).normal(size=(100, 2))
    series[70:75, 1] = np.nan
    profile = WeeklyProfile.of(series, 4, EIGHT_HOURS)
    change, anomalies = np.split(profile.inputs(np.array([75]), 4, EIGHT_HOURS)[:, 0], [4], axis=-1)
    for cell, newest in ((0, 74), (1, 69)):  # The second cell was last read five steps before.
        shape = profile.profile[cell]
        np.testing.assert_allclose(change[cell], shape[75:79] - shape[newest], rtol=1e-5)
        far = series[:75, cell] - shape[:75]
        means = far[newest], np.nanmean(far[newest - 2 : newest + 1]), np.nanmean(far[54:75])
        np.testing.assert_allclose(anomalies[cell][[0, 2]], [means[0], means[2]], rtol=1e-5)
    assert anomalies[0, 1] == pytest.approx(far_of_day(series[:, 0], profile.profile[0]), rel=1e-5)


def far_of_day(series, shape):
    return (series[72:75] - shape[72:75]).mean()


def test_a_profile_follows_the_wall_clock():
    """Each hour of the wall clock has its value; on the day of the change, too."""
    rome = Calendar(pd.Timestamp("2013-10-07"), pd.Timedelta("1h"), "Europe/Rome")
    hours = rome.local_times(np.arange(24 * 35)).hour.to_numpy()
    profile = WeeklyProfile.of(hours[:, None].astype(float), 0, rome).profile[0]
    np.testing.assert_allclose(profile[24 * 7 + 1 :], hours[24 * 7 + 1 :], atol=1e-5)


@pytest.mark.quick(3)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("horizon", [1, 24, 168, 200])
@pytest.mark.parametrize("zone", [None, "Europe/Rome"])
def test_no_input_reads_the_target_or_later(horizon, zone):
    calendar = Calendar(pd.Timestamp("2014-03-10"), pd.Timedelta("1h"), zone)
    spec = WindowSpec(closeness=1, periods=0, horizon=horizon, profile="week")
    series = np.random.default_rng(2).normal(size=(24 * 28, 2))
    for start in range(24 * 10, 24 * 28, 37):  # The clock changes on 30 March.
        other = series.copy()
        other[start:] += 100
        inputs = (input_windows(s, np.array([start]), spec, calendar) for s in (series, other))
        np.testing.assert_array_equal(*inputs)


def test_without_earlier_weeks_the_profile_is_the_training_mean():
    spec = WindowSpec(closeness=1, periods=0, horizon=2, profile="week")
    inputs = input_windows(np.ones((100, 1)), np.array([50]), spec, HOURS)
    assert inputs.tolist() == [[[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]]]


@pytest.mark.parametrize(
    ("step", "days", "profile"), [("1h", 14, "week"), ("1h", 13, "none"), ("7h", 70, "none")]
)
def test_short_series_and_uneven_steps_have_no_profile(step, days, profile):
    step = pd.Timedelta(step)
    spec = WindowSpec(period=1, profile="auto").chosen(step, pd.Timedelta(days=days) // step)
    assert spec.profile == profile
    assert spec.n_profile == (4 if profile == "week" else 0)


def test_a_profile_of_uneven_steps_is_refused():
    with pytest.raises(InputError, match=r"whole .*0 days 07:00:00"):
        WindowSpec(period=1, profile="week").chosen(pd.Timedelta("7h"), 100)


def test_means_of_the_last_steps_are_those_of_rolling_windows():
    rng = np.random.default_rng(4)
    values = rng.normal(size=(900, 3)) * [1.0, 50.0, 1e-3] + [0.0, 1e3, 0.0]
    values[rng.random(values.shape) < 0.2] = np.nan
    values[100:400, 1] = np.nan
    for span, found in zip((24, 168), _means_of_last(values, [24, 168]), strict=True):
        expected = pd.DataFrame(values).rolling(span, min_periods=1).mean()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_cells_computed_in_blocks_have_the_profiles_of_all(monkeypatch):
    rng = np.random.default_rng(1)
    series = rng.normal(size=(24 * 15, 5))
    series[rng.random(series.shape) < 0.1] = np.nan
    calendar = Calendar(pd.Timestamp("2013-10-20"), pd.Timedelta("1h"), "Europe/Rome")
    whole = WeeklyProfile.of(series, 3, calendar)
    monkeypatch.setattr("stforecast.data.weekly_profile.AT_ONCE", 2)
    for of_blocks, values in zip(WeeklyProfile.of(series, 3, calendar), whole, strict=True):
        np.testing.assert_array_equal(of_blocks, values)
