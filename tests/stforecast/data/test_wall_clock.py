"""Lags, seasons and targets on the wall clock, across changes of daylight saving time."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from stforecast.baselines import BASELINES
from stforecast.data.anchors import anchors, repeat_season
from stforecast.data.clock import Calendar
from stforecast.data.events import Events
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import (
    fill_gaps,
    input_windows,
    source_steps,
    target_windows,
    training_targets,
)
from stforecast.forecasting.leaks import forecast_leaks

AUTUMN, SPRING = "2013-10-27", "2014-03-30"
"""Sundays on which the clock of Rome is changed, both at 01:00 UTC."""

N_DAYS = 20
WEEK = WindowSpec(1, 0, 24, 24, extra_lags="2-168", calendar="weekdays", target="level")


def calendar_of(change, step="1h", zone="Europe/Rome"):
    """A calendar that begins ten days before the day of the change."""
    return Calendar(pd.Timestamp(change) - pd.Timedelta(days=10), pd.Timedelta(step), zone)


def weekly(calendar, n_steps):
    """Values that follow from weekday and time of day alone, no two of a week alike."""
    local = calendar.local_times(np.arange(n_steps))
    minutes = local.day_of_week * 1440 + local.hour * 60 + local.minute
    return np.sin(minutes.to_numpy() ** 1.1)[:, None] + (local.hour.to_numpy() >= 20)[:, None]


@pytest.mark.parametrize("change", [AUTUMN, SPRING])
@pytest.mark.parametrize("step", ["10min", "30min", "1h"])
@pytest.mark.parametrize("days", [1, 2, 7])
def test_a_lag_of_days_leads_to_the_same_time_of_day(change, step, days):
    calendar = calendar_of(change, step)
    per_day = calendar.steps_in(pd.Timedelta(days=1))
    steps = np.arange(8 * per_day, N_DAYS * per_day)
    found = calendar.local_times(calendar.before(steps, days * per_day))
    wanted = calendar.local_times(steps) - pd.Timedelta(days=days)
    exists = ~wanted.tz_localize("Europe/Rome", ambiguous=True, nonexistent="NaT").isna()
    assert (found[exists] == wanted[exists]).all()
    # An hour that the clock skips is read an hour later, where its clock shows the next hour.
    assert (found[~exists] == wanted[~exists] + pd.Timedelta(hours=1)).all()
    assert (~exists).sum() == (change == SPRING) * per_day // 24


def test_an_hour_that_is_shown_twice_is_read_as_of_the_same_offset():
    calendar = calendar_of(AUTUMN)
    second = 10 * 24 + 1
    assert [str(t)[11:16] for t in calendar.local_times(second + np.arange(-2, 2))] == [
        "01:00", "02:00", "02:00", "03:00",
    ]  # fmt: skip
    assert calendar.before(np.array([second + 24]), 24).tolist() == [second]
    assert calendar.before(np.array([second - 1, second]), 24).tolist() == [second - 25] * 2


def test_the_first_step_may_be_read_across_the_change():
    rome = Calendar(pd.Timestamp("2013-10-20"), pd.Timedelta("1h"), "Europe/Rome")
    # 02:00 in winter time; a week before, 02:00 was at 00:00 UTC. No step lies before that.
    assert rome.before(np.array([169, 168]), 168).tolist() == [0, 0]


@pytest.mark.parametrize("zone", ["Europe/Rome", "UTC", None])
def test_without_a_change_nothing_differs_from_counting_steps(zone):
    calendar = calendar_of("2013-06-01", zone=zone)
    series = np.random.default_rng(0).normal(size=(N_DAYS * 24, 2))
    series[::7] = np.nan
    starts = np.arange(170, len(series) - 24)
    spec = WindowSpec(3, 3, 24, 24, extra_lags="2-168,500")
    steps = source_steps(starts, spec, calendar)
    np.testing.assert_array_equal(steps, starts[:, None] - np.array(spec.all_lags))
    for learned, plain in zip(
        training_targets(series, starts, spec, calendar),
        target_windows(series, starts, spec), strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(learned, plain)
    for season in (24, 168):
        of = (calendar, dataclasses.replace(calendar, time_zone=None))
        np.testing.assert_array_equal(*(repeat_season(series, starts, 30, season, c) for c in of))
    week, of_week = WindowSpec(impute="last-week"), np.arange(len(series)) % 168
    filled = pd.DataFrame(series).groupby(of_week).ffill()
    np.testing.assert_array_equal(fill_gaps(series, week, calendar), filled)


def test_windows_after_a_longer_day_are_those_of_a_week_before():
    calendar = Calendar(pd.Timestamp("2013-10-01"), pd.Timedelta("1h"), "Europe/Rome")
    series, change = weekly(calendar, 40 * 24), 26 * 24 + 1
    after = np.arange(change + 1, change + 24 * 6)
    before = calendar.before(after, 168)
    x, of_week_before = (
        input_windows(series, starts, WEEK, calendar) for starts in (after, before)
    )
    np.testing.assert_array_equal(x, of_week_before)
    y, _ = training_targets(series, after, WEEK, calendar)
    np.testing.assert_array_equal(y, training_targets(series, before, WEEK, calendar)[0])


def test_the_targets_of_a_window_with_the_change_are_learned_and_forecast_by_the_clock():
    calendar = calendar_of(AUTUMN)
    series, change = weekly(calendar, N_DAYS * 24), 10 * 24 + 1
    starts = np.arange(change - 24, change)
    y, mask = training_targets(series, starts, WEEK, calendar)
    before = training_targets(series, starts - 168, WEEK, calendar)[0]
    # The last time on the clock lies beyond the window, so its last target takes its place.
    np.testing.assert_array_equal(y[..., :-1], before[..., :-1])
    assert mask.all()
    expected, _ = target_windows(series, starts, WEEK)
    np.testing.assert_array_equal(calendar.off_wall_clock(before, starts), expected)
    quantiles = np.stack([before, before + 1], axis=-1)
    ordered = calendar.off_wall_clock(quantiles, starts)
    np.testing.assert_array_equal(ordered[..., 1], expected + 1)
    np.testing.assert_array_equal(calendar.on_wall_clock(expected, starts - 48), expected)


@pytest.mark.parametrize("season", [24, 168])
def test_seasons_repeat_the_same_time_of_day_after_a_longer_day(season):
    calendar = calendar_of(AUTUMN)
    series = weekly(calendar, N_DAYS * 24) if season == 168 else np.array(
        calendar.local_times(np.arange(N_DAYS * 24)).hour, dtype=float
    )[:, None]  # fmt: skip
    starts = np.arange(9 * 24, (N_DAYS - 1) * 24)
    y, _ = target_windows(series, starts, WEEK)
    np.testing.assert_array_equal(repeat_season(series, starts, 24, season, calendar), y)
    name = "day" if season == 24 else "week"
    np.testing.assert_array_equal(anchors(series, starts, 24, name, calendar), y)


def test_gaps_are_filled_with_the_same_time_of_last_week():
    calendar = calendar_of(AUTUMN)
    series = weekly(calendar, N_DAYS * 24)
    gappy = series.copy()
    gappy[12 * 24 : 15 * 24] = np.nan
    filled = fill_gaps(gappy, WindowSpec(impute="last-week"), calendar)
    np.testing.assert_array_equal(filled, series)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", [AUTUMN, SPRING])
@pytest.mark.parametrize("target", ["level", "day"])
@pytest.mark.parametrize("method", ["ridge", "seasonal_day"])
def test_nothing_is_read_that_is_not_known_when_the_clock_changes(change, target, method):
    calendar, per_day = calendar_of(change, "30min"), 48
    spec = WindowSpec(
        1, 1, per_day, per_day, extra_lags=f"2-{per_day},{7 * per_day}", target=target,
        impute="last-week",
    )  # fmt: skip
    series = np.random.default_rng(0).normal(size=(N_DAYS * per_day, 2))
    model = BASELINES[method]().fit(series, np.arange(340, 400), spec, calendar)
    first_after = 10 * per_day + 4 - 2 * (change == AUTUMN)
    for starts in (first_after + np.arange(-4, 4), first_after + np.arange(-48, 64, 16)):
        assert not forecast_leaks(model, series, starts, spec, calendar)


def test_forecasts_after_the_change_are_those_of_a_week_before():
    calendar = Calendar(pd.Timestamp("2013-10-01"), pd.Timedelta("1h"), "Europe/Rome")
    series, change = weekly(calendar, 40 * 24), 26 * 24 + 1
    model = BASELINES["ridge"]().fit(series, np.arange(168, 20 * 24), WEEK, calendar)
    after = np.arange(change + 1, change + 24 * 6)
    found, a_week_before = (
        model.predict(series, starts, calendar) for starts in (after, calendar.before(after, 168))
    )
    np.testing.assert_allclose(found, a_week_before, rtol=0, atol=1e-6)


def test_an_event_stands_at_its_time_on_the_clock():
    calendar = calendar_of(AUTUMN)
    at_eight = 10 * 24 + 19  # 20:00 in Rome, an hour from UTC after the change
    begin = np.array([calendar.time(at_eight).to_datetime64()])
    of_all = np.ones((1, 1), dtype=bool)
    events = Events(
        "a table", ("match",), np.zeros(1, int), begin, begin + np.timedelta64(1, "h"), of_all
    )
    calendar = dataclasses.replace(calendar, events=events)
    spec = WindowSpec(1, 0, 24, 24, events="match")
    starts = 10 * 24 + np.array([-2, 0, 5])  # two before the change, one after
    hours = calendar.local_times(starts).hour.to_numpy()
    x = input_windows(np.zeros((N_DAYS * 24, 1)), starts, spec, calendar)[0, :, 1:]
    assert x.argmax(axis=1).tolist() == ((20 - hours) % 24).tolist()
    assert (x.sum(axis=1) == 1).all()


@pytest.mark.parametrize("change", [AUTUMN, SPRING])
@pytest.mark.parametrize("season", [24, 168])
def test_a_season_repeats_the_latest_value_known_at_the_same_time_on_the_clock(change, season):
    calendar = calendar_of(change)
    own = np.arange(N_DAYS * 24)
    clock = own + calendar.shifts(own)
    starts = np.arange(9 * 24, 12 * 24)
    found = repeat_season(own[:, None].astype(float), starts, 30, season, calendar)[0]
    for start, values in zip(starts, found, strict=True):
        for target, value in zip(range(start, start + 30), values, strict=True):
            before = clock[target] - clock[:start]
            latest = clock[:start][(before > 0) & (before % season == 0)].max()
            shown = [(clock == c).sum() for c in range(latest, clock[target], season)]
            if set(shown) == {1}:  # None was skipped, none shown twice.
                assert clock[int(value)] == latest, (start, target)
