"""Shards partition: images sorted by class are cut into equal shards, some for each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.errors import InputError
from vision.partition.base import Partitioner
from vision.partition.pools import Pool


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
                f"with {self.shards} shards each need at least {n_shards}"
            )
        shuffled = pool.train[torch.randperm(len(pool.train), generator=rng)]
        pieces = shuffled[pool.images.labels[shuffled].argsort(stable=True)].tensor_split(n_shards)
        hands = torch.randperm(n_shards, generator=rng).split(self.shards)
        return [torch.cat([pieces[i] for i in hand.tolist()]) for hand in hands]
