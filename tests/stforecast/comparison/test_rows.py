"""Errors of rows on the same targets."""

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import group_runs
from stforecast.comparison.errors import SEASONAL
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.rows import Row, read_errors
from stforecast.comparison.table import basis

MSE = "mse"


@pytest.fixture
def half_days(tested):
    """Two folds of 36 hours: both test half of 5 November. The errors are 1 and 2."""

    def make(label="a", seeds=(1,)):
        return [
            tested(
                label, np.full((2, 36, 1), error), np.zeros((2, 36, 1)), start=start, seed=seed,
                naive=np.ones((2, 36, 1)), about={"fold": fold, "backtest": "2 folds of 36 hours"},
            )
            for seed in seeds
            for fold, start, error in ((1, "2013-11-04 00:00", 1.0), (2, "2013-11-05 12:00", 2.0))
        ]  # fmt: skip

    return make


def test_a_day_in_two_folds_is_one_day(half_days):
    rows = [Row(group) for group in group_runs(half_days(seeds=(1, 2)))]
    found = read_errors(rows, MSE)
    assert found.days.tolist() == list(pd.date_range("2013-11-04", periods=3))
    sums = found.sums["a"]
    np.testing.assert_array_equal(sums.weight, np.full((2, 2, 3), 24))
    np.testing.assert_array_equal(sums.total[1, 0], [24, 12 + 12 * 4, 24 * 4])
    np.testing.assert_array_equal(found.sums[SEASONAL].total, np.full((1, 2, 3), 24))


def test_errors_are_summed_by_blocks_of_cells(tested, monkeypatch):
    """Of many cells, the forecasts of all are gigabytes."""
    rng = np.random.default_rng(1)
    y, y_hat = rng.normal(size=(2, 5, 24, 3))
    rows = [Row(group) for group in group_runs([tested("a", y_hat, y, naive=y + 1)])]
    whole = read_errors(rows, MSE).sums
    monkeypatch.setattr("stforecast.forecasting.results.CELLS", 2)
    for name, sums in read_errors(rows, MSE).sums.items():
        np.testing.assert_allclose(sums.total, whole[name].total, rtol=1e-12)
        np.testing.assert_array_equal(sums.weight, whole[name].weight)


def test_runs_on_data_of_two_time_zones_are_not_compared(tested):
    """Their instants are the same, their days and hours are not."""
    y = np.zeros((2, 24, 1))
    runs = [tested(zone, y + 1, y, zone=zone) for zone in ("Europe/Rome", "UTC")]
    rows = [Row(group) for group in group_runs(runs)]
    with pytest.raises(InputError, match=r"UTC, .* Europe/Rome"):
        read_errors(rows, MSE)


def test_cells_without_an_error_are_told(tested):
    """Nothing else in a table shows that it holds for fewer cells."""
    y = np.zeros((3, 48, 1))
    whole = leaderboard([Row(group) for group in group_runs([tested("a", y + 1, y)])])
    assert not any(line.startswith("Left out") for line in basis(whole))
    y[1] = np.nan
    found = leaderboard([Row(group) for group in group_runs([tested("b", y + 1, y)])])
    assert "Left out: 1 cell of 3, without a target or, for scaled errors" in basis(found)[-1]


def test_two_runs_of_one_seed_are_refused(tested):
    """As on data that changed before the test part; one would hide the other."""
    y = np.zeros((2, 24, 1))
    runs = [tested("a", y + 1, y), tested("a", y + 2, y, about={"content": "other"})]
    (group,) = group_runs(runs)
    with pytest.raises(InputError, match=r"run-0 .*run-1 .* a .*seed 1"):
        read_errors([Row(group)], MSE)


def test_runs_on_other_values_are_not_compared(tested):
    """As where one run took a spike for missing and the other did not."""
    y = np.zeros((2, 24, 1))
    spiked = np.where(np.arange(24)[:, None] == 5, 9.0, y)
    rows = [Row(group) for group in group_runs([tested("a", y, y), tested("b", y, spiked)])]
    with pytest.raises(InputError, match=r"run-1: .*outliers"):
        read_errors(rows, MSE)


@pytest.mark.repeats
def test_runs_of_different_training_parts_have_one_scale(tested, caplog):
    """The same forecasts have the same errors, whatever each run was scaled by."""
    y = np.zeros((2, 24, 1))
    runs = [tested(name, y + 1, y) for name in ("a", "b")]
    path = runs[1].folder / "forecasts.nc"
    changed = runs[1].forecasts()
    changed.assign(std=changed["std"] * 2).to_netcdf(path, engine="h5netcdf")
    rows = [Row(group) for group in group_runs(runs)]
    sums = read_errors(rows, MSE).sums
    np.testing.assert_array_equal(sums["a"].total, sums["b"].total)
    assert "first run" in caplog.text
