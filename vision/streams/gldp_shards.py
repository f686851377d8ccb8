"""GLDP's streams: a few classes for every client in every stage, at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from vision.datasets.image_set import ImageSet
from vision.draws import Draw
from vision.partition.base import Pool, deal_classes, make_pools
from vision.streams.base import Streamer


@dataclass(frozen=True)
class GLDPShards(Streamer):
    """Shards of images for N clients, S in each of M stages, [N, S, M].

    The setting of GLDP (STHFL; Guo et al.): classes and their frequencies differ between clients
    and drift between a client's stages. With one stage it is the paper's spatial setting. The paper
    writes that "each client contains S classes"; here a client has S in each stage. They are
    random, so a stage need not have a class that is new to the client.

    The paper requires that all clients have the same number of samples and exactly S classes. On
    long-tailed data, shards of equal size do not give the latter, and shards that cut each class
    evenly do not give the former. With `equal` shards the sorted images are cut evenly (McMahan
    et al., AISTATS 2017): clients have equal sizes, most shards are of frequent classes, and a
    client has about S classes, fewer with a longer tail, more if shards of rare classes extend into
    the next class. With `class` shards (the authors' later code, after FedRep's) every class is cut
    into equally many shards: a client has exactly S classes in a stage, and sizes differ.

    Attributes:
        shards: shards per client and stage, S.
        cut: `equal`: shards of equal size; `class`: equally many shards of each class.
        stage_spread: largest number of missing stages of a client, drawn uniformly (the paper's
            future work); a client misses the last ones.
        shared_test: whether clients are tested on all test images of their classes, again in each
            stage that has the class. If not, each client has its own images, equally many of each
            class, limited by the class with the fewest per client; the rest is not used.
    """

    name: ClassVar[str] = "gldp-shards"

    shards: PositiveInt = 4
    cut: Literal["equal", "class"] = "equal"
    stage_spread: NonNegativeInt = 0
    shared_test: bool = False

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.stage_spread >= self.stages:
            raise InputError(
                f"stage_spread is {self.stage_spread} and stages {self.stages}; it must be less"
            )

    def deal(self, images: ImageSet, seed: int) -> tuple[list[list[Tensor]], ...]:
        """Deal shards to hands, one for each client and stage."""
        rng = Draw.GLDP_LENGTHS.generator(seed)
        low = self.stages - self.stage_spread
        lengths = torch.randint(low, self.stages + 1, (self.clients,), generator=rng)
        lengths[lengths.argmax()] = self.stages  # At least one client has all stages.
        hands = [(client, stage) for client, n in enumerate(lengths) for stage in range(n)]
        (pool,) = make_pools(images, "mixed", len(hands), seed)
        cut = {"equal": self._equal, "class": self._of_class}[self.cut]
        train = cut(pool, Draw.GLDP_DEAL.generator(seed))
        test = self._test(pool, train, Draw.GLDP_TEST.generator(seed))
        parts = [dict(zip(hands, dealt, strict=True)) for dealt in (train, test)]
        return tuple(
            [
                [of.get((client, stage), pool.train[:0]) for client in range(self.clients)]
                for stage in range(self.stages)
            ]
            for of in parts
        )

    def _equal(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Cut all images, sorted by class, into shards of equal size and deal them at random."""
        n_shards = len(pool.clients) * self.shards
        if n_shards > len(pool.train):
            raise InputError(
                f"{pool.images.name} has {len(pool.train)} training images; {self.clients} clients "
                f"with {self.shards} shards in each of {self.stages} stages need {n_shards}; ",
                Words("use fewer {clients}, {shards} or {stages}"),
            )
        sizes = (torch.arange(n_shards + 1) * len(pool.train) // n_shards).diff()
        pieces = pool.sorted_by_class(rng).split(sizes.tolist())
        # Shards differ by one image; the smaller ones are distributed evenly over the hands.
        order = torch.randperm(n_shards, generator=rng)
        order = order[sizes[order].argsort(stable=True)]
        hands = [order[i :: len(pool.clients)].tolist() for i in range(len(pool.clients))]
        return [torch.cat([pieces[i] for i in hand]) for hand in hands]

    def _of_class(self, pool: Pool, rng: torch.Generator) -> list[Tensor]:
        """Give each hand S classes; the numbers of hands per class differ by at most one."""
        known = pool.classes
        if self.shards > len(known):
            raise InputError(
                f"shards is {self.shards}; {pool.images.name} has {len(known)} classes with "
                "training images; use at most as many"
            )
        dealt = torch.zeros(len(known))
        classes: list[list[int]] = []
        for _ in pool.clients:
            # The least used classes first, ties in random order.
            order = (dealt + torch.rand(len(known), generator=rng)).argsort()[: self.shards]
            dealt[order] += 1
            classes.append([known[i] for i in order.tolist()])
        shuffled = torch.randperm(len(classes), generator=rng).tolist()
        return deal_classes(
            pool, "train", [classes[i] for i in shuffled], [None] * len(classes), rng
        )

    def _test(self, pool: Pool, train: Sequence[Tensor], rng: torch.Generator) -> list[Tensor]:
        """Choose test images of each hand's classes, equally many of each class."""
        labels = pool.images.labels
        classes = [labels[ids].unique() for ids in train]
        if self.shared_test:
            return [pool.test[torch.isin(labels[pool.test], own)] for own in classes]
        hands = torch.cat(classes).bincount(minlength=len(pool.images.class_names))
        there = labels[pool.test].bincount(minlength=len(hands))
        shots = int((there // hands.clamp(min=1))[hands > 0].min())
        # If a class has too few images, asking for one raises the error.
        return deal_classes(
            pool, "test", [own.tolist() for own in classes], [max(shots, 1)] * len(classes), rng
        )
