"""Subsets of ImageNet: ImageNet-R and Tiny-ImageNet, 200 classes each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_prep.base.errors import InputError, reading
from data_prep.base.limits import read_bounded
from data_prep.base.registry import listed
from vision.datasets.files import MAX_TEXT, find_path, read_class_names
from vision.datasets.folder import Tree, find_images
from vision.datasets.image_set import ImageSet


@listed
def imagenet_r(root: Path, *, size: int | None = None) -> ImageSet:
    """ImageNet-R: 30,000 images of 200 classes in 15 renditions, of many sizes, RGB.

    Hendrycks et al., "The Many Faces of Robustness", ICCV 2021, arXiv 2006.16241. Read from the
    official layout, `imagenet-r/WNID/RENDITION_*.jpg`. It was made for testing only and has no
    official split; papers on continual learning use 0.2 for testing.
    """
    source = "get imagenet-r.tar from https://github.com/hendrycks/imagenet-r and unpack it"
    folder = find_path(root, ("imagenet-r",), ("",), source, Path.is_dir)
    return find_images(folder, source, splits={}).read("imagenet-r", size)


TINY_IMAGENET_SOURCE = "get http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it"


@listed
def tiny_imagenet(root: Path, *, size: int | None = None) -> ImageSet:
    """Tiny-ImageNet: 100,000 training and 10,000 test images of 200 classes, 64 × 64, RGB.

    Le, Yang, "Tiny ImageNet Visual Recognition Challenge", Stanford CS 231N, 2015. Read from the
    official layout: `wnids.txt`, `train/WNID/images/*.JPEG`, `val/images/*.JPEG` and
    `val/val_annotations.txt`. The validation part is the test part, since the labels of the
    official test images are secret. Class names are WordNet ids.
    """
    wnids = find_path(root, ("wnids.txt",), ("tiny-imagenet-200", ""), TINY_IMAGENET_SOURCE)
    classes = read_class_names(wnids, TINY_IMAGENET_SOURCE)
    train = [
        (path, wnid)
        for wnid in classes
        for path in sorted((wnids.parent / "train" / wnid / "images").glob("*.JPEG"))
    ]
    if empty := set(classes) - {wnid for _, wnid in train}:
        raise InputError(
            f"{wnids.parent / 'train'}: no images of {min(empty)}; {TINY_IMAGENET_SOURCE}"
        )
    val = _annotated(wnids.parent / "val", classes)
    files = [*train, *val]
    return Tree(
        folder=wnids.parent,
        paths=[path for path, _ in files],
        classes=[wnid for _, wnid in files],
        domains=[""] * len(files),
        is_test=[i >= len(train) for i in range(len(files))],
        source=TINY_IMAGENET_SOURCE,
    ).read("tiny-imagenet", size)


def _annotated(folder: Path, classes: Sequence[str]) -> list[tuple[Path, str]]:
    """Read images and classes from `val_annotations.txt`: file, class and box, tab-separated."""
    listing = find_path(folder, ("val_annotations.txt",), ("",), TINY_IMAGENET_SOURCE)
    known, found = set(classes), []
    with reading(listing, "as text", TINY_IMAGENET_SOURCE):
        lines = read_bounded(listing, MAX_TEXT).decode().splitlines()
    for number, line in enumerate(lines, 1):
        name, _, rest = line.partition("\t")
        wnid = rest.partition("\t")[0]
        if wnid not in known or Path(name).name != name:
            raise InputError(
                f"{listing}, line {number}: image {name!r:.60} of class {wnid!r:.60}; expected the "
                f"name of a file and a class of wnids.txt; {TINY_IMAGENET_SOURCE}"
            )
        found.append((folder / "images" / name, wnid))
    if not found:
        raise InputError(
            f"{listing}: is empty; expected a line for each test image; {TINY_IMAGENET_SOURCE}"
        )
    return found
