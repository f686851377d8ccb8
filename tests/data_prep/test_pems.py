"""PEMS03, 04, 07 and 08: small files in the published layout, the real ones being too large."""

import json
import logging
import pickle

import numpy as np
import pandas as pd
import pytest
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import observed, open_cube
from data_prep.download import Archive
from data_prep.sets.pems import PEMS03, PEMS04, PEMS07, PEMS08

SETS = {
    "PEMS03": (PEMS03, "2018-09-01", 1),
    "PEMS04": (PEMS04, "2018-01-01", 3),
    "PEMS07": (PEMS07, "2017-05-01", 1),
    "PEMS08": (PEMS08, "2016-07-01", 3),
}
NAN = np.nan


def values(channels=3, n_steps=6, n_sensors=3):
    return np.arange(n_steps * n_sensors * channels, dtype=float).reshape(-1, n_sensors, channels)


def write(folder, name, data, roads="from,to,cost\n0,1,100.5\n1,2,300\n"):
    np.savez_compressed(folder / f"{name}.npz", data=data)
    if roads is not None:
        (folder / f"{name}.csv").write_text(roads)
    return folder


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", SETS)
def test_channels_times_and_cells(tmp_path, name):
    module, start, channels = SETS[name]
    data = values(channels)
    write(tmp_path, name, data)
    ds = open_cube(module.prepare(tmp_path, tmp_path / "out.nc")).load()
    assert list(ds.indexes["time"]) == list(pd.date_range(start, periods=6, freq="5min"))
    assert ds["cell"].values.tolist() == ["0", "1", "2"]
    services = ["flow", "occupancy", "speed"][:channels]
    assert set(ds.data_vars) == {*services, "adjacency"}
    for channel, service in enumerate(services):
        np.testing.assert_array_equal(ds[service], data[:, :, channel])
        assert ds[service].attrs["zero_is_missing"] == 0
    assert ds["flow"].attrs["units"] == "count"
    if channels == 3:
        assert ds["speed"].attrs["units"] == "mile/hour"
    assert ds.attrs["clock"] == "local"
    assert list(json.loads(ds.attrs["source_checksums"])) == [f"{name}.csv", f"{name}.npz"]


def test_published_shapes_and_sources():
    assert PEMS03.shape == (91 * 288, 358, 1)
    assert PEMS04.shape == (59 * 288, 307, 3)
    assert PEMS07.shape == (98 * 288, 883, 1)
    assert PEMS08.shape == (62 * 288, 170, 3)
    archives = [source for module, _, _ in SETS.values() for source in module.SOURCES]
    assert all(isinstance(archive, Archive) for archive in archives)
    assert len({archive.name for archive in archives}) == 4  # they may share a folder


def test_another_shape_than_the_published_one_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        PEMS04.read(write(tmp_path, "PEMS04", values()))
    assert mentions(caplog.text, "(6, 3, 3),", "(16992, 307, 3)")


