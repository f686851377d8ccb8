"""References of images: chance, and linear heads that are fitted at once on frozen features.

The heads show which accuracy the features allow without a federation: with the images of all
clients in one place, or with each client's own. In a task stream they see the images of all tasks
so far, and forget nothing. A run has one round in each stage, in which all clients take part,
whatever the settings say.

For a model that is trained from scratch, `chance` and `central` are the references.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.declared import Needs
from stforecast.federated.core.method import Method, Task
from stforecast.federated.core.options import names_of
from stforecast.federated.core.population import Population
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Payload
from stforecast.federated.core.training import Training
from stforecast.federated.uploads.robust import Robust
from stforecast.federated.uploads.uplink import Uplink
from vision.models.vit import backbone_of

OF_ROUNDS = names_of(Training, Uplink, Robust)
"""Settings of training and uploads, which references do not read."""


class Reference(Method):
    """A method that has one round in each stage, in which all clients take part."""

    paper = "reference"
    unread = OF_ROUNDS

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        once = dataclasses.replace(training, rounds=1, participation=1.0)
        super().__init__(population, task, once, options)


class Chance(Reference):
    """Equal logits for every class, whatever the image.

    Its accuracy is exactly 1 / n among n classes, as equal logits count as shares of a correct
    prediction (`vision.evaluation.count_correct`). A row that is not above it has learned nothing.
    It serves any model and trains none.
    """

    name = "chance"
    summary = "guesses: each class is equally likely"

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train nothing; report the cross-entropy of the guess."""
        cohort.record_loss(torch.full((len(cohort),), math.log(self.task.n_keys)))
        return {}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Return zeros."""
        return torch.zeros(*x.shape[:2], self.task.n_keys, device=x.device)


class HeadReference(Reference):
    """A linear head on the features of a frozen backbone that is fitted in one go.

    Features are standardised by the training images' own mean and deviation.
    """

    needs = Needs(former_stages=True)
    unread = OF_ROUNDS - {"mixed_precision"}
    defaults = MappingProxyType({"model": "vit"})

    def set_up(self) -> None:
        """Refuse a model without a frozen backbone."""
        backbone_of(self.population, self.name)

    @staticmethod
    @abstractmethod
    def head(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Fit a head to the features of one client.

        Args:
            features: `(samples, width)`, standardised.
            labels: `(samples,)` classes, with `found = labels.unique()`.

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
        # A class without training images is predicted only if no other is allowed.
        bias = features.new_full((self.task.n_keys,), -1e6)
        weight[:, found] = own_weight / scale[:, None]
        bias[found] = own_bias - mean @ weight[:, found]
        return weight, bias


def logistic_regression(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Fit scikit-learn's multinomial logistic regression by L-BFGS; see `HeadReference.head`.

    Alain and Bengio: Understanding Intermediate Layers Using Linear Classifier Probes, 2016, arXiv
    1610.01644. Its accuracy is what a linear head on the backbone can reach, and so the bound of
    methods that train nothing else.
    """
    from sklearn.linear_model import LogisticRegression  # slow to import

    found = labels.unique()
    if len(found) == 1:
        return features.new_zeros(features.shape[1], 1), features.new_zeros(1)
    model = LogisticRegression(C=0.1, max_iter=1000)
    model.fit(features.double().cpu().numpy(), labels.cpu().numpy())
    weight, bias = (torch.from_numpy(t).to(features) for t in (model.coef_.T, model.intercept_))
    if len(found) == 2:  # The log-odds of the second class.
        weight, bias = weight * weight.new_tensor([0, 1]), bias * bias.new_tensor([0, 1])
    return weight, bias


def class_directions(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the directions of the class means: their logits are cosines times ‖f‖.

    Mensink, Verbeek, Perronnin, Csurka: Distance-Based Image Classification: Generalizing to New
    Classes at Near-Zero Cost, TPAMI 35(11), 2013. In a trial on frozen features of
    Office-Caltech10, the mean of the largest cosine was more accurate than the nearest by distance.
    """
    means = [features[labels == c].mean(0) for c in labels.unique()]
    weight = F.normalize(torch.stack(means), dim=1).T
    return weight, weight.new_zeros(weight.shape[1])


class LinearProbeLocal(HeadReference):
    """Logistic regression of each client on its own images."""

    name = "linear_probe_local"
    summary = "fits a logistic regression on each client's frozen features; nothing is sent"
    head = staticmethod(logistic_regression)


class LinearProbe(HeadReference):
    """Logistic regression on the images of all clients."""

    name = "linear_probe"
    summary = "fits a logistic regression on all clients' frozen features, in one place"
    pooled: ClassVar[bool] = True
    head = staticmethod(logistic_regression)


class NearestMeanLocal(HeadReference):
    """Class means of each client's own images."""

    name = "nearest_mean_local"
    summary = "predicts the class of the nearest mean of each client's frozen features; no training"
    head = staticmethod(class_directions)


class NearestMean(HeadReference):
    """Class means of the images of all clients."""

    name = "nearest_mean"
    summary = "predicts the class of the nearest mean of all clients' frozen features; no training"
    pooled: ClassVar[bool] = True
    head = staticmethod(class_directions)
