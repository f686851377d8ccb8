"""Settings of an image run: flat names for users, one dataclass for each part of the system."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import NonNegativeInt, PositiveInt

from data_prep.base.registry import find, merged
from stforecast.federated.core.options import CheckedOptions, Device, Settings, Workers, flatten
from stforecast.federated.core.training import Training
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from vision.datasets import DATASETS, has_files, names_in
from vision.methods import METHODS
from vision.models import MODELS
from vision.partition import PARTITIONS
from vision.partition.base import Partitioner
from vision.streams import STREAMS
from vision.streams.base import Streamer

TRAINING: dict[str, Any] = {
    "rounds": 100,
    "optimizer": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "optimizer_state": "round",
    "batch_size": 32,
    "shuffle": True,
    "drop_last": False,
    "full_start": False,
}
"""Training defaults for images; a method may override them.

Optimisers are reset at the start of every round, as in the image papers' code. Moments that were
kept would move parameters without a gradient, such as a head's columns of former classes.
"""

OF_METHODS: dict[str, dict[str, Any]] = {"fedcp": {"lam": 1.0}}
"""Defaults of methods' own options that differ for images, by method.

With FedCP's 5 the features of images shrink; 1 is the default of PFLlib, by the same authors.
"""


@dataclass(frozen=True)
class ImageOptions(CheckedOptions):
    """Settings of the images.

    Attributes:
        data: name of a data set, or several joined by + as domains, such as mnist+usps.
        images: folder with the files of the data sets; digits8x8 and syn-generated need none.
        size: height and width to which all images are resized; 0 keeps the original size.
        imbalance: ratio of training images of the first class to the last class, with
            exponential decay in between; 1 keeps all images. Test images are not changed.
        surrogate: training images of each class that are held out for the server; some methods
            need them.
        within_task: whether a training prediction chooses only among the classes that its client
            has in the present task, as if the task were known, or among all classes. No method is
            told the task when it is tested.
    """

    data: str = "digits8x8"
    images: str | None = None
    size: NonNegativeInt = 32
    imbalance: Annotated[float, Ge(1)] = 1.0
    surrogate: NonNegativeInt = 0
    within_task: bool = False


@dataclass(frozen=True)
class ImageRunOptions(CheckedOptions):
    """Settings of the run itself.

    Attributes:
        partition: how images are divided among clients, or among clients and stages, see:
            stforecast vision list partitions.
        model: name of the model, see: stforecast vision list models.
        seed: random seed; the same seed gives the same numbers.
        device: device to compute on: auto, cpu or cuda; auto uses a GPU if there is one.
        workers: clients that train in parallel on a CPU; 0 uses all cores.
        cohort: clients whose models run together; 0 chooses automatically (1 for large models).
        test_every: rounds between two evaluations on the test images; the last round is always
            evaluated.
        checkpoint_every: rounds between two checkpoints; 0 writes one on a signal only. By
            default, checkpoints take at most a 20th of the time.
    """

    partition: str = "n-way"
    model: str = "convnet"
    seed: NonNegativeInt = 1
    device: Device = "auto"
    workers: Workers = 0
    cohort: NonNegativeInt = 0
    test_every: PositiveInt = 1
    checkpoint_every: NonNegativeInt | None = None


@dataclass(frozen=True)
class ImageConfig:
    """All settings of one image run, resolved.

    Attributes:
        method: name of the method.
        data: settings of the images.
        partition: how they are divided among clients, or among clients and stages.
        training: rounds, batches and the optimiser.
        uplink: processing of uploads, such as compression.
        robust: the server's defence against bad uploads.
        run: model, seed, device.
        method_options: an instance of the method's `Options`.
        model_options: an instance of the model's `Options`.
    """

    method: str
    data: ImageOptions
    partition: Partitioner | Streamer
    training: Training
    uplink: Uplink
    robust: Robust
    run: ImageRunOptions
    method_options: Any
    model_options: Any

    @property
    def total_rounds(self) -> int:
        """Number of rounds of all stages together."""
        stages = self.partition.stages if isinstance(self.partition, Streamer) else 1
        return stages * self.training.rounds

    def flat(self) -> dict[str, Any]:
        """Return the settings by flat name, so that `resolve(**config.flat())` equals this."""
        method, *parts = (getattr(self, f.name) for f in dataclasses.fields(self))
        return {"method": method, **flatten(*parts)}


class ImageSettings(Settings[ImageConfig]):
    """Settings of image runs."""

    depends_on = ("model", "partition")

    def methods(self) -> Iterator[str]:
        """Yield the names of methods."""
        yield from METHODS

    def defaults(self, method: str, model: str | None = None) -> dict[str, Any]:
        """Return a method's default settings for images, with its model and its partition."""
        chosen = {"model": ImageRunOptions.model, "partition": ImageRunOptions.partition}
        own = METHODS.find(method).defaults
        return {**chosen, **TRAINING, **own, **OF_METHODS.get(method, {})}

    def sections(self, method: str, *names: str) -> dict[str, type]:
        """Return the dataclass of each section, for a method, a model and a partition."""
        model, partition = names
        return {
            "data": ImageOptions,
            "partition": find("partition", partition, merged(PARTITIONS, STREAMS)),
            "training": Training,
            "uplink": Uplink,
            "robust": Robust,
            "run": ImageRunOptions,
            "method_options": METHODS.find(method).Options,
            "model_options": MODELS.find(model).Options,
        }

    def conditions(self, method: str, chosen: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings that the method never reads, or only for other tasks or data sets."""
        found = dict.fromkeys(METHODS.find(method).unread, "")
        found["patience"] = "the data have a validation part, which images lack"
        if any(map(has_files, names_in(str(chosen.get("data", ImageOptions.data))))):
            return found
        return {"images": f"data is one of {', '.join(filter(has_files, DATASETS))}", **found}


SETTINGS = ImageSettings(ImageConfig)
defaults, sections, unread = SETTINGS.defaults, SETTINGS.sections, SETTINGS.unread
check_read, read_by, resolve = SETTINGS.check_read, SETTINGS.read_by, SETTINGS.resolve
