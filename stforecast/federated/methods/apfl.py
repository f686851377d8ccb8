"""APFL: a global and a local model side by side, and their mixture to predict with.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020, arXiv 2003.13461,
Algorithm 1.

A client trains its version w of the global model on its own loss, ∇f(w), and a local model v on
that of the mixture v̄ = α v + (1-α) w, whose gradient for v is α ∇f(v̄). w is sent and averaged, v
stays. The share α is fixed, or learned from ∂f/∂α = ⟨v - w, ∇f(v̄)⟩ and kept in [0, 1].

Where paper and released code (FedTorch) differ, this is the paper:

- Parameters are mixed; the code mixes the outputs of two models.
- v's gradient is taken at w before its step; the code steps w first.
- α's gradient is taken before both steps; the code takes it after them, as α ∇f(v) + (1-α) ∇f(w) in
  the direction v - w, and adds 0.02 α. The run's weight decay acts on α as on all parameters.
- A client predicts with its v mixed with the server's latest w, as at the end of a round of
  Algorithm 1; the code evaluates with the client's own w just before it is averaged.

As in the code, a learned α steps once a round, on its first batch. The paper's SGD is the run's
optimiser here, for w, v and α alike (Adam's step for α ∇f(v̄) is about the same for any α > 0). The
server counts clients equally, as in the paper.

The mixture has running statistics of its own, those of its forward passes; they are not mixed, and
w's are averaged by the server. The reported loss is f(w) + f(v̄), the task loss f(v̄).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Upload
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.state import Clients, Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Params, Payload, with_axes
from stforecast.federated.methods.two_models import TwoModels, personal_copies, personal_model
from stforecast.federated.uploads.robust import RULES


@dataclass(frozen=True)
class ApflOptions(CheckedOptions):
    """Settings of APFL.

    Attributes:
        alpha: share α of the local model in the mixture; 0 is FedAvg for clients of equal size, 1
            is `solo` (0.75 for the APFL baseline in FedRep's released code).
        adaptive: whether each client learns its own α, starting at `alpha`. In Algorithm 1 α is
            fixed.
    """

    alpha: Share = 0.75
    adaptive: bool = False


class Apfl(TwoModels):
    """APFL. v's parameters are named `personal.…`, as are the mixture's running statistics."""

    name = "apfl"
    summary = "mixes a local and a global model on each client"
    paper = "Deng et al., arXiv 2020"
    attacked = Attacked(guards=RULES)
    sends = Upload(sums="clients")
    Options = ApflOptions
    options: ApflOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start every v from the common initial model; train α only if it is adaptive."""
        server = super().init(clients, sizes, seed)
        clients.params |= personal_copies(clients.params)
        clients.memory |= personal_copies(clients.buffers)
        group = clients.params if self.options.adaptive else clients.memory
        group["alpha"] = torch.full((len(clients),), self.options.alpha, device=clients.device)
        return server

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Run Algorithm 1: step w from the received model, and v; step α on the first batch."""
        self.receive(cohort, payload)
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
            if self.options.adaptive:
                alpha = cohort.params["alpha"].requires_grad_(False)
                alpha.clamp_(0, 1)
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return f(w) + f(v̄), where w is a constant in v̄."""
        global_model = {name: p.detach() for name, p in cohort.params.items()}
        mixture = self.mixture({**cohort.memory, **cohort.params}, global_model)
        task_loss = self.loss_of(mixture, batch)
        cohort.record("task_loss", task_loss)
        return self.loss_of(cohort.state, batch) + task_loss

    def mixture(self, state: Mapping[str, Tensor], global_model: Mapping[str, Tensor]) -> Params:
        """Return v̄ = α v + (1-α) w, with its own buffers, `personal.…`."""
        model = personal_model(state)
        for name in self.population.trainable:
            w, v = global_model[name], model[name]
            model[name] = torch.lerp(w, v, with_axes(state["alpha"].to(v), v.ndim))
        return model

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with v mixed with the server's latest w, or with that w."""
        if view == "global":
            return super().predict(state, payload, x, view)
        mixture = self.mixture(state, {**state, **payload})
        return self.population.decode(mixture, self.population.encode(mixture, x))
