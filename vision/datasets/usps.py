"""USPS: handwritten digits of postcodes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from data_prep.errors import InputError, reading
from data_prep.registry import listed
from vision.datasets.digits import Part, digit_set
from vision.datasets.files import find, read_bytes
from vision.datasets.image_set import ImageSet

SIDE = 16
FOLDERS = ("", "USPS", "usps")
SOURCE = (
    "get usps.bz2 and usps.t.bz2 from "
    "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html"
)


@listed
def usps(root: Path) -> ImageSet:
    """USPS: 7,291 training and 2,007 test images, 16 × 16, white on black.

    Hull, "A Database for Handwritten Text Recognition Research", IEEE TPAMI 16(5), 1994. Read from
    the two LIBSVM files, `.bz2` or plain: labels 1 to 10 for the digits 0 to 9, then 256 values in
    [-1, 1], which are scaled to 0 to 255 and rounded.

    Args:
        root: folder with the files.

    Raises:
        InputError: if a file is missing or damaged.
    """
    train, test = (
        read_libsvm(find(root, (f"{name}.bz2", name), FOLDERS, SOURCE))
        for name in ("usps", "usps.t")
    )
    return digit_set("usps", train, test, "USPS, LIBSVM's files, official split")


def _cost(text: bytes) -> int:
    """Return the bytes of memory for a part of a file; lines may omit values, which are zeros."""
    return 8 * len(text) + 16 * SIDE * SIDE * text.count(b"\n")


def read_libsvm(path: Path) -> Part:
    """Read images `(n, 1, 16, 16)` uint8 and digits `(n,)` from a file.

    Raises:
        InputError: if the file is damaged or its values are out of range.
    """
    expected = "lines of a label from 1 to 10 and 256 values in [-1, 1]"
    n_pixels = SIDE * SIDE
    with reading(path, f"as {expected}", SOURCE):
        text = io.BytesIO(read_bytes(path, _cost))
        pixels, labels = load_svmlight_file(text, n_features=n_pixels, zero_based=False)
    x = pixels.toarray()
    if not (len(x) and abs(x).max() <= 1) or not np.isin(labels, np.arange(1, 11)).all():
        largest = abs(x).max(initial=0)
        found = f"{len(x)} lines, labels {np.unique(labels)!s:.60}, values up to {largest}"
        raise InputError(f"{path}: {found}; expected {expected}; {SOURCE}")
    images = np.rint((x + 1) * 127.5).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    return images, labels.astype(np.int64) - 1
