"""`stforecast info` describes any file or folder that the other commands read or write."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import make_cube, write_cube
from data_prep.description import describe_cube
from stforecast.cli.info import describe, describe_on_page
from stforecast.cli.main import main
from stforecast.forecasting import DEFAULT_METHOD
from stforecast.forecasting.config import read_by
from stforecast.forecasting.quick import make_plan
from stforecast.report import profile

HOURS = pd.date_range("2024-01-01", periods=4, freq="h")


@pytest.fixture
def cube(tmp_path):
    """A cube with a gap, a cell without a value and a blank service, on Rome's clock."""
    values = np.arange(12.0).reshape(4, 3)
    values[1] = np.nan
    values[:, 2] = np.nan
    ds = make_cube(
        {"speed": values, "sms": np.zeros((4, 3))}, HOURS, np.array([5, 6, 7]), title="Toy",
        source="me", license="mine", units="km/h", time_zone="Europe/Rome",
        checksums={"a.csv": "sha256:" + "0" * 64},
    )  # fmt: skip
    return write_cube(ds, tmp_path / "toy.nc")


def test_a_cube_is_described_in_numbers(cube):
    about = describe(cube).about
    assert (about["first"], about["last"]) == ("2024-01-01 01:00:00", "2024-01-01 04:00:00")
    assert (about["steps"], about["step_minutes"], about["cells"]) == (4, 60.0, 3)
    assert about["first_cells"] == [5, 6, 7]
    assert about["services"]["speed"] == {
        "units": "km/h", "zero_is_missing": False, "missing": 0.5, "empty_steps": 1,
        "empty_cells": 1, "blank": False, "min": 0.0, "mean": 5.5, "max": 10.0,
    }  # fmt: skip
    assert about["services"]["sms"]["blank"]
    assert about["checksums"] == {"a.csv": "sha256:" + "0" * 64}


def test_a_cube_is_described_in_words(cube, capsys):
    with pytest.raises(SystemExit) as done:
        main(["info", str(cube)])
    assert not done.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{cube}: cube"
    for line in (
        "  period     2024-01-01 01:00 to 2024-01-01 04:00 (local time, Europe/Rome)",
        "  steps      4 steps of 1 hour",
        "  cells      3: 5, 6, 7",
        "  blank, nothing but 0 was recorded: sms",
        "  speed: 1 step without any value, 1 cell without any value",
    ):
        assert line in lines
    (command,) = (line for line in lines if line.startswith("next:"))
    assert "--service speed --horizon 1 " in command


@pytest.mark.parametrize(("n_steps", "horizon"), [(2000, "24"), (40, "12")])
def test_the_next_command_can_be_pasted(tmp_path, n_steps, horizon):
    values = np.arange(2.0 * n_steps).reshape(-1, 2) % 24
    services = {"blank": 0 * values, "DL Traffic (GB)": values}
    times = pd.date_range("2024-01-01", periods=n_steps, freq="h")
    about = dict.fromkeys(("title", "source", "license", "units"), "1")
    write_cube(make_cube(services, times, np.arange(2), **about), tmp_path / "my town.nc")
    words = shlex.split(describe(tmp_path / "my town.nc").next_command)
    assert words[words.index("--horizon") + 1] == horizon
    assert words[2] == str(tmp_path / "my town.nc")
    assert words[words.index("--service") + 1] == "DL Traffic (GB)"


@pytest.mark.parametrize(("n_days", "horizon"), [(10, "96"), (2, None)])
def test_the_next_command_reaches_times_of_day_that_have_values(tmp_path, n_days, horizon):
    times = pd.date_range("2024-01-01", periods=96 * n_days, freq="15min")
    values = np.where((times.hour >= 6) & (times.hour < 18), times.hour + 1.0, np.nan)
    at = times.get_loc(times[np.isfinite(values)][-1]) + 1
    about = dict.fromkeys(("title", "source", "license", "units"), "1")
    cube = make_cube({"load": values[:at, None]}, times[:at], np.arange(1), **about)
    command = describe(write_cube(cube, tmp_path / "metro.nc")).next_command
    words = shlex.split(command)
    assert (words[words.index("--horizon") + 1] if words else None) == horizon


