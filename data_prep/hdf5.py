"""HDF5 files of others: nothing is read from elsewhere, unpickled, or larger than memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from data_prep.errors import InputError, reading
from data_prep.limits import check_size


@contextmanager
def open_hdf5(path: Path, how: str, remedy: str) -> Iterator[h5py.File]:
    """Open a file for reading that holds all of its data itself.

    Args:
        path: the file.
        how: how it is read, such as `"as netCDF4"`, for errors.
        remedy: what to do if it cannot be.

    Raises:
        InputError: if it cannot be read, here or within the context, or refers to other files.
    """
    with reading(path, how, remedy), h5py.File(path) as file:
        file.visititems(_refuse_elsewhere)
        _refuse_elsewhere("/", file)
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


def read_array(item: h5py.Dataset, origin: object) -> np.ndarray:
    """All values of a data set.

    Args:
        item: the data set.
        origin: its file, for errors.

    Raises:
        InputError: if it is none, or would not fit into memory.
    """
    if not isinstance(item, h5py.Dataset) or item.shape is None:
        kind = "a group" if isinstance(item, h5py.Group) else "nothing"
        raise InputError(f"{origin}: {item.name} holds {kind}, expected an array; save it again")
    check_size(math.prod(item.shape) * item.dtype.itemsize, f"{origin}: {item.name}")
    return item[()]
