"""Shards: images sorted by class are cut into equal pieces, of which each client gets some."""

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
    """Clients of equal size that know few classes each.

    From McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, arXiv 1602.05629. All images are given out; where they cannot be cut
    evenly, shards differ by one image.

    Attributes:
        shards: shards a client. A shard may reach from one class into the next, so a client can
            know more classes than this; and fewer, where two of its shards are of one class.
    """

    name: ClassVar[str] = "shards"

    shards: PositiveInt = 2

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Sort by class, cut, and deal the pieces in random order."""
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
