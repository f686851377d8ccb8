"""Random choices that keep the proportions of classes and domains."""

from __future__ import annotations

import torch
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.state import generator

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
