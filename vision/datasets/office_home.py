"""Office-Home: everyday objects as art, clip art, product pictures and photos."""

from __future__ import annotations

from pathlib import Path

from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet

OFFICE_HOME = DomainFolders(
    name="office-home",
    domains=("art", "clipart", "product", "real_world"),
    folders=(
        "OfficeHomeDataset_10072016", "OfficeHome", "office_home", "office-home", "office_home_dg",
        "",
    ),
    source="get Office-Home from https://www.hemanthdv.org/officeHomeDataset.html",
)  # fmt: skip


@listed
def office_home(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """Office-Home: 15,588 images of 65 classes in 4 domains, of many sizes, RGB.

    Venkateswara, Eusebio, Chakraborty, Panchanathan, "Deep Hashing Network for Unsupervised Domain
    Adaptation", CVPR 2017. Art 2,427, clip art 4,365, product 4,439, real world 4,357. Read from
    the folders `DOMAIN/CLASS`, such as `Real World/Alarm_Clock`, or from a file `office-home*.npz`.
    There is no official split.

    Args:
        root: folder with the domains' folders, or with `OfficeHomeDataset_10072016`.
        size: height and width of all images.
        test_share: share of each class in each domain that becomes the test part, if the folders
            have no parts `train` and `val`.
        seed: seed of the split.

    Raises:
        InputError: if a domain or `size` is missing, or a file is damaged.
    """
    return OFFICE_HOME.read(root, size=size, test_share=test_share, seed=seed)
