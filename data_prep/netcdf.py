"""Write netCDF4 and HDF5 files, with an ordinary exception if the disk is full.

HDF5 checks checksums when it reads: Fletcher-32 of each chunk of numbers, and those that its format
1.10 has of all metadata. They cost 1 s per 700 MB written and .5 s per 700 MB read; hashing whole
variables instead would make each opening read all values. Only texts of variable length, such as
names of cells, have none.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
import xarray as xr
from xarray.backends import CachingFileManager, H5NetCDFStore


class _DeferredErrorFile(io.FileIO):
    """A file that stores its first write error instead of raising it.

    HDF5 cannot close a file on a full disk: its objects stay open and the process crashes with a
    segmentation fault, as it may if it reads back other bytes than it wrote. So writes seem to
    succeed, and later ones stay in memory; `hdf5_target` raises the error at the end.
    """

    failure: OSError | None = None
    _page = 4096

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._kept: dict[int, bytearray] = {}
        self._end = 0

    def write(self, data: Any) -> int:
        view, begin, done = memoryview(data).cast("B"), self.tell(), 0
        try:
            while self.failure is None and done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as e:
            self.failure = e
        if done < len(view):
            for kept, place in self._pages(begin + done, len(view) - done, make=True):
                kept[:] = view[done + place.start : done + place.stop]
            self._end = max(self._end, self.seek(begin + len(view)))
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view, begin = memoryview(buffer).cast("B"), self.tell()
        read = super().readinto(view) or 0
        if self._kept:
            view[read:] = bytes(len(view) - read)
            for kept, place in self._pages(begin, len(view), make=False):
                view[place] = kept
            read = self.seek(begin + len(view)) - begin
        return read

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        place = super().seek(offset, whence)
        if whence == io.SEEK_END and place < self._end + offset:
            place = super().seek(self._end + offset)
        return place

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as e:
            self.failure = self.failure or e
            return self.tell() if size is None else size

    def _pages(self, begin: int, length: int, *, make: bool) -> Iterator[tuple[memoryview, slice]]:
        """Yield what is kept of some bytes, and its place among them; `make` keeps all of them."""
        for number in range(begin // self._page, -(-(begin + length) // self._page)):
            first = number * self._page
            if make and number not in self._kept:
                self._kept[number] = bytearray(self._page)
                super().seek(first)
                super().readinto(self._kept[number])
            if number in self._kept:
                start, stop = max(begin, first), min(begin + length, first + self._page)
                kept = memoryview(self._kept[number])[start - first : stop - first]
                yield kept, slice(start - begin, stop - begin)


@contextmanager
def hdf5_target(path: Path) -> Iterator[_DeferredErrorFile]:
    """Yield a file object for `h5py.File` to write to; an `OSError` is raised at the end."""
    with _DeferredErrorFile(path, "w+") as file:
        try:
            yield file
        except Exception as e:
            if file.failure:  # the likely cause: HDF5 read back bytes that were not written
                raise file.failure from e
            raise
        if file.failure:
            raise file.failure


class _OpenItems(h5py.File):  # type: ignore[misc]  # h5py has no types
    """A file whose items stay open: h5netcdf looks each up some dozen times, which takes long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._items: dict[str, Any] = {}
        super().__init__(*args, **kwargs)

    def __getitem__(self, name: Any) -> Any:
        key = name.strip("/") if isinstance(name, str) else "/"
        if not key:
            return self
        if "/" in key:  # In a group, which would not tell when it is deleted, or a reference.
            return super().__getitem__(name)
        if key not in self._items:
            self._items[key] = super().__getitem__(key)
        return self._items[key]

    def __delitem__(self, name: str) -> None:
        self._items.pop(name.strip("/"), None)
        super().__delitem__(name)


class _NewFile(h5netcdf.File):  # type: ignore[misc]  # h5netcdf has no types
    """A file that is written, with the file object below it."""

    def __init__(self, items: _OpenItems, below: _DeferredErrorFile) -> None:
        super().__init__(items, "w")
        self.below = below


@contextmanager
def netcdf_target(path: Path) -> Iterator[h5netcdf.File]:
    """Yield a new netCDF4 file, open for writing; an `OSError` is raised at the end."""
    settings: dict[str, Any] = {"libver": ("v110", "v110"), "track_order": True}
    with (
        hdf5_target(path) as file,
        _OpenItems(file, "w", **settings) as items,
        _NewFile(items, file) as target,
    ):
        yield target
        items.visititems(_fix_length_of_texts)
        _fix_length_of_texts("/", items)


