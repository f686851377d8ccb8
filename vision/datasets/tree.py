"""Image files in folders that are named after class, domain and part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from data_prep.errors import InputError
from data_prep.text import as_text
from vision.datasets.image_set import ImageSet
from vision.datasets.pictures import decode
from vision.datasets.strata import hold_out
from vision.datasets.walk import check_links, image_files

SPLITS: Mapping[str, bool] = {
    "train": False, "test": True, "val": True, "valid": True, "validation": True,
}  # fmt: skip
"""Folder names of the parts of a set: True for testing, False for training."""


@dataclass(frozen=True)
class Tree:
    """Image files with class, domain and part, before they are decoded.

    Attributes:
        folder: folder of the files.
        paths: the files, sorted.
        classes: class of each file.
        domains: domain of each file; "" if the folders have no domains.
        is_test: part of each file; None if the folders have no parts.
        source: advice for a damaged file, for messages.
    """

    folder: Path
    paths: Sequence[Path]
    classes: Sequence[str]
    domains: Sequence[str]
    is_test: Sequence[bool] | None
    source: str

    def read(
        self, name: str, *, size: int | None = None, test_share: float = 0.2, seed: int = 0
    ) -> ImageSet:
        """Decode the files into a set.

        Args:
            name: name of the set; also of its only domain if the folders have no domains.
            size: height and width; None if all files have the same size.
            test_share: share of each class in each domain that becomes the test part, if the
                folders have no parts.
            seed: seed of that split.

        Raises:
            InputError: if a file is damaged or a link out of the folder, if sizes differ and `size`
                is None, if a class has test images only, or if a name is not UTF-8.
        """
        check_links(self.folder, self.paths)
        for kind, names in (("class", self.classes), ("domain", self.domains)):
            _check_text(self.folder, kind, names)
        class_names, labels = _index(self.classes)
        domain_names, domains = _index([d or name for d in self.domains])
        if self.is_test is None:
            is_test = hold_out(labels, domains, test_share, seed)
            split = f"{test_share:g} of each class and domain for testing, seed {seed}"
        else:
            is_test, split = torch.tensor(self.is_test), "split by folder"
            self._check_trained(is_test)
        return ImageSet(
            name=name,
            images=decode(self.paths, size, self.source),
            labels=labels,
            domains=domains,
            is_test=is_test,
            class_names=class_names,
            domain_names=domain_names,
            source=f"image files of {as_text(self.folder.name)}, {split}",
        )

    def _check_trained(self, is_test: Tensor) -> None:
        """Raise an error if a class has test images only."""
        trained = {
            name for name, test in zip(self.classes, is_test.tolist(), strict=True) if not test
        }
        if missing := set(self.classes) - trained:
            raise InputError(
                f"{self.folder}: class {min(missing)} has test images, but no training images; "
                f"{self.source}"
            )


def find_images(
    folder: Path,
    source: str,
    *,
    domains: Sequence[str] | None = None,
    ignored: Sequence[str] = (),
    splits: Mapping[str, bool] = SPLITS,
) -> Tree:
    """Find the image files below a folder: `[domain/]class/*.jpg`, a part anywhere above class.

    Files without an image's extension and names that begin with a dot are ignored.

    Args:
        folder: folder to search.
        source: advice if there are no images, for messages.
        domains: the domains' folders, if there are other folders too; None takes all.
        ignored: names of folders to skip, such as Office-31's `images`.
        splits: folder names of the parts; True is test.

    Raises:
        InputError: if there are no images, a class has none, a folder is a link, or not all images
            have the same levels of class, domain and part.
    """
    tops = [folder] if domains is None else [folder / d for d in domains]
    paths = image_files(tops)
    if not paths:
        raise InputError(f"{folder}: found no images (*.jpg, *.png, …); {source}")
    parts, named = [], []
    for path in paths:
        levels = [p for p in path.relative_to(folder).parts[:-1] if p not in ignored]
        # The innermost folder is the class, even if its name is that of a part, such as `train`.
        parts.append(tuple(p for p in levels[:-1] if p in splits))
        named.append([p for p in levels[:-1] if p not in splits] + levels[-1:])
    for path, levels in zip(paths, named, strict=True):
        if len(levels) != len(named[0]) or len(levels) not in (1, 2):
            raise InputError(
                f"{path}: lies under {len(levels)} folders that name a domain or class, "
                f"{paths[0]} under {len(named[0])}; expected class/ or domain/class/ for all"
            )
    return Tree(
        folder=folder,
        paths=paths,
        classes=[levels[-1] for levels in named],
        domains=[levels[0] if len(levels) == 2 else "" for levels in named],
        is_test=_test_parts(folder, parts, splits),
        source=source,
    )


def _test_parts(
    folder: Path, parts: Sequence[tuple[str, ...]], splits: Mapping[str, bool]
) -> list[bool] | None:
    """Return whether each file is for testing, or None without a test folder."""
    found = {part[0] if len(part) == 1 else " and ".join(part) for part in parts}
    named = ", ".join(sorted(name or "(none)" for name in found))
    if not found <= set(splits) | {""}:
        raise InputError(f"{folder}: an image lies in the parts {named} at once; choose one")
    tests = [name for name in found if name and splits[name]]
    trains = [name for name in found if name and not splits[name]]
    if not tests and ("" not in found or not trains):
        return None
    if "" in found or not trains or len(tests) > 1:
        raise InputError(
            f"{folder}: the images' parts are {named}; expected a training and one test part, or "
            "no such folders at all"
        )
    return [splits[part[0]] for part in parts]


def _check_text(folder: Path, kind: str, names: Sequence[str]) -> None:
    """Raise an error for names that tables and figures cannot contain."""
    if odd := next((name for name in names if as_text(name) != name), None):
        raise InputError(
            f"{folder}: the {kind} '{as_text(odd)}' has a name that is not UTF-8; rename its folder"
        )


def _index(names: Sequence[str]) -> tuple[tuple[str, ...], Tensor]:
    """Return the sorted distinct names and each item's index among them."""
    unique = tuple(sorted(set(names)))
    place = {name: i for i, name in enumerate(unique)}
    return unique, torch.tensor([place[name] for name in names])
