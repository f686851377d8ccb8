"""Data sets of several domains, read from folders or from one `.npz` file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_prep.errors import InputError
from vision.datasets.image_set import ImageSet
from vision.datasets.npz import find_npz, read_npz
from vision.datasets.tree import Tree, find_images


@dataclass(frozen=True)
class DomainFolders:
    """Reader of a set stored as `DOMAIN/CLASS/*.jpg`, or else as a file `NAME*.npz`.

    Attributes:
        name: name of the set.
        domains: names of the domains' folders; case, spaces, dashes and underscores do not matter.
        folders: possible parents of these folders below the user's folder; "" is the folder itself.
        source: where to get the files, for messages.
        ignored: names of intermediate folders to skip.
        split: function that applies an official split to the files found.
    """

    name: str
    domains: Sequence[str]
    folders: Sequence[str]
    source: str
    ignored: Sequence[str] = ()
    split: Callable[[Tree], Tree] = lambda tree: tree

    def read(self, root: Path, *, size: int | None, test_share: float, seed: int) -> ImageSet:
        """Read the folders, or else the `.npz` file.

        Args:
            root: the user's folder.
            size: height and width for files of different sizes.
            test_share: share of each class in each domain that becomes the test part.
            seed: seed of that split.

        Raises:
            InputError: if neither exists, a domain is missing or a file is damaged.
        """
        for folder in (root / f for f in self.folders):
            names = {_bare(p.name): p.name for p in folder.glob("*") if p.is_dir()}
            found = [names[_bare(d)] for d in self.domains if _bare(d) in names]
            if not found:
                continue
            if missing := [d for d in self.domains if _bare(d) not in names]:
                raise InputError(f"{folder}: found no folder {', '.join(missing)}; {self.source}")
            tree = find_images(folder, self.source, domains=found, ignored=self.ignored)
            tree = self.split(tree)
            self._check_classes(tree)
            return tree.read(self.name, size=size, test_share=test_share, seed=seed)
        archive = find_npz(root, self.name)
        if archive is None:
            places = ", ".join(f or "the folder itself" for f in self.folders)
            raise InputError(
                f"{root}: found no folders {', '.join(self.domains)} (looked in {places}), nor a "
                f"file {self.name}*.npz; {self.source}"
            )
        return read_npz(archive, self.name, test_share=test_share, seed=seed)

    def _check_classes(self, tree: Tree) -> None:
        """Raise an error if a domain lacks a class of another domain."""
        there = set(zip(tree.domains, tree.classes, strict=True))
        grid = itertools.product(sorted(set(tree.domains)), sorted(set(tree.classes)))
        if missing := next((pair for pair in grid if pair not in there), None):
            raise InputError(
                f"{tree.folder / missing[0]}: found no images of {missing[1]}, a class of other "
                f"domains; {self.source}"
            )


def _bare(name: str) -> str:
    """Return the form in which names are compared; `Real World` and `real_world` are equal."""
    return re.sub(r"[\s_-]", "", name.lower())
