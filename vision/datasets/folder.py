"""Any folder of images."""

from __future__ import annotations

from pathlib import Path

from data_prep.errors import InputError
from data_prep.registry import listed
from data_prep.text import as_text
from vision.datasets.image_set import ImageSet
from vision.datasets.tree import find_images

REMEDY = "give a folder with [train or test/][DOMAIN/]CLASS/*.jpg"


@listed
def folder(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """Any folder of images: `[DOMAIN/]CLASS/*.jpg`, with `train/` and `test/` before or between.

    Args:
        root: the folder.
        size: height and width of all images; None if all files have the same size.
        test_share: share of each class in each domain that becomes the test part, if there are no
            folders `train` and `test` (or `val`, `valid`, `validation`).
        seed: seed of that split.

    Raises:
        InputError: if the folder is missing or has another layout, or a file is damaged.
    """
    if not root.is_dir():
        raise InputError(f"{root}: no folder here; {REMEDY}")
    tree = find_images(root, REMEDY)
    return tree.read(as_text(root.resolve().name), size=size, test_share=test_share, seed=seed)
