"""The benchmarks of few cells and of short histories."""

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.benchmarks import cells as few_cells
from experiments.benchmarks.frame import main


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
    assert few_cells.above_table(rows).splitlines()[0].count("|") == 5
    lines = [line.split("|")[3:-1] for line in first.output.splitlines()[-2:]]
    cells = [cell.split()[0] for line in lines for cell in line]
    expected = [above[n, h] for h in (1, 24) for n in (1, 2)]
    assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.51)
    monkeypatch.setattr(few_cells, "_error", None)  # Nothing is measured twice.
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
    rows = pd.read_csv(tmp_path / "short-histories.csv")
    assert few_cells.above_table(rows).count("historical_average") == 2
