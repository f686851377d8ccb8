"""MFCL: rehearsal of former classes with features from a generator that the server trains.

Babakniya, Fabian, He, Soltanolkotabi, Avestimehr: A Data-Free Approach to Mitigate Catastrophic
Forgetting in Federated Class Incremental Learning for Vision Tasks, NeurIPS 2023, arXiv 2311.07784;
a baseline in FedTA's Table 1 (Yu et al., CVPR 2025). This follows the released code; the paper's
own text could not be read, so its equations are not numbered here.

When a task ends, the server continues to train a generator against the global model, the teacher:
by the cross-entropy between the teacher's predictions and their own largest class, so that they are
confident, and by the information entropy of its mean prediction over a batch, so that all former
classes are generated equally often. It broadcasts both. In later tasks, a client's loss is the sum
of

- the split cross-entropy of its own samples, among the new classes only;
- the fine-tuning loss: cross-entropy of the head among all classes, on its own and on generated
  samples, whose classes are the teacher's largest; its gradient does not reach the feature
  extractor.

Left out, since the extractor is frozen (see also `vision.methods.generator`): the distillation of
features, weighted by the teacher's head, which is 0 if features do not change; and the generator's
losses on batch statistics and on the smoothness of images.

In detail, as in the code:

- The teacher's logits are divided by 1,000 in the first of the generator's losses, which gives it
  little weight against the second; with a divisor of 1, on frozen features, all generated features
  fall into a few classes.
- The defaults are as in the code's command for CIFAR-100; its command for the super-classes of
  ImageNet has 5,000 steps and noise of width 200.
- The generator's optimiser is restarted with each task, the generator is not.
- New classes are all but the former ones, including classes of later tasks, since the head has them
  from the start (the code's slice ends at the present task), and always classes of a client's own
  task: in FedTA's stream a public class may be in another client's former task. So the first task
  is FedAvg's. By default `within_task` further leaves out the classes that are not in the client's
  present task, as the code does; it does not concern the fine-tuning loss.

Unlike in the code, the learning rate does not decay within a task. Clients generate new samples in
each step, with the generator's running statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from stforecast.federated.core.training import Optimizer, Training, zero_moments
from vision.methods.generator import DataFreeFedAvg, normal
from vision.task import cross_entropy


@dataclass(frozen=True)
class MFCLOptions(CheckedOptions):
    """Settings of MFCL; defaults are the released code's.

    Attributes:
        split: whether the loss on own samples uses new classes only.
        fine_tuning: weight of the fine-tuning loss.
        replay: samples that a client generates in each step.
        diversity: weight of the generator's information entropy.
        noise_width: size of the generator's noise.
        hidden: size of the generator's hidden layer (the code's is convolutional).
        server_steps: the generator's steps when a task ends.
        server_batch_size: samples per step.
        server_lr: Adam's learning rate for the generator.
    """

    split: bool = True
    fine_tuning: NonNegativeFloat = 1.0
    replay: PositiveInt = 128
    diversity: NonNegativeFloat = 1.0
    noise_width: PositiveInt = 1000
    hidden: PositiveInt = 256
    server_steps: PositiveInt = 100
    server_batch_size: PositiveInt = 128
    server_lr: PositiveFloat = 1e-3


class MFCL(DataFreeFedAvg):
    """MFCL on frozen features. The generator is part of the server's state."""

    name = "mfcl"
    summary = "rehearses former classes with features from a generator that the server trains"
    paper = "Babakniya et al., NeurIPS 2023"
    Options = MFCLOptions
    options: MFCLOptions

    def set_up(self) -> None:
        """Find the names of the generator's tensors."""
        super().set_up()
        self.replayed = (*self.generator.parameters, *self.generator.buffers)
        self.server_training = Training(lr=self.options.server_lr, optimizer="adam")

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start with an untrained generator."""
        server = super().init(clients, sizes, seed)
        parameters, buffers = self.generator.initial(1, seed, server["former"].device)
        return {**server, **{name: t[0] for name, t in (parameters | buffers).items()}}

    def replay_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the fine-tuning loss."""
        features, labels = self.rehearsed(cohort, payload)
        features = torch.cat([batch["query"], features], dim=1)
        labels = torch.cat([self.task.keys(batch), labels], dim=1)
        logits = self.population.decode(cohort.state, features)
        return self.options.fine_tuning * cross_entropy(logits, labels).mean(1)

    @torch.no_grad()
    def rehearsed(self, cohort: Cohort, payload: Payload) -> tuple[Tensor, Tensor]:
        """Generate features `(clients, n, d)` and the teacher's classes of them `(clients, n)`."""
        o, former = self.options, payload["former"]
        noise = normal(cohort.generators, o.replay, o.noise_width).to(former.device)
        features = self.generator(payload, noise, training=False)
        logits = self.taught(payload, features).masked_fill(~former[:, None], -torch.inf)
        return features, logits.argmax(-1)

    def learned(self, server: Params, random: torch.Generator) -> Params:
        """Train the generator against the teacher's head."""
        o, former = self.options, server["former"].nonzero()[:, 0]
        stacked = repeated(server, 1)
        own = {name: stacked[name].clone() for name in self.replayed}
        parameters = {name: own[name].requires_grad_() for name in self.generator.parameters}
        moments = zero_moments(parameters, self.server_training)
        optimizer = Optimizer(parameters, moments, self.server_training)
        for _ in range(o.server_steps):
            noise = normal([random], o.server_batch_size, o.noise_width).to(former.device)
            features = self.generator(own, noise, training=True)
            logits = self.taught(stacked, features)[..., former]
            # The divisor is the released code's.
            content = cross_entropy(logits / 1000.0, logits.argmax(-1)).mean(1)
            optimizer.step(content + o.diversity * unevenness(logits))
        return {name: t.detach()[0] for name, t in own.items()}


def unevenness(logits: Tensor) -> Tensor:
    """Return 1 minus the entropy of the mean prediction relative to the largest possible.

    >>> one, both = torch.tensor([[99.0, 0.0]] * 2), torch.tensor([[99.0, 0.0], [0.0, 99.0]])
    >>> unevenness(torch.stack([one, both])).abs()
    tensor([1., 0.])
    """
    mean = logits.softmax(-1).mean(1)
    entropy = -torch.xlogy(mean, mean.clamp(min=torch.finfo(mean.dtype).tiny)).sum(-1)
    return 1 - entropy / math.log(max(2, logits.shape[-1]))
