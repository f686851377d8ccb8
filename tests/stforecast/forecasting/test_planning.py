"""Busy hours, peaks, thresholds and headroom, computed by hand."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions
from scipy.stats import norm

from data_prep.base.errors import InputError
from stforecast.forecasting.planning import ANY, busy_hour, error_paths, exceedance, plan

TIMES = pd.date_range("2024-03-01 08:00", periods=4, freq="30min", tz="Asia/Kolkata")


def table(*columns, times=TIMES):
    return pd.DataFrame(np.transpose(columns), times[: len(columns[0])], ["a", "b"][: len(columns)])


def test_the_busy_hour_is_the_clock_hour_of_the_highest_mean():
    """India's clock is half an hour off UTC: its hours are not those of UTC."""
    found = busy_hour(table([1.0, 9.0, 6.0, 6.0], [9.0, 3.0, 2.0, 2.0]))
    assert found["busy_hour"].tolist() == [TIMES[2], TIMES[0]]
    assert found["busy_hour_mean"].tolist() == [6.0, 6.0]


@pytest.mark.parametrize("about", [{"units": "km/h"}, {"service": "speed", "units": "1"}])
def test_roads_are_busy_when_they_are_slow(about):
    speeds = table([50.0, 60.0, 70.0, 80.0])
    speeds.attrs = about
    found = plan(speeds)
    assert found["busy_hour"].tolist() == [TIMES[0]]
    assert found["busy_hour_mean"].tolist() == [55.0]
    assert found[["lowest", "lowest_time"]].iloc[0].tolist() == [50.0, TIMES[0]]
    assert "peak" not in found


def test_a_plan_of_speeds_is_that_of_their_negatives():
    """The bounds lie at other distances, so that a plan of the wrong side has other numbers."""
    centre = table([50.0, 20.0, 30.0, 80.0], [90.0, 80.0, 70.0, np.nan])
    lower, upper = centre - 4, centre + 8
    paths = np.random.default_rng(0).normal(size=(500, 4)) + 0.3

    def made(sign, service):
        tables = [sign * t for t in (centre, *((lower, upper) if sign > 0 else (upper, lower)))]
        for t in tables:
            t.attrs = {"service": service, "coverage": 0.9}
        return plan(tables[0], tables[1:], sign * 25.0, paths=sign * paths)

    slow, loads = made(1, "speed"), made(-1, "load")
    same = ["busy_hour", "headroom", "headroom_95", "highest_probability", "likeliest_time"]
    pd.testing.assert_frame_equal(slow[same], loads[same])
    pd.testing.assert_series_equal(slow["probability"], loads["probability"])
    for of_speed, of_load in (("lowest", "peak"), ("steps_below", "steps_above")):
        sign = -1 if of_speed == "lowest" else 1
        pd.testing.assert_series_equal(slow[of_speed], sign * loads[of_load], check_names=False)
    assert slow.loc["a", "steps_below"] == 1
    assert slow.loc["a", "headroom_95"] == 20 - 4 - 25
    assert slow.loc["a", "highest_probability"] == pytest.approx(norm.cdf(5 / 8 * norm.ppf(0.95)))


def test_a_cell_without_forecast_has_no_busy_hour():
    found = busy_hour(table([1.0, 2.0], [np.nan, np.nan]))
    assert found["busy_hour_mean"].isna().tolist() == [False, True]


def test_probabilities_at_the_bounds_are_those_of_the_interval():
    centre, lower, upper = table([10.0] * 4), table([7.0] * 4), table([16.0] * 4)
    for threshold, chance in ((7.0, 0.95), (10.0, 0.5), (16.0, 0.05)):
        found = exceedance(centre, lower, upper, threshold, 0.9)
        np.testing.assert_allclose(found, chance)
    # Half of the upper half's reach above the median.
    found = exceedance(centre, lower, upper, 13.0, 0.9)
    np.testing.assert_allclose(found, norm.sf(norm.ppf(0.95) / 2))


def test_a_band_without_width_is_certain_and_one_without_bounds_unknown():
    centre = table([10.0, 10.0, 10.0])
    found = exceedance(centre, centre, centre, 9.0, 0.9)
    assert (found == 1).all(axis=None)
    assert (exceedance(centre, centre, centre, 10.0, 0.9) == 0).all(axis=None)
    assert exceedance(centre, centre * np.nan, centre, 9.0, 0.9).isna().all(axis=None)


