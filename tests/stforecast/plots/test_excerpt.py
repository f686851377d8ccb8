"""Figures of some cells and times of the test part."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.cli.main import cli
from stforecast.plots import PLOTS
from stforecast.plots.excerpt import parts_of
from stforecast.plots.figure import as_runs

TRAINED = {"communication", "rounds", "filter", "divergence"}


@pytest.fixture(scope="module")
def run():
    """A fitted forecaster with intervals, as a run: three cells, three steps ahead."""
    hours = pd.date_range("2024-01-01", periods=24 * 14, freq="h")
    noise = np.random.default_rng(0).gamma(2.0, 10.0, (len(hours), 3))
    table = pd.DataFrame(100 + noise, hours, columns=["a", "b", "c"])
    forecaster = Forecaster("ridge", horizon=3, intervals="normalised", split="days:10,2,2")
    (found,) = as_runs(forecaster.fit(table))
    return found


def test_errors_of_all_cells_and_times_are_those_of_the_run(run):
    (part,) = parts_of([run], "a,b,c", None, None)
    keys = ["selection", "metric", "client", "horizon"]
    whole = run.metrics().query("split == 'test'").set_index(keys)["value"]
    found = part.metrics().set_index(keys)["value"]
    assert set(whole.index) == set(found.index)
    np.testing.assert_allclose(found.reindex(whole.index), whole, rtol=1e-4, atol=1e-6)


def test_errors_of_a_part_are_of_its_targets_alone(run):
    (part,) = parts_of([run], "b", "2024-01-13 06:00", "2024-01-13 09:00")
    ds = run.forecasts().sel(cell="b")
    apart = []
    for ahead in (1, 2, 3):
        of_step = ds.sel(horizon=ahead)
        times = of_step.indexes["time"] + pd.Timedelta(hours=ahead - 1)
        chosen = (times >= "2024-01-13 06:00") & (times < "2024-01-13 09:00")
        assert chosen.sum() == 3
        apart.append(np.abs(of_step["y"] - of_step["y_hat"]).to_numpy()[chosen])
    chosen = "metric == 'raw_mae' and client == 'all' and selection == 'best'"
    errors = part.metrics().query(chosen).set_index("horizon")
    np.testing.assert_allclose(errors.loc[["1", "2", "3"], "value"], np.mean(apart, axis=1))
    assert set(part.metrics()["client"]) == {"b", "all"}


@pytest.mark.parametrize(
    "name", sorted(set(PLOTS) - TRAINED - {"map", "sweep", "critical-difference"})
)
def test_figures_draw_parts(run, name):
    assert PLOTS[name]([run], cells="a,c", start="2024-01-13", end="2024-01-14").axes


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_figures_of_training_say_that_they_have_no_parts(run, name):
    with pytest.raises(
        InputError, match=rf"^{name} shows the training .*; leave out these options"
    ):
        PLOTS[name]([run], cells="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cells": "a,bb"},
            r"no cell 'bb' among the 3 that were tested: a, b, c \(did you mean 'b'",
        ),
        ({"start": "2025"}, "no target in these times; the test part has targets from 2024-01-13"),
        ({"end": "noon?"}, "cannot read the time 'noon\\?'"),
    ],
)
def test_parts_that_do_not_exist_are_named(run, options, message):
    with pytest.raises(InputError, match=message):
        PLOTS["cdf"]([run], **options)


def test_a_fold_tested_at_other_times_is_left_out(run):
    other = parts_of([run], None, None, "2024-01-13 12:00")[0]
    assert len(parts_of([run, other], None, "2024-01-14", None)) == 1


def test_every_figure_has_the_options_on_the_command_line():
    for name in PLOTS:
        shown = CliRunner().invoke(cli, ["plot", name, "--help"]).output
        assert all(f"--{option} " in shown for option in ("cells", "from", "to"))
