"""Files that are written block by block."""

import numpy as np
import pytest
import xarray as xr

from data_prep.netcdf import dump_blocks, netcdf_target, open_netcdf


@pytest.mark.parametrize("overlapping", [(), ("y",)])
def test_windows_are_the_same_however_they_are_compressed(tmp_path, overlapping):
    readings = np.random.default_rng(1).normal(size=(4, 200))
    y = np.lib.stride_tricks.sliding_window_view(readings, 24, axis=1)
    dims = ("cell", "time", "horizon")
    coords = {name: np.arange(n) for name, n in zip(dims, y.shape, strict=True)}
    like = xr.Dataset({"y": (dims, y)}, coords)
    path = tmp_path / "f.nc"
    with netcdf_target(path) as target:
        dump_blocks(
            like, {"y": (2, *y.shape[1:])}, [(0, {"y": y[:3]}), (3, {"y": y[3:]})], target,
            packed=True, overlapping=overlapping,
        )  # fmt: skip
    with open_netcdf(path) as found:
        np.testing.assert_array_equal(found["y"], y)
    assert (path.stat().st_size < y.nbytes / 8) == bool(overlapping)
