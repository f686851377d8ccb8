"""The benchmarks of changes of the clock, and errors by day."""

import numpy as np
import pandas as pd
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
