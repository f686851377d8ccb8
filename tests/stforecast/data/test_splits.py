import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.data.clock import day_slots
from stforecast.data.splits import SPLITS, make_split, parse_split, training_start
from stforecast.data.window_spec import WindowSpec

HOUR = pd.Timedelta("1h")
FUELS = WindowSpec(period=24)
TWELVE = WindowSpec(closeness=12, periods=0, horizon=12, period=24)
METR_LA_STEPS = 34_272


def split_hours(text, n_steps, spec=FUELS, start="2013-11-01 00:00"):
    return make_split(text, n_steps, HOUR, spec, pd.date_range(start, periods=n_steps, freq="1h"))


def split_metr_la(text):
    times = pd.date_range("2012-03-01", periods=METR_LA_STEPS, freq="5min")
    return make_split(text, METR_LA_STEPS, pd.Timedelta("5min"), TWELVE, times)


def sizes(split):
    return len(split.train), len(split.validation), len(split.test)


def test_training_begins_at_a_midnight_also_beyond_the_series():
    times = pd.date_range("2013-11-01 05:00", periods=10, freq="1h")
    spec = WindowSpec(closeness=2, periods=0, period=24)
    start_in = training_start(times, HOUR, spec)
    assert start_in(range(20)) == 19
    assert times[0] + 19 * HOUR == pd.Timestamp("2013-11-02")
    assert start_in(range(19)) == 2, "no window begins at midnight"


@pytest.mark.parametrize("text", ["time:0.4,0.3,0.3", "days:1,1,1", "steps:0.4,0.3,0.3"])
def test_a_day_of_training_or_less_is_enough(text):
    n_steps, step = (3 if text.startswith("days") else 1) * 288, pd.Timedelta("5min")
    times = pd.date_range("2012-03-01", periods=n_steps, freq=step)
    spec = WindowSpec(closeness=1, periods=0, period=288)
    split = make_split(text, n_steps, step, spec, times)
    assert split.train[0] == 1
    assert split.train[-1] + 1 == split.fit.stop


def test_fuels_gives_the_888_windows_of_the_paper():
    split = split_hours("fuels", 62 * 24)
    assert sizes(split) == (888, 7 * 24, 15 * 24)
    assert (split.train[0], split.train[-1]) == (72, 959)
    assert (split.validation[0], split.validation[-1]) == (960, 1127)
    assert (split.test[0], split.test[-1]) == (1128, 1487)
    assert split.fit == slice(0, 960)


@pytest.mark.parametrize(("days", "parts"), [(30, (19, 3, 8)), (61, (39, 7, 15)), (4, (2, 1, 1))])
def test_fuels_keeps_its_shares_in_whole_days(days, parts):
    spec = WindowSpec(closeness=24, periods=0, period=24)
    expected = ((parts[0] - 1) * 24, parts[1] * 24, parts[2] * 24)
    assert sizes(split_hours("fuels", days * 24, spec)) == expected


def test_fedda_tests_the_last_seven_days():
    split = split_hours("fedda", 1488)
    assert sizes(split) == (1248, 0, 168)
    assert split.test[0] == split.fit.stop == 1320


def test_days_are_taken_as_given():
    split = split_hours("days:20,5,5", 720)
    assert sizes(split) == (408, 120, 120)
    assert split.validation[0] == split.fit.stop == 480
    assert sizes(split_hours("days:25,0,5", 720)) == (528, 0, 120)


def test_shares_of_the_time_are_rounded_down():
    split = split_hours("time:0.6,0.15,0.25", 62 * 24)
    assert sizes(split) == (892 - 72, 223, 1488 - 892 - 223)
    assert (split.train[0], split.validation[0], split.test[0]) == (72, 892, 892 + 223)
    assert split.fit == slice(0, 892)
    assert sizes(split_hours("time:0.5,0,0.5", 720)) == (288, 0, 360)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("fuels", True),
        ("days:40,7,15", True),
        ("time:0.7,0.1,0.2", True),
        ("dates:2013-12-11,2013-12-18", True),
        ("steps:0.7,0.1,0.2", False),
        ("windows:0.7,0.1,0.2", False),
    ],
)
def test_test_targets_depend_on_the_lags_only_where_it_is_said(text, same):
    few, many = WindowSpec(closeness=3, periods=0, period=24), WindowSpec(periods=3, period=24)
    first, second = (split_hours(text, 1488, spec).test for spec in (few, many))
    assert np.array_equal(first, second) == same


