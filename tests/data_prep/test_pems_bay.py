"""PEMS-BAY: METR-LA's layout, tables of sensors without a header, an hour that the clocks skip."""

import pickle

import numpy as np
import pandas as pd
import pytest

from data_prep.base.errors import InputError
from data_prep.cube import open_cube
from data_prep.sets.dcrnn import MetrLA, PemsBay
from data_prep.sets.roads.sensors import read_adjacency

TIMES = pd.date_range("2017-01-01", periods=6, freq="5min")
IDS = ["400001", "400017", "400030"]
ROADS = [
    (a, b, 100 * (1 + i + 2 * j) * (a != b)) for i, a in enumerate(IDS) for j, b in enumerate(IDS)
]


@pytest.fixture
def folder(write_frame, tmp_path):
    write_frame(tmp_path / "pems-bay.h5", times=TIMES, ids=IDS)
    roads = pd.DataFrame(ROADS, columns=["from", "to", "cost"])
    roads.to_csv(tmp_path / "distances_bay_2017.csv", index=False, header=False)
    lines = [f"{i},37.{n},-121.{n}\n" for n, i in enumerate(reversed(IDS))]
    (tmp_path / "graph_sensor_locations_bay.csv").write_text("".join(lines))
    return tmp_path


def test_the_published_files_become_a_cube(folder, tmp_path):
    ds = open_cube(PemsBay.prepare(folder, tmp_path / "out.nc")).load()
    assert ds["cell"].values.tolist() == IDS
    assert list(ds.indexes["time"]) == list(TIMES)
    assert ds.attrs["title"] == "PEMS-BAY road speeds"
    assert ds.attrs["time_zone"] == "America/Los_Angeles"
    np.testing.assert_array_equal(ds["lat"], [37.2, 37.1, 37.0])
    np.testing.assert_array_equal(ds["lon"], [-121.2, -121.1, -121.0])
    with_header = tmp_path / "with.csv"
    pd.DataFrame(ROADS, columns=["from", "to", "cost"]).to_csv(with_header, index=False)
    expected = read_adjacency(with_header, np.array(IDS))
    np.testing.assert_array_equal(ds["adjacency"], expected)
    np.testing.assert_array_equal(np.diag(expected), 1)


def test_the_hour_that_the_clocks_skip_is_no_gap(write_frame, tmp_path):
    before = pd.date_range("2017-03-12T01:45", periods=3, freq="5min")
    times = before.append(before + pd.Timedelta("75min"))
    raw = write_frame(tmp_path / "pems-bay.h5", times=times, ids=IDS)
    ds = PemsBay.read(raw)
    assert ds.sizes["time"] == 18
    assert np.isnan(ds["speed"][3:15]).all()
    assert ds["speed"][15, 0] == 70


@pytest.mark.parametrize("start", ["2017-03-13T01:45", "2017-11-05T01:45", "2017-03-12T00:45"])
def test_any_other_missing_hour_is_a_gap(write_frame, tmp_path, start):
    times = TIMES[:3] - TIMES[0] + pd.Timestamp(start)
    raw = write_frame(tmp_path / "pems-bay.h5", times=times.append(times + pd.Timedelta("75min")))
    with pytest.raises(InputError, match=r"12 of 18 .*allow_gaps=True"):
        PemsBay.read(raw)


def test_of_a_gap_that_reaches_into_the_skipped_hour_the_rest_is_counted(write_frame, tmp_path):
    times = pd.date_range("2017-03-12T01:30", periods=24, freq="5min")[[0, 1, 2, 21, 22, 23]]
    with pytest.raises(InputError, match="6 of 24 "):
        PemsBay.read(write_frame(tmp_path / "pems-bay.h5", times=times))


def test_the_other_set_is_refused_by_its_year(folder):
    with pytest.raises(InputError, match=r"pems-bay\.h5: /df/axis1 .* year 2017, expected 2012"):
        MetrLA.read(folder / "pems-bay.h5")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("distances_bay_2017.csv", "400001,400017\n", "no column '3' .*'1', '2'"),
        ("distances_bay_2017.csv", "400001,400017,5\n", "no sensor 400017, 400030"),
        ("graph_sensor_locations_bay.csv", "400001,37.1,-121\n", "no sensor 400017, 400030"),
    ],
)
def test_tables_without_a_header_that_do_not_fit(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(InputError, match=rf"{name}: {message}"):
        PemsBay.read(folder)


def test_the_pickled_graph_is_never_read(folder):
    (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match=r"adj_mx_bay\.pkl: a pickle .* \.csv"):
        PemsBay.read(folder, adjacency=folder / "adj_mx_bay.pkl")


def test_records_may_have_no_checksum_but_the_authors_tables_have():
    records, *tables = PemsBay.SOURCES
    assert records.checksum is None
    assert all(table.checksum.startswith("sha256:") for table in tables)