def test_a_small_table_is_described_without_torch(tmp_path):
    pd.DataFrame({"a": np.arange(48.0)}, pd.date_range("2024", periods=48, freq="h")).to_csv(
        tmp_path / "a.csv", index_label="time"
    )
    code = "import sys; from pathlib import Path; from stforecast.cli.info import describe; "
    code += "print(describe(Path('a.csv')).next_command, 'torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.split()[-5:] == ["--horizon", "12", "--out", "forecast/", "False"]


@pytest.mark.parametrize("n_steps", [30, 48, 70, 120, 190])
def test_the_horizon_of_the_next_command_is_one_that_the_default_takes(tmp_path, n_steps):
    values = np.arange(2.0 * n_steps).reshape(-1, 2) % 24
    times = pd.date_range("2024-01-01", periods=n_steps, freq="h")
    about = dict.fromkeys(("title", "source", "license", "units"), "1")
    cube = make_cube({"load": values}, times, np.arange(2), **about)
    words = shlex.split(describe(write_cube(cube, tmp_path / "a.nc")).next_command)
    found = int(words[words.index("--horizon") + 1])
    make_plan(cube, found, None, DEFAULT_METHOD, {})
    for longer in (h for h in (24, 12, 6, 3) if h > found):
        with pytest.raises(InputError):
            make_plan(cube, longer, None, DEFAULT_METHOD, {})


