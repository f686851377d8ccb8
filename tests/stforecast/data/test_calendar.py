import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.data.clock import CALENDAR_INPUTS, Calendar, calendar_inputs, holiday_inputs
from stforecast.data.window_spec import WindowSpec
from stforecast.data.windows import input_windows

ROME = Calendar(pd.Timestamp("2013-12-05 23:00"), pd.Timedelta("1h"), "Europe/Rome")
"""Step 0 is Friday, 6 December, 00:00 in Milan; step 24 begins Saint Ambrose's Day."""


@pytest.mark.parametrize("kind", CALENDAR_INPUTS)
def test_each_kind_gives_as_many_inputs_as_it_says(kind):
    times = pd.date_range("2013-11-01", periods=5, freq="h")
    assert calendar_inputs(times, kind).shape == (5, CALENDAR_INPUTS[kind])


def test_weekdays_have_an_input_each():
    days = pd.date_range("2013-11-04", periods=7, freq="D")  # From a Monday to a Sunday.
    inputs = calendar_inputs(days, "weekdays")
    np.testing.assert_array_equal(inputs[:, 4:], np.eye(7))
    np.testing.assert_allclose(inputs[:, :4], [[0, 1, 0, 1]] * 7, atol=1e-6)


def test_holidays_are_those_of_the_region_on_its_own_clock():
    spec = WindowSpec(closeness=1, periods=0, calendar="day", holidays="IT-MI")
    assert (spec.n_inputs, spec.n_known) == (6, 5)
    starts = np.array([22, 23, 24, 47, 48])
    x = input_windows(np.zeros((60, 2)), starts, spec, ROME)
    # 8 December is a holiday of all Italy, so both days are.
    np.testing.assert_array_equal(x[1, :, -1], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(x[..., spec.special], x[..., -1:])
    x = input_windows(np.zeros((60, 2)), starts, WindowSpec(1, 0, holidays="IT"), ROME)
    np.testing.assert_array_equal(x[0, :, -1], [0, 0, 0, 0, 1])


def test_memorial_day_is_californian_and_no_other_monday():
    days = pd.DatetimeIndex(["2012-05-21 08:00", "2012-05-28 08:00"])
    assert holiday_inputs(days, "US-CA").ravel().tolist() == [0.0, 1.0]


@pytest.mark.parametrize("region", ["Milan", "IT-XX", "XX"])
def test_an_unknown_region_is_refused(region):
    with pytest.raises(InputError, match=rf"holidays is '{region}': .*ISO 3166"):
        WindowSpec(holidays=region)
