"""FedTA's streams: tasks of new classes, some private to a client, some shared by all."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.data import Order
from vision.datasets.image_set import ImageSet
from vision.draws import Draw
from vision.streams.base import Streamer

Place = tuple[int, int]
"""Stage and client."""


@dataclass(frozen=True)
class FedTATasks(Streamer):
    """Private and public classes of each client, divided at random into tasks of equal size.

    The setting of FedTA (Yu et al., CVPR 2025, arXiv 2412.18355, section 5.1): 5 clients with 5
    tasks of 8 classes; on CIFAR-100, 15 of a client's 40 classes are private and 25 are public, on
    ImageNet-R all 40 are private. The training images of a public class are divided among the
    clients in proportions from a Dirichlet distribution; the class may be in a different task for
    each client. No training image belongs to two clients or tasks. Clients are tested on the
    official test images of their classes, which they may share. In the authors' related code
    (FedMGP), proportions are drawn again until each is at least 0.1, and clients are tested on 30 %
    of their training images; the paper mentions local test sets without details.

    Attributes:
        task_classes: classes of a task; a client has `stages` times as many.
        private_classes: number of a client's classes that no other client has.
        concentration: concentration of the Dirichlet distribution (related code: 1).
        min_share: smallest share of a public class for a client, less than 1 / clients.
        train_shots: training images to use of each class, over all its clients; by default all.
        test_shots: official test images to use of each class; by default all.
    """

    name: ClassVar[str] = "fedta-tasks"

    clients: PositiveInt = 5
    stage_order: Order = "sequential"
    task_classes: PositiveInt = 8
    private_classes: NonNegativeInt = 15
    concentration: PositiveFloat = 1.0
    min_share: NonNegativeFloat = 0.1
    train_shots: PositiveInt | None = None
    test_shots: PositiveInt | None = None

    def __post_init__(self) -> None:
        """Refuse values that do not go together."""
        super().__post_init__()
        if self.private_classes > self._n_own:
            raise InputError(
                f"private_classes is {self.private_classes}; a client has {self._n_own} classes, "
                f"{self.stages} tasks of {self.task_classes}"
            )
        if self.min_share * self.clients >= 1:
            raise InputError(
                f"min_share is {self.min_share}; {self.clients} clients can each have at least a "
                f"share below {1 / self.clients:g}"
            )

    @property
    def _n_own(self) -> int:
        return self.stages * self.task_classes

    def deal(self, images: ImageSet, seed: int) -> tuple[list[list[Tensor]], ...]:
        """Draw each client's classes and divide the images of each class."""
        tasks = self._tasks(images, Draw.FEDTA_CLASSES.generator(seed))
        rng = Draw.FEDTA_IMAGES.generator(seed)
        train, test = defaultdict[Place, list[Tensor]](list), defaultdict[Place, list[Tensor]](list)
        places_of = defaultdict[int, list[Place]](list)
        for client, stages in enumerate(tasks):
            for stage, classes in enumerate(stages):
                for label in classes:
                    places_of[label].append((stage, client))
        for label, places in sorted(places_of.items()):
            drawn = []
            for part, shots in ((False, self.train_shots), (True, self.test_shots)):
                ids = ((images.labels == label) & (images.is_test == part)).nonzero()[:, 0]
                drawn.append(ids[torch.randperm(len(ids), generator=rng)][:shots])
            own, official = drawn
            if not len(official):
                raise InputError(
                    f"class {images.class_names[label]} of {images.name} has no test images; add "
                    "some or leave the class out"
                )
            pieces = self._divided(images, label, own, len(places), rng)
            for place, ids in zip(places, pieces, strict=True):
                train[place].append(ids)
                test[place].append(official)
        return tuple(
            [[torch.cat(part[m, i]) for i in range(self.clients)] for m in range(self.stages)]
            for part in (train, test)
        )

    def _tasks(self, images: ImageSet, rng: torch.Generator) -> list[list[list[int]]]:
        """Draw the classes of each client and task."""
        known = images.labels[~images.is_test].unique()
        private, n_public = self.private_classes, self._n_own - self.private_classes
        needed = self.clients * private + n_public
        if needed > len(known):
            raise InputError(
                f"{images.name} has {len(known)} classes with training images; {self.clients} "
                f"clients with {private} private classes each and {n_public} public ones need "
                f"{needed}; ",
                Words("use fewer {clients}, {stages}, {task_classes} or {private_classes}"),
            )
        drawn = known[torch.randperm(len(known), generator=rng)]
        public = drawn[self.clients * private : needed]
        tasks = []
        for client in range(self.clients):
            own = torch.cat([drawn[client * private : (client + 1) * private], public])
            own = own[torch.randperm(len(own), generator=rng)]
            tasks.append([task.tolist() for task in own.split(self.task_classes)])
        return tasks

    def _divided(
        self, images: ImageSet, label: int, ids: Tensor, n: int, rng: torch.Generator
    ) -> list[Tensor]:
        """Divide a class's images, given in random order, among its n clients."""
        if n == 1:
            return [ids]
        numbers = np.random.default_rng(int(torch.randint(2**62, (), generator=rng)))
        draws = 1000
        for _ in range(draws):
            shares = numbers.dirichlet(np.full(n, self.concentration))
            cuts = np.rint(shares.cumsum() * len(ids)).astype(np.int64)[:-1]
            pieces = ids.tensor_split(cuts.tolist())
            if shares.min() >= self.min_share and all(len(p) > 0 for p in pieces):
                return list(pieces)
        raise InputError(
            f"{images.name} has {len(ids)} training images of {images.class_names[label]}; none "
            f"of {draws} draws with concentration {self.concentration:g} gave each of {n} clients "
            f"an image and a share of at least {self.min_share:g}; ",
            Words("use a larger {concentration}, a smaller {min_share} or fewer {clients}"),
        )
