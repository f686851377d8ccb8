"""Dirichlet partition: the images of each class are divided in random proportions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.errors import InputError
from vision.partition.base import Partitioner
from vision.partition.pools import Pool

DRAWS = 200


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Division of each class among the clients in proportions from a Dirichlet distribution.

    Clients differ in their class shares and in size. From Hsu, Qi, Brown, "Measuring the Effects of
    Non-Identical Data Distribution for Federated Visual Classification", 2019, arXiv 1909.06335, in
    the form of Yurochkin et al., ICML 2019, arXiv 1905.12022.

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
        if n * self.min_samples > len(pool.train):
            raise InputError(
                f"{pool.domain} has {len(pool.train)} training images and {n} clients ask for at "
                f"least {self.min_samples} each; use fewer clients or a smaller min_samples"
            )
        members = self._members(pool, rng)
        sizes = np.array([len(ids) for ids in members])
        numbers = np.random.default_rng(rng.initial_seed())
        fewest = 0
        for _ in range(DRAWS):
            shares = numbers.dirichlet(np.full(n, self.concentration), len(members))
            cuts = np.rint(shares.cumsum(1) * sizes[:, None]).astype(np.int64)[:, :-1]
            counts = np.diff(cuts, axis=1, prepend=0, append=sizes[:, None])
            fewest = max(fewest, int(counts.sum(0).min()))
            if fewest >= self.min_samples:
                break
        else:
            raise InputError(
                f"dirichlet with concentration {self.concentration:g}: in {DRAWS} draws for {n} "
                f"clients and {len(pool.train)} training images of {pool.domain}, the smallest "
                f"client never had more than {fewest}; use a larger concentration, fewer clients "
                f"or min_samples below {self.min_samples}"
            )
        pieces = [ids.tensor_split(cut.tolist()) for ids, cut in zip(members, cuts, strict=True)]
        return [torch.cat([piece[i] for piece in pieces]) for i in range(n)]

    @staticmethod
    def _members(pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Return the shuffled training images of each class."""
        shuffled = pool.train[torch.randperm(len(pool.train), generator=rng)]
        labels = pool.images.labels[shuffled]
        return [shuffled[labels == label] for label in pool.classes]
