"""Office-31: office objects from a shop's website and from two cameras."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet

OFFICE31 = DomainFolders(
    name="office31",
    domains=("amazon", "dslr", "webcam"),
    folders=("office31", "Office31", "office-31", "Office-31", "office", ""),
    source="get Office-31 from https://faculty.cc.gatech.edu/~judy/domainadapt/",
    ignored=("images",),
)


@listed
def office31(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """Office-31: 4,110 images of 31 classes in 3 domains, of many sizes, RGB.

    Saenko, Kulis, Fritz, Darrell, "Adapting Visual Category Models to New Domains", ECCV 2010.
    Amazon 2,817, DSLR 498, webcam 795. Read from the folders `DOMAIN/images/CLASS` or
    `DOMAIN/CLASS`, or from a file `office31*.npz`. There is no official split.

    Args:
        root: folder with the domains' folders, or with `office31`.
        size: height and width of all images.
        test_share: share of each class in each domain that becomes the test part.
        seed: seed of the split.

    Raises:
        InputError: if a domain or `size` is missing, or a file is damaged.
    """
    return OFFICE31.read(root, size=size, test_share=test_share, seed=seed)
