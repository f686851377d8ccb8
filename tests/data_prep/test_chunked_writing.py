import h5netcdf
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from data_prep.cube import make_cube, open_cube, write_chunks, write_cube

N_STEPS, N_CELLS = 6, 5


def cube(values, **kwargs):
    return make_cube(
        values,
        pd.date_range("2013-10-31 23:00", periods=N_STEPS, freq="1h"),
        np.arange(1, N_CELLS + 1),
        title="t",
        source="s",
        license="l",
        units="1",
        time_zone="Europe/Rome",
        long_names={"sms": "messages"},
        checksums={"a.txt": "sha256:0"},
        **kwargs,
    )


@pytest.fixture(params=[False, True], ids=["plain", "with places"])
def whole(request):
    rng = np.random.default_rng(0)
    values = {name: rng.random((N_STEPS, N_CELLS)) for name in ("sms", "net")}
    places = {"lon": np.arange(5.0), "lat": np.arange(5.0)} if request.param else {}
    return cube(values, **places)


def chunks_of(ds, size):
    for i in range(0, N_STEPS, size):
        yield i, {str(name): v.values[i : i + size] for name, v in ds.data_vars.items()}


def empty_like(ds):
    return xr.full_like(ds, np.nan)


@pytest.mark.quick(4)
@pytest.mark.parametrize("size", [1, 2, 4, 6])
def test_slabs_make_the_cube_that_is_written_at_once(whole, tmp_path, size):
    path = write_chunks(
        empty_like(whole), chunks_of(whole, size), tmp_path / "a.nc", steps_per_chunk=size
    )
    with open_cube(path) as written:
        xr.testing.assert_identical(written.load(), whole)


def test_the_file_has_the_attributes_that_xarray_writes(whole, tmp_path):
    ours = write_chunks(
        empty_like(whole), chunks_of(whole, 2), tmp_path / "a.nc", steps_per_chunk=2
    )
    theirs = write_cube(whole, tmp_path / "b.nc")
    with h5netcdf.File(ours) as a, h5netcdf.File(theirs) as b:
        assert dict(a.attrs) == dict(b.attrs)
        assert set(a.variables) == set(b.variables)
        for name in ("sms", "net", "cell"):
            np.testing.assert_equal(dict(a[name].attrs), dict(b[name].attrs))


def test_what_no_slab_covers_is_nan(whole, tmp_path):
    chunks = (chunk for chunk in chunks_of(whole, 2) if chunk[0] != 2)
    with open_cube(write_chunks(whole, chunks, tmp_path / "a.nc", steps_per_chunk=2)) as written:
        assert (
            np.isnan(written["sms"].values).all(axis=1).tolist()
            == [False] * 2 + [True] * 2 + [False] * 2
        )
        assert (written["sms"][4:] == whole["sms"][4:]).all()


@pytest.mark.slow
def test_values_of_the_description_are_not_looked_at(tmp_path):
    huge = np.broadcast_to(np.float64(np.nan), (10**6, 10**5))  # 800 GB if it were stored
    description = make_cube(
        {"sms": huge},
        pd.date_range("2013-11-01", periods=10**6, freq="1min"),
        np.arange(10**5),
        title="t",
        source="s",
        license="l",
        units="1",
    )
    chunks = [(999_999, {"sms": np.ones((1, 10**5))})]
    with open_cube(
        write_chunks(description, chunks, tmp_path / "a.nc", steps_per_chunk=1)
    ) as written:
        assert float(written["sms"][-1].sum()) == 1e5


def test_a_failure_leaves_nothing(whole, tmp_path):
    def broken():
        yield from list(chunks_of(whole, 2))[:2]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_chunks(whole, broken(), tmp_path / "a.nc", steps_per_chunk=2)
    assert list(tmp_path.iterdir()) == []
