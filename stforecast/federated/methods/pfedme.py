"""pFedMe: personal models as proximal points of the clients' copies of the global model.

T. Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, arXiv
2006.08848, Algorithm 1.

On each batch D, a client approximates its personal model θ = argmin f(θ; D) + λ/2 ‖θ - w‖² (Eq. 7)
by K gradient steps, then moves its copy w of the global model down the gradient λ (w - θ) of the
Moreau envelope: w ← w - η λ (w - θ). The server moves the global model by a share β towards the
plain mean of the clients' w.

- A local round of the paper (one of R, each on a fresh batch) is a batch here: R is the number of
  batches of the local epochs.
- The paper leaves the inner solver open. As in the released code it is gradient descent, which
  starts at the received w once a round and then continues from the previous batch's θ. The code
  adds a weight decay of 0.001; the paper, and this, do not.
- In the paper all clients train and only those drawn are aggregated. Here only participants train;
  the others keep the θ of their last round.
- The code weights clients by their samples; the paper, and this, count them equally.
- The run's learning rate and optimiser are not used; η and the inner learning rate are options.
- Only θ is applied to data, so running statistics are θ's: they start a round as received and are
  sent as those of w. θ's are stored apart from the global ones. The server averages these without
  β, since β > 1 could make a variance negative.

The reported losses are means over all inner steps, the task loss that of θ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.options import CheckedOptions, Grid
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, squared_distance
from stforecast.federated.methods.two_models import TwoModels, personal_copies, personal_model
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class PFedMeOptions(CheckedOptions):
    """Settings of pFedMe; defaults of the released code.

    Attributes:
        lam: weight λ of the distance of θ to w; the smaller, the more personal θ is.
        eta: learning rate η of w. Each batch moves w by a share η λ of the way to θ; it should be
            well below 1.
        personal_lr: learning rate of the inner steps. They diverge if it exceeds 2 / (λ + curvature
            of the loss).
        inner_steps: inner steps K per batch.
        beta: share β of the way to the clients' mean that the server moves; 1 averages, more
            extrapolates (the released code's tuned runs have 2).
    """

    lam: PositiveFloat = 15.0
    eta: PositiveFloat = 0.005
    personal_lr: PositiveFloat = 0.09
    inner_steps: PositiveInt = 5
    beta: PositiveFloat = 1.0


class PFedMe(TwoModels):
    """pFedMe. θ is the client's memory `personal.…`; it is not trained by the run's optimiser."""

    name = "pfedme"
    summary = "personal models near a global one, by Moreau envelopes"
    paper = "T. Dinh et al., NeurIPS 2020"
    attacked = Attacked(guards=RULES)
    sends = Upload(sums="clients")
    Options = PFedMeOptions
    options: PFedMeOptions
    grid: ClassVar[Grid] = {"personal_lr": [0.003, 0.01, 0.03, 0.09, 0.3], "eta": [0.005, 0.02]}

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start every θ from the common initial model."""
        clients.memory |= personal_copies({**clients.params, **clients.buffers})
        return super().init(clients, sizes, seed)

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run Algorithm 1 on a client: θ (line 7) and w (line 8), batch by batch."""
        self.receive(cohort, payload)
        theta = personal_model(cohort.memory)
        overwrite(theta, cohort.state)
        w = {name: cohort.params[name].detach() for name in self.population.trainable}
        for batch in cohort.batches():
            for _ in range(self.options.inner_steps):
                self.inner_step(cohort, theta, w, batch)
            for name, t in w.items():
                t.lerp_(theta[name], self.options.eta * self.options.lam)
        overwrite(cohort.buffers, theta)
        return self.upload(cohort)

    def inner_step(self, cohort: Cohort, theta: Params, w: Params, batch: Batch) -> None:
        """Take a gradient step of θ, in place, on h(θ; w, D) = f(θ; D) + λ/2 ‖θ - w‖² (Eq. 7)."""
        leaves = {name: theta[name].detach().requires_grad_() for name in w}
        task_loss = self.loss_of({**theta, **leaves}, batch)
        loss = task_loss + self.options.lam / 2 * squared_distance(leaves, w)
        gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            theta[name].sub_(self.options.personal_lr * gradient)
        cohort.record("task_loss", task_loss)
        cohort.record("loss", loss)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return (1-β) wᵗ + β times the participants' mean (Algorithm 1, last line)."""
        mean = super().aggregate(server, of, uploads)
        trained = [name for name in self.population.trainable if name in mean]
        mixed = {n: torch.lerp(server[n], mean[n], self.options.beta) for n in trained}
        return {**mean, **mixed}


def overwrite(target: Params, source: Params) -> None:
    """Copy into each tensor of `target` the one of the same name in `source`."""
    with torch.no_grad():
        for name, t in target.items():
            t.copy_(source[name])
