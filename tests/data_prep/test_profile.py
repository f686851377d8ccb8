"""A profile finds what was put into a service, and nothing else."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest

from data_prep.cube import open_cube
from data_prep.described import period, profile_facts
from data_prep.description import profile, span_of
from data_prep.readers.steps import from_frame
from stforecast.cli.info import describe
from stforecast.cli.main import cli

HOURS = pd.date_range("2024-01-01", periods=24 * 70, freq="h")
NAN = np.nan


@pytest.fixture
def frame():
    """Ten weeks of hours at five cells, with a rhythm of days and some noise."""
    rng = np.random.default_rng(3)
    day = 50 + 30 * np.sin(2 * np.pi * HOURS.hour / 24)
    noise = rng.normal(0, 3, (len(HOURS), 5))
    return pd.DataFrame(day.to_numpy()[:, None] + noise, HOURS, list("abcde"))


def test_a_sound_service_has_nothing_but_a_rhythm(frame):
    found = profile(from_frame(frame), "value")
    assert found["missing"] == found["zeros"] == 0
    assert not found["constant"]
    assert not found["missing_cells"]
    assert found["stuck"] == {"spans": 0}
    assert found["outliers"] == found["shifts"] == {"count": 0}
    assert 0.95 < found["daily"] <= found["weekly"] < 1


@pytest.mark.parametrize(
    ("change", "key", "expected"),
    [
        ((slice(48, 72), "b", NAN), "missing_cells", pytest.approx({"b": 24 / len(HOURS)})),
        ((slice(48, 72), "b", NAN), "missing_days", pytest.approx({"2024-01-03": 0.2})),
        ((slice(100, 110), "c", 7.0), "stuck", {
            "spans": 1, "steps": 10, "longest": 10, "cell": "c", "first": "2024-01-05 04:00:00"}),
        ((slice(100, 106), "c", 7.0), "stuck", {
            "spans": 1, "steps": 6, "longest": 6, "cell": "c", "first": "2024-01-05 04:00:00"}),
        ((slice(100, 105), "c", 7.0), "stuck", {"spans": 0}),
        ((slice(None), "d", 5.0), "constant", ["d"]),
        ((slice(200, 201), "e", 9000.0), "outliers", {
            "count": 1, "value": 9000.0, "cell": "e", "time": "2024-01-09 08:00:00"}),
    ],
)  # fmt: skip
def test_what_is_odd_is_found_where_it_is(frame, change, key, expected):
    rows, cell, value = change
    frame.loc[HOURS[rows], cell] = value
    assert profile(from_frame(frame), "value")[key] == expected


def test_a_shift_of_level_is_found_in_its_week(frame):
    frame.loc[HOURS[24 * 35 :], "a"] += 200
    found = profile(from_frame(frame), "value")["shifts"]
    assert (found["count"], found["cell"], found["week"]) == (1, "a", "2024-02-05")


def test_the_furthest_value_need_not_be_large(frame):
    """Such as the speed in a jam."""
    frame.loc[HOURS[200], "e"] = -9000.0
    facts = profile_facts(profile(from_frame(frame), "value"))
    assert facts["outliers"] == "1, the furthest -9,000 of cell e at 2024-01-09 08:00"


def test_the_next_command_leaves_out_cells_without_values(frame, tmp_path):
    """No model can be trained for them."""
    table = frame.rename_axis("time").set_axis(["10", "11", "12", "13", "14"], axis="columns")
    for empty, options in ((["11", "13"], "--cells not:11,13 "), ([], "my.csv --horizon")):
        table.assign(**dict.fromkeys(empty, NAN)).to_csv(tmp_path / "my.csv")
        assert options in describe(tmp_path / "my.csv").next_command


def test_info_profiles_a_table_and_its_next_command_works(frame, tmp_path, capsys):
    folder = tmp_path / "my data"
    folder.mkdir()
    short = frame.rename_axis("time").drop(HOURS[30:40]).set_axis(range(5), axis="columns")
    pd.concat([short, short.iloc[5:7]]).to_csv(folder / "a b.csv")
    found = describe(folder / "a b.csv")
    assert "--duplicates" not in found.next_command, "the rows that repeat are equal"
    assert "--allow-gaps" in found.next_command
    assert found.about["profile"]["value"]["missing"] == pytest.approx(10 / len(HOURS))
    assert "rhythm     daily " in found.text
    words = shlex.split(found.next_command)[1:]
    assert words[1] == str(folder / "a b.csv")
    out = tmp_path / "o.nc"
    options = [w for w in words[2:] if w not in ("--horizon", "24", "--out", "forecast/")]
    command = ["prepare", "table", "--raw", words[1], "--out", str(out), *options]
    cli.main(command, standalone_mode=False, obj={"progress": False})
    with open_cube(out) as ds:
        assert ds.sizes == {"time": len(HOURS), "cell": 5}
    capsys.readouterr()
    cli.main(["info", str(folder / "*.csv"), "--json"], standalone_mode=False, obj={})
    assert json.loads(capsys.readouterr().out)["profile"]["value"]["cells_seen"] == 5


@pytest.mark.parametrize(
    ("step", "expected"),
    [("1h", "2024-01-01 00:00 to 2024-01-01 02:00"), ("45s", "00:00:00 to 2024-01-01 00:01:30"),
     ("10ms", "to 2024-01-01 00:00:00.020000")],
)  # fmt: skip
def test_a_period_shows_seconds_where_it_needs_them(step, expected):
    times = pd.date_range("2024-01-01", periods=3, freq=step)
    span = period(span_of(from_frame(pd.DataFrame({"a": [1.0, 2.0, 3.0]}, times))))
    assert expected in span


@pytest.mark.parametrize("command", ["info", "dry run"])
def test_marks_of_missing_values_are_named_before_anything_is_written(
    frame, tmp_path, capsys, command
):
    frame.iloc[::50] = -1.0
    path = str(tmp_path / "my.csv")
    frame.rename_axis("time").melt(ignore_index=False, var_name="cell").to_csv(path)
    options = ["prepare", "table", "--dry-run", "--raw"]
    cli([*(["info"] if command == "info" else options), path], standalone_mode=False)
    n = 5 * len(range(0, len(frame), 50))
    assert f"-1, {n} times, all others are " in " ".join(capsys.readouterr().err.split())
