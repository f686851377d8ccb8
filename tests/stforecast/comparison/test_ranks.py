import numpy as np
import pytest

from stforecast.bench.run_groups import group_runs
from stforecast.comparison.rows import Row
from stforecast.comparison.table import client_errors, rank_clients


@pytest.fixture
def run_of(tested):
    """Writes a run with a given mean squared error at each cell; None was not tested."""

    def make(name, errors, seed=1):
        y = np.zeros((len(errors), 2, 1))
        y[[i for i, error in enumerate(errors) if error is None]] = np.nan
        roots = np.sqrt([0.0 if error is None else error for error in errors])
        return tested(name, np.zeros(y.shape) + roots[:, None, None], y, seed=seed)

    return make


def rows(runs):
    return [Row(group) for group in group_runs(runs)]


def ranked(runs):
    return rank_clients(client_errors(rows(runs), "mse"), "mse")


@pytest.mark.filterwarnings("ignore:invalid value")
def test_methods_rank_by_the_mean_over_seeds_and_who_diverged_is_last(run_of):
    runs = [
        run_of("solo", [1, 1, 1, None]),
        run_of("solo", [5, 5, 1, None], seed=2),
        run_of("fedavg", [2, 4, 9, None]),
        run_of("fuels", [4, 2, np.nan, None]),
    ]
    found = ranked(runs)
    # solo is 3.0 at clients 1 and 2, between the others; at client 3 fuels has no number. Client 4
    # was tested by none.
    assert found.n_clients == 3
    np.testing.assert_allclose(found.ranks, [5 / 3, 2, 7 / 3])
    assert "mean over 3 clients of the rank by test MSE (mean over seeds)" in str(found)


def test_errors_have_the_names_of_the_methods(run_of):
    errors = client_errors(rows([run_of("a", [1, 4]), run_of("b", [9, 16])]), "raw_mae")
    assert errors.to_dict("list") == {"a": [1, 2], "b": [3, 4]}
    assert list(errors.index) == ["100", "101"]


def test_too_few_rows_or_clients_have_no_ranks(run_of):
    runs = [run_of(m, [1.0, 2.0]) for m in ("solo", "fedavg", "fuels")]
    assert ranked(runs) is not None
    assert ranked(runs[:2]) is None
    assert ranked([run_of(m, [1.0]) for m in ("solo", "fedavg", "fuels")]) is None
