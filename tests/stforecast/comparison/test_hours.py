import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.comparison.errors import busy_hours, hourly_load, local_times, model_errors
from stforecast.comparison.rows import joined_errors

DAY = np.arange(24.0)[None, :, None]


def test_load_is_the_mean_of_what_was_observed_in_an_hour(tested):
    y = np.concatenate([DAY, DAY + 10])
    y[1, 5] = np.nan
    load = hourly_load(tested("a", y, y).forecasts())
    np.testing.assert_allclose(load, np.where(np.arange(24) == 5, 5, np.arange(24) + 5))


def test_later_steps_count_in_the_hours_they_are_for(tested):
    y = np.arange(6.0).reshape(1, 3, 2)  # Hours 0 and 1, 1 and 2, 2 and 3.
    load = hourly_load(tested("a", y, y).forecasts())
    np.testing.assert_allclose(load[:4], [0, 1.5, 3.5, 5])
    assert load[4:].isna().all()


def test_busy_hours_have_a_load_above_that_of_the_mean_hour(tested):
    y = np.where((DAY >= 8) & (DAY < 20), 3.0, 1.0)
    assert busy_hours(tested("a", y, y).forecasts()) == tuple(range(8, 20))


def test_busy_hours_are_those_of_local_time(tested):
    y = np.where(DAY == 7, 3.0, 1.0)
    assert busy_hours(tested("a", y, y, zone="Europe/Rome").forecasts()) == (8,)


@pytest.mark.parametrize(
    ("start", "hours"),
    [
        ("2013-10-26 23:00", [1, 2, 2]),  # The clock is set back from 03:00 to 02:00.
        ("2013-03-31 00:00", [1, 3, 4]),  # It is set from 02:00 to 03:00.
    ],
)
def test_hours_are_right_when_the_clock_changes_within_a_forecast(tested, start, hours):
    y = np.zeros((1, 1, 3))
    run = tested("a", np.array([[[1.0, 2.0, 4.0]]]), y, start=start, zone="Europe/Rome")
    errors = joined_errors([run], "raw_mae")
    assert errors.hours.tolist() == [hours]
    load = hourly_load(run.forecasts())
    assert load[load.notna()].index.tolist() == sorted(set(hours))


def test_errors_of_folds_are_joined_over_a_change_of_the_clock(tested):
    y = np.zeros((1, 2, 1))
    runs = [
        tested("a", y + n, y, start=start, zone="Europe/Rome", about={"fold": n, "backtest": "b"})
        for n, start in ((1, "2013-10-26 23:00"), (2, "2013-10-27 01:00"))
    ]
    errors = joined_errors(runs, "raw_mae")
    assert errors.hours.ravel().tolist() == [1, 2, 2, 3]
    assert errors.days.tolist() == [pd.Timestamp("2013-10-27")]
    assert errors.by_hour()[[1, 2, 3]].tolist() == [1, 1.5, 2]


def test_roads_are_busy_when_they_are_slow(tested):
    y = np.where(DAY == 7, 30.0, 60.0)
    assert busy_hours(tested("a", y, y, units="mile/hour").forecasts()) == (7,)
    without_unit = tested("a", y, y, attrs={"service": "Mean Speed"})
    assert busy_hours(without_unit.forecasts()) == (7,)


def test_no_hour_is_busy_if_all_are_equal(tested):
    assert busy_hours(tested("a", DAY, np.ones((1, 24, 1))).forecasts()) == ()


def test_errors_in_some_hours_are_pooled_over_their_targets(tested):
    y = np.zeros((1, 24, 1))
    errors = model_errors(tested("a", DAY, y).forecasts(), "mse")
    assert errors.in_hours((1, 2, 3)) == pytest.approx((1 + 4 + 9) / 3)
    np.testing.assert_allclose(errors.by_hour(), np.arange(24) ** 2)


def test_errors_of_a_cell_at_a_step(tested):
    y = np.zeros((2, 3, 2))
    y_hat = np.array([[1.0, 2.0], [3.0, 4.0]])[:, None, :] + y
    errors = model_errors(tested("a", y_hat, y).forecasts(), "raw_mae")
    np.testing.assert_allclose(errors.by_cell_and_step(), [[1, 2], [3, 4]])


def test_forecasts_of_older_versions_are_refused(tested):
    forecasts = tested("a", DAY, DAY).forecasts()
    del forecasts.attrs["step_minutes"]
    with pytest.raises(InputError, match=r"'step_minutes', .* delete"):
        local_times(forecasts)
