"""FedDA's layout, written for its code and read from its files."""

import json
import logging

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from mentions import mentions

from data_prep.base.errors import InputError
from data_prep.cube import make_cube, open_cube
from data_prep.sets.fedda_h5 import prepare, write

NAN = np.nan
CELLS = np.array([2, 3, 6])
IDX = 1383260400 + 3600 * np.arange(4)
TIMES = pd.date_range("2013-10-31T23:00", periods=4, freq="h")
SMS = np.arange(12.0).reshape(4, 3)


def cube(values=None, cell=CELLS, **changes):
    arguments = {
        "title": "Three cells",
        "source": "made up",
        "license": "CC0-1.0",
        "units": "1",
        "time_zone": "Europe/Rome",
        "lon": np.array([9.1, 9.2, 9.3]),
        "lat": np.array([45.1, 45.2, 45.3]),
    }
    values = values or {"sms": SMS, "call": SMS + 100, "net": SMS / 3}
    return make_cube(values, TIMES, cell, **(arguments | changes))


def as_fedda_reads(path, service):
    """The reading part of `get_data` in FedDA's utils/misc.py."""
    f = h5py.File(path, "r")
    idx = f["idx"][()]
    cell = f["cell"][()]
    lng, lat = f["lng"][()], f["lat"][()]
    data = f[service][()][:, cell - 1]
    df = pd.DataFrame(data, index=pd.to_datetime(idx.ravel(), unit="s"), columns=cell)
    chosen = np.where(np.isin(list(cell), [2, 6]))
    return df, lng[chosen], lat[chosen]


@pytest.fixture
def layout(tmp_path):
    """Write data sets as a file in the layout; None leaves one out."""

    def write_layout(**changes):
        path = tmp_path / "milano.h5"
        data = {"idx": IDX, "cell": np.array([1, 2, 3]), "sms": SMS, "call": SMS, "net": SMS}
        data |= {"lng": np.array([9.1, 9.2, 9.3]), "lat": np.array([45.1, 45.2, 45.3])}
        with h5py.File(path, "w") as file:
            for key, values in (data | changes).items():
                if values is not None:
                    file[key] = values
        return path

    return write_layout


@pytest.mark.parametrize("service", ["sms", "call", "net"])
def test_fedda_reads_what_we_write(tmp_path, service):
    ds = cube()
    df, lng, lat = as_fedda_reads(write(ds, tmp_path / "trento.h5"), service)
    assert list(df.index) == list(TIMES)
    assert list(df.columns) == [2, 3, 6]
    np.testing.assert_array_equal(df, ds[service])
    assert lng.tolist() == [9.1, 9.3]
    assert lat.tolist() == [45.1, 45.3]


def test_round_trip(tmp_path):
    ds = cube()
    path = prepare(write(ds, tmp_path / "trento.h5"), tmp_path / "out.nc")
    back = open_cube(path).load()
    xr.testing.assert_equal(back, ds)
    assert back.attrs["time_zone"] == "Europe/Rome"
    assert back.attrs["clock"] == "utc"
    assert back["net"].attrs["zero_is_missing"] == 0
    assert list(json.loads(back.attrs["source_checksums"])) == ["trento.h5"]


def test_round_trip_over_several_slabs(tmp_path):
    rng = np.random.default_rng(1)
    values = rng.gamma(2, size=(400, 3))
    times = pd.date_range("2013-10-31T23:00", periods=400, freq="h")
    ds = cube().isel(time=[0]).reindex(time=times)
    ds["net"] = (("time", "cell"), values)
    path = write(ds[["net"]], tmp_path / "trento.h5")
    df, _, _ = as_fedda_reads(path, "net")
    np.testing.assert_array_equal(df, values)


def test_services_are_summed_from_their_parts(tmp_path):
    parts = {"sms_in": SMS, "sms_out": SMS * 2, "call_in": SMS, "call_out": SMS + 1}
    path = write(cube(parts | {"internet": SMS / 3}), tmp_path / "trento.h5")
    for service, expected in (("sms", SMS * 3), ("call", SMS * 2 + 1), ("net", SMS / 3)):
        np.testing.assert_array_equal(as_fedda_reads(path, service)[0], expected)


def test_what_the_cube_lacks_is_left_out_and_logged(tmp_path, caplog):
    ds = cube({"internet": SMS, "sms_in": SMS}, lon=None, lat=None)
    with caplog.at_level(logging.WARNING), h5py.File(write(ds, tmp_path / "trento.h5")) as file:
        assert set(file) == {"idx", "cell", "net"}
    assert "sms, call, lng, lat" in caplog.text


def test_other_steps_than_hours_are_logged(tmp_path, caplog):
    ds = cube().assign_coords(time=pd.date_range("2013-11-01", periods=4, freq="10min"))
    with caplog.at_level(logging.WARNING):
        write(ds, tmp_path / "trento.h5")
    assert mentions(caplog.text, "00:10:00", "FedDA", "24 steps")


