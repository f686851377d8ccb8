"""Groups of runs and their names, whatever kind the runs are of, and rows of their tables."""

import pandas as pd
import pytest

from stforecast.bench.run_groups import (
    by_client,
    by_step,
    differing_settings,
    group_runs,
    pooled,
    select,
)


def names(runs):
    return [group.name for group in group_runs(runs)]


def test_runs_that_differ_in_what_makes_no_difference_are_one_group(throw):
    runs = [throw(seed=1, table="green"), throw(seed=2, table="red", device="cuda"), throw("solo")]
    first, second = group_runs(runs)
    assert (first.runs, second.runs) == (tuple(runs[:2]), (runs[2],))
    assert (first.label, second.label) == ("fair (2 runs)", "solo")
    assert first.run_label(runs[1]) == "fair (seed 2)"
    assert first.named("loaded", "2 runs") == "fair (loaded, 2 runs)"
    assert differing_settings(runs) == []


def test_a_name_says_no_more_than_it_takes(throw):
    assert names([throw(tau=1, lr=2), throw(tau=3, lr=2)]) == ["fair (tau 1)", "fair (tau 3)"]
    assert names([throw(tau=1), throw("solo", tau=3)]) == ["fair", "solo"]
    runs = [throw(tau=1, lr=1), throw(tau=1, lr=2), throw(tau=2, lr=2)]
    assert names(runs) == ["fair (tau 1, lr 1)", "fair (tau 1, lr 2)", "fair (tau 2)"]
    assert differing_settings(runs) == ["tau", "lr"]


def test_runs_of_a_version_without_a_setting_have_its_only_value(throw):
    (group,) = group_runs([throw(seed=1), throw(seed=2, tau=1)])
    assert (group.label, len(group.runs)) == ("fair (2 runs)", 2)
    assert names([throw(), throw(tau=1), throw(tau=3)]) == [
        "fair (tau None)", "fair (tau 1)", "fair (tau 3)",
    ]  # fmt: skip


def test_other_data_are_always_named(throw):
    runs = [throw(), throw("solo"), throw("solo", data="coins")]
    assert names(runs) == ["fair (dice)", "solo (dice)", "solo (coins)"]


def test_a_folder_given_twice_counts_once(throw):
    run = throw()
    (group,) = group_runs([run, run])
    assert group.label == "fair"


@pytest.fixture
def errors():
    rows = [
        (metric, client, horizon)
        for metric in ("mse", "mae")
        for client in ("7", "8", "all")
        for horizon in ("1", "2", "all")
    ]
    return pd.DataFrame(rows, columns=["metric", "client", "horizon"])


def test_rows_of_a_table_are_named(errors):
    mse = select(errors, metric="mse")
    assert len(mse) == 9
    assert len(select(errors, metric=("mse", "mae"), client="7")) == 6
    assert pooled(mse)[["client", "horizon"]].to_numpy().tolist() == [["all", "all"]]
    assert by_client(mse)[["client", "horizon"]].to_numpy().tolist() == [["7", "all"], ["8", "all"]]
    assert by_step(mse)[["client", "horizon"]].to_numpy().tolist() == [["all", "1"], ["all", "2"]]
