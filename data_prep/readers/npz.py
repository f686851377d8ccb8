"""Read plain arrays from untrusted `.npz` and `.npy` files, without unpickling, in bounded memory.

The headers of all arrays are read, and can be checked against each other, before any values.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from data_prep.base.errors import InputError, reading
from data_prep.base.limits import check_expansion


@dataclass(frozen=True)
class Header:
    """Header of an array in a file."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int:
        """Bytes of all values."""
        return self.size * self.dtype.itemsize


def read_npz(
    path: Path,
    names: Sequence[str],
    check: Callable[[dict[str, Header]], object] = lambda headers: None,
) -> list[np.ndarray]:
    """Read arrays from a file that `numpy.savez` wrote.

    `check` gets the headers by name before any values are read; it raises `InputError` if they are
    inconsistent.
    """
    how = f"as plain arrays {' and '.join(map(repr, names))}"
    with reading(path, how, "save them with numpy.savez"), zipfile.ZipFile(path) as z:
        headers = {name: _read_header(z, f"{name}.npy", path) for name in names}
        check_expansion(sum(header.n_bytes for header in headers.values()), path)
        check(headers)
        arrays = []
        for name in names:
            with z.open(f"{name}.npy") as file:
                arrays.append(npy.read_array(file, allow_pickle=False))
        return arrays


def open_npy(path: Path, check: Callable[[Header], object] = lambda header: None) -> np.ndarray:
    """Map the array of a file that `numpy.save` wrote; its values are read when they are used."""
    with reading(path, "as a plain array", "save it with numpy.save"), path.open("rb") as file:
        check(_header_of(file, path.stat().st_size, path.name, path))
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def _read_header(z: zipfile.ZipFile, member: str, path: Path) -> Header:
    info = z.getinfo(member)
    # With other methods a small file may take minutes to unpack.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(
            f"{path}: {member} is packed in a way that NumPy does not use; save it with numpy.savez"
        )
    with z.open(info) as file:
        return _header_of(file, info.file_size, member, path)


def _header_of(file: IO[bytes], n_bytes: int, member: str, path: Path) -> Header:
    """Read the header of a `.npy` file of `n_bytes`; check that its values are the rest of it."""
    # Plain arrays use these versions of the format.
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    shape, _, dtype = readers[npy.read_magic(file)](file)
    left = n_bytes - file.tell()
    if dtype.hasobject:
        raise InputError(
            f"{path}: {member} holds objects, which are pickled, and a pickle can run any code "
            "when it is loaded; save plain numbers or text with NumPy"
        )
    header = Header(dtype, shape)
    if header.n_bytes != left:
        raise InputError(
            f"{path}: {member} is {dtype} of shape {shape} in {n_bytes} bytes, which does not fit; "
            "save it again with NumPy"
        )
    return header
