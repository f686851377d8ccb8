"""MNIST: handwritten digits."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from data_prep.errors import InputError, reading
from data_prep.limits import check_expansion
from data_prep.registry import listed
from vision.datasets.digits import Part, digit_set
from vision.datasets.files import find, open_file
from vision.datasets.image_set import ImageSet

FOLDERS = ("", "MNIST/raw", "MNIST", "mnist")
SOURCE = (
    "get the four official files, e.g. with torchvision.datasets.MNIST(folder, download=True), and "
    "give that folder"
)


@listed
def mnist(root: Path) -> ImageSet:
    """MNIST: 60,000 training and 10,000 test images, 28 × 28, white on black.

    LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition",
    Proceedings of the IEEE 86(11), 1998. Read from the four official IDX files, plain or `.gz`, in
    `root` or its `MNIST/raw` (torchvision's layout).

    Args:
        root: folder with the files.

    Raises:
        InputError: if a file is missing or damaged.
    """
    train, test = (_part(root, part) for part in ("train", "t10k"))
    return digit_set("mnist", train, test, "MNIST, official IDX files and split")


def _part(root: Path, part: str) -> Part:
    files = _file(root, f"{part}-images-idx3-ubyte"), _file(root, f"{part}-labels-idx1-ubyte")
    images, labels = read_idx(files[0], 3), read_idx(files[1], 1)
    if images.shape != (len(labels), *images.shape[1:]) or not images.size or labels.max() > 9:
        raise InputError(
            f"{files[0]}: {len(images)} images, but {len(labels)} labels up to "
            f"{labels.max(initial=0)} in {files[1].name}; expected one digit per image; {SOURCE}"
        )
    return images[:, None], labels


def _file(root: Path, name: str) -> Path:
    return find(root, (name, f"{name}.gz"), FOLDERS, SOURCE)


def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read the array of an IDX file of unsigned bytes.

    The layout: bytes 0, 0, 8 (unsigned byte), number of dimensions; each dimension as a big-endian
    32-bit integer; the data, last dimension fastest.

    Args:
        path: file, plain or `.gz`.
        dims: expected number of dimensions.

    Raises:
        InputError: if the file is damaged or of another format.
    """
    expected = f"an IDX file of unsigned bytes with {dims} dimensions"
    with reading(path, f"as {expected}", SOURCE), open_file(path) as file:
        header = file.read(4 + 4 * dims)
        if header[:4] != bytes([0, 0, 8, dims]) or len(header) < 4 + 4 * dims:
            raise InputError(f"{path}: begins with {header[:4]!r}; expected {expected}; {SOURCE}")
        shape = tuple(int(n) for n in np.frombuffer(header, ">u4", dims, 4))
        check_expansion(prod(shape), path)
        data = file.read(prod(shape) + 1)
    if len(data) != prod(shape):
        found = "more" if len(data) > prod(shape) else f"{len(data):,}"
        raise InputError(
            f"{path}: has {found} bytes of data; its header {shape} declares {prod(shape):,}; "
            f"{SOURCE}"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)
