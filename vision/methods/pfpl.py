"""PFPL: personalised mixtures of class prototypes, for label skew with domain shift.

Zeng, Xing, Liang, Huang, Wang, Cao, Shi: Personalized Federated Prototype Learning in Mixed
Heterogeneous Data Scenarios; Eq. 2, 4, 5 and 7 and Algorithm 1.

A client uploads only the mean feature of each of its classes (Eq. 2); the server returns, for each
class, a mixture of the client's prototype and the other clients' that have the class
(Eq. 4). The client's loss pulls its features towards the mixtures (Eq. 5). Parameters and buffers
stay local.

Choices where the paper contradicts itself or gives no details:

- The printed weights grow with the distance, so that clients of other domains would weigh most; the
  text claims the opposite, and this uses inverse squared distances. `weights="as_printed"`
  follows the formula.
- The distance of two prototypes is the sum of squares, as printed below Eq. 4.
- For a class that no other client has, the mixture is the client's own prototype.
- Eq. 7 prints ‖·‖₂, a sum of squares by the notation below Eq. 4. As in FedProto's released code,
  the loss is between every sample and the prototype of its class, averaged over the features, so λ
  is FedProto's: with 128 features, λ = 1 of Eq. 7's sum would be λ = 128 here
  (`medium/pfpl_rounds` compares the two). `align="batch"` compares the batch's mean of each class,
  averaged over the classes, which Eq. 6 sums.
- Algorithm 1 (lines 21 and 22) also updates the local prototypes with the mixtures in every batch,
  without a formula; here they are means of the features, as in Eq. 2.
- Prototypes are means over the last local epoch's batches, without another pass, as in FedProto.
- The head predicts; the view `nearest` predicts the class of the client's nearest mixture.
- Learning rate 0.01, momentum 0.9 and batches of 4 are the paper's; its weight decay "e^-5" is read
  as 1e-5. All but the batches are the defaults of all image methods.
- Clients' numbers of classes n and of images of a class k vary at random; the paper does not say by
  how much. Here n is within one of its mean, and the clients of a domain share a class's images
  evenly, or have `shots` (`vision.partition.labels`). A client's images are all of one domain.
- Messages have a row for every class, zeros for classes that a client lacks; these are counted.
- The server keeps the last prototypes of clients that do not take part in a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.options import CheckedOptions, Share
from stforecast.federated.core.prototypes import (
    batch_distance,
    encoded,
    instance_distance,
    means_of_last_epoch,
    nearest_prototype,
)
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload


@dataclass(frozen=True)
class PFPLOptions(CheckedOptions):
    """Settings of PFPL.

    Attributes:
        alpha: weight α of a client's own prototype in its mixture (paper: 0.3, 0.5 and 0.6 for
            three data sets that it does not name).
        lam: weight λ of the alignment loss (paper: 1).
        weights: weights of the other prototypes: `inverse` squared distance, `softmax` of the
            negative squared distance over the temperature, or `as_printed`: proportional to the
            squared distance.
        temperature: temperature of the softmax.
        align: features to align with the mixture: every `instance`, or the `batch` mean of each
            class.
    """

    alpha: Share = 0.5
    lam: NonNegativeFloat = 1.0
    weights: Literal["inverse", "softmax", "as_printed"] = "inverse"
    temperature: PositiveFloat = 1.0
    align: Literal["instance", "batch"] = "instance"


class PFPL(Method):
    """PFPL. The methods follow the order of the paper's Algorithm 1."""

    name = "pfpl"
    summary = "pulls features to prototypes mixed for each client by distance; sends only these"
    paper = "Zeng et al., 2025"
    sends = Upload(apart=True)
    needs = Needs(data=("keys",))
    views: ClassVar[tuple[str, ...]] = ("personal", "nearest")
    Options = PFPLOptions
    options: PFPLOptions
    defaults = MappingProxyType({"batch_size": 4})

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start without prototypes."""
        return {
            "known": torch.zeros(
                len(clients), self.task.n_keys, dtype=torch.bool, device=clients.device
            )
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send each client's mixtures `(clients, keys, d)`, zeros for classes that it lacks.

        The message is empty in the first round.
        """
        if "prototypes" not in server:
            return {}
        prototypes, known = server["prototypes"], server["known"]
        ids = to.ids.to(known.device)
        return {"mixtures": mixtures(prototypes, known, ids, self.options), "held": known[ids]}

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `ℓ_S + λ ℓ_R` (Eq. 5)."""
        features, keys, loss = encoded(self, cohort, batch)
        if not payload or not self.options.lam:
            return loss
        to = (features, keys, payload["mixtures"], payload["held"])
        batch_means = self.options.align == "batch"
        pull = batch_distance(*to, weight="keys") if batch_means else instance_distance(*to)
        return loss + self.options.lam * pull

    def upload(self, cohort: Cohort) -> Payload:
        """Return local prototypes `(clients, keys, d)` (Eq. 2) and flags of their classes."""
        means = means_of_last_epoch(cohort)
        return {"prototypes": means.means(), "known": means.counts > 0}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Store the latest prototypes of every client, `(clients, keys, d)`."""
        n = len(server["known"])
        return {
            name: server.get(name, t.new_zeros(n, *t.shape[1:])).index_copy(
                0, of.ids.to(t.device), t
            )
            for name, t in uploads.items()
        }

    def predict(self, state: Payload, payload: Payload, x: Tensor, view: str) -> Tensor:
        """Predict with the head, or by the client's nearest mixture if it has any."""
        features = self.population.encode(state, x)
        logits = self.population.decode(state, features)
        if view == "personal" or not payload:
            return logits
        scores = nearest_prototype(features, payload["mixtures"], payload["held"])
        known = payload["held"].any(1)[:, None, None]
        return torch.where(known, scores, logits)


def mixtures(prototypes: Tensor, known: Tensor, of: Tensor, options: PFPLOptions) -> Tensor:
    """Return personalised prototypes of the clients `of` (Eq. 4), `(n, keys, d)`.

    They are 0 for classes that a client does not have: `known` `(clients, keys)` marks its own.
    """
    p, held = prototypes.transpose(0, 1), known.T  # By class: (keys, clients, d).
    own = p[:, of]
    distance = torch.cdist(own, p, compute_mode="donot_use_mm_for_euclid_dist").square()
    itself = of[:, None] == torch.arange(len(known), device=of.device)
    others = held[:, None, :] & held[:, of, None] & ~itself
    if options.weights == "softmax":
        logits = (-distance / options.temperature).masked_fill(~others, -torch.inf)
        weight = logits.softmax(-1).nan_to_num()  # NaN if no other client has the class.
    else:
        # With the small term, equal prototypes share the weight.
        weight = 1 / (distance + 1e-12) if options.weights == "inverse" else distance
        weight = torch.where(others, weight, 0.0)
    total = weight.sum(-1, keepdim=True)
    mean = weight / total.clamp(min=torch.finfo(weight.dtype).tiny) @ p
    mean = torch.where(total > 0, mean, own)
    mixed = options.alpha * own + (1 - options.alpha) * mean
    return torch.where(held[:, of, None], mixed, 0.0).transpose(0, 1)
