"""The benchmarks of changes of the clock and of public holidays."""

from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

from experiments.benchmarks import days
from experiments.benchmarks.frame import main, squares_by_day


def test_errors_count_for_the_day_of_their_target():
    y = np.array([[[1.0, 3.0], [np.nan, 0.0]]])
    found = xr.Dataset(
        {"y": (("cell", "time", "horizon"), y), "std": ("cell", [2.0])},
        {"time": pd.to_datetime(["2025-04-17 23:00", "2025-04-18 00:00"]), "horizon": [1, 2]},
    )
    found["y_hat"] = xr.ones_like(found["y"])
    sums = squares_by_day(found, lambda day: f"{day:%A}")
    assert {day: of.total.tolist() for day, of in sums.items()} == {
        "Friday": [[[1.0 + 0.25]]],
        "Thursday": [[[0.0]]],
    }
    assert [of.weight.item() for of in sums.values()] == [2, 1]
    assert squares_by_day(found)["all"].total.tolist() == [[[0.0, 1.25]]]


@pytest.mark.skipif(not find_spec("holidays"), reason="an extra")
def test_holidays_help_on_holidays_that_are_like_no_other_day(tmp_path):
    times = pd.date_range("2024-01-01", "2024-05-10", freq="h", name="time")
    wave = 100 + 50 * np.sin(2 * np.pi * times.hour.to_numpy() / 24)
    free = times.strftime("%m-%d").isin(["01-29", "02-06", "03-29", "04-01", "04-25"])
    values = np.where(free, 40, wave)[:, None] + np.random.default_rng(0).normal(
        size=(len(wave), 3)
    )
    pd.DataFrame(values, times, list("abc")).to_csv(tmp_path / "town.csv")
    words = ["holidays", str(tmp_path / "town.csv"), "--region", "NZ-AUK", "--methods", "ridge"]
    words += ["--split", "dates:2024-04-10,2024-04-15", "--out", str(tmp_path)]
    said = CliRunner().invoke(main, words, catch_exceptions=False).output
    rows = pd.read_csv(tmp_path / "holidays.csv").set_index(["horizon", "kind"])
    # Anzac Day is a Thursday.
    kinds = {"other": 23, "before or after": 1, "other holiday": 1, "long weekend, bridge": 1}
    assert rows["days"][1].to_dict() == kinds
    assert rows["above"][1, "other holiday"] < 0
    assert {"ridge, 1 step", "ridge, 24 steps"} <= {part.strip() for part in said.split("|")}


def test_days_that_repeat_on_the_wall_clock_are_forecast_better_there(tmp_path, monkeypatch):
    """Only the hour that the clock skips is wrong a day later."""
    monkeypatch.setattr(days, "CLOCK_METHODS", ("seasonal_day",))
    times = pd.date_range("2024-07-01", "2024-10-10", freq="h", name="time")
    table = pd.DataFrame({c: times.hour + 10.0 * c for c in (1, 2)}, times)
    table.to_csv(tmp_path / "wall.csv")
    words = ["daylight", str(tmp_path / "wall.csv"), "--out", str(tmp_path)]
    CliRunner().invoke(main, words, catch_exceptions=False)
    rows = pd.read_csv(tmp_path / "daylight.csv").set_index("clock")["mae"]
    assert rows.index.tolist() == ["wall", "unchanged"]
    assert 0 < rows["wall"] < rows["unchanged"] / 5
