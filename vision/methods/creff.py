"""CReFF: FedAvg with a classifier re-trained on features that the server learns from gradients.

Shang, Lu, Huang, Wang: Federated Learning on Heterogeneous and Long-Tailed Data via Classifier
Re-Training with Federated Features, IJCAI 2022, arXiv 2204.13399, section 4 and Algorithm 1.

Clients train the averaged model as in FedAvg. Before that they compute, for each of their classes,
the mean gradient of the loss with respect to the re-trained classifier. The server averages these
over the clients that have the class, moves a few learnable features per class so that their
gradients have the same direction (gradient matching), and trains a new classifier on these balanced
features. Predictions use the new classifier, while clients continue with the averaged one.

Where the paper gives no details this follows the released code:

- The distance of two gradients is the sum over output nodes of one minus the cosine of the node's
  weights, plus one minus the cosine of the whole bias.
- The classifier is re-trained in each round, from the model's initial one. The code uses 300 epochs
  of batches of 32; here a step uses all features at once, with the learning rate multiplied by the
  number of batches in an epoch, so that it moves as far as an epoch of small steps.
- Real gradients are computed with the received model in evaluation mode. The code averages ten
  draws of 32 samples per class with random augmentation. Here all samples are used once, without
  augmentation.
- Features of a class that no participant has are not moved (initially, normal noise), and the
  classifier is trained on them too.

A client sends a gradient of the classifier's size for every class, with zeros for classes that it
does not have; these are counted, so the bytes are an upper bound of the paper's. Running statistics
are averaged with the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.data import batches
from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Params, Payload, with_axes
from stforecast.federated.methods.fedavg import FedAvg
from vision.draws import Draw
from vision.task import cross_entropy

RETRAINED, GRADIENT = "retrained/", "gradient/"
"""Prefixes of names: of the re-trained classifier, and of gradients with respect to it."""


@dataclass(frozen=True)
class CReFFOptions(CheckedOptions):
    """Settings of CReFF.

    Attributes:
        features: federated features per class (released code: 100).
        match_steps: steps of gradient matching per round (released code: 100).
        retrain_steps: steps of the new classifier, each on all features (released code: 300
            epochs).
    """

    features: PositiveInt = 100
    match_steps: NonNegativeInt = 100
    retrain_steps: NonNegativeInt = 300


class CReFF(FedAvg):
    """CReFF. The server's state has the averaged model, the new classifier and the features."""

    name = "creff"
    summary = "FedAvg with a classifier re-trained on features that match the clients' gradients"
    paper = "Shang et al., IJCAI 2022"
    sends = Upload()
    Options = CReFFOptions
    options: CReFFOptions

    @property
    def head(self) -> list[str]:
        """Names of the classifier's parameters."""
        return [name for name in self.population.names if name.startswith("head.")]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, with the model's initial classifier and features of noise."""
        server = super().init(clients, sizes, seed)
        shape = (self.task.n_keys, self.options.features, feature_width(self.population))
        noise = torch.randn(shape, generator=Draw.CREFF_FEATURES.generator(seed))
        return {
            **server,
            **{RETRAINED + name: server[name].clone() for name in self.head},
            "features": noise.to(clients.device),
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the averaged model and the re-trained classifier."""
        return super().broadcast({n: t for n, t in server.items() if n != "features"}, to)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Compute gradients of the received model, then train it."""
        self.receive(cohort, payload)
        gradients = self.real_gradients(cohort, payload)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        return {**self.upload(cohort), **gradients}

    def real_gradients(self, cohort: Cohort, payload: Payload) -> Payload:
        """Return mean gradients by class `(clients, classes, …)`, and each client's classes."""
        n, n_keys = len(cohort), self.task.n_keys
        classifier = {
            name: payload[RETRAINED + name].repeat_interleave(n_keys, 0).requires_grad_()
            for name in self.head
        }
        sums = {name: torch.zeros_like(t) for name, t in classifier.items()}
        counts = torch.zeros(n, n_keys, device=next(iter(sums.values())).device)
        self.population.train(False)
        for batch in batches(cohort.data, self.training.batch_size, drop_last=False):
            with torch.no_grad():
                features = self.population.encode(cohort.state, batch["x"])
            member = F.one_hot(self.task.keys(batch), n_keys).mT.to(features.dtype)
            counts += member.sum(2)
            # Cross-entropies (clients · classes, batch), each with its own classifier.
            logits = self.population.decode(classifier, features.repeat_interleave(n_keys, 0))
            keys = self.task.keys(batch).repeat_interleave(n_keys, 0)
            losses = cross_entropy(logits, keys) * member.flatten(0, 1)
            found = torch.autograd.grad(losses.sum(), list(classifier.values()))
            for total, gradient in zip(sums.values(), found, strict=True):
                total += gradient
        self.population.train()
        means = {
            GRADIENT + name: t.unflatten(0, (n, n_keys))
            / with_axes(counts.clamp(min=1), t.ndim + 1)
            for name, t in sums.items()
        }
        return {**means, "held": counts > 0}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models, match the features and train a new classifier on them."""
        model = super().aggregate(server, of, {name: uploads[name] for name in self.shared})
        holders = uploads["held"].sum(0)
        real = {
            name: (t := uploads[GRADIENT + name].sum(0)) / with_axes(holders.clamp(min=1), t.ndim)
            for name in self.head
        }
        old = {name: server[RETRAINED + name] for name in self.head}
        self.population.train(False)
        with torch.enable_grad():
            features = self.matched(server["features"], old, real)
            classifier = self.retrained(features)
        new = {RETRAINED + name: t for name, t in classifier.items()}
        return {**model, **new, "features": features}

    def matched(self, features: Tensor, classifier: Params, real: Params) -> Tensor:
        """Return the features `(classes, features, d)` after steps of gradient matching.

        Mean gradients `(classes, …)` are 0 for classes that nobody has, which move nothing.
        """
        n_keys, o = len(features), self.options
        copies = {
            n: t.repeat(n_keys, *[1] * t.ndim).requires_grad_() for n, t in classifier.items()
        }
        labels = torch.arange(n_keys, device=features.device)[:, None].expand(features.shape[:2])
        for _ in range(o.match_steps):
            features = features.detach().requires_grad_()
            losses = cross_entropy(self.population.decode(copies, features), labels).mean(1)
            made = torch.autograd.grad(losses.sum(), list(copies.values()), create_graph=True)
            pairs = zip(made, (real[name] for name in copies), strict=True)
            distances = sum((gradient_distance(a, b) for a, b in pairs), torch.zeros_like(losses))
            (slope,) = torch.autograd.grad(distances.sum(), features)
            features = features - 0.1 * slope  # The learning rate is the released code's.
        return features.detach()

    def retrained(self, features: Tensor) -> Params:
        """Train the initial classifier on balanced features; return it without client axis."""
        initial, x = self.population.initial(), features.flatten(0, 1)[None]
        head = {n: initial[n].to(x.device).clone().requires_grad_() for n in self.head}
        lr = 0.01 * math.ceil(x.shape[1] / 32)  # The released code has 0.01 and batches of 32.
        optimizer = torch.optim.SGD(head.values(), lr=lr)
        labels = torch.arange(len(features), device=x.device)
        y = labels.repeat_interleave(features.shape[1])[None]
        for _ in range(self.options.retrain_steps):
            optimizer.zero_grad()
            cross_entropy(self.population.decode(head, x), y).mean().backward()
            optimizer.step()
        return {name: t.detach()[0] for name, t in head.items()}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the averaged body and the re-trained classifier, or with the own model."""
        params: Mapping[str, Tensor] = {**state, **payload}
        averaged = [n for n in self.head if n in payload]  # Absent if the client's own predicts.
        retrained = {n: payload[RETRAINED + n] for n in averaged if RETRAINED + n in payload}
        return super().predict({**params, **retrained}, {}, x, view)


def gradient_distance(made: Tensor, real: Tensor) -> Tensor:
    """Return the distance `(classes,)` between the directions of gradients, by class.

    It is one minus the cosine, summed over the outputs of a matrix `(classes, inputs, outputs)`; a
    bias has `(classes, outputs)`.

    >>> made = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
    >>> real = torch.tensor([[[3.0, 1.0], [0.0, 1.0]]])
    >>> gradient_distance(made, real)
    tensor([0.2929])
    """
    norms = made.norm(dim=1) * real.norm(dim=1)
    distance = 1 - (made * real).sum(1) / (norms + 1e-6)  # As in the released code.
    return distance.flatten(1).sum(1) if distance.ndim > 1 else distance
