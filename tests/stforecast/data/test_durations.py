import pandas as pd
import pytest

from stforecast.data.dates import in_steps, in_words, period_warning


@pytest.mark.parametrize(
    ("text", "step", "expected"),
    [
        ("7d", "1h", 168),
        ("23h", "5min", 276),
        ("90min", "1h", None),
        ("1d", "7min", None),
        ("0h", "1h", 0),
        ("9999999d", "1D", 9_999_999),
    ],
)
def test_a_length_of_time_in_steps(text, step, expected):
    assert in_steps(text, pd.Timedelta(step)) == expected


@pytest.mark.parametrize(
    ("n_steps", "step", "expected"),
    [
        (168, "1h", "7 days"),
        (1, "1D", "1 day"),
        (25, "1h", "25 hours"),
        (3, "5min", "15 minutes"),
        (1, "30s", "0.5 minutes"),
        (0, "1h", "0 days"),
    ],
)
def test_steps_in_words(n_steps, step, expected):
    assert in_words(n_steps, pd.Timedelta(step)) == expected


@pytest.mark.parametrize(
    ("step", "period", "warns"),
    [
        ("1h", 24, False),
        ("1h", 168, False),
        ("5min", 288, False),
        ("5min", 24, True),
        ("1h", 25, True),
        ("10min", 72, True),
    ],
)
def test_a_period_should_be_whole_days(step, period, warns):
    assert (period_warning(pd.Timedelta(step), period) is not None) == warns
