from typing import get_args

import numpy as np
import pandas as pd
import pytest
from cut_windows import cut_windows

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.data.clock import Calendar
from stforecast.data.window_spec import Impute, WindowSpec
from stforecast.data.windows import History, fill_gaps, input_windows
from stforecast.forecasting.config import read_by

GAPS = np.array([[1.0, np.nan], [np.nan, 5.0], [3.0, np.nan], [np.nan, np.nan], [np.nan, 7.0]])
TWO_STEPS_A_WEEK = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta(days=3.5))
DAILY = Calendar(pd.Timestamp("2013-11-01"), pd.Timedelta("1D"))
IMPUTE = get_args(Impute)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("none", GAPS),
        ("ffill", [[1, np.nan], [1, 5], [3, 5], [3, 5], [3, 7]]),
        ("last-week", [[1, np.nan], [np.nan, 5], [3, np.nan], [np.nan, 5], [3, 7]]),
    ],
)
def test_gaps_are_filled_from_the_past(how, expected):
    np.testing.assert_array_equal(
        fill_gaps(GAPS, WindowSpec(impute=how), TWO_STEPS_A_WEEK), expected
    )


def test_an_unknown_rule_lists_the_rules():
    rules = "none, ffill, newest or last-week"
    with pytest.raises(InputError, match=rf"impute is 'mean'; .*{rules}"):
        WindowSpec(impute="mean", period=24)


@pytest.mark.parametrize("how", IMPUTE)
def test_inputs_are_imputed_and_targets_never(how):
    spec = WindowSpec(closeness=1, periods=0, impute=how, period=24)
    windows = cut_windows(GAPS, np.array([3, 4]), spec, TWO_STEPS_A_WEEK)
    filled = np.nan_to_num(fill_gaps(GAPS, spec, TWO_STEPS_A_WEEK))
    np.testing.assert_array_equal(windows.x[..., 0], filled[[2, 3]].T)
    np.testing.assert_array_equal(windows.mask[..., 0], [[False, False], [False, True]])
    np.testing.assert_array_equal(windows.y[..., 0], [[0, 0], [0, 7]])


@pytest.mark.parametrize("how", IMPUTE)
def test_no_rule_looks_ahead(how):
    rng = np.random.default_rng(0)
    series = np.where(rng.random((30, 3)) < 0.4, np.nan, rng.normal(size=(30, 3)))
    spec = WindowSpec(impute=how)
    whole = fill_gaps(series, spec, DAILY)
    for end in (1, 7, 20):
        filled = fill_gaps(series[:end], spec, DAILY)
        np.testing.assert_array_equal(filled, whole[:end])


def test_the_rule_is_among_a_runs_settings_and_changes_what_is_forecast(cube, tiny):
    settings = {"service": "internet", "alpha": 1.0, "split": tiny["split"]}
    models = {
        how: Forecaster("ridge", impute=how, **read_by("ridge", settings)).fit(cube)
        for how in IMPUTE
    }
    assert [m.config.flat()["impute"] for m in models.values()] == list(IMPUTE)
    weights = [m.model_.predictor.arrays["weights"][1] for m in models.values()]
    assert not np.array_equal(weights[0], weights[1])
    untouched = [m.model_.predictor.arrays["weights"][0] for m in models.values()]
    np.testing.assert_array_equal(untouched[0], untouched[1])


def test_an_input_without_an_earlier_reading_is_the_windows_newest_one():
    series = np.array([[np.nan], [np.nan], [5.0], [6.0], [np.nan], [7.0]])
    spec = WindowSpec(closeness=1, periods=0, extra_lags="2,3,9", impute="newest")
    x = input_windows(series, np.array([3, 5, 6]), spec, TWO_STEPS_A_WEEK)
    assert x[0].tolist() == [[5, 5, 5, 5], [6, 6, 5, 6], [7, 6, 6, 7]]


def test_the_first_hour_of_a_gap_has_the_last_reading():
    steps = 144 * 21
    series = np.sin(2 * np.pi * np.arange(steps) / 144)[:, None]
    series[-20:] = np.nan
    spec = WindowSpec(closeness=1, periods=0, impute="newest", profile="week")
    calendar = Calendar(pd.Timestamp("2013-11-04"), pd.Timedelta("10min"))
    filled = History.of(series, spec, calendar).filled[-20:, 0]
    assert (filled[:6] == series[-21]).all()
    assert filled[6] != series[-21]


def test_a_long_gap_has_the_weekly_profile_at_the_level_of_the_last_week():
    hours = pd.date_range("2013-11-04", periods=24 * 28, freq="h")
    usual = np.sin(2 * np.pi * np.arange(24 * 28) / 24)
    series = np.where(np.arange(24 * 28) < 24 * 21, usual, usual + 1.0)[:, None]
    gap = slice(24 * 27, 24 * 27 + 12)
    holes = series.copy()
    holes[gap] = np.nan
    spec = WindowSpec(closeness=1, periods=0, impute="newest", profile="week")
    calendar = Calendar(hours[0], pd.Timedelta("1h"))
    filled = History.of(holes, spec, calendar).filled
    np.testing.assert_array_equal(filled[gap][0], series[gap.start - 1])
    np.testing.assert_allclose(filled[gap][1:], series[gap][1:], atol=0.2)
    later = np.r_[: gap.start, gap.stop : len(series)]
    np.testing.assert_array_equal(filled[later], series[later])
    # A time of the week without a reading before has the last reading.
    short = holes[24 * 27 : 24 * 27 + 30]
    short[:3] = 1.0
    of_short = History.of(short, spec, calendar).filled
    np.testing.assert_array_equal(of_short[:12], 1.0)
