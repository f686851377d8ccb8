from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.base.errors import InputError
from stforecast.data.clock import Calendar
from stforecast.data.folds import FoldOptions, fold_splits
from stforecast.data.splits import make_split
from stforecast.data.window_spec import WindowSpec

HOUR = pd.Timedelta("1h")
MONTHS = pd.date_range("2013-11-01", periods=1488, freq="1h")


def folds(times=MONTHS, step=HOUR, horizon=1, **options):
    return fold_splits(times, step, horizon, FoldOptions(**options))


def test_by_default_three_folds_test_thirty_percent_in_whole_days():
    """30 % of 62 days are 18.6, which is 6.2 for each fold."""
    assert folds() == [
        "dates:2013-11-01/2013-12-09,2013-12-09/2013-12-15,2013-12-15/2013-12-21",
        "dates:2013-11-01/2013-12-15,2013-12-15/2013-12-21,2013-12-21/2013-12-27",
        "dates:2013-11-01/2013-12-21,2013-12-21/2013-12-27,2013-12-27/2014-01-02",
    ]


def test_a_window_slides_before_validation_and_gap():
    assert folds(folds=2, test="7d", validation="36h", gap="1d", train="14d") == [
        "dates:2013-12-02T12:00:00/2013-12-16T12:00:00,2013-12-16T12:00:00/2013-12-18,"
        "2013-12-19/2013-12-26",
        "dates:2013-12-09T12:00:00/2013-12-23T12:00:00,2013-12-23T12:00:00/2013-12-25,"
        "2013-12-26/2014-01-02",
    ]


def test_folds_may_have_no_validation():
    assert folds(folds=1, test="7d", validation="0d", gap="12h") == [
        "dates:2013-11-01/2013-12-25T12:00:00,2013-12-26/2014-01-02"
    ]


def test_a_short_series_is_tested_by_steps():
    times = MONTHS[:30]
    assert folds(times, folds=3) == [
        "dates:2013-11-01/2013-11-01T18:00:00,2013-11-01T18:00:00/2013-11-01T21:00:00,"
        "2013-11-01T21:00:00/2013-11-02",
        "dates:2013-11-01/2013-11-01T21:00:00,2013-11-01T21:00:00/2013-11-02,"
        "2013-11-02/2013-11-02T03:00:00",
        "dates:2013-11-01/2013-11-02,2013-11-02/2013-11-02T03:00:00,"
        "2013-11-02T03:00:00/2013-11-02T06:00:00",
    ]


def test_a_step_need_not_divide_a_day():
    times = pd.date_range("2013-11-01", periods=1000, freq="7min")
    assert folds(times, pd.Timedelta("7min"), folds=1, test="77min", validation="0h") == [
        f"dates:2013-11-01/{times[989].isoformat()},"
        f"{times[989].isoformat()}/{(times[-1] + pd.Timedelta('7min')).isoformat()}"
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "7"}, "test is '7'; .*7d, 24h .*30min"),
        ({"gap": "a week"}, "gap is 'a week'"),
        ({"validation": "-1d"}, "validation is '-1d'"),
        ({"test": "0d"}, "test is '0d'"),
        ({"train": "00h"}, "train is '00h'"),
        ({"folds": 0}, "folds is 0"),
    ],
)
def test_options_that_are_no_lengths_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        FoldOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": "90min"}, "test is 90min, .*1 hour"),
        ({"gap": "1min"}, "gap is 1min"),
        ({"folds": 1000}, "30 % of 1488 .*1000 "),
        (
            {"horizon": 6, "test": "5h"},
            "6 hours .*test .*5 hours",
        ),
        ({"horizon": 6, "validation": "3h"}, "validation .*3 hours"),
        ({"horizon": 25, "train": "1d"}, "25 hours .*train .*1 day"),
        (
            {"folds": 9, "test": "7d", "train": "1d"},
            r"9 folds \(.* 7 .* 7 .* 0 .* 1 .* 71 .* 62; .*7 folds .* 6 ",
        ),
        ({"train": "60d"}, "84 days, .* 62; .*12 hours"),
        ({"gap": "100d"}, "or fewer folds"),
        ({"folds": 2**32 - 1, "test": "9999999d"}, "62; .*shorter spans"),
    ],
)
def test_folds_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        folds(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"folds": 7, "test": "7d", "train": "1d"},
        {"folds": 9, "test": "6d", "train": "1d"},
        {"train": "60d", "test": "12h"},
    ],
)
def test_what_an_error_says_would_fit_does(options):
    assert len(folds(**options)) == options.get("folds", 3)


def cut(texts, times, step, horizon):
    spec = WindowSpec(closeness=1, periods=0, period=1, horizon=horizon)
    return [make_split(text, len(times), step, spec, times) for text in texts]


def steps(starts, horizon):
    """Target steps of a part; the windows follow each other."""
    return range(starts[0], starts[-1] + horizon)


@given(
    st.sampled_from(["30min", "7min", "1D"]).map(pd.Timedelta),
    st.integers(1, 5),
    st.lists(st.integers(0, 40), min_size=5, max_size=5),
)
def test_folds_have_the_lengths_asked_for(step, n_folds, more):
    horizon, test, gap = 1 + more[0], 1 + more[0] + more[1], more[2]
    validation = horizon + more[3] if more[3] % 2 else 0
    train = horizon + 1 + more[4] if more[4] % 2 else 0
    n_steps = n_folds * test + gap + validation + (train or horizon + 1) + more[1]
    times = pd.date_range("2013-11-01 05:00", periods=n_steps, freq=step)
    minutes = {
        "test": test, "gap": gap, "validation": validation, **({"train": train} if train else {})
    }  # fmt: skip
    options = {name: f"{n * step // pd.Timedelta('1min')}min" for name, n in minutes.items()}
    texts = folds(times, step, horizon, folds=n_folds, **options)
    begin = n_steps - n_folds * test
    for split in cut(texts, times, step, horizon):
        assert steps(split.test, horizon) == range(begin, begin + test)
        known = begin - gap
        if validation:
            assert steps(split.validation, horizon) == range(known - validation, known)
        first = known - validation - train if train else 0
        assert split.fit == slice(first, known - validation)
        begin += test
    assert begin == n_steps


@given(
    st.sampled_from(["2013-10-27", "2014-03-30"]),
    st.sampled_from(["30min", "1h"]).map(pd.Timedelta),
    st.integers(0, 5),
    st.integers(0, 30),
)
def test_folds_touch_and_keep_their_gap_where_the_clock_changes(day, step, gap, after):
    n_steps = 4 * pd.Timedelta("1D") // step
    start = pd.Timestamp(day) - pd.Timedelta(days=4) + after * step
    times = Calendar(start, step, "Europe/Rome").local_times(np.arange(n_steps))
    lengths = {"test": "4h", "validation": "3h", "gap": f"{gap}h"}
    splits = cut(folds(times, step, 1, folds=9, **lengths), times, step, 1)
    assert splits[-1].test[-1] == n_steps - 1
    for split, later in pairwise(splits):
        assert split.test[-1] + 1 == later.test[0]
    for split in splits:
        assert (split.test[0] - split.validation[-1] - 1) * step >= pd.Timedelta(hours=gap)
        assert split.fit.stop == split.validation[0]


def test_a_span_within_a_repeated_hour_is_refused():
    quarter = pd.Timedelta("15min")
    rome = Calendar(pd.Timestamp("2013-10-26 13:00"), quarter, "Europe/Rome")
    with pytest.raises(InputError, match=r"clock .*2013-10-27T02:30:00, .*0"):
        folds(rome.local_times(np.arange(56)), quarter, folds=8, test="30min")
