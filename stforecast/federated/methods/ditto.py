"""Ditto: FedAvg plus a personal model on each client that is regularised towards the global one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML
2021, arXiv 2012.04221, Algorithm 1.

Client k minimises F_k(v) + λ/2 ‖v - wᵗ‖² over its personal model v, where wᵗ is the global model as
received. v stays on the client from round to round and is never sent, so w is FedAvg's (exactly,
except for dropout masks, which both models draw from one generator); for λ = 0, v is `solo`'s.

- Both models see the same batches and step together, as in the released code: v depends on wᵗ and
  not on the client's own update of it, so their order does not matter. The paper leaves w's solver
  open.
- The paper's steps are plain SGD with one learning rate; here both models are trained by the run's
  optimiser, each with moments of its own.
- The server draws clients uniformly and weights them by their samples, as FedAvg does. The
  released code draws them by their samples, without replacement, and weights them equally; with
  full participation that is the plain mean.
- Running statistics are not part of ‖v - w‖²: v has its own, which only its own forward passes
  change, and w's are averaged by the server.

The reported loss is the sum of both models' losses, the task loss that of the personal model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload, squared_distance
from stforecast.federated.methods.two_models import TwoModels, personal_copies, personal_model
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class DittoOptions(CheckedOptions):
    """Settings of Ditto.

    Attributes:
        lam: weight λ of the personal model's distance to the global one; 0 trains it alone (1 in
            the released scripts, whose dynamic choice is among 0.1, 1 and 2).
        personal_epochs: epochs of training of the personal model in each round; by default the
            run's local epochs.
    """

    lam: NonNegativeFloat = 1.0
    personal_epochs: PositiveInt | None = None


class Ditto(TwoModels):
    """Ditto. v is trained under the names `personal.…`; its running statistics are memory."""

    name = "ditto"
    summary = "FedAvg, and personal models pulled to its global one"
    paper = "Li et al., ICML 2021"
    attacked = Attacked(guards=RULES)
    Options = DittoOptions
    options: DittoOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start every v from the common initial model."""
        server = super().init(clients, sizes, seed)
        clients.params |= personal_copies(clients.params)
        clients.memory |= personal_copies(clients.buffers)
        return server

    @property
    def personal_epochs(self) -> int:
        """Number of epochs per round in which v is trained."""
        return self.options.personal_epochs or self.training.epochs

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run Algorithm 1 on a client: update w from wᵗ, and v towards wᵗ."""
        self.receive(cohort, payload)
        for batch in cohort.batches(max(self.training.epochs, self.personal_epochs)):
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return F(w) + F(v) + λ/2 ‖v - wᵗ‖²; the gradients of w and v are independent."""
        losses = []
        if cohort.epoch < self.training.epochs:
            losses.append(self.loss_of(cohort.state, batch))
        if cohort.epoch < self.personal_epochs:
            own = personal_model({**cohort.memory, **cohort.params})
            task_loss = self.loss_of(own, batch)
            cohort.record("task_loss", task_loss)
            distance = squared_distance(personal_model(cohort.params), payload)
            losses.append(task_loss + self.options.lam / 2 * distance)
        return torch.stack(losses).sum(0)
