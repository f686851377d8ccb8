"""Plain arrays from `.npz` files of others: nothing is unpickled, nothing larger than declared."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from data_prep.errors import InputError, reading
from data_prep.limits import check_size

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Versions of the `.npy` format that plain arrays have."""


def read_npz(path: Path, names: Sequence[str]) -> list[np.ndarray]:
    """Read some arrays of a file that `numpy.savez` wrote.

    Args:
        path: the file.
        names: of the arrays.

    Raises:
        InputError: if one is not there, damaged, pickled or too large for the memory.
    """
    how = f"as plain arrays {' and '.join(map(repr, names))}"
    with reading(path, how, "save them with numpy.savez"), zipfile.ZipFile(path) as z:
        members = [f"{name}.npy" for name in names]
        check_size(sum(z.getinfo(member).file_size for member in members), path)
        return [_read_member(z, member, path) for member in members]


def _read_member(z: zipfile.ZipFile, member: str, path: Path) -> np.ndarray:
    declared = z.getinfo(member).file_size
    check_size(declared, f"{path}: {member}")
    with z.open(member) as file:
        shape, _, dtype = HEADERS[npy.read_magic(file)](file)
        if dtype.hasobject:
            raise InputError(
                f"{path}: {member} holds objects, which are pickled, and a pickle can run any code "
                "when it is loaded; save plain numbers or text with numpy.savez"
            )
        if math.prod(shape) * dtype.itemsize != declared - file.tell():
            raise InputError(
                f"{path}: {member} is {dtype} of shape {shape} in {declared} bytes, which does not "
                "fit; save it again with numpy.savez"
            )
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)
