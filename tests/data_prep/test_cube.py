"""The cube: what it holds, what it refuses and that it survives the disk."""

import json
import pickle

import h5py
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.base.errors import InputError
from data_prep.cube import (
    check_cube,
    local_time,
    make_cube,
    observed,
    open_cube,
    step_of,
    write_chunks,
    write_cube,
)
from data_prep.netcdf import open_netcdf
from data_prep.readers.hdf5 import _size_of_attributes

TIMES = pd.date_range("2013-10-31T23:00", periods=3, freq="h")


def small_cube(**changes):
    arguments = {
        "values": {"net": np.array([[1.0, 0.0], [np.nan, 4.0], [5.0, 6.0]])},
        "time": TIMES,
        "cell": np.array([7, 5060]),
        "title": "Two cells",
        "source": "doi:10.0/none",
        "license": "CC0-1.0",
        "units": "1",
        "time_zone": "Europe/Rome",
        "lon": np.array([9.1, 9.2]),
        "lat": np.array([45.4, 45.5]),
    }
    return make_cube(**(arguments | changes))


def test_says_what_a_reader_must_know():
    ds = small_cube(long_names={"net": "Internet activity"}, checksums={"b": "md5:2", "a": "md5:1"})
    assert ds["net"].dims == ("time", "cell")
    assert ds["net"].attrs == {
        "units": "1",
        "long_name": "Internet activity",
        "zero_is_missing": 0,
    }
    assert ds.attrs["Conventions"].startswith("CF-")
    assert ds.attrs["time_zone"] == "Europe/Rome"
    assert ds.attrs["clock"] == "utc"
    assert json.loads(ds.attrs["source_checksums"]) == {"a": "md5:1", "b": "md5:2"}
    assert ds["lon"].attrs["units"] == "degrees_east"
    assert ds["lat"].attrs["units"] == "degrees_north"


def test_files_are_read_as_xarray_reads_them(tmp_path):
    texts = {"cell": np.array(["a b", "Römer"]), "time_zone": "Europe/Rome"}
    more = {"name": ("cell", ["", "x"]), "road": (("cell", "cell_to"), np.eye(2))}
    path = write_cube(
        small_cube(**texts).assign(more).assign_attrs(n=3, one="1"), tmp_path / "a.nc"
    )
    with xr.open_dataset(path, engine="h5netcdf") as opened:
        expected = opened.load()
    with open_netcdf(path) as opened:
        found = opened.load()
    xr.testing.assert_identical(found, expected)
    assert found.encoding["source"] == expected.encoding["source"]
    for name, v in expected.variables.items():
        assert found[name].dtype == v.dtype
        assert found[name].encoding.get("units") == v.encoding.get("units")


def test_open_cubes_go_to_other_processes_and_close(tmp_path):
    path = write_cube(small_cube(), tmp_path / "cube.nc")
    with open_cube(path) as ds:
        sent = pickle.loads(pickle.dumps(ds))
        xr.testing.assert_identical(sent.load(), small_cube())
        del sent
    with h5py.File(path, "r+") as file:  # Refused while it is open elsewhere in this process.
        file["net"][0, 0] = 7
    assert open_cube(path)["net"][0, 0] == 7


@pytest.mark.parametrize("cell", [np.array([7, 5060]), np.array(["773869", "007"])])
def test_round_trip(tmp_path, cell):
    ds = small_cube(cell=cell)
    path = write_cube(ds, tmp_path / "new" / "cube.nc")
    xr.testing.assert_identical(open_cube(path).load(), ds)


def test_file_is_read_by_plain_hdf5_and_plain_xarray(tmp_path):
    path = write_cube(small_cube(), tmp_path / "cube.nc")
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["net"][:], [[1, 0], [np.nan, 4], [5, 6]])
        assert file["net"].compression == "gzip"
        assert file["time"].attrs["units"].decode() == "hours since 2013-10-31 23:00:00"
    with xr.open_dataset(path) as ds:
        assert list(ds.indexes["time"]) == list(TIMES)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": TIMES[[0, 1, 1]]}, "not even: .*00:00:00.*00:00:00"),
        ({"time": TIMES[[0, 0, 0]]}, "time.*increase"),
        ({"time": TIMES[::-1]}, "time.*increase"),
        (
            {"time": pd.to_datetime(["2013-11-01 00:00", "2013-11-01 01:00", "2013-11-01 03:00"])},
            "01:00:00.* 2013-11-01 03:00:00.* 0 days 02:00:00.* 0 days 01:00",
        ),
        ({"time": pd.DatetimeIndex([TIMES[0], pd.NaT, TIMES[2]])}, "'time'.*entries"),
        ({"cell": np.array([7, 7])}, "cell 7 occurs"),
        ({"time": np.arange(3)}, "int64, expected dates"),
        (
            {"time": TIMES.tz_localize("Asia/Tokyo"), "clock": "local"},
            "zone.*clock",
        ),
        ({"lon": np.array([9.1, 9.2]), "lat": None}, "one of lon.*lat"),
        ({"clock": "gmt"}, "'gmt'.*local, utc"),
        ({"values": {}}, "no variable"),
        (
            {"values": {"net": np.zeros((0, 2))}, "time": TIMES[:0]},
            "dimension 'time'.*empty",
        ),
    ],
)
def test_refuses_what_is_no_cube(changes, message):
    with pytest.raises(InputError, match=message):
        small_cube(**changes)


