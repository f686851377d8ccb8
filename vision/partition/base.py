"""What all partitions share: which domain a client has, what it is tested on, and the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.options import CheckedOptions, PositiveShare
from stforecast.federated.state import generator
from vision.datasets.image_set import ImageSet
from vision.datasets.strata import chosen
from vision.partition.pools import Pool, deal_classes, deal_mix, make_pools

THIN, DEAL, TEST = 3, 4, 5
"""First numbers of the keys of generators, which have three; rounds use keys of two."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Who has which images.

    Attributes:
        train: ids `(n,)` of each client's training images, increasing; no image is two clients'.
        test: the same of its test images, which clients may share.
    """

    train: tuple[Tensor, ...]
    test: tuple[Tensor, ...]

    def table(self, images: ImageSet) -> pd.DataFrame:
        """How many images of which class and domain each client has.

        Args:
            images: the set that was split.

        Returns:
            Columns `client` (from 0), `part` ("train" or "test"), `domain`, `class` (names) and
            `samples`, one row for each combination that occurs, in that order.
        """
        rows = [
            (client, part, images.domain_names[domain], images.class_names[label], n)
            for part, clients in (("train", self.train), ("test", self.test))
            for client, ids in enumerate(clients)
            for domain, label, n in _counts(images, ids)
        ]
        return pd.DataFrame(rows, columns=["client", "part", "domain", "class", "samples"])


def _counts(images: ImageSet, ids: Tensor) -> list[tuple[int, int, int]]:
    """Domain, class and number of images of each combination among some images."""
    pairs = torch.stack([images.domains[ids], images.labels[ids]])
    found, counts = pairs.unique(dim=1, return_counts=True)
    return [(*pair, n) for pair, n in zip(found.T.tolist(), counts.tolist(), strict=True)]


@dataclass(frozen=True)
class Partitioner(CheckedOptions, ABC):
    """Divides a set's training and test part among clients.

    A kind of partition is a subclass in a file of its own that has a `name` and says in `deal` how
    the clients of one domain share that domain's training images (label skew). How domains are
    given to clients (domain shift) and what clients are tested on are independent of that.

    Test images are always of the set's test part, so nobody trained on them. PFLlib instead joins
    both parts, divides all images and holds out a random quarter of each client's own: there, too,
    a client's test images have its training mix, as with `own-mix`, but only about so.

    Attributes:
        clients: number of clients.
        domains: `mixed` (every client draws from all domains), `random` (each client draws one
            domain, all being equally likely) or how many clients have each domain, as
            `mnist:6,usps:4,svhn:3,syn-generated:7`; clients are then numbered in this order.
        share: share of the training images of each class and domain that is used at all, rounded
            but never none.
        test: how many test images of each class a client has: `by-class`, `test_shots` of each;
            `own-mix`, in the shares that the classes have among its own training images.
        test_classes: whether a client is tested on the classes of its training images (`own`) or
            on all classes of its domain (`all`, with `by-class` only).
        test_shots: test images of each class; with `own-mix` their mean over a client's classes. By
            default all there are, in even parts where they are not shared; with `own-mix` as many
            as keep the shares, which are then exact but for less than one image a class.
        shared_test: whether clients may be tested on the same images. If not, each test image is
            one client's at most.
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
        """Divide one pool's training images.

        Args:
            pool: images, and the clients among whom to divide them.
            rng: random numbers.

        Returns:
            Ids of each of the pool's clients.

        Raises:
            InputError: with the numbers that make it impossible.
        """

    def split(self, images: ImageSet, seed: int = 0) -> Partition:
        """Divide a set.

        Args:
            images: with a training and a test part.
            seed: the same seed gives the same partition.

        Raises:
            InputError: with the numbers that make it impossible.
        """
        if self.clients > (n_train := int((~images.is_test).sum())):
            raise InputError(
                f"{images.name} has {n_train} training images for {self.clients} clients, and each "
                "needs one"
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
        """The pool with the wanted share of the training images of each class and domain."""
        if self.share == 1:
            return pool
        images = pool.images
        strata = images.domains[pool.train] * len(images.class_names) + images.labels[pool.train]
        return pool.with_train(pool.train[chosen(strata, self.share, rng)])

    def _test(self, pool: Pool, dealt: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
        """Test images of each of the pool's clients."""
        if not self.shared_test:
            return self._test_apart(pool, dealt, rng)
        return [
            self._test_apart(pool.for_clients([client]), [ids], rng)[0]
            for client, ids in zip(pool.clients, dealt, strict=True)
        ]

    def _test_apart(
        self, pool: Pool, dealt: Sequence[Tensor], rng: torch.Generator
    ) -> list[Tensor]:
        """Test images of each of the pool's clients, none of two of them."""
        if self.test == "own-mix":
            return deal_mix(pool, dealt, self.test_shots, rng)
        labels = pool.images.labels
        everything = labels[pool.test].unique().tolist()
        classes = [
            everything if self.test_classes == "all" else labels[ids].unique().tolist()
            for ids in dealt
        ]
        return deal_classes(pool, "test", classes, [self.test_shots] * len(classes), rng)
