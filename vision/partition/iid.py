"""IID partition: every client has a random sample of the images."""

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
    """Even division of shuffled images: no label skew; with one domain per client, domain shift.

    All images are used; clients of a pool differ by at most one image.
    """

    name: ClassVar[str] = "iid"

    def deal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Shuffle the images and divide them evenly."""
        if len(pool.train) < len(pool.clients):
            raise InputError(
                f"{pool.domain} has {len(pool.train)} training images for {len(pool.clients)} "
                "clients; each needs at least one"
            )
        shuffled = pool.train[torch.randperm(len(pool.train), generator=rng)]
        return list(shuffled.tensor_split(len(pool.clients)))
