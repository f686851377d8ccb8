"""The command as a user types it: what it prints, what it writes and how it exits."""

import io
import json
import logging
import re
import sys

import click
import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions
from waiting import started, wait_for

from data_prep import DATA_SETS
from data_prep.base.errors import Stopped
from data_prep.cube import open_cube, write_cube
from stforecast.cli import main as module
from stforecast.cli.main import cli, main
from stforecast.federated.runs.run_folder import begin, is_finished
from stforecast.forecasting import runs
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.leaks import Leak
from stforecast.plots import PLOTS

FILE = __file__
"""A file that exists, but is no cube."""

SPLIT = ["--split", "days:7,1,2"]
TINY = [*SPLIT, "--rounds", "2", "--hidden-size", "8", "--device", "cpu"]


NEXT = "next: stforecast "
"""Begin of the last notice of a command that makes something."""


@pytest.fixture
def stforecast(capsys):
    """Runs the command; gives its exit code, output and error output."""

    def call(*words):
        with pytest.raises(SystemExit) as exit_:
            main([str(w) for w in words])
        out, err = capsys.readouterr()
        notices = (line for line in err.splitlines(True) if not line.startswith(NEXT))
        return exit_.value.code or 0, out, "".join(notices)

    return call


def test_commands_that_make_something_say_what_to_type_next(tmp_path, capsys):
    raw, cube = tmp_path / "raw", tmp_path / "milan.nc"
    commands = {
        f"simulate --cells 1 --days 1 --out {raw}": f"prepare milan --raw {raw} --out milan.nc",
        f"prepare milan --raw {raw} --out {cube}": f"forecast {cube} --horizon 6 --out forecast/",
    }
    for command, following in commands.items():
        with pytest.raises(SystemExit):
            main(command.split())
        assert capsys.readouterr().err.splitlines()[-1] == f"{NEXT}{following}"
    with pytest.raises(SystemExit):
        main(["-q", *f"prepare milan --raw {raw} --out {cube} --overwrite".split()])
    assert not capsys.readouterr().err


def test_no_forecast_is_suggested_after_two_steps(tmp_path, capsys):
    table = tmp_path / "two.csv"
    table.write_text("time,a,b\n2024-01-01 00:00,1,2\n2024-01-01 01:00,3,4\n")
    words = f"prepare table --raw {table} --layout wide --out {tmp_path / 'two.nc'}".split()
    with pytest.raises(SystemExit) as done:
        main(words)
    assert not done.value.code
    assert NEXT not in capsys.readouterr().err


@pytest.mark.repeats
def test_figures_and_comparisons_say_what_to_type_next(run_folder, tmp_path, capsys):
    for command in (f"plot cdf {run_folder} --out {tmp_path}/a.png", f"compare {run_folder}"):
        with pytest.raises(SystemExit):
            main(command.split())
        following = f"{NEXT}report {run_folder} --out report.html"
        assert capsys.readouterr().err.splitlines()[-1] == following


def test_numbers_for_scripts_are_json(stforecast, run_folder, town, tmp_path):
    code, out, _ = stforecast("compare", run_folder, "--json")
    assert code == 0
    assert {row["method"] for row in json.loads(out)} >= {"fuels"}
    args = ["run", "--data", town, "--service", "sms", "--method", "last_value", *SPLIT]
    code, out, _ = stforecast(*args, "--out", tmp_path / "r", "--json")
    assert code == 0
    assert json.loads(out)["errors"]["mae"] > 0
    args = ["predict", run_folder, "--history", town, "--out", tmp_path / "f.csv"]
    code, out, _ = stforecast(*args, "--threshold", 1e9, "--json")
    found = json.loads(out)
    assert (code, found["kind"], found["cells"]) == (0, "forecast", len(found["plan"]))
    assert found["plan"][0]["headroom"] > 0
    code, out, _ = stforecast("list", "benchmarks", "--json")
    assert {"name": "quick", "kind": "benchmark", "of": "forecasts"}.items() <= next(
        row.items() for row in json.loads(out) if row["name"] == "quick"
    )