@pytest.mark.parametrize(
    ("zero_is_missing", "gap"), [(False, NAN), (True, 0.0)], ids=["nan", "zero that means missing"]
)
def test_missing_values_are_refused_unless_filled(tmp_path, zero_is_missing, gap):
    values = SMS + 1
    values[2, 1] = gap
    ds = cube({"net": values}, zero_is_missing=zero_is_missing)
    path = tmp_path / "trento.h5"
    with pytest.raises(InputError, match=r"net .* 2013-11-01 01:00:00, cell 3"):
        write(ds, path)
    assert list(tmp_path.iterdir()) == []
    expected = SMS + 1
    expected[2, 1] = 0
    np.testing.assert_array_equal(
        as_fedda_reads(write(ds, path, fill_missing=0.0), "net")[0], expected
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": np.array(["a", "b", "c"])}, "cells .*'a'"),
        ({"cell": np.array([0, 1, 2])}, "int64 .* 0, .* from 1"),
        ({"clock": "local"}, "clock .*local.*UTC"),
        ({"values": {"speed": SMS}}, r"holds speed.*\(sms, call, net\)"),
    ],
)
def test_cubes_the_layout_cannot_hold(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        write(cube(**changes), tmp_path / "trento.h5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"idx": IDX.astype(float)},
        {"idx": IDX[:, None], "cell": np.array([[1], [2], [3]])},
        {"cell": np.array([1.0, 2.0, 3.0])},
        {"sms": SMS.astype(np.float32), "call": SMS.astype(int)},
    ],
)
def test_kinds_of_numbers_and_shapes_found_in_the_wild(layout, tmp_path, changes):
    ds = open_cube(prepare(layout(**changes), tmp_path / "out.nc"))
    assert list(ds.indexes["time"]) == list(TIMES)
    assert ds["cell"].values.tolist() == [1, 2, 3]
    np.testing.assert_array_equal(ds["call"], SMS)


@pytest.mark.parametrize(
    ("cells", "columns"),
    [([2, 4, 5], [1, 3, 4]), ([3, 1, 2], [2, 0, 1]), ([5060, 7, 9], None)],
    ids=["wider than cell", "column by id, not by position", "ids too large to be positions"],
)
def test_column_of_a_cell(layout, tmp_path, cells, columns):
    values = np.arange(20.0).reshape(4, 5)[:, : max(columns) + 1 if columns else 3]
    data = dict.fromkeys(("sms", "call", "net"), values)
    ds = open_cube(prepare(layout(cell=np.array(cells), **data), tmp_path / "out.nc"))
    np.testing.assert_array_equal(ds["net"], values[:, columns] if columns else values)


def test_services_and_positions_may_be_absent_and_nan_is_kept(layout, tmp_path):
    values = SMS.copy()
    values[0, 0] = NAN
    path = layout(sms=None, call=None, lng=None, lat=None, net=values)
    ds = open_cube(prepare(path, tmp_path / "out.nc", time_zone="Europe/Paris"))
    assert list(ds.data_vars) == ["net"]
    assert "lon" not in ds.coords
    assert np.isnan(ds["net"][0, 0])
    assert ds.attrs["time_zone"] == "Europe/Paris"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"idx": IDX * 1000}, "idx.* 1383260400000.*milliseconds"),
        ({"idx": IDX * 10**6}, "microseconds"),
        ({"idx": IDX * 10**9}, "nanoseconds"),
        ({"idx": np.arange(4)}, "idx .* 0, .*step"),
        ({"idx": IDX[::-1].copy()}, "idx .*order"),
        ({"idx": IDX[[0, 1, 1, 2]]}, "idx .*order"),
        ({"idx": IDX[[0, 1, 2, 2]] + [0, 0, 0, 7200]}, "1 of 5.*row"),
        ({"idx": np.array([b"2013"] * 4)}, r"idx .*\|S4 .*\(4,\)"),
        ({"idx": IDX[:3]}, r"/sms has shape \(4, 3\).* \(3, 3\)"),
        ({"cell": np.array([0, 1, 2])}, "cell holds 0, .* 1"),
        ({"cell": np.array([1.5, 2, 3])}, "cell holds 1.5"),
        ({"cell": np.array([1, 1, 2])}, "cell holds 1 .*once"),
        ({"net": SMS[:, :2]}, r"/net has shape \(4, 2\).* \(4, 3\).* 3"),
        ({"net": SMS.T}, r"/net has shape \(3, 4\).* \(4, 3\)"),
        ({"net": SMS[:, 0]}, r"/net has shape \(4,\).* \(4, 3\)"),
        ({"lng": np.zeros(2)}, r"lng.*\(2,\), lat \(3,\).* \(3,\)"),
        ({"lng": None}, "FedDA.*layout .*'lng'"),
        ({"cell": None}, "FedDA.*layout .*'cell'"),
        ({"sms": None, "call": None, "net": None}, "none of sms, call, net"),
        ({"net": SMS - 1}, "/net.* -1.0 .*step 0, cell 1"),
        ({"net": SMS + np.inf}, "/net.* inf .*step 0, cell 1"),
    ],
)
def test_damaged_files_are_refused(layout, tmp_path, changes, message):
    with pytest.raises(InputError, match=rf"milano\.h5: .*{message}"):
        prepare(layout(**changes), tmp_path / "out.nc")


def test_what_is_no_file_in_the_layout(tmp_path):
    with pytest.raises(InputError, match=r"none\.h5: .* \(found nothing\)"):
        prepare(tmp_path / "none.h5", tmp_path / "out.nc")
    (tmp_path / "text.h5").write_text("idx,cell\n")
    with pytest.raises(InputError, match=r"text\.h5: .* FedDA's layout"):
        prepare(tmp_path / "text.h5", tmp_path / "out.nc")
    with pytest.raises(InputError, match="zone 'Rome'"):
        prepare(tmp_path / "text.h5", tmp_path / "out.nc", time_zone="Rome")