def test_roads_are_the_listed_ones_from_cell_to_cell(tmp_path):
    ds = PEMS04.read(write(tmp_path, "PEMS04", values()))
    np.testing.assert_array_equal(ds["adjacency"], [[1, 1, 0], [0, 1, 1], [0, 0, 1]])
    assert ds["adjacency"].dims == ("cell", "cell_to")
    write(tmp_path, "PEMS04", values(), "from,to,cost\n2,0,100.5\n2,0,90\n")
    np.testing.assert_array_equal(
        PEMS04.read(tmp_path)["adjacency"], [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
    )


def test_pems03_is_named_by_its_file_of_ids(tmp_path):
    roads = "from,to,distance\n317842,312564,1.433\n318711,317842,3.1\n"
    write(tmp_path, "PEMS03", values(1), roads)
    (tmp_path / "PEMS03.txt").write_text("312564\n317842\n318711\n")
    ds = PEMS03.read(tmp_path)
    assert ds["cell"].values.tolist() == ["312564", "317842", "318711"]
    np.testing.assert_array_equal(ds["adjacency"], [[1, 0, 0], [1, 1, 0], [0, 1, 1]])


@pytest.mark.parametrize(
    ("name", "others"),
    [("pems04.npz", ["distance.csv"]), ("PEMS04.npz", ["PEMS04.csv"]), ("any.npz", [])],
)
def test_names_of_the_mirror_and_of_the_authors(tmp_path, caplog, name, others):
    np.savez(tmp_path / name, data=values())
    for other in others:
        (tmp_path / other).write_text("from,to,cost\n0,1,1\n1,2,2\n")
    with caplog.at_level(logging.WARNING):
        ds = PEMS04.read(tmp_path)
    assert ("adjacency" in ds) == bool(others)
    assert (mentions(caplog.text, "PEMS04.csv", "roads")) != bool(others)


def test_zeros_are_data_unless_they_are_said_to_be_missing(tmp_path):
    write(tmp_path, "PEMS04", values())
    assert observed(PEMS04.read(tmp_path), "flow")[0, 0] == 0
    assert np.isnan(observed(PEMS04.read(tmp_path, zero_is_missing=True), "flow")[0, 0])


def test_longer_steps_are_means(tmp_path):
    data = values()
    data[1, 0, 0], data[2, 1, 0] = 0, NAN
    write(tmp_path, "PEMS04", data)
    longer = PEMS04.read(tmp_path, step="15min")
    assert list(longer.indexes["time"]) == list(
        pd.date_range("2018-01-01", periods=2, freq="15min")
    )
    np.testing.assert_allclose(longer["speed"][1], data[3:, :, 2].mean(axis=0))
    np.testing.assert_allclose(
        longer["flow"][0, :2], [data[:3, 0, 0].mean(), data[:2, 1, 0].mean()]
    )
    masked = PEMS04.read(tmp_path, step="15min", zero_is_missing=True)
    assert masked["flow"][0, 0] == data[2, 0, 0]  # the two others are 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": values()}, "'data' .*'data.npy'"),
        ({"data": values(1)}, r"\(6, 3, 1\).* flow, occupancy, speed"),
        ({"data": values()[..., 0]}, r"\(6, 3\).*\(time, sensor, channel\)"),
        ({"data": values()[:0]}, r"shape \(0, 3, 3\), expected"),
        ({"data": values().astype(str)}, r"<U32 .*\(6, 3, 3\)"),
        ({"data": values().astype(object)}, "objects.*pickled"),
        ({"data": -values()}, r"flow -3\.0 .*2018-01-01 00:00:00, sensor 1"),
        ({"data": values() + np.inf}, "flow inf .*2018-01-01 00:00:00, sensor 0"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "PEMS04.npz", **arrays)
    with pytest.raises(InputError, match=rf"PEMS04\.npz: .*{message}") as raised:
        PEMS04.read(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("roads", "message"),
    [
        ("0,1,1\n1,3,2\n", "line 3: sensor 3 .*0, 1, 2"),
        ("0,1,1\n1,2,-2\n", "line 3: cost -2"),
        ("0,1,1\n1,2,\n", "line 3: 'cost'.*empty"),
    ],
)
def test_distances_that_do_not_fit(tmp_path, roads, message):
    write(tmp_path, "PEMS04", values(), f"from,to,cost\n{roads}")
    with pytest.raises(InputError, match=message):
        PEMS04.read(tmp_path)


def test_ids_that_are_wanted_but_absent_or_wrong(tmp_path):
    write(tmp_path, "PEMS03", values(1), "from,to,distance\n317842,312564,1.4\n")
    with pytest.raises(InputError, match=r"sensor 317842 .* 0, 1, 2; .*ids"):
        PEMS03.read(tmp_path)
    for text, found in {
        "1\n2\n": "2 ids",
        "1\n2\n2\n": "'2' among them",
        "1\n2\n\x00\n": "among",
    }.items():
        (tmp_path / "PEMS03.txt").write_text(text)
        with pytest.raises(InputError, match=rf"PEMS03\.txt: .*{found}.* 3 sensors"):
            PEMS03.read(tmp_path)


def test_the_records_of_another_set_are_refused_by_their_name(tmp_path):
    write(tmp_path, "PEMS08", values())
    with pytest.raises(InputError, match=r"PEMS08\.npz: .*stforecast prepare pems08"):
        PEMS04.read(tmp_path)


def test_files_that_are_not_there_and_pickles(tmp_path):
    write(tmp_path, "PEMS04", values())
    with pytest.raises(InputError, match=r"none\.csv: .* PEMS04\.csv"):
        PEMS04.read(tmp_path, adjacency=tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"no file .* PEMS08\.npz"):
        PEMS08.read(tmp_path / "nowhere")
    (tmp_path / "adj_mx.pkl").write_bytes(pickle.dumps([1]))
    with pytest.raises(InputError, match=r"adj_mx\.pkl: a pickle .* \.csv"):
        PEMS04.read(tmp_path, adjacency=tmp_path / "adj_mx.pkl")
