"""Search and reading of the data sets' official files."""

from __future__ import annotations

import bz2
import gzip
import os
import zlib
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import IO, Literal, cast

import numpy as np
from scipy.io import loadmat, whosmat

from data_prep.base import limits
from data_prep.base.errors import InputError, check_regular, reading

MAX_TEXT = 2**22
"""Largest size of a list of names in bytes; a list of 10,000 images has a tenth of it."""


def find_path(
    root: Path,
    names: Sequence[str],
    folders: Sequence[str],
    source: str,
    wanted: Callable[[Path], bool] = Path.is_file,
) -> Path:
    """Return the first existing path among possible names and folders below `root`, in their order.

    The `source` tells in the message where to get the file; `wanted` tests a path.
    """
    for folder in folders:
        for name in names:
            path = root / folder / name
            if wanted(path):
                return path
            if not path.is_dir():
                check_regular(path, "file", "replace it with the file itself, or remove it")
    places = ", ".join(folder or "the folder itself" for folder in folders)
    raise InputError(f"{root}: found no {' or '.join(names)} (looked in {places}); {source}")


def open_file(path: Path) -> IO[bytes]:
    """Open a file to read bytes, decompressed if its name ends in `.gz` or `.bz2`."""
    openers: dict[str, Callable[..., object]] = {".gz": gzip.open, ".bz2": bz2.open}
    return cast(IO[bytes], openers.get(path.suffix, open)(path, "rb"))


def read_bytes(path: Path, cost: Callable[[bytes], int] = len) -> bytes:
    """Read the bytes of a file, decompressed if its name ends in `.gz` or `.bz2`.

    `cost` returns the bytes of memory that parsing a part of the content needs. Files that need
    too many are refused.
    """
    if path.suffix not in (".gz", ".bz2"):
        limits.check_size(path.stat().st_size, path)
    with open_file(path) as file:
        return limits.read_expanded(file, path, cost)


def read_class_names(path: Path, source: str) -> tuple[str, ...]:
    """Read the words of a text file, each the plain name of a class or of its folder."""
    with reading(path, "as text", source):
        names = tuple(limits.read_bounded(path, MAX_TEXT).decode().split())
    odd = next((n for n in names if not n.isprintable() or len(n) > 255 or Path(n).name != n), None)
    if not names or odd or len(set(names)) < len(names):
        found = f"the name {odd!r:.60}" if odd else "a repeated name" if names else "no names"
        raise InputError(f"{path}: found {found}; expected unique names of classes; {source}")
    return names


def read_digits_mat(path: Path, source: str) -> tuple[np.ndarray, np.ndarray]:
    """Read a MATLAB file in SVHN's layout: images `X` (32, 32, 3, n) and digits `y` (n, 1).

    The result is `(n, 3, 32, 32)` uint8 and `(n,)` int64; the label 10 of the digit 0 becomes 0.
    """
    expected = "MATLAB arrays X, uint8 (32, 32, 3, n), and y, n labels from 0 to 10"
    with reading(path, f"as {expected}", source):
        declared = {name: (shape, kind) for name, shape, kind in whosmat(path)}
        limits.check_expansion(sum(8 * prod(declared[name][0]) for name in ("X", "y")), path)
        (*side, n), kind = declared["X"]
        if side != [32, 32, 3] or kind != "uint8" or prod(declared["y"][0]) != n:
            raise InputError(
                f"{path}: found X {kind} {(*side, n)} and y {declared['y'][0]}; expected "
                f"{expected}; {source}"
            )
        _check_elements(path)
        mat = loadmat(path, variable_names=["X", "y"])
        x, y = mat["X"], mat["y"].reshape(-1)
    fits = len(y) and x.shape == (32, 32, 3, len(y)) and x.dtype == np.uint8
    if not fits or not np.isin(y, np.arange(11)).all():
        found = f"X {x.dtype} {x.shape} and {len(y)} labels {np.unique(y)!s:.60}"
        raise InputError(f"{path}: found {found}; expected {expected}; {source}")
    return np.ascontiguousarray(x.transpose(3, 2, 0, 1)), y.astype(np.int64) % 10


def _check_elements(path: Path) -> None:
    """Raise an error if compressed elements of a MATLAB 5 file expand to too many bytes.

    The reader decompresses a whole element, even if its header declares a small array.
    """
    size, most = 0, limits.most_from(path)
    with path.open("rb") as file:
        # The header has 128 bytes; the last two give the order.
        order: Literal["little", "big"] = "little" if file.read(128)[-2:] == b"IM" else "big"
        while len(tag := file.read(8)) == 8:
            kind, length = (int.from_bytes(tag[i : i + 4], order) for i in (0, 4))
            if kind != 15:  # Not a compressed element.
                file.seek(length, os.SEEK_CUR)
                continue
            unpacker, left = zlib.decompressobj(), length
            while left and (part := file.read(min(left, limits.CHUNK))):
                left -= len(part)
                while part and not unpacker.eof:
                    size += len(unpacker.decompress(part, limits.CHUNK))
                    part = unpacker.unconsumed_tail
                    if size > most:
                        limits.check_expansion(size, path, f"{path}: unpacked, it")