@pytest.mark.parametrize(
    ("place", "is_kept", "left"),
    [
        ("sms", True, "go on with: stforecast run --resume {out}/sms, then give the same command "
                      "with --service internet --out {out}/internet"),
        ("sms", False, "give the same command with --service sms,internet"),
        ("internet", True, "go on with: stforecast run --resume {out}/internet"),
        ("internet", False, "give the same command with --service internet --out {out}/internet"),
    ],
)  # fmt: skip
def test_a_stop_in_one_of_several_services_says_how_to_get_all(
    stforecast, town, tmp_path, monkeypatch, place, is_kept, left
):
    """The same command afterwards says what is there, and the same of what is left."""
    whole = runs.run

    def stopped(method, data, out, *args, **options):
        if out.name != place:
            return whole(method, data, out, *args, **options)
        if is_kept:
            begin(out, {"settings": {}})
        raise Stopped(2, "after round 1", "")

    monkeypatch.setattr(runs, "run", stopped)
    args = ["run", "--data", town, "--service", "sms, internet", "--method", "last_value", *SPLIT]
    code, _, err = stforecast(*args, "--out", tmp_path / "a b")
    out = f"'{tmp_path}/a b'"
    left = left.format(out=out).replace("b'/sms", "b/sms'").replace("b'/internet", "b/internet'")
    assert (code, err.splitlines()[-1]) == (
        130, f"stforecast: stopped by SIGINT after round 1 of {place}; {left}"
    )  # fmt: skip
    if place == "internet":
        code, _, err = stforecast(*args, "--out", tmp_path / "a b")
        assert code == 2
        assert mentions(err, f"finished: sms; {left};", "--out")


@pytest.mark.parametrize(
    ("services", "message"),
    [("sms,foo", "unknown service 'foo'"), ("sms,sms", "--service names sms")],
)
def test_several_services_are_checked_before_the_first_is_trained(
    services, message, stforecast, town, tmp_path
):
    words = ["run", "--data", town, "--method", "last_value", *SPLIT, "--out", tmp_path / "all"]
    code, out, err = stforecast(*words, "--service", services)
    assert (code, out, list(tmp_path.iterdir())) == (2, "", [])
    assert message in err


def test_a_benchmark_checks_all_services_first_and_remembers_no_other_folder(
    stforecast, town, tmp_path, monkeypatch
):
    grid = """
        title = "Town"
        data = ["town.nc"]
        services = ["sms"]
        methods = ["last_value"]
        settings = {split = "days:7,1,2"}
    """
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "town.toml").write_text(grid)
    (tmp_path / "one" / "town.nc").symlink_to(town)
    monkeypatch.chdir(tmp_path / "one")
    words = ["bench", "town.toml", "--out", "b"]
    code, _, err = stforecast(*words, "--service", "sms", "--service", "foo")
    assert (code, list((tmp_path / "one").rglob("run.json"))) == (2, [])
    assert "unknown service 'foo'" in err
    assert stforecast(*words)[0] == 0
    monkeypatch.chdir(tmp_path / "two")
    code, _, err = stforecast(*words)
    assert code == 2
    assert err.startswith("stforecast: town.nc: no cube here")


@pytest.mark.slow
def test_several_services_go_on_after_a_kill(stforecast, town, tmp_path):
    """What the same command says to do gives the numbers of an undisturbed run."""
    args = ["run", "--data", town, "--service", "sms,internet", "--method", "fedavg", *SPLIT,
            "--rounds", "40", "--patience", "0", "--checkpoint-every", "1"]  # fmt: skip
    out = tmp_path / "killed"
    with started("-m", "stforecast", *args, "--out", out) as process:
        wait_for(lambda: list(out.glob("internet/checkpoints/round-*")), 120)
        process.kill()
    assert is_finished(out / "sms")
    code, _, err = stforecast(*args, "--out", out)
    assert code == 2
    assert f"go on with: stforecast run --resume {out}/internet; or" in err
    code, _, err = stforecast("run", "--resume", out)
    assert code == 2
    assert f"go on with `stforecast run --resume {out}/internet`" in err
    assert stforecast("run", "--resume", out / "internet")[0] == 0
    assert stforecast(*args, "--out", tmp_path / "whole")[0] == 0
    for service in ("sms", "internet"):
        found, expected = (
            (tmp_path / name / service / "metrics.csv").read_bytes() for name in ("killed", "whole")
        )
        assert found == expected


def test_thresholds_of_a_cell_are_given_once_and_those_not_used_are_named(
    stforecast, run_folder, town, tmp_path
):
    limits = tmp_path / "limits.csv"
    args = ["predict", run_folder, "--history", town, "--out", tmp_path / "f.csv"]
    cells = [str(cell) for cell in xr.open_dataset(town)["cell"].values]
    lines = ["cell,threshold", *(f"{cell},400" for cell in cells), "nowhere,1"]
    limits.write_text("\n".join(lines))
    code, _, err = stforecast(*args, "--threshold", limits)
    assert code == 0
    assert mentions(err, f"{limits}:", "cells", "nowhere")
    limits.write_text("\n".join([*lines, f"{cells[0]},1"]))
    code, _, err = stforecast(*args, "--threshold", limits)
    assert code == 2
    assert f"{limits}: more than one line of cell {cells[0]}; keep one" in err
    limits.write_text(limits.read_text().replace(",", "|"))
    code, _, err = stforecast(*args[:-1], tmp_path / "x.csv", "--threshold", limits)
    assert code == 2
    assert f"{limits}: no column 'cell', found cell|threshold; give a number, or a CSV" in err


