"""TARGET: distillation from the model before the task, on samples that the server generates.

Zhang, Chen, Zhuang, Lyu: TARGET: Federated Class-Continual Learning via Exemplar-Free Distillation,
ICCV 2023, arXiv 2303.06937; a baseline in FedTA's Table 1 (Yu et al., CVPR 2025). This follows the
released code; the paper's own text could not be read, so its equations are not numbered here.

When a task ends, the global model becomes the teacher. For each batch the server draws noise and
labels of former classes, and trains a generator so that the teacher recognises the labels
(cross-entropy), while a student, trained on all samples generated so far, does not yet agree with
the teacher (an adversarial divergence). The samples are sent to the clients. In later tasks, their
loss is the cross-entropy of their own samples among the new classes, plus a weight times the
distillation of the teacher's predictions for former classes on generated samples.

Features are generated, not images, and a term for statistics of batch normalisation has no
counterpart: see `vision.methods.generator`. In detail:

- For each batch the noise is trained with the generator, and the step with the lowest loss is kept.
  The code adapts a copy of the generator, whose initial values it meta-learns; here the generator
  itself continues from batch to batch.
- The divergence is KL(teacher ‖ student) where both predict the same class.
- Student and adversary start after some batches (the code's adversary one batch earlier). With
  its settings for CIFAR-100, the code makes only 10 batches of 256 samples (at most 8,000 samples),
  and so has neither. Here there are 8,000 samples, in as many batches as they need.
- The server also generates after the last task; the code does not.
- New classes are all but the former ones, including classes of later tasks, since the head has them
  from the start (the code's grows with the tasks), and always classes of a client's own task: in
  FedTA's stream a public class may be in another client's former task. So the first task is
  FedAvg's. No loss compares new with former classes, and on a frozen extractor new ones win;
  `split=False` uses the cross-entropy among all. By default `within_task` further leaves out the
  classes that are not in the client's present task, as does the code's growing head.

The student starts from the model's initial weights and is trained by Adam; the code's SGD with a
learning rate of 0.2 is for a whole network. Samples, teacher and former classes are sent in every
round, since clients keep nothing; the code's clients read them from a shared disk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from stforecast.federated.core.training import Optimizer, Training, zero_moments
from vision.methods.fedic import distillation_loss
from vision.methods.fedlwf import distillation
from vision.methods.generator import DataFreeFedAvg, normal
from vision.task import cross_entropy, kl_divergence

LABEL_WEIGHT, STUDENT_TEMPERATURE = 0.5, 20.0
"""Weight of the generator's cross-entropy and temperature of the student, as in the code."""

Logits = Callable[[Tensor], Tensor]
"""Function from features `(1, batch, d)` to logits of former classes."""


@dataclass(frozen=True)
class TARGETOptions(CheckedOptions):
    """Settings of TARGET; defaults are the released code's for CIFAR-100 where it has them.

    Attributes:
        split: whether the loss on own samples uses new classes only.
        distillation: weight of the distillation on clients (25).
        temperature: temperature of the distillation on clients (2).
        replay: generated samples in each of a client's steps (the code uses all in an epoch).
        synthetic: samples that the server generates when a task ends (8000).
        noise_width: size of the generator's noise (256).
        hidden: size of the generator's hidden layer (the code's is convolutional).
        server_batch_size: batch size of the generator and of the student (256).
        server_steps: steps of the generator per batch (10).
        server_lr: Adam's learning rate for the generator and the student (0.002).
        warm_up: batches before the student is trained (20).
        student_steps: the student's steps after each later batch (400).
    """

    split: bool = True
    distillation: NonNegativeFloat = 25.0
    temperature: PositiveFloat = 2.0
    replay: PositiveInt = 128
    synthetic: PositiveInt = 8000
    noise_width: PositiveInt = 256
    hidden: PositiveInt = 256
    server_batch_size: PositiveInt = 256
    server_steps: PositiveInt = 10
    server_lr: PositiveFloat = 2e-3
    warm_up: NonNegativeInt = 20
    student_steps: NonNegativeInt = 400


