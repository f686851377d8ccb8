"""PFPL: every client's own mixture of class prototypes, for label skew and domain shift at once.

Zeng, Xing, Liang, Huang, Wang, Cao, Shi: Personalized Federated Prototype Learning in Mixed
Heterogeneous Data Scenarios; Eq. 2, 4, 5 and 7 and Algorithm 1.

A client sends the mean feature of each of its classes (Eq. 2) and nothing else; the server returns
to it, for each, a mixture of its own prototype and of those of the other clients that hold the
class (Eq. 4), to which its features are drawn (Eq. 5). Parameters and buffers are the client's own.

Where the paper contradicts itself or is silent:

- The weights as printed grow with the distance, so that clients of other domains would weigh most;
  the text says the contrary, and so do we: inverse distances. `weights="as_printed"` follows the
  formula.
- The distance of two prototypes is the sum of squares, as printed below Eq. 4.
- A class that no other client holds keeps the client's own prototype.
- Eq. 7 measures prototypes by a sum of squares. As in FedProto's released code, every sample is
  drawn to the prototype of its class, by the mean over the features: weaker by their number than
  the sum, so λ is FedProto's, not Eq. 7's. `align="batch"` draws the batch's mean of each class,
  averaged over the classes where Eq. 6 sums them.
- Algorithm 1 (lines 21 and 22) also updates the local prototypes with the mixtures in every batch,
  without saying how; here they are what Eq. 2 says, means of the features.
- Prototypes are means over the last local epoch's batches, without another pass, as in FedProto.
- Prediction is by the head; the view `nearest` takes the class of the client's nearest mixture.
- A client that sits a round out keeps its last prototypes on the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.data import Batch
from stforecast.federated.method import Method, Participants
from stforecast.federated.options import CheckedOptions, Share
from stforecast.federated.prototypes import (
    PrototypeMeans,
    instance_distance,
    nearest_prototype,
)
from stforecast.federated.state import Clients, Cohort
from stforecast.federated.uploads.payload import Payload

EPS = 1e-12
"""Added to a distance before it is inverted: equal prototypes share the weight."""


@dataclass(frozen=True)
class PFPLOptions(CheckedOptions):
    """Settings of PFPL.

    Attributes:
        alpha: share α of a client's own prototype in its mixture (paper: 0.3, 0.5 and 0.6 for its
            three data sets).
        lam: weight λ of the alignment loss (paper: 1).
        weights: of the others' prototypes: `inverse` distance, `softmax` of minus the distance over
            the temperature, or `as_printed`: proportional to the distance.
        temperature: of the softmax.
        align: what is drawn to the mixture: every `instance`, or the `batch` mean of each class.
    """

    alpha: Share = 0.5
    lam: NonNegativeFloat = 1.0
    weights: Literal["inverse", "softmax", "as_printed"] = "inverse"
    temperature: PositiveFloat = 1.0
    align: Literal["instance", "batch"] = "instance"


class PFPL(Method):
    """PFPL. The functions stand in the order of the paper's Algorithm 1."""

    name = "pfpl"
    summary = "draws features to prototypes mixed for each client by distance; only these travel"
    paper = "Zeng et al., 2025"
    keeps_apart = True
    views: ClassVar[tuple[str, ...]] = ("personal", "nearest")
    Options = PFPLOptions
    options: PFPLOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> dict[str, Tensor]:
        """The server knows no client's classes at first."""
        device = next(iter(clients.params.values())).device
        return {
            "known": torch.zeros(len(clients), self.task.n_keys, dtype=torch.bool, device=device)
        }

    def broadcast(self, server: dict[str, Tensor], to: Participants) -> Payload:
        """Each client's mixtures `(clients, keys, d)`, zeros for classes that it does not hold.

        Nothing in the first round.
        """
        if "prototypes" not in server:
            return {}
        prototypes, known = server["prototypes"], server["known"]
        ids = to.ids.to(known.device)
        return {"mixtures": mixtures(prototypes, known, ids, self.options), "held": known[ids]}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Train, averaging the features of the last epoch on the way."""
        cohort.scratch["means"] = PrototypeMeans(self.task.n_keys)
        return super().local_update(cohort, payload)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """`ℓ_S + λ ℓ_R` (Eq. 5)."""
        features = self.population.encode(cohort.state, batch["x"])
        keys = self.task.keys(batch)
        if cohort.last_epoch:
            cohort.scratch["means"].add(features, keys)
        loss = self.task_loss(cohort, features, batch)
        if not payload or not self.options.lam:
            return loss
        align = {"instance": instance_distance, "batch": batch_distance}[self.options.align]
        return loss + self.options.lam * align(features, keys, payload["mixtures"], payload["held"])

    def upload(self, cohort: Cohort) -> Payload:
        """Local prototypes `(clients, keys, d)` (Eq. 2), and which classes they are of."""
        means: PrototypeMeans = cohort.scratch["means"]
        return {"prototypes": means.means(), "known": means.counts > 0}

    def aggregate(
        self, server: dict[str, Tensor], of: Participants, uploads: Payload
    ) -> dict[str, Tensor]:
        """Keep the latest prototypes of every client, `(clients, keys, d)`."""
        n = len(server["known"])
        return {
            name: server.get(name, t.new_zeros(n, *t.shape[1:])).index_copy(
                0, of.ids.to(t.device), t
            )
            for name, t in uploads.items()
        }

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """By the head, or by the nearest of the client's mixtures, where it has any."""
        features = self.population.encode(state, x)
        logits = self.population.decode(state, features)
        if view == "personal" or not payload:
            return logits
        scores = nearest_prototype(features, payload["mixtures"], payload["held"])
        known = payload["held"].any(1)[:, None, None]
        return torch.where(known, scores, logits)


