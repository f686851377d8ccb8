"""Partitions by label: Dirichlet, IID, n-way k-shot, and shards of images sorted by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words, counted
from stforecast.federated.core.dirichlet import dirichlet_counts
from vision.partition.base import Partitioner, Pool, deal_classes


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Division of each class among the clients in proportions from a Dirichlet distribution.

    Clients differ in their class shares and in size; see
    `stforecast.federated.core.dirichlet.dirichlet_counts` for the sources.

    Attributes:
        concentration: similarity of the clients, α. At 100 every client has nearly the class shares
            of the whole set; at 1 all divisions of a class are equally likely. For 20 clients and
            10 classes of 6,000 images, a client has on average images of 5.9 classes at 0.1, of 9.7
            at 0.5 and of 10.0 at 1; but only 2.9, 5.3 and 6.4 classes have a share of 5 % or more,
            and the two largest clients of a class hold 72, 40 and 31 % of it.
        min_samples: smallest number of training images of a client. All proportions of a pool are
            drawn again until each client has as many, at most 200 times.
    """

    name: ClassVar[str] = "dirichlet"

    concentration: PositiveFloat = 0.5
    min_samples: PositiveInt = 10

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Draw proportions until all clients have enough images, then divide each class."""
        n = len(pool.clients)
        _, sizes = np.unique(pool.images.labels[pool.train], return_counts=True)
        members = pool.sorted_by_class(rng).split(sizes.tolist())
        numbers, of = np.random.default_rng(rng.initial_seed()), f"training images of {pool.domain}"
        smallest = "min_samples", self.min_samples
        counts = dirichlet_counts(sizes, n, self.concentration, smallest, numbers, of)
        pieces = [ids.split(own.tolist()) for ids, own in zip(members, counts, strict=True)]
        return [torch.cat([piece[i] for piece in pieces]) for i in range(n)]


@dataclass(frozen=True)
class IID(Partitioner):
    """Even division of shuffled images: no label skew; with one domain per client, domain shift.

    All images are used; clients of a pool differ by at most one image.
    """

    name: ClassVar[str] = "iid"

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Shuffle the images and divide them evenly."""
        if (n := len(pool.train)) < (n_clients := len(pool.clients)):
            raise InputError(
                f"{pool.domain} has {counted(n, 'training image')} for {n_clients} clients; ",
                Words("use fewer {clients}; each needs an image"),
            )
        return list(pool.shuffled(rng).tensor_split(len(pool.clients)))


@dataclass(frozen=True)
class NWay(Partitioner):
    """Random choice of about n classes per client, with about k training images of each.

    As in FedProto (Tan et al., AAAI 2022, arXiv 2105.00243), which PFPL follows: a client's n is
    drawn uniformly from the integers `ways` ± `spread`, its k from `shots` ± `shot_spread`, and its
    n classes of its domain. FedProto calls this half width a standard deviation. n is
    limited to the range from 2 (a client with one class has nothing to learn; 1 if `ways` is 1) to
    the number of classes; if that cuts the range, the mean is not `ways`.

    Attributes:
        ways: mean number of classes per client, n.
        spread: largest difference of n from `ways`.
        shots: training images per class, k. By default, the clients of a domain that have a class
            share its images evenly.
        shot_spread: largest difference of k from `shots`; less than `shots`.
    """

    name: ClassVar[str] = "n-way"

    ways: PositiveInt = 3
    spread: NonNegativeInt = 1
    shots: int | None = None
    shot_spread: NonNegativeInt = 0

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.shots is None and self.shot_spread:
            raise InputError(f"shot_spread is {self.shot_spread} but shots is not set; set both")
        if self.shots is not None and self.shot_spread >= self.shots:
            raise InputError(
                f"shot_spread is {self.shot_spread} and shots {self.shots}; it must be less"
            )

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Draw each client's classes, then divide the images of each class."""
        known = torch.tensor(pool.classes)
        if self.ways > len(known):
            raise InputError(
                f"ways is {self.ways}; {pool.domain} has {len(known)} classes with training "
                "images; ",
                Words("use fewer {ways}"),
            )
        low = max(min(2, self.ways), self.ways - self.spread)
        high = min(len(known), self.ways + self.spread)
        ways = _draw(low, high, len(pool.clients), rng)
        classes = [known[torch.randperm(len(known), generator=rng)[:n]].tolist() for n in ways]
        shots: list[int | None] = [None] * len(ways)
        if self.shots is not None:
            low, high = self.shots - self.shot_spread, self.shots + self.shot_spread
            shots = list(_draw(low, high, len(ways), rng))
        return deal_classes(pool, "train", classes, shots, rng)


def _draw(low: int, high: int, n: int, rng: torch.Generator) -> list[int]:
    """Draw `n` integers from `low` to `high`, both included."""
    return torch.randint(low, high + 1, (n,), generator=rng).tolist()


@dataclass(frozen=True)
class Shards(Partitioner):
    """Clients of equal size with few classes each.

    From McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, arXiv 1602.05629. All images are used; if they cannot be divided evenly,
    shards differ by one image.

    Attributes:
        shards: shards per client. A shard may extend from one class into the next, so a client may
            have more classes than shards; or fewer, if two of its shards are of the same class.
    """

    name: ClassVar[str] = "shards"

    shards: PositiveInt = 2

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Sort the images by class, cut them into shards, and deal these in random order."""
        n_shards = len(pool.clients) * self.shards
        if n_shards > len(pool.train):
            raise InputError(
                f"{pool.domain} has {len(pool.train)} training images; {len(pool.clients)} clients "
                f"with {self.shards} shards each need at least {n_shards}; ",
                Words("use fewer {clients} or {shards}"),
            )
        pieces = pool.sorted_by_class(rng).tensor_split(n_shards)
        hands = torch.randperm(n_shards, generator=rng).split(self.shards)
        return [torch.cat([pieces[i] for i in hand.tolist()]) for hand in hands]
