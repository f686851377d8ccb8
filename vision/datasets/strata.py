"""Random parts that keep the proportions of classes and domains: held-out sets and long tails."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.state import generator
from vision.datasets.image_set import ImageSet

TEST_SPLIT = (0, 0, 1)
"""Key of the generator of the split; rounds use keys of two numbers."""


def chosen_share(strata: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Choose a share of each stratum `(n,)` at random; returns `(n,)` bool.

    Of m items, `share * m` are chosen, rounded half up, but at least one.
    """
    quota = (share * strata.bincount().double() + 0.5).floor().long().clamp(min=1)
    return random_ranks(strata, rng) < quota[strata]


def random_ranks(strata: Tensor, rng: torch.Generator) -> Tensor:
    """Rank the items of each stratum `(n,)` in random order, `(n,)` from 0."""
    order = torch.randperm(len(strata), generator=rng)
    order = order[strata[order].argsort(stable=True)]
    counts = strata.bincount()
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(strata)
    rank[order] = torch.arange(len(strata)) - first[strata[order]]
    return rank


def hold_out(labels: Tensor, domains: Tensor, share: float, seed: int) -> Tensor:
    """Hold out a share of the images of each class in each domain as a test part, `(n,)` bool.

    Every class of a domain keeps at least one training image; a single image is for training.
    """
    if not 0 < share < 1:
        raise InputError(f"test_share is {share}; it must be between 0 and 1")
    _, strata = torch.stack([domains, labels]).unique(dim=1, return_inverse=True)
    # At least one item is chosen, so choosing the training part leaves no class without one.
    return ~chosen_share(strata, 1 - share, generator(seed, *TEST_SPLIT))


TAIL, HELD_OUT = (7, 0, 0), (7, 1, 0)
"""Keys of generators; rounds use keys of two numbers."""


def long_tailed(images: ImageSet, factor: float, seed: int = 0) -> ImageSet:
    """Thin the training part so that classes become exponentially rarer with their index.

    Class c of C keeps `n_max · factor^(-c/(C-1))` images, rounded down but at least one, where
    n_max is the size of the smallest class (Cao et al., "Learning Imbalanced Datasets with
    Label-Distribution-Aware Margin Loss", NeurIPS 2019, arXiv 1906.07413). The factor is the ratio
    of the first class's size to the last's; 1 keeps all images. The test part is not changed.
    """
    if factor < 1:
        raise InputError(f"imbalance is {factor:g}; it must be 1 or more")
    if factor == 1:
        return images
    n_classes = len(images.class_names)
    rank = _rank_in_class(images, generator(seed, *TAIL))
    n_max = _smallest_class(images)
    exponent = -torch.arange(n_classes, dtype=torch.float64) / max(n_classes - 1, 1)
    # A rounding error may put the product just below a whole number.
    quota = (n_max * factor**exponent + 1e-9).floor().clamp(min=1)
    kept = images.take(images.is_test | (rank < quota[images.labels]))
    return replace(kept, source=f"{images.source}; long tail of factor {factor:g}, seed {seed}")


def hold_out_for_server(images: ImageSet, shots: int, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Return the set without `shots` training images of each class, and these, for the server."""
    if (least := _smallest_class(images)) <= shots:
        raise InputError(
            f"surrogate is {shots}; a class of {images.name} has {least} training images and must "
            "keep at least one; use a smaller surrogate"
        )
    taken = ~images.is_test & (_rank_in_class(images, generator(seed, *HELD_OUT)) < shots)
    rest = replace(images.take(~taken), source=f"{images.source}; {shots} a class for the server")
    return rest, images.take(taken)


def _rank_in_class(images: ImageSet, rng: torch.Generator) -> Tensor:
    """Rank the images of each class and part in random order, `(n,)` from 0."""
    strata = images.labels + len(images.class_names) * images.is_test
    return random_ranks(strata, rng)


def _smallest_class(images: ImageSet) -> int:
    """Return the number of training images of the smallest class."""
    counts = images.labels[~images.is_test].bincount(minlength=len(images.class_names))
    if not counts.all():
        name = images.class_names[int(counts.argmin())]
        raise InputError(f"{images.name}: class {name} has no training images; leave it out")
    return int(counts.min())
