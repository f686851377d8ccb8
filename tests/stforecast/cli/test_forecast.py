"""`stforecast forecast` takes a table or a cube to a checked forecast, and says what it assumed."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import openpyxl
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions

from data_prep.base.errors import InputError
from stforecast.cli.predict import forecast_sentence
from stforecast.data.cubes import open_cube
from stforecast.forecasting.forecaster import Forecaster
from stforecast.forecasting.tables import Interval

RIDGE = ["--method", "ridge", "--horizon", "3"]


def test_a_table_becomes_a_forecast_a_run_and_a_report(stforecast, town, tmp_path):
    with open_cube(town) as ds:
        frame = ds["internet"].to_pandas()
    frame.index = frame.index.strftime("%d/%m/%Y %H:%M")
    frame.to_csv(tmp_path / "my.csv", index_label="Timestamp")
    out = tmp_path / "out"
    args = ["forecast", tmp_path / "my.csv", *RIDGE, "--time-format", "dayfirst", "--out", out]
    code, text, err = stforecast(*args)
    assert code == 0, err
    assert {p.name for p in out.iterdir()} == {
        "data.nc",
        "run",
        "forecast.csv",
        "plan.csv",
        "report.html",
    }
    lines = text.splitlines()
    assert lines[0] == f"{tmp_path / 'my.csv'}: assumed"
    assert mentions(text, "step", "1 hour,", "(--resample")
    assert mentions(text, "horizon", "3 hours, 3", "(--horizon)")
    assert any(line.startswith("checked on 2013-11-09 12:00 to ") for line in lines)
    assert lines[-1].startswith(f"next: stforecast predict {out / 'run'} --history ")
    assert mentions(err, "column 'Timestamp'", "times")
    table = pd.read_csv(out / "forecast.csv")
    assert table.columns.tolist() == ["time", "cell", "value", "lower", "upper"]
    assert (len(table), table["time"].iloc[0]) == (9, "2013-11-11 00:00:00+00:00")
    expected = Forecaster.load(out / "run").predict(out / "data.nc")
    np.testing.assert_allclose(
        table.pivot(index="time", columns="cell", values="value"), expected, rtol=1e-6
    )
    code, _, err = stforecast(*args)
    assert code == 2
    assert "finished run" in err


def test_folds_and_json_say_how_far_to_trust_it(stforecast, town, tmp_path):
    args = ["forecast", town, "--method", "last_value", "--service", "sms", "--folds", "2"]
    code, text, err = stforecast(*args, "--out", tmp_path, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["check"]["mae"] > 0
    assert found["backtest"]["raw_mae"]["low"] <= found["backtest"]["raw_mae"]["value"]
    assert found["run"] == str(tmp_path / "run")


@pytest.mark.repeats
def test_a_cube_is_used_as_it_is(stforecast, town, tmp_path):
    out = tmp_path / "out"
    args = ["forecast", town, *RIDGE, "--service", "sms", "--set", "split=days:6,2,2"]
    code, text, err = stforecast(*args, "--out", out)
    assert code == 0, err
    assert not (out / "data.nc").exists()
    assert "sms (--service)" in text
    assert "--history NEWER.nc " in text
    config = Forecaster.load(out / "run").config
    assert (config.data.split, config.window.horizon) == ("days:6,2,2", 3)
    code, _, err = stforecast(*args, "--resample", "2h", "--agg", "sum", "--out", tmp_path / "b")
    assert code == 2
    assert "no --resample" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere.csv"], "nowhere.csv: no table"),
        (["nowhere.nc"], "nowhere.nc: no table"),
        (["TOWN", "--service", "smss"], "mean 'sms'?"),
        (["TOWN", "--method", "rigde"], "mean 'ridge'?"),
        (["TOWN", "--horizon", "0"], "horizon is 0"),
    ],
)
def test_mistakes_are_named(stforecast, town, tmp_path, args, message):
    words = [str(town) if word == "TOWN" else word for word in args]
    code, _, err = stforecast("forecast", *words, "--out", tmp_path / "out")
    assert code == 2
    assert message in err


def test_a_period_is_advised_as_this_command_takes_it(stforecast, tmp_path):
    weeks = pd.date_range("2015-01-05", periods=300, freq="7D", name="time")
    level = 10 + np.sin(2 * np.pi * np.arange(300) / 52)
    pd.DataFrame({"a": level, "b": level}, weeks).to_csv(tmp_path / "weeks.csv")
    words = ["forecast", tmp_path / "weeks.csv", "--layout", "wide", "--horizon", "4"]
    words += ["--method", "ridge", "--out", tmp_path / "out"]
    code, _, err = stforecast(*words)
    assert code == 2
    assert mentions(err, "--period 52", "--set period=52")
    assert not stforecast(*words, "--set", "period=52")[0]


def test_the_next_command_keeps_the_kind_of_a_packed_table(stforecast, tmp_path):
    hours = pd.date_range("2024-01-01", periods=240, freq="h", name="time")
    daily = 5 + np.sin(2 * np.pi * hours.hour / 24)
    pd.DataFrame({"a": daily, "b": daily}, hours).to_csv(tmp_path / "a.csv.gz")
    words = ["forecast", tmp_path / "a.csv.gz", "--layout", "wide", "--horizon", "3"]
    code, out, err = stforecast(*words, "--method", "seasonal_day", "--out", tmp_path / "out")
    assert code == 0, err
    assert "--history NEWER.csv.gz" in out.splitlines()[-1]


def test_the_check_compares_with_the_day_before():
    from stforecast.forecasting.quick import check_forecasts

    times = pd.date_range("2013-11-01 23:00", periods=2, freq="h")
    y = np.array([[[1.0, 2.0], [3.0, np.nan]]])
    dims = ("cell", "time", "horizon")
    values = {"y": y, "y_hat": y + 1, "seasonal_naive": y + np.array([[[4.0, 4.0], [np.nan, 4.0]]])}
    ds = xr.Dataset(
        {name: (dims, v) for name, v in values.items()},
        {"time": times},
        {"step_minutes": 60.0, "time_zone": "Europe/Rome"},
    )
    check = check_forecasts(ds)
    assert (check.mae, check.naive, check.skill) == (1.0, 4.0, 0.75)
    assert (check.first, check.last) == (
        pd.Timestamp("2013-11-02"),
        pd.Timestamp("2013-11-02 02:00"),
    )
    assert "75% below that of the value one day before (4)" in str(check)
    assert "nothing before" in str(check_forecasts(ds.drop_vars("seasonal_naive")))
    exact = check_forecasts(ds.assign(seasonal_naive=ds["y"]))
    assert "error 1; the value one day before has none; sums are" in str(exact)
    assert check.bias == 2 / 3
    assert str(check).endswith("; sums are 66.7% too high")
    limited = check_forecasts(ds.assign_attrs(lower_limit=5.0))
    assert (limited.mae, limited.limited) == (1.0, 3.5)
    assert "error 1, moved to the limits 3.5, 75% below" in str(limited)
    alone = check_forecasts(ds.assign(seasonal_naive=ds["y"] * np.nan))
    assert "mean absolute error 1 (nothing before to compare with)" in str(alone)
    unknown = str(check_forecasts(ds.assign(y=ds["y"] * np.nan)))
    assert unknown.startswith("not checked on 2013-11-02 00:00 to 2013-11-02 02:00: no value was")


def test_the_check_ends_when_the_last_target_ends_though_the_clock_was_changed():
    from stforecast.forecasting.quick import check_forecasts

    times = pd.DatetimeIndex(["2013-10-26 23:00"])  # 01:00 in Rome, where 02:00 comes twice
    y = ("cell", "time", "horizon"), np.ones((1, 1, 4))
    about = {"step_minutes": 60.0, "time_zone": "Europe/Rome"}
    check = check_forecasts(xr.Dataset({"y": y, "y_hat": y}, {"time": times}, about))
    assert check.last == pd.Timestamp("2013-10-27 03:00")


def test_three_lines_of_python(town, tmp_path):
    import stforecast

    with open_cube(town) as ds:
        frame = ds["internet"].to_pandas().tz_localize("UTC")
    frame.to_csv(tmp_path / "my.csv")
    found = stforecast.forecast(tmp_path / "my.csv", 3, method="ridge")
    assert found.forecast.shape == (3, 3)
    assert (found.interval.lower <= found.interval.upper).all(axis=None)
    again = stforecast.forecast(frame, 3, method="ridge")
    np.testing.assert_allclose(found.forecast, again.forecast)
    assert found.check.mae == pytest.approx(again.check.mae)
    assert found.assumed["service"] == "value"


@pytest.mark.repeats
def test_rounds_are_fewer_for_many_cells(town):
    from stforecast.forecasting.config import defaults
    from stforecast.forecasting.quick import make_plan

    with open_cube(town) as ds:
        few = make_plan(ds, 1, None, "fedlean", {})
        many = make_plan(ds.isel(cell=[0] * 20_000), 1, None, "fedlean", {})
    assert "rounds" not in few.settings
    assert 2 <= many.settings["rounds"] < defaults("fedlean")["rounds"]
    assert few.settings["service"] == "internet"
    assert "the first that is not all zeros (service: sms)" in str(few.assumed["service"])


@pytest.mark.parametrize(("n_steps", "split"), [(840, "0.54,0.23,0.23"), (2000, "0.7,0.15,0.15")])
def test_parts_suit_the_horizon(n_steps, split):
    from stforecast.forecasting.quick import make_plan

    plan = make_plan(hours(n_steps), 168, None, "ridge", {})
    assert plan.settings["split"] == f"time:{split}"
    assert ("15 % are too short" in str(plan.assumed["parts"])) == (n_steps == 840)


def test_a_horizon_that_no_parts_suit_names_the_longest_and_the_length_it_needs():
    from stforecast.forecasting.quick import make_plan

    with pytest.raises(InputError) as found:
        make_plan(hours(300), 168, None, "ridge", {})
    fewest, most = map(
        int, re.findall(r"at least (\d+) steps, or a horizon of at most (\d+)", str(found.value))[0]
    )
    for n_steps, horizon in ((fewest, 168), (300, most)):
        assert make_plan(hours(n_steps), horizon, None, "ridge", {})
    for n_steps, horizon in ((fewest - 1, 168), (300, most + 1)):
        with pytest.raises(InputError):
            make_plan(hours(n_steps), horizon, None, "ridge", {})


def hours(n_steps):
    index = pd.date_range("2024-01-01", periods=n_steps, freq="h")
    return open_cube(pd.DataFrame({"a": np.sin(np.arange(n_steps))}, index))


def test_tables_for_a_spreadsheet(stforecast, town, tmp_path):
    args = ["forecast", town, "--method", "seasonal_day", "--horizon", "3", "--threshold", "2000"]
    code, text, err = stforecast(*args, "--csv-style", "excel", "--out", tmp_path / "csv")
    assert code == 0, err
    assert "threshold: " in text
    raw = (tmp_path / "csv" / "forecast.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbftime;utc_offset;cell;")
    read = {"sep": ";", "decimal": ",", "encoding": "utf-8-sig"}
    ours = pd.read_csv(tmp_path / "csv" / "forecast.csv", **read)
    assert set(ours["utc_offset"]) == {"UTC+0100"}
    code, _, err = stforecast(*args, "--xlsx", "--out", tmp_path / "xlsx")
    assert code == 0, err
    sheet = pd.read_excel(tmp_path / "xlsx" / "forecast.xlsx")
    assert sheet["time"].dtype.kind == "M"
    np.testing.assert_allclose(sheet["upper"], ours["upper"])
    plan = pd.read_excel(tmp_path / "xlsx" / "plan.xlsx")
    columns = openpyxl.load_workbook(tmp_path / "xlsx" / "plan.xlsx").active.column_dimensions
    time = list(plan.columns).index("peak_time")
    assert columns["ABCDEFGHIJ"[time]].width > len("2013-11-29 00:00:00")
    assert plan["probability"].between(0, 1).all()
    page = (tmp_path / "csv" / "report.html").read_text()
    assert "The coming 3 hours" in page


def test_an_infinite_bound_names_its_cell():
    from stforecast.cli.predict import forecast_sentence
    from stforecast.forecasting.tables import Interval

    table = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, pd.date_range("2024", periods=2))
    table.attrs = {"service": "net", "units": "1"}
    lower, upper = table - 1, table.add([1, np.inf])
    lower.attrs["coverage"] = 0.9
    said = forecast_sentence(Path("f.csv"), table, Interval(lower, upper))
    assert said.endswith("mean width 2 without 1 cell whose bounds are infinite, such as b")


def test_large_numbers_of_single_precision_are_written_with_all_digits(tmp_path):
    from stforecast.federated.runs.run_folder import write_csv

    table = pd.DataFrame({"a": np.array([51653410816, 1], "f4"), "b": np.array([0.1, 2], "f4")})
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().split() == ["a,b", "51653410816.0,0.1", "1.0,2.0"]


def test_of_cells_that_are_surely_beyond_the_threshold_the_worst_is_named():
    from stforecast.cli.predict import beyond

    plan = pd.DataFrame(
        {
            "headroom": [-1.0, -3.0, -9.0],
            "steps_above": [2, 5, 5],
            "expected_steps_above": [2.0, 4.8, 4.81],
            "max_time": "noon",
            "highest_probability": [1.0, 0.999, 0.996],
        },
        ["a", "b", "c"],
    )
    side = SimpleNamespace(beyond="above", worst="max")
    assert beyond(SimpleNamespace(plan=plan, side=side)).endswith(
        "at one step: 100% of 3 cells, longest expected in cell c"
    )


def test_raw_days_are_prepared_first(stforecast, tmp_path):
    (tmp_path / "sms-call-internet-mi-2013-11-01.txt").touch()
    code, _, err = stforecast("forecast", tmp_path, "--out", tmp_path / "f")
    assert code == 2
    assert f"stforecast prepare milan --raw {tmp_path} --out milan.nc" in err


def test_the_horizon_of_predict_is_its_steps(stforecast, tmp_path):
    code, _, err = stforecast("predict", tmp_path, "--horizon", 3, "--history", "h.nc")
    assert code == 2
    assert "'--steps'" in err


def test_groups_are_in_both_tables_and_paths_in_a_file(stforecast, town, tmp_path):
    """From the model of the run, `predict` writes the same sums."""
    with open_cube(town) as ds:
        cells = ds["cell"].to_numpy()
    members = tmp_path / "members.csv"
    members.write_text(
        "cell,site\n" + "".join(f"{c},{'x' if i else 'y'}\n" for i, c in enumerate(cells))
    )
    asked = ["--groups", members, "--paths", "20", "--threshold", "50"]
    args = ["forecast", town, *RIDGE, "--service", "internet", *asked, "--out", tmp_path / "out"]
    code, text, err = stforecast(*args)
    assert code == 0, err
    assert "groups: 2 site" in text
    table, plan = (pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("forecast", "plan"))
    of_levels = table.groupby(["level", "time"])["internet"].sum().unstack("level")
    np.testing.assert_allclose(of_levels["cell"], of_levels["all"], rtol=1e-12)
    assert plan.loc[plan["cell"] == "x", "threshold"].item() == 50 * (len(cells) - 1)
    with xr.open_dataset(tmp_path / "out" / "paths.nc", engine="h5netcdf") as paths:
        assert paths["internet"].sizes == {"path": 20, "cell": len(cells), "time": 3}
    again = ["predict", tmp_path / "out" / "run", "--history", town, *asked]
    code, text, err = stforecast(*again, "--out", tmp_path / "day.csv", "--json")
    assert code == 0, err
    assert json.loads(text)["paths"] == str(tmp_path / "day-paths.nc")
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "day.csv"), table)
    page = (tmp_path / "out" / "report.html").read_text()
    parts = ["<caption>Groups<", 'data-cell="all"', 'data-cell="site x"', "<caption>Plan"]
    places = [page.index(part) for part in parts]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "asked",
    [
        ("--threshold", -5),
        ("--groups", "nothere.csv"),
        ("--paths", 100_000),
        ("--upper-limit", -3),
    ],
)
def test_wrong_options_of_the_plan_are_refused_before_training(stforecast, town, tmp_path, asked):
    """The corrected command then finds no finished run in its way."""
    args = ["forecast", town, *RIDGE, "--service", "internet", "--out", tmp_path / "out"]
    code, _, err = stforecast(*args, *asked)
    assert code == 2
    assert str(asked[1]) in err
    assert not (tmp_path / "out" / "run").exists()


def test_bounds_that_end_before_the_forecast_are_said():
    table = pd.DataFrame({"a": [1.0, 2.0, 12345.6]}, pd.date_range("2024-01-01", periods=3))
    table.attrs = {"service": "calls", "units": "1"}
    interval = Interval(table.where(table < 2), table.where(table < 2) + 20_000)
    interval.upper.attrs["coverage"] = interval.lower.attrs["coverage"] = 0.9
    text = forecast_sentence(Path("f.csv"), table, interval)
    assert mentions(text, "1 step", "1 to 20,001,", "20,000")


def test_a_missing_library_of_workbooks_is_named_before_training(
    stforecast, town, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    code, _, err = stforecast("forecast", town, "--xlsx", *RIDGE, "--out", tmp_path / "out")
    assert code == 2
    assert "stforecast[excel]" in err
    assert not (tmp_path / "out" / "run").exists()


def test_the_tested_forecasts_are_counted_before_training(stforecast, town, tmp_path):
    args = ["forecast", town, *RIDGE, "--service", "internet"]
    _, _, err = stforecast(*args, "--paths", 100_000, "--out", tmp_path / "out")
    most = err.split()[-1]
    code, _, err = stforecast(*args, "--paths", most, "--out", tmp_path / "out")
    assert code == 0, err
    with xr.open_dataset(tmp_path / "out/run/forecasts.nc", engine="h5netcdf") as tested:
        assert tested.sizes["time"] == int(most)


def test_a_forecast_is_explained_at_a_time(stforecast, town, tmp_path):
    out, run = tmp_path / "f.csv", tmp_path / "run"
    settings = ["--split", "days:6,2,2", "--horizon", "3", "--service", "internet"]
    assert stforecast("run", "--data", town, "--method", "ridge", *settings, "--out", run)[0] == 0
    assert stforecast("predict", run, "--history", town, "--out", out)[0] == 0
    table = pd.read_csv(out)
    cell, time = str(table["cell"].iloc[-1]), table["time"].iloc[-1][:16]
    asked = ["explain", run, "--history", town, "--cell", cell]
    code, text, err = stforecast(*asked, "--time", time, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["forecast"] == pytest.approx(table["internet"].iloc[-1], rel=1e-5)
    assert sum(found["read"].values()) == pytest.approx(found["forecast"])
    code, text, _ = stforecast(*asked)
    assert code == 0
    assert text.startswith(f"cell {cell}: ")
    assert "usual at" in text
    code, _, err = stforecast(*asked, "--time", "2001-01-01T00:00")
    assert code == 2
    assert "a time of" in err
