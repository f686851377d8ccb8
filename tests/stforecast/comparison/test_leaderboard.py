"""Claims that a leaderboard supports, in words."""

import numpy as np
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.bench.run_groups import group_runs
from stforecast.bench.statistics.estimate import Estimate
from stforecast.comparison.leaderboard import by_per_cent, claims, leaderboard
from stforecast.comparison.rows import Row
from stforecast.comparison.table import legend


@pytest.fixture
def board(tested):
    """Compares methods by the MSE of constant errors, given by name, over some days."""

    def make(errors, n_days=9, metric="mse", table=lambda name: "", **options):
        y = np.zeros((2, 2 * n_days, 1))
        runs = [
            tested(
                name, np.full(y.shape, error), y, step_minutes=720.0, about={"table": table(name)}
            )
            for name, error in errors.items()
        ]
        # The `best` and the `last` round are the same.
        for run in runs:
            ds = run.forecasts()
            ds["y_hat"].attrs["selection"] = "best, last"
            ds.to_netcdf(run.folder / "forecasts.nc", engine="h5netcdf")
        rows = [Row(group) for group in group_runs(runs)]
        return leaderboard(rows, metric, **options, n=100, task="milan")

    return make


@pytest.mark.repeats
def test_a_claim_gives_the_reference_in_per_cent_of_the_other(board):
    found = board({"low": 1.0, "high": 2.0, "mid": 1.6}, reference="mid")
    assert claims(found) == [
        "On milan, **mid** has a lower error than high (-36.0 % [-36.0, -36.0]).",
        "On milan, **mid** has a higher error than low (+156.0 % [156.0, 156.0]).",
    ]


@pytest.mark.repeats
def test_methods_without_error_do_not_differ(board):
    found = board({"a": 0.0, "b": 0.0, "c": 1.0})
    first, *_ = claims(found)
    assert first.startswith(
        "On milan, **a** does not differ significantly from b (+0.0 % [0.0, 0.0])"
    )


def test_diverged_methods_are_named_and_not_called_equal(board):
    found = board({"a": 1.0, "b": 2.0, "c": np.inf, "d": np.nan})
    assert claims(found) == [
        "On milan, **a** has a lower error than b (-75.0 % [-75.0, -75.0]).",
        "On milan, c; d diverged: some forecasts are not finite.",
    ]


@pytest.mark.repeats
def test_nothing_is_compared_with_a_diverged_reference(board):
    found = board({"a": 1.0, "b": 2.0, "c": np.inf}, reference="c")
    (claim,) = claims(found)
    assert claim == "On milan, **c** diverged, so nothing can be compared with it."


@pytest.mark.quick(2)
@pytest.mark.parametrize(("n_others", "smallest"), [(1, 2 / 64), (2, 4 / 64)])
def test_few_days_are_too_few_for_many_comparisons(board, n_others, smallest):
    errors = {"a": 1.0, "b": 2.0, "c": 3.0}
    found = board(dict(list(errors.items())[: n_others + 1]), n_days=6)
    assert found.lines[1].smallest_p == pytest.approx(smallest)
    assert np.nanmin([line.p_value for line in found.lines]) == pytest.approx(smallest)
    said = "\n".join(claims(found))
    assert ("few days" in said) == (smallest > 0.05)
    assert (mentions(said, "6 test", "2 comparisons")) == (smallest > 0.05)


def test_ablations_are_corrected_by_themselves(board):
    errors = {"a": 1.0, "b": 2.0, "a, w/o x": 3.0, "a, w/o y": 4.0}
    found = board(errors, 6, table=lambda name: "Ablations" if "w/o" in name else "")
    p_values = [line.p_value for line in found.lines]
    assert p_values[1:] == pytest.approx([2 / 64, 4 / 64, 4 / 64])
    told, said = claims(found)
    assert told.startswith("On milan, **a** has a lower error than b (")
    assert mentions(said, "**a**", ": a, w/o x (")
    assert mentions(said, "2 comparisons,", "0.062")
    assert any("Holm's" in line for line in legend([found]))


@pytest.mark.repeats
def test_clear_differences_on_few_days_are_not_called_none(board):
    """The intervals exclude 0, but no test of so few days can agree."""
    (said,) = claims(board({"a": 1.0, "b": 2.0, "c": 3.0}, n_days=3))
    assert "**a** and" in said
    assert "b (-75.0 % [-75.0, -75.0]); c (-88.9 % [-88.9, -88.9])." in said


def test_signed_errors_cannot_be_compared(board):
    with pytest.raises(InputError, match=r"raw_bias .*negative"):
        board({"a": 1.0, "b": -2.0}, metric="raw_bias")


@pytest.mark.parametrize(
    ("against", "text"),
    [
        (Estimate(0.3, 0.02, 0.6), "-0.30 % [-0.60, -0.02]"),
        (Estimate(0.48, -6.9, 8.4), "-0.5 % [-7.7, 7.4]"),
        (Estimate(25.0, 25.0, 25.0), "-20.0 % [-20.0, -20.0]"),
        (Estimate(0.0, 0.0, 0.0), "+0.0 % [0.0, 0.0]"),
        (Estimate(-100.0, np.nan, np.nan), "+inf %"),
        (Estimate(np.inf, np.nan, np.nan), "-100 %"),
    ],
)
def test_rounding_leaves_the_sign_of_a_difference(against, text):
    assert by_per_cent(against) == text
