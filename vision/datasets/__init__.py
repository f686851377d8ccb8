"""Image data sets; every function here that is marked `listed` reads one.

`load` reads one or a union of them as an `ImageSet` of uint8 tensors. To add a data set, add one
function in a new file of this package. Nothing is unpickled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

from data_prep.base.errors import InputError, Words, choose
from data_prep.base.registry import Registry, is_listed
from vision.datasets.image_set import ImageSet, join

Reader = Callable[..., ImageSet]

DATASETS: Registry[Reader] = Registry(
    "image data set", "vision.datasets", is_entry=is_listed, group="stforecast.image_datasets"
)
"""Readers by the user's name for the data set, with dashes: `office-caltech10`.

A reader's docstring is the data sheet. Its parameter `root`, if it has one, is the user's folder;
the others are its options. Most have `size`, the height and width of all images (None if those of
the files are equal), and `test_share` and `seed`, which split sets without an official split.
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


def load(
    name: str, root: str | Path | None = None, *, size: int | None = None, **options: object
) -> ImageSet:
    """Load a data set, or a union of several: `load("mnist+usps+syn-generated", root, size=32)`.

    Args:
        name: one of `DATASETS`, or several joined by `+`, which become domains.
        root: folder with the official files; a file or folder for `npz` and `folder`; not needed by
            sets that are built in or generated.
        size: height and width of all images; None keeps their size.
        options: options of the readers, e.g. `test_share`, `seed` or `n_images`; each is passed to
            the readers that accept it.

    >>> load("digits8x8", size=16).images.shape
    torch.Size([1797, 1, 16, 16])
    """
    names = names_in(name)
    accepted = [inspect.signature(DATASETS.find(part)).parameters for part in names]
    known = set().union(*accepted)
    for option in options:
        if option not in known:
            raise choose(f"option of {name}", option, known - {"root", "size"})
    given = {**options, "size": size}
    if root is not None:
        given["root"] = Path(root)
    sets = []
    for part, taken in zip(names, accepted, strict=True):
        if "root" in taken and "root" not in given:
            raise InputError(
                f"{part}: no folder given; ", Words("give that of its files, such as {images:data}")
            )
        sets.append(DATASETS[part](**{o: value for o, value in given.items() if o in taken}))
    return join(sets, size)
