"""Digits-DG: digits in handwriting, on photos, of house numbers and in fonts."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet

DIGITS_DG = DomainFolders(
    name="digits-dg",
    domains=("mnist", "mnist_m", "svhn", "syn"),
    folders=("digits_dg", "digits-dg", "Digits-DG", ""),
    source="get Digits-DG from https://github.com/KaiyangZhou/Dassl.pytorch (DATASETS.md)",
)


@listed
def digits_dg(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """Digits-DG: 24,000 images of 10 digits in 4 domains, 32 × 32, RGB.

    Zhou, Yang, Hospedales, Xiang, "Deep Domain-Adversarial Image Generation for Domain
    Generalisation", AAAI 2020. 600 images of each digit in MNIST, MNIST-M, SVHN and SYN. Read from
    the folders `DOMAIN/train/DIGIT` and `DOMAIN/val/DIGIT`, whose split is used, or from a file
    `digits-dg*.npz`.

    Args:
        root: folder with the domains' folders, or with `digits_dg`.
        size: height and width; None keeps 32.
        test_share: share of each digit in each domain that becomes the test part, if the folders
            have no parts.
        seed: seed of that split.

    Raises:
        InputError: if a domain is missing or a file is damaged.
    """
    return DIGITS_DG.read(root, size=size, test_share=test_share, seed=seed)