def test_infinite_bounds_say_nothing_of_a_probability():
    """Such as those of a cell without values in the calibration."""
    centre, upper = table([10.0] * 2, [10.0] * 2), table([16.0] * 2, [np.inf] * 2)
    lower, upper.attrs["coverage"] = table([7.0] * 2, [-np.inf] * 2), 0.9
    found = plan(centre, (lower, upper), 9.0, paths=np.zeros((5, 2)))
    assert found["headroom"].tolist() == [-1.0, -1.0]
    unknown = found.loc["b", ["probability", "highest_probability", "expected_steps_above"]]
    assert unknown.isna().all()
    assert found.loc["a", "probability"] == 1


def test_thresholds_may_differ_by_cell_and_must_be_complete():
    centre = table([10.0], [10.0])
    found = exceedance(centre, centre - 1, centre + 1, {"a": 11.0, "b": 9.0}, 0.8)
    np.testing.assert_allclose(found.iloc[0], [0.1, 0.9])
    with pytest.raises(InputError, match=r"1 of 2 .*threshold.* b"):
        exceedance(centre, centre, centre, {"a": 1.0}, 0.8)


def test_a_plan_gives_peaks_and_headroom():
    centre = table([10.0, 30.0, 20.0, 20.0])
    upper = centre + 5
    upper.attrs["coverage"] = 0.9
    row = plan(centre, (centre - 5, upper), 25.0).loc["a"]
    assert (row["peak"], row["peak_time"]) == (30.0, TIMES[1])
    assert (row["headroom"], row["headroom_95"], row["steps_above"]) == (-5.0, -10.0, 1)
    assert row["highest_probability"] == pytest.approx(0.95)
    assert "headroom" not in plan(centre)


def test_a_plan_beyond_the_bounds_gives_no_headroom_of_bounds_and_says_why(caplog):
    """The peak lies at a step without bounds: what the first steps say is no answer."""
    centre = table([10.0, 11.0, 12.0, 40.0])
    upper = (centre + 5).where(centre < 12)
    upper.attrs["coverage"] = 0.9
    row = plan(centre, (upper - 10, upper), 30.0).loc["a"]
    assert (row["headroom"], row["steps_above"]) == (-10.0, 1)
    assert row[["headroom_95", "highest_probability"]].isna().all()
    assert mentions(caplog.text, "2 of 4", "bounds")
    assert mentions(caplog.text, "train", "horizon=4")


def test_a_cell_without_forecast_has_no_number_of_steps_above():
    found = plan(table([1.0, 9.0], [np.nan, np.nan]), None, 5.0)
    assert found["steps_above"].iloc[0] == 1
    assert found["steps_above"].isna().tolist() == [False, True]


def test_forecasts_outside_their_bounds_are_refused():
    centre = table([10.0], [10.0])
    with pytest.raises(InputError, match=r"cell a .*10, .*bounds 2 .*6"):
        exceedance(centre, centre - 8, centre - 4, 8.0, 0.9)
    rounded = exceedance(centre, centre - 1, centre - 1e-7, 11.0, 0.9)
    assert (rounded == 0).all(axis=None)


def test_probabilities_follow_from_bounds_that_are_not_cut_at_the_limits():
    """Cut at 0 and 12, the same bounds would give 0.95 and 0.05 at any threshold near these."""
    limits = (0.0, 12.0)
    centre, lower, upper = table([5.0]), table([-3.0]), table([17.0])
    upper.attrs["coverage"] = 0.9
    free = plan(centre, (lower, upper), 11.0, limits).loc["a"]
    assert free["highest_probability"] == pytest.approx(norm.sf(6 / 12 * norm.ppf(0.95)))
    assert (free["headroom"], free["headroom_95"]) == (6.0, -1.0)
    zero = exceedance(centre, lower, upper, 0.0, 0.9, limits)
    np.testing.assert_allclose(zero, norm.sf(-5 / 8 * norm.ppf(0.95)))
    # A median below the lowest value is no certainty of the lowest value.
    low = exceedance(centre - 7, lower - 7, upper - 7, 0.0, 0.9, limits)
    np.testing.assert_allclose(low, norm.sf(2 / 12 * norm.ppf(0.95)))


