"""Image data sets; every function here that is marked `listed` reads one.

`load` reads one or a union of them as an `ImageSet` of uint8 tensors. To add a data set, add one
function in a new file of this package. Nothing is unpickled. Sets without an official split hold
out a fifth of each class and domain for testing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from data_prep.base.errors import InputError, Words
from data_prep.base.registry import Registry, is_listed
from vision.datasets.image_set import ImageSet, join

DATASETS: Registry[Callable[..., ImageSet]] = Registry(
    "image data set", "vision.datasets", is_entry=is_listed, group="stforecast.image_datasets"
)
"""Readers by the user's name for the data set, with dashes: `office-caltech10`.

A reader's docstring is the data sheet. It may have two parameters: `root`, the user's folder, and
`size`, the height and width of all images, None if those of the files are equal.
"""


def names_in(name: str) -> list[str]:
    """Return the names of the data sets in a union, as in mnist+usps."""
    return [part.strip() for part in name.split("+")]


def has_files(name: str) -> bool:
    """Return whether a data set is read from the files of a folder.

    Raises:
        InputError: if the name is unknown.
    """
    return "root" in inspect.signature(DATASETS.find(name)).parameters


def load(name: str, root: str | Path | None = None, *, size: int | None = None) -> ImageSet:
    """Load a data set, or a union of several: `load("mnist+usps+syn-generated", root, size=32)`.

    Args:
        name: one of `DATASETS`, or several joined by `+`, which become domains.
        root: folder with the official files; a file or folder for `npz` and `folder`; not needed by
            sets that are built in or generated.
        size: height and width of all images; None keeps their size.

    >>> load("digits8x8", size=16).images.shape
    torch.Size([1797, 1, 16, 16])
    """
    names = names_in(name)
    readers = [DATASETS.find(part) for part in names]
    given = {"size": size} | ({} if root is None else {"root": Path(root)})
    sets = []
    for part, read in zip(names, readers, strict=True):
        if has_files(part) and root is None:
            raise InputError(
                f"{part}: no folder given; ", Words("give the one with its files, {images:FOLDER}")
            )
        taken = inspect.signature(read).parameters
        sets.append(read(**{name: value for name, value in given.items() if name in taken}))
    return join(sets, size)
