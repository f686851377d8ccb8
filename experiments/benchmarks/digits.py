"""Attacks on clients with images of digits: used by the benchmark `disclosure`.

Training is inverted as in `experiments.benchmarks.unrolled`. The attacker also knows the classes of
the images: uploads show which ones a client has, and of one image the class follows from the
gradient (Zhao, Mopuri, Bilen: iDLG, arXiv 2001.02610). It guesses the mean image of all others in
the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from experiments.benchmarks.inversion import Recovered, Senders
from experiments.benchmarks.unrolled import inverted
from stforecast.federated.core.data import ClientData
from vision.config import resolve
from vision.datasets import load
from vision.datasets.image_set import ImageSet
from vision.learner import method_for_images, training_data

DATA, CLIENTS = "digits8x8", 3

RUNS: Sequence[tuple[str, str, int, int, Mapping[str, Any]]] = (
    ("fedavg", "one image", 1, 1, {}),
    ("fedavg", "cnn, one image", 1, 1, {"model": "cnn"}),
    ("fedavg", "cnn, eight images", 4, 2, {"model": "cnn"}),
    ("pfpl", "one image of each class", 4, 1, {}),
    ("pfpl", "four images of each class", 2, 4, {}),
)
"""Method, settings in words, a client's classes and images of each, and settings."""


@dataclasses.dataclass(frozen=True, eq=False)
class Painters(Senders):
    """Clients with digits.

    Attributes:
        digits: all digits as they are, before they are resized.
        ids: numbers of each client's digits.
        size: height and width to which runs resize them.
    """

    digits: ImageSet
    ids: list[Tensor]
    size: int

    @classmethod
    def of(cls, method: str, classes: int, each: int, **settings: Any) -> Painters:
        """Give each client the next digits of the first classes."""
        config = resolve(method, device="cpu", data=DATA, **settings)
        digits, size = load(DATA), config.data.size
        of_class = [(digits.labels == c).nonzero()[:, 0] for c in range(classes)]
        ids = [torch.cat([c[i * each :][:each] for c in of_class]) for i in range(CLIENTS)]
        built = method_for_images(config, (digits.channels, size, size), len(digits.class_names))
        samples = training_data(digits.resized(size), ids, config)
        return cls(built, samples, config.run.seed, digits, ids, size)

    @cached_property
    def pixels(self) -> Tensor:
        """Pixels of all digits, z-scored with the moments of all, `(pixels, images)`."""
        pixels = self.digits.images.flatten(1).mT / 255.0
        return ((pixels - pixels.mean()) / pixels.std()).double()

    def with_values(self, ids: Tensor, values: Tensor) -> ClientData:
        """Return samples with other pixels of a client's digits, one after another."""
        rest, own = self.samples.take(ids), self.digits.images.flatten(1) / 255.0
        images = (own.mean() + own.std() * values.mT).reshape(-1, *self.digits.images.shape[1:])
        x = interpolate(images, size=(self.size, self.size), mode="bilinear", antialias=True)
        tensors = {**rest.tensors, "x": x.view(rest.tensors["x"].shape)}
        return dataclasses.replace(rest, tensors=tensors)

    def found(self) -> Recovered:
        """Invert the first client's upload: for its images, or their means if it sends means."""
        truth, labels = self.pixels[:, self.ids[0]], self.digits.labels
        others = torch.ones(len(labels), dtype=torch.bool)
        others[self.ids[0]] = False
        own = labels[self.ids[0]]
        guess = torch.stack([self.pixels[:, others & (labels == c)].mean(1) for c in own], dim=1)
        values = inverted(self, guess.mT.reshape(-1, 1)).view_as(guess.mT).mT
        # Pixels are neither below black nor above white.
        of_images = (values.clamp(self.pixels.min(), self.pixels.max()), truth, guess)
        if "prototypes" not in self.sent:
            return Recovered(*of_images)
        return Recovered(*(torch.stack([t[:, own == c].mean(1) for c in own.unique()], dim=1)
                       for t in of_images))  # fmt: skip


def found_of_digits() -> Iterator[tuple[str, str, str, Recovered]]:
    """Yield method, settings in words, the object of the attack, and its findings."""
    for method, words, classes, each, settings in RUNS:
        painters = Painters.of(method, classes, each, **settings)
        sought = "mean image" if "prototypes" in painters.sent else "image"
        yield method, f"digits, {words}", sought, painters.found()
