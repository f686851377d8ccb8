"""Data sets of several domains, read from folders `DOMAIN/CLASS` or from one `.npz` file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

from data_prep.base.errors import InputError, reading
from data_prep.base.limits import read_bounded
from data_prep.base.registry import listed
from vision.datasets.folder import Tree, find_images
from vision.datasets.image_set import ImageSet
from vision.datasets.npz import find_npz, read_image_npz


@dataclass(frozen=True)
class DomainFolders:
    """Reader of a set stored as `DOMAIN/CLASS/*.jpg`, or else as a file `NAME*.npz`.

    It decorates a function without a body, from which the set has its name and its data sheet.

    Attributes:
        domains: names of the domains' folders; case, spaces, dashes and underscores do not matter.
        folders: possible parents of these folders below the user's folder; "" is the folder itself.
        source: where to get the files, for messages.
        ignored: names of intermediate folders to skip.
        split: function that applies an official split to the files found.
    """

    domains: Sequence[str]
    folders: Sequence[str]
    source: str
    ignored: Sequence[str] = ()
    split: Callable[[Tree], Tree] = lambda tree: tree

    def __call__(self, sheet: Callable[[], None]) -> Callable[..., ImageSet]:
        """Return the listed reader of the set."""
        name = sheet.__name__.replace("_", "-")

        def read(root: Path, *, size: int | None = None) -> ImageSet:
            return self._read(name, root, size)

        read.__name__, read.__doc__ = sheet.__name__, sheet.__doc__
        return listed(read)

    def _read(self, name: str, root: Path, size: int | None) -> ImageSet:
        """Read the folders, or else the `.npz` file."""
        for folder in (root / f for f in self.folders):
            names = {_bare(p.name): p.name for p in folder.glob("*") if p.is_dir()}
            found = [names[_bare(d)] for d in self.domains if _bare(d) in names]
            if not found:
                continue
            if missing := [d for d in self.domains if _bare(d) not in names]:
                raise InputError(f"{folder}: found no folder {', '.join(missing)}; {self.source}")
            tree = find_images(folder, self.source, domains=found, ignored=self.ignored)
            tree = self.split(tree)
            there = set(zip(tree.domains, tree.classes, strict=True))
            grid = itertools.product(sorted(set(tree.domains)), sorted(set(tree.classes)))
            if lacking := next((pair for pair in grid if pair not in there), None):
                raise InputError(
                    f"{tree.folder / lacking[0]}: found no images of {lacking[1]}, a class of "
                    f"other domains; {self.source}"
                )
            return tree.read(name, size)
        archive = find_npz(root, name)
        if archive is None:
            places = ", ".join(f or "the folder itself" for f in self.folders)
            raise InputError(
                f"{root}: found no folders {', '.join(self.domains)} (looked in {places}), nor a "
                f"file {name}*.npz; {self.source}"
            )
        return read_image_npz(archive, name)


def _bare(name: str) -> str:
    """Return the form in which names are compared; `Real World` and `real_world` are equal."""
    return re.sub(r"[\s_-]", "", name.lower())


DOMAINNET = "get DomainNet from https://ai.bu.edu/M3SDA/"


def official_split(tree: Tree) -> Tree:
    """Return the tree with the split of the official lists, if there is one.

    The lists are `DOMAIN_train.txt` and `DOMAIN_test.txt` with lines `DOMAIN/CLASS/FILE NUMBER`,
    next to the domains' folders or in `splits` or `txt`. Images that they do not name are left out,
    as in the cleaned version.
    """
    places = [tree.folder / folder for folder in ("", "splits", "txt")]
    home = next((place for place in places if any(place.glob("*_test.txt"))), None)
    if home is None:
        return tree
    part: dict[str, bool] = {}
    for domain in sorted(set(tree.domains)):
        for name, is_test in (("train", False), ("test", True)):
            path = home / f"{domain}_{name}.txt"
            with reading(path, "as a list of images", DOMAINNET):
                # The longest official list has 6 million bytes.
                lines = read_bounded(path, 2**25).decode().splitlines()
            part |= {line.rpartition(" ")[0]: is_test for line in lines if line.strip()}
    names = [path.relative_to(tree.folder).as_posix() for path in tree.paths]
    if missing := part.keys() - set(names):
        raise InputError(
            f"{tree.folder / min(missing)}: no such image, which the lists in {home} name; "
            f"{DOMAINNET}"
        )
    named = [name in part for name in names]
    return replace(
        tree,
        paths=[*compress(tree.paths, named)],
        classes=[*compress(tree.classes, named)],
        domains=[*compress(tree.domains, named)],
        is_test=[part[name] for name in compress(names, named)],
    )


@DomainFolders(
    domains=("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    folders=("domainnet", "DomainNet", "domain_net", ""),
    source=DOMAINNET,
    split=official_split,
)
def domainnet() -> None:
    """DomainNet: 586,575 images of 345 classes in 6 domains, of many sizes, RGB.

    Peng, Bai, Xia, Huang, Saenko, Wang, "Moment Matching for Multi-Source Domain Adaptation", ICCV
    2019. Clip art 48,129, infograph 51,605, painting 72,266, quickdraw 172,500, real 172,947,
    sketch 69,128. Read from the folders `DOMAIN/CLASS` and the official lists
    `DOMAIN_train.txt` and `DOMAIN_test.txt`, or from a file `domainnet*.npz`. The whole set takes
    7 GB of memory at 64 pixels; a folder with some of the classes, in all domains, does as well.
    """


@DomainFolders(
    domains=("amazon", "dslr", "webcam"),
    folders=("office31", "Office31", "office-31", "Office-31", "office", ""),
    source="get Office-31 from https://faculty.cc.gatech.edu/~judy/domainadapt/",
    ignored=("images",),
)
def office31() -> None:
    """Office-31: 4,110 images of 31 classes in 3 domains, of many sizes, RGB.

    Saenko, Kulis, Fritz, Darrell, "Adapting Visual Category Models to New Domains", ECCV 2010.
    Amazon 2,817, DSLR 498, webcam 795. Read from the folders `DOMAIN/images/CLASS` or
    `DOMAIN/CLASS`, or from a file `office31*.npz`. There is no official split.
    """


@DomainFolders(
    domains=("amazon", "caltech", "dslr", "webcam"),
    folders=("office_caltech_10", "office-caltech10", "OfficeCaltech10", ""),
    source="get the images of Office-Caltech10 (Gong et al., CVPR 2012)",
)
def office_caltech10() -> None:
    """Office-Caltech10: 2,533 images of 10 classes in 4 domains, of many sizes, RGB.

    Gong, Shi, Sha, Grauman, "Geodesic Flow Kernel for Unsupervised Domain Adaptation", CVPR 2012.
    Amazon 958, Caltech 1,123, DSLR 157, webcam 295. Read from the folders `DOMAIN/CLASS`, or from
    a file `office-caltech10*.npz`. There is no official split.
    """


@DomainFolders(
    domains=("art", "clipart", "product", "real_world"),
    folders=(
        *("OfficeHomeDataset_10072016", "OfficeHome"),
        *("office_home", "office-home", "office_home_dg", ""),
    ),
    source="get Office-Home from https://www.hemanthdv.org/officeHomeDataset.html",
)
def office_home() -> None:
    """Office-Home: 15,588 images of 65 classes in 4 domains, of many sizes, RGB.

    Venkateswara, Eusebio, Chakraborty, Panchanathan, "Deep Hashing Network for Unsupervised Domain
    Adaptation", CVPR 2017. Art 2,427, clip art 4,365, product 4,439, real world 4,357. Read from
    the folders `DOMAIN/CLASS`, such as `Real World/Alarm_Clock`, or from a file `office-home*.npz`.
    There is no official split.
    """


@DomainFolders(
    domains=("art_painting", "cartoon", "photo", "sketch"),
    folders=("", "PACS", "PACS/kfold", "pacs", "pacs/kfold", "pacs/images", "pacs_data", "kfold"),
    source="get PACS from https://domaingeneralization.github.io",
)
def pacs() -> None:
    """PACS: 9,991 images of 7 classes in 4 domains, 227 × 227, RGB.

    Li, Yang, Song, Hospedales, "Deeper, Broader and Artier Domain Generalization", ICCV 2017.
    Photo 1,670, art 2,048, cartoon 2,344, sketch 3,929. Read from the folders `DOMAIN/CLASS`, or
    from a file `pacs*.npz`. The official lists hold out whole domains, which is another task; here
    the test part is a share of each class in each domain.
    """
