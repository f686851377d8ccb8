"""A table of sites describes the cells of a table of traffic."""

import logging
import sys

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.sets.table import prepare, read

TIMES = pd.date_range("2024-05-01", periods=30, freq="h")


@pytest.fixture
def traffic(tmp_path):
    rows = [(t, f"S{i}_1", f"S{i}", i + 1.0) for t in TIMES for i in range(3)]
    path = tmp_path / "traffic.csv"
    pd.DataFrame(rows, columns=["time", "Cell Name", "Site Name", "v"]).to_csv(path, index=False)
    return path


def sites(tmp_path, text):
    (tmp_path / "sites.csv").write_text(text)
    return str(tmp_path / "sites.csv")


def test_columns_of_cells_become_coordinates(traffic, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    rows = ["S1_1;9,25;45,5;Zulu;150,5", "S0_1;9,125;45,25;Yankee;100", "S9_1;9;45;Zulu;1"]
    file = sites(tmp_path, "\n".join(["Cell;Longitude;Latitude;Vendor;Mbit/s", *rows, ""]))
    ds = open_cube(prepare(traffic, tmp_path / "o.nc", sites=file))
    np.testing.assert_array_equal(ds["lon"], [9.125, 9.25, np.nan])
    np.testing.assert_array_equal(ds["lat"], [45.25, 45.5, np.nan])
    assert ds["Vendor"].values.tolist() == ["Yankee", "Zulu", ""]
    np.testing.assert_array_equal(ds["Mbit per s"], [100, 150.5, np.nan])
    assert "sites.csv: no row for 1 cell: S2_1" in caplog.text


def test_rows_may_be_of_sites_with_several_sectors(traffic, tmp_path, caplog):
    file = sites(tmp_path, "site,sector,vendor\nS0,1,A\nS0,2,A\nS1,1,B\nS2,1,A\n")
    ds = read(traffic, sites=file)
    assert ds["vendor"].values.tolist() == ["A", "B", "A"]
    assert "'sector' differ between rows of one site and are left out" in caplog.text


def test_projected_positions_need_their_system(traffic, tmp_path, monkeypatch):
    file = sites(tmp_path, "cell,X,Y\nS0_1,500000,5000000\nS1_1,500100,5000100\nS2_1,500200,1\n")
    with pytest.raises(InputError, match=r"X and Y are no degrees; .* crs='EPSG:25832'"):
        read(traffic, sites=file)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pyproj", None)
        with pytest.raises(InputError, match=r"crs needs pyproj; pip install 'stforecast\[maps\]'"):
            read(traffic, sites=file, crs="EPSG:25832")
    pytest.importorskip("pyproj")
    ds = read(traffic, sites=file, crs="EPSG:25832")
    assert ds["lon"].values[0] == pytest.approx(9.0)  # the central meridian of zone 32
    with pytest.raises(InputError, match="unknown system 'EPSG:0'"):
        read(traffic, sites=file, crs="EPSG:0")


def test_a_table_of_other_cells_is_refused(traffic, tmp_path):
    with pytest.raises(InputError, match=r"no column has ids of the cells, such as S0_1, S1_1"):
        read(traffic, sites=sites(tmp_path, "cell,vendor\nT0,A\n"))
