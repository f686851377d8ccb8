"""Runs of several folds stand for one test part."""

import numpy as np
import pytest

from stforecast.bench.run_groups import group_runs
from stforecast.comparison.errors import hourly_errors
from stforecast.comparison.leaderboard import leaderboard
from stforecast.comparison.names import axis_name, different_tests
from stforecast.comparison.rows import Row, by_seed, folds_of, joined_errors, joined_targets
from stforecast.comparison.table import errors_by_cell

FOLDS = {1: ("2013-11-04", [[1.0, 2.0, 3.0]]), 2: ("2013-11-05", [[6.0]])}
"""First time and errors of each fold."""


@pytest.fixture
def folds(tested):
    """Makes a run of each fold, of hours."""

    def make(label="a", seed=1, numbers=(1, 2)):
        runs = []
        for number in numbers:
            start, errors = FOLDS[number]
            y = np.array(errors)[..., None]
            about = {"fold": number, "backtest": "2 folds"}
            runs.append(
                tested(label, y, 0 * y, seed=seed, start=start, about=about, split=f"of {number}")
            )
        return runs

    return make


def test_errors_of_the_folds_are_pooled(folds):
    runs = folds()
    errors = joined_errors(runs, "raw_rmse")
    assert errors.by_cell().tolist() == pytest.approx([np.sqrt((1 + 4 + 9 + 36) / 4)])
    assert errors.by_day()[0].tolist() == [[14, 36]]
    assert joined_targets(runs).sizes["time"] == 4


def test_runs_of_a_seed_belong_together(folds):
    runs = [*folds(), *folds(seed=2)]
    assert [[run.fold for run in of_seed] for of_seed in by_seed(runs)] == [[1, 2], [1, 2]]
    assert list(folds_of(reversed(runs))) == [1, 2]
    (group,) = group_runs(runs)
    assert errors_by_cell(group, "raw_mae")["all"].tolist() == [3]


def test_a_method_without_a_fold_is_left_out_even_if_it_is_the_reference(folds):
    rows = [
        Row(group) for group in group_runs([*folds("a"), *folds("b", numbers=(1,)), *folds("c")])
    ]
    board = leaderboard(rows, "raw_mae", "b")
    assert [line.name for line in board.lines] == ["a", "c"]
    assert board.errors.incomplete == ("b",)
    assert board.lines[0].error.value == pytest.approx(3)


@pytest.mark.repeats
def test_folds_are_compared_with_the_same_fold(folds):
    assert not different_tests([*folds("a"), *folds("b")])
    mixed = folds("a")[0], folds("b", numbers=(2,))[0]
    mixed[1].about["fold"] = 1
    assert different_tests(mixed)


def test_hours_without_targets_have_no_row(folds):
    table = hourly_errors(folds()[0].forecasts()).query("metric == 'raw_mae'")
    assert table[["client", "hour", "value"]].to_numpy().tolist() == [
        ["100", 0, 1], ["all", 0, 1], ["100", 1, 2], ["all", 1, 2], ["100", 2, 3], ["all", 2, 3],
    ]  # fmt: skip


def test_the_axis_names_what_its_runs_differ_in(make_run):
    runs = [
        make_run(seed=s, about={"fold": f, "backtest": "2 folds"}) for s in (1, 2) for f in (1, 2)
    ]
    for some, units in ((runs, "folds and seeds"), (runs[:2], "folds")):
        assert axis_name("mse", some, seeds=True).endswith(f"(mean ± std over {units})")
    assert axis_name("mse", [make_run()], seeds=True).endswith("over seeds)")
