"""DomainNet: objects as clip art, infographics, paintings, sketches by hand and photos."""

from __future__ import annotations

from dataclasses import replace
from itertools import compress
from pathlib import Path

from data_prep.errors import InputError, reading
from data_prep.limits import read_bounded
from data_prep.registry import listed
from vision.datasets.domain_folders import DomainFolders
from vision.datasets.image_set import ImageSet
from vision.datasets.tree import Tree

SOURCE = "get DomainNet from https://ai.bu.edu/M3SDA/"
LIST_FOLDERS = ("", "splits", "txt")
MAX_LIST = 2**25
"""Largest size of a list of images in bytes; the longest official one has 6 million."""


def official_split(tree: Tree) -> Tree:
    """Return the tree with the split of the official lists, if there is one.

    The lists are `DOMAIN_train.txt` and `DOMAIN_test.txt` with lines `DOMAIN/CLASS/FILE NUMBER`,
    beside the domains' folders or in `splits` or `txt`. Images that they do not name are left out,
    as in the cleaned version.

    Raises:
        InputError: if a domain lacks a list that another has, or a list names an image that is
            missing.
    """
    places = [tree.folder / folder for folder in LIST_FOLDERS]
    home = next((place for place in places if any(place.glob("*_test.txt"))), None)
    if home is None:
        return tree
    part: dict[str, bool] = {}
    for domain in sorted(set(tree.domains)):
        for name, is_test in (("train", False), ("test", True)):
            path = home / f"{domain}_{name}.txt"
            with reading(path, "as a list of images", SOURCE):
                lines = read_bounded(path, MAX_LIST).decode().splitlines()
            part |= {line.rpartition(" ")[0]: is_test for line in lines if line.strip()}
    names = [path.relative_to(tree.folder).as_posix() for path in tree.paths]
    if missing := part.keys() - set(names):
        raise InputError(
            f"{tree.folder / min(missing)}: no such image, which the lists in {home} name; {SOURCE}"
        )
    named = [name in part for name in names]
    return replace(
        tree,
        paths=[*compress(tree.paths, named)],
        classes=[*compress(tree.classes, named)],
        domains=[*compress(tree.domains, named)],
        is_test=[part[name] for name in compress(names, named)],
    )


DOMAINNET = DomainFolders(
    name="domainnet",
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    folders=("domainnet", "DomainNet", "domain_net", ""),
    source=SOURCE,
    split=official_split,
)


@listed
def domainnet(
    root: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
) -> ImageSet:
    """DomainNet: 586,575 images of 345 classes in 6 domains, of many sizes, RGB.

    Peng, Bai, Xia, Huang, Saenko, Wang, "Moment Matching for Multi-Source Domain Adaptation", ICCV
    2019. Clip art 48,129, infograph 51,605, painting 72,266, quickdraw 172,500, real 172,947,
    sketch 69,128. Read from the folders `DOMAIN/CLASS` and the official lists
    `DOMAIN_train.txt` and `DOMAIN_test.txt`, or from a file `domainnet*.npz`. The whole set takes
    7 GB of memory at 64 pixels; a folder with some of the classes, in all domains, does as well.

    Args:
        root: folder with the domains' folders, or with `domainnet`.
        size: height and width of all images.
        test_share: share of each class in each domain that becomes the test part, without lists.
        seed: seed of that split.

    Raises:
        InputError: if a domain, a list, a listed image or `size` is missing, or a file is damaged.
    """
    return DOMAINNET.read(root, size=size, test_share=test_share, seed=seed)
