"""IID: every client has a random sample of the whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from data_prep.errors import InputError
from vision.partition.base import Partitioner
from vision.partition.pools import Pool


@dataclass(frozen=True)
class IID(Partitioner):
    """Shuffled and divided evenly: no label skew. With one domain a client, pure domain shift.

    All images are given out; clients of a pool differ by one image at most.
    """

    name: ClassVar[str] = "iid"

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Shuffle and cut."""
        if len(pool.train) < len(pool.clients):
            raise InputError(
                f"{pool.domain} has {len(pool.train)} training images for {len(pool.clients)} "
                "clients; each needs one"
            )
        shuffled = pool.train[torch.randperm(len(pool.train), generator=rng)]
        return list(shuffled.tensor_split(len(pool.clients)))
