"""PACS: objects as photos, art, cartoons and sketches."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet

PACS = DomainFolders(
    name="pacs",
    domains=("art_painting", "cartoon", "photo", "sketch"),
    folders=("", "PACS", "PACS/kfold", "pacs", "pacs/kfold", "pacs/images", "pacs_data", "kfold"),
    source="get PACS from https://domaingeneralization.github.io",
)


@listed
def pacs(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """PACS: 9,991 images of 7 classes in 4 domains, 227 × 227, RGB.

    Li, Yang, Song, Hospedales, "Deeper, Broader and Artier Domain Generalization", ICCV 2017.
    Photo 1,670, art 2,048, cartoon 2,344, sketch 3,929. Read from the folders `DOMAIN/CLASS`, or
    from a file `pacs*.npz`. The official lists hold out whole domains, which is another task; here
    the test part is a share of each class in each domain.

    Args:
        root: folder with the domains' folders, or with `PACS` or `PACS/kfold`.
        size: height and width; None keeps 227.
        test_share: share of each class in each domain that becomes the test part.
        seed: seed of the split.

    Raises:
        InputError: if a domain is missing or a file is damaged.
    """
    return PACS.read(root, size=size, test_share=test_share, seed=seed)
