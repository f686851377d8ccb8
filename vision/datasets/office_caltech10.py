"""Office-Caltech10: the ten common classes of Office-31 and Caltech-256."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet

OFFICE_CALTECH10 = DomainFolders(
    name="office-caltech10",
    domains=("amazon", "caltech", "dslr", "webcam"),
    folders=("office_caltech_10", "office-caltech10", "OfficeCaltech10", ""),
    source="get the images of Office-Caltech10 (Gong et al., CVPR 2012)",
)


@listed
def office_caltech10(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """Office-Caltech10: 2,533 images of 10 classes in 4 domains, of many sizes, RGB.

    Gong, Shi, Sha, Grauman, "Geodesic Flow Kernel for Unsupervised Domain Adaptation", CVPR 2012.
    Amazon 958, Caltech 1,123, DSLR 157, webcam 295. Read from the folders `DOMAIN/CLASS`, or from
    a file `office-caltech10*.npz`. There is no official split.

    Args:
        root: folder with the domains' folders, or with `office_caltech_10`.
        size: height and width of all images.
        test_share: share of each class in each domain that becomes the test part.
        seed: seed of the split.

    Raises:
        InputError: if a domain or `size` is missing, or a file is damaged.
    """
    return OFFICE_CALTECH10.read(root, size=size, test_share=test_share, seed=seed)
