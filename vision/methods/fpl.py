"""FPL: FedAvg with features pulled towards clustered prototypes of their class.

Huang, Ye, Shi, Li, Du: Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR
2023, Eq. 2 to 10; the clustering is FINCH: Sarfraz, Sharma, Stiefelhagen: Efficient Parameter-Free
Clustering Using First Neighbor Relations, CVPR 2019, arXiv 1902.11266, Eq. 1.

A client uploads its model and the mean feature of each of its classes (Eq. 2). The server clusters
those of a class by their first neighbours in cosine similarity (Eq. 4, 5). A contrastive loss
compares a sample with all cluster prototypes, with its own class's as positives (Eq. 8), and
another loss pulls it towards the mean of its class's clusters, the unbiased prototype (Eq. 6, 10),
in which large and small domains have the same weight. The model predicts with its head.

Choices where the paper gives no details or the released code differs:

- FINCH gives partitions with fewer and fewer clusters. Eq. 4 is the first; the code uses the last
  with more than one cluster. `clusters` chooses.
- Eq. 10 sums over the features; the code takes their mean, as here (`distance` chooses).
- Prototypes are means over the last local epoch's batches, as in the code. Prototypes of a class
that no
  participant has are not changed.
- A sample whose class has no prototype adds 0 to both terms.
- Parameters and running statistics are weighted by samples, as in FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import PositiveFloat
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch.nn import functional as F

from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.population import feature_width
from stforecast.federated.core.prototypes import encoded, instance_distance, means_of_last_epoch
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Batch, Payload
from stforecast.federated.methods.fedavg import FedAvg
from vision.task import cosines


@dataclass(frozen=True)
class FPLOptions(CheckedOptions):
    """Settings of FPL.

    Attributes:
        tau: temperature τ of the contrastive loss (paper and code: 0.02).
        clusters: FINCH's `first` partition (Eq. 4), or its `last` (released code).
        distance: whether the squared distance to the unbiased prototype is the `mean` (released
            code) or the `sum` (Eq. 10) over the features.
    """

    tau: PositiveFloat = 0.02
    clusters: Literal["first", "last"] = "first"
    distance: Literal["mean", "sum"] = "mean"


class FPL(FedAvg):
    """FPL. The server's state has cluster prototypes `(classes, slots, d)` and flags of used slots.

    Every cluster has at least two prototypes or is the only one of its class, so half as many slots
    as clients are enough.
    """

    name = "fpl"
    summary = "FedAvg with features pulled towards clustered prototypes of their class"
    paper = "Huang et al., CVPR 2023"
    sends = Upload(apart=True)
    needs = Needs(data=("equal initial weights", "keys"))
    Options = FPLOptions
    options: FPLOptions

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Start as FedAvg does, without clusters."""
        server = super().init(clients, sizes, seed)
        slots, d = max(1, len(clients) // 2), feature_width(self.population)
        return {
            **server,
            "clusters": torch.zeros(self.task.n_keys, slots, d, device=clients.device),
            "used": torch.zeros(self.task.n_keys, slots, dtype=torch.bool, device=clients.device),
        }

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Send the model, the prototypes of all clusters `(n, J, d)` and their classes `(n, J)`."""
        classes, slots = server["used"].nonzero(as_tuple=True)
        sent = {name: server[name] for name in self.shared}
        sent["prototypes"], sent["classes"] = server["clusters"][classes, slots], classes.int()
        return super().broadcast(sent, to)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return `L_CE + L_CPCL + L_UPCR`, without prototypes only `L_CE`."""
        features, keys, loss = encoded(self, cohort, batch)
        if not payload["classes"].shape[1]:
            return loss
        clusters, classes = payload["prototypes"], payload["classes"]
        unbiased, known = unbiased_prototypes(clusters, classes, self.task.n_keys)
        factor = features.shape[-1] if self.options.distance == "sum" else 1
        distance = factor * instance_distance(features, keys, unbiased, known)
        return (
            loss + contrastive_loss(features, keys, clusters, classes, self.options.tau) + distance
        )

    def upload(self, cohort: Cohort) -> Payload:
        """Return the model, prototypes `(clients, classes, d)` (Eq. 2) and their sample counts."""
        means = means_of_last_epoch(cohort)
        return {**super().upload(cohort), "prototypes": means.means(), "counts": means.counts}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average the models; cluster the prototypes of each class that a participant has."""
        model = super().aggregate(server, of, {n: uploads[n] for n in self.shared})
        clusters, used = server["clusters"].clone(), server["used"].clone()
        held = uploads["counts"] > 0
        for k in held.any(0).nonzero().flatten().tolist():
            means = cluster_means(uploads["prototypes"][held[:, k], k], self.options.clusters)
            clusters[k], used[k] = 0, False
            clusters[k, : len(means)], used[k, : len(means)] = means, True
        return {**model, "clusters": clusters, "used": used}


def cluster_means(points: Tensor, partition: str) -> Tensor:
    """Return the mean of each of FINCH's clusters, `(clusters, d)` (Eq. 5)."""
    labels = finch(points)[0 if partition == "first" else -1]
    return _means(points, labels)


def finch(points: Tensor) -> list[Tensor]:
    """Cluster points `(n, d)` by FINCH, as chains of first neighbours without parameters.

    Two points are linked if one is the other's first neighbour or both have the same one; linked
    points form a cluster. The means of the clusters are clustered in turn, until one would remain.
    A point's first neighbour has the largest cosine, of equals the first. The cluster labels `(n,)`
    of each partition are from fine to coarse.

    >>> finch(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
    [tensor([0, 0, 1, 1])]
    """
    partitions = [_linked(points)]
    while len(partitions[-1].unique()) > 2:
        coarser = _linked(_means(points, partitions[-1]))[partitions[-1]]
        if len(coarser.unique()) == 1:
            break
        partitions.append(coarser)
    return partitions


def _linked(points: Tensor) -> Tensor:
    """Label the chains of first neighbours, `(n,)`."""
    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.long, device=points.device)
    similarity = cosines(points, points).fill_diagonal_(-torch.inf)
    neighbour = similarity.argmax(1).cpu().numpy()
    # Points with the same first neighbour are connected through it, so these links are enough.
    links = coo_array(([True] * n, (range(n), neighbour)), shape=(n, n))
    _, labels = connected_components(links, directed=False)
    return torch.from_numpy(labels).long().to(points.device)


