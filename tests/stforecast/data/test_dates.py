import re

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.data.clock import Calendar
from stforecast.data.splits import make_split, parse_split
from stforecast.data.window_spec import WindowSpec

HOUR = pd.Timedelta("1h")
MONTHS = pd.date_range("2013-11-01", periods=1488, freq="1h")
SPEC = WindowSpec(horizon=2, period=24)
FORMS = "expected the first times of validation and test, like dates:2013-11-21,2013-11-26, or two"
SPANS = "dates:2013-11-06/2013-11-15,2013-11-15/2013-11-20T12:00,2013-11-22/2013-11-29"


def split(text, times=MONTHS, step=HOUR, spec=SPEC):
    return make_split(text, len(times), step, spec, times)


def ends(part, times=MONTHS, horizon=SPEC.horizon):
    """First and last target of a part."""
    return str(times[part[0]]), str(times[part[-1] + horizon - 1])


def test_two_dates_begin_validation_and_test():
    found = split("dates:2013-11-21,2013-11-26 06:00")
    assert ends(found.train) == ("2013-11-04 00:00:00", "2013-11-20 23:00:00")
    assert ends(found.validation) == ("2013-11-21 00:00:00", "2013-11-26 05:00:00")
    assert ends(found.test) == ("2013-11-26 06:00:00", "2014-01-01 23:00:00")
    assert found.fit == slice(0, 20 * 24)


def test_intervals_are_half_open_and_may_leave_gaps():
    found = split(SPANS)
    assert ends(found.train) == ("2013-11-06 00:00:00", "2013-11-14 23:00:00")
    assert ends(found.validation) == ("2013-11-15 00:00:00", "2013-11-20 11:00:00")
    assert ends(found.test) == ("2013-11-22 00:00:00", "2013-11-28 23:00:00")
    assert found.fit == slice(5 * 24, 14 * 24)


def test_two_intervals_have_no_validation():
    found = split("dates:2013-11-01/2013-11-15, 2013-11-22/2014-01-02")
    assert len(found.validation) == 0
    assert ends(found.test) == ("2013-11-22 00:00:00", "2014-01-01 23:00:00")


def test_training_begins_at_midnight_with_enough_history():
    found = split("dates:2013-11-01T05:00/2013-11-15,2013-11-22/2013-11-29")
    assert ends(found.train)[0] == "2013-11-04 00:00:00"
    later = split("dates:2013-11-08T05:00/2013-11-15,2013-11-22/2013-11-29")
    assert ends(later.train)[0] == "2013-11-09 00:00:00"
    assert later.fit.start == 7 * 24 + 5


def test_a_step_need_not_divide_a_day():
    times = pd.date_range("2013-11-01", periods=900, freq="7min")
    found = split("dates:2013-11-03,2013-11-04", times, pd.Timedelta("7min"))
    assert found.train[0] == SPEC.max_lag
    assert times[found.validation[0] - 1] < pd.Timestamp("2013-11-03") <= times[found.validation[0]]
    assert found.fit.stop == found.validation[0]


def rome(start, periods, step):
    return Calendar(pd.Timestamp(start), step, "Europe/Rome").local_times(np.arange(periods))


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [("02:00", 120), ("02:30", 122), ("02:45", 123), ("03:00", 128), ("03:15", 129)],
)
def test_an_hour_that_is_repeated_is_entered_at_its_first_time(boundary, expected):
    quarter = pd.Timedelta("15min")
    times = rome("2013-10-25 18:00", 400, quarter)
    assert str(times[120]) == str(times[124]) == "2013-10-27 02:00:00"
    spec = WindowSpec(closeness=3, periods=0, period=4)
    found = split(f"dates:2013-10-26 00:00,2013-10-27 {boundary}", times, quarter, spec)
    assert found.test[0] == expected


