"""What all partitions share: which domain a client has, what it is tested on, and the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pandas as pd
import torch
from torch import Tensor

from data_prep.errors import InputError
from stforecast.federated.options import check_options
from stforecast.federated.state import generator
from vision.datasets.image_set import ImageSet
from vision.datasets.strata import chosen
from vision.partition.pools import Pool, deal_classes, make_pools

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
class Partitioner(ABC):
    """Divides a set's training and test part among clients.

    A kind of partition is a subclass in a file of its own that has a `name` and says in `deal` how
    the clients of one domain share that domain's training images (label skew). How domains are
    given to clients (domain shift) is independent of that.

    Attributes:
        clients: number of clients.
        domains: `mixed` (every client draws from all domains), `random` (each client draws one
            domain, all being equally likely) or how many clients have each domain, as
            `mnist:6,usps:4,svhn:3,syn-generated:7`; clients are then numbered in this order.
        share: share of the training images of each class and domain that is used at all, in
            (0, 1].
        test_classes: whether a client is tested on the classes of its training images (`own`) or
            on all classes of its domain (`all`).
        test_shots: test images a client and class; None is all there are.
        shared_test: whether clients may be tested on the same images. If not, the test images of a
            class and domain are divided among its clients.
    """

    name: ClassVar[str] = ""

    clients: int = 20
    domains: str = "mixed"
    share: float = 1.0
    test_classes: Literal["own", "all"] = "own"
    test_shots: int | None = None
    shared_test: bool = True

    def __post_init__(self) -> None:
        check_options(self, positive=("clients", "share"), share=("share",))
        if self.test_shots is not None:
            check_options(self, positive=("test_shots",))

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
        labels = pool.images.labels
        everything = labels[pool.test].unique().tolist()
        classes = [
            everything if self.test_classes == "all" else labels[ids].unique().tolist()
            for ids in dealt
        ]
        shots = [self.test_shots] * len(classes)
        if not self.shared_test:
            return deal_classes(pool, "test", classes, shots, rng)
        alone = [pool.for_clients([client]) for client in pool.clients]
        return [
            deal_classes(one, "test", [own], [self.test_shots], rng)[0]
            for one, own in zip(alone, classes, strict=True)
        ]
