"""FEDIC: distils a calibrated ensemble of the clients' models into their average.

Shang, Lu, Cheung, Wang: FEDIC: Federated Learning on Non-IID and Long-Tailed Data via Calibrated
Distillation, ICME 2022, arXiv 2205.00172.

Clients train the averaged model as in FedAvg. The server has a small balanced set of labelled
images (`Classification.surrogate`; setting `surrogate`), with which it

1. fine-tunes a copy of the average;
2. fits a teacher: the clients' logits are averaged with weights that depend on the logits
   themselves (client-wise adjustment), scaled and shifted by class (class-wise adjustment), and
   mixed with the fine-tuned copy's logits by a gate on the clients' mean features;
3. distils the teacher into the average, which becomes the global model, by
   `ld · KL(teacher ‖ student) + (1 - ld) · CE` at a temperature.

This follows the released code, which has more details than the paper, with two exceptions:

- The code distils on other, unlabelled images (CIFAR-100 for CIFAR-10). Here the server has only
  one set, which is used for both terms of step 3, in separately drawn batches.
- Adam is restarted in each round; the code keeps its moments. The teacher continues from the last
  round.

Running statistics are averaged, and updated in steps 1 and 3 as in any training. The server's
images are the same in all rounds and are not augmented.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from data_prep.base.errors import InputError
from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.state import Clients, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from stforecast.federated.core.training import Optimizer, Training, zero_moments
from stforecast.federated.methods.fedavg import FedAvg
from vision.draws import Draw
from vision.task import cross_entropy, kl_divergence

TEACHER = "teacher/"
"""Prefix of the names of the teacher's parameters."""


@dataclass(frozen=True)
class FEDICOptions(CheckedOptions):
    """Settings of FEDIC.

    Attributes:
        server_steps: Adam's steps in each of the server's three tasks (released code: 100).
        server_lr: Adam's learning rate on the server (released code: 1e-3).
        labelled_batch: images in a batch with labels (released code: 20).
        distilled_batch: images in a batch for distillation (released code: 128).
        temperature: temperature of the distillation (released code: 2).
        ld: weight of the distillation in step 3 (released code: 0.5).
    """

    server_steps: NonNegativeInt = 100
    server_lr: PositiveFloat = 1e-3
    labelled_batch: PositiveInt = 20
    distilled_batch: PositiveInt = 128
    temperature: PositiveFloat = 2.0
    ld: Share = 0.5