def test_windows_by_count_let_targets_reach_into_the_next_part():
    split = split_metr_la("windows:0.7,0.1,0.2")
    assert split.train[-1] + 11 >= split.validation[0]
    assert split.validation[-1] + 11 >= split.test[0]


def test_steps_keep_inputs_in_their_part():
    split = split_metr_la("steps:0.7,0.1,0.2")
    assert split.validation[0] - TWELVE.max_lag == split.train[-1] + TWELVE.horizon == 23_991


def test_a_day_without_the_hour_that_clocks_skip_is_a_day():
    times = pd.date_range("2024-03-04", "2024-04-08", freq="h", tz="Europe/Rome", inclusive="left")
    arguments = len(times), pd.Timedelta("1h"), FUELS, times.tz_localize(None)
    split = make_split("days:20,6,9", *arguments)
    assert (len(times), split.validation[0], split.test[0]) == (839, 20 * 24, 26 * 24)
    assert split.test[-1] == 838
    with pytest.raises(InputError, match=r"split='days:20,7,8', .*35"):
        make_split("days:30,7,8", *arguments)


def test_parts_that_begin_before_the_lags_are_refused_not_moved():
    times = pd.date_range("2013-11-01", periods=200, freq="7min")
    args = 200, pd.Timedelta("7min"), FUELS, times
    assert make_split("time:0.5,0.2,0.3", *args).train[0] == FUELS.max_lag == 72
    with pytest.raises(InputError, match=r"training .* 72 .*least"):
        make_split("time:0.3,0.3,0.4", *args)


def test_steps_are_those_of_basicts():
    """Its `TimeSeriesForecastingDataset`: int(.1 n) and int(.2 n) steps, the rest trains."""
    split = split_metr_la("steps:0.7,0.1,0.2")
    assert split.fit == slice(0, 23_991)
    assert sizes(split) == (23_991 - 23, 3_427 - 23, 6_854 - 23)
    assert (split.train[0], split.validation[0], split.test[0]) == (12, 24_003, 27_430)
    assert split.test[-1] == METR_LA_STEPS - 12


def test_windows_are_those_of_std_mae():
    """As its generate_training_data.py of PEMS04 says: 3,394 each to validate and to test."""
    times = pd.date_range("2018-01-01", periods=16_992, freq="5min")
    split = make_split("windows:0.6,0.2,0.2", len(times), pd.Timedelta("5min"), TWELVE, times)
    assert sizes(split)[1:] == (3_394, 3_394)


def test_windows_are_those_of_dcrnn():
    split = split_metr_la("windows:0.7,0.1,0.2")
    assert sizes(split) == (23_974, 3_425, 6_850)
    starts = np.concatenate([split.train, split.validation, split.test])
    np.testing.assert_array_equal(starts, np.arange(12, METR_LA_STEPS - 11))
    assert split.fit.stop == split.validation[0]
    assert sizes(split_hours("windows:0.7,0.1,0.2", 18 + 23, TWELVE)) == (13, 1, 4)


@pytest.mark.parametrize("n_steps", [38, 41, 45])
def test_windows_rounded_up_on_both_sides_do_not_overlap(n_steps):
    split = split_hours("windows:0.5,0,0.5", n_steps, TWELVE)
    starts = np.concatenate([split.train, split.validation, split.test])
    np.testing.assert_array_equal(starts, np.arange(12, n_steps - 11))
    assert len(split.validation) == 0


@pytest.mark.parametrize(
    "text", ["fuels", "fedda", "days:40,7,15", "time:0.7,0.1,0.2", "steps:0.7,0.1,0.2"]
)
@pytest.mark.parametrize("spec", [FUELS, TWELVE, WindowSpec(horizon=24, period=24)])
@pytest.mark.parametrize("start", ["2013-11-01 00:00", "2013-11-01 07:00"])
def test_no_target_lies_in_two_parts_nor_beyond_the_scaler(text, spec, start):
    split = split_hours(text, 1488, spec, start)
    targets = [
        set((part[:, None] + np.arange(spec.horizon)).ravel())
        for part in (split.train, split.validation, split.test)
    ]
    assert not targets[0] & targets[1]
    assert not targets[0] & targets[2]
    assert not targets[1] & targets[2]
    assert max(targets[0]) < split.fit.stop <= min(targets[1] | targets[2])
    assert max(targets[2]) == 1487
    assert split.train[0] >= spec.max_lag