@pytest.mark.parametrize(
    ("ds", "message"),
    [
        (xr.Dataset({"net": (("t", "cell"), np.zeros((2, 2)))}), "no dimension 'time'"),
        (small_cube().drop_vars("cell"), "dimension 'cell'.*coordinate"),
        (small_cube().assign_coords(time=[0, 1, 2]), "'time' holds int64"),
    ],
)
def test_check_names_the_origin(ds, message):
    with pytest.raises(InputError, match=f"^some.nc: .*{message}"):
        check_cube(ds, "some.nc")


@pytest.mark.filterwarnings("error")
def test_open_says_what_it_found_and_nothing_else(tmp_path):
    with pytest.raises(InputError, match=r"none\.nc: .* \(found nothing\)"):
        open_cube(tmp_path / "none.nc")
    with pytest.raises(InputError, match=r"found a folder"):
        open_cube(tmp_path)
    (tmp_path / "text.nc").write_text("time,cell,value\n")
    with pytest.raises(InputError, match=r"text\.nc: .* as netCDF4"):
        open_cube(tmp_path / "text.nc")
    with h5py.File(tmp_path / "other.nc", "w") as file:
        file["idx"] = [1, 2]
    with pytest.raises(InputError, match=r"other\.nc: .* 'time' .* coordinate"):
        open_cube(tmp_path / "other.nc")


def test_open_tells_a_table_from_a_cube(tmp_path):
    (tmp_path / "my.csv").write_text("time,a\n2024-01-01,1\n")
    with pytest.raises(InputError, match="`stforecast prepare table`"):
        open_cube(tmp_path / "my.csv")


def test_open_refuses_a_truncated_file(tmp_path):
    path = write_cube(small_cube(), tmp_path / "cube.nc")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cube\.nc: .* as netCDF4"):
        open_cube(path)


def test_write_checks_before_it_writes(tmp_path):
    with pytest.raises(InputError, match=r"bad\.nc: .* 'time'"):
        write_cube(xr.Dataset(), tmp_path / "bad.nc")
    assert list(tmp_path.iterdir()) == []


def test_step_of():
    assert step_of(small_cube()) == pd.Timedelta("1h")
    with pytest.raises(InputError, match="at least"):
        step_of(small_cube().isel(time=[0]))


def test_observed_masks_zeros_only_where_they_mean_missing():
    nan = np.nan
    kept = observed(small_cube(), "net")
    np.testing.assert_array_equal(kept, [[1, 0], [nan, 4], [5, 6]])
    masked = observed(small_cube(zero_is_missing=True), "net")
    np.testing.assert_array_equal(masked, [[1, nan], [nan, 4], [5, 6]])
    assert masked.attrs["units"] == "1"


def test_observed_keeps_the_order_of_dimensions_and_lists_the_variables():
    ds = small_cube().transpose("cell", "time")
    assert observed(ds, "net").dims == ("time", "cell")
    ds["adjacency"] = (("cell", "other"), np.eye(2))
    with pytest.raises(InputError, match=r"'adjacency'; .*: net$"):
        observed(ds, "adjacency")


def test_local_time_follows_the_clock():
    rome = local_time(small_cube())
    assert rome[0] == pd.Timestamp("2013-11-01T00:00")
    assert rome.tz is None
    wall = local_time(small_cube(clock="local"))
    assert wall[0] == pd.Timestamp("2013-10-31T23:00")


def test_numbers_have_checksums_that_any_tool_checks(tmp_path):
    """In HDF5's own format; other tools that edit a cube renew them."""
    path = write_cube(small_cube(), tmp_path / "cube.nc")
    with h5py.File(path) as file:
        assert all(v.fletcher32 for v in file.values() if v.dtype.kind in "iuf")
    with h5py.File(path, "a") as file:
        file["net"][1, 1] = 7
    assert open_cube(path)["net"][1, 1] == 7


def test_a_cube_of_another_tool_needs_none(tmp_path, caplog):
    small_cube().to_netcdf(tmp_path / "cube.nc", engine="h5netcdf")
    xr.testing.assert_identical(open_cube(tmp_path / "cube.nc").load(), small_cube())
    assert not caplog.records


@pytest.mark.parametrize("value", [np.inf, 1e17, -1e17])
def test_an_absurd_value_is_refused(tmp_path, value):
    ds = small_cube()
    ds["net"][1, 1] = value
    with pytest.raises(InputError, match=r"net .* 2013-11-01 00:00:00, cell .* 9\.0072e.15"):
        write_cube(ds, tmp_path / "cube.nc")


def test_a_changed_value_of_a_cube_written_in_chunks_is_told(tmp_path):
    chunks = [(0, {"net": np.full((3, 2), 1234.5678)})]
    path = write_chunks(small_cube(), chunks, tmp_path / "cube.nc", steps_per_chunk=3)
    with h5py.File(path) as file:
        at = file["net"].id.get_chunk_info(0).byte_offset
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(OSError, match="failure"):
        open_cube(path).load()


def test_a_variable_whose_steps_have_no_axis_is_refused_by_its_size(tmp_path):
    path = write_cube(small_cube(), tmp_path / "cube.nc")
    with h5py.File(path, "a") as file:
        del file["net"]
        options = {"chunks": (10**6, 2), "compression": "gzip"}
        file.create_dataset("net", (10**9, 2), "f4", **options)
    with pytest.raises(InputError, match=r"net .* 64 GB"):
        open_cube(path)


def test_names_of_dimensions_are_counted_by_their_length(tmp_path):
    """A cube of a hundred services was refused: each list was taken to be as long as the file."""
    write_cube(small_cube(), tmp_path / "o.nc")
    with h5py.File(tmp_path / "o.nc") as file:
        size = _size_of_attributes(file["net"], tmp_path / "o.nc")
    assert 0 < size < (tmp_path / "o.nc").stat().st_size
