"""Writing netCDF4 and HDF5 so that a full disk is an error like any other."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5netcdf
import xarray as xr
from xarray.backends import H5NetCDFStore


class _HeldBack(io.FileIO):
    """A file that keeps the first failure to itself.

    HDF5 cannot close a file whose disk is full: its objects stay open, and the process ends with a
    segmentation fault. So it is told that all is well, and whoever opened the file is told after.
    """

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.failure is None and done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as e:
            self.failure = e
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as e:
            self.failure = self.failure or e
            return self.tell() if size is None else size


@contextmanager
def hdf5_target(path: Path) -> Iterator[_HeldBack]:
    """A file for `h5py.File` to write to, in place of its path.

    Raises:
        OSError: at the end, if the file could not be written.
    """
    with _HeldBack(path, "w+") as file:
        try:
            yield file
        except Exception as e:
            if file.failure:  # what was not written cannot be read back, either
                raise file.failure from e
            raise
        if file.failure:
            raise file.failure


@contextmanager
def netcdf_target(path: Path) -> Iterator[h5netcdf.File]:
    """A new netCDF4 file.

    Raises:
        OSError: at the end, if the file could not be written.
    """
    with hdf5_target(path) as file, h5netcdf.File(file, "w") as target:
        yield target


def dump(ds: xr.Dataset, target: h5netcdf.File, encoding: Mapping[str, Any] | None = None) -> None:
    """Write a data set into an open file, as `Dataset.to_netcdf` would.

    Args:
        ds: what to write.
        target: from `netcdf_target`.
        encoding: of each variable, as `Dataset.to_netcdf` takes it.
    """
    ds.dump_to_store(H5NetCDFStore(target), encoding=encoding)
