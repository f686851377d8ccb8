"""MOON: FedAvg whose features are pulled to the global model's, away from the former local model's.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, arXiv 2103.16257, Eq. 3 to 5 and
Algorithm 1.

A client adds to its own loss, with weight μ, the model-contrastive loss of each sample,

    ℓ_con = -log(e^{sim(z, z_glob)/τ} / (e^{sim(z, z_glob)/τ} + e^{sim(z, z_prev)/τ})),

where z are the features of the model in training, z_glob those of the global model as received, and
z_prev those of the client's own model at the end of its last round. sim is the cosine similarity.
Only the model is sent, as in FedAvg; each step costs two further forward passes.

- The features are those that enter the output layer, the model's head. The paper's networks have a
  projection head of two layers before it, which is part of the model; here the model is the run's.
- A client that has missed rounds compares with the model that it trained last, as in the paper.
- Before a client's first round its former model is the initial one; the paper says nothing about
  this case. With full participation that is also the global one, so ℓ_con is log 2 and has no
  gradient in the first round; the released code (MIT licence) leaves it out there.
- The released code can compare with several former models; by default, as here, it is one.
- The global and the former model are in evaluation mode, as in the released code: without dropout,
  and with their running statistics, which do not change.
- The paper's local steps are SGD with momentum; here they are those of the run's optimiser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.prototypes import attract_repel_loss
from stforecast.federated.core.state import Cohort
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class MoonOptions(CheckedOptions):
    """Settings of MOON.

    Attributes:
        mu: weight μ of the model-contrastive loss; 0 is FedAvg (paper: 5 for CIFAR-10, 1 for
            CIFAR-100 and Tiny-ImageNet, the best of 0.1, 1, 5 and 10).
        temperature: temperature τ (paper: 0.5).
    """

    mu: NonNegativeFloat = 1.0
    temperature: PositiveFloat = 0.5


class Moon(FedAvg):
    """FedAvg with the model-contrastive loss."""

    name = "moon"
    summary = "FedAvg with features pulled to the global model's, away from former local ones"
    paper = "Li et al., CVPR 2021"
    attacked = Attacked(guards=RULES)
    Options = MoonOptions
    options: MoonOptions

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Keep the former local model, then train the received one."""
        former = {name: t.detach().clone() for name, t in cohort.state.items()}
        cohort.scratch["models"] = {**former, **payload}, former
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return ℓ_sup + μ ℓ_con of each client, `(clients,)`."""
        features = self.population.encode(cohort.state, batch["x"])
        loss = self.task_loss(cohort, features, batch)
        if self.options.mu == 0:
            return loss
        to, off = self.frozen(cohort.scratch["models"], batch["x"])
        contrast = attract_repel_loss(features, to, off, self.options.temperature)
        return loss + self.options.mu * contrast.mean(1)

    @torch.no_grad()
    def frozen(self, models: Sequence[Mapping[str, Tensor]], x: Tensor) -> list[Tensor]:
        """Return the features of models in evaluation mode, without gradients."""
        self.population.train(False)
        features = [self.population.encode(model, x) for model in models]
        self.population.train()
        return features
