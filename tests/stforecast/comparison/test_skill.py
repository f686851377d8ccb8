import numpy as np
import pytest

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import group_runs
from stforecast.comparison.table import errors_by_cell, skill_by_step

Y = np.zeros((2, 3, 2))
ERRORS = np.array([[1.0, 2.0], [3.0, 4.0]])[:, None, :]


def group(*runs):
    (only,) = group_runs(runs)
    return only


def test_errors_by_cell_and_step_are_means_over_seeds(tested):
    runs = [tested("a", Y + ERRORS, Y), tested("a", Y + 3 * ERRORS, Y, seed=2)]
    found = errors_by_cell(group(*runs), "raw_mae")
    assert found.to_dict("list") == {"1": [2, 6], "2": [4, 8], "all": [3, 7]}
    assert list(found.index) == [100, 101]


def test_skill_is_a_geometric_mean_over_cells(tested):
    of = group(tested("a", Y + ERRORS, Y, naive=Y + 4))
    errors, naive = (errors_by_cell(of, "raw_mae", naive=n) for n in (False, True))
    found = skill_by_step(errors, naive)
    expected = [1 - np.sqrt(3) / 4, 1 - np.sqrt(8) / 4, 1 - np.sqrt(1.5 * 3.5) / 4]
    np.testing.assert_allclose(found[["1", "2", "all"]], expected)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_cell_that_diverged_has_the_greatest_ratio_and_one_unseen_has_none(tested):
    y = np.concatenate([Y, Y[:1] * np.nan])
    y_hat = np.stack([Y[0] + 1, Y[0] * np.nan, Y[0]])
    of = group(tested("a", y_hat, y, naive=np.zeros(y.shape) + 1))
    errors, naive = (errors_by_cell(of, "mse", naive=n) for n in (False, True))
    np.testing.assert_array_equal(errors["all"], [1, np.inf, np.nan])
    assert skill_by_step(errors, naive)["all"] == pytest.approx(1 - np.sqrt(1 * 100))


def test_without_seasonal_naive_there_is_no_skill(tested):
    with pytest.raises(InputError, match=r"seasonal .*day"):
        errors_by_cell(group(tested("a", Y, Y)), "mse", naive=True)