class FEDIC(FedAvg):
    """FEDIC. The server's state has the global model and the teacher's parameters."""

    name = "fedic"
    summary = "FedAvg whose average learns from a calibrated ensemble, on images of the server"
    paper = "Shang et al., ICME 2022"
    sends = Upload(apart=True)
    needs = Needs(data=("equal initial weights", "images on the server"))
    Options = FEDICOptions
    options: FEDICOptions
    defaults = MappingProxyType({"surrogate": 10})

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does; the teacher averages the even ensemble and the tuned copy."""
        server = super().init(clients, sizes, seed)
        if getattr(self.task, "surrogate", None) is None:
            raise InputError(
                "fedic needs images on the server; set surrogate, e.g. 10 training images per class"
            )
        n_keys, width = self.task.n_keys, feature_width(self.population)
        teacher = {
            "client_scale": torch.ones(n_keys),
            "client_bias": torch.zeros(1),
            "class_scale": torch.ones(n_keys),
            "class_bias": torch.zeros(n_keys),
            "gate_scale": torch.zeros(width),
            "gate_bias": torch.zeros(1),
        }
        named = {TEACHER + name: t.to(clients.device) for name, t in teacher.items()}
        return {**server, **named, "seed": torch.tensor(seed)}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the global model."""
        return super().broadcast({name: server[name] for name in self.shared}, to)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models, then run the server's three tasks."""
        average = super().aggregate(server, of, uploads)
        task: Any = self.task
        device = next(iter(average.values())).device
        images = {name: t.to(device) for name, t in task.surrogate.items()}
        draw = _Draw(images, Draw.FEDIC.generator(int(server["seed"]), of.round))
        self.population.train(False)
        features, logits = self.outputs(uploads, images["x"])
        with torch.enable_grad():
            tuned = self.tuned(average, draw)
            teacher = {n: t for n, t in server.items() if n.startswith(TEACHER)}
            teacher = self.fitted_teacher(teacher, features, logits, tuned, draw)
            target = teacher_logits(teacher, features, logits, tuned)
            student = self.student(average, target, draw)
        return {**student, **teacher, "seed": server["seed"]}

    @torch.no_grad()
    def outputs(self, models: Payload, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features `(clients, samples, d)` and logits `(clients, samples, classes)`."""
        n = len(next(iter(models.values())))
        parts = (part.expand(n, *part.shape[1:]) for part in x.split(256, dim=1))
        features = torch.cat([self.population.encode(models, part) for part in parts], dim=1)
        return features, self.population.decode(models, features)

    def tuned(self, average: Params, draw: _Draw) -> Tensor:
        """Fine-tune the average on the server's images; return its logits `(samples, classes)`."""
        model = self.trained(average, lambda model: self.hard_loss(model, draw))
        self.population.train(False)
        return self.outputs(repeated(model, 1), draw.images["x"])[1][0]

    def student(self, average: Params, target: Tensor, draw: _Draw) -> Params:
        """Distil the teacher's logits `(samples, classes)` into the average."""
        o = self.options

        def loss(model: Params) -> Tensor:
            rows = draw(o.distilled_batch)
            features = self.population.encode(model, draw.images["x"][:, rows])
            soft = distillation_loss(
                self.population.decode(model, features)[0], target[rows], o.temperature
            )
            return o.ld * soft + (1 - o.ld) * self.hard_loss(model, draw)

        return self.trained(average, loss)

    def hard_loss(self, model: Params, draw: _Draw) -> Tensor:
        """Return the cross-entropy `(1,)` on a batch of the server's images."""
        rows = draw(self.options.labelled_batch)
        return self.loss_of(model, {name: t[:, rows] for name, t in draw.images.items()})

    def trained(self, start: Params, loss: Callable[[Params], Tensor]) -> Params:
        """Train a model `(…)` with the server's steps on a loss of a model `(1, …)`."""
        model = {name: t[None].clone() for name, t in start.items()}
        trainable = [n for n in self.population.trainable if n in model]
        self.population.train()
        # The released code's L2 penalty, which its teacher has not.
        self.descend(model, trainable, 2e-4, lambda: loss(model))
        return {name: t.detach()[0] for name, t in model.items()}

    def fitted_teacher(
        self, teacher: Params, features: Tensor, logits: Tensor, tuned: Tensor, draw: _Draw
    ) -> Params:
        """Train the teacher's parameters on labelled images; see `teacher_logits`."""
        own = {name: t.clone() for name, t in teacher.items()}

        def loss() -> Tensor:
            rows = draw(self.options.labelled_batch)
            scores = teacher_logits(own, features[:, rows], logits[:, rows], tuned[rows])
            return cross_entropy(scores[None], draw.images["y"][:, rows]).mean(1)

        self.descend(own, list(own), 0.0, loss)
        return {name: t.detach() for name, t in own.items()}

    def descend(
        self, tensors: Params, names: list[str], decay: float, loss: Callable[[], Tensor]
    ) -> None:
        """Minimise a loss with the server's steps, changing the named tensors in place."""
        o = self.options
        training = Training(lr=o.server_lr, weight_decay=decay, optimizer="adam")
        trained = {name: tensors[name].requires_grad_() for name in names}
        optimizer = Optimizer(trained, zero_moments(trained, training), training)
        for _ in range(o.server_steps):
            optimizer.step(loss())


@dataclass(frozen=True)
class _Draw:
    """Sampler of batches of the server's images, without replacement within a batch."""

    images: Batch
    random: torch.Generator

    def __call__(self, size: int) -> Tensor:
        rows = torch.randperm(self.images["y"].shape[1], generator=self.random)[:size]
        return rows.to(self.images["y"].device)


def teacher_logits(teacher: Params, features: Tensor, logits: Tensor, tuned: Tensor) -> Tensor:
    """Return the logits of the calibrated ensemble, `(batch, classes)`.

    A client's weight is a sigmoid of its logits, divided by the sum over all clients. The clients'
    features are `(clients, batch, d)`, the logits of the fine-tuned average `(batch, classes)`.
    """
    p = {name.removeprefix(TEACHER): t for name, t in teacher.items()}
    weights = F.logsigmoid(logits @ p["client_scale"] + p["client_bias"]).softmax(0)
    ensemble = (weights[..., None] * logits).sum(0)
    adjusted = p["class_scale"] * ensemble + p["class_bias"]
    gate = torch.sigmoid(features.mean(0) @ p["gate_scale"] + p["gate_bias"])[:, None]
    return gate * adjusted + (1 - gate) * tuned


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return KL(teacher ‖ student) of logits `(batch, classes)`, mean over the batch.

    As in the released code it is not multiplied by the square of the temperature.

    >>> student, teacher = torch.zeros(1, 2), torch.tensor([[2.0, 0.0]])
    >>> distillation_loss(student, student, 2.0)
    tensor(0.)
    >>> distillation_loss(student, teacher, 2.0).round(decimals=4)
    tensor(0.1109)
    """
    return kl_divergence(teacher.detach() / temperature, student / temperature).mean()
