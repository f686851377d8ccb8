"""Long names of objects are cut."""

import numpy as np
import pandas as pd

from data_prep.sets.table import read

OBJECT = "{s}/Cell:eNodeB Function Name={s}, Local Cell ID=1, Cell Name={c}, eNodeB ID=5"


def test_cells_of_huawei_have_long_names(tmp_path):
    rows = ["Result Time,Granularity Period,Object Name,Reliability,1526726657,1526728299",
            ",(min),,,(kbit),(None)"]  # fmt: skip
    for time in pd.date_range("2024-03-01", periods=24, freq="h"):
        for cell in ("A_1", "A_2"):
            name = OBJECT.format(s=cell[0], c=cell)
            users = "NIL" if time.hour == 7 else 7
            rows.append(f'{time},60,"{name}",Reliable,{time.hour},{users}')
    (tmp_path / "export.csv").write_text("\n".join(rows))
    (tmp_path / "names.csv").write_text("id,name\n1526726657,DL volume\n1526728299,Users\n")
    cube = read(tmp_path / "export.csv", names=str(tmp_path / "names.csv"))
    assert cube["cell"].to_numpy().tolist() == ["A_1", "A_2"]
    volume = cube["DL volume (kbit)"]
    assert volume.attrs["units"] == "kbit"
    np.testing.assert_array_equal(volume, np.repeat(np.arange(24.0)[:, None], 2, axis=1))
    assert np.flatnonzero(np.isnan(cube["Users (None)"].to_numpy()[:, 1])).tolist() == [7]
