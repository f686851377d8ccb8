"""Tables of runs, which spreadsheets open and which are read again."""

import gc
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from stforecast.federated.runs import run_folder
from stforecast.federated.runs.run_folder import read_csv, write_csv

FORMULAS = ["=cmd|' /C calc'!A0", "+cmd|x", "-2+3", "@SUM(1)", "\t=1", "\r=1", "a\r=1", "'=1"]
NAMES = [*FORMULAS, "-5", "+39", "-1e3", "a=b", "5-6", "'", ""]


@pytest.mark.attack("formula in a name")
def test_no_name_begins_as_a_formula_in_a_table_and_all_are_read_as_they_were(tmp_path, caplog):
    path = tmp_path / "t.csv"
    table = pd.DataFrame({"cell": NAMES, "=service": range(len(NAMES))})
    write_csv(table, path)
    raw = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert [name for name in [*raw["cell"], *raw] if name.startswith(tuple("=+-@\t\r"))] == [
        "-5", "+39", "-1e3"
    ]  # fmt: skip
    assert "remove it" in caplog.text
    again = read_csv(path, ["=service"], ["cell"])
    assert again["cell"].fillna("").tolist() == NAMES


def test_tables_without_such_names_are_written_as_they_are(tmp_path, caplog):
    table = pd.DataFrame({"cell": ["a", "-5"], "y": [-1.5, 2.0], "up": [True, False]})
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == table.to_csv(index=False)
    assert not caplog.records


def test_times_at_midnight_are_written_out_beside_other_times(tmp_path):
    """Pandas writes a column of times that are all midnight as dates."""
    days, hours = pd.to_datetime(["2024-01-01", None]), pd.to_datetime(["2024-01-01 01:00"] * 2)
    table = pd.DataFrame({"busy_hour": days, "peak_time": hours})
    for columns in (table, table[["busy_hour"]]):
        run_folder.write_table(columns, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().split() == ["busy_hour", "2024-01-01", '""']
    run_folder.write_table(table, tmp_path / "t.csv")
    first = (tmp_path / "t.csv").read_text().splitlines()[1]
    assert first == "2024-01-01 00:00:00,2024-01-01 01:00:00"


def test_a_workbook_on_a_full_disk_is_one_error(tmp_path, monkeypatch):
    @contextmanager
    def full(path):
        yield Path("/dev/full")

    stray = []
    monkeypatch.setattr(sys, "unraisablehook", stray.append)
    monkeypatch.setattr(run_folder, "atomic_path", full)
    with pytest.raises(OSError, match="No space"):
        run_folder.write_table(pd.DataFrame({"a": np.arange(9999)}), tmp_path / "a.xlsx")
    gc.collect()
    assert not stray


@pytest.mark.parametrize("freq", ["h", "D"])
def test_times_with_a_zone_are_written_as_pandas_writes_them(freq, tmp_path):
    times = pd.date_range("2024-03-30", periods=30, freq=freq, tz="Europe/Rome").repeat(2)
    table = pd.DataFrame({"time": times.insert(3, pd.NaT), "load": np.arange(61.0)})
    write_csv(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == table.to_csv(index=False)
