"""FedAMP: each client keeps a model, drawn to a mixture of those of clients with similar models.

Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data,
AAAI 2021, arXiv 2007.03797. The paper minimises

    Σ_i F_i(w_i) + λ Σ_{i<j} A(‖w_i - w_j‖²),    A(x) = 1 - exp(-x / σ),

by turns. The server takes a step of size α down the gradient of the second sum: client i receives

    u_i = (1 - Σ_j ξ_ij) w_i + Σ_{j≠i} ξ_ij w_j,    ξ_ij = α A'(‖w_i - w_j‖²),

and then minimises F_i(w) + λ / (2α) ‖w - u_i‖² from its own w_i.

- The paper's text could not be read. The objective and both steps are those of a published summary
  (creatis-myriad.github.io, 23 November 2022), the form of u_i that of PFLlib (Apache 2.0, commit
  d832e76), which leaves the factor 2 of the gradient to α. So do we; our u_i equal PFLlib's to
  1e-15 in double precision.
- With many clients Σ_j ξ_ij may exceed 1, and u_i would overshoot the others. It is then divided by
  its sum, so u_i is always a mean of models.
- PFLlib's proximal term has no gradient and is not squared; this is the paper's.
- The defaults α = λ = σ = 1 are PFLlib's. σ should be of the size of squared distances of models.
- Models are parameters; clients keep running statistics, and what a model calls its own.
- With partial participation, the server mixes the latest models of all that have taken part.
- HeurFedAMP, the paper's variant for deep networks, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Cohort, ServerState
from stforecast.federated.core.tensors import Batch, Payload, squared_distance
from stforecast.federated.methods.two_models import SEEN, MixedModels, inner_products


@dataclass(frozen=True)
class FedAmpOptions(CheckedOptions):
    """Settings of FedAMP; the defaults are PFLlib's.

    Attributes:
        lam: weight λ of the models' distances; 0 trains alone.
        alpha: step size α of the server.
        sigma: squared distance σ of two models at which they attract each other less.
    """

    lam: NonNegativeFloat = 1.0
    alpha: PositiveFloat = 1.0
    sigma: PositiveFloat = 1.0


class FedAmp(MixedModels):
    """FedAMP."""

    name = "fedamp"
    summary = "draws each client's model to a mixture of the models like it"
    paper = "Huang et al., AAAI 2021"
    sends = Upload(needs_each="its server compares the clients' models with each other", apart=True)
    Options = FedAmpOptions
    options: FedAmpOptions

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train the client's own model near u_i."""
        for batch in cohort.batches():
            cohort.step(self.local_loss(cohort, batch, payload))
        return self.upload(cohort)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `F_i(w) + λ / (2α) ‖w - u_i‖²`, `(clients,)`."""
        loss = super().local_loss(cohort, batch, payload)
        pull = self.options.lam / (2 * self.options.alpha)
        return loss + pull * squared_distance(cohort.params, payload) if pull else loss

    def mixture(self, server: ServerState) -> Tensor:
        """Return the weights of all models in each client's u."""
        models = {name: server[name] for name in self.shared}
        return mixture(models, server[SEEN], self.options.alpha, self.options.sigma)


def mixture(models: Mapping[str, Tensor], seen: Tensor, alpha: float, sigma: float) -> Tensor:
    """Return the weights of all models in each client's u, `(clients, clients)`; rows sum to 1.

    Only clients that are `seen` attract others; α and σ are the step size and the scale of squared
    distances.
    """
    apart = squared_distances(models)
    attention = alpha / sigma * (-apart / sigma).exp() * seen
    attention.fill_diagonal_(0)
    attention = attention / attention.sum(1, keepdim=True).clamp(min=1)
    rest = 1 - attention.sum(1)
    return (attention + torch.diag(rest)).to(next(iter(models.values())).dtype)


def squared_distances(models: Mapping[str, Tensor]) -> Tensor:
    """Return `‖w_i - w_j‖²` of all pairs of models, `(clients, clients)` in double precision."""
    centred = {name: t - t.mean(0) for name, t in models.items()}  # Close models keep digits.
    products = inner_products(centred)
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp(min=0)
