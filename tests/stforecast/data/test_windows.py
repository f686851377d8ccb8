import numpy as np
import pandas as pd
import pytest
from cut_windows import cut_windows

from data_prep.base.errors import InputError
from data_prep.cube import local_time, make_cube
from stforecast.data.clock import Calendar, day_slots
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

HOURS = Calendar(pd.Timestamp("2013-11-01 00:00"), pd.Timedelta("1h"))  # A Friday.
SMALL = WindowSpec(closeness=2, periods=2, period=4, horizon=2)


def counting_series(n_steps: int = 14, n_cells: int = 2) -> np.ndarray:
    """Value 100 * cell + step, so that a reading tells where it comes from."""
    return np.arange(n_steps, dtype=float)[:, None] + 100.0 * np.arange(n_cells)


@pytest.mark.parametrize(
    ("spec", "lags", "max_lag"),
    [
        (WindowSpec(period=24), (3, 2, 1, 72, 48, 24), 72),
        (WindowSpec(newest_first=True, period=24), (1, 2, 3, 24, 48, 72), 72),
        (WindowSpec(closeness=12, periods=0, horizon=12, period=24), tuple(range(12, 0, -1)), 12),
        (WindowSpec(closeness=0, periods=1, period=7), (7,), 7),
        (WindowSpec(closeness=5, periods=1, period=2), (5, 4, 3, 2, 1, 2), 5),
    ],
)
def test_lags_follow_the_paper(spec, lags, max_lag):
    assert spec.lags == lags
    assert spec.n_inputs == len(lags)
    assert spec.max_lag == max_lag


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"closeness": -1}, "closeness is -1.* 0"),
        ({"periods": 1.5}, "periods is 1.5"),
        ({"period": -1}, "period is -1.* 0"),
        ({"horizon": 0}, "horizon is 0"),
        ({"horizon": True}, "horizon is true"),
        ({"closeness": 0, "periods": 0}, "one input"),
    ],
)
def test_a_spec_refuses_what_is_no_window(wrong, message):
    with pytest.raises(InputError, match=message):
        WindowSpec(**wrong)


def test_windows_hold_the_readings_of_the_paper():
    windows = cut_windows(counting_series(), np.array([8, 9]), SMALL, with_next=True)

    np.testing.assert_array_equal(windows.x[0], [[6, 7, 0, 4], [7, 8, 1, 5]])
    np.testing.assert_array_equal(windows.x[1], [[106, 107, 100, 104], [107, 108, 101, 105]])
    np.testing.assert_array_equal(windows.x_next[0], [[7, 8, 1, 5], [8, 9, 2, 6]])
    np.testing.assert_array_equal(windows.y[0], [[8, 9], [9, 10]])
    np.testing.assert_array_equal(windows.slot, [0, 1])
    assert windows.mask.all()
    assert {windows.x.dtype, windows.x_next.dtype, windows.y.dtype} == {np.dtype("float32")}


def test_newest_first_reverses_each_part():
    spec = WindowSpec(closeness=2, periods=2, period=4, newest_first=True)
    x = input_windows(counting_series(), np.array([8]), spec, HOURS)
    np.testing.assert_array_equal(x[0], [[7, 6, 4, 0]])


def test_windows_equal_a_loop_over_them():
    rng = np.random.default_rng(0)
    series = rng.normal(size=(200, 3))
    starts = rng.integers(72, 190, size=17)
    spec = WindowSpec(horizon=5, period=24)
    windows = cut_windows(series, starts, spec)
    for w, k in enumerate(starts):
        for n in range(3):
            v = series[:, n].astype(np.float32)
            cv, pv = v[k - 3 : k], v[[k - 72, k - 48, k - 24]]
            np.testing.assert_array_equal(windows.x[n, w], np.concatenate([cv, pv]))
            np.testing.assert_array_equal(windows.y[n, w], v[k : k + 5])


def test_the_next_window_sees_the_first_target_and_nothing_later():
    series = counting_series()
    whole = cut_windows(series, np.array([9]), SMALL, with_next=True)
    np.testing.assert_array_equal(whole.x_next[:, :, 1], whole.y[:, :, 0])

    series[10:] = np.nan
    cut = cut_windows(series, np.array([9]), SMALL, with_next=True)
    np.testing.assert_array_equal(whole.x_next, cut.x_next)


