"""Where the official files are, and what their layouts share."""

from __future__ import annotations

import bz2
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from scipy.io import loadmat

from data_prep.errors import InputError, reading
from data_prep.limits import gunzip


def find(
    root: Path,
    names: Sequence[str],
    folders: Sequence[str],
    source: str,
    wanted: Callable[[Path], bool] = Path.is_file,
) -> Path:
    """The first of some files or folders that is there.

    Args:
        root: folder that the user gave.
        names: its names, in order of preference.
        folders: places below `root` to look in, in this order; "" is `root` itself.
        source: what to do if there is none: where to get it.
        wanted: whether a path is what is looked for.

    Raises:
        InputError: naming all that was looked for.
    """
    for folder in folders:
        for name in names:
            path = root / folder / name
            if wanted(path):
                return path
    places = ", ".join(folder or "the folder itself" for folder in folders)
    raise InputError(f"{root}: found no {' or '.join(names)} (looked in {places}); {source}")


def read_bytes(path: Path) -> bytes:
    """A file's bytes, decompressed if its name ends in `.gz` or `.bz2`."""
    if path.suffix == ".gz":
        return gunzip(path)
    data = path.read_bytes()
    return bz2.decompress(data) if path.suffix == ".bz2" else data


def read_digits_mat(path: Path, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and digits of a MATLAB file in SVHN's layout: `X` (32, 32, 3, n) and `y` (n, 1).

    Returns:
        `(n, 3, 32, 32)` uint8 and `(n,)` int64; the label 10 of the digit 0 becomes 0.

    Raises:
        InputError: if the file is damaged or of another layout.
    """
    expected = "MATLAB arrays X, uint8 (32, 32, 3, n), and y, n labels from 0 to 10"
    with reading(path, f"as {expected}", source):
        mat = loadmat(path, variable_names=["X", "y"])
        x, y = mat["X"], mat["y"].reshape(-1).astype(np.int64)
    if (
        not len(y)
        or x.shape != (32, 32, 3, len(y))
        or x.dtype != np.uint8
        or y.min() < 0
        or y.max() > 10
    ):
        found = f"X {x.dtype} {x.shape} and {len(y)} labels"
        raise InputError(f"{path}: found {found}; expected {expected}; {source}")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y % 10
