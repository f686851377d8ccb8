"""pFedGraph: each client starts from a mixture of models, by how alike their updates are.

Ye, Ni, Wu, Wang, Chen: Personalized Federated Learning with Inferred Collaboration Graphs, ICML
2023. From the models θ_j after the last round, their updates Δ_j = θ_j - θ⁰ since the first model,
and the shares p_j of the clients' samples, client i receives

    u_i = Σ_j w_ij θ_j,    w_i = argmin Σ_j w_j d_ij + α ‖w - p‖²,    w ≥ 0,  Σ_j w_j = 1,

with d_ij = -cos(Δ_i, Δ_j). It is the projection of p - d_i / (2α) on the simplex. From u_i, the
client minimises F_i(θ) - λ cos(θ, u_i).

- The paper's text could not be read, and its released code has no licence. Rules and defaults are
  those of Plato (Apache 2.0, commit 0357f30), which names the paper's equations. Our weights equal
  its own to 1e-6, in single precision.
- As there, cosines above 0.9 count as 1, and a client starts its round from u_i and predicts with
  what it has trained.
- Plato mixes the models of a round's participants; this mixes the latest of all that took part.
- Models are parameters; clients keep running statistics, and what a model calls its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.two_models import SEEN, MixedModels, inner_products

FIRST, SIZES = "first.", "sizes"
"""Prefix of the server's tensors of the first model, and name of the clients' samples."""

ALIKE = 0.9
"""Cosine of updates above which it counts as 1."""


@dataclass(frozen=True)
class PFedGraphOptions(CheckedOptions):
    """Settings of pFedGraph; the defaults are Plato's.

    Attributes:
        lam: weight λ of the cosine between a client's model and what it received.
        alpha: weight α of the clients' shares of samples: the larger, the more the mixture is
            FedAvg's mean; the smaller, the fewer clients take part in it.
    """

    lam: NonNegativeFloat = 0.01
    alpha: PositiveFloat = 0.8


class PFedGraph(MixedModels):
    """pFedGraph."""

    name = "pfedgraph"
    summary = "starts each client from a mixture of the models whose updates are like its own"
    paper = "Ye et al., ICML 2023"
    sends = Upload(
        needs_each="its server compares the clients' updates with each other", apart=True
    )
    Options = PFedGraphOptions
    options: PFedGraphOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return all clients' models, the first one, and no samples of clients yet."""
        first = {FIRST + name: clients.params[name][0].clone() for name in self.shared}
        unknown = torch.zeros(len(clients), device=clients.device)
        return {**super().init(clients, sizes, seed), **first, SIZES: unknown}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `F_i(θ) - λ cos(θ, u_i)`, `(clients,)`."""
        loss = super().local_loss(cohort, batch, payload)
        if self.options.lam == 0:
            return loss
        own, received = (
            torch.cat([of[name].reshape(len(of[name]), -1) for name in self.shared], dim=1)
            for of in (cohort.params, payload)
        )
        return loss - self.options.lam * torch.cosine_similarity(own, received, dim=1)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the models and the numbers of samples, and compute how models are mixed."""
        sizes = server[SIZES].clone()
        sizes[of.ids.to(sizes.device)] = of.sizes.to(sizes)
        return super().aggregate({**server, SIZES: sizes}, of, uploads)

    def mixture(self, server: ServerState) -> Tensor:
        """Return the weights of all models in each client's u; those never seen have none."""
        updates = {name: server[name] - server[FIRST + name] for name in self.shared}
        products = inner_products(updates)
        norms = products.diagonal().sqrt().clamp(min=torch.finfo(torch.double).tiny)
        cosines = products / norms / norms[:, None]
        cosines = torch.where(cosines > ALIKE, 1.0, cosines)
        share = server[SIZES].double() / server[SIZES].sum().clamp(min=1)
        wanted = share + cosines / (2 * self.options.alpha)
        seen = server[SEEN]
        return projected(wanted.masked_fill(~seen, -torch.inf) if seen.any() else wanted)

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; a new one has no samples, and the mean model."""
        ids = ids.to(server[SIZES].device)
        sizes = torch.where(ids >= 0, server[SIZES][ids], 0.0)
        return super().server_for({**server, SIZES: sizes}, ids)


def projected(rows: Tensor) -> Tensor:
    """Project rows on the simplex: the nearest weights that are not negative and sum to 1.

    Duchi, Shalev-Shwartz, Singer, Chandra, ICML 2008, Figure 1. A value of -inf gets no weight.
    """
    ordered = rows.sort(dim=1, descending=True).values
    counts = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    excess = (ordered.cumsum(1) - 1) / counts
    n = (ordered > excess).sum(1, keepdim=True)
    return (rows - excess.gather(1, n - 1)).clamp(min=0)
