"""Flags of doubtful values make them missing, and long names of objects are cut."""

import logging

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.sets.table import read

OBJECT = "{s}/Cell:eNodeB Function Name={s}, Local Cell ID=1, Cell Name={c}, eNodeB ID=5"


def test_huawei_marks_values_as_unreliable_and_has_long_names(tmp_path, caplog):
    rows = ["Result Time,Granularity Period,Object Name,Reliability,1526726657,1526728299",
            ",(min),,,(kbit),(None)"]  # fmt: skip
    for time in pd.date_range("2024-03-01", periods=24, freq="h"):
        for cell in ("A_1", "A_2"):
            name = OBJECT.format(s=cell[0], c=cell)
            flag = "Unreliable" if (cell, time.hour) == ("A_1", 5) else "Reliable"
            users = "NIL" if time.hour == 7 else 7
            rows.append(f'{time},60,"{name}",{flag},{time.hour},{users}')
    (tmp_path / "export.csv").write_text("\n".join(rows))
    (tmp_path / "names.csv").write_text("id,name\n1526726657,DL volume\n1526728299,Users\n")
    cube = read(tmp_path / "export.csv", names=str(tmp_path / "names.csv"))
    assert cube["cell"].to_numpy().tolist() == ["A_1", "A_2"]
    volume = cube["DL volume (kbit)"]
    assert volume.attrs["units"] == "kbit"
    truth = np.repeat(np.arange(24.0)[:, None], 2, axis=1)
    truth[5, 0] = np.nan
    np.testing.assert_array_equal(volume, truth)
    assert np.flatnonzero(np.isnan(cube["Users (None)"].to_numpy()[:, 1])).tolist() == [7]
    assert mentions(caplog.text, "2 values", "'Reliability'")


@pytest.mark.parametrize(
    ("flag", "right", "wrong", "n_missing"),
    [
        ("status", "OK", "ERROR", 2),
        ("v-status", "ok", "fault", 1),
        ("suspect", "false", "true", 2),
        ("valid", "1", "0", 2),
        ("status", "1", "0", 0),
        ("valid", "0.5", "0.7", 0),
    ],
)
def test_flags_spoil_values_of_their_row_or_column(tmp_path, caplog, flag, right, wrong, n_missing):
    caplog.set_level(logging.INFO)
    rows = [f"2024-03-01 0{h}:00,{c},{h},{h},{wrong if (h, c) == (3, 'a') else right}"
            for h in range(9) for c in "ab"]  # fmt: skip
    (tmp_path / "t.csv").write_text("\n".join([f"time,cell,v,w,{flag}", *rows]))
    cube = read(tmp_path / "t.csv", values="v,w")
    assert int(cube[["v", "w"]].isnull().to_array().sum()) == n_missing
    assert ("are spoilt" in caplog.text) == bool(n_missing)
