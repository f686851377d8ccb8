"""FedTGP: FedProto whose server learns global prototypes that lie far apart.

Zhang, Liu, Hua, Cao: FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive
Learning for Data and Model Heterogeneity in Federated Learning, AAAI 2024, arXiv 2401.03230, Eq. 5
to 11 and Algorithm 1.

Clients do as in FedProto: they send the mean feature of each key, P_iᶜ, and pull their features to
the global prototypes P̂ᶜ. Unlike FedProto, they do not send how many samples a key has. The server
does not average. It keeps a vector for each key and a network of two layers that maps it to P̂ᶜ,
and trains both on the received prototypes as samples, by the contrastive loss with an adaptive
margin,

    L = Σ_c Σ_i -log(e^{-a} / (e^{-a} + Σ_{c'≠c} e^{-φ(P_iᶜ, P̂ᶜ')})), a = φ(P_iᶜ, P̂ᶜ) + δ,
    δ = min(max_{c≠c'} φ(Qᶜ, Qᶜ'), τ),

where φ is the Euclidean distance and Qᶜ the plain mean of the clients' prototypes of key c (Eq. 9
and 10).

- In Algorithm 1 the server sends its initial, random prototypes in the first round. As in the
  released code (Apache 2.0), nothing is sent there, and the clients train by the task's loss alone.
- The released code takes for δ the largest of the distances from each Qᶜ to its nearest neighbour;
  this takes the largest of all distances, as printed.
- The code trains in batches of ten prototypes, with the clients' learning rate; here a step uses
  all prototypes at once and their mean loss, and is longer (`server_lr`).
- Eq. 11 pulls a client's prototypes to the global ones by φ, with λ = 0.1. As in the released code
  and in our FedProto, the loss is the squared error of every sample to the prototype of its key,
  averaged over the features. λ is the weight of this loss. The authors set it to 10, in FedProto,
  too; the default here is that of our FedProto, so that only the servers differ.
- With forecasts, keys are slots of the period: neighbouring hours are pushed apart like classes.
- A key that nobody has held is pushed away by all others, but is not sent as known.
- Prototypes are means over the last local epoch, and the head predicts, as in our FedProto. The
  paper computes them after training, and predicts the key of the nearest global prototype.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.layers import ClientLinear
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import Network, feature_width
from stforecast.federated.core.prototypes import key_means, means_of_last_epoch
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState, generator
from stforecast.federated.core.tensors import Batch, Params, Payload, repeated
from stforecast.federated.methods.fedproto import pulled_loss
from stforecast.federated.uploads.robust import RULES

VECTORS, NETWORK = "trained.vectors", "trained.network."
"""Name of the server's vectors of all keys, and prefix of the names of its network."""

VECTOR_DRAW = (0, 7)
"""Key of the generator of the initial vectors."""

SENT = ("prototypes", "known")
"""What the server sends of its state."""


@dataclass(frozen=True)
class FedTGPOptions(CheckedOptions):
    """Settings of FedTGP.

    Attributes:
        lam: weight λ of the distance to the global prototypes; 0 trains alone (see above).
        margin: largest margin τ (paper: 100).
        server_epochs: steps of the server in each round (paper: 100 epochs).
        server_lr: learning rate of the server's steps (released code: 0.01, in batches of ten).
    """

    lam: NonNegativeFloat = 1.0
    margin: NonNegativeFloat = 100.0
    server_epochs: PositiveInt = 100
    server_lr: PositiveFloat = 0.1


class FedTGP(Method):
    """FedTGP. The server's state has the vectors, the network and the prototypes they give."""

    name = "fedtgp"
    summary = "FedProto whose server learns prototypes that lie far apart"
    paper = "Zhang et al., AAAI 2024"
    attacked = Attacked(guards=RULES)
    sends = Upload(needs_each="its server learns from each client's prototypes", counts=True)
    needs = Needs(data=("keys",))
    Options = FedTGPOptions
    options: FedTGPOptions

    def set_up(self) -> None:
        """Build the server's network."""
        self.width = d = feature_width(self.population)
        self.network = Network(
            NETWORK, partial(ClientLinear, d, d), nn.ReLU, partial(ClientLinear, d, d)
        )

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Draw the server's vectors and network."""
        drawn = generator(seed, *VECTOR_DRAW)
        vectors = torch.randn(self.task.n_keys, self.width, generator=drawn).to(clients.device)
        parameters, _ = self.network.initial(1, seed, clients.device)
        return {VECTORS: vectors, **{name: t[0] for name, t in parameters.items()}}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the global prototypes, the same for every client; empty before the first round."""
        return repeated({n: t for n, t in server.items() if n in SENT}, len(to.ids))

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `L_S + λ L_R` as FedProto does."""
        return pulled_loss(self, cohort, batch, payload, self.options.lam)

    def upload(self, cohort: Cohort) -> Payload:
        """Return local prototypes `(clients, keys, d)` and which keys have one."""
        means = means_of_last_epoch(cohort)
        return {"prototypes": means.means(), "known": means.counts > 0}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Train vectors and network on the received prototypes; return them and the new P̂."""
        prototypes, held = uploads["prototypes"], uploads["known"]
        names = [name for name in server if name not in SENT]
        trained = {name: server[name].clone().requires_grad_() for name in names}
        delta = min(widest_gap(prototypes, held), self.options.margin)
        if held.any():
            with torch.enable_grad():
                for _ in range(self.options.server_epochs):
                    loss = margin_contrast(prototypes, held, self.prototypes(trained), delta)
                    found = torch.autograd.grad(loss, list(trained.values()))
                    with torch.no_grad():
                        for t, g in zip(trained.values(), found, strict=True):
                            t -= self.options.server_lr * g
        with torch.no_grad():
            made = self.prototypes(trained)
        known = held.any(0) | server.get("known", torch.zeros_like(held[0]))
        kept = {name: t.detach() for name, t in trained.items()}
        return {**kept, "prototypes": made, "known": known}

    def prototypes(self, trained: Params) -> Tensor:
        """Return P̂ of all keys, `(keys, d)`."""
        stacked = {name: trained[name][None] for name in self.network.parameters}
        return self.network(stacked, trained[VECTORS][None], training=True)[0]


def widest_gap(prototypes: Tensor, held: Tensor) -> float:
    """Return the largest distance between the plain means Qᶜ of two keys; 0 with fewer than two.

    The prototypes are `(clients, keys, d)`.

    >>> prototypes = torch.tensor([[[0.0], [2.0], [9.0]], [[2.0], [8.0], [9.0]]])
    >>> widest_gap(prototypes, torch.tensor([[True, True, False], [True, True, False]]))
    4.0
    """
    means = key_means(prototypes, held)[held.any(0)]
    return float(torch.pdist(means).max()) if len(means) > 1 else 0.0


def margin_contrast(prototypes: Tensor, held: Tensor, made: Tensor, delta: float) -> Tensor:
    """Return the mean contrastive loss of the clients' P `(clients, keys, d)` and P̂ `(keys, d)`."""
    keys = torch.arange(len(made), device=made.device).expand(held.shape)[held]
    distance = torch.cdist(prototypes[held], made, compute_mode="donot_use_mm_for_euclid_dist")
    margins = delta * F.one_hot(keys, len(made)).to(distance.dtype)
    return F.cross_entropy(-distance - margins, keys)
