"""MFCL: clients rehearse former classes with features that a generator of the server makes.

Babakniya, Fabian, He, Soltanolkotabi, Avestimehr: A Data-Free Approach to Mitigate Catastrophic
Forgetting in Federated Class Incremental Learning for Vision Tasks, NeurIPS 2023, arXiv 2311.07784;
a baseline in FedTA's Table 1 (Yu et al., CVPR 2025). This follows the released code; the paper's
own text could not be read, so its equations are not numbered here.

When a task ends, the server goes on training a generator against the global model, the teacher:
by the cross-entropy of the teacher's predictions and their own largest class, so that it is sure,
and by the information entropy of its mean prediction over a batch, so that all former classes are
made equally often. It sends both. In the tasks that follow, a client's loss is

- the split cross-entropy: that of its own samples among the new classes only;
- the fine-tuning loss: cross-entropy of the head among all classes, on its own and on made samples,
  whose classes are the teacher's largest; no gradient of it reaches the feature extractor.

Left out, since the extractor is frozen (see also `vision.methods.generator`): the distillation of
features, weighted by the teacher's head, which is 0 where features do not change; and the
generator's losses on batch statistics and on the smoothness of images.

In detail, as in the code:

- The teacher's logits are divided by 1,000 in the first of the generator's losses, which leaves it
  little weight against the second; at 1, on frozen features, all that is made falls into a handful
  of classes.
- The defaults are those of the code's command for CIFAR-100; its command for the super-classes of
  ImageNet has 5,000 steps and noise of width 200.
- The generator's optimiser starts anew with each task, the generator does not.
- New are all classes but former ones, those of tasks to come included, since the head has them from
  the start (the code's slice ends at the present task), and those of a client's own task in any
  case: in FedTA's stream a public class may be one client's in another task. So the first task is
  FedAvg's.

Learning rates do not fall within a task, as they do in the code. Clients make new samples in each
step, by the generator's running statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.data import Batch
from stforecast.federated.method import Task
from stforecast.federated.options import CheckedOptions
from stforecast.federated.population import Params, Population
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.training import Optimizer, Training, zero_moments
from stforecast.federated.uploads.payload import Payload
from vision.methods.conditional import normal
from vision.methods.generator import DataFreeFedAvg, feature_generator
from vision.task import cross_entropy


@dataclass(frozen=True)
class MFCLOptions(CheckedOptions):
    """Settings of MFCL; defaults are the released code's.

    Attributes:
        split: whether the loss on own samples chooses among new classes only.
        fine_tuning: weight of the fine-tuning loss.
        replay: samples that a client makes in each step.
        diversity: weight of the generator's information entropy.
        content_temperature: what the teacher's logits are divided by in its cross-entropy.
        noise_width: width of the generator's noise.
        hidden: width of its hidden layer (the code's is convolutional).
        server_steps: its steps when a task ends.
        server_batch_size: samples in each.
        server_lr: Adam's learning rate for it.
    """

    split: bool = True
    fine_tuning: NonNegativeFloat = 1.0
    replay: PositiveInt = 128
    diversity: NonNegativeFloat = 1.0
    content_temperature: PositiveFloat = 1000.0
    noise_width: PositiveInt = 1000
    hidden: PositiveInt = 256
    server_steps: PositiveInt = 100
    server_batch_size: PositiveInt = 128
    server_lr: PositiveFloat = 1e-3


class MFCL(DataFreeFedAvg):
    """MFCL on frozen features. The generator is the server's."""

    name = "mfcl"
    summary = "rehearses former classes with features that a generator of the server makes"
    paper = "Babakniya et al., NeurIPS 2023"
    Options = MFCLOptions
    options: MFCLOptions

    def __init__(
        self, population: Population, task: Task, training: Training, options: Any = None
    ) -> None:
        super().__init__(population, task, training, options)
        o = self.options
        self.generator = feature_generator(o.noise_width, o.hidden, self.backbone.width)
        self.replayed = (*self.generator.parameters, *self.generator.buffers)
        self.server_training = Training(lr=o.server_lr, optimizer="adam")

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """With an untrained generator."""
        server = super().init(clients, sizes, seed)
        parameters, buffers = self.generator.initial(1, seed, server["former"].device)
        return {**server, **{name: t[0] for name, t in (parameters | buffers).items()}}

    def replay_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """The fine-tuning loss."""
        features, labels = self.rehearsed(cohort, payload)
        features = torch.cat([batch["query"], features], dim=1)
        labels = torch.cat([self.task.keys(batch), labels], dim=1)
        logits = self.population.decode(cohort.state, features)
        return self.options.fine_tuning * cross_entropy(logits, labels).mean(1)

    @torch.no_grad()
    def rehearsed(self, cohort: Cohort, payload: Payload) -> tuple[Tensor, Tensor]:
        """New features `(clients, n, d)` and the teacher's classes of them `(clients, n)`."""
        o, former = self.options, payload["former"]
        noise = normal(cohort.generators, o.replay, o.noise_width).to(former.device)
        features = self.generator(payload, noise, training=False)
        logits = self.taught(payload, features).masked_fill(~former[:, None], -torch.inf)
        return features, logits.argmax(-1)

    def learned(self, server: Params, random: torch.Generator) -> Params:
        """The generator, trained against the teacher's head."""
        o, former = self.options, server["former"].nonzero()[:, 0]
        stacked = {name: t[None] for name, t in server.items()}
        own = {name: stacked[name].clone() for name in self.replayed}
        parameters = {name: own[name].requires_grad_() for name in self.generator.parameters}
        moments = zero_moments(parameters, self.server_training)
        optimizer = Optimizer(parameters, moments, self.server_training)
        for _ in range(o.server_steps):
            noise = normal([random], o.server_batch_size, o.noise_width).to(former.device)
            features = self.generator(own, noise, training=True)
            logits = self.taught(stacked, features)[..., former]
            sure = cross_entropy(logits / o.content_temperature, logits.argmax(-1)).mean(1)
            optimizer.step(sure + o.diversity * unevenness(logits))
        return {name: t.detach()[0] for name, t in own.items()}


def unevenness(logits: Tensor) -> Tensor:
    """1 minus the entropy of the mean prediction, as a share of the largest possible.

    Args:
        logits: `(clients, batch, classes)`.

    Returns:
        `(clients,)`: 0 where all classes are predicted equally often.

    Example:
        >>> one, both = torch.tensor([[99.0, 0.0]] * 2), torch.tensor([[99.0, 0.0], [0.0, 99.0]])
        >>> unevenness(torch.stack([one, both])).abs()
        tensor([1., 0.])
    """
    mean = logits.softmax(-1).mean(1)
    entropy = -torch.xlogy(mean, mean.clamp(min=torch.finfo(mean.dtype).tiny)).sum(-1)
    return 1 - entropy / math.log(max(2, logits.shape[-1]))
