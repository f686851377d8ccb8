"""Base of references that fit a linear head at once on the features of a frozen backbone.

They show which accuracy the features allow without a federation: with the images of all clients in
one place, or with each client's own. In a task stream they see the images of all tasks so far, and
forget nothing. Features are standardised by the training images' own mean and deviation. A run has
one round in each stage, in which all clients take part, whatever the settings say.

They need a model with a frozen backbone. For a model that is trained from scratch, `chance` and
`central` are the references.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from stforecast.federated.method import Method, Task
from stforecast.federated.options import names_of
from stforecast.federated.population import Population
from stforecast.federated.state import Cohort
from stforecast.federated.training import Training
from stforecast.federated.uploads.payload import Payload
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from vision.models.vit import backbone_of

ABSENT = -1e6
"""Bias of a class without training images: it is predicted only if no other class is allowed."""


OF_ROUNDS = names_of(Training, Uplink, Robust)
"""Settings of training and uploads, which references do not read."""


def once(training: Training) -> Training:
    """Return the settings of one round for each stage, in which all clients take part."""
    return dataclasses.replace(training, rounds=1, participation=1.0)


class HeadReference(Method):
    """A linear head on frozen features that is fitted in one go."""

    paper = "reference"
    keeps_data: ClassVar[bool] = True
    unread = OF_ROUNDS - {"mixed_precision"}
    defaults = MappingProxyType({"model": "vit"})

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, once(training), options)
        backbone_of(population, self.name)

    @abstractmethod
    def head(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Fit a head to the features of one client.

        Args:
            features: `(samples, width)`, standardised.
            labels: `(samples,)` classes, of which `found = labels.unique()`.

        Returns:
            Weights `(width, found)` and biases `(found,)` of the classes among the labels.
        """

    @torch.no_grad()
    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Fit each client's head to all of its images; send nothing."""
        n = int(cohort.data.sizes[0])
        x, y = (cohort.data.tensors[name][:, :n] for name in ("x", "y"))
        features = self.population.encode(cohort.state, x)
        for i, (own, labels) in enumerate(zip(features, y, strict=True)):
            weight, bias = self._fitted(own, labels)
            cohort.params["head.weight"][i], cohort.params["head.bias"][i] = weight, bias
        logits = self.population.decode(cohort.state, features)
        cohort.record_loss(self.task.loss(logits, {"x": x, "y": y}))
        return {}

    def _fitted(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights `(width, classes)` and biases `(classes,)` for features as they are."""
        mean, scale = features.mean(0), features.std(0, correction=0)
        scale = scale.where(scale > 0, 1)
        found = labels.unique()
        own_weight, own_bias = self.head((features - mean) / scale, labels)
        weight = features.new_zeros(features.shape[1], self.task.n_keys)
        bias = features.new_full((self.task.n_keys,), ABSENT)
        weight[:, found] = own_weight / scale[:, None]
        bias[found] = own_bias - mean @ weight[:, found]
        return weight, bias