def test_missing_inputs_become_zero_and_missing_targets_masked():
    series = counting_series()
    series[7, 1] = series[9, 0] = np.nan
    windows = cut_windows(series, np.array([8, 9]), SMALL, with_next=True)

    np.testing.assert_array_equal(windows.x[1, :, :2], [[106, 0], [0, 108]])
    assert (windows.x[1] == 0).sum() == 2
    np.testing.assert_array_equal(windows.mask[0], [[True, False], [False, True]])
    np.testing.assert_array_equal(windows.y[0], [[8, 0], [0, 10]])
    assert windows.mask[1].all()
    assert windows.x_next[0, 1, 1] == 0.0


def test_the_step_after_the_series_has_inputs_but_no_targets():
    x = input_windows(counting_series(), np.array([14]), SMALL, HOURS)
    np.testing.assert_array_equal(x[0], [[12, 13, 6, 10]])
    with pytest.raises(InputError, match=r"13 to 14 .*0 to 13"):
        cut_windows(counting_series(), np.array([13]), SMALL)


def test_a_window_does_not_wrap_around_the_start():
    with pytest.raises(InputError, match="steps -1 to 6"):
        input_windows(counting_series(), np.array([7]), SMALL, HOURS)


def test_no_windows_are_empty_arrays():
    windows = cut_windows(counting_series(), np.array([], int), SMALL)
    assert windows.x.shape == (2, 0, 4)
    assert windows.y.shape == (2, 0, 2)


@pytest.mark.parametrize(
    ("start", "freq", "period", "expected"),
    [
        ("2013-11-01 00:00", "1h", 24, [0, 1, 2]),
        ("2013-11-01 23:00", "1h", 24, [23, 0, 1]),
        ("2012-03-01 23:55", "5min", 288, [287, 0, 1]),
        ("2012-03-01 01:55", "5min", 24, [23, 0, 1]),
        ("2013-11-03 23:00", "1h", 168, [167, 0, 1]),
        ("2013-11-01 00:00", "1h", 168, [96, 97, 98]),
    ],
)
def test_slots_count_from_local_midnight(start, freq, period, expected):
    times = pd.date_range(start, periods=3, freq=freq)
    np.testing.assert_array_equal(day_slots(times, period, times[1] - times[0]), expected)


@pytest.mark.parametrize(
    ("start", "expected"),
    [("2013-10-26 23:00", [1, 2, 2, 3, 4]), ("2013-03-30 23:00", [0, 1, 3, 4, 5])],
)
def test_slots_follow_the_clock_when_it_is_changed(start, expected):
    times = pd.date_range(start, periods=5, freq="1h", tz="UTC")
    local = times.tz_convert("Europe/Rome").tz_localize(None)
    np.testing.assert_array_equal(day_slots(local, 24, pd.Timedelta("1h")), expected)


def test_a_single_step_has_a_slot():
    one = pd.DatetimeIndex(["2013-11-01 05:00"])
    assert day_slots(one, 24, pd.Timedelta("1h")).tolist() == [5]


@pytest.mark.parametrize("clock", ["utc", "local"])
def test_a_calendar_agrees_with_its_cube_and_goes_on_past_its_end(clock):
    times = pd.date_range("2013-10-26 20:00", periods=30, freq="1h")
    about = {"title": "t", "source": "s", "license": "l", "units": "1"}
    cube = make_cube(
        {"net": np.zeros((30, 1))}, times, [1], **about, time_zone="Europe/Rome", clock=clock
    )
    calendar = Calendar.from_cube(cube.isel(time=slice(4)))
    pd.testing.assert_index_equal(
        calendar.local_times(np.arange(30)), local_time(cube), check_names=False, exact="equiv"
    )


def test_a_calendar_counts_steps():
    calendar = Calendar(pd.Timestamp("2012-03-01"), pd.Timedelta("5min"))
    assert calendar.steps_in(pd.Timedelta(days=1)) == 288
    with pytest.raises(InputError, match="not divide"):
        calendar.steps_in(pd.Timedelta("7min"))


