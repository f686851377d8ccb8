"""The benchmark `zero-shot`: errors as of a backtest, and its table."""

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks.frame import Results, squares_by_day
from experiments.benchmarks.zero_shot import weights_table, zero_shot
from stforecast.baselines.pretrained import WEIGHTS, trained_arrays
from stforecast.forecasting.forecaster import Forecaster


def test_shipped_weights_have_the_error_of_a_backtest(tmp_path):
    hours = pd.date_range("2024-03-04", periods=24 * 20, freq="h", name="time")
    wave = 3 - 3 * np.cos(2 * np.pi * hours.hour.to_numpy() / 24)[:, None]
    counts = np.random.default_rng(0).poisson(wave, (len(hours), 3)).astype(float)
    table = pd.DataFrame(counts, hours, list("123"))
    table.to_csv(tmp_path / "town.csv")
    np.savez(tmp_path / "zero.npz", **{n: 0 * a for n, a in trained_arrays().items()})
    results = Results(tmp_path / "pretrained.csv")
    for weights in (WEIGHTS, tmp_path / "zero.npz"):
        zero_shot(results, tmp_path / "town.csv", weights=weights, ahead="6")
    same, other = results.rows
    found = Forecaster("pretrained", horizon=6, intervals="none").backtest(table)
    assert same["mse"] == same["shipped"] == other["shipped"]
    parts = [squares_by_day(fold.forecasts)["all"] for fold in found.results]
    mean = sum(p.total.sum() for p in parts) / sum(p.weight.sum() for p in parts)
    assert same["shipped"] == pytest.approx(mean, rel=1e-4)
    assert other["mse"] > same["mse"]


def test_the_table_has_geometric_means_and_the_highest():
    rows = [
        {"weights": "a", "data": "town", "ahead": n, "mse": mse, "shipped": 1.0}
        for n, mse in ((1, 0.5), (1, 2.0), (24, 1.25), (24, 1.25))
    ]
    _, one_step, further, highest = (
        part.strip() for part in weights_table(pd.DataFrame(rows)).splitlines()[-1].split("|")[1:-1]
    )
    assert float(one_step.split()[0]) == 0
    assert float(further.split()[0]) == 25
    assert float(highest) == 100
