"""Sums of forecasts, compared with a library that reconciles them."""

import json
import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from experiments.benchmarks.frame import main
from experiments.benchmarks.serving import COVERAGES, SIZES, draw_sums


class Added:
    """Adds the forecasts of cells up, which are the last rows, with bounds one apart."""

    def __init__(self, *kind):
        pass

    def fit_predict(self, member, y_hat, y, old, spread, level, intervals):
        assert y.shape == old.shape
        assert np.isfinite(y).all()
        assert spread.shape == y_hat.shape
        mean = member @ y_hat[-member.shape[1] :]
        return {"mean": mean, "quantiles": np.stack([mean - 0.5, mean + 0.5], axis=-1)}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    times = pd.date_range("2024-07-01", periods=24 * 26, freq="h", name="time")
    wave = 30 + 20 * np.sin(2 * np.pi * times.hour.to_numpy() / 24)[:, None]
    values = np.random.default_rng(0).poisson(wave, (len(times), 21))
    table = pd.DataFrame(values, times, [f"c{i}" for i in range(21)])
    table = table[table.index.hour > 4]  # A metro is closed at night.
    table.to_csv(tmp_path / "town-1.csv")

    def run(library, name="sums"):
        monkeypatch.setitem(sys.modules, "hierarchicalforecast.methods", library)
        monkeypatch.setitem(sys.modules, "hierarchicalforecast", library)
        words = [name, str(tmp_path / "town-1.csv"), "--methods", "seasonal_day"]
        words += ["--span", "2024-07-02:2024-07-25", "--out", str(tmp_path)]
        found = CliRunner().invoke(main, words, catch_exceptions=False)
        return json.loads((tmp_path / f"{name}.json").read_text())["rows"], found

    return run


def test_added_forecasts_have_the_errors_of_bottom_up(measured):
    library = ModuleType("hierarchicalforecast.methods")
    library.BottomUp = library.MinTrace = Added
    rows, found = measured(library)
    assert [row["level"] for row in rows] == ["all", *map(str, SIZES)]
    for row in rows:
        assert row["bottom_up"] == pytest.approx(0, abs=1e-9)
        assert row["mint_held"] == row["bottom_up_held"]
        assert 0 < row["held"] <= 1
    assert rows[-1]["width"] == pytest.approx(1)
    # Of each cell, the forecast of its level is the forecast that is added.
    assert rows[-1]["alone"] == pytest.approx(0, abs=1e-9)
    assert "town, seasonal_day" in found.output


def test_without_the_library_its_columns_are_empty(measured):
    rows, found = measured(None)
    assert "hierarchicalforecast" in found.stderr
    assert len(rows) == 4
    assert not any("mint" in row for row in rows)


def test_wider_bounds_hold_more_sums(measured):
    rows, _ = measured(None, "sums-coverage")
    assert [row["level"] for row in rows] == ["all", *map(str, SIZES)]
    held = [[row[f"held_{percent}"] for percent in COVERAGES] for row in rows]
    assert held == [sorted(of_level) for of_level in held]
    assert np.ptp(held, axis=1).min() > 0
    figure = draw_sums(rows)
    assert {line.get_label() for line in figure.axes[0].lines} > {"all cells", "groups of 4"}