@pytest.mark.repeats
def test_a_backtest_prints_what_info_says_of_its_folder_as_json(stforecast, town, tmp_path):
    words = ["--data", town, "--service", "sms", "--method", "last_value", "--folds", "2"]
    code, out, _ = stforecast("backtest", *words, "--test", "1d", "--out", tmp_path, "--json")
    assert code == 0
    found = json.loads(out)
    assert (len(found["runs"]), found.pop("failures")) == (2, {})
    assert json.loads(stforecast("info", tmp_path, "--json")[1]) == found


@pytest.fixture(scope="module")
def run_folder(town, tmp_path_factory):
    """A run of FUELS made by the command."""
    out = tmp_path_factory.mktemp("cli") / "fuels"
    with pytest.raises(SystemExit) as exit_:
        main(
            [
                "run",
                "--data",
                str(town),
                "--method",
                "fuels",
                "--service",
                "internet",
                *TINY,
                "--out",
                str(out),
            ]
        )
    assert not exit_.value.code
    return out


def test_simulate_and_prepare_make_a_cube(stforecast, tmp_path):
    raw, cube = tmp_path / "raw", tmp_path / "milan.nc"
    code, out, err = stforecast("simulate", "--cells", 2, "--days", 3, "--out", raw)
    assert (code, out, err) == (0, f"3 files in {raw}\n", "")
    code, out, err = stforecast("prepare", "milan", "--raw", raw, "--out", cube, "--step", "2h")
    assert code == 0
    assert out == (
        f"{cube}: 36 steps of 120 minutes × 2 cells, 2013-11-01 00:00 to "
        "2013-11-03 22:00 (local time, Europe/Rome); "
        "services: sms_in, sms_out, call_in, call_out, internet, sms, call, net\n"
    )
    with xr.open_dataset(cube, engine="h5netcdf") as ds:
        assert ds.sizes == {"time": 36, "cell": 2}
        command = "stforecast prepare milan --raw=raw --out=milan.nc --step=2h"
        assert ds.attrs["prepared_by"] == command
    before = cube.read_bytes()
    again = ["prepare", "milan", "--raw", raw, "--out", cube]
    code, out, err = stforecast(*again)
    assert (code, out) == (2, "")
    assert err == (
        f"stforecast: {cube} already exists; choose another --out, or pass --overwrite\n"
    )
    assert cube.read_bytes() == before
    assert stforecast(*again, "--overwrite")[0] == 0
    assert cube.read_bytes() != before


def test_download_fetches_the_sources_of_the_data_set(stforecast, tmp_path, monkeypatch):
    def fetch(sources, out, **options):
        assert sources is DATA_SETS["milan"].SOURCES
        assert (out, options) == (
            tmp_path,
            {"source": "mirror", "only": "*-01*", "progress": False},
        )
        return ["a", "b"]

    monkeypatch.setattr("data_prep.download.fetch.download", fetch)
    args = ["download", "milan", "--out", tmp_path, "--source", "mirror", "--only", "*-01*"]
    assert stforecast(*args) == (0, f"2 files in {tmp_path}\n", "")


def test_a_data_set_without_sources_cannot_be_downloaded(stforecast, tmp_path):
    code, out, err = stforecast("download", "table", "--out", tmp_path)
    assert (code, out) == (2, "")
    assert err == "stforecast: table: there is nothing to download; it is a file of your own\n"


def test_run_writes_the_folder_and_sums_it_up(stforecast, run_folder, town, tmp_path):
    args = ["run", "--data", town, "--method", "fuels", "--service", "internet", *TINY]
    code, out, err = stforecast(*args, "--out", tmp_path / "r", "--label", "mine", "--seed", 1)
    assert (code, err.split(";")[0]) == (0, "fuels: 3 batches an epoch")
    assert out.splitlines()[0].split()[:3] == ["model", "MSE", "MAE"]
    assert "last round, 2" in out
    assert mentions(out, "384 floats", "768")
    equal = "metrics.csv"
    assert (tmp_path / "r" / equal).read_bytes() == (run_folder / equal).read_bytes()


@pytest.mark.repeats
def test_run_gives_a_reference_forecaster_its_own_options(stforecast, town, tmp_path):
    args = ["run", "--data", town, "--service", "sms", "--method", "ridge", *SPLIT]
    code, out, _ = stforecast(*args, "--alpha", "2.5", "--out", tmp_path / "r")
    assert code == 0
    assert "round" not in out
    assert Forecaster.load(tmp_path / "r").config.method_options.alpha == 2.5
    assert stforecast(*args, "--tau", "1", "--out", tmp_path / "s")[0] == 2


