"""SYN (Synthetic Digits): drawn digits, from the user's files."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.digits import digit_set
from vision.datasets.files import find, read_digits_mat
from vision.datasets.image_set import ImageSet
from vision.datasets.tree import SPLITS, find_images

FOLDERS = ("SynthDigits", "synth_digits", "SYN", "syn", "")
SOURCE = (
    "get SynthDigits from the authors' page, http://yaroslav.ganin.net, or use syn-generated, "
    "which needs no files"
)


@listed
def syn(root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0) -> ImageSet:
    """SYN: 479,400 training and 9,553 test images, 32 × 32, RGB.

    Ganin, Lempitsky, "Unsupervised Domain Adaptation by Backpropagation", ICML 2015: digits of
    Windows fonts in many positions, colours and degrees of blur. Read from the authors'
    `synth_train_32x32.mat` and `synth_test_32x32.mat`, or else from a folder `syn` (or `SYN`) of
    image files, `train/3/*.png` and `test/3/*.png` (also `imgs_train` and `imgs_valid`).

    Args:
        root: folder with the files.
        size: height and width for image files of different sizes.
        test_share: share of the test part if image files have none.
        seed: seed of that split.

    Raises:
        InputError: if a file is missing or damaged.
    """
    file = find(
        root, ("synth_train_32x32.mat", "imgs_train", "train"), FOLDERS, SOURCE, Path.exists
    )
    if file.is_dir():
        splits = {**SPLITS, "imgs_train": False, "imgs_valid": True}
        tree = find_images(file.parent, SOURCE, splits=splits)
        return tree.read("syn", size=size, test_share=test_share, seed=seed)
    test_file = find(file.parent, ("synth_test_32x32.mat",), ("",), SOURCE)
    train, test = read_digits_mat(file, SOURCE), read_digits_mat(test_file, SOURCE)
    return digit_set("syn", train, test, "SYN, the authors' files and split")