@pytest.mark.parametrize(
    "text", ["fuels", "fedda", "days:40,7,15", "time:0.7,0.1,0.2", "dates:2013-12-11,2013-12-18"]
)
def test_training_begins_at_local_midnight(text):
    times = pd.date_range("2013-11-01 07:00", periods=1488, freq="1h")
    split = make_split(text, 1488, HOUR, FUELS, times)
    assert times[split.train[0]] == pd.Timestamp("2013-11-05 00:00")
    slots = day_slots(times, 24, pd.Timedelta("1h"))[split.train]
    np.testing.assert_array_equal(slots, np.arange(len(slots)) % 24)


def test_a_last_day_cut_short_is_tested():
    assert split_hours("days:20,5,5", 725).test[-1] == 724
    assert split_hours("fuels", 1490).test[-1] == 1489


@pytest.mark.parametrize("text", [name for name in SPLITS if not name.startswith("da")])
@pytest.mark.parametrize("spec", [FUELS, TWELVE])
def test_too_short_a_series_says_how_many_steps_are_needed(text, spec):
    with pytest.raises(InputError, match=r"20 steps .*training") as error:
        split_hours(text, 20, spec)
    needed = int(str(error.value).split("at least ")[1].split()[0])
    split_hours(text, needed, spec)
    with pytest.raises(InputError):
        split_hours(text, needed - 1, spec)


@pytest.mark.parametrize(
    ("text", "n_steps", "message"),
    [
        ("days:3,1,1", 120, "training .*window"),
        ("days:20,5,5", 500, "30 days .*720 .*500; .*20"),
        ("days:20,5,5", 1488, "split='days:52,5,5', .*62"),
        ("days:1,5,5", 120, "to 5, .*series"),
        ("steps:0.98,0.01,0.01", 1000, "validation .*window"),
        ("days:2,1,1", 96, "72 steps .*periods"),
    ],
)
def test_parts_that_do_not_fit_are_refused(text, n_steps, message):
    with pytest.raises(InputError, match=message):
        split_hours(text, n_steps)


@pytest.mark.parametrize("text", ["time:0.7,0.15,0.15", "steps:0.7,0.1,0.2", "days:20,5,9"])
def test_the_largest_horizon_is_named(text):
    def windows(horizon):
        return WindowSpec(period=24, horizon=horizon)

    with pytest.raises(InputError, match=r"or .*horizon") as error:
        split_hours(text, 839, windows(900))
    largest = int(str(error.value).rpartition(" ")[2])
    split_hours(text, 839, windows(largest))
    with pytest.raises(InputError, match="no window"):
        split_hours(text, 839, windows(largest + 1))


def test_a_horizon_longer_than_the_part_is_refused():
    with pytest.raises(InputError, match=r"test .*window"):
        split_hours("fedda", 1488, WindowSpec(horizon=169, period=24))


def test_a_step_that_does_not_divide_a_day_is_refused_where_days_count():
    times = pd.date_range("2013-11-01", periods=900, freq="7min")
    with pytest.raises(InputError, match="a day"):
        make_split("fuels", 900, pd.Timedelta("7min"), FUELS, times)
    assert len(make_split("steps:0.5,0,0.5", 900, pd.Timedelta("7min"), FUELS, times).test) == 378


def test_local_times_must_match_the_series():
    with pytest.raises(InputError, match=r"9 local .*10 "):
        make_split("fedda", 10, HOUR, FUELS, pd.date_range("2013-11-01", periods=9, freq="1h"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fule", "split 'fule'; .*dates:.*, days:20,5,5, fedda, fuels"),
        ("fuels:1", "unknown split"),
        ("days:20,5", "2 numbers.*days:20,5,5"),
        ("days:20,five,5", "'20,five,5'"),
        ("days", "'' .*numbers"),
        ("days:20.5,5,5", "whole numbers"),
        ("days:0,5,5", "above 0"),
        ("steps:0.7,0.3,0", "above 0"),
        ("steps:1.2,-0.4,0.2", "above 0"),
        ("steps:0.7,0.2,0.2", "shares .*1.1, .*steps:0.7"),
        ("steps:0.7,0.2,0.1000001", "shares .*1.0000001, .*1;"),
        ("windows:7,1,2", "shares .*10"),
        ("time:0.6,0.2,0.3", "shares .*1.1, .*time:0.6"),
        ("time:0.6,0.4", "found 2 numbers"),
        ("time", "'' .*numbers"),
        ("steps:1/0,0,1", "of numbers"),
        ("time:1e999999999,0,1", "of numbers"),
    ],
)
def test_text_that_is_no_split_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_split(text)


@pytest.mark.parametrize("text", SPLITS)
def test_every_listed_split_parses(text):
    assert text.startswith(parse_split(text).kind)