def test_the_default_forecaster_needs_no_setting_and_says_what_it_chose(stforecast, town, tmp_path):
    args = ["run", "--data", town, "--service", "internet", "--split", "days:7,1,2"]
    code, out, err = stforecast(*args, "--rounds", 3, "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    # The triangle of 1 + 48 readings, 4 of the calendar and their 10 products, as many moments, and
    # a mean week; then a network.
    most, network = 63 * 64 // 2 + 63 + 168, 52 * 64 + 64 + 64 * 32 + 32 + 32 + 1
    total = most + 2 * network
    assert f"most {max(most, network):,} floats" in out
    assert f"{total:,} in" in out
    assert mentions(out, "period 24, extra_lags 2-48,", "day,", "none")
    assert "chosen on" not in out
    assert Forecaster.load(tmp_path / "r").config.method == "fedlean"


def test_predict_writes_a_table_in_the_datas_units(stforecast, run_folder, town, tmp_path):
    path = tmp_path / "forecast.csv"
    code, out, err = stforecast(
        "predict", run_folder, "--history", town, "--out", path, "--steps", 3
    )
    assert (code, err) == (0, "")
    assert out == (
        f"{path}: 3 steps × 3 cells from 2013-11-11 01:00:00+01:00 (Europe/Rome), internet in MB\n"
    )
    table = pd.read_csv(path)
    assert table.columns.tolist() == ["time", "cell", "internet"]
    assert table["time"].iloc[0] == "2013-11-11 01:00:00+01:00"
    expected = Forecaster.load(run_folder).predict(town, 3)
    np.testing.assert_allclose(
        table.pivot(index="time", columns="cell", values="internet"), expected, rtol=1e-6
    )


@pytest.mark.repeats
def test_several_services_are_forecast_into_a_folder_each(stforecast, town, tmp_path):
    words = ["run", "--data", town, "--method", "ridge", *SPLIT, "--out", tmp_path / "all"]
    code, _, err = stforecast(*words, "--service", "internet,sms", "--inputs", "")
    assert code == 0, err
    for service in ("internet", "sms"):
        about = json.loads((tmp_path / "all" / service / "run.json").read_text())
        assert about["service"] == about["settings"]["service"] == service
    assert stforecast("compare", tmp_path / "all", "--out", tmp_path / "compared")[0] == 0


def test_a_run_reads_a_further_service_and_says_which_there_are(stforecast, town, tmp_path):
    words = ["run", "--data", town, "--service", "internet", "--method", "ridge", *SPLIT]
    code, _, err = stforecast(*words, "--inputs", "mms", "--out", tmp_path / "a")
    expected = "unknown further service (--inputs) 'mms'; choose one of: sms (did you mean 'sms'?)"
    assert (code, err.splitlines()[-1]) == (2, f"stforecast: {town}: {expected}")
    assert stforecast(*words, "--inputs", "sms", "--out", tmp_path / "b")[0] == 0
    code, out, _ = stforecast("leaks", tmp_path / "b", "--history", town)
    assert (code, "no leak" in out) == (0, True)


def test_a_run_is_adapted_to_new_cells_and_forecasts_them(stforecast, run_folder, town, tmp_path):
    new = tmp_path / "new.nc"
    with open_cube(town) as cube:
        more = cube.isel(cell=[0, 0]).assign_coords(cell=[11, 44])
        write_cube(more, new)
    out = tmp_path / "adapted"
    forecast = ["--out", tmp_path / "f.csv"]
    code, _, err = stforecast("predict", run_folder, "--history", new, *forecast)
    assert code == 2
    assert "2 of the 3 cells" in err
    assert "`stforecast adapt`" in err
    words = ["adapt", run_folder, "--history", new, "--days", 2]
    code, said, _ = stforecast(*words, "--out", out)
    assert code == 0
    assert said == f"{out}: model of 1 new cell and 1 known cell (of 3 in {run_folder})\n"
    assert stforecast("predict", out, "--history", new, *forecast)[0] == 0
    assert sorted(pd.read_csv(tmp_path / "f.csv")["cell"]) == [11, 44]
    assert stforecast("leaks", out, "--history", new)[0] == 0
    drawn = ["plot", "bars", run_folder, out, "--out", tmp_path / "a.svg"]
    assert stforecast(*drawn, "--history", new)[:2] == (0, f"{tmp_path / 'a.svg'}\n")
    assert "<!-- adapted" in (tmp_path / "a.svg").read_text()
    code, _, err = stforecast(*drawn)
    assert (code, err) == (2, f"stforecast: {out}: a model without test results; give --history, "
                              "a cube to test it on\n")  # fmt: skip
    unread = ["plot", "bars", run_folder, "--out", tmp_path / "a.svg", "--history", new]
    code, _, err = stforecast(*unread)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "out --history" in err
    for command in (["update", out, "--new", new], ["monitor", out]):
        code, _, err = stforecast(*command)
        assert (code, len(err.splitlines())) == (2, 1)
        assert mentions(err, f"{out}:", "`stforecast adapt`")
    code, _, err = stforecast(*words, "--out", run_folder)
    assert (code, len(err.splitlines())) == (2, 1)


@pytest.mark.repeats
def test_events_are_read_by_a_run_and_given_again_with_its_model(stforecast, town, tmp_path):
    table, run = tmp_path / "fair.csv", tmp_path / "r"
    table.write_text("kind,date,cells\nfair,2013-11-06,11\nfair,2013-11-11,11\n")
    words = ["run", "--data", town, "--service", "internet", "--method", "ridge", *SPLIT]
    assert stforecast(*words, "--events", table, "--out", run)[0] == 0
    about = json.loads((run / "run.json").read_text())
    assert (about["settings"]["events"], about["window"]["events"]) == (str(table), "fair")
    assert "events" not in about["chosen"]
    forecast = ["predict", run, "--history", town, "--out", tmp_path / "f.csv"]
    code, _, err = stforecast(*forecast)
    assert code == 2
    assert err.startswith("stforecast: the model reads events (fair), which the history does not")
    assert stforecast(*forecast, "--events", table)[0] == 0
    leaks = ["leaks", run, "--history", town, "--events", table]
    assert "no leak found" in stforecast(*leaks)[1]


def test_a_quick_forecast_reads_events_and_says_what_it_assumes(stforecast, town, tmp_path):
    table = tmp_path / "fair.csv"
    table.write_text("kind,date\nfair,2013-11-06\n")
    code, out, _ = stforecast(
        "forecast", town, "--service", "internet", "--method", "ridge", "--horizon", 2,
        "--events", table, "--out", tmp_path / "f",
    )  # fmt: skip
    assert code == 0
    assert mentions(out, f"in {table},", "(--events)")
    assert out.splitlines()[-1].endswith("--out forecast.csv --events EVENTS.csv")


def test_intervals_are_predicted_drawn_and_checked_for_leaks(stforecast, town, tmp_path):
    args = ["run", "--data", town, "--service", "internet", "--method", "ridge", *SPLIT]
    assert stforecast(*args, "--intervals", "conformal", "--out", tmp_path / "r")[0] == 0
    code, out, _ = stforecast(
        "predict", tmp_path / "r", "--history", town, "--out", tmp_path / "f.csv", "--steps", 2,
        "--clock", "utc", "--threshold", 400, "--plan", tmp_path / "plan.csv",
    )  # fmt: skip
    assert code == 0
    first, limit, made = out.splitlines()
    assert "internet in MB, bounds of 90% intervals for the first 1 step from " in first
    assert limit.startswith("threshold: 1 cell of 3 forecast above it; least headroom: -")
    assert limit.endswith("; no probabilities, as not all steps have bounds")
    assert made == f"{tmp_path / 'plan.csv'}: busy hour and highest forecast of each cell"
    by_cell = pd.read_csv(tmp_path / "plan.csv").set_index("cell")
    assert by_cell["headroom"].idxmin() == 33
    assert by_cell[["headroom_95", "highest_probability"]].isna().all(axis=None)
    table = pd.read_csv(tmp_path / "f.csv")
    values = ["internet", "lower", "upper"]
    assert table.columns.tolist() == ["time", "cell", *values, "probability_above"]
    assert table["probability_above"].between(0, 1)[table["lower"].notna()].all()
    known = table.dropna()
    assert known["time"].unique().tolist() == ["2013-11-11 00:00:00+00:00"]
    assert (known["lower"] < known["internet"]).all()
    assert (known["internet"] < known["upper"]).all()
    # An upper limit just above the threshold makes it no less probable.
    stforecast(
        "predict", tmp_path / "r", "--history", town, "--out", tmp_path / "g.csv", "--threshold",
        400, "--upper-limit", 401,
    )  # fmt: skip
    limited = pd.read_csv(tmp_path / "g.csv")
    assert limited["upper"].max() == 401
    chances = limited.merge(known, on="cell")[["probability_above_x", "probability_above_y"]]
    assert (chances["probability_above_x"] == chances["probability_above_y"]).all()
    assert chances.gt(0).any(axis=None)
    for kind in ("intervals", "calibration"):
        assert stforecast("plot", kind, tmp_path / "r", "--out", tmp_path / "i.png")[0] == 0
    code, out, err = stforecast("leaks", tmp_path / "r", "--history", town)
    assert (code, err) == (0, "")
    assert "no leak" in out
    limited = ("--out", tmp_path / "l.csv", "--upper-limit", 150, "--lower-limit", 120)
    assert stforecast("predict", tmp_path / "r", "--history", town, *limited)[0] == 0
    values = pd.read_csv(tmp_path / "l.csv")[values].stack()
    assert (values.min(), values.max()) == (120, 150)


def test_a_leak_is_bad_news(stforecast, run_folder, town, monkeypatch):
    monkeypatch.setattr(Forecaster, "find_leaks", lambda *_: [Leak("inputs", 72, 0.5)])
    code, out, err = stforecast("leaks", run_folder, "--history", town)
    assert (code, out) == (2, "")
    assert mentions(err, "leaks:", "step 72", "0.5")


NEED_MORE = {"predictions", "sweep", "intervals", "calibration", "critical-difference", "map"}
"""Figures that one plain run of a town without places does not have."""


@pytest.mark.quick(3)
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [k for k in PLOTS if k not in NEED_MORE])
def test_plot_writes_each_figure(stforecast, run_folder, tmp_path, kind):
    path = tmp_path / f"{kind}.svg"
    assert stforecast("plot", kind, run_folder, "--out", path) == (0, f"{path}\n", "")
    assert path.read_text().startswith("<?xml")