def _means(points: Tensor, labels: Tensor) -> Tensor:
    member = F.one_hot(labels).to(points)
    return member.mT @ points / member.sum(0)[:, None]


def unbiased_prototypes(
    prototypes: Tensor, classes: Tensor, n_classes: int
) -> tuple[Tensor, Tensor]:
    """Return the mean of each class's cluster prototypes (Eq. 6), `(clients, classes, d)`.

    Also return whether a class has any. The prototypes are `(clients, J, d)`.
    """
    member = F.one_hot(classes.long(), n_classes).to(prototypes)
    clusters = member.sum(1)
    means = member.mT @ prototypes / clusters.clamp(min=1)[..., None]
    return means, clusters > 0


def contrastive_loss(
    features: Tensor, keys: Tensor, prototypes: Tensor, classes: Tensor, tau: float
) -> Tensor:
    """Return L_CPCL (Eq. 7, 8), mean over the batch, as a difference of log-sum-exps, `(clients,)`.

    Features z are `(clients, batch, d)`, prototypes of all clusters `(clients, J, d)`. A sample
    without a prototype of its class counts as 0.
    """
    similarity = cosines(features, prototypes) / tau
    own = keys[..., None] == classes[:, None]
    lowest = torch.finfo(similarity.dtype).min
    positive = similarity.masked_fill(~own, lowest).logsumexp(-1)
    loss = similarity.logsumexp(-1) - positive
    return torch.where(own.any(-1), loss, 0.0).mean(1)
