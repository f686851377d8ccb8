import pandas as pd
import pytest

from stforecast.data.window_spec import (
    AUTO_WEEKDAYS,
    WindowSpec,
    auto_calendar,
    auto_lags,
    days_lags,
)

DAYS = {"5min": 288, "10min": 144, "15min": 96, "30min": 48, "1h": 24, "2h": 12, "6h": 4}


@pytest.mark.parametrize(
    ("step", "horizon", "days", "expected"),
    [
        ("1h", 1, 20, "1-168"),
        ("1h", 24, 10, "1-48"),
        ("1h", 1, 2, "1-24"),
        ("10min", 24, 20, "1-36,119-146,983-1010"),
        ("15min", 1, 20, "1-36,94-98,670-674"),
        ("5min", 12, 3, "1-36,275-290"),
        ("5min", 12, 1, "1-36"),
        ("30min", 48, 20, "1-36,37-50,287-338"),
        ("2h", 1, 40, "1-84"),
        ("2h", 12, 10, "1-24"),
        ("6h", 1, 14, "1-14"),
        ("6h", 1, 60, "1-28"),
    ],
)
def test_lags_are_those_that_the_length_allows(step, horizon, days, expected):
    n_training = days * DAYS[step]
    assert auto_lags(pd.Timedelta(step), horizon, n_training) == expected


def test_daily_series_read_at_most_four_weeks_and_a_quarter_of_the_training_part():
    day = pd.Timedelta(days=1)
    assert auto_lags(day, 7, 365) == "1-28"
    assert auto_lags(day, 7, 40) == "1-10"
    assert auto_lags(day, 1, 3, closeness=1) == ""
    assert auto_calendar(day, 365) == "weekdays"


@pytest.mark.parametrize(
    ("days", "expected"), [(8, "day"), (9, "week"), (13, "week"), (14, "weekdays")]
)
def test_weekdays_need_each_of_them_twice(days, expected):
    hour = pd.Timedelta(hours=1)
    assert auto_calendar(hour, 24 * days, AUTO_WEEKDAYS) == expected
    assert auto_calendar(hour, 24 * days) == ("day" if days < 9 else "week")
    spec = WindowSpec(calendar=AUTO_WEEKDAYS).chosen(hour, 24 * days)
    assert spec.calendar == expected


@pytest.mark.parametrize("step", DAYS)
@pytest.mark.parametrize("days", [1, 3, 8, 15, 60])
@pytest.mark.parametrize("horizon", [1, 12, 400])
def test_lags_never_repeat_and_lie_in_the_training_part(step, days, horizon):
    n_training = days * DAYS[step]
    spec = WindowSpec(closeness=1, periods=0, horizon=horizon, extra_lags="auto", calendar="auto")
    spec = spec.chosen(pd.Timedelta(step), n_training)
    lags = spec.all_lags
    assert len(set(lags)) == len(lags)
    assert max(lags) <= max(36, n_training)


@pytest.mark.parametrize("step", DAYS)
@pytest.mark.parametrize("horizon", [1, 5, 30])
def test_each_target_has_its_value_of_a_day_and_a_week_before(step, horizon):
    length, day = pd.Timedelta(step), DAYS[step]
    lags = {int(lag) for lag in days_lags(length, horizon, 60 * day).split(",")}
    of_targets = {span - ahead for span in (day, 7 * day) for ahead in range(horizon)}
    assert {lag for lag in of_targets if lag > 0} <= lags
    spec = WindowSpec(horizon=horizon, extra_lags="auto-days").at(length).chosen(length, 60 * day)
    assert not set(spec.lags) & set(spec.further_lags)
    assert set(spec.lags) | set(spec.further_lags) == set(spec.lags) | lags
    assert max(map(int, days_lags(length, horizon, 2 * day).split(","))) < 2 * day
