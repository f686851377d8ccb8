"""Base class and result of task streams: images of each client and stage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import pandas as pd
import torch
from pydantic import PositiveInt
from torch import Tensor

from data_prep.base.errors import InputError, Words
from stforecast.federated.core.data import Order
from stforecast.federated.core.options import CheckedOptions
from vision.datasets.image_set import ImageSet
from vision.partition.base import Partition, check_dealt

Ids = tuple[tuple[Tensor, ...], ...]
"""Increasing ids `(n,)` of images by stage and client; a client may have none in a stage."""


@dataclass(frozen=True, eq=False)
class TaskStream:
    """Training and test images of each client and stage.

    Attributes:
        train: training images.
        test: test images of the same stages.
        order: `inside`: all stages pass within each global round; `sequential`: one after another.
    """

    train: Ids
    test: Ids
    order: Order = "inside"

    def __len__(self) -> int:
        return len(self.train)

    @classmethod
    def of(cls, division: Partition | TaskStream) -> TaskStream:
        """Return a stream unchanged, or a partition as a stream of one stage."""
        if isinstance(division, TaskStream):
            return division
        return cls((division.train,), (division.test,))

    def accumulated(self) -> TaskStream:
        """Return the stream in which clients keep the training images of former stages."""
        so_far = [self.train[: m + 1] for m in range(len(self))]
        train = tuple(
            tuple(torch.cat(ids).unique() for ids in zip(*stages, strict=True)) for stages in so_far
        )
        return replace(self, train=train)

    def pooled(self) -> TaskStream:
        """Return the stream of one client that has everybody's training images."""
        return replace(self, train=tuple((torch.cat(ids).unique(),) for ids in self.train))

    def task_classes(self, images: ImageSet) -> list[Tensor]:
        """Return for each stage whether a client has training images of a class in it.

        Each is `(clients, classes)`.
        """
        has = torch.zeros(len(self), len(self.train[0]), len(images.class_names), dtype=torch.bool)
        for stage, clients in enumerate(self.train):
            for client, ids in enumerate(clients):
                has[stage, client, images.labels[ids]] = True
        return list(has)

    def own_classes(self, images: ImageSet) -> list[Tensor]:
        """Return the same for training images in the stage or before."""
        return list(accumulate(self.task_classes(images), torch.logical_or))

    def table(self, images: ImageSet) -> pd.DataFrame:
        """Count images as `Partition.table` does, with a further column `stage`, from 0."""
        tables = [
            Partition(train, test).table(images).assign(stage=m)
            for m, (train, test) in enumerate(zip(self.train, self.test, strict=True))
        ]
        columns = ["client", "part", "stage", "domain", "class", "samples"]
        return pd.concat(tables)[columns].sort_values("stage", kind="stable", ignore_index=True)


@dataclass(frozen=True)
class Streamer(CheckedOptions, ABC):
    """Division of a set among clients and stages.

    A kind of stream is a subclass in its own file with a `name` and a method `deal`.

    Attributes:
        clients: number of clients, N.
        stages: number of stages, M.
        stage_order: `inside`: all stages pass within each global round (GLDP, Algorithm 1);
            `sequential`: each stage has all its rounds before the next begins.
    """

    name: ClassVar[str] = ""

    clients: PositiveInt = 20
    stages: PositiveInt = 5
    stage_order: Order = "inside"

    @abstractmethod
    def deal(self, images: ImageSet, seed: int) -> tuple[Sequence[Sequence[Tensor]], ...]:
        """Return training and test ids by stage and client; see `split`."""

    def split(self, images: ImageSet, seed: int = 0) -> TaskStream:
        """Divide a set.

        Args:
            images: set with a training and a test part.
            seed: the same seed gives the same stream.

        Raises:
            InputError: if the division is impossible; gives the numbers.
        """
        if max(self.clients, self.stages) > len(images):
            raise InputError(
                f"clients is {self.clients} and stages {self.stages}; {images.name} has "
                f"{len(images)} images; ",
                Words("use fewer {clients} or {stages}"),
            )
        train, test = self.deal(images, seed)
        self._check_dealt("training images", train, ~images.is_test)
        trained = torch.zeros_like(images.is_test)
        trained[torch.cat([ids for stage in train for ids in stage])] = True
        self._check_dealt("test images that nobody trains on", test, ~trained)
        train, test = (
            tuple(tuple(ids.sort().values for ids in stage) for stage in part)
            for part in (train, test)
        )
        return TaskStream(train, test, self.stage_order)

    def _check_dealt(self, what: str, part: Sequence[Sequence[Tensor]], allowed: Tensor) -> None:
        origin = f"stream {self.name}, {what}"
        if len(part) != self.stages:
            raise InputError(f"{origin}: deal returned {len(part)} stages, expected {self.stages}")
        for stage in part:
            check_dealt(origin, stage, self.clients, allowed)
