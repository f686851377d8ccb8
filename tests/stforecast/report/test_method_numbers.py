from dataclasses import astuple

import numpy as np
import pytest

from stforecast.bench.run_groups import group_runs
from stforecast.report.numbers import method_numbers, successive
from stforecast.report.sections.tested import fitting

Y = np.arange(2 * 5 * 2, dtype=float).reshape(2, 5, 2)
"""`(cells, windows, horizon)` targets."""


def test_errors_are_means_over_seeds_and_the_rest_is_of_the_first(tested):
    runs = [tested("a", Y + 1, Y, seed=1), tested("a", Y + 3, Y, seed=2)]
    (group,) = group_runs(runs)
    found = method_numbers(group, "raw_mae")
    np.testing.assert_allclose(found.errors.by_cell, [2.0, 2.0])
    np.testing.assert_allclose(found.errors.by_step, [2.0, 2.0])
    np.testing.assert_allclose(found.mae, [2.0, 2.0])
    np.testing.assert_allclose(found.load, Y.mean(axis=(1, 2)))
    np.testing.assert_allclose(found.forecast, Y.mean(axis=(1, 2)) + 1)
    assert found.coverage is None
    assert found.naive is None


def test_forecasts_are_shown_as_predict_gives_them_and_errors_are_not(tested):
    run = tested("a", Y - 1, Y, attrs={"lower_limit": 0.0})
    found = method_numbers(group_runs([run])[0], "raw_mae")
    assert found.path.y_hat.min() == 0
    np.testing.assert_allclose(found.forecast, Y.clip(1).mean(axis=(1, 2)) - 1)
    np.testing.assert_allclose(found.errors.by_cell, [1.0, 1.0])


def test_hours_and_days_are_of_local_time(tested):
    error = np.zeros((1, 24, 1))
    error[0, 22:] = 6.0  # 22:00 and 23:00 UTC are 23:00 and, the day after, 00:00 in Rome
    run = tested("a", error, np.zeros((1, 24, 1)), zone="Europe/Rome")
    found = method_numbers(group_runs([run])[0], "raw_mae").errors
    assert np.flatnonzero(found.by_hour).tolist() == [0, 23]
    assert found.by_day.round(3).tolist() == [round(6 / 23, 3), 6.0]
    assert f"{found.by_day.index[1]:%Y-%m-%d}" == "2013-11-05"


def test_missing_targets_do_not_count(tested):
    y = Y.copy()
    y[0, :, :] = np.nan
    found = method_numbers(group_runs([tested("a", y + 1, y)])[0], "raw_mae")
    assert np.isnan([found.load[0], found.mae[0], found.errors.by_cell[0]]).all()
    assert found.mae[1] == pytest.approx(1.0)


def test_blocks_of_cells_give_the_numbers_of_all(tested, monkeypatch):
    y = np.random.default_rng(0).normal(10, 2, (3, 30, 2))
    runs = [
        tested("a", y + fold, y, naive=y - 2, start=day, about={"fold": fold, "backtest": "f"})
        for fold, day in ((1, "2013-11-04"), (2, "2013-11-09"))
    ]
    whole = method_numbers(group_runs(runs)[0], "mse")
    monkeypatch.setattr("stforecast.forecasting.results.CELLS", 2)
    blocks = method_numbers(group_runs(runs)[0], "mse")
    for name in ("errors", "naive"):
        for one, other in zip(getattr(whole, name), getattr(blocks, name), strict=True):
            np.testing.assert_allclose(one, other)
    for name in ("mae", "forecast", "load"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(blocks, name))
    for one, other in zip(astuple(whole.path), astuple(blocks.path), strict=True):
        np.testing.assert_array_equal(one, other)


def test_successive_windows_do_not_overlap(tested):
    found = successive([tested("a", Y + 1, Y).forecasts()])
    assert found.y[0].tolist() == [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]  # windows 0, 2 and 4
    np.testing.assert_allclose(found.y_hat, found.y + 1)
    assert found.times[0] == "2013-11-04 00:00"
    assert [time[11:] for time in found.times] == [f"0{hour}:00" for hour in range(6)]


def test_lines_break_between_folds(tested):
    parts = [tested("a", Y, Y, start=day).forecasts() for day in ("2013-11-04", "2013-11-09")]
    found = successive(parts)
    assert np.flatnonzero(np.isnan(found.y[0])).tolist() == [6]
    assert len(found.times) == found.y.shape[1] == 13
    assert list(found.times) == sorted(found.times)


def test_no_line_runs_back_where_the_clock_shows_an_hour_twice(tested):
    y = np.zeros((1, 12, 1))
    start = "2013-10-26 23:30"  # 01:30 in Rome
    run = tested("a", y, y, start=start, step_minutes=15.0, zone="Europe/Rome")
    times = successive([run.forecasts()]).times
    assert times[1:4] == ("2013-10-27 01:45", "2013-10-27 02:00", "2013-10-27 02:07:30")
    assert list(times) == sorted(set(times))
    assert times[-2:] == ("2013-10-27 03:00", "2013-10-27 03:15")


@pytest.mark.parametrize("room", [0, 10, 24, 30, 100, 500, 10_000])
@pytest.mark.parametrize("n_series", [[1], [3, 3], [1, 3, 1, 3]])
def test_what_is_shown_fits_the_room(room, n_series):
    n, steps = fitting(n_series, 200, room)
    assert 24 * n + steps * (n > 0) * (1 + sum(n_series[:n])) <= room
    assert steps <= 200
    assert (n == 0) == (steps == 0)