class _OpenFile(h5netcdf.File):  # type: ignore[misc]  # h5netcdf has no types
    """A file that is read, whose items stay open."""

    def __init__(self, path: str, mode: str) -> None:
        self._open_items = _OpenItems(path, mode)
        super().__init__(self._open_items, mode, decode_vlen_strings=True, phony_dims="access")

    def close(self) -> None:
        super().close()
        self._open_items.close()


def open_netcdf(path: Path, **options: Any) -> xr.Dataset:
    """Open a netCDF4 file lazily, as `xarray.open_dataset` does with the same options."""
    manager = CachingFileManager(_OpenFile, str(path.absolute()), mode="r")
    try:
        ds = xr.open_dataset(H5NetCDFStore(manager), **options)
    except BaseException:
        manager.close()
        raise
    ds.encoding["source"] = str(path.absolute())
    return ds


def _fix_length_of_texts(name: str, item: h5py.Group | h5py.Dataset) -> None:
    """Store attributes where their checksum is; a text of variable length has none."""
    for key in item.attrs:
        kind = item.attrs.get_id(key).get_type()
        if not isinstance(kind, h5py.h5t.TypeStringID) or not kind.is_variable_str():
            continue
        if isinstance(value := item.attrs[key], str) and value:
            text = value.encode()
            item.attrs.create(key, text, dtype=h5py.string_dtype("utf-8", len(text)))


def dump(ds: xr.Dataset, target: h5netcdf.File, encoding: Mapping[str, Any] | None = None) -> None:
    """Write a data set into an open file as `Dataset.to_netcdf` does, with checksums."""
    kept = ("units", "calendar", "dtype")  # These stay as a coordinate's file had them.
    checked = {
        str(name): {
            **(encoding or {}).get(str(name), {k: v.encoding[k] for k in kept if k in v.encoding}),
            "fletcher32": True,
        }
        for name, v in ds.variables.items()
        if v.size and v.ndim and v.dtype.kind in "iufbM"
    }
    with warnings.catch_warnings():
        # A cube's coordinates of cells are known by their dimension, whatever their names.
        warnings.filterwarnings("ignore", ".*has a space in its name", xr.SerializationWarning)
        # Axes first, or h5netcdf would write each twice.
        ordered = xr.Dataset(coords=ds.coords, attrs=ds.attrs).assign(ds.data_vars)
        ordered.dump_to_store(H5NetCDFStore(target), encoding={**(encoding or {}), **checked})


def dump_blocks(
    like: xr.Dataset,
    chunks: Mapping[str, tuple[int, ...]],
    blocks: Iterable[tuple[int, Mapping[str, np.ndarray]]],
    target: h5netcdf.File,
    *,
    packed: bool = False,
    overlapping: Collection[str] = (),
) -> None:
    """Write a data set whose largest variables come in blocks, with checksums.

    Args:
        like: the data set; of the largest variables, the values are ignored.
        chunks: shape of the chunks in the file of each of the largest, by name.
        blocks: pairs of the first place on the first axis and the values of the largest from there
            on; what no block covers becomes NaN.
        target: an open file.
        packed: whether to compress the largest, by what every reader of the format has.
        overlapping: names of windows that repeat each other's values: their bytes are not shuffled,
            which takes a third of the room.
    """
    dump(like.drop_vars([*chunks]), target)
    target.attrs.pop("coordinates", None)  # xarray names them here when no variable can
    for name, shape in chunks.items():  # Create them empty, as xarray writes them.
        plain = name in overlapping
        level = {"compression_opts": 4 if plain else 1, "shuffle": not plain}
        packing = {"compression": "gzip", **level} if packed else {}
        variable = target.create_variable(
            name, like[name].dims, "f8", chunks=shape, fillvalue=np.nan, fletcher32=True, **packing
        )
        variable.attrs.update(like[name].attrs)
        if auxiliary := sorted(str(c) for c in like[name].coords if c not in like[name].dims):
            variable.attrs["coordinates"] = " ".join(auxiliary)
    for first, values in blocks:
        for name in chunks:
            target[name][first : first + len(values[name])] = values[name]
        if isinstance(target, _NewFile) and target.below.failure:
            raise target.below.failure  # What follows would stay in memory.
