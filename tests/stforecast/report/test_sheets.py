import shlex

import numpy as np
import pandas as pd
import pytest

from data_prep.cube import make_cube
from stforecast.bench.run_groups import group_runs
from stforecast.report.tables import data_sheet, dates, repeat_command, runs_sheet

Y = np.ones((2, 4, 1))


@pytest.fixture
def gappy():
    internet = np.ones((6, 2))
    internet[1:3] = np.nan
    internet[4, 0] = np.nan
    return make_cube(
        {"internet": internet, "sms": np.zeros((6, 2))},
        pd.date_range("2013-11-01", periods=6, freq="h"),
        np.array([1, 2]),
        title="a <town>", source="invented", license="none", units="MB",
        time_zone="Europe/Rome", checksums={"a.txt": "sha256:12"},
    )  # fmt: skip


def test_data_sheet_describes_the_service_as_info_does(tested, gappy):
    found = data_sheet(tested("a", Y, Y, about={"outliers": {"2": 3}}), gappy)
    assert found.facts["missing"].startswith("41.7 %")  # 5 of 12
    assert found.facts["service"] == "internet (MB)"
    assert found.facts["left out as outliers"] == "3 readings: 3 of cell 2"
    assert found.facts["steps"] == "6 steps of 1 hour"
    assert found.facts["period"].endswith("(local time, Europe/Rome)")
    assert found.checksums == {"a.txt": "sha256:12"}


def test_data_sheet_of_a_blank_service(tested, gappy):
    found = data_sheet(tested("a", Y, Y, service="sms"), gappy)
    assert found.facts["service"] == "sms (MB)"
    assert "missing" not in found.facts


def test_data_sheet_says_that_the_data_are_gone(tested):
    found = data_sheet(tested("a", Y, Y, data="nowhere.nc", units="MB"), None)
    assert "no longer exist" in found.facts["data"]
    assert found.facts["service"] == "internet (MB)"


def test_the_command_of_a_run_gives_its_own_settings_alone(tested, cube_path):
    from stforecast.forecasting.config import resolve

    settings = resolve("fedavg", rounds=3, model="linear", service="internet").flat()
    method = settings.pop("method")
    run = tested(
        "my label", Y, Y, data=str(cube_path), seed=settings.pop("seed"),
        about={"settings": {"method": method, "seed": 1, **settings}},
    )  # fmt: skip
    words = shlex.split(repeat_command(run))
    assert words[:6] == ["stforecast", "run", "--method", "fedavg", "--data", str(cube_path)]
    given = dict(zip(words[6::2], words[7::2], strict=True))
    assert given == {
        "--rounds": "3", "--model": "linear", "--service": "internet", "--label": "my label",
        "--out": "FOLDER",
    }  # fmt: skip


def test_settings_stand_side_by_side(tested):
    groups = group_runs([tested("a", Y, Y, rounds=3), tested("b", Y, Y, lr=0.5)])
    rows = {row["setting"]: row for row in runs_sheet(groups, dates(groups)).settings.rows}
    assert rows["rounds"] == {"setting": "rounds", "a": "3"}
    assert rows["lr"] == {"setting": "lr", "b": "0.5"}
