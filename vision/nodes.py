"""Images on nodes: each node has the images of one client, and all know the same classes.

At the end a node's folder holds `metrics.csv`, the accuracies on its test images in the layout of
`vision.results`, and `model/`, which `Learner.load` reads and which needs no server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data_prep.base.errors import InputError, Words, some
from stforecast.federated.core.method import Method
from stforecast.federated.core.mixed_models import models_of_node
from stforecast.federated.core.state import State
from stforecast.federated.engine.sizing import pick_device
from stforecast.federated.engine.trainer import Trainer
from stforecast.federated.nodes.received import behind_link
from stforecast.federated.nodes.run_settings import FederationSettings, OwnClients
from stforecast.federated.runs.checkpoint import fingerprint
from stforecast.federated.runs.run_folder import write_csv
from vision.config import ImageConfig, resolve
from vision.datasets import load
from vision.datasets.image_set import ImageSet
from vision.evaluation import count_correct
from vision.learner import Learner, method_for_images, training_data
from vision.methods import METHODS
from vision.partition.base import Partition
from vision.results import metrics_table
from vision.streams.base import Streamer, TaskStream
from vision.task import stacked_images


@dataclass(frozen=True)
class ImageFederation(FederationSettings):
    """Settings of images on nodes. Images are RGB; grey ones are converted.

    Attributes:
        config: settings of the method and its model; nodes read no partition.
        classes: names of the classes of all nodes.
    """

    task = "images"
    metrics = ("error_rate",)
    protected = "a client's training images"

    config: ImageConfig
    classes: tuple[str, ...] = ()

    @property
    def method(self) -> type[Method]:
        """Class of the method."""
        return METHODS[self.config.method]

    def build_method(self, models: Sequence[str] = ("",)) -> Method:
        """Return the method with a new model; each client has one of `models`."""
        shape = 3, self.config.data.size, self.config.data.size
        return method_for_images(self.config, shape, len(self.classes), models=models)

    def clients_at(self, data: Path, first: int, model: str = "") -> ImageClient:
        """Return the client that has a node's images."""
        return ImageClient(self, data, first, model)

    @classmethod
    def read(cls, settings: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of the method, and the classes."""
        return {"config": resolve(**settings), "classes": parse_classes(str(values["classes"]))}

    def as_run_config(self) -> dict[str, Any]:
        """Return flat values for Flower's run configuration."""
        return super().as_run_config() | {"classes": ",".join(self.classes)}

    def check(self) -> None:
        """Refuse also what needs images of the server or of other nodes, and tasks."""
        data, streams = self.config.data, isinstance(self.config.partition, Streamer)
        given = self.config.flat()
        for name, odd, why in (
            ("surrogate", data.surrogate, "the server has no images; choose another method"),
            ("imbalance", data.imbalance > 1, "nodes train on all their images; leave it out"),
            ("size", not data.size, "nodes' images may differ in size; give one, such as 32"),
            ("feature_cache", given.get("feature_cache"), "no run says where a node writes"),
            ("partition", streams, "a node has all its images at once, not in tasks; leave it out"),
        ):
            if odd:
                raise InputError(f"{name} is {given[name]!r}: {why}")
        super().check()


def parse_classes(text: str) -> tuple[str, ...]:
    """Read names of classes, such as cat,dog."""
    classes = tuple(name.strip() for name in text.split(","))
    if len(classes) < 2 or not all(classes) or len(set(classes)) < len(classes):
        raise InputError(
            f"classes is {text!r}; give two different names or more, separated by commas: cat,dog"
        )
    return classes


def images_of_node(path: Path, size: int, classes: tuple[str, ...]) -> ImageSet:
    """Read a folder or an .npz file as RGB images of the federation's classes.

    Raises:
        InputError: if it has a class that the federation lacks, or no test images.
    """
    images = load("folder" if path.is_dir() else "npz", path, size=size).as_rgb()
    if unknown := [name for name in images.class_names if name not in classes]:
        raise InputError(
            f"{path}: has the classes {some(unknown)}, which the federation lacks; its classes are "
            f"{some(classes)}: rename or remove them here, or ",
            Words("ask the server's owner for other {classes}"),
        )
    if not images.is_test.any():
        raise InputError(f"{path}: has no test images; add some, or more images of a class")
    places = torch.tensor([classes.index(name) for name in images.class_names])
    return replace(images, labels=places[images.labels], class_names=classes)


class ImageClient(OwnClients):
    """The client of a node, see `stforecast.federated.nodes.run_settings.OwnClients`."""

    select: str = "last"

    def __init__(self, run: ImageFederation, path: Path, first: int, model: str = "") -> None:
        self.config = run.config
        models = models_of_node(run.config, model, first, 1)
        self.images = images_of_node(path, run.config.data.size, run.classes)
        is_test = self.images.is_test
        train, test = ((part.nonzero()[:, 0],) for part in (~is_test, is_test))
        device = pick_device(run.config.run.device)
        self.stream = TaskStream.of(Partition(train, test))
        self.test = stacked_images(self.images, test).to(device)
        self.trainer = Trainer(
            behind_link(run.build_method(models)),
            training_data(self.images, train, run.config),
            seed=run.config.run.seed,
            device=device,
            uplink=run.config.uplink,
            first=first,
            n_clients=run.n_clients,
        )
        self.identity: Mapping[str, Any] = {"images": fingerprint(*self.images.identity())}

    def finish(self, states: Mapping[str, State], folder: Path) -> tuple[dict[str, float], int]:
        """Save accuracies and the model; return the test errors and the number of images."""
        method, state, images = self.trainer.method, states["last"], self.images
        own, n_domains = self.stream.own_classes(images)[0], len(images.domain_names)
        counts = count_correct(method, state, self.test, own, n_domains, trained=self.trainer.state)
        learner = Learner.of_node(self.config, method, state, images, counts)
        learner.save(folder / "model")
        table = metrics_table(learner)
        write_csv(table[table["selection"] == "last"], folder / "metrics.csv")
        return {"error_rate": 1 - learner.accuracy()}, int(self.test.sizes.sum())