def test_further_lags_and_the_calendar_follow_the_papers_inputs():
    spec = WindowSpec(closeness=1, periods=1, period=4, extra_lags="6,9", calendar="week")
    x = input_windows(counting_series(60), np.array([8, 54]), spec, HOURS)
    assert x.shape == (2, 2, spec.n_inputs) == (2, 2, 10)
    np.testing.assert_array_equal(x[1, :, :4], [[107, 104, 102, 0], [153, 150, 148, 145]])
    assert not x[:, 0, 3].any(), "a lag before the series is missing, for both cells"
    angle = 2 * np.pi * np.array([8, 6]) / 24
    waves = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    np.testing.assert_allclose(x[0, :, 4:8], np.stack(waves, 1), atol=1e-6)
    np.testing.assert_array_equal(x[0, :, 8:], [[0, 0], [1, 1]])
    assert spec.max_lag == 4, "further lags cost no training windows"


def test_further_lags_may_be_ranges():
    assert WindowSpec(extra_lags="3-5, 9").further_lags == (3, 4, 5, 9)
    assert WindowSpec(extra_lags="7-7").further_lags == (7,)
    assert WindowSpec(period=24).further_lags == ()


def test_a_saturday_is_a_weekend_but_no_sunday():
    spec = WindowSpec(closeness=1, periods=0, calendar="week", period=24)
    x = input_windows(counting_series(60), np.array([30]), spec, HOURS)
    np.testing.assert_array_equal(x[0, 0, -2:], [1, 0])


def test_the_calendar_is_the_places_own():
    spec = WindowSpec(closeness=1, periods=0, calendar="day", period=24)
    rome = Calendar(pd.Timestamp("2013-10-31 23:00"), pd.Timedelta("1h"), "Europe/Rome")
    there = input_windows(counting_series(), np.array([5]), spec, rome)
    here = input_windows(counting_series(), np.array([5]), spec, HOURS)
    np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("lags", ["1;2", "0", "-3", "3,", "a", "1.5", "9-3", "0-2", "1-2-3"])
def test_further_lags_are_positive_whole_numbers(lags):
    with pytest.raises(InputError, match="extra_lags is"):
        WindowSpec(extra_lags=lags)


def test_an_unknown_calendar_is_refused():
    kinds = "none, day, week, weekdays, auto or auto-weekdays"
    with pytest.raises(InputError, match=rf"calendar is 'moon'; .*{kinds}"):
        WindowSpec(calendar="moon")


@pytest.mark.parametrize(
    ("step", "period", "lags"),
    [
        ("1h", 24, (23, 25, 167, 168, 169)),
        ("10min", 144, (138, 150, 1002, 1008, 1014)),
        ("5min", 288, (276, 300, 2004, 2016, 2028)),
    ],
)
def test_a_day_and_a_week_are_times_whatever_the_step(step, period, lags):
    spec = WindowSpec(period=0, extra_lags="23h, 25h,167h,7d,10140min")
    resolved = spec.at(pd.Timedelta(step))
    assert (resolved.period, resolved.further_lags) == (period, lags)
    assert spec.n_inputs == resolved.n_inputs == 3 + 3 + 5
    assert resolved.at(pd.Timedelta("7min")) == resolved


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"extra_lags": "2,23h"}, "23h .*120 minutes"),
        ({"extra_lags": "9999999d"}, "1000000|positive whole"),
    ],
)
def test_times_that_are_no_whole_number_of_steps_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        WindowSpec(**settings).at(pd.Timedelta("2h"))


@pytest.mark.parametrize(
    ("step", "lags"),
    [
        ("1h", (3, 2, 1, 72, 48, 24)),
        ("10min", (3, 2, 1, 432, 288, 144)),
        ("1D", (3, 2, 1, 21, 14, 7)),
        ("7h", (3, 2, 1, 72, 48, 24)),
    ],
)
def test_the_default_period_is_a_day_or_a_week(step, lags):
    """A week of daily steps; 24 steps of 7 hours, which do not divide a day, are a week too."""
    assert WindowSpec().at(pd.Timedelta(step)).lags == lags


@pytest.mark.parametrize("step", ["7D", "30D", "11min"])
def test_without_a_day_or_a_week_the_period_must_be_given(step):
    with pytest.raises(InputError, match=r"neither.*period=52"):
        WindowSpec().at(pd.Timedelta(step))
    assert WindowSpec(period=52).at(pd.Timedelta(step)).period == 52


@pytest.mark.parametrize("lags", ["0h", "3s", "h", "1-2h", "1.5h", "1h-2", "٣"])
def test_times_have_a_positive_whole_number_and_a_unit(lags):
    with pytest.raises(InputError, match="times like 23h,7d"):
        WindowSpec(extra_lags=lags)
