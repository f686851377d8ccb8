"""CIFAR-10 and CIFAR-100: small photographs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from data_prep.base.errors import InputError, reading
from data_prep.base.registry import listed
from vision.datasets.files import read_bytes, read_class_names
from vision.datasets.image_set import ImageSet
from vision.datasets.npz import find_npz, read_image_npz

CIFAR = (
    "get the binary version from https://www.cs.toronto.edu/~kriz/cifar.html (the Python version "
    "is a pickle, which can run any code, and is not read)"
)


@listed
def cifar10(root: Path) -> ImageSet:
    """CIFAR-10: 50,000 training and 10,000 test images of 10 classes, 32 × 32, RGB.

    Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the
    official binary version, `cifar-10-batches-bin`, or from a file `cifar10*.npz`.
    """
    files = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return _read(root, "cifar10", "cifar-10-batches-bin", files, "batches.meta.txt", 1)


@listed
def cifar100(root: Path) -> ImageSet:
    """CIFAR-100: 50,000 training and 10,000 test images of 100 fine classes, 32 × 32, RGB.

    Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the
    official binary version, `cifar-100-binary`, or from a file `cifar100*.npz`. The 20 coarse
    classes are not used.
    """
    files = ["train.bin", "test.bin"]
    return _read(root, "cifar100", "cifar-100-binary", files, "fine_label_names.txt", 2)


def _read(
    root: Path, name: str, inner: str, files: Sequence[str], names_file: str, n_labels: int
) -> ImageSet:
    """Read the binary files (the last is the test part), or else the `.npz` file."""
    folder = root / inner if (root / inner).is_dir() else root
    archive = find_npz(root, name)
    if archive is not None and not os.path.lexists(folder / files[0]):
        return read_image_npz(archive, name)
    for file in (*files, names_file):
        if not (folder / file).is_file():
            raise InputError(f"{folder}: found no {file}, nor {root / name}*.npz; {CIFAR}")
    class_names = read_class_names(folder / names_file, CIFAR)
    parts = [read_records(folder / file, n_labels, len(class_names)) for file in files]
    images, labels = (torch.from_numpy(np.concatenate(a)) for a in zip(*parts, strict=True))
    is_test = torch.arange(len(labels)) >= len(labels) - len(parts[-1][1])
    source = f"{inner}, official split"
    return ImageSet.of_one_domain(name, images, labels, is_test, class_names, source)


def read_records(path: Path, n_labels: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Read a binary file of label bytes followed by 1,024 bytes each of red, green and blue.

    Of the `n_labels` label bytes of a record the last is the (fine) class. The result is
    `(n, 3, 32, 32)` uint8 and `(n,)` int64.
    """
    length = n_labels + 3 * 32 * 32
    with reading(path, f"as records of {length} bytes", CIFAR):
        data = read_bytes(path)
    if not data or len(data) % length:
        raise InputError(
            f"{path}: has {len(data):,} bytes; expected a multiple of {length:,}, the bytes of a "
            f"record; {CIFAR}"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    labels = records[:, n_labels - 1].astype(np.int64)
    if labels.max() >= n_classes:
        raise InputError(f"{path}: label {labels.max()}; expected 0 to {n_classes - 1}; {CIFAR}")
    return records[:, n_labels:].reshape(-1, 3, 32, 32), labels
