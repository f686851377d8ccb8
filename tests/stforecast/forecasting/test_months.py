"""Months ahead: busy hours by week, their bounds, growth, and dates of passed thresholds."""

import logging

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.data.series import as_series
from stforecast.forecasting.groups import Groups
from stforecast.forecasting.months import plan_months, weekly


def made(weeks, change=lambda week: 0 * week, noise=0.05, cells="abc", start="2022-01-03"):
    """A series of hours: a day's wave, and the change of its logarithm from week to week."""
    times = pd.date_range(start, periods=168 * weeks, freq="h")
    week = np.arange(len(times)) / 168
    rng = np.random.default_rng(0)
    by_week = rng.normal(0, noise, (weeks, len(cells))).repeat(168, axis=0)
    wave = 2 + np.sin(2 * np.pi * times.hour.to_numpy() / 24)
    logs = np.log(wave) + change(week)
    values = np.exp(logs[:, None] + by_week) * (1 + np.arange(len(cells)))
    return as_series(pd.DataFrame(values, times, list(cells)))


def until(series, weeks):
    return str((series.times[-1] + pd.Timedelta(days=7 * weeks)).date())


def test_weeks_are_counted_back_and_have_their_busiest_hour():
    times = pd.date_range("2024-01-01 10:20", periods=6 * (336 + 5) + 1, freq="10min")
    values = np.ones((len(times), 2))
    values[:, 1] = 2
    values[-9:-3, 0] = [4, 4, 4, 4, 4, 10]  # The last whole hour; three readings follow.
    values[-540:-300, 1] = np.nan
    series = as_series(pd.DataFrame(values, times, ["a", "b"]))
    found = weekly(series, Groups.of_columns({}, series.cells))
    assert found.index.tolist() == list(pd.to_datetime(["2024-01-01 15:00", "2024-01-08 15:00"]))
    # The second cell lacks more than a fifth of the week, and the sum half as much.
    assert found.iloc[1].tolist() == pytest.approx([5.0, np.nan, 7.0], nan_ok=True)


def test_hours_at_which_nothing_is_ever_read_are_not_missing():
    series = made(4)
    series.values[series.times.hour < 6] = np.nan
    assert weekly(series).notna().all(axis=None)


def test_bounds_hold_and_widen():
    held = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        walks = np.exp(rng.normal(0, 0.05, (80, 3)).cumsum(axis=0).repeat(168, axis=0))
        series, cut = made(80), made(60)
        series.values[:] *= walks
        cut.values[:] *= walks[: len(cut.values)]
        found = plan_months(cut, until(cut, 12))
        widths = np.log(found.interval.upper / found.interval.lower)
        assert (widths.iloc[11] > 1.3 * widths.iloc[0]).all()
        truth = weekly(series).iloc[71]
        held.append(truth.between(found.interval.lower.iloc[11], found.interval.upper.iloc[11]))
    assert np.mean(held) > 0.8


def test_trend_and_season_are_used_where_past_forecasts_were_better_with_them():
    assert plan_months(made(80), "2023-10").parts == ()
    growing = made(80, lambda week: 0.01 * week)
    found = plan_months(growing, until(growing, 10))
    assert found.parts == ("trend",)
    grown = found.forecast.iloc[-1] / found.forecast.iloc[0]
    assert grown.between(1.04, 1.1).all()  # e^.09 would follow it fully.
    yearly = made(209, lambda week: 0.5 * np.sin(2 * np.pi * week / 52.18))
    assert "season" in plan_months(yearly, until(yearly, 26)).parts


def test_growth_takes_the_place_of_the_trend():
    growing = made(50, lambda week: 0.01 * week)
    found = plan_months(growing, until(growing, 10), growth=1.2)
    now = found.forecast / 1.2 ** (np.arange(1, 11)[:, None] / 10)
    np.testing.assert_allclose(now, now.iloc[[0]].to_numpy().repeat(10, axis=0))
    assert found.parts[0] == "growth"


def test_thresholds_are_passed_in_the_order_of_their_headroom():
    series = made(60)
    tops = weekly(series).median()
    limits = {cell: tops[cell] * by for cell, by in zip("abc", (2.0, 1.1, 0.5), strict=True)}
    found = plan_months(series, until(series, 8), threshold=limits)
    assert found.passing.index.tolist() == ["c", "b", "a"]
    assert found.passing.loc["c", "probability"] == 1
    first = found.forecast.index[0].strftime("%Y-%m-%d")
    assert found.passing.loc["c", ["date_10", "date_50", "date_90"]].tolist() == [first] * 3
    assert found.passing.loc["a", "date_50"] == ""
    # Over the span it is at least as probable as in any one week.
    assert (found.passing["probability"] >= found.chances.max()[list("cba")]).all()
    assert found.long()["probability_above"].between(0, 1).all()


