"""Long-tailed training parts, and small balanced sets that are held out for the server."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.state import generator
from vision.datasets.image_set import ImageSet

TAIL, HELD_OUT = (7, 0, 0), (7, 1, 0)
"""Keys of generators; rounds use keys of two numbers."""


def long_tailed(images: ImageSet, factor: float, seed: int = 0) -> ImageSet:
    """Thin the training part so that classes become exponentially rarer, in order of their number.

    Class c of C keeps `n_max · factor^(-c/(C-1))` images, rounded down but at least one, where
    n_max is the number of images that every class has (Cao et al., "Learning Imbalanced Datasets
    with Label-Distribution-Aware Margin Loss", NeurIPS 2019, arXiv 1906.07413). The test part stays
    as it is.

    Args:
        images: with a training part.
        factor: imbalance factor: how many times more frequent the first class is than the last; 1
            leaves the set as it is.
        seed: seed of the choice of images.

    Returns:
        The set without the images that were thinned out.

    Raises:
        InputError: if the factor is below 1, or a class has no training image.
    """
    if factor < 1:
        raise InputError(f"imbalance is {factor:g}; it must be 1 or more")
    if factor == 1:
        return images
    n_classes = len(images.class_names)
    rank = _rank_in_class(images, generator(seed, *TAIL))
    n_max = _smallest_class(images)
    exponent = -torch.arange(n_classes, dtype=torch.float64) / max(n_classes - 1, 1)
    # A little more than the product, which may lie just below a whole number.
    quota = (n_max * factor**exponent + 1e-9).floor().clamp(min=1)
    kept = images.take(images.is_test | (rank < quota[images.labels]))
    return replace(kept, source=f"{images.source}; long tail of factor {factor:g}, seed {seed}")


def hold_out(images: ImageSet, shots: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Take a balanced set from the training part, which then belongs to no client.

    Args:
        images: with a training part.
        shots: images a class to take.
        seed: seed of the choice.

    Returns:
        What is left, and what was taken.

    Raises:
        InputError: if a class has too few images to leave one.
    """
    if (least := _smallest_class(images)) <= shots:
        raise InputError(
            f"surrogate is {shots}; a class of {images.name} has {least} training images, of which "
            "one must be left: ask for fewer"
        )
    taken = ~images.is_test & (_rank_in_class(images, generator(seed, *HELD_OUT)) < shots)
    rest = replace(images.take(~taken), source=f"{images.source}; {shots} a class for the server")
    return rest, images.take(taken)


def _rank_in_class(images: ImageSet, rng: torch.Generator) -> Tensor:
    """Place `(n,)` of each image among those of its class and part, in random order."""
    strata = images.labels + len(images.class_names) * images.is_test
    order = torch.randperm(len(images), generator=rng)
    order = order[strata[order].argsort(stable=True)]
    counts = strata.bincount()
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(strata)
    rank[order] = torch.arange(len(images)) - first[strata[order]]
    return rank


def _smallest_class(images: ImageSet) -> int:
    """Training images of the class that has the fewest."""
    counts = images.labels[~images.is_test].bincount(minlength=len(images.class_names))
    if not counts.all():
        name = images.class_names[int(counts.argmin())]
        raise InputError(f"{images.name}: class {name} has no training images; leave it out")
    return int(counts.min())
