"""Read untrusted HDF5 files: no external data, no pickles, bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from data_prep.base.errors import InputError, reading
from data_prep.base.limits import ALLOWANCE, check_expansion, most_from

NUMBER = 8
"""Bytes of a value in memory: numbers become float64."""


@contextmanager
def open_hdf5(path: Path, how: str, remedy: str) -> Iterator[h5py.File]:
    """Open a self-contained file for reading; `how` and `remedy` are parts of error messages.

    It refuses a file that refers to others, or whose chunks or attributes unpack to far more than
    its size.
    """
    with reading(path, how, remedy), h5py.File(path) as file:
        room = most_from(path)

        def check(name: str, item: h5py.Group | h5py.Dataset) -> None:
            nonlocal room
            _refuse_external(name, item)
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


def _refuse_external(name: str, item: h5py.Group | h5py.Dataset) -> None:
    """Refuse links to other files and data sets that are stored in them."""
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
    """Return the bytes of all attributes; equal texts may be stored once, so each is counted."""
    size = 0
    for name in item.attrs:
        about = item.attrs.get_id(name)
        many = math.prod(about.shape or ())
        if about.dtype.kind != "O":
            size += many * about.dtype.itemsize
        elif many > 4:  # More than a variable has dimensions: each may be as long as the file.
            size += many * path.stat().st_size
        elif isinstance(found := item.attrs[name], str | bytes | np.ndarray):
            texts = found.ravel() if isinstance(found, np.ndarray) else [found]
            size += NUMBER * sum(len(t) if hasattr(t, "__len__") else 1 for t in texts)
    return size


def _check_chunks(item: h5py.Dataset, path: Path) -> None:
    """Refuse chunks that are too large: reading one value unpacks its whole chunk."""
    size = math.prod(item.chunks) * max(item.dtype.itemsize, item.id.get_type().get_size())
    check_expansion(size, path, f"{path}: a chunk of {item.name}")
    filters = item.id.get_create_plist()
    codes = [filters.get_filter(i)[0] for i in range(filters.get_nfilters())]
    largest = 0

    def note(chunk: h5py.h5d.StoreInfo) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    item.id.chunk_iter(note)
    # Incompressible data grow a little when they are compressed.
    if len(set(codes)) < len(codes) or largest > 1.25 * size + ALLOWANCE // 2**10:
        raise InputError(
            f"{path}: a chunk of {item.name} is packed twice, or unpacks to more than its "
            f"{size} bytes; save the file again"
        )


def check_array(item: h5py.Dataset, origin: object, cost: int = NUMBER) -> None:
    """Check that a data set is an array that can be read at once, at `cost` bytes a value."""
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        kind = "a group" if isinstance(item, h5py.Group) else "nothing"
        raise InputError(f"{origin}: {item.name} holds {kind}, expected an array; save it again")
    size = math.prod(item.shape) * max(cost, item.dtype.itemsize)
    check_expansion(size, Path(item.file.filename), f"{origin}: {item.name}")


def read_array(item: h5py.Dataset, origin: object, cost: int = NUMBER) -> np.ndarray:
    """Read all values of a data set."""
    check_array(item, origin, cost)
    return np.asarray(item[()])


def holds_frame(path: Path) -> bool:
    """Return whether a file holds a frame of pandas in HDF5, in any of its formats."""
    if not path.is_file() or not h5py.is_hdf5(path):
        return False
    with open_hdf5(path, "as HDF5", "save it again") as file:
        groups = [item for item in file.values() if isinstance(item, h5py.Group)]
        return any(text_of(g.attrs.get("pandas_type", "")).startswith("frame") for g in groups)


def text_of(attribute: object) -> str:
    """Return an HDF5 attribute or label as text; PyTables writes bytes, or `Empty` if empty."""
    if isinstance(attribute, h5py.Empty):
        return ""
    return attribute.decode() if isinstance(attribute, bytes) else str(attribute)