def test_a_sweep_needs_runs_that_differ(stforecast, run_folder, tmp_path):
    code, out, err = stforecast("plot", "sweep", run_folder, "--out", tmp_path / "a.svg")
    assert (code, out) == (2, "")
    assert "no number" in err


def test_plot_says_which_clock_the_time_axis_has(stforecast, run_folder, tmp_path, monkeypatch):
    drawn = []
    drawing = "stforecast.bench.drawing.save_figure"
    monkeypatch.setattr(drawing, lambda fig, path, *_: drawn.append(fig) or path)
    args = ["plot", "predictions", run_folder, "--out", tmp_path / "a.png"]
    span = ("--from", "2013-11-10", "--to", "2013-11-10 12:00")
    assert stforecast(*args, "--cells", "22", *span)[0] == 0
    (ax,) = drawn[0].axes
    assert ax.get_xlabel() == "local time (Europe/Rome), 2013"
    assert ax.get_ylabel() == "internet (MB)"


def test_bench_prints_the_table_and_can_be_narrowed(stforecast, town, tmp_path):
    config, out_folder = tmp_path / "b.toml", tmp_path / "out"
    config.write_text(
        'data = ["absent.nc"]\nmethods = ["solo"]\nseeds = [1, 2, 3]\n'
        '[settings]\nsplit = "days:7,1,2"\nhidden_size = 8\ndevice = "cpu"\n'
    )
    args = ["bench", config, "--data", town, "--service", "sms", "--seed", 7, "--rounds", 1]
    code, out, err = stforecast(*args, "--out", out_folder)
    assert (code, err) == (0, "")
    assert "**town, sms**: 3" in out
    assert "| solo " in out
    assert out.endswith(f"table and runs in {out_folder}\n")
    assert f"{out_folder}/report.html" in out
    assert "<h1>b</h1>" in (out_folder / "report.html").read_text()
    (run,) = out_folder.rglob("run.json")
    assert run.parent == out_folder / "runs" / "town" / "sms" / "solo" / "seed-7"
    code, out, err = stforecast("-q", *args[:2], "--out", out_folder)
    assert (code, out) == (2, "")
    assert err.startswith("stforecast: absent.nc: no cube here")


