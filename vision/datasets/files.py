"""Where the official files are, and what their layouts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path

import numpy as np
from scipy.io import loadmat, whosmat

from data_prep.errors import InputError, check_regular, reading
from data_prep.limits import bunzip2, check_size, gunzip

PACKED = {".gz": gunzip, ".bz2": bunzip2}


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
        InputError: naming all that was looked for, or what bears a file's name and is none.
    """
    for folder in folders:
        for name in names:
            path = root / folder / name
            if wanted(path):
                return path
            if not path.is_dir():
                check_regular(path, "file", "put the file itself there, or take this away")
    places = ", ".join(folder or "the folder itself" for folder in folders)
    raise InputError(f"{root}: found no {' or '.join(names)} (looked in {places}); {source}")


def read_bytes(path: Path) -> bytes:
    """A file's bytes, decompressed if its name ends in `.gz` or `.bz2`.

    Raises:
        InputError: if they would not fit in memory.
    """
    if path.suffix in PACKED:
        return PACKED[path.suffix](path)
    check_size(path.stat().st_size, path)
    return path.read_bytes()


def read_names(path: Path, source: str) -> tuple[str, ...]:
    """The words of a text file, each the plain name of a class or of its folder.

    Raises:
        InputError: if there is none, one is there twice or could be a path.
    """
    with reading(path, "as text", source):
        names = tuple(read_bytes(path).decode().split())
    odd = next((n for n in names if len(n) > 255 or Path(n).name != n), None)
    if not names or odd or len(set(names)) < len(names):
        found = f"{odd!r:.60} as one" if odd else "one of them twice" if names else "none"
        raise InputError(f"{path}: found {found}; expected names of classes; {source}")
    return names


def read_digits_mat(path: Path, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and digits of a MATLAB file in SVHN's layout: `X` (32, 32, 3, n) and `y` (n, 1).

    Returns:
        `(n, 3, 32, 32)` uint8 and `(n,)` int64; the label 10 of the digit 0 becomes 0.

    Raises:
        InputError: if the file is damaged or of another layout.
    """
    expected = "MATLAB arrays X, uint8 (32, 32, 3, n), and y, n labels from 0 to 10"
    with reading(path, f"as {expected}", source):
        declared = sum(8 * prod(shape) for name, shape, _ in whosmat(path) if name in ("X", "y"))
        check_size(declared, path)
        mat = loadmat(path, variable_names=["X", "y"])
        x, y = mat["X"], mat["y"].reshape(-1)
    fits = len(y) and x.shape == (32, 32, 3, len(y)) and x.dtype == np.uint8
    if not fits or not np.isin(y, np.arange(11)).all():
        found = f"X {x.dtype} {x.shape} and {len(y)} labels {np.unique(y)!s:.60}"
        raise InputError(f"{path}: found {found}; expected {expected}; {source}")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10