class TARGET(DataFreeFedAvg):
    """TARGET on frozen features. The latest generated features are in the state, `synthetic`."""

    name = "target"
    summary = "distils the model before the task on features that the server generates"
    paper = "Zhang et al., ICCV 2023"
    replayed = ("synthetic",)
    Options = TARGETOptions
    options: TARGETOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start without generated samples."""
        server = super().init(clients, sizes, seed)
        device, size = server["former"].device, (self.options.synthetic, self.backbone.width)
        return {**server, "synthetic": torch.zeros(size, device=device)}

    def replay_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the distillation of former classes on some of the generated samples."""
        o, made = self.options, payload["synthetic"]
        rows = (cohort.rand(o.replay) * made.shape[1]).long().to(made.device)
        features = made.gather(1, rows[..., None].expand(-1, -1, made.shape[2]))
        with torch.no_grad():
            teacher = self.taught(payload, features)
        student = self.population.decode(cohort.state, features)
        return o.distillation * distillation(student, teacher, payload["former"], o.temperature)

    def learned(self, server: Params, random: torch.Generator) -> Params:
        """Generate `synthetic` samples, batch by batch."""
        o, device = self.options, server["former"].device
        former = server["former"].nonzero()[:, 0]
        stacked = repeated(server, 1)
        seed = int(torch.randint(2**31, (), generator=random))
        parameters, buffers = self.generator.initial(1, seed, device)
        tensors = {**{n: p.requires_grad_() for n, p in parameters.items()}, **buffers}
        teacher: Logits = lambda x: self.taught(stacked, x)[..., former]  # noqa: E731
        student = _Student(self, former, device)
        made: list[Tensor] = []
        for batch in range(math.ceil(o.synthetic / o.server_batch_size)):
            rival = student if batch >= o.warm_up else None
            made.append(self.made(tensors, teacher, rival, len(former), random))
            if rival:
                rival.learn(torch.cat(made, dim=1), teacher, random)
        return {"synthetic": torch.cat(made, dim=1)[0, : o.synthetic]}

    def made(
        self,
        tensors: Params,
        teacher: Logits,
        student: Logits | None,
        n_former: int,
        random: torch.Generator,
    ) -> Tensor:
        """Generate a batch `(1, batch, d)`, the features with the lowest loss of all steps.

        The generator's `tensors` change in place. Labels are drawn uniformly from former classes.
        """
        o, device = self.options, next(iter(tensors.values())).device
        labels = torch.randint(n_former, (1, o.server_batch_size), generator=random).to(device)
        noise = normal([random], o.server_batch_size, o.noise_width).to(device).requires_grad_()
        weights = [tensors[name] for name in self.generator.parameters]
        adam = torch.optim.Adam(weights, lr=o.server_lr, betas=(0.5, 0.999))
        adam.add_param_group({"params": [noise], "lr": 0.01})  # As in the code.
        tried: list[tuple[float, Tensor]] = []
        for _ in range(o.server_steps):
            features = self.generator(tensors, noise, training=True)
            logits = teacher(features)
            loss = LABEL_WEIGHT * cross_entropy(logits, labels).mean()
            if student is not None:
                loss = loss - agreed_divergence(logits, student(features))
            tried.append((loss.item(), features.detach()))
            adam.zero_grad()
            loss.backward()
            adam.step()
        return min(tried, key=lambda step: step[0])[1]


class _Student:
    """A head that is trained on the teacher's predictions for generated samples."""

    def __init__(self, method: TARGET, former: Tensor, device: torch.device) -> None:
        o = method.options
        initial = method.population.initial().items()
        self._head = {name: t.to(device, copy=True).requires_grad_() for name, t in initial}
        training = Training(lr=o.server_lr, optimizer="adam")
        self._optimizer = Optimizer(self._head, zero_moments(self._head, training), training)
        self._population, self._former, self._options = method.population, former, o

    def __call__(self, features: Tensor) -> Tensor:
        return self._population.decode(self._head, features)[..., self._former]

    def learn(self, made: Tensor, teacher: Logits, random: torch.Generator) -> None:
        """Train on samples `(1, n, d)`."""
        o = self._options
        with torch.no_grad():
            target = teacher(made)[0]
        for _ in range(o.student_steps):
            rows = torch.randint(len(target), (o.server_batch_size,), generator=random)
            rows = rows.to(made.device)
            loss = distillation_loss(self(made[:, rows])[0], target[rows], STUDENT_TEMPERATURE)
            self._optimizer.step(STUDENT_TEMPERATURE**2 * loss[None])


def agreed_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of KL(teacher ‖ student), with 0 where they predict different classes.

    Logits are `(…, batch, classes)`.

    >>> teacher = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> agreed_divergence(teacher, torch.tensor([[1.0, 0.0], [1.0, 0.0]])).round(decimals=4)
    tensor(0.0336)
    """
    agreed = teacher.argmax(-1) == student.argmax(-1)
    return (kl_divergence(teacher, student) * agreed).mean()