def test_export_writes_feddas_layout(stforecast, town, tmp_path):
    path = tmp_path / "m.h5"
    assert stforecast("-q", "export", town, "--out", path)[:2] == (0, f"{path}\n")
    with h5py.File(path) as file:
        assert file["idx"].shape == (240,)
        assert set(file) >= {"idx", "cell", "sms"}


@pytest.mark.parametrize("what", ["methods", "data", "models", "metrics"])
def test_list_prints_a_table(stforecast, what):
    code, out, err = stforecast("list", what)
    assert (code, err) == (0, "")
    assert "---" in out


def commands():
    """Words and command of every command, those made from registries included."""
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            for entry in command.list_commands(context):
                yield (name, entry), command.get_command(context, entry)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (name,), command


COMMANDS = dict(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_that_lists_its_options(stforecast, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = stforecast(*words, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: stforecast {' '.join(words)} ")
    assert max(map(len, out.splitlines())) <= 100
    for option in (p for p in COMMANDS[words].params if isinstance(p, click.Option)):
        described = re.search(rf"^  {option.opts[0]}(?![\w-]).*(\n {{3,}}\S.*)*", out, re.M).group()
        assert option.help
        assert " ".join(option.help.split()) in " ".join(described.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], ["Options of fedlean:", "--shrinkage", "--hidden-size"]),
        (["run", "--method", "fuels"], ["Options of fuels:", "--tau"]),
        (["run", "--method", "solo"], ["Training:", "Options of dual_gru:"]),
        (["run", "--method", "ridge"], ["Training (not used by ridge):", "--alpha"]),
        (["plot"], ["predictions", "cdf", "communication", "horizon", "rounds"]),
        (["plot", "predictions"], ["--hours INTEGER", "width of the figure in inches"]),
        (["prepare"], sorted(DATA_SETS)),
        (["prepare", "metr-la"], ["miles per hour", "--step TEXT"]),
    ],
)
def test_help_follows_method_figure_and_data_set(stforecast, words, expected):
    code, out, _ = stforecast(*words, "--help")
    assert code == 0
    for text in expected:
        assert text.lower() in out.lower()


