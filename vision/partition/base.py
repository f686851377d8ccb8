"""Base class and result of partitions: domains, training images and test images of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError
from stforecast.federated.core.options import CheckedOptions, PositiveShare
from stforecast.federated.core.state import generator
from vision.datasets.image_set import ImageSet
from vision.datasets.strata import chosen_share
from vision.partition.pools import Pool, deal_classes, deal_mix, make_pools

THIN, DEAL, TEST = 3, 4, 5
"""First of the three numbers of a generator's key; rounds use keys of two numbers."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Training and test images of each client.

    Attributes:
        train: ids `(n,)` of each client's training images, increasing; clients share no image.
        test: the same for test images, which clients may share.
    """

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]

    def table(self, images: ImageSet) -> pd.DataFrame:
        """Count each client's images of each class and domain in the set that was split.

        The columns are `client` (from 0), `part` ("train" or "test"), `domain`, `class` (names) and
        `samples`, with a row for each combination that occurs, in that order.
        """
        rows = [
            (client, part, images.domain_names[domain], images.class_names[label], n)
            for part, clients in (("train", self.train), ("test", self.test))
            for client, ids in enumerate(clients)
            for domain, label, n in _counts(images, ids)
        ]
        return pd.DataFrame(rows, columns=["client", "part", "domain", "class", "samples"])


def _counts(images: ImageSet, ids: Tensor) -> list[tuple[int, int, int]]:
    """Return domain, class and number of images of each combination among some images."""
    pairs = torch.stack([images.domains[ids], images.labels[ids]])
    found, counts = pairs.unique(dim=1, return_counts=True)
    return [(*pair, n) for pair, n in zip(found.T.tolist(), counts.tolist(), strict=True)]


@dataclass(frozen=True)
class Partitioner(CheckedOptions, ABC):
    """Division of a set's training and test part among clients.

    A kind of partition is a subclass in its own file with a `name`. Its `deal` divides the training
    images of one domain among the domain's clients (label skew). The assignment of domains to
    clients (domain shift) and the choice of test images are independent of it.

    Test images always come from the set's test part, so no client trains on them. PFLlib instead
    joins both parts, divides all images and holds out a random quarter of each client's images; the
    class shares of its test images then match those of training only approximately.

    Attributes:
        clients: number of clients.
        domains: `mixed` (every client draws from all domains), `random` (each client draws one
            domain with equal probability) or the number of clients of each domain, such as
            `mnist:6,usps:4,svhn:10`; clients are then numbered in this order.
        share: share of the training images of each class and domain to use, rounded, but at least
            one image.
        test: number of a client's test images of each class: `by-class`, `test_shots` of each;
            `own-mix`, in the class shares of its training images.
        test_classes: whether a client is tested on the classes of its training images (`own`) or
            on all classes of its domain (`all`, with `by-class` only).
        test_shots: test images of each class; with `own-mix` their mean over a client's classes. By
            default all images, divided evenly if they are not shared; with `own-mix` as many as
            keep the class shares exact to less than one image per class.
        shared_test: whether clients may be tested on the same images. If not, each test image
            belongs to at most one client.
    """

    name: ClassVar[str] = ""

    clients: PositiveInt = 20
    domains: str = "mixed"
    share: PositiveShare = 1.0
    test: Literal["by-class", "own-mix"] = "by-class"
    test_classes: Literal["own", "all"] = "own"
    test_shots: PositiveInt | None = None
    shared_test: bool = True

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.test == "own-mix" and self.test_classes == "all":
            raise InputError(
                "test is own-mix and test_classes all; own-mix has the client's own classes, so "
                "leave test_classes at own"
            )

    @abstractmethod
    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Return the ids of the training images of each of the pool's clients.

        Raises:
            InputError: if the division is impossible; gives the numbers.
        """

    def split(self, images: ImageSet, seed: int = 0) -> Partition:
        """Divide a set.

        Args:
            images: set with a training and a test part.
            seed: the same seed gives the same partition.

        Raises:
            InputError: if the division is impossible; gives the numbers.
        """
        if self.clients > (n_train := int((~images.is_test).sum())):
            raise InputError(
                f"{images.name} has {n_train} training images for {self.clients} clients; each "
                "needs at least one"
            )
        pools = make_pools(images, self.domains, self.clients, seed)
        train: dict[int, Tensor] = {}
        test: dict[int, Tensor] = {}
        for number, pool in enumerate(pools):
            kept = self._thin(pool, generator(seed, THIN, number, 0))
            dealt = self.deal(kept, generator(seed, DEAL, number, 0))
            tested = self._test(pool, dealt, generator(seed, TEST, number, 0))
            train.update(zip(pool.clients, dealt, strict=True))
            test.update(zip(pool.clients, tested, strict=True))
        return Partition(
            *(tuple(d[i].sort().values for i in range(self.clients)) for d in (train, test))
        )

    def _thin(self, pool: Pool, rng: torch.Generator) -> Pool:
        """Return the pool with a `share` of the training images of each class and domain."""
        if self.share == 1:
            return pool
        images = pool.images
        strata = images.domains[pool.train] * len(images.class_names) + images.labels[pool.train]
        return pool.with_train(pool.train[chosen_share(strata, self.share, rng)])

    def _test(self, pool: Pool, dealt: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
        """Choose test images for each of the pool's clients."""
        if not self.shared_test:
            return self._test_apart(pool, dealt, rng)
        return [
            self._test_apart(pool.for_clients([client]), [ids], rng)[0]
            for client, ids in zip(pool.clients, dealt, strict=True)
        ]

    def _test_apart(
        self, pool: Pool, dealt: Sequence[Tensor], rng: torch.Generator
    ) -> list[Tensor]:
        """Choose test images for each of the pool's clients; clients share no image."""
        if self.test == "own-mix":
            return deal_mix(pool, dealt, self.test_shots, rng)
        labels = pool.images.labels
        everything = labels[pool.test].unique().tolist()
        classes = [
            everything if self.test_classes == "all" else labels[ids].unique().tolist()
            for ids in dealt
        ]
        return deal_classes(pool, "test", classes, [self.test_shots] * len(classes), rng)