@pytest.mark.parametrize("boundary", ["02:00", "02:30", "03:00"])
def test_an_hour_that_is_skipped_is_the_step_after_it(boundary):
    times = rome("2014-03-27 23:00", 100, HOUR)
    spec = WindowSpec(closeness=3, periods=0, period=24)
    found = split(f"dates:2014-03-30 00:00,2014-03-30 {boundary}", times, HOUR, spec)
    assert str(times[found.test[0]]) == "2014-03-30 03:00:00"
    assert str(times[found.test[0] - 1]) == "2014-03-30 01:00:00"


@pytest.mark.parametrize(
    ("dates", "message"),
    [
        ("2013-11-21", FORMS),
        ("", FORMS),
        ("2013-11-21,2013-11-26,2013-11-29", FORMS),
        ("2013-11-01/2013-11-21,2013-11-26", FORMS),
        ("2013-11-01/2013-11-21", FORMS),
        ("2013-11-31,2013-12-26", "'2013-11-31' is not a date; write it like 2013-11-21"),
        ("21.11.2013,26.11.2013", "'21.11.2013' is not a date; write it like 2013-11-21"),
        ("2013-11-21,now", "'now' is not a date; write it like 2013-11-21"),
        ("2013-11-01/P14D,2013-11-22/2013-11-29", "'P14D' is not a date; write it like 2013-11-21"),
        ("2013-11-21T00:00+01:00,2013-11-26", "'2013-11-21T00:00+01:00' has a time zone; give"),
        ("2013-11-21T00:00Z,2013-11-26", "'2013-11-21T00:00Z' has a time zone; give"),
        (
            "2013-11-26,2013-11-21",
            "the validation part ends at 2013-11-21 00:00:00, not after it begins",
        ),
        (
            "2013-11-26,2013-11-26",
            "the validation part ends at 2013-11-26 00:00:00, not after it begins",
        ),
        (
            "2013-11-15/2013-11-01,2013-11-22/2013-11-29",
            "the training part ends at 2013-11-01 00:00:00, not after it begins",
        ),
        (
            "2013-11-01/2013-11-15,2013-11-14/2013-11-29",
            "the test part begins at 2013-11-14 00:00:00, before the training part ends",
        ),
        (
            "2013-11-01/2013-11-15,2013-11-15/2013-11-20,2013-11-19/2013-11-29",
            "the test part begins at 2013-11-19 00:00:00, before the validation part ends",
        ),
    ],
)
def test_dates_that_are_no_split_are_refused(dates, message):
    message = re.escape(f"split 'dates:{dates}': {message}")
    with pytest.raises(InputError, match=rf"^{message}"):
        parse_split(f"dates:{dates}")


@pytest.mark.parametrize(
    ("dates", "date"),
    [
        ("2013-10-31T23:00/2013-11-15,2013-11-22/2013-11-29", "2013-10-31 23:00:00"),
        ("2013-11-21,2014-01-02T01:00", "2014-01-02 01:00:00"),
        ("2013-11-01/2013-11-15,2013-11-22/9999-12-31", "9999-12-31 00:00:00"),
        ("0001-01-01,2013-11-22", "0001-01-01 00:00:00"),
    ],
)
def test_dates_outside_of_the_data_are_refused(dates, date):
    message = f"{date} is outside of the data.* at 2013-11-01.* and last at 2014-01-01 23:00:00"
    with pytest.raises(InputError, match=message):
        split(f"dates:{dates}")


@pytest.mark.parametrize(
    ("dates", "part"),
    [
        ("2013-11-04,2013-11-26", "training"),
        ("2013-11-21,2013-11-21T01:00", "validation"),
        ("2013-11-21,2014-01-01T23:00", "test"),
        ("2013-11-03T01:00/2013-11-04,2013-11-22/2013-11-29", "training"),
    ],
)
def test_a_part_without_a_window_is_named(dates, part):
    with pytest.raises(InputError, match=rf"{part} part .*window .* 72 "):
        split(f"dates:{dates}")
