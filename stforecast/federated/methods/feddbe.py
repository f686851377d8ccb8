"""FedDBE: FedAvg whose clients keep the mean of their features, so that shared features agree.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan: Eliminating Domain Bias for Federated Learning in
Representation Space, NeurIPS 2023, arXiv 2311.14975 (DBE applied to FedAvg).

The encoder's features count as the part z_g that clients share. A client adds a learned vector z̄_p
of its own before the head (personalised representation bias memory, PRBM), which is never sent, and
a penalty holds the mean of its shared features at a common mean z̄_g (mean regularisation):

    min ℓ(head(z_g + z̄_p), y) + κ MSE(z̄_{g,i}, z̄_g).

z̄_{g,i} is a moving mean over the batches of a round, (1 - μ) z̄_{g,i} + μ mean(z_g), from 0; only
the newest batch's share has a gradient. z̄_g is fixed after the first round: the mean over the
clients of z̄_{g,i}, weighted by samples, which they send once. Encoder and head are FedAvg's. Only
the beginning of the paper's text was available; this follows its figure and the released code
(Apache 2.0).

- The paper computes z̄_g before the first round, in which clients train without z̄_p and penalty,
  and then starts again from the initial model. Here that is the first round, and its models are
  averaged, not thrown away.
- Clients that miss the first round have no part in z̄_g.
- The released code halves the squared error, so its κ is twice ours.
- z̄_p starts at 0, is trained by the run's optimiser and predicts with the latest global model.
- With `moving_share` below 1, z̄_{g,i} is near 0 in the first batches of a round, as in the code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from stforecast.federated.core.declared import Attacked
from stforecast.federated.core.options import CheckedOptions, PositiveShare
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.fedavg import FedAvg
from stforecast.federated.uploads.robust import RULES

BIAS, MEAN = "bias_memory", "feature_mean"
"""Names of a client's own vector z̄_p, and of the common mean z̄_g."""


@dataclass(frozen=True)
class FedDBEOptions(CheckedOptions):
    """Settings of FedDBE.

    Attributes:
        kappa: weight κ of the distance of the means; 0 leaves only the vector z̄_p (released script:
            25 in our terms, for a small CNN).
        moving_share: share μ of the newest batch in the moving mean (released script: 1, that is
            the batch alone).
    """

    kappa: NonNegativeFloat = 25.0
    moving_share: PositiveShare = 1.0


class FedDBE(FedAvg):
    """FedAvg with DBE between encoder and head."""

    name = "feddbe"
    summary = "FedAvg with a common mean of features, and their bias kept on each client"
    paper = "Zhang et al., NeurIPS 2023"
    attacked = Attacked(guards=RULES)
    views = ("personal",)
    Options = FedDBEOptions
    options: FedDBEOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Initialise as FedAvg, with z̄_p = 0."""
        width = feature_width(self.population)
        clients.params[BIAS] = torch.zeros(len(clients), width, device=clients.device)
        return super().init(clients, sizes, seed)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train with DBE; in the first round without it, and add the mean to the upload."""
        cohort.scratch["mean"] = torch.zeros_like(cohort.params[BIAS])
        upload = super().local_update(cohort, payload)
        return upload if MEAN in payload else {**upload, MEAN: cohort.scratch["mean"]}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the task's loss of z_g + z̄_p, plus κ MSE(z̄_{g,i}, z̄_g)."""
        features = self.population.encode(cohort.state, batch["x"])
        mean = torch.lerp(cohort.scratch["mean"], features.mean(1), self.options.moving_share)
        cohort.scratch["mean"] = mean.detach()
        if MEAN not in payload:
            return self.task_loss(cohort, features, batch)
        loss = self.task_loss(cohort, features + cohort.params[BIAS][:, None], batch)
        return loss + self.options.kappa * (mean - payload[MEAN]).square().mean(1)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models; keep z̄_g, or average the first means."""
        return {**server, **super().aggregate(server, of, uploads)}

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the latest global model and the client's own z̄_p."""
        model = {**state, **payload}
        features = self.population.encode(model, x)
        return self.population.decode(model, features + state[BIAS][:, None])
