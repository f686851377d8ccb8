"""FedPAC: shared features aligned by prototypes, and heads that are mixtures of clients' heads.

Xu, Tong, Huang: Personalized Federated Learning with Feature Alignment and Classifier
Collaboration, ICLR 2023, arXiv 2306.11867. Of the paper only the abstract and the introduction
could be read; rules and defaults are those of PFLlib (Apache 2.0, commit d832e76), `clientpac.py`
and `serverpac.py`.

In a round, client i receives the encoder, a head and the global prototypes. On its n_i samples with
features f and keys k, of which a share p_k has key k and the mean feature μ_k, it computes

    h_i = (p_k μ_k)_k,    V_i = (E‖f‖² - Σ_k p_k² ‖μ_k‖²) / n_i.

It trains the head, then the encoder with the loss plus λ times the mean squared error of the
features to the global prototypes of their keys, and sends both with its new prototypes. The server
averages encoders by samples and prototypes by clients. Client i receives the heads of the
participants, mixed by the weights a on the simplex that minimise

    Σ_j a_j² V_j + Σ_k ‖Σ_j a_j (h_i,k - h_j,k)‖²,

the variance and the bias of the mixture. From equal weights, on equal batches, the encoders,
prototypes, weights a and heads of three rounds equal PFLlib's to 1e-15 in double precision.

- The problem is solved exactly, as non-negative least squares. PFLlib sets weights below 0.001 to 0
  afterwards, without making up for them; here they stay.
- Keys are classes, or with forecasts the slots of the period.
- With partial participation absent clients keep their heads, and a key that no participant holds
  keeps its prototype.
- Running statistics belong to their layers: the encoder's are averaged, the head's mixed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from stforecast.federated.core.declared import Needs, Upload
from stforecast.federated.core.options import CheckedOptions
from stforecast.federated.core.prototypes import (
    PrototypeMeans,
    global_prototypes,
    instance_distance,
)
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import (
    Batch,
    Payload,
    plain_mean,
    repeated,
    weighted_mean,
    with_axes,
)
from stforecast.federated.methods.fedper import HEAD, REPRESENTATION, FedPer

CHUNK = 256
"""Samples of a client that are encoded at once for prototypes."""


@dataclass(frozen=True)
class FedPacOptions(CheckedOptions):
    """Settings of FedPAC; the defaults are PFLlib's.

    Attributes:
        lam: weight λ of the distance of features to the global prototypes.
        head_epochs: epochs for the head, before the run's local epochs for the encoder.
    """

    lam: NonNegativeFloat = 1.0
    head_epochs: PositiveInt = 1


class FedPac(FedPer):
    """FedPAC."""

    name = "fedpac"
    summary = "averages encoders aligned by prototypes; mixes heads for each client"
    paper = "Xu et al., ICLR 2023"
    sends = Upload(
        needs_each="its server mixes the clients' heads for each of them", apart=True, counts=True
    )
    needs = Needs(data=("equal initial weights", "keys"))
    Options = FedPacOptions
    options: FedPacOptions

    @property
    def heads(self) -> list[str]:
        """Names of the tensors of a head that are not client-specific."""
        return [name for name in self.population.common if name.startswith(HEAD)]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the encoder `(…)` and the clients' heads `(clients, …)`."""
        initial = {**clients.params, **clients.buffers}
        heads = {name: initial[name].clone() for name in self.heads}
        return {**super().init(clients, sizes, seed), **heads}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the encoder, each client's head, and the global prototypes, if any."""
        common = {name: t for name, t in server.items() if name not in self.heads}
        heads = {name: server[name][to.ids.to(server[name].device)] for name in self.heads}
        return {**repeated(common, len(to.ids)), **heads}

    def local_update(self, cohort: Cohort, payload: Payload) -> Payload:
        """Describe the features, train the head, then the encoder."""
        self.receive(cohort, payload)
        means, counts, square = self.described(cohort)
        n = cohort.data.sizes.to(square)
        moment = means * (counts / n[:, None])[..., None]
        variance = (square - moment.square().sum((1, 2))) / n
        with cohort.training_only(HEAD):
            for batch in cohort.batches(self.options.head_epochs):
                cohort.step(super().local_loss(cohort, batch, payload))
        with cohort.training_only(REPRESENTATION):
            for batch in cohort.batches():
                cohort.step(self.local_loss(cohort, batch, payload))
        prototypes, counts, _ = self.described(cohort)
        sent = {name: cohort.state[name].detach() for name in (*self.shared, *self.heads)}
        sent |= {"moment": moment, "variance": variance}
        return {**sent, "prototypes": prototypes, "known": counts > 0}

    def described(self, cohort: Cohort) -> tuple[Tensor, Tensor, Tensor]:
        """Return each key's mean feature and count, and the mean of ‖f‖², over all samples.

        They are `(clients, keys, d)`, `(clients, keys)` and `(clients,)`.
        """
        means, total = PrototypeMeans(self.task.n_keys), torch.zeros(())
        self.population.train(False)
        with torch.no_grad():
            for batch in cohort.data.chunks(CHUNK):
                features = self.population.encode(cohort.state, batch["x"])
                means.add(features, self.task.keys(batch))
                total = total.to(features) + features.square().sum((1, 2))
        self.population.train()
        return means.means(), means.counts, total / cohort.data.sizes.to(total)

    def local_loss(self, cohort: Cohort, batch: Batch, payload: Payload) -> Tensor:
        """Return the loss, and λ times the distance to the prototypes, `(clients,)`."""
        features = self.population.encode(cohort.state, batch["x"])
        loss = self.task_loss(cohort, features, batch)
        if "prototypes" not in payload:
            return loss
        given = self.task.keys(batch), payload["prototypes"], payload["known"]
        return loss + self.options.lam * instance_distance(features, *given)

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Average encoders and prototypes, and mix the participants' heads."""
        ids = of.ids.to(uploads["known"].device)
        after = {name: weighted_mean(uploads[name], of.sizes) for name in self.shared}
        weights = mixing_weights(uploads["moment"], uploads["variance"])
        for name in self.heads:
            after[name] = server[name].clone()
            after[name][ids] = torch.tensordot(weights.to(uploads[name]), uploads[name], dims=1)
        return {**after, **global_prototypes(server, uploads["prototypes"], uploads["known"])}

    def server_for(self, server: ServerState, ids: Tensor) -> ServerState:
        """Return the state for other clients; the head of a new one is the mean of all."""
        after = dict(server)
        for name in self.heads:
            heads, here = server[name], ids.to(server[name].device)
            known = with_axes(here >= 0, heads.ndim)
            after[name] = torch.where(known, heads[here], plain_mean(heads))
        return after


def mixing_weights(moment: Tensor, variance: Tensor) -> Tensor:
    """Return the weights of all heads in each client's, `(clients, clients)`; rows sum to 1.

    Row i minimises `aᵀ P a` on the simplex, with `P = diag(V) + ((h_i - h_j)·(h_i - h_l))_jl`.
    That is the direction of the `a ≥ 0` which minimises `aᵀ P a + (Σ a - 1)²`.

    Args:
        moment: h `(clients, keys, d)`.
        variance: V `(clients,)`.
    """
    from scipy.optimize import nnls  # slow to import

    h = moment.flatten(1).double().cpu()
    v = variance.double().cpu().clamp(min=0).numpy()
    products = (h @ h.T).numpy()
    rows = []
    for i, row in enumerate(products):
        p = np.diag(v) + products[i, i] - row[:, None] - row + products
        values, vectors = np.linalg.eigh(p / max(np.trace(p) / len(p), np.finfo(float).tiny))
        root = np.sqrt(values.clip(0))[:, None] * vectors.T
        found, _ = nnls(np.vstack([root, np.ones(len(p))]), np.append(np.zeros(len(p)), 1.0))
        rows.append(found / found.sum())
    return torch.from_numpy(np.array(rows))
