from types import SimpleNamespace

import pandas as pd
import pytest

from experiments.benchmarks.frame import Results
from experiments.benchmarks.mixed import mixed
from stforecast.forecasting.results import ForecastRun


def run_of(method, seed, *errors):
    rows = [("all", sum(errors) / len(errors)), *zip("abcd", errors, strict=True)]
    table = pd.DataFrame(rows, columns=["client", "value"])
    facts = {"metric": "mse", "split": "test", "horizon": "all", "selection": "best"}
    settings = {"method": method, "seed": seed, "models": "mlp, linear", "select": "best"}
    return SimpleNamespace(about={"settings": settings}, metrics=lambda: table.assign(**facts))


def test_errors_are_compared_by_the_model_of_the_client(monkeypatch, tmp_path):
    runs = [
        run_of("solo", 1, 1.0, 2.0, 3.0, 4.0), run_of("fedproto", 1, 1.0, 3.0, 1.0, 3.0),
        run_of("solo", 2, 1.0, 2.0, 3.0, 2.0), run_of("fedproto", 2, 1.0, 4.0, 1.0, 4.0),
    ]  # fmt: skip
    monkeypatch.setattr(ForecastRun, "find", lambda folders: runs)
    results = Results(tmp_path / "mixed.csv")
    text = mixed(results, tmp_path)
    of = {(row["model"], row["method"]): row for row in results.rows}
    assert of["mlp", "fedproto"]["mse"] == 1.0
    assert of["mlp", "fedproto"]["above"] == pytest.approx(-50)
    assert of["linear", "fedproto"]["above"] == pytest.approx(100 * (2**0.5 - 1))
    row = of["linear", "fedproto"]
    assert row["above_low"] < 100 * (2**0.5 - 1) < row["above_high"]
    assert "above" not in of["linear", "solo"]
    assert "| `fedproto` | -50.0 [" in text
