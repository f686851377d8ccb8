"""The benchmarks of few cells, of new ones, and of changes of the clock."""

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.benchmarks import cells as few_cells
from experiments.benchmarks.frame import main
from experiments.site import default_method


@pytest.mark.repeats
def test_what_is_measured_is_kept_and_tabulated(town, tmp_path, monkeypatch):
    monkeypatch.setattr(few_cells, "CELLS", (1, 2))
    monkeypatch.setattr(few_cells, "DRAWS", 1)
    methods = {"fedlean": ("fedlean", {"rounds": 1}), "seasonal_day": ("seasonal_day", {})}
    monkeypatch.setattr(few_cells, "FEW", methods)
    words = ["few-cells", str(town), "--out", str(tmp_path)]
    first = CliRunner().invoke(main, words, catch_exceptions=False)
    rows = pd.read_csv(tmp_path / "few-cells.csv")
    assert len(rows) == 2 * 2 * len(methods)
    ratio = rows.pivot_table(index=["cells", "horizon"], columns="method", values="mse")
    above = 100 * (ratio["seasonal_day"] / ratio["fedlean"] - 1)
    assert few_cells.above_table(rows).splitlines()[0].count("|") == 6
    cells = [cell.split()[0] for cell in first.output.splitlines()[-1].split("|")[2:-1]]
    expected = [above[n, h] for h in (1, 24) for n in (1, 2)]
    assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.51)
    monkeypatch.setattr(few_cells, "measure_few", None)  # Nothing is measured twice.
    assert CliRunner().invoke(main, words, catch_exceptions=False).output == first.output


def test_fits_to_few_days_are_of_those_that_a_cube_has(town, tmp_path, monkeypatch):
    methods = {"fedlean": ("seasonal_day", {}), "historical_average": ("historical_average", {})}
    monkeypatch.setattr(few_cells, "SINGLE", methods)
    monkeypatch.setattr(few_cells, "LEARNT", (2, 3, 10**4))
    words = ["short-histories", str(town), "--out", str(tmp_path)]
    CliRunner().invoke(main, words, catch_exceptions=False)
    rows = pd.read_csv(tmp_path / "short-histories.csv")
    assert sorted(rows["days"].unique()) == [2, 3]
    assert len(rows) == 2 * 2 * len(methods)
    monkeypatch.setattr(default_method, "SHORT_HISTORIES", tmp_path / "short-histories.csv")
    assert default_method.short_histories_table().count("historical_average") == 1


def test_days_that_repeat_on_the_wall_clock_are_forecast_better_there(tmp_path, monkeypatch):
    """Only the hour that the clock skips is wrong a day later."""
    monkeypatch.setattr(few_cells, "CLOCK_METHODS", ("seasonal_day",))
    times = pd.date_range("2024-07-01", "2024-10-10", freq="h", name="time")
    table = pd.DataFrame({c: times.hour + 10.0 * c for c in (1, 2)}, times)
    table.to_csv(tmp_path / "wall.csv")
    words = ["daylight", str(tmp_path / "wall.csv"), "--out", str(tmp_path)]
    CliRunner().invoke(main, words, catch_exceptions=False)
    rows = pd.read_csv(tmp_path / "daylight.csv").set_index("clock")["mae"]
    assert rows.index.tolist() == ["wall", "unchanged"]
    assert 0 < rows["wall"] < rows["unchanged"] / 5