def test_without_a_command_there_is_help(stforecast):
    code, out, err = stforecast()
    assert (code, err) == (0, "")
    assert out.startswith("Usage: stforecast")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frob"], "No such command 'frob'. See: stforecast --help"),
        (["forcast"], "No such command 'forcast' (did you mean 'forecast'?). See: stforecast"),
        (["backtest", "--data", "a.nc"], "a.nc: no cube here (found nothing)"),
        (["run"], "Missing option '--data'. See: stforecast run --help"),
        (["run", "--method", "fules"], "unknown method 'fules'; choose one of: "),
        (["run", "--data", "a.nc", "--out", "b"], "a.nc: no cube here (found nothing); write"),
        (["run", "--data", FILE, "--out", "b", "--tauu", "1"], "No such option"),
        (["run", "--data", FILE, "--out", "b", "--rounds", "x"], "Invalid value for '--rounds'"),
        (["run", "--data", FILE, "--out", "b", "--rounds", "0"], "rounds is 0; it must be"),
        (["run", "--method", "solo", "--model", "x"], "unknown model 'x'; choose one of"),
        (["prepare"], "Missing command. See: stforecast prepare --help"),
        (["prepare", "rome"], "unknown data set 'rome'; choose one of: auckland-"),
        (["plot", "pie", "."], "unknown figure 'pie'; choose one of: bars, calibration, cdf"),
        (["plot", "cdf", "nowhere", "--out", "a.png"], "nowhere: no finished run here"),
        (
            ["predict", "nowhere", "--history", "a", "--out", "b.csv"],
            "nowhere: no run here; give the folder of a run",
        ),
        (
            ["predict", "r", "--history", "a", "--out", "b.json"],
            "b.json: the name ends in .json, expected .csv",
        ),
        (
            ["prepare", "milan", "--raw", "r", "--out", "b.csv"],
            "b.csv: the name ends in .csv, expected .nc",
        ),
        (
            ["prepare", "milan", "--raw", "r", "--out", "b"],
            "b: the name has no ending, expected .nc",
        ),
        (["plot", "cdf", ".", "--out", "b.foo"], "b.foo: the name ends in .foo, expected"),
        (["vision", "divide", "--out", "b.foo"], "b.foo: the name ends in .foo, expected"),
        (["bench", "nowhere.toml", "--out", "b"], "nowhere.toml: no such file; give one, or a ben"),
        (["bench", "elsewhere/quick.toml", "--out", "b"], "elsewhere/quick.toml: no such file"),
        (["bench", "federated", "--out", "b"], "milan1h.nc: no cube here"),
        (["download", "rome", "--out", "b"], "unknown data set 'rome'"),
        (["export", "nowhere.nc", "--out", "b.h5"], "nowhere.nc: no cube here"),
        (
            ["list", "cities"],
            "Invalid value for '{methods|data|formats|models|metrics|plots|sections|",
        ),
        (["simulate", "--out", "b", "--cells", "0"], "cells is 0; give 1 to"),
        (["simulate", "--out", "b.csv"], "b.csv has the name of a file; choose a folder for --out"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_exit_code_2(stforecast, words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = stforecast(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"stforecast: {message}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["list", "method"], "'methods'"),
        (["bench", "quik", "--out", "b"], "'quick'"),
        (["run", "--data", FILE, "--method", "fuel"], "'fuels'"),
        (["prepare", "table", "--raw", "a", "--out", "b", "--clock", "loca"], "'local'"),
        (["plot", "predictoins", "."], "'predictions'"),
    ],
    ids=str,
)
def test_a_name_like_the_one_given_is_suggested(stforecast, words, meant):
    code, out, err = stforecast(*words)
    assert (code, out) == (2, "")
    assert f"mean {meant}?)" in err


def test_benchmarks_of_the_package_are_listed_by_name(stforecast):
    code, out, _ = stforecast("list", "benchmarks")
    assert code == 0
    rows = [[row[0], row[-1]] for row in map(str.split, out.splitlines()) if row]
    assert ["quick", "forecasts"] in rows
    assert ["gldp_table1", "images"] in rows


def broken(error):
    def resolve(*args, **settings):
        raise error

    return resolve


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (RuntimeError("a\nb"), 1, "internal error (RuntimeError: a b); please report it with"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "/root/x"), 2, "/root/x: Permission denied"),
        (OSError(28, "No space left on device"), 2, "standard output or "),
    ],
)
def test_other_errors_have_their_exit_codes(stforecast, monkeypatch, error, code, message):
    monkeypatch.setattr("stforecast.forecasting.config.resolve", broken(error))
    monkeypatch.setattr("stforecast.cli.main.FOREIGN", set())  # Other tests add packages.
    found, out, err = stforecast("run", "--data", FILE, "--out", "b")
    assert (found, out) == (code, "")
    assert err.strip().startswith(f"stforecast: {message}")
    assert len(err.strip().splitlines()) == 1