def test_a_short_table_of_services_is_to_be_prepared(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [f"2024-01-01 00:00:00.{i}00,{c},{i},{i + 1}" for i in range(2) for c in "ab"]
    Path("net.csv").write_text("\n".join(["time,cell,up,down", *rows]))
    found = describe(Path("net.csv"))
    assert "2024-01-01 00:00:00.100000" in found.text
    assert found.next_command == "stforecast prepare table --raw net.csv --out net.nc"
    with pytest.raises(SystemExit) as done:
        main(shlex.split(found.next_command)[1:])
    assert not done.value.code


def test_json_holds_what_the_text_says(cube, capsys):
    with pytest.raises(SystemExit):
        main(["info", str(cube), "--json"])
    about = json.loads(capsys.readouterr().out)
    assert (about["kind"], about["title"]) == ("cube", "Toy")


def test_values_are_read_in_parts_of_any_size(cube, monkeypatch):
    whole = describe(cube).about
    monkeypatch.setattr("data_prep.description.SLAB", 1)
    assert describe(cube).about == whole


def test_a_table_is_shown_as_it_is_understood_or_with_the_question(tmp_path):
    path = tmp_path / "my.csv"
    pd.DataFrame({"time": HOURS, "1": [1.5, 2, 3, 4], "2": 0.0}).to_csv(path, index=False)
    found = describe(path)
    assert found.kind == "table"
    assert found.about["services"]["value"]["max"] == 4.0
    assert "2024-01-01 00:00  1.5  0" in found.text
    pd.DataFrame({"time": HOURS, "north": 1.5, "south": 2}).to_csv(path, index=False)
    found = describe(path)
    assert found.kind == "table, not clear without options"
    assert found.about["columns"] == {"time": "2024-01-01 00:00:00", "north": "1.5", "south": "2"}
    assert "--layout wide if each is a cell" in found.about["problem"]
    path.write_text(path.read_text().partition("\n")[2])
    assert found.about["rows"] == describe(path).about["rows"] == 4


def test_a_table_that_is_read_again_has_each_notice_once(tmp_path, capsys):
    path = tmp_path / "my.csv"
    hours = HOURS.delete(1)
    pd.DataFrame({"time": hours, "cell": "a", "v (mph)": [1.5, 2, 3]}).to_csv(path, index=False)
    with pytest.raises(SystemExit) as done:
        main(["info", str(path)])
    assert not done.value.code
    out, err = capsys.readouterr()
    assert out.count("units v (mph): mile/hour") == 1
    assert re.search(r"1 of 4 .*row.*NaN$", out, re.M)
    assert "units" not in err


def test_a_page_has_the_facts_and_a_picture_of_each_service(cube, tmp_path, capsys):
    page = tmp_path / "pages" / "toy.html"
    with pytest.raises(SystemExit) as done:
        main(["info", str(cube), "--page", str(page)])
    assert not done.value.code
    assert f"{page}: open" in capsys.readouterr().out
    text = page.read_text()
    assert re.findall("<h2>(.*)</h2>", text) == ["speed"]
    assert text.count('src="data:image/png;base64,') == 1
    assert "<dt>missing</dt><dd>50 %; most in cells 7 100 %" in text
    assert "Next: <code>stforecast forecast" in text
    table = tmp_path / "a.csv"
    names = "time,<b>,c\n"
    table.write_text(names + "".join(f"{t},{i},2\n" for i, t in enumerate(HOURS)))
    with pytest.raises(InputError, match=r"no page; .*out page"):
        describe_on_page(table, page)
    table.write_text(table.read_text().replace("<b>,c", "<b> (GB),c (%)"))
    describe_on_page(table, page)
    assert re.findall("<h2>(.*)</h2>", page.read_text()) == ["&lt;b&gt; (GB)", "c (%)"]


def test_raw_records_are_described_by_their_names(tmp_path):
    for day in ("2013-11-01", "2013-11-03"):
        (tmp_path / f"sms-call-internet-mi-{day}.txt").write_text("1\n")
    found = describe(tmp_path)
    assert found.about["missing"] == ["2013-11-02"]
    assert (found.about["files"], found.about["bytes"]) == (2, 4)
    assert found.next_command == f"stforecast prepare milan --raw {tmp_path} --out milan.nc"


@pytest.mark.parametrize(
    ("arrays", "layout", "data_set", "said"),
    [
        ({"df/block0_values": 207, "df/axis0": 1}, "pandas", "metr-la", "metr-la, by"),
        ({"speed/block0_values": 325}, "pandas", "pems-bay", "another set"),
        ({"df/block0_values": 3}, "pandas", None, "metr-la, pems-bay, largest"),
        ({"idx": 3, "cell": 3}, "fedda", "fedda-h5", "layout of FedDA"),
        ({"x": 3}, None, None, "known layout"),
    ],
)
def test_arrays_are_recognised_by_their_layout(tmp_path, arrays, layout, data_set, said):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, columns in arrays.items():
            file[name] = np.zeros((2, columns))
    found = describe(tmp_path / "a.h5")
    assert (found.about["layout"], found.about["data_set"]) == (layout, data_set)
    assert found.about["arrays"] == {n: f"2 × {arrays[n]} float64" for n in sorted(arrays)}
    assert found.kind == ("raw records" if layout else "HDF5")
    assert said in found.text
    assert (f"prepare {data_set}" in found.next_command) == (data_set is not None)


@pytest.mark.parametrize(("name", "columns"), [("metr-la", 207), ("pems-bay", 325)])
def test_a_folder_of_published_records(tmp_path, name, columns):
    """Read as a table, their missing values would be zeros."""
    with h5py.File(tmp_path / f"{name}.h5", "w") as file:
        file["df/block0_values"] = np.zeros((2, columns))
    (tmp_path / "distances.csv").write_text("from,to,cost\n1,2,3\n")
    assert f"stforecast prepare {name} --raw" in describe(tmp_path).next_command


def test_a_run_and_a_folder_of_runs(town, tmp_path):
    from stforecast.forecasting.runs import run

    settings = {"service": "internet", "split": "days:7,1,2"}
    finished = run("ridge", town, tmp_path / "runs" / "r", settings, label="mine")
    found = describe(tmp_path / "runs" / "r")
    assert found.kind == "finished run"
    assert found.about["errors"]["mae"] == finished.score("mae")
    assert found.about["parts"]["test"]["first"].startswith("2013-11-09")
    assert mentions(found.text, "mine: ridge,", "seed 1")
    rows = describe(tmp_path / "runs").about["runs"]
    assert [(row["run"], row["mae"]) for row in rows] == [("r", finished.score("mae"))]


@pytest.mark.parametrize("file", ["run.json", "metrics.csv"])
def test_a_damaged_run_is_named_beside_the_others(make_run, tmp_path, file):
    whole, damaged = (make_run(method).folder for method in ("solo", "fuels"))
    (damaged / file).write_bytes((damaged / file).read_bytes()[:40])
    found = describe(tmp_path)
    assert [row["run"] for row in found.about["runs"]] == [whole.name]
    assert list(found.about["damaged"]) == [damaged.name]
    assert whole.name in found.text
    assert re.search(rf"  damaged: {re.escape(str(damaged))}.*{file}", found.text)


def test_a_model_is_described_without_its_arrays(town, tmp_path):
    from stforecast import Forecaster

    (tmp_path / "e.csv").write_text("kind,date\nfair,2013-11-06\n")
    settings = {"service": "internet", "split": "days:7,1,2", "inputs": "sms", "horizon": 2}
    fitted = Forecaster("ridge", **read_by("ridge", settings), events=str(tmp_path / "e.csv")).fit(
        town
    )
    folder = fitted.save(tmp_path / "model")
    (folder / "state.safetensors").unlink()
    found = describe(folder)
    about = found.about
    assert (found.kind, about["method"], about["horizon"], about["cells"]) == (
        "model", "ridge", 2, 3,
    )  # fmt: skip
    part = fitted.data_.parts()["training"]
    assert about["trained_on"] == {"data": str(town), **part}
    for line in (
        "  method     ridge, seed 1",
        "  forecasts  internet in MB",
        "  ahead      2 steps of 1 hour",
        "  times      in Europe/Rome",
        "  cells      3 cells: 11, 22, 33",
        f"  trained on {town}, {part['first'][:16]} to {part['last'][:16]}",
        "  reads      the services sms; a table of events of the kinds fair",
    ):
        assert line in found.text.splitlines()
    assert found.next_command == (
        f"stforecast predict {folder} --history NEWER.nc --events EVENTS.csv --out forecast.csv"
    )
    (folder / "forecaster.json").write_text('{"format": 1, "settings": {"method": "ridge"}}')
    with pytest.raises(InputError, match=r"'service' .*model"):
        describe(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toz.nc", "no such .*'toy.nc'"),
        ("none/toy.nc", "folder .*none .*exist"),
        ("a.png", "kind .*cube"),
        ("empty", "without runs"),
    ],
)
def test_anything_else_is_refused(cube, name, message):
    (cube.parent / "empty").mkdir()
    (cube.parent / "a.png").write_text("")
    with pytest.raises(InputError, match=message):
        describe(cube.parent / name)


def test_a_cube_of_one_step_has_no_length_of_step():
    ds = make_cube(
        {"v": np.ones((1, 1))}, HOURS[:1], np.array([1]), title="", source="", license="", units="1"
    )
    assert describe_cube(ds)["step_minutes"] is None


def test_pictures_name_the_year_of_the_data_alone_and_tell_long_names_apart():
    hours = pd.date_range("2019-01-01", "2019-12-31 23:00", freq="h")
    names = [f"188 Quay Street Lower Albert ({way})" for way in ("EW", "NS")]
    frame = pd.DataFrame(np.ones((len(hours), 2)), hours, names)
    levels, total = Figure().subplots(2)
    by_day = profile._daily(frame)
    profile._by_day(levels, by_day, "levels", "Greys", (0, 1))
    labels = [label.get_text() for label in levels.get_yticklabels()]
    assert [label[-4:] for label in labels] == ["(EW)", "(NS)"]
    profile._total(total, by_day, "load")
    assert [ax.get_xlabel() for ax in (levels, total)] == ["days, 2019"] * 2
