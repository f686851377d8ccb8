"""HDF5 files of others: nothing is read from elsewhere, unpickled, or larger than it should be."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from data_prep.errors import InputError, reading
from data_prep.limits import ALLOWANCE, check_expansion, most_from

NUMBER = 8
"""Bytes of a value after it was read: numbers become float64."""

ODD_CHUNK = 1.25
"""Times its size that a sound chunk takes at most in the file, where packing it gained nothing."""


@contextmanager
def open_hdf5(path: Path, how: str, remedy: str) -> Iterator[h5py.File]:
    """Open a file for reading that holds all of its data itself.

    Args:
        path: the file.
        how: how it is read, such as `"as netCDF4"`, for errors.
        remedy: what to do if it cannot be.

    Raises:
        InputError: if it cannot be read, here or within the context, refers to other files, or
            holds chunks or attributes that unpack to far more than its size.
    """
    with reading(path, how, remedy), h5py.File(path) as file:
        room = most_from(path)

        def check(name: str, item: h5py.Group | h5py.Dataset) -> None:
            nonlocal room
            _refuse_elsewhere(name, item)
            room -= _size_of_attributes(item, path)
            if room < 0:
                raise InputError(
                    f"{path}: its attributes unpack to far more than its size; {remedy}"
                )
            if isinstance(item, h5py.Dataset) and item.chunks:
                _check_chunks(item, path)

        file.visititems(check)
        check("/", file)
        yield file


def _refuse_elsewhere(name: str, item: h5py.Group | h5py.Dataset) -> None:
    """Refuse links to other files, and data sets whose values lie in them."""
    if isinstance(item, h5py.Dataset):
        outside = item.external or item.is_virtual
    else:
        links = (item.get(key, getlink=True) for key in item)
        outside = any(isinstance(link, h5py.ExternalLink) for link in links)
    if outside:
        raise InputError(
            f"{item.file.filename}: {item.name} refers to another file, expected all data in this "
            "one; save it again with its data"
        )


def _size_of_attributes(item: h5py.Group | h5py.Dataset, path: Path) -> int:
    """Bytes of all attributes, read one by one: many texts may be one and the same in the file."""
    size = 0
    for name in item.attrs:
        about = item.attrs.get_id(name)
        many = math.prod(about.shape or ())
        if about.dtype.kind != "O":
            size += many * about.dtype.itemsize
        elif many > 1:  # at worst each is as long as the whole file
            size += many * path.stat().st_size
        elif isinstance(text := item.attrs[name], str | bytes | np.ndarray):
            size += len(text) * NUMBER
    return size


def _check_chunks(item: h5py.Dataset, path: Path) -> None:
    """Refuse chunks that take much memory whichever value is read: each is unpacked as a whole."""
    size = math.prod(item.chunks) * item.dtype.itemsize
    check_expansion(size, path, f"{path}: a chunk of {item.name}")
    filters = item.id.get_create_plist()
    codes = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
    largest = 0

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    item.id.chunk_iter(note)
    if len(set(codes)) < len(codes) or largest > ODD_CHUNK * size + ALLOWANCE // 2**10:
        raise InputError(
            f"{path}: a chunk of {item.name} is packed twice, or unpacks to more than its "
            f"{size} bytes; save the file again"
        )


def check_array(item: h5py.Dataset, origin: object, cost: int = NUMBER) -> None:
    """Check that a data set may be read whole.

    Args:
        item: the data set.
        origin: its file, for errors.
        cost: bytes that each value takes at least when it is used.

    Raises:
        InputError: if it is none, or would take too much memory for the file or the machine.
    """
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        kind = "a group" if isinstance(item, h5py.Group) else "nothing"
        raise InputError(f"{origin}: {item.name} holds {kind}, expected an array; save it again")
    size = math.prod(item.shape) * max(cost, item.dtype.itemsize)
    check_expansion(size, Path(item.file.filename), f"{origin}: {item.name}")


def read_array(item: h5py.Dataset, origin: object, cost: int = NUMBER) -> np.ndarray:
    """All values of a data set that `check_array` accepts.

    Raises:
        InputError: as `check_array` does.
    """
    check_array(item, origin, cost)
    return item[()]
