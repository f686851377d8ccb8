"""The benchmark `sleep`, and what docs/plan.md says of its results."""

import numpy as np
import pandas as pd

from experiments.benchmarks.frame import Results
from experiments.benchmarks.plans import sleep
from experiments.site.measured import RESULTS


def test_each_day_of_the_last_third_is_planned(tmp_path):
    hours = pd.date_range("2024-03-04", periods=24 * 18, freq="h", name="time")
    wave = 20 - 10 * np.cos(2 * np.pi * hours.hour.to_numpy() / 24)[:, None]
    noise = np.random.default_rng(0).normal(0, 1, (len(hours), 4))
    pd.DataFrame(wave + noise, hours, list("1234")).to_csv(tmp_path / "town-4.csv")
    results = Results(tmp_path / "sleep.csv")
    text = sleep(results, tmp_path / "town-4.csv", wanted="80", size=2, method="seasonal_day")
    assert [row["day"] for row in results.rows] == list(range(13, 19))
    assert all(0 < row["held"] <= row["promises"] for row in results.rows)
    assert all(row["chosen"] >= 0.8 * row["promises"] - 1e-9 for row in results.rows)
    assert "town, 4 cells" in text


def test_the_page_says_how_often_promises_held():
    rows = pd.read_csv(RESULTS / "sleep.csv").groupby(["data", "wanted"]).sum()
    held = 100 * rows["held"] / rows["promises"]
    above = held - rows.index.get_level_values("wanted")
    assert (above[above.index.get_level_values("wanted") < 95] > 0).all()
    assert (above.xs(95, level="wanted") < 0).all()
    assert ((rows["chosen"] > rows["said"]) & (rows["held"] > rows["said"])).all()
