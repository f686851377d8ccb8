"""n-way k-shot partition: each client has a few classes and a few images of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from data_prep.errors import InputError
from vision.partition.base import Partitioner
from vision.partition.pools import Pool, deal_classes


@dataclass(frozen=True)
class NWay(Partitioner):
    """Random choice of about n classes per client, with about k training images of each.

    As in FedProto (Tan et al., AAAI 2022, arXiv 2105.00243), which PFPL follows: a client's n is
    drawn uniformly from the integers `ways` ± `spread`, its k from `shots` ± `shot_spread`, and its
    n classes from those of its domain. FedProto calls this half width a standard deviation. n is
    limited to the range from 2 (a client with one class has nothing to learn; 1 if `ways` is 1) to
    the number of classes; if that cuts the range, the mean is not `ways`.

    Attributes:
        ways: mean number of classes per client, n.
        spread: largest difference of n from `ways`.
        shots: training images per class, k; None divides the images of each class evenly among the
            clients of the domain that have the class.
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
                f"ways is {self.ways}; {pool.domain} has {len(known)} classes with training images"
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
