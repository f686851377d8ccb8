"""The benchmark of few cells, and that of new ones."""

import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.benchmarks import cells as few_cells
from experiments.benchmarks.frame import main


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
    assert few_cells.few_table(rows).splitlines()[0].count("|") == 6
    cells = [cell.split()[0] for cell in first.output.splitlines()[-1].split("|")[2:-1]]
    expected = [above[n, h] for h in (1, 24) for n in (1, 2)]
    assert [float(cell) for cell in cells] == pytest.approx(expected, abs=0.51)
    monkeypatch.setattr(few_cells, "measure_few", None)  # Nothing is measured twice.
    assert CliRunner().invoke(main, words, catch_exceptions=False).output == first.output
