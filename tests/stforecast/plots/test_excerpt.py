"""Figures of some cells and times of the test part."""

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from data_prep.base.errors import InputError
from stforecast import Forecaster
from stforecast.cli.main import cli
from stforecast.federated.runs.run_folder import write_csv
from stforecast.plots import PLOTS
from stforecast.plots.excerpt import on_one_scale, parts_of
from stforecast.plots.figure import as_runs

TRAINED = {"communication", "rounds"}


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


@pytest.mark.quick(5)
@pytest.mark.parametrize(
    "name", sorted(set(PLOTS) - TRAINED - {"map", "sweep", "critical-difference"})
)
def test_figures_draw_parts(run, name):
    assert PLOTS[name]([run], cells="a,c", start="2024-01-13", end="2024-01-14").axes


@pytest.mark.parametrize("name", sorted(TRAINED))
def test_figures_of_training_say_that_they_have_no_parts(run, name):
    with pytest.raises(InputError, match=f"^{name} .* these options"):
        PLOTS[name]([run], cells="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cells": "a,bb"},
            "'bb' .*3 .*: a, b, c .*'b'",
        ),
        ({"start": "2025"}, "target .*2024-01-13"),
        ({"end": "noon?"}, r"time 'noon\?'"),
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


@pytest.fixture
def scaled(tested):
    """Three runs of equal forecasts; the scale of the last, and so its `metrics.csv`, differs."""
    y = np.arange(96.0).reshape(2, 24, 2)
    runs = [tested(name, y + 1, y, tau=i) for i, name in enumerate("abc")]
    changed = runs[2].forecasts()
    changed = changed.assign(std=changed["std"] * 2)
    changed.to_netcdf(runs[2].folder / "forecasts.nc", engine="h5netcdf")
    errors = runs[2].metrics()
    of_scores = errors["metric"] == "mse"
    write_csv(
        errors.assign(value=errors["value"].where(~of_scores, errors["value"] / 4)),
        runs[2].folder / "metrics.csv",
    )
    return runs


@pytest.mark.repeats
def test_errors_of_runs_with_the_same_targets_have_one_scale(scaled, caplog):
    assert [run.score() for run in scaled] == [1, 1, 0.25]
    assert [run.score() for run in on_one_scale(scaled, "mse")] == [1, 1, 1]
    assert [run.score() for run in on_one_scale(scaled, "raw_mae")] == [1, 1, 0.25]
    assert "first run" in caplog.text


@pytest.mark.repeats
def test_errors_of_other_targets_keep_their_scale(scaled, tested):
    y = np.zeros((2, 24, 2))
    other = tested("d", y + 3, y)
    assert [run.score() for run in on_one_scale([*scaled, other], "mse")] == [1, 1, 1, 9]


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", ["bars", "cdf", "horizon"])
def test_figures_show_errors_of_one_scale(scaled, name):
    """Equal forecasts look equal, whatever each run was scaled by."""
    ax = PLOTS[name](scaled, metric="mse").axes[0]
    found = {
        "bars": lambda: [bar.get_width() for bar in ax.patches],
        "cdf": lambda: [float(x) for line in ax.lines for x in line.get_xdata()[1:]],
        "horizon": lambda: [float(y) for line in ax.lines for y in line.get_ydata()],
    }[name]()
    assert len(found) >= 3
    np.testing.assert_allclose(found, 1)


@pytest.mark.repeats
def test_ranks_are_those_of_errors_of_one_scale(scaled):
    """Methods of equal errors share their rank."""
    texts = [text.get_text() for text in PLOTS["critical-difference"](scaled).axes[0].texts]
    assert sum("2.00" in text for text in texts) == 3, texts
