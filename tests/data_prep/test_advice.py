"""What the reader advises is right when it is obeyed, and what it does not know it asks."""

import re

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.sets.table import read

HOURS = pd.date_range("2024-05-10", periods=72, freq="h")


def save(path, columns):
    path.parent.mkdir(exist_ok=True)
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def question(path, **options):
    """Return what the reader asks, with options as one types them."""
    with pytest.raises(InputError) as refused:
        read(path, **options)
    return refused.value.typed


def test_ids_that_differ_at_each_time_are_cells(tmp_path):
    """As detectors of a city, of which many rows are missing."""
    rng = np.random.default_rng(1)
    rows = [(t, 100101010000167 + 101 * i, 10 * i + t.hour, 60) for i in range(30) for t in HOURS]
    rows = [row for row in rows if rng.random() < 0.6]
    table = pd.DataFrame(rows, columns=["time", "det_15", "q_kfz", "v_kfz"])
    ds = read(save(tmp_path / "a.csv", table), allow_gaps=True)
    assert ds.sizes["cell"] == 30
    assert np.nanmax(ds["q_kfz"].values[0]) % 10 == 0
    table["det_15"] = rng.integers(0, 9, len(table))
    asked = question(save(tmp_path / "a.csv", table), layout="services")
    assert "--duplicates" not in asked
    assert "pass --cell det_15" in asked


@pytest.mark.parametrize("mark", ["", "NULL", "-", "."])
def test_the_first_record_may_have_no_value(tmp_path, mark):
    table = pd.DataFrame({"time": HOURS.repeat(2), "cell": ["Milano", "Lodi"] * 72, "v": "7"})
    table.loc[0, "v"] = mark
    ds = read(save(tmp_path / "a.csv", table))
    assert ds.sizes == {"time": 72, "cell": 2}
    assert int(ds["v"].isnull().sum()) == 1


@pytest.mark.parametrize("freq", ["MS", "ME", "YS"])
def test_months_and_years_are_refused_for_good(tmp_path, freq):
    times = pd.date_range("2010-01-31", periods=20, freq=freq)
    asked = question(save(tmp_path / "a.csv", {"time": times, "cell": "a", "v": range(20)}))
    assert "give records of days or weeks" in asked
    assert "--" not in asked


def test_a_step_has_a_unit(tmp_path):
    path = save(tmp_path / "a.csv", {"a": [1.5, 2, 3]})
    assert "step is '15'" in question(path, start="2024-05-10", step="15")