def test_groups_have_busy_hours_growth_and_dates_of_their_own():
    series = made(30)
    series.values[:, 1] = np.roll(series.values[:, 1], 12)  # Busy at night.
    groups = Groups.of_columns({"site": ["x", "x", "y"]}, series.cells)
    grown = {"site x": 1.5, "site": 1.0}
    found = plan_months(series, until(series, 6), growth=grown, groups=groups, threshold=6)
    assert (found.past["site x"] < 0.95 * (found.past["a"] + found.past["b"])).all()
    passing = found.passing
    assert passing["threshold"].to_dict() == dict(
        a=6, b=6, c=6, **{"site x": 12, "site y": 6}, all=18
    )
    ratio = passing["then"] / passing["now"]
    assert ratio[["a", "b", "site x"]].tolist() == pytest.approx([1.5] * 3)
    assert ratio[["c", "site y"]].tolist() == pytest.approx([1.0] * 2)
    assert 1.1 < ratio["all"] < 1.4
    dates = found.dates()
    assert dates["level"].value_counts().to_dict() == {"cell": 3, "site": 2, "all": 1}
    assert set(found.long()["cell"]) == {"a", "b", "c", "x", "y", "all"}


def test_a_given_growth_has_bounds_around_it_that_do_not_repeat_the_past_growth():
    series = made(40, lambda week: 0.01 * week)
    found = plan_months(series, until(series, 8), growth=1.2)
    forecast, (lower, upper) = found.forecast, found.interval
    middle = np.log(lower * upper / forecast**2) / 2
    assert np.abs(middle.to_numpy()).max() < 0.05  # Eight weeks of the past growth are 0.08.


def test_bounds_contain_the_forecast_where_all_past_forecasts_were_too_low():
    series = made(11, lambda week: 0.3 * np.sqrt(np.floor(week)), noise=0.001)
    found = plan_months(series, until(series, 5))
    lower, upper = found.interval
    assert (lower == found.forecast).all(axis=None)
    assert (found.forecast < upper).all(axis=None)


@pytest.mark.parametrize("begin", ["2024-09-02", "2024-02-05"])
def test_weeks_begin_on_the_same_weekday_after_the_clock_has_changed(begin):
    hours = pd.date_range(begin, periods=168 * 6, freq="h", tz="Europe/Berlin")
    load = 2 + np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    series = as_series(pd.DataFrame({"a": load, "b": 2 * load}, hours))
    assert str(series.zone) == "Europe/Berlin"
    found = plan_months(series, str((hours[-1] + pd.Timedelta("40D")).date()))
    assert set(found.forecast.index.day_name()) == {"Monday"} == set(found.past.index.day_name())
    assert set(found.forecast.index.hour) == {0}


def test_a_cell_with_the_name_of_a_group_is_refused():
    table = pd.DataFrame(made(5).values, made(5).times, ["a", "b", "all"])
    series = as_series(table)
    with pytest.raises(InputError, match="group, all"):
        plan_months(series, until(series, 2), groups=Groups.of_columns({}, series.cells))


def test_speeds_pass_below():
    series = made(40)
    table = pd.DataFrame(100 / series.values, series.times, list("abc"))
    table.attrs["units"] = "mph"
    from data_prep.cube import make_cube

    cube = make_cube(
        {"speed": table.to_numpy()}, table.index, np.array(list("abc")), title="roads",
        source="invented", license="none", units="mph", time_zone="UTC",
    )  # fmt: skip
    found = plan_months(as_series(cube), "2022-11", threshold=30.0)
    assert found.side.beyond == "below"
    assert found.passing.loc["c", "probability"] == 1  # Its slowest hours have 11 mph.
    assert found.passing.loc["a", "probability"] < 0.5  # Those have 33.
    assert "probability_below" in found.long()


def test_short_histories_are_refused_or_warned_of(caplog):
    short = made(6)
    with pytest.raises(InputError, match=r"10 weeks, .* 6"):
        plan_months(short, until(short, 10))
    with pytest.raises(InputError, match=r"least 4, .*3"):
        plan_months(made(3), until(made(3), 2))
    with caplog.at_level(logging.WARNING):
        found = plan_months(short, until(short, 5))
    assert found.tested == 2
    assert "most 2 weeks" in caplog.text
    assert "11 weeks" in caplog.text
    assert "seasons" in caplog.text
    assert np.isfinite(found.interval.upper).all(axis=None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"until": "2021-05"}, "ends 2022-07"),
        ({"until": "2022-07-02"}, "2022-07-02, .*2022-07-17;"),
        ({"until": "soon"}, "month or .*day"),
        ({"until": "05.08.2022"}, "month or .*day"),
        ({"until": "2022-13"}, "month or .*day"),
        ({"until": "2022-08", "threshold": 0.0}, "above 0"),
        ({"until": "2022-08", "threshold": {"a": 1.0}}, "2 of 3 .*threshold"),
        ({"until": "2022-08", "growth": {"a": 1.1, "b": 1.2}}, "growth .*c is"),
        ({"until": "2022-08", "growth": -1.0}, "growth .*a .*-1; .*0"),
    ],
)
def test_what_cannot_be_planned_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        plan_months(made(28), **given)


def test_less_than_a_week_and_days_have_no_busy_hours():
    series = made(1)
    cut = as_series(pd.DataFrame(series.values[:100], series.times[:100], list("abc")))
    with pytest.raises(InputError, match="a week"):
        plan_months(cut, "2022-02")
    days = pd.date_range("2024-01-01", periods=100, freq="D")
    series = as_series(pd.DataFrame({"a": np.ones(100)}, days))
    with pytest.raises(InputError, match="steps of 24 h"):
        plan_months(series, "2024-05")