def test_tables_that_are_cut_at_limits_give_no_probability():
    centre, bounds = table([5.0]), (table([0.0]), table([17.0]))
    centre.attrs["limits"] = (0.0, np.inf)
    with pytest.raises(InputError, match=r"at 0, .*limits=planning\.ANY"):
        exceedance(centre, *bounds, 11.0, 0.9)
    centre.attrs["limits"] = ANY
    assert exceedance(centre, *bounds, 11.0, 0.9).notna().all(axis=None)


@pytest.mark.parametrize("threshold", [100.0, 101.0])
def test_thresholds_that_nothing_can_exceed_are_refused(threshold):
    centre = table([50.0])
    with pytest.raises(InputError, match=rf"threshold is {threshold:g}; .*100"):
        plan(centre, None, threshold, (0.0, 100.0))
    assert plan(centre, None, 99.0, (0.0, 100.0))["headroom"].item() == 49
    centre.attrs["service"] = "speed"
    assert plan(centre, None, 100.0, (0.0, 100.0))["headroom"].item() == -50
    with pytest.raises(InputError, match="threshold is 0"):
        plan(centre, None, 0.0, (0.0, 100.0))


@pytest.mark.parametrize("together", [False, True])
def test_over_a_span_errors_go_together_as_they_did(together):
    centre, upper = table([10.0] * 4), table([16.0] * 4)
    upper.attrs["coverage"] = 0.9
    paths = np.random.default_rng(0).normal(size=(4000, 4))
    paths = np.repeat(paths[:, :1], 4, axis=1) if together else paths
    found = plan(centre, (centre - 3, upper), 16.0, paths=paths).loc["a"]
    expected = 0.05 if together else 1 - 0.95**4
    assert found["probability"] == pytest.approx(expected, abs=0.015)
    assert found["probability"] >= found["highest_probability"] == pytest.approx(0.05)
    assert found["expected_steps_above"] == pytest.approx(0.2)
    assert found["likeliest_time"] == TIMES[0]


def test_a_span_is_no_likelier_than_the_sum_of_its_steps_whatever_the_paths_say():
    centre, upper = table([10.0] * 4), table([16.0] * 4)
    upper.attrs["coverage"] = 0.9
    found = plan(centre, (centre - 3, upper), 22.0, paths=np.full((50, 4), 9.0)).loc["a"]
    assert found["probability"] == pytest.approx(found["expected_steps_above"])
    assert found["probability"] < 0.01


def test_a_span_beyond_the_tested_horizon_has_no_probability():
    centre, upper = table([10.0] * 4), table([16.0] * 4)
    upper.attrs["coverage"] = 0.9
    found = plan(centre, (centre - 3, upper), 16.0, paths=np.zeros((5, 3)))
    assert found["probability"].isna().all()


def forecasts_of(errors):
    dims, zero = ("cell", "time", "horizon"), np.zeros(errors.shape)
    values = {"y": errors, "y_hat": zero, "lower": zero - 1, "upper": zero + 2}
    found = xr.Dataset({name: (dims, v) for name, v in values.items()}, attrs={"coverage": 0.9})
    return found


def test_paths_of_errors_are_those_of_the_tested_forecasts():
    """Errors as the bounds say are kept; of few spans, too large ones are not."""
    z = np.random.default_rng(0).normal(size=(2, 1500, 1)) / 1.645
    steps = np.concatenate([z, z, -z], axis=2)
    steps = np.where(steps > 0, 2 * steps, steps)
    found = error_paths(forecasts_of(steps))
    np.testing.assert_allclose(found, found[:, :1] * [1, 1, -1], atol=0.05)
    assert found.std(axis=0) == pytest.approx(np.ones(3), abs=0.05)
    assert error_paths(forecasts_of(9 * steps)).std() > 8 * found.std()
    few = forecasts_of(9 * steps[:, :12])
    assert error_paths(few).std() < 3
    few["upper"][1] = np.inf  # no size follows for the errors above the forecasts of this cell
    assert len(error_paths(few)) == 12
    assert error_paths(few.drop_vars("upper")) is None
