"""Settings of an image run: flat names for people, one dataclass for each thing they configure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge
from pydantic import NonNegativeInt, PositiveInt

from data_prep.registry import find, join
from stforecast.federated.options import CheckedOptions, Workers
from stforecast.federated.settings import distribute, flatten
from stforecast.federated.training import Training
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from vision.methods import METHODS
from vision.models import MODELS
from vision.partition import PARTITIONS, Partitioner
from vision.streams import STREAMS, Streamer

TRAINING: dict[str, Any] = {
    "rounds": 100,
    "optimizer": "sgd",
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "batch_size": 32,
    "shuffle": True,
    "drop_last": False,
    "full_start": False,
}
"""Settings of training that images have, where a method has none of its own."""

NO_DIFFERENCE = frozenset({"seed", "device", "workers", "cohort", "images", "checkpoint_every"})
"""Settings in which runs that are averaged may differ."""


@dataclass(frozen=True)
class DataOptions(CheckedOptions):
    """Which images.

    Attributes:
        data: name of a data set, or several joined by + as domains, such as mnist+usps.
        images: folder in which the data sets' files lie; digits8x8 needs none.
        size: height and width to which all images are brought; 0 leaves them as they are.
        imbalance: how many times more training images the first class has than the last, with
            exponential decay in between; 1 leaves the set as it is. Test images stay as they are.
        surrogate: training images a class that the server has instead of the clients; some methods
            need them.
    """

    data: str = "digits8x8"
    images: str | None = None
    size: NonNegativeInt = 32
    imbalance: Annotated[float, Ge(1)] = 1.0
    surrogate: NonNegativeInt = 0


@dataclass(frozen=True)
class RunOptions(CheckedOptions):
    """How it is computed.

    Attributes:
        partition: how images are divided among clients, or among clients and stages, see:
            stforecast vision list partitions.
        model: name of the model, see: stforecast vision list models.
        seed: seed of everything random; the same seed gives the same numbers.
        device: where to compute: auto, cpu or cuda; auto takes a GPU where there is one.
        workers: clients that train at the same time on a CPU; 0 takes as many as there are cores.
        cohort: clients whose models run together; 0 chooses, which is 1 for convolutions.
        test_every: rounds between two evaluations on the test images; the last is always judged.
        checkpoint_every: rounds from one checkpoint to the next; 0 takes one on a signal only. By
            default as often as that costs no more than a 20th of the time.
    """

    partition: str = "n-way"
    model: str = "convnet"
    seed: NonNegativeInt = 1
    device: str = "auto"
    workers: Workers = 0
    cohort: NonNegativeInt = 0
    test_every: PositiveInt = 1
    checkpoint_every: NonNegativeInt | None = None


@dataclass(frozen=True)
class Config:
    """All settings of one image run, resolved.

    Attributes:
        method: name of the method.
        data: which images.
        partition: how they are divided among clients, or among clients and stages.
        training: rounds, batches and the like.
        uplink: what is done to uploads on their way.
        robust: how the server guards itself against bad uploads.
        run: model, seed, device.
        method_options: an instance of the method's `Options`.
        model_options: an instance of the model's `Options`.
    """

    method: str
    data: DataOptions
    partition: Partitioner | Streamer
    training: Training
    uplink: Uplink
    robust: Robust
    run: RunOptions
    method_options: Any
    model_options: Any

    def flat(self) -> dict[str, Any]:
        """The settings under their flat names, so that `resolve(**config.flat())` equals this."""
        method, *parts = (getattr(self, f.name) for f in dataclasses.fields(self))
        return {"method": method, **flatten(*parts)}


def find_division(name: str) -> type[Partitioner] | type[Streamer]:
    """The partition or task stream of that name.

    Raises:
        InputError: listing the names if there is none.
    """
    found: type[Partitioner] | type[Streamer] = find("partition", name, join(PARTITIONS, STREAMS))
    return found


def sections(method: str, model: str, partition: str) -> dict[str, type]:
    """Name of each section of `Config` and its dataclass.

    Raises:
        InputError: listing the valid names if there is no such method, model or partition.
    """
    return {
        "data": DataOptions,
        "partition": find_division(partition),
        "training": Training,
        "uplink": Uplink,
        "robust": Robust,
        "run": RunOptions,
        "method_options": METHODS.find(method).Options,
        "model_options": MODELS.find(model).Options,
    }


def defaults(method: str) -> dict[str, Any]:
    """Settings that images, or this method, are made for; model and partition always among them.

    The help of the command line and `resolve` both start from them.

    Raises:
        InputError: listing the methods if there is no such one.
    """
    chosen = {"model": RunOptions.model, "partition": RunOptions.partition}
    return {**chosen, **TRAINING, **METHODS.find(method).defaults}


def resolve(method: str, **settings: Any) -> Config:
    """Settings by flat name to a `Config`, types checked and converted.

    Raises:
        InputError: for an unknown name (with those like it) or a value that does not fit.
    """
    settings = {**defaults(method), **settings}
    types = sections(method, str(settings["model"]), str(settings["partition"]))
    return Config(method, **distribute(method, types, settings))
