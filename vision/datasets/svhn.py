"""SVHN: digits of house numbers."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.digits import digit_set
from vision.datasets.files import find, read_digits_mat
from vision.datasets.image_set import ImageSet

FOLDERS = ("", "SVHN", "svhn")
SOURCE = (
    "get train_32x32.mat and test_32x32.mat (format 2, cropped digits) from "
    "http://ufldl.stanford.edu/housenumbers/"
)


@listed
def svhn(root: Path) -> ImageSet:
    """SVHN: 73,257 training and 26,032 test images, 32 × 32, RGB, cropped from street views.

    Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", NIPS
    Workshop on Deep Learning and Unsupervised Feature Learning, 2011. Read from the official
    MATLAB files; the 531,131 extra images are not used. In the files, digit 0 has the label 10.

    Args:
        root: folder with the files.

    Raises:
        InputError: if a file is missing or damaged.
    """
    train, test = (
        read_digits_mat(find(root, (f"{part}_32x32.mat",), FOLDERS, SOURCE), SOURCE)
        for part in ("train", "test")
    )
    return digit_set("svhn", train, test, "SVHN, official cropped digits and split")