def test_notices_outlive_the_stream_that_the_command_began_with(stforecast, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", io.StringIO())
        with pytest.raises(SystemExit):
            main(["list", "metrics"])
        sys.stderr.close()
    logging.getLogger("stforecast").warning("a notice")
    code, _, err = stforecast("list", "metrics")
    assert (code, err) == (0, "a notice\n")


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr("stforecast.forecasting.config.resolve", broken(RuntimeError("a")))
    with pytest.raises(RuntimeError, match="a"):
        main(["--debug", "run", "--data", FILE, "--out", "b"])


def test_version(stforecast):
    code, out, _ = stforecast("--version")
    assert code == 0
    assert re.fullmatch(r"stforecast \d+\.\d+\.\d+\n", out)


@pytest.mark.parametrize(("flags", "terminal", "shown"), [([], True, True), (["-q"], True, False),
                                                          ([], False, False)])  # fmt: skip
def test_progress_is_for_terminals_and_not_for_the_quiet(
    stforecast, monkeypatch, tmp_path, flags, terminal, shown
):
    seen = []
    monkeypatch.setattr(
        "data_prep.city.simulate.simulate",
        lambda out, *, progress=False: seen.append(progress) or [],
    )
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: terminal, raising=False)
    assert stforecast(*flags, "simulate", "--out", tmp_path)[0] == 0
    assert seen == [shown]


def test_notices_can_be_lines_of_json(stforecast, tmp_path):
    words = ("simulate", "--out", tmp_path / "raw", "--cells", "2", "--days", "1")
    code, _, err = stforecast("--log-format", "json", *map(str, words))
    assert code == 0
    assert "stforecast prepare" in json.loads(err.splitlines()[-1])["message"]


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_json_has_every_notice(stforecast, tmp_path, quiet):
    hours = pd.date_range("2024-01-01", periods=24 * 12, freq="h", name="time")
    wave = 20 + 10 * np.sin(np.arange(len(hours)) * np.pi / 12)
    table = tmp_path / "t.csv"
    pd.DataFrame({"a": wave, "b": 7.0}, hours).to_csv(table)
    args = ["--layout", "wide", "--method", "last_value", "--horizon", "2", "--json"]
    code, out, err = stforecast(*quiet, "forecast", table, *args, "--out", tmp_path / "f")
    assert code == 0
    notes = [note for note in json.loads(out)["notes"] if "never change" in note]
    assert len(notes) == 1
    assert (notes[0] in err) == (not quiet)


def test_the_steps_of_reading_are_printed_also_up_to_a_refusal(stforecast, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Zeit;A;B\n01.05.2024 00:00;1,5;2\n01.05.2024 01:00;2,5;3\nSumme;4,0;5\n")
    words = ["prepare", "table", "--raw", path, "--dry-run"]
    code, out, _ = stforecast(*words, "--layout", "wide")
    assert code == 0
    assert re.search("^  layout +wide: a column for each cell, as given$", out, re.M)
    assert mentions(out, "!", "1 row: totals,", "4")
    code, out, err = stforecast(*words)
    assert code == 2
    assert re.search("^  times +column 'Zeit', first 01.05.2024 00:00$", out, re.M)
    assert "--layout wide" in err
    about = json.loads(stforecast("info", path, "--json")[1])
    assert [step["step"] for step in about["steps"]][:2] == ["open", "decode"]
    assert about["notes"][0].startswith("a.csv: left out 1 row: totals")


def test_a_notice_is_written_once_however_often_data_are_read(capsys):
    cli(["list", "metrics"], standalone_mode=False)
    for _ in range(2):
        logging.getLogger("stforecast.data").warning("records in service: odd")
    assert capsys.readouterr().err.count("records in service: odd") == 1
