"""FedAvg: clients train one global model; the server averages their parameters.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017, arXiv 1602.05629, Algorithm 1.

Parameters and buffers (running statistics of batch normalisation) are averaged alike, weighted by
the clients' numbers of samples.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from stforecast.federated.core.declared import Attacked, Needs, Upload
from stforecast.federated.core.method import Method
from stforecast.federated.core.state import Clients, Cohort, Participants, ServerState
from stforecast.federated.core.tensors import Payload, repeated, weighted_mean
from stforecast.federated.uploads.robust import RULES


class FedAvg(Method):
    """FedAvg of the tensors that `shares` selects; a subclass that shares fewer personalises."""

    name = "fedavg"
    summary = "averages all parameters into one global model"
    paper = "McMahan et al., AISTATS 2017"
    attacked = Attacked(guards=RULES)
    views: ClassVar[tuple[str, ...]] = ("global",)
    sends = Upload(sums="samples")
    needs = Needs(data=("equal initial weights",))

    def shares(self, name: str) -> bool:
        """Return whether the parameter or buffer of this name is sent and averaged; here all."""
        return True

    @property
    def shared(self) -> list[str]:
        """Names of the tensors that are sent and averaged; none is client-specific."""
        return [name for name in self.population.common if self.shares(name)]

    def init(self, clients: Clients, sizes: Tensor, seed: int) -> ServerState:
        """Return the clients' common initial model, `(…)` without a client axis."""
        initial = {**clients.params, **clients.buffers}
        return {name: initial[name][0].clone() for name in self.shared}

    def broadcast(self, server: ServerState, to: Participants) -> Payload:
        """Return the global model, the same for every client (a view, not copies)."""
        return repeated(server, len(to.ids))

    def upload(self, cohort: Cohort) -> Payload:
        """Return the trained model."""
        state = cohort.state
        return {name: state[name].detach() for name in self.shared}

    def aggregate(self, server: ServerState, of: Participants, uploads: Payload) -> ServerState:
        """Return the mean of the uploads, weighted by samples (Algorithm 1, last line).

        A method whose `sums` are of `clients` counts them equally.
        """
        weights = torch.ones_like(of.sizes) if self.sends.sums == "clients" else of.sizes
        return {name: weighted_mean(t, weights) for name, t in uploads.items()}