def mixtures(prototypes: Tensor, known: Tensor, of: Tensor, options: PFPLOptions) -> Tensor:
    """Personalised prototypes of some clients (Eq. 4).

    Args:
        prototypes: `(clients, keys, d)` local prototypes of all clients.
        known: `(clients, keys)` whether a client holds the class.
        of: `(n,)` ids of the clients that mix.
        options: α and the weights.

    Returns:
        `(n, keys, d)`, zeros for classes that a client does not hold.
    """
    p, held = prototypes.transpose(0, 1), known.T  # A class at a time: (keys, clients, d).
    own = p[:, of]
    distance = torch.cdist(own, p, compute_mode="donot_use_mm_for_euclid_dist").square()
    itself = of[:, None] == torch.arange(len(known), device=of.device)
    others = held[:, None, :] & held[:, of, None] & ~itself
    if options.weights == "softmax":
        logits = (-distance / options.temperature).masked_fill(~others, -torch.inf)
        weight = logits.softmax(-1).nan_to_num()  # NaN where there is no other client.
    else:
        weight = 1 / (distance + EPS) if options.weights == "inverse" else distance
        weight = torch.where(others, weight, 0.0)
    total = weight.sum(-1, keepdim=True)
    mean = weight / total.clamp(min=torch.finfo(weight.dtype).tiny) @ p
    mean = torch.where(total > 0, mean, own)
    mixed = options.alpha * own + (1 - options.alpha) * mean
    return torch.where(held[:, of, None], mixed, 0.0).transpose(0, 1)


def batch_distance(features: Tensor, keys: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Mean squared error of a batch's class means to the prototypes, over its classes `(clients,)`.

    Args:
        features: `(clients, batch, d)`.
        keys: `(clients, batch)`.
        prototypes: `(clients, keys, d)`.
        known: `(clients, keys)`; other classes count as 0.
    """
    member = F.one_hot(keys, known.shape[1]).to(features.dtype)
    count = member.sum(1)
    means = member.mT @ features / count.clamp(min=1)[..., None]
    error = (means - prototypes).square().mean(-1)
    present = count > 0
    return torch.where(present & known, error, 0.0).sum(1) / present.sum(1)
