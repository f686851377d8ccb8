"""Days delivered as they are and disturbed."""

import numpy as np
import pandas as pd
import pytest

from experiments.benchmarks.__main__ import main
from experiments.benchmarks.deliveries import FACTORS, GOOD, HOURS, deliveries_table

DAYS = 34


@pytest.fixture
def wide(tmp_path):
    """A wide table of hours of five cells, of which the last has many gaps."""
    hours = pd.date_range("2024-05-01", periods=24 * DAYS, freq="h", name="time")
    rng = np.random.default_rng(0)
    wave = 1 + 0.5 * np.sin(2 * np.pi * hours.hour.to_numpy() / 24)
    values = wave[:, None] * [100, 50, 400, 20, 80] * (1 + 0.05 * rng.normal(size=(24 * DAYS, 5)))
    table = pd.DataFrame(values.round(2), hours, list("abcde"))
    table.iloc[::5, 4] = np.nan
    table.to_csv(tmp_path / "wide.csv")
    return tmp_path / "wide.csv"


def test_right_days_are_believed_and_disturbed_ones_held_back(wide, tmp_path, capsys):
    words = ["deliveries", wide, "--method", "seasonal_day", "--train-days", 18, "--disturbed", 1]
    with pytest.raises(SystemExit) as ended:
        main([*map(str, [*words, "--name", "town", "--out", tmp_path / "out"])])
    assert not ended.value.code
    rows = pd.read_csv(tmp_path / "out" / "deliveries.csv")
    (settings,) = rows["settings"].unique()
    assert settings == "wide.csv --method seasonal_day --train-days 18 --disturbed 1"
    held = rows[rows["what"] == "held back"].set_index("kind")
    assert len(held) == 1 + len(FACTORS) + 3 + len(HOURS) + 3
    assert held.loc[GOOD, "found"] == 0
    assert held.loc[GOOD, "n"] > 3
    sure = held.drop([GOOD, "-1 h", "+1 h"])
    assert (sure["found"] == sure["n"]).all()
    counts = rows[(rows["what"] == "listed as anomalies") & (rows["kind"] == GOOD)]
    assert counts["n"].tolist() == [4 * 24 * held.loc[GOOD, "n"]]  # Without the cell of gaps.
    text = deliveries_table(rows)
    assert text in capsys.readouterr().out.replace("\r", "")
    right = next(line for line in text.splitlines() if GOOD in line).split("|")
    assert right[2].strip() == f"0 of {held.loc[GOOD, 'n']}"
